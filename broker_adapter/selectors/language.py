"""Message selectors (Jakarta Messaging 3.1 section 3.8.1): parsed once, then applied to messages.

Theory of operation
    The syntax is a subset of SQL-92's conditional expressions, and so is the logic: a condition is true, false or
    unknown, and a message is selected where it is true.  Unknown need not be computed: each part of a selector becomes
    two functions, one that says whether it is *true* and one whether it is *false*; ``NOT`` exchanges them, and what is
    neither is unknown.

    A value that a message does not have is unknown, and so is arithmetic with it.  Comparing unlike types is false, as
    the specification says, except that integers compare with floating-point numbers.  Integers are Java's ``long``:
    arithmetic wraps around at 64 bits, division truncates, and division by zero is unknown.

    Beyond the specification, as in the reference client: ``"quoted"`` identifiers, comments (``--`` and ``/* */``), and
    ``%`` for the remainder.

    A selector comes from a stranger, and is applied inside the engine's cycle.  So its length and depth are limited,
    and so is what it costs one message: ``LIKE`` and the comparison of two properties have ``MAX_STEPS`` steps in all,
    in equal shares.  A condition that would need more is unknown; one of short texts never does.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache
from math import fmod
from typing import Any, Final, NamedTuple

from broker_adapter.errors import InvalidSelectorException, MessageFormatException
from broker_adapter.selectors.like import SHORT_TEXT, Fits, like

#: Longest selector, in characters.
MAX_SELECTOR_LENGTH: Final = 8192
#: Deepest nesting of parentheses, ``NOT`` and signs.
MAX_SELECTOR_DEPTH: Final = 40
#: Longest pattern of a ``LIKE``, in characters.
MAX_PATTERN_LENGTH: Final = 1000
#: Steps that the ``LIKE``s and the comparisons of properties with each other may take for one message, in all: about
#: one for each character that is looked at, or 20 milliseconds of CPU.
MAX_STEPS: Final = 4 * 1024 * 1024
#: Characters that are compared with each other in one step.
_COMPARED_IN_A_STEP: Final = 16
#: Selectors up to this length, in characters, are short.  A long one takes up to half a megabyte of memory.
_SHORT_SELECTOR: Final = 500
#: Short and long selectors that are kept for the next one who asks for them.
_SHORT_KEPT: Final = 1024
_LONG_KEPT: Final = 32
#: Most digits of a number, zeros ahead of it included; the largest integer has 19.
_MAX_DIGITS: Final = 100

#: Gives the value of a header or property by its name; None where the message has none.
Values = Callable[[str], Any]
_Test = Callable[[Values], bool]
_Get = Callable[[Values], Any]

_HEADERS: Final = frozenset(
    ("JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType")
)
_KEYWORDS: Final = frozenset(("AND", "OR", "NOT", "BETWEEN", "LIKE", "IN", "IS", "NULL", "TRUE", "FALSE", "ESCAPE"))


@lru_cache(maxsize=4096)
def checked_property_name(name: str) -> str:
    """The name itself, where a property can have it: a selector can then name the property.

    Raises:
        MessageFormatException: it is not an identifier of the selector language, or it is reserved.
    """
    if not name.replace("$", "_").isidentifier() or name.upper() in _KEYWORDS:
        raise MessageFormatException(
            f"property name {name!r} is not an identifier (letters, digits, _ and $, no digit first, no word of the "
            "selector language)"
        )
    if name.startswith("JMSX"):
        raise MessageFormatException(
            f"property name {name!r} is reserved; group_id, group_sequence, delivery_count and user_id are attributes "
            "of the message"
        )
    return name


class Selector:
    """A parsed selector.  Made by :func:`parse_selector`; any thread may use it.

    Attributes:
        text: as it was given.
        names: the identifiers in it.
    """

    __slots__ = ("_is_true", "names", "text")

    def __init__(self, text: str, names: frozenset[str], is_true: _Test) -> None:
        """Made by the parser."""
        self.text = text
        self.names = names
        self._is_true = is_true

    def matches(self, values: Values) -> bool:
        """Whether the selector is true of a message.

        Args:
            values: gives the value of a header or property; None where there is none.
        """
        return self._is_true(values)

    def __repr__(self) -> str:
        return f"<Selector {self.text!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def parse_selector(text: str) -> Selector:
    """The selector that a text stands for.

    Raises:
        InvalidSelectorException: it is no selector; the error tells where, and what was expected there.
    """
    if len(text) > MAX_SELECTOR_LENGTH:
        raise InvalidSelectorException(
            f"selector of {len(text)} characters is longer than the limit of {MAX_SELECTOR_LENGTH}"
        )
    return _kept_short(text) if len(text) <= _SHORT_SELECTOR else _kept_long(text)


def _parsed(text: str) -> Selector:
    parser = _Parser(text)
    condition = parser.whole()
    return Selector(text, frozenset(parser.names), condition.is_true)


_kept_short: Final = lru_cache(maxsize=_SHORT_KEPT)(_parsed)
_kept_long: Final = lru_cache(maxsize=_LONG_KEPT)(_parsed)


# Parts of a selector.


class _Condition(NamedTuple):
    """What is true, false or unknown."""

    is_true: _Test
    is_false: _Test


class _Allowance:
    """The steps that one selector may take for a message, shared equally by those of its conditions that need some."""

    __slots__ = ("share", "sharers")

    def __init__(self) -> None:
        self.sharers = 0
        self.share = MAX_STEPS

    def join(self) -> None:
        """One more condition takes steps."""
        self.sharers += 1
        self.share = MAX_STEPS // self.sharers


class _Value(NamedTuple):
    """What has a value.  ``kind`` is what is known of its type: number, string, boolean or any."""

    get: _Get
    kind: str
    literal: Any = None  #: its value, where it is a literal
    name: str | None = None  #: its name, where it is an identifier
    column: int = 1


_Part = _Condition | _Value


def _negated(condition: _Condition) -> _Condition:
    return _Condition(condition.is_false, condition.is_true)


def _both(parts: list[_Condition]) -> _Condition:
    """``AND``."""
    return _Condition(_every([part.is_true for part in parts]), _some([part.is_false for part in parts]))


def _either(parts: list[_Condition]) -> _Condition:
    """``OR``."""
    return _Condition(_some([part.is_true for part in parts]), _every([part.is_false for part in parts]))


def _every(tests: list[_Test]) -> _Test:
    if len(tests) == 2:
        first, second = tests
        return lambda values: first(values) and second(values)
    return lambda values: all(test(values) for test in tests)


def _some(tests: list[_Test]) -> _Test:
    if len(tests) == 2:
        first, second = tests
        return lambda values: first(values) or second(values)
    return lambda values: any(test(values) for test in tests)


# Comparison.


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_alike(left: Any, right: Any) -> bool:
    """Whether two values that are known can be compared with ``=``."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    if isinstance(left, str):
        return isinstance(right, str)
    return _is_number(left) and _is_number(right)


