"""Selectors: the specification's table by table, what is refused, and the limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.errors import InvalidSelectorException
from broker_adapter.selectors.language import (
    MAX_PATTERN_LENGTH,
    MAX_SELECTOR_DEPTH,
    MAX_SELECTOR_LENGTH,
    parse_selector,
)


def is_selected(text: str, **values: Any) -> bool:
    return parse_selector(text).matches(values.get)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        # Literals (Jakarta Messaging 3.1 section 3.8.1.1).
        ("a = 'literal''s'", {"a": "literal's"}, True),
        ("a = 57", {"a": 57}, True),
        ("a = -957", {"a": -957}, True),
        ("a = +62", {"a": 62}, True),
        ("a = 62L", {"a": 62}, True),
        ("a = 0x1F", {"a": 31}, True),
        ("a = 0xFFFFFFFFFFFFFFFF", {"a": -1}, True),
        ("a = 010", {"a": 8}, True),
        ("a = 7E3", {"a": 7000.0}, True),
        ("a = -57.9E2", {"a": -5790.0}, True),
        ("a = 7.", {"a": 7.0}, True),
        ("a = -95.7", {"a": -95.7}, True),
        ("a = .5d", {"a": 0.5}, True),
        ("a = 2f", {"a": 2}, True),
        ("a = TRUE", {"a": True}, True),
        ("a = false", {"a": False}, True),
        # Identifiers.
        ("$a_1 = 1", {"$a_1": 1}, True),
        ("größe = 1", {"größe": 1}, True),
        ("JMSXGroupSeq = 1", {"JMSXGroupSeq": 1}, True),
        ("JMS_vendor = 1", {"JMS_vendor": 1}, True),
        ("A = 1", {"a": 1}, False),
        ('"two words" = 1', {"two words": 1}, True),
        # Comments.
        ("a = 1 -- and nothing else", {"a": 1}, True),
        ("a /* the first */ = 1", {"a": 1}, True),
        # Comparison.
        ("a = 1", {"a": 1.0}, True),
        ("a <> 1", {"a": 2}, True),
        ("a < 2 AND a <= 1 AND a > 0 AND a >= 1", {"a": 1}, True),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("a = 1", {"a": "1"}, False),
        ("a <> 1", {"a": "1"}, False),
        ("NOT (a = 1)", {"a": "1"}, True),
        ("a = 1", {"a": True}, False),
        ("a > 0", {"a": "x"}, False),
        ("a = b", {"a": "x", "b": b"x"}, False),
        ("a > 1", {"a": math.nan}, False),
        # Unknown.
        ("a = 1", {}, False),
        ("a <> 1", {}, False),
        ("NOT a = 1", {}, False),
        ("a = 1 OR b = 1", {"b": 1}, True),
        ("a = 1 AND b = 1", {"b": 1}, False),
        ("NOT (a = 1 AND b = 1)", {"b": 2}, True),
        ("NOT (a = 1 OR b = 1)", {"b": 2}, False),
        ("a + 1 = 2", {}, False),
        # A condition may be a property.
        ("flag", {"flag": True}, True),
        ("flag", {"flag": 1}, False),
        ("NOT flag", {"flag": False}, True),
        ("NOT flag", {}, False),
        ("TRUE", {}, True),
        ("(a = 1) = b", {}, None),
        # BETWEEN.
        ("age BETWEEN 15 AND 19", {"age": 15}, True),
        ("age BETWEEN 15 AND 19", {"age": 20}, False),
        ("age NOT BETWEEN 15 AND 19", {"age": 20}, True),
        ("age NOT BETWEEN 15 AND 19", {}, False),
        ("a + 1 BETWEEN b AND b * 2 AND TRUE", {"a": 4, "b": 3}, True),
        # IN.
        ("Country IN ('UK', 'US', 'France')", {"Country": "UK"}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, True),
        ("Country NOT IN ('UK')", {}, False),
        ("Country IN ('1')", {"Country": 1}, False),
        # LIKE.
        ("phone LIKE '12%3'", {"phone": "123"}, True),
        ("phone LIKE '12%3'", {"phone": "12993"}, True),
        ("phone LIKE '12%3'", {"phone": "1234"}, False),
        ("word LIKE 'l_se'", {"word": "lose"}, True),
        ("word LIKE 'l_se'", {"word": "loose"}, False),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "_foo"}, True),
        (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": "bar"}, False),
        ("phone NOT LIKE '12%3'", {"phone": "1234"}, True),
        ("phone NOT LIKE '12%3'", {}, False),
        ("a LIKE '%'", {"a": ""}, True),
        ("a LIKE ''", {"a": ""}, True),
        ("a LIKE 'a%a'", {"a": "a"}, False),
        ("a LIKE '%b%a_'", {"a": "abba\n"}, True),
        ("a LIKE '[a].*'", {"a": "[a].*"}, True),
        # IS NULL.
        ("prop_name IS NULL", {}, True),
        ("prop_name IS NULL", {"prop_name": 0}, False),
        ("prop_name IS NOT NULL", {"prop_name": 0}, True),
        # Arithmetic.
        ("a + 2 * 3 = 7", {"a": 1}, True),
        ("(a + 2) * 3 = 9", {"a": 1}, True),
        ("-a = 1", {"a": -1}, True),
        ("- - a = 1", {"a": 1}, True),
        ("7 / 2 = 3", {}, True),
        ("-7 / 2 = -3", {}, True),
        ("7.0 / 2 = 3.5", {}, True),
        ("-7 % 3 = -1", {}, True),
        ("7.5 % 2 = 1.5", {}, True),
        ("a / 0 IS NULL", {"a": 1}, None),
        ("a / 0 = 1 OR NOT a / 0 = 1", {"a": 1}, False),
        ("a % 0.0 = 1 OR NOT a % 0.0 = 1", {"a": 1}, False),
        ("9223372036854775807 + 1 = -9223372036854775808", {}, True),
        ("1e308 * 10 > 1e308", {}, True),
        ("a * a > 0", {"a": "x"}, False),
        # Precedence: NOT before AND before OR.
        ("a = 1 OR a = 2 AND b = 1", {"a": 1, "b": 2}, True),
        ("(a = 1 OR a = 2) AND b = 1", {"a": 1, "b": 2}, False),
        ("NOT a = 1 OR a = 1", {"a": 1}, True),
        (
            "JMSType = 'car' AND color = 'blue' AND weight > 2500",
            {"color": "blue", "weight": 2501, "JMSType": "car"},
            True,
        ),
    ],
)
def test_a_message_is_selected_where_the_condition_is_true(
    text: str, values: Mapping[str, Any], expected: bool | None
) -> None:
    if expected is None:
        with pytest.raises(InvalidSelectorException):
            parse_selector(text)
    else:
        assert is_selected(text, **values) is expected


@pytest.mark.parametrize(
    ("text", "column", "what"),
    [
        ("", 1, "expected a value or a condition"),
        ("a =", 4, "expected a value or a condition"),
        ("a = 'x", 5, "a string without its end"),
        ("colour = 'red' AN size = 1", 16, "expected AND, OR or the end"),
        ("5", 1, "a number is not a condition"),
        ("a = 1 AND 'x'", 11, "a string is not a condition"),
        ("'a' + 1 = 2", 1, "a string is not a number"),
        ("1 + TRUE = 2", 5, "a boolean is not a number"),
        ("a < 'x'", 5, "a string is not a number"),
        ("a BETWEEN 'x' AND 'y'", 11, "a string is not a number"),
        ("a LIKE 5", 8, "expected a string"),
        ("5 LIKE 'x'", 1, "LIKE wants an identifier"),
        ("a + 1 IS NULL", 1, "IS NULL wants an identifier"),
        ("a NOT = 1", 7, "expected BETWEEN, IN or LIKE"),
        ("a IN ()", 7, "expected a string"),
        ("a IN ('x' 'y')", 11, "expected )"),
        ("(a = 1", 7, "expected )"),
        ("a = 1)", 6, "expected AND, OR or the end"),
        ("a ! b", 3, "no token"),
        ("a != 1", 3, "no token; unequal is written <>"),
        ("a == 1", 4, "expected a value or a condition; equal is written ="),
        ("12ab = 1", 3, "goes on with a letter"),
        ("a = 9223372036854775808", 5, "does not fit in 64 bits"),
        ("a = 0x10000000000000000", 5, "does not fit in 64 bits"),
        ("a = 09", 5, "octal"),
        ("a LIKE 'x' ESCAPE 'yz'", 19, "an escape is one character"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "nothing stands behind the last escape"),
        ("JMSDestination = 'q'", 1, "no header that a selector can name"),
        ("(a = 1) + 1 = 2", 1, "a condition has no value"),
    ],
)
def test_an_invalid_selector_is_refused_with_the_place_of_the_fault(text: str, column: int, what: str) -> None:
    with pytest.raises(InvalidSelectorException) as caught:
        parse_selector(text)
    assert f"in column {column}," in caught.value.reason
    assert what in caught.value.reason


def test_a_selector_tells_its_text_and_its_names() -> None:
    selector = parse_selector("a = 1 AND \"b c\" IS NULL OR JMSType LIKE 'x%'")
    assert selector.names == {"a", "b c", "JMSType"}
    assert selector == parse_selector(selector.text)
    assert selector != parse_selector("a = 1")
    assert len({selector, parse_selector(selector.text)}) == 1
    assert "JMSType" in repr(selector)


# Limits.


def test_the_length_is_limited() -> None:
    text = "a = 1" + " " * (MAX_SELECTOR_LENGTH - 5)
    assert is_selected(text, a=1)
    with pytest.raises(InvalidSelectorException, match=f"limit of {MAX_SELECTOR_LENGTH}"):
        parse_selector(text + " ")


@pytest.mark.parametrize(("before", "after"), [("(", ")"), ("NOT ", ""), ("- ", ""), ("1 + ", "")])
def test_the_depth_is_limited(before: str, after: str) -> None:
    core = "1" if before in ("- ", "1 + ") else "a = 1"
    tail = " < a" if core == "1" else ""
    parse_selector(before * MAX_SELECTOR_DEPTH + core + after * MAX_SELECTOR_DEPTH + tail).matches({"a": 1}.get)
    with pytest.raises(InvalidSelectorException, match=f"limit of {MAX_SELECTOR_DEPTH}"):
        parse_selector(before * (MAX_SELECTOR_DEPTH + 1) + core + after * (MAX_SELECTOR_DEPTH + 1) + tail)


def test_a_long_chain_is_no_deep_one() -> None:
    assert is_selected(" OR ".join(f"a = {number}" for number in range(700)), a=699)


def test_the_length_of_a_pattern_is_limited() -> None:
    assert is_selected(f"a LIKE '{'x' * MAX_PATTERN_LENGTH}'", a="x" * MAX_PATTERN_LENGTH)
    with pytest.raises(InvalidSelectorException, match=f"longer than {MAX_PATTERN_LENGTH}"):
        parse_selector(f"a LIKE '{'x' * (MAX_PATTERN_LENGTH + 1)}'")


def test_a_selector_is_valid_unicode() -> None:
    """No transport carries another one, and no store keeps it with a durable subscription."""
    with pytest.raises(InvalidSelectorException, match=r"column 6.* not valid Unicode"):
        parse_selector("a = '\ud800'")


def test_no_pattern_backtracks() -> None:
    assert not is_selected(f"a LIKE '{'%a' * 400}%b'", a="a" * 20_000)


@pytest.mark.parametrize("pattern", ["_" * 900, "_" * 900 + "%b", "%" + "_" * 900 + "b%", "%" + "_%" * 450 + "b"])
def test_a_pattern_of_nine_hundred_underlines_is_decided_for_a_long_text(pattern: str) -> None:
    text = "a" * 2_000_000
    assert not is_selected(f"a LIKE '{pattern}'", a=text)
    assert is_selected(f"a NOT LIKE '{pattern}'", a=text)


@pytest.mark.parametrize("sign", ["", "-", "+"])
@pytest.mark.parametrize(
    "number", ["9" * 5000, "0x" + "f" * 5000, "0" + "7" * 5000, "9" * 5000 + ".5", "1e" + "9" * 500]
)
def test_a_number_of_thousands_of_digits_is_refused(sign: str, number: str) -> None:
    with pytest.raises(InvalidSelectorException, match=r"column \d, .* longer than the limit of 100"):
        parse_selector(f"a = {sign}{number}")


def test_the_largest_numbers_are_taken() -> None:
    assert is_selected(f"a = {'0' * 80}777", a=0o777)
    assert is_selected("a = 1" + "0" * 98 + ".", a=1e98)
    assert is_selected("a < 1e999", a=2**63 - 1)  # beyond a double: infinite, as in Java's arithmetic


@pytest.mark.parametrize("text", ["a = 1 /* b", "a = 1" + "/*a" * 2700, "/*/"])
def test_a_comment_has_an_end(text: str) -> None:
    with pytest.raises(InvalidSelectorException, match="a comment without its end"):
        parse_selector(text)


def test_few_long_selectors_are_kept_for_the_next_call() -> None:
    short = "kept = 1"
    long = [" OR ".join(f"kept = {number}" for number in range(first, first + 100)) for first in range(50)]
    assert parse_selector(short) is parse_selector(short)
    before = [parse_selector(text) for text in long]
    assert parse_selector(long[-1]) is before[-1]
    assert parse_selector(long[0]) is not before[0]  # it was dropped
    assert parse_selector(long[0]) == before[0]


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text("ab%_'", max_size=4),
)


@settings(max_examples=400, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(
                [
                    "a",
                    "b",
                    "1",
                    "1.5",
                    "'x'",
                    "(",
                    ")",
                    "=",
                    "<>",
                    "<",
                    ">",
                    "+",
                    "-",
                    "*",
                    "/",
                    "%",
                    "AND",
                    "OR",
                    "NOT",
                    "IN",
                    "LIKE",
                    "BETWEEN",
                    "IS",
                    "NULL",
                    "ESCAPE",
                    "TRUE",
                    ",",
                    '"',
                    "'",
                    "--",
                    "/*",
                ]
            ),
            max_size=12,
        ).map(" ".join),
    ),
    value=_values,
)
def test_garbage_is_refused_or_means_something(text: str, value: Any) -> None:
    try:
        selector = parse_selector(text)
    except InvalidSelectorException:
        return
    assert selector.matches(lambda name: value) in (True, False)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ('region = "EU"', ("EU",)),
        ('region <> "EU" OR city = "Rome"', ("EU", "Rome")),
        ('"a name" = 1', ()),
        ("region = 'EU'", ()),
        ("region = country", ()),
        ("\"first name\" IN ('a')", ()),
    ],
)
def test_a_selector_says_which_quoted_identifiers_others_are_compared_with(text: str, quoted: tuple[str, ...]) -> None:
    """``"EU"`` names a property, and is often meant for the text ``'EU'``."""
    assert parse_selector(text).compared_quoted == quoted
