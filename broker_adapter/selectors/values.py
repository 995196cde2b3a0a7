"""What the parts of a selector compute: conditions that are true, false or unknown, and values of messages.

Theory of operation
    The logic is that of SQL-92: a condition is true, false or unknown, and a message is selected where it is true.
    Unknown need not be computed: each condition consists of two functions, one that says whether it is *true* and one
    whether it is *false*; ``NOT`` exchanges them, and what is neither is unknown.

    A value that a message does not have is unknown, and so is arithmetic with it.  Comparing unlike types is false, as
    the specification says, except that integers compare with floating-point numbers.  Integers are Java's ``long``:
    arithmetic wraps around at 64 bits, division truncates, and division by zero is unknown.

    A selector is applied inside the engine's cycle, and may come from any user that may connect.  So what it costs one
    message is limited: ``LIKE`` and the comparison of two properties have ``MAX_STEPS`` steps in all, in equal shares.
    A condition that would need more is unknown; one of short texts never does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import fmod
from typing import Any, Final, NamedTuple

from broker_adapter.selectors.like import SHORT_TEXT, Fits

#: Steps that the ``LIKE``s and the comparisons of properties with each other may take for one message, in all: about
#: one for each character that is compared, or 20 milliseconds of CPU.
MAX_STEPS: Final = 4 * 1024 * 1024
#: Characters that are compared with each other in one step.
_COMPARED_IN_A_STEP: Final = 16

#: Gives the value of a header or property by its name; None where the message has none.
Values = Callable[[str], Any]
Test = Callable[[Values], bool]
Get = Callable[[Values], Any]


class Condition(NamedTuple):
    """What is true, false or unknown."""

    is_true: Test
    is_false: Test


class Allowance:
    """The steps that one selector may take for a message, shared equally by those of its conditions that need some."""

    __slots__ = ("share", "sharers")

    def __init__(self) -> None:
        self.sharers = 0
        self.share = MAX_STEPS

    def join(self) -> None:
        """One more condition takes steps."""
        self.sharers += 1
        self.share = MAX_STEPS // self.sharers


class Value(NamedTuple):
    """What has a value.  ``kind`` is what is known of its type: number, string, boolean or any."""

    get: Get
    kind: str
    literal: Any = None  #: its value, where it is a literal
    name: str | None = None  #: its name, where it is an identifier
    column: int = 1


Part = Condition | Value


def negation(condition: Condition) -> Condition:
    """``NOT``."""
    return Condition(condition.is_false, condition.is_true)


def conjunction(parts: list[Condition]) -> Condition:
    """``AND``."""
    return Condition(_every([part.is_true for part in parts]), _some([part.is_false for part in parts]))


def disjunction(parts: list[Condition]) -> Condition:
    """``OR``."""
    return Condition(_some([part.is_true for part in parts]), _every([part.is_false for part in parts]))


def _every(tests: list[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda values: first(values) and second(values)
    return lambda values: all(test(values) for test in tests)


def _some(tests: list[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda values: first(values) or second(values)
    return lambda values: any(test(values) for test in tests)


# Comparison.


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_alike(left: Any, right: Any) -> bool:
    """Return whether two values that are known can be compared with ``=``."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    if isinstance(left, str):
        return isinstance(right, str)
    return _is_number(left) and _is_number(right)


def _are_numbers(left: Any, right: Any) -> bool:
    return _is_number(left) and _is_number(right)


#: Each comparison: what it asks of the values, and of their types.
COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]]] = {
    "=": (operator.eq, _are_alike),
    "<>": (operator.ne, _are_alike),
    "<": (operator.lt, _are_numbers),
    "<=": (operator.le, _are_numbers),
    ">": (operator.gt, _are_numbers),
    ">=": (operator.ge, _are_numbers),
}
_PLAIN_NUMBERS: Final = frozenset((int, float))


def comparison(symbol: str, left: Value, right: Value) -> Condition:
    """One of ``COMPARISONS``, of any two values."""
    compare, fit = COMPARISONS[symbol]
    get_left, get_right = left.get, right.get

    def is_true(values: Values) -> bool:
        first, second = get_left(values), get_right(values)
        return fit(first, second) and compare(first, second)

    def is_false(values: Values) -> bool:
        first, second = get_left(values), get_right(values)
        if first is None or second is None:
            return False
        return not (fit(first, second) and compare(first, second))

    literal = right.literal
    # What most selectors are made of, with fewer calls: a name, compared with a literal.
    if type(literal) is str and symbol == "=":
        return Condition(lambda values: get_left(values) == literal, is_false)
    if type(literal) in _PLAIN_NUMBERS:

        def is_true_of_number(values: Values) -> bool:
            first = get_left(values)
            return (type(first) in _PLAIN_NUMBERS or _is_number(first)) and compare(first, literal)

        return Condition(is_true_of_number, is_false)
    return Condition(is_true, is_false)