def _are_numbers(left: Any, right: Any) -> bool:
    return _is_number(left) and _is_number(right)


#: Each comparison: what it asks of the values, and of their types.
_COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], bool]]]] = {
    "=": (operator.eq, _are_alike),
    "<>": (operator.ne, _are_alike),
    "<": (operator.lt, _are_numbers),
    "<=": (operator.le, _are_numbers),
    ">": (operator.gt, _are_numbers),
    ">=": (operator.ge, _are_numbers),
}
_PLAIN_NUMBERS: Final = frozenset((int, float))


def _comparison(symbol: str, left: _Value, right: _Value) -> _Condition:
    compare, fit = _COMPARISONS[symbol]
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
        return _Condition(lambda values: get_left(values) == literal, is_false)
    if type(literal) in _PLAIN_NUMBERS:

        def is_true_of_number(values: Values) -> bool:
            first = get_left(values)
            return (type(first) in _PLAIN_NUMBERS or _is_number(first)) and compare(first, literal)

        return _Condition(is_true_of_number, is_false)
    return _Condition(is_true, is_false)


def _comparison_of_names(symbol: str, left: _Value, right: _Value, allowance: _Allowance) -> _Condition:
    """``=`` or ``<>`` of two properties, which may be two long texts."""
    allowance.join()
    compare = _COMPARISONS[symbol][0]
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

    return _Condition(is_true, is_false)


