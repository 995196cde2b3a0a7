"""Message selectors (Jakarta Messaging 3.1 section 3.8.1): parsed once, then applied to messages.

Theory of operation
    The syntax is a subset of SQL-92's conditional expressions.  A selector is parsed by recursive descent into one
    function that says whether a message is selected; :mod:`broker_adapter.selectors.values` has its parts.

    Beyond the specification, as in the reference client: ``"quoted"`` identifiers, comments (``--`` and ``/* */``), and
    ``%`` for the remainder.

    A selector may come from any user that may connect.  So its length, its depth and the length of its patterns are
    limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from broker_adapter.errors import InvalidSelectorException, MessageFormatException
from broker_adapter.selectors.like import like
from broker_adapter.selectors.values import (
    COMPARISONS,
    Allowance,
    Condition,
    Part,
    Test,
    Value,
    Values,
    calculation,
    comparison,
    comparison_of_names,
    conjunction,
    disjunction,
    literal_value,
    membership,
    negation,
    negative,
    null_test,
    pattern_match,
    truth_of,
    wrapped,
)

#: Longest selector, in characters.
MAX_SELECTOR_LENGTH: Final = 8192
#: Deepest nesting of parentheses, ``NOT`` and signs.
MAX_SELECTOR_DEPTH: Final = 40
#: Longest pattern of a ``LIKE``, in characters.
MAX_PATTERN_LENGTH: Final = 1000
#: Selectors up to this length, in characters, are short.  A long one takes up to half a megabyte of memory.
_SHORT_SELECTOR: Final = 500
#: How many short and long selectors are kept, parsed, for the next use.
_SHORT_KEPT: Final = 1024
_LONG_KEPT: Final = 32
#: Most digits of a number, zeros ahead of it included; the largest integer has 19.
_MAX_DIGITS: Final = 100

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
    if name.startswith("JMS") and not name.startswith("JMS_"):
        raise MessageFormatException(
            f"property name {name!r} is reserved, as every name that begins with JMS and not with JMS_; header fields"
            " are attributes of the message (correlation_id, type, group_id, ...)"
        )
    return name


class Selector:
    """A parsed selector.  Made by :func:`parse_selector`; any thread may use it.

    Attributes:
        text: as it was given.
        names: the identifiers in it.
        compared_quoted: the ``"quoted"`` identifiers that others are compared with, which may be meant as text.
    """

    __slots__ = ("_is_true", "compared_quoted", "names", "text")

    def __init__(self, text: str, names: frozenset[str], compared_quoted: tuple[str, ...], is_true: Test) -> None:
        """Made by the parser."""
        self.text = text
        self.names = names
        self.compared_quoted = compared_quoted
        self._is_true = is_true

    def matches(self, values: Values) -> bool:
        """Return whether the selector is true of a message.

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
        InvalidSelectorException: it is no selector; the error says where, and what was expected there.
    """
    if len(text) > MAX_SELECTOR_LENGTH:
        raise InvalidSelectorException(
            f"selector of {len(text)} characters is longer than the limit of {MAX_SELECTOR_LENGTH}"
        )
    return _kept_short(text) if len(text) <= _SHORT_SELECTOR else _kept_long(text)


def _parsed(text: str) -> Selector:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # no transport carries it, and no store keeps it
        raise _invalid(text, error.start + 1, "not valid Unicode") from None
    parser = _Parser(text)
    condition = parser.whole()
    return Selector(text, frozenset(parser.names), tuple(parser.compared_quoted), condition.is_true)


_kept_short: Final = lru_cache(maxsize=_SHORT_KEPT)(_parsed)
_kept_long: Final = lru_cache(maxsize=_LONG_KEPT)(_parsed)


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


def _why_no_token(text: str, position: int) -> str:
    if text[position] in "'\"":
        return "a string without its end"
    return "no token; unequal is written <>" if text.startswith("!=", position) else "no token"


def _tokens(text: str) -> list[_Token]:
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _invalid(text, position + 1, _why_no_token(text, position))
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
        self.compared_quoted: list[str] = []
        self._allowance = Allowance()
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
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

    def _condition(self, part: Part, token: _Token) -> Condition:
        if isinstance(part, Condition):
            return part
        if part.kind in ("boolean", "any"):
            return truth_of(part)
        raise self._wrong(f"a {part.kind} is not a condition", token)

    def _value(self, part: Part, token: _Token) -> Value:
        if isinstance(part, Value):
            return part
        raise self._wrong("a condition has no value", token)

    def _number(self, part: Part, token: _Token) -> Value:
        value = self._value(part, token)
        if value.kind not in ("number", "any"):
            raise self._wrong(f"a {value.kind} is not a number", token)
        return value

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_SELECTOR_DEPTH:
            raise self._wrong(f"nested deeper than the limit of {MAX_SELECTOR_DEPTH}")

    # Conditions.

    def _or(self) -> Part:
        return self._chain("OR", self._and, disjunction)

    def _and(self) -> Part:
        return self._chain("AND", self._not, conjunction)

    def _chain(self, word: str, next_level: Callable[[], Part], join: Callable[[list[Condition]], Condition]) -> Part:
        token = self._token
        part = next_level()
        parts: list[Condition] = []
        while self._took(word):
            parts.append(self._condition(part, token))
            token = self._token
            part = next_level()
        if not parts:
            return part
        return join([*parts, self._condition(part, token)])

    def _not(self) -> Part:
        if not self._took("NOT"):
            return self._predicate()
        self._enter()
        token = self._token
        condition = negation(self._condition(self._not(), token))
        self._depth -= 1
        return condition

    def _predicate(self) -> Part:
        token = self._token
        part = self._sum()
        symbol = self._took(*COMPARISONS)
        if symbol:
            return self._compared(symbol, part, token)
        negated = self._took("NOT") is not None
        if self._took("BETWEEN"):
            condition = self._between(self._number(part, token))
        elif self._took("IN"):
            condition = membership(self._named(part, token, "IN"), self._members())
        elif self._took("LIKE"):
            condition = self._like(self._named(part, token, "LIKE"))
        elif negated:
            raise self._wrong("expected BETWEEN, IN or LIKE")
        elif self._took("IS"):
            negated = self._took("NOT") is not None
            self._expect("NULL")
            condition = null_test(self._named(part, token, "IS NULL"))
        else:
            return part
        return negation(condition) if negated else condition

    def _compared(self, symbol: str, part: Part, token: _Token) -> Condition:
        right_token = self._token
        right_part = self._sum()
        if symbol in ("=", "<>"):
            left, right = self._value(part, token), self._value(right_part, right_token)
            if left.kind == "any" and right.kind == "any":
                if right_token.kind == "quoted" and right.name is not None:
                    self.compared_quoted.append(right.name)
                return comparison_of_names(symbol, left, right, self._allowance)
            return comparison(symbol, left, right)
        return comparison(symbol, self._number(part, token), self._number(right_part, right_token))

    def _between(self, value: Value) -> Condition:
        token = self._token
        low = self._number(self._sum(), token)
        self._expect("AND")
        token = self._token
        high = self._number(self._sum(), token)
        return conjunction([comparison(">=", value, low), comparison("<=", value, high)])

    def _named(self, part: Part, token: _Token, what: str) -> Value:
        if isinstance(part, Value) and part.name is not None:
            return part
        raise self._wrong(f"{what} wants an identifier on its left", token)

    def _members(self) -> frozenset[str]:
        self._expect("(")
        members = {self._string()}
        while self._took(","):
            members.add(self._string())
        self._expect(")")
        return frozenset(members)

    def _like(self, value: Value) -> Condition:
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
            return pattern_match(value, like(pattern, escape), self._allowance)
        except ValueError as error:
            raise self._wrong(str(error), token) from error

    def _string(self) -> str:
        if self._token.kind != "string":
            raise self._wrong("expected a string in single quotes")
        return self._next().text[1:-1].replace("''", "'")

    # Values.

    def _sum(self) -> Part:
        return self._calculated(("+", "-"), self._product)

    def _product(self) -> Part:
        return self._calculated(("*", "/", "%"), self._signed)

    def _calculated(self, symbols: tuple[str, ...], next_level: Callable[[], Part]) -> Part:
        token = self._token
        part = next_level()
        depth = self._depth
        while symbol := self._took(*symbols):
            self._enter()  # what is calculated later calls what was calculated before
            left = self._number(part, token)
            right_token = self._token
            part = calculation(symbol, left, self._number(next_level(), right_token))
        self._depth = depth
        return part

    def _signed(self) -> Part:
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
            return negative(value)
        return value._replace(name=None)

    def _primary(self, most: int) -> Part:
        token = self._next()
        if token.kind == "number":
            return literal_value(self._parsed_number(token, most), "number", token.column)
        if token.kind == "string":
            return literal_value(token.text[1:-1].replace("''", "'"), "string", token.column)
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            return literal_value(token.text == "TRUE", "boolean", token.column)
        if token.kind in ("name", "quoted"):
            return self._identifier(token)
        if token.kind == "symbol" and token.text == "(":
            self._enter()
            part = self._or()
            self._expect(")")
            self._depth -= 1
            return part
        hint = "; equal is written =" if token.text == "=" else ""
        raise self._wrong(f"expected a value or a condition{hint}", token)

    def _identifier(self, token: _Token) -> Value:
        name = token.text if token.kind == "name" else token.text[1:-1].replace('""', '"')
        if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in _HEADERS:
            raise self._wrong(f"{name!r} is no header that a selector can name: {', '.join(sorted(_HEADERS))}", token)
        self.names.add(name)
        return Value(lambda values: values(name), "any", None, name, token.column)

    def _parsed_number(self, token: _Token, most: int) -> float:
        text = token.text.lower()
        if len(text) > _MAX_DIGITS:
            raise self._wrong(f"a number of {len(text)} characters is longer than the limit of {_MAX_DIGITS}", token)
        if text.startswith("0x"):
            number = int(text.rstrip("l"), 16)
            return wrapped(number) if number < 2**64 else self._too_large(token)
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
