"""What a client wants of a region: one key, all keys, keys that match an expression, events that match a selector, or
a continuous query.

An interest is data: two clients that want the same have equal interests, and whatever is asked of an event is asked
once for all of them (:mod:`broker_adapter.engine.regions.routing`).

A selector is asked of the event.  A *continuous query* is a selector with a name, which is asked of the value that a
key had and of the one that it has now (:func:`query_operation`): for the query, a key appears, changes and disappears
as its value begins to match, matches still, and matches no more.

Regular expressions are those of RE2: what they take grows with the length of a key only, so no client can stop the
engine by one.  In place of back-references and look-around, use several expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import attrs

from broker_adapter.engine.regions.event_records import DIGEST_BYTES, Operation
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.selectors.language import Selector, parse_selector

#: Longest key of a region, in bytes of UTF-8: with the number of its region it is a key of the store.
MAX_KEY_BYTES: Final = 400
#: Longest regular expression, in characters, and the memory that it may take, in bytes.
MAX_EXPRESSION_LENGTH: Final = 1000
_EXPRESSION_BYTES: Final = 1 << 20
#: Longest bound of the keys that an expression can match, in bytes, and what is above any key.
_BOUND_BYTES: Final = 32
_ABOVE_UTF_8: Final = b"\xff"
#: Longest name of a continuous query, in characters.
MAX_QUERY_NAME: Final = 100
#: How many regular expressions are kept, compiled, for the next use.
_COMPILED: Final = 1024


class InterestKind(IntEnum):
    """What the text of an interest is; the numbers are stored."""

    KEY = 0  #: one key
    ALL_KEYS = 1  #: nothing: every key is wanted
    EXPRESSION = 2  #: a regular expression that the whole key has to match
    SELECTOR = 3  #: a selector over the event's key, headers, properties and value
    QUERY = 4  #: a selector over the same, asked of the old and of the new value

    __hash__ = int.__hash__  #: that of an enumeration takes three times as long


class Interest(NamedTuple):
    """What a client wants of a region.

    Two ways to the same wish are equal: ``ALL_KEYS`` has no text, and only a query has a name.
    """

    kind: InterestKind
    text: str = ""
    name: str = ""  #: of a query, within its client

    @property
    def label(self) -> str:
        """The interest in words, as errors and commands show it."""
        if self.kind is InterestKind.KEY:
            return f"key {self.text!r}"
        if self.kind is InterestKind.ALL_KEYS:
            return "all keys"
        if self.kind is InterestKind.EXPRESSION:
            return f"keys that match {self.text!r}"
        if self.kind is InterestKind.QUERY:
            return f"query {self.name!r}: {self.text!r}"
        return f"selector {self.text!r}"

    @property
    def is_asked(self) -> bool:
        """Whether the event has to be asked, beside its key."""
        return self.kind in (InterestKind.SELECTOR, InterestKind.QUERY)

    @property
    def question(self) -> Interest:
        """The same for all that ask the same of an event, whatever the name."""
        return self._replace(name="") if self.name else self


ALL_KEYS: Final = Interest(InterestKind.ALL_KEYS)


def checked_interest(kind: int, text: str, name: str = "") -> Interest:
    """An interest that a client has asked for.

    Args:
        kind: a number of :class:`InterestKind`.
        text: of it.
        name: of a query; of other interests it is ignored.

    Raises:
        InvalidDestinationException: the key, the expression or the name cannot be one.
        InvalidSelectorException: the selector cannot be parsed.
    """
    try:
        found = InterestKind(kind)
    except ValueError:
        raise InvalidDestinationException(
            f"{kind!r} is no kind of interest: {', '.join(f'{each.value} ({each.name})' for each in InterestKind)}"
        ) from None
    if found is InterestKind.KEY:
        return Interest(found, checked_key(text))
    if found is InterestKind.ALL_KEYS:
        return ALL_KEYS
    if found is InterestKind.EXPRESSION:
        expression(text)
    else:
        parse_selector(text)
    if found is InterestKind.QUERY:
        return Interest(found, text, checked_query_name(name))
    return Interest(found, text)


def checked_query_name(name: str) -> str:
    """The name of a continuous query.

    Raises:
        InvalidDestinationException: it is empty, too long, or has no form in UTF-8.
    """
    if not 0 < len(name) <= MAX_QUERY_NAME:
        raise InvalidDestinationException(
            f"the name of a query has 1 to {MAX_QUERY_NAME} characters, and {name[:40]!r} has {len(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidDestinationException(
            f"the name {name[:40]!r} of a query has a surrogate, which has no form in UTF-8"
        ) from None
    return name


@attrs.frozen
class Expression:
    """A regular expression that a whole key has to match, and the bounds of the keys that it can match.

    To compare a key with the bounds costs a thirtieth of asking the expression, and rules out nearly all keys where the
    expression begins with what a key begins with.
    """

    low: bytes  #: no key below it matches, in UTF-8
    high: bytes  #: no key above it matches
    match: Callable[[bytes], Any]  #: what a key in UTF-8 matches; None: it does not

    def __call__(self, key: str) -> bool:
        """Return whether a key matches."""
        data = key.encode()
        return self.low <= data <= self.high and self.match(data) is not None


#: What an interest asks: a selector, or an expression.
Compiled = Selector | Expression
#: What some interests ask, by the interest without its name.
Prepared = Mapping[Interest, Compiled]


def compiled(interest: Interest) -> Compiled | None:
    """Return what an interest asks, which may take a tenth of a second to make; None: it asks nothing.

    Raises:
        InvalidDestinationException: the expression cannot be one.
        InvalidSelectorException: the selector cannot be parsed.
    """
    if interest.kind is InterestKind.EXPRESSION:
        return expression(interest.text)
    return parse_selector(interest.text) if interest.is_asked else None


def prepared(interests: Iterable[Interest]) -> Prepared:
    """Return what interests ask, made ahead of the engine's thread; raises as ``compiled``."""
    found = ((each.question, compiled(each)) for each in interests)
    return {question: asks for question, asks in found if asks is not None}


