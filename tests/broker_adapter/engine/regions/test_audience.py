"""What an event matches of the interests that a client had as it came."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.regions import audience as module
from broker_adapter.engine.regions.audience import OwnAudience, Span
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind, digest
from broker_adapter.engine.regions.routing import Routing

POOL = (
    *(Interest(InterestKind.KEY, each) for each in ("a", "b", "ab")),
    ALL_KEYS,
    *(Interest(InterestKind.EXPRESSION, each) for each in ("a.*", ".b")),
    Interest(InterestKind.SELECTOR, "price > 3"),
    *(Interest(InterestKind.QUERY, "price > 3", each) for each in ("one", "two")),
    Interest(InterestKind.QUERY, "price > 5", "three"),
)
KEY_A, KEY_B = POOL[:2]


def is_true(interest: Interest, key: str, price: int) -> bool:
    match interest.kind:
        case InterestKind.KEY:
            return interest.text == key
        case InterestKind.EXPRESSION:
            return key.startswith("a") if interest.text == "a.*" else len(key) == 2 and key.endswith("b")
        case InterestKind.ALL_KEYS:
            return True
    return price > int(interest.text[-1])


@given(st.data())
def test_an_event_matches_what_the_client_wanted_as_it_came(data: st.DataObject) -> None:
    routing = Routing(1, count(1).__next__)
    first = data.draw(st.sets(st.sampled_from(POOL), min_size=1))
    own = routing.own_audience(first)
    wanted = set(first)
    then: list[set[Interest]] = [set()]  # by position
    for _ in range(data.draw(st.integers(1, 8))):
        then += [set(wanted)] * data.draw(st.integers(0, 2))
        more = data.draw(st.sets(st.sampled_from(POOL))) - wanted
        ended = data.draw(st.sets(st.sampled_from(POOL))) & wanted
        if not own.can_change(more, ended):
            continue
        routing.change(own, sorted(more), sorted(ended), len(then) - 1)
        wanted = (wanted | more) - ended
        assert own.interests == wanted
        restored = OwnAudience(own.id, 1, own.first, own.spans)
        assert (restored.interests, restored.gets_all) == (wanted, own.gets_all)
        assert set(restored.questions) == set(own.questions) == {each.question for each in wanted}
        key, price = data.draw(st.sampled_from(["a", "b", "ab", "c"])), data.draw(st.integers(2, 7))
        asked = [*routing.selectors, *routing.queries]
        is_wanted = any(is_true(each, key, price) for each in wanted)
        assert list(routing.wanting(key, [each for each in asked if is_true(each, key, price)])) == [own] * is_wanted
        answers = [
            (digest(each), Operation.UPDATE)
            for each in {each.question for each in POOL if each.is_asked}
            if is_true(each, key, price)
        ]
        for position, had in enumerate((*then, wanted)):
            matching = {each for each in had if is_true(each, key, price)}
            for each_audience in (own, restored):
                found = each_audience.matched(key, answers, position)
                if position:
                    assert {name for name, _ in found.queries} == {each.name for each in matching if each.name}
                    assert list(found.interests) == sorted(each for each in matching if not each.name)
    routing.drop(own)
    assert not routing.audiences
    assert not routing.selectors
    assert not routing.queries
    assert not routing.wanting("a", POOL)


def test_an_audience_of_one_client_is_shared_with_nobody() -> None:
    routing = Routing(1, count(1).__next__)
    own = routing.own_audience([KEY_A, KEY_B])
    shared = routing.audience(frozenset([KEY_A, KEY_B]))
    assert shared is not own
    assert list(routing.wanting("a")) == [own, shared]
    routing.drop(shared)
    assert list(routing.wanting("a")) == [own]


def test_what_has_ended_does_not_come_back_and_something_is_left() -> None:
    own = OwnAudience(1, 1, [KEY_A, KEY_B])
    assert not own.can_change((), [KEY_A, KEY_B])
    own.change((), [KEY_A], 7)
    assert own.spans == {KEY_A: Span(-1, 7)}
    assert not own.can_change([KEY_A], ())
    assert own.can_change([ALL_KEYS], ())


def test_more_spans_that_have_ended_than_interests_make_another_audience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SHARED", 3)
    keys = [Interest(InterestKind.KEY, str(number)) for number in range(12)]
    own = OwnAudience(1, 1, keys)
    ended = 0
    while own.can_change((), [keys[ended]]):
        own.change((), [keys[ended]], ended)
        ended += 1
    assert ended == 6, "as many have ended as are left"


def test_an_audience_that_has_lost_an_interest_does_not_get_each_event_of_a_key() -> None:
    own = OwnAudience(1, 1, [KEY_A, KEY_B])
    own.change([ALL_KEYS], (), 1)
    assert own.gets_all
    own.change((), [KEY_B], 2)
    assert not own.gets_all
    asked = OwnAudience(1, 1, [KEY_A])
    asked.change([POOL[-1]], (), 1)
    assert not asked.gets_all
