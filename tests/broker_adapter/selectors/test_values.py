"""What selectors compute: everything against a plain evaluator, and what one message may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.selectors.language import parse_selector
from broker_adapter.selectors.like import CANDIDATE_STEPS
from broker_adapter.selectors.values import MAX_STEPS


def is_selected(text: str, **values: Any) -> bool:
    return parse_selector(text).matches(values.get)


class _CountingText(str):
    """A text that counts how often it is searched and compared."""

    searches = 0
    compared = 0

    def find(self, *arguments: Any) -> int:
        self.searches += 1
        return super().find(*arguments)

    def __eq__(self, other: object) -> bool:
        self.compared += len(self)
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_all_patterns_of_a_selector_share_what_a_message_may_cost() -> None:
    text = _CountingText(("a" * 20 + "b") * 50_000)
    for part in ("a LIKE '%a_a_a_c_a%'", "a NOT LIKE '%a_a_a_c_a%'"):
        for word in (" OR ", " AND "):
            text.searches = 0
            assert not is_selected(word.join([part] * 250), a=text)  # unknown: neither like the pattern nor unlike it
            assert text.searches <= MAX_STEPS // CANDIDATE_STEPS


def test_comparisons_of_properties_share_what_a_message_may_cost() -> None:
    text, other = _CountingText("a" * 2_000_000), "a" * 2_000_000
    assert is_selected("a = b", a=text, b=other)
    assert text.compared == len(text)
    text.compared = 0
    for selector in ("a = b", "a <> b", "NOT a = b", "NOT a <> b"):
        for word in (" AND ", " OR "):
            is_selected(word.join([selector] * 500), a=text, b=other)
    assert text.compared <= 8 * 16 * MAX_STEPS
    assert is_selected(" AND ".join(["a = b"] * 600), a="x" * 100_000, b="x" * 100_000)
    assert not is_selected(" AND ".join(["a = b"] * 600), a="x" * 200_000, b="x" * 200_000)  # unknown
    assert is_selected(" AND ".join(["a <> b"] * 600), a="x" * 200_000, b="x" * 200_001)


# Against a plain evaluator: trees, printed as text, evaluated as trees in three-valued logic.


_NAMES = ("a", "b", "c", "JMSPriority")
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text("ab%_'", max_size=4),
)
_numbers = st.one_of(
    st.sampled_from(_NAMES).map(lambda name: ("name", name)),
    st.integers(-3, 3).map(lambda number: ("literal", number)),
    st.sampled_from([0.0, 0.5, -1.5, 2.0]).map(lambda number: ("literal", number)),
)
_arithmetic = st.recursive(
    _numbers,
    lambda parts: st.one_of(st.tuples(st.sampled_from("+-*/%"), parts, parts), st.tuples(st.just("minus"), parts)),
    max_leaves=4,
)
_texts = st.text("ab%_'", max_size=3).map(lambda text: ("literal", text))
_names = st.sampled_from(_NAMES).map(lambda name: ("name", name))
_atoms = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), st.one_of(_arithmetic, _texts), st.one_of(_arithmetic, _texts)),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), _arithmetic, _arithmetic),
    st.tuples(st.just("between"), _arithmetic, _arithmetic, _arithmetic),
    st.tuples(st.just("in"), _names, st.lists(st.text("ab%_'", max_size=2), min_size=1, max_size=3)),
    st.tuples(st.just("like"), _names, st.text("ab%_'", max_size=4)),
    st.tuples(st.just("null"), _names),
    st.tuples(st.just("flag"), _names),
)
_conditions = st.recursive(
    _atoms,
    lambda parts: st.one_of(
        st.tuples(st.just("and"), parts, parts),
        st.tuples(st.just("or"), parts, parts),
        st.tuples(st.just("not"), parts),
    ),
    max_leaves=6,
)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _printed(tree: Any) -> str:
    kind, *parts = tree
    if kind == "name":
        return str(parts[0])
    if kind == "literal":
        value = parts[0]
        return _quoted(value) if isinstance(value, str) else f"({value!r})"
    if kind == "minus":
        return f"(- {_printed(parts[0])})"
    if kind == "between":
        return f"({_printed(parts[0])} BETWEEN {_printed(parts[1])} AND {_printed(parts[2])})"
    if kind == "in":
        return f"{_printed(parts[0])} IN ({', '.join(map(_quoted, parts[1]))})"
    if kind == "like":
        return f"{_printed(parts[0])} LIKE {_quoted(parts[1])}"
    if kind == "null":
        return f"{_printed(parts[0])} IS NULL"
    if kind == "flag":
        return f"({_printed(parts[0])})"
    if kind == "not":
        return f"NOT ({_printed(parts[0])})"
    return f"({_printed(parts[0])} {kind.upper()} {_printed(parts[1])})"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _long(value: Any) -> Any:
    return ((value + 2**63) & (2**64 - 1)) - 2**63 if isinstance(value, int) else value


def _calculated(kind: str, left: Any, right: Any) -> Any:
    if not _number(left) or not _number(right):
        return None
    exact = isinstance(left, int) and isinstance(right, int)
    try:
        if kind == "+":
            return _long(left + right)
        if kind == "-":
            return _long(left - right)
        if kind == "*":
            return _long(left * right)
        if right == 0:
            return None
        quotient = (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1) if exact else left / right
        if kind == "/":
            return _long(quotient)
        return left - quotient * right if exact else math.fmod(left, right)
    except OverflowError:
        return None


def _is_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_is_like(text[start:], pattern[1:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _is_like(text[1:], pattern[1:])


def _compared(kind: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    alike = (_number(left) and _number(right)) or (
        kind in ("=", "<>") and (type(left), type(right)) in ((str, str), (bool, bool))
    )
    if not alike:
        return False
    return bool(
        {"=": left == right, "<>": left != right}[kind]
        if kind in ("=", "<>")
        else {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[kind]
    )


def _evaluated(tree: Any, values: Mapping[str, Any]) -> Any:
    kind, *parts = tree
    if kind == "name":
        return values.get(parts[0])
    if kind == "literal":
        return parts[0]
    if kind in ("in", "like"):
        found = values.get(parts[0][1])
        if found is None:
            return None
        if not isinstance(found, str):
            return False
        return found in parts[1] if kind == "in" else _is_like(found, parts[1])
    if kind == "null":
        return values.get(parts[0][1]) is None
    results = [_evaluated(part, values) for part in parts]
    if kind == "flag":
        return results[0] if isinstance(results[0], bool) else None
    if kind == "minus":
        return _long(-results[0]) if _number(results[0]) else None
    if kind == "between":
        return _evaluated_and(_compared(">=", results[0], results[1]), _compared("<=", results[0], results[2]))
    if kind == "not":
        return None if results[0] is None else not results[0]
    if kind == "and":
        return _evaluated_and(*results)
    if kind == "or":
        negated = _evaluated_and(*(None if result is None else not result for result in results))
        return None if negated is None else not negated
    if kind in "+-*/%":
        return _calculated(kind, *results)
    return _compared(kind, *results)


def _evaluated_and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


@settings(max_examples=600, deadline=None)
@given(tree=_conditions, values=st.fixed_dictionaries(dict.fromkeys(_NAMES, _values)))
def test_a_selector_is_what_a_plain_evaluator_makes_of_it(tree: Any, values: Mapping[str, Any]) -> None:
    text = _printed(tree)
    assert parse_selector(text).matches(values.get) is (_evaluated(tree, values) is True)
    assert parse_selector(f"NOT ({text})").matches(values.get) is (_evaluated(tree, values) is False)
