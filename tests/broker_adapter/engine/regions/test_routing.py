"""Which audiences an event of a region has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.regions import audience, routing
from broker_adapter.engine.regions.audience import Audience
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind, digest, expression, prepared
from broker_adapter.engine.regions.routing import Routing
from broker_adapter.errors import ResourceAllocationException

EXPRESSIONS = ("a.*", ".b", "[ac]+")
SELECTORS = ("price > 3", "price > 5")


def key(text: str) -> Interest:
    return Interest(InterestKind.KEY, text)


def matching(text: str) -> Interest:
    return Interest(InterestKind.EXPRESSION, text)


def selected(text: str) -> Interest:
    return Interest(InterestKind.SELECTOR, text)


def query(name: str, text: str) -> Interest:
    return Interest(InterestKind.QUERY, text, name)


def new() -> Routing:
    return Routing(7, count(1).__next__)


def of(*interests: Interest) -> frozenset[Interest]:
    return frozenset(interests)


def numbers(found: Iterable[Audience]) -> set[int]:
    listed = [each.id for each in found]
    assert len(set(listed)) == len(listed), "an audience is named twice"
    return set(listed)


def test_clients_with_the_same_interests_are_one_audience() -> None:
    routing = new()
    first = routing.audience(of(key("a"), ALL_KEYS))
    assert routing.audience(of(ALL_KEYS, key("a"))) is first
    assert routing.audience(of(key("a"))) is not first
    assert repr(first) == "<Audience 1: all keys, key 'a'>"


def test_an_event_finds_those_of_its_key_of_all_keys_and_of_what_matches() -> None:
    routing = new()
    one = routing.audience(of(key("ab")))
    every = routing.audience(of(ALL_KEYS))
    like = routing.audience(of(matching("a.*")))
    costly = routing.audience(of(selected("price > 3")))
    assert list(routing.selectors) == [selected("price > 3")]
    assert numbers(routing.wanting("ab")) == {one.id, every.id, like.id}
    assert numbers(routing.wanting("ab", [selected("price > 3")])) == {one.id, every.id, like.id, costly.id}
    assert numbers(routing.wanting("x")) == {every.id}
    assert new().wanting("x") == ()


def test_an_audience_is_named_once_whatever_matches() -> None:
    routing = new()
    both = routing.audience(of(key("ab"), ALL_KEYS, matching("a.*"), selected("price > 3")))
    assert numbers(routing.wanting("ab", [selected("price > 3")])) == {both.id}
    assert both.matched("ab") == ([key("ab"), ALL_KEYS, matching("a.*")], [])
    assert both.matched("x") == ([ALL_KEYS], [])


def test_a_query_is_asked_once_for_all_names_and_told_by_each_name() -> None:
    routing = new()
    text = "price > 3"
    first = routing.audience(of(query("one", text), query("two", text), selected(text)))
    second = routing.audience(of(query("other", text)))
    question = Interest(InterestKind.QUERY, text)
    assert list(routing.queries) == [question]
    assert numbers(routing.wanting("x", [question])) == {first.id, second.id}
    assert numbers(routing.wanting("x", [selected(text)])) == {first.id}
    answers = [(digest(question), Operation.CREATE), (digest(selected(text)), Operation.UPDATE)]
    assert first.matched("x", answers) == ([selected(text)], [("one", Operation.CREATE), ("two", Operation.CREATE)])
    assert second.matched("x", answers) == ([], [("other", Operation.CREATE)])
    assert second.matched("x", answers[1:]) == ([], [])
    routing.drop(first)
    assert list(routing.queries) == [question]
    routing.drop(second)
    assert not routing.queries


def test_an_audience_that_is_dropped_gets_nothing_and_its_number_is_not_given_again() -> None:
    routing = new()
    gone = routing.audience(of(key("a"), matching("a"), selected("price > 3")))
    stays = routing.audience(of(key("a")))
    routing.drop(gone)
    routing.drop(gone)
    assert numbers(routing.wanting("a", [selected("price > 3")])) == {stays.id}
    assert not routing.selectors
    assert list(routing.audiences) == [stays]
    again = routing.audience(gone.interests)
    assert again.id > stays.id
    routing.drop(gone)  # it has the same interests, and is another one
    assert numbers(routing.wanting("a")) == {stays.id, again.id}


def test_a_region_has_so_many_different_expressions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_EXPRESSIONS", 3)
    found = new()
    found.audience(frozenset([matching("a.*"), matching(".b"), key("k")]))
    found.check_room([matching("a.*"), matching("c"), key("other")])
    with pytest.raises(ResourceAllocationException, match="no more than 3 different regular expressions"):
        found.check_room([matching("c"), matching("d")])


def test_a_region_has_so_many_different_selectors_and_queries_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOST_SELECTORS", 3)
    found = new()
    found.audience(of(selected("a"), query("one", "a"), key("k")))
    found.check_room([selected("a"), query("two", "a"), selected("b"), matching("c"), matching("d")])
    with pytest.raises(ResourceAllocationException, match="no more than 3 different selectors and queries"):
        found.check_room([selected("b"), query("one", "c")])


def test_what_was_prepared_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = new()
    wanted = of(matching("a.*"), selected("price > 3"), query("one", "price > 5"))
    found.prepared = prepared(wanted)
    monkeypatch.setattr(routing, "compiled", None)
    monkeypatch.setattr(audience, "expression", None)
    made = found.audience(wanted)
    assert found.wanting("ab") == [made]
    assert made.matched("ab").interests == [matching("a.*")]
    assert list(found.selectors) == [selected("price > 3")]
    assert list(found.queries) == [query("", "price > 5")]


def test_an_expression_is_asked_only_of_keys_that_it_can_match() -> None:
    found, asked = new(), []

    def match(data: bytes) -> object:
        asked.append(data)
        return True

    found.prepared = {matching(text): attrs.evolve(expression(text), match=match) for text in ("a.*", "b[0-9]", ".*c")}
    found.audience(of(*found.prepared))
    for each in ("a1", "b1", "ba", "d"):
        found.wanting(each)
    assert asked == [b"a1", b"a1", b"b1", b"b1", b"ba", b"d"]  # what begins with anything is always asked


def test_which_expressions_match_is_remembered_for_some_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REMEMBERED_KEYS", 3)
    found = new()
    found.audience(of(matching("a.*")))
    for each in ("a1", "a2", "a3", "a1", "a4"):
        assert found.wanting(each)
    assert list(found._matching) == ["a3", "a1", "a4"]
    found.audience(of(matching(".1")))
    assert not found._matching, "what matched is asked again for a new expression"
    assert len(found.wanting("a1")) == 2


@given(
    audiences=st.lists(
        st.frozensets(
            st.one_of(
                st.sampled_from("abc").map(key),
                st.just(ALL_KEYS),
                st.sampled_from(EXPRESSIONS).map(matching),
                st.sampled_from(SELECTORS).map(selected),
            ),
            min_size=1,
        ),
        max_size=8,
    ),
    dropped=st.sets(st.integers(0, 7)),
    event_key=st.text("abc", min_size=1, max_size=3),
    true=st.sets(st.sampled_from(SELECTORS)),
)
def test_the_index_finds_what_asking_each_interest_finds(
    audiences: list[frozenset[Interest]], dropped: set[int], event_key: str, true: set[str]
) -> None:
    routing = new()
    made = [routing.audience(each) for each in audiences]
    for index in dropped:
        if index < len(made):
            routing.drop(made[index])
    kept = list(routing.audiences)

    def wants(interest: Interest) -> bool:
        if interest.kind is InterestKind.KEY:
            return interest.text == event_key
        if interest.kind is InterestKind.EXPRESSION:
            return re.fullmatch(interest.text, event_key) is not None
        return interest.kind is InterestKind.ALL_KEYS or interest.text in true

    asked = [each for each in routing.selectors if each.text in true]
    found = routing.wanting(event_key, asked)
    assert numbers(found) == {each.id for each in kept if any(map(wants, each.interests))}
    for one in found:
        answers = [(digest(each), Operation.UPDATE) for each in asked]
        assert one.matched(event_key, answers) == (sorted(filter(wants, one.interests)), [])