@lru_cache(_COMPILED)
def digest(question: Interest) -> bytes:
    """Return what an event's record has of a selector or query that is true of it; see :attr:`Interest.question`."""
    text = bytes((question.kind,)) + question.text.encode(errors="surrogatepass")
    return blake2b(text, digest_size=DIGEST_BYTES).digest()


def query_operation(old: bool, new: bool) -> Operation | None:
    """Return what happens for a continuous query.

    Args:
        old: whether the value that the key had matches; False where it had none.
        new: whether the value that it has now matches; False where it has none.

    Returns:
        What it is for the query; None: nothing.
    """
    if new:
        return Operation.UPDATE if old else Operation.CREATE
    return Operation.DESTROY if old else None


def checked_key(key: str) -> str:
    """A key of a region.

    Raises:
        InvalidDestinationException: it is empty, too long, or has no form in UTF-8.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidDestinationException(f"key {key[:40]!r} has a surrogate, which has no form in UTF-8") from None
    if not 0 < size <= MAX_KEY_BYTES:
        shown = repr(key[:40]) + ("..." if len(key) > 40 else "")
        raise InvalidDestinationException(f"a key has 1 to {MAX_KEY_BYTES} bytes of UTF-8, and {shown} has {size}")
    return key


@lru_cache(_COMPILED)
def expression(text: str) -> Expression:
    """Compile a regular expression.

    Raises:
        InvalidDestinationException: it is no expression of RE2, or too long, or takes too much memory.
    """
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise InvalidDestinationException(
            f"a regular expression has at most {MAX_EXPRESSION_LENGTH} characters, and this one has {len(text)}"
        )
    import re2  # a library in C++, which most programs do not need

    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = _EXPRESSION_BYTES
    try:
        compiled = re2.compile(text, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidDestinationException(
            f"the regular expression {text[:80]!r} cannot be used: {reason} (the syntax is that of RE2)"
        ) from None
    try:
        low, high = compiled.possiblematchrange(_BOUND_BYTES)
    except re2.error:  # what it matches may begin with anything
        low, high = b"", _ABOVE_UTF_8
    return Expression(low, high, compiled.fullmatch)