def comparison_of_names(symbol: str, left: Value, right: Value, allowance: Allowance) -> Condition:
    """``=`` or ``<>`` of two properties, which may be two long texts."""
    allowance.join()
    compare = COMPARISONS[symbol][0]
    get_left, get_right = left.get, right.get

    def is_affordable(first: str, second: str) -> bool:
        return len(first) != len(second) or len(first) <= allowance.share * _COMPARED_IN_A_STEP

    def is_true(values: Values) -> bool:
        first, second = get_left(values), get_right(values)
        if isinstance(first, str) and isinstance(second, str):
            return (len(first) <= SHORT_TEXT or is_affordable(first, second)) and compare(first, second)
        return _are_alike(first, second) and compare(first, second)

    def is_false(values: Values) -> bool:
        first, second = get_left(values), get_right(values)
        if first is None or second is None:
            return False
        if isinstance(first, str) and isinstance(second, str):
            return (len(first) <= SHORT_TEXT or is_affordable(first, second)) and not compare(first, second)
        return not (_are_alike(first, second) and compare(first, second))

    return Condition(is_true, is_false)


def truth_of(value: Value) -> Condition:
    """The condition that a boolean value is."""
    get = value.get
    return Condition(lambda values: get(values) is True, lambda values: get(values) is False)


def membership(value: Value, members: frozenset[str]) -> Condition:
    """``IN``."""
    get = value.get

    def is_true(values: Values) -> bool:
        found = get(values)
        return isinstance(found, str) and found in members

    def is_false(values: Values) -> bool:
        found = get(values)
        return found is not None and not (isinstance(found, str) and found in members)

    return Condition(is_true, is_false)


def null_test(value: Value) -> Condition:
    """``IS NULL``; it is never unknown."""
    get = value.get
    return Condition(lambda values: get(values) is None, lambda values: get(values) is not None)


def pattern_match(value: Value, fits: Fits, allowance: Allowance) -> Condition:
    """``LIKE``; unknown where the steps that it may take are not enough to tell."""
    allowance.join()
    get = value.get

    def is_true(values: Values) -> bool:
        found = get(values)
        return isinstance(found, str) and fits(found, allowance.share) is True

    def is_false(values: Values) -> bool:
        found = get(values)
        return found is not None and not (isinstance(found, str) and fits(found, allowance.share) is not False)

    return Condition(is_true, is_false)


# Arithmetic.


def wrapped(number: float) -> float:
    """An integer in the range of Java's ``long``; others as they are."""
    if type(number) is int and not -(2**63) <= number < 2**63:
        return (number + 2**63) % 2**64 - 2**63
    return number


def _divided(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            return None
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return None if right == 0 else left / right


def _remainder(left: Any, right: Any) -> Any:
    if right == 0:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return left - right * _divided(left, right)
    return fmod(left, right)


_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": _remainder,
}


def calculation(symbol: str, left: Value, right: Value) -> Value:
    """``+``, ``-``, ``*``, ``/`` or ``%``."""
    calculate, get_left, get_right = _ARITHMETIC[symbol], left.get, right.get

    def get(values: Values) -> Any:
        first, second = get_left(values), get_right(values)
        if not _are_numbers(first, second):
            return None
        try:
            result = calculate(first, second)
        except (OverflowError, ValueError):  # of floating-point numbers at their ends
            return None
        return None if result is None else wrapped(result)

    return Value(get, "number", column=left.column)


def negative(value: Value) -> Value:
    """The sign ``-``."""
    if value.literal is not None:
        return literal_value(wrapped(-value.literal), "number", value.column)
    get_value = value.get

    def get(values: Values) -> Any:
        found = get_value(values)
        return wrapped(-found) if _is_number(found) else None

    return Value(get, "number", column=value.column)


def literal_value(value: Any, kind: str, column: int) -> Value:
    """Return what is written in the selector itself."""
    return Value(lambda values: value, kind, value, None, column)
