"""Operations on staged transactions, and their publication."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.steps import (
    STAGED_AT_ONCE,
    STAGED_BYTES_AT_ONCE,
    Arguments,
    Steps,
)
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.envelope import read_head
from broker_adapter.errors import (
    MessageFormatException,
)

#: Transactions that are dropped in one decision.
DISCARDED_AT_ONCE: Final = 500


def stage(arguments: Arguments) -> Steps:
    """Add messages to a staged transaction, in parts that are a commit each; what fails in between may be repeated."""
    name, target, first = arguments["transaction"], Destination(arguments["queue"]), arguments["first"]
    messages = [_staged(payload) for payload in arguments["messages"]]
    staged = True
    for part in _parts(messages):
        staged = yield c.Stage(name, target, first, part)
        if not staged:
            break
        first += len(part)
    return staged


def _parts(messages: Sequence[c.NewMessage]) -> Iterator[Sequence[c.NewMessage]]:
    """The messages of each commit; one without messages, where there are none, begins the transaction."""
    if not messages:
        yield ()
    yield from in_parts(messages, lambda each: len(each.payload), STAGED_AT_ONCE, STAGED_BYTES_AT_ONCE)


def _staged(payload: bytes) -> c.NewMessage:
    """A message that is stored whatever it says of that, and comes in once by its place in the transaction."""
    return c.from_head(payload, read_head(payload))._replace(persistent=True, identity=None)


def renew(arguments: Arguments) -> Steps:
    """Keep what is staged for longer."""
    return (yield c.Renew(arguments["group"], arguments["number"]))


def publish(arguments: Arguments) -> Steps:
    """Returns when the messages are in their queue."""
    transactions, counts = arguments["transactions"], arguments["counts"]
    if counts is not None and len(counts) != len(transactions):
        raise MessageFormatException("operation 'publish': argument 'counts' is not a number for each transaction")
    published: bool = yield c.Publish(arguments["group"], arguments["number"], transactions, counts)
    # One that was published before may still be under way.  Those behind it are not waited for.
    through, done = yield lambda reader: reader.moves
    while done < through:
        yield c.Due(())  # each cycle of the engine moves some
        _, done = yield lambda reader: reader.moves
    return published


def published(arguments: Arguments) -> Steps:
    """The last number of a group that was published."""
    group = arguments["group"]
    return (yield lambda reader: reader.last_published(group))


def discard(arguments: Arguments) -> Steps:
    """Drop staged transactions, in parts."""
    transactions = list(arguments["transactions"])
    if arguments["prefixes"]:
        # Only the names are read while all other threads are kept out.
        names = yield lambda reader: list(reader.state.directory.staged)
        transactions += chosen(names, arguments["prefixes"], arguments["keep"])
    dropped = 0
    for first in range(0, len(transactions), DISCARDED_AT_ONCE):
        dropped += yield c.Discard(transactions[first : first + DISCARDED_AT_ONCE])
    return dropped


def chosen(names: Iterable[str], prefixes: Sequence[str], keep: Sequence[str]) -> list[str]:
    """Those of some names, sorted, that begin with any of ``prefixes`` and with none of ``keep``."""
    ordered = sorted(names)
    marks = bytearray(len(ordered))
    for mark, beginnings in ((b"\1", prefixes), (b"\0", keep)):
        for first, end in _ranges(ordered, beginnings):
            marks[first:end] = mark * (end - first)
    return [name for name, mark in zip(ordered, marks, strict=True) if mark]


def _ranges(ordered: Sequence[str], prefixes: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where the names are, among sorted ones, that begin with each prefix."""
    for prefix in dict.fromkeys(prefixes):
        length = len(prefix)
        first = bisect_left(ordered, prefix)
        yield first, bisect_right(ordered, prefix, first, key=lambda name: name[:length])
