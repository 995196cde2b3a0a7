"""What a client may want of a region."""

from __future__ import annotations

import time

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.regions.event_records import DIGEST_BYTES
from broker_adapter.engine.regions.interests import (
    ALL_KEYS,
    MAX_EXPRESSION_LENGTH,
    MAX_KEY_BYTES,
    Interest,
    InterestKind,
    checked_interest,
    checked_key,
    digest,
    expression,
    query_operation,
)
from broker_adapter.errors import InvalidDestinationException, InvalidSelectorException


@pytest.mark.parametrize(
    ("kind", "text", "label"),
    [
        (InterestKind.KEY, "IBM", "key 'IBM'"),
        (InterestKind.EXPRESSION, "I.*", "keys that match 'I.*'"),
        (InterestKind.SELECTOR, "price > 3", "selector 'price > 3'"),
    ],
)
def test_an_interest_is_its_kind_and_its_text(kind: InterestKind, text: str, label: str) -> None:
    interest = checked_interest(int(kind), text)
    assert interest == Interest(kind, text)
    assert interest.label == label


def test_a_query_has_a_name_and_only_a_query() -> None:
    query = checked_interest(4, "price > 3", "dear")
    assert query == Interest(InterestKind.QUERY, "price > 3", "dear")
    assert query.label == "query 'dear': 'price > 3'"
    assert query.question == Interest(InterestKind.QUERY, "price > 3")
    assert checked_interest(3, "price > 3", "dear") == Interest(InterestKind.SELECTOR, "price > 3")
    for name, why in (("", "has 0"), ("n" * 101, "has 101"), ("\ud800", "surrogate")):
        with pytest.raises(InvalidDestinationException, match=why):
            checked_interest(4, "price > 3", name)
    with pytest.raises(InvalidSelectorException):
        checked_interest(4, "price >", "dear")


def test_a_digest_tells_kinds_and_texts_apart() -> None:
    wishes = [Interest(kind, text) for kind in (InterestKind.SELECTOR, InterestKind.QUERY) for text in ("a", "b")]
    assert len(set(map(digest, wishes))) == 4
    assert all(len(digest(each)) == DIGEST_BYTES for each in wishes)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [(False, False, None), (False, True, "CREATE"), (True, False, "DESTROY"), (True, True, "UPDATE")],
)
def test_what_happens_for_a_query_follows_from_both_values(old: bool, new: bool, expected: str | None) -> None:
    found = query_operation(old, new)
    assert (None if found is None else found.name) == expected


def test_all_keys_is_one_interest_whatever_stands_beside_it() -> None:
    assert checked_interest(1, "") is checked_interest(1, "whatever") is ALL_KEYS
    assert ALL_KEYS.label == "all keys"


@pytest.mark.parametrize("kind", [-1, 5, 255])
def test_an_unknown_kind_is_named(kind: int) -> None:
    with pytest.raises(InvalidDestinationException, match=rf"^{kind} is no kind of interest: 0 \(KEY\)"):
        checked_interest(kind, "x")


@pytest.mark.parametrize("key", ["a", "a" * MAX_KEY_BYTES, "\u20ac" * (MAX_KEY_BYTES // 3), "\0", "a/b c"])
def test_a_key_may_be_any_text_up_to_the_limit(key: str) -> None:
    assert checked_key(key) == key


@pytest.mark.parametrize("key", ["", "a" * (MAX_KEY_BYTES + 1), "\u20ac" * (MAX_KEY_BYTES // 3 + 1)])
def test_a_key_beyond_the_limit_is_refused(key: str) -> None:
    with pytest.raises(InvalidDestinationException, match=r"1 to 400 bytes of UTF-8.* has \d+$"):
        checked_key(key)


def test_a_key_with_a_surrogate_is_refused() -> None:
    with pytest.raises(InvalidDestinationException, match="surrogate"):
        checked_key("a\ud800")


@pytest.mark.parametrize("text", ["(", "a{1001}", "(?=a)", r"(a)\1", "*", "((a{100}){100}){100}", "\ud800"])
def test_what_is_no_regular_expression_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(InvalidDestinationException, match="RE2"):
        checked_interest(InterestKind.EXPRESSION, text)


def test_a_long_regular_expression_is_refused() -> None:
    checked_interest(InterestKind.EXPRESSION, "a" * MAX_EXPRESSION_LENGTH)
    with pytest.raises(InvalidDestinationException, match="1000 characters, and this one has 1001"):
        checked_interest(InterestKind.EXPRESSION, "a" * (MAX_EXPRESSION_LENGTH + 1))


def test_a_selector_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(InvalidSelectorException):
        checked_interest(InterestKind.SELECTOR, "price >")


def test_an_expression_has_to_match_the_whole_key() -> None:
    matches = expression("I.M")
    assert matches("IBM")
    assert not matches("XIBM")
    assert not matches("IBMX")
    assert expression(".*")("")


def test_no_expression_takes_longer_than_the_key_is_long() -> None:
    """One that a backtracking matcher would not end in the age of the universe."""
    before = time.process_time()
    assert not expression("(a|a)*" * 8 + "(a*)*b")("a" * MAX_KEY_BYTES)
    assert time.process_time() - before < 60


@given(
    st.text("ab.*+?|()[]^$\\\u00e9", max_size=6)
    | st.sampled_from(["(?i)ab.*", "a{0,2}b", "\\x{10ffff}a.*", "\\bab", "(?s).*"]),
    st.text("abAB\u00e9\n\U0010ffff", max_size=4),
)
def test_the_bounds_of_an_expression_rule_out_no_key_that_it_matches(text: str, key: str) -> None:
    try:
        found = expression(text)
    except InvalidDestinationException:
        return
    assert found(key) is (re2.fullmatch(text, key) is not None)


def test_an_expression_that_begins_with_what_a_key_begins_with_has_bounds() -> None:
    found = expression("US\\..*")
    assert found.low == b"US."
    assert b"US.\xf4\x8f\xbf\xbf" < found.high < b"US/"
    assert expression(".*x").low <= b"\0"
    assert expression(".*x").high > "\U0010ffff".encode()