def _of_boolean(value: _Value) -> _Condition:
    get = value.get
    return _Condition(lambda values: get(values) is True, lambda values: get(values) is False)


def _membership(value: _Value, members: frozenset[str]) -> _Condition:
    get = value.get

    def is_true(values: Values) -> bool:
        found = get(values)
        return isinstance(found, str) and found in members

    def is_false(values: Values) -> bool:
        found = get(values)
        return found is not None and not (isinstance(found, str) and found in members)

    return _Condition(is_true, is_false)


def _nullness(value: _Value) -> _Condition:
    get = value.get
    return _Condition(lambda values: get(values) is None, lambda values: get(values) is not None)


def _likeness(value: _Value, fits: Fits, allowance: _Allowance) -> _Condition:
    allowance.join()
    get = value.get

    def is_true(values: Values) -> bool:
        found = get(values)
        return isinstance(found, str) and fits(found, allowance.share) is True

    def is_false(values: Values) -> bool:
        found = get(values)
        return found is not None and not (isinstance(found, str) and fits(found, allowance.share) is not False)

    return _Condition(is_true, is_false)


# Arithmetic.


def _wrapped(number: float) -> float:
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


def _calculation(symbol: str, left: _Value, right: _Value) -> _Value:
    calculate, get_left, get_right = _ARITHMETIC[symbol], left.get, right.get

    def get(values: Values) -> Any:
        first, second = get_left(values), get_right(values)
        if not _are_numbers(first, second):
            return None
        try:
            result = calculate(first, second)
        except (OverflowError, ValueError):  # of floating-point numbers at their ends
            return None
        return None if result is None else _wrapped(result)

    return _Value(get, "number", column=left.column)


def _negative(value: _Value) -> _Value:
    if value.literal is not None:
        return _literal(_wrapped(-value.literal), "number", value.column)
    get_value = value.get

    def get(values: Values) -> Any:
        found = get_value(values)
        return _wrapped(-found) if _is_number(found) else None

    return _Value(get, "number", column=value.column)


def _literal(value: Any, kind: str, column: int) -> _Value:
    return _Value(lambda values: value, kind, value, None, column)


# Text to tokens.

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      |(?P<open>/\*)
      |(?P<string>'(?:[^']|'')*')
      |(?P<number>0[xX][0-9a-fA-F]+[lL]?
                 |(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?
                 |\d+[eE][+-]?\d+[fFdD]?
                 |\d+[fFdDlL]?)
      |(?P<name>[^\W\d][\w$]*|\$[\w$]*)
      |(?P<quoted>"(?:[^"]|"")+")
      |(?P<symbol><>|<=|>=|[=<>+\-*/%(),])
    """,
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    column: int  #: from 1 on


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _invalid(text, position + 1, "a string without its end" if text[position] in "'\"" else "no token")
        if found.lastgroup == "open":
            raise _invalid(text, position + 1, "a comment without its end")
        kind = found.lastgroup or ""
        word = found.group()
        if kind == "name" and word.upper() in _KEYWORDS:
            kind, word = "keyword", word.upper()
        if kind != "space":
            tokens.append(_Token(kind, word, position + 1))
        position = found.end()
        if kind == "number" and text[position : position + 1].isidentifier():
            raise _invalid(text, position + 1, "a number that goes on with a letter")
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens


def _invalid(text: str, column: int, what: str) -> InvalidSelectorException:
    near = text[column - 1 : column + 19]
    place = f"near {near!r}" if near else "at its end"
    return InvalidSelectorException(f"selector {text!r:.300} is wrong in column {column}, {place}: {what}")


# Tokens to parts.


class _Parser:
    """Recursive descent, from the weakest binding to the strongest."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self._allowance = _Allowance()
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> _Condition:
        condition = self._condition(self._or(), self._tokens[0])
        if self._token.kind != "end":
            raise self._wrong("expected AND, OR or the end")
        return condition

    # Helpers.

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _took(self, *texts: str) -> str | None:
        """The keyword or symbol, if the next token is one of these; it is then taken."""
        token = self._token
        if token.kind in ("keyword", "symbol") and token.text in texts:
            self._at += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._took(text) is None:
            raise self._wrong(f"expected {text}")

    def _wrong(self, what: str, token: _Token | None = None) -> InvalidSelectorException:
        return _invalid(self._text, (token or self._token).column, what)

    def _condition(self, part: _Part, token: _Token) -> _Condition:
        if isinstance(part, _Condition):
            return part
        if part.kind in ("boolean", "any"):
            return _of_boolean(part)
        raise self._wrong(f"a {part.kind} is not a condition", token)

    def _value(self, part: _Part, token: _Token) -> _Value:
        if isinstance(part, _Value):
            return part
        raise self._wrong("a condition has no value", token)

    def _number(self, part: _Part, token: _Token) -> _Value:
        value = self._value(part, token)
        if value.kind not in ("number", "any"):
            raise self._wrong(f"a {value.kind} is not a number", token)
        return value

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_SELECTOR_DEPTH:
            raise self._wrong(f"nested deeper than the limit of {MAX_SELECTOR_DEPTH}")

    # Conditions.

    def _or(self) -> _Part:
        return self._chain("OR", self._and, _either)

    def _and(self) -> _Part:
        return self._chain("AND", self._not, _both)

    def _chain(
        self, word: str, next_level: Callable[[], _Part], join: Callable[[list[_Condition]], _Condition]
    ) -> _Part:
        token = self._token
        part = next_level()
        parts: list[_Condition] = []
        while self._took(word):
            parts.append(self._condition(part, token))
            token = self._token
            part = next_level()
        if not parts:
            return part
        return join([*parts, self._condition(part, token)])

    def _not(self) -> _Part:
        if not self._took("NOT"):
            return self._predicate()
        self._enter()
        token = self._token
        condition = _negated(self._condition(self._not(), token))
        self._depth -= 1
        return condition

    def _predicate(self) -> _Part:
        token = self._token
        part = self._sum()
        symbol = self._took(*_COMPARISONS)
        if symbol:
            return self._compared(symbol, part, token)
        negated = self._took("NOT") is not None
        if self._took("BETWEEN"):
            condition = self._between(self._number(part, token))
        elif self._took("IN"):
            condition = _membership(self._named(part, token, "IN"), self._members())
        elif self._took("LIKE"):
            condition = self._like(self._named(part, token, "LIKE"))
        elif negated:
            raise self._wrong("expected BETWEEN, IN or LIKE")
        elif self._took("IS"):
            negated = self._took("NOT") is not None
            self._expect("NULL")
            condition = _nullness(self._named(part, token, "IS NULL"))
        else:
            return part
        return _negated(condition) if negated else condition

    def _compared(self, symbol: str, part: _Part, token: _Token) -> _Condition:
        right_token = self._token
        right_part = self._sum()
        if symbol in ("=", "<>"):
            left, right = self._value(part, token), self._value(right_part, right_token)
            if left.kind == "any" and right.kind == "any":
                return _comparison_of_names(symbol, left, right, self._allowance)
            return _comparison(symbol, left, right)
        return _comparison(symbol, self._number(part, token), self._number(right_part, right_token))

    def _between(self, value: _Value) -> _Condition:
        token = self._token
        low = self._number(self._sum(), token)
        self._expect("AND")
        token = self._token
        high = self._number(self._sum(), token)
        return _both([_comparison(">=", value, low), _comparison("<=", value, high)])

    def _named(self, part: _Part, token: _Token, what: str) -> _Value:
        if isinstance(part, _Value) and part.name is not None:
            return part
        raise self._wrong(f"{what} wants an identifier on its left", token)

    def _members(self) -> frozenset[str]:
        self._expect("(")
        members = {self._string()}
        while self._took(","):
            members.add(self._string())
        self._expect(")")
        return frozenset(members)

    def _like(self, value: _Value) -> _Condition:
        token = self._token
        pattern = self._string()
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise self._wrong(f"pattern of {len(pattern)} characters is longer than {MAX_PATTERN_LENGTH}", token)
        escape = None
        if self._took("ESCAPE"):
            escape_token = self._token
            escape = self._string()
            if len(escape) != 1:
                raise self._wrong("an escape is one character", escape_token)
        try:
            return _likeness(value, like(pattern, escape), self._allowance)
        except ValueError as error:
            raise self._wrong(str(error), token) from error

    def _string(self) -> str:
        if self._token.kind != "string":
            raise self._wrong("expected a string in single quotes")
        return self._next().text[1:-1].replace("''", "'")

    # Values.

    def _sum(self) -> _Part:
        return self._calculated(("+", "-"), self._product)

    def _product(self) -> _Part:
        return self._calculated(("*", "/", "%"), self._signed)

    def _calculated(self, symbols: tuple[str, ...], next_level: Callable[[], _Part]) -> _Part:
        token = self._token
        part = next_level()
        depth = self._depth
        while symbol := self._took(*symbols):
            self._enter()  # what is calculated later calls what was calculated before
            left = self._number(part, token)
            right_token = self._token
            part = _calculation(symbol, left, self._number(next_level(), right_token))
        self._depth = depth
        return part

    def _signed(self) -> _Part:
        token = self._token
        sign = self._took("+", "-")
        if sign is None:
            return self._primary(2**63 - 1)
        self._enter()
        # The most negative integer has no positive counterpart.
        is_literal = self._token.kind == "number"
        part = self._primary(2**63) if sign == "-" and is_literal else self._signed()
        self._depth -= 1
        value = self._number(part, token)
        if sign == "-":
            return _negative(value)
        return value._replace(name=None)

    def _primary(self, most: int) -> _Part:
        token = self._next()
        if token.kind == "number":
            return _literal(self._parsed_number(token, most), "number", token.column)
        if token.kind == "string":
            return _literal(token.text[1:-1].replace("''", "'"), "string", token.column)
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            return _literal(token.text == "TRUE", "boolean", token.column)
        if token.kind in ("name", "quoted"):
            return self._identifier(token)
        if token.kind == "symbol" and token.text == "(":
            self._enter()
            part = self._or()
            self._expect(")")
            self._depth -= 1
            return part
        raise self._wrong("expected a value or a condition", token)

    def _identifier(self, token: _Token) -> _Value:
        name = token.text if token.kind == "name" else token.text[1:-1].replace('""', '"')
        if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in _HEADERS:
            raise self._wrong(f"{name!r} is no header that a selector can name: {', '.join(sorted(_HEADERS))}", token)
        self.names.add(name)
        return _Value(lambda values: values(name), "any", None, name, token.column)

    def _parsed_number(self, token: _Token, most: int) -> float:
        text = token.text.lower()
        if len(text) > _MAX_DIGITS:
            raise self._wrong(f"a number of {len(text)} characters is longer than the limit of {_MAX_DIGITS}", token)
        if text.startswith("0x"):
            number = int(text.rstrip("l"), 16)
            return _wrapped(number) if number < 2**64 else self._too_large(token)
        if text[-1] in "fd" or "." in text or "e" in text:
            return float(text.rstrip("fd"))
        text = text.rstrip("l")
        octal = len(text) > 1 and text[0] == "0"
        if octal and not set(text) <= set("01234567"):
            raise self._wrong("a number that begins with 0 is octal", token)
        number = int(text, 8 if octal else 10)
        return number if number <= most else self._too_large(token)

    def _too_large(self, token: _Token) -> int:
        raise self._wrong("the number does not fit in 64 bits", token)
