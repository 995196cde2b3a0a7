"""Operations on staged transactions, and their publication."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.identities import MAX_NUMBER
from broker_adapter.engine.operations.request import OWN, SEND, Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import (
    MAX_DISCARDED,
    MAX_PREFIXES,
    MAX_PUBLISHED,
    MAX_STAGED,
    STAGED_AT_ONCE,
    STAGED_BYTES_AT_ONCE,
)
from broker_adapter.engine.queues.directory import SETTLED_GROUP
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.envelope import read_head
from broker_adapter.errors import (
    MessageFormatException,
)

#: Transactions that are dropped in one decision.
DISCARDED_AT_ONCE: Final = 500


@request(Threads.SHORT)
class StageRequest(Request):
    """True, or False where the number of its group (as its name says) was published before.

    Nothing of it is staged then.  What was staged before is not staged again.
    """

    transaction: str = argument()
    queue: str = argument(names=Names.QUEUE, rights=(OWN, SEND), note="the target's name")
    first: int = argument(note="index of the first message in the transaction")
    messages: Sequence[bytes] = argument(most_values=MAX_STAGED, note="packed envelopes")

    def steps(self, client: int) -> Steps:
        name, target, first = self.transaction, Destination(self.queue), self.first
        messages = [_staged(payload) for payload in self.messages]
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


@request(Threads.SHORT)
class RenewRequest(Request):
    """The seconds for which what is staged for this number is kept from now on, unless it is added to or renewed again.

    A client that works for longer than that before the next message calls this.
    """

    group: str = argument()
    number: int = argument(most=MAX_NUMBER)

    def steps(self, client: int) -> Steps:
        return (yield c.Renew(self.group, self.number))


@request(Threads.PUBLISHING)
class PublishRequest(Request):
    """True, or False where this number of the group was published before."""

    group: str = argument()
    number: int = argument(most=MAX_NUMBER)
    transactions: Sequence[str] = argument(most_values=MAX_PUBLISHED)
    counts: Sequence[int] | None = argument(None, most_values=MAX_PUBLISHED, note="of their messages")

    def check(self) -> None:
        if self.group.startswith((c.GATEWAY_GROUP, SETTLED_GROUP)):
            raise MessageFormatException(f"operation 'publish': the engine itself publishes group {self.group!r}")

    def steps(self, client: int) -> Steps:
        transactions, counts = self.transactions, self.counts
        if counts is not None and len(counts) != len(transactions):
            raise MessageFormatException("operation 'publish': argument 'counts' is not a number for each transaction")
        published: bool = yield c.Publish(self.group, self.number, transactions, counts)
        # One that was published before may still be under way.  Those behind it are not waited for.
        through, done = yield lambda reader: reader.moves
        while done < through:
            yield c.Due(())  # each cycle of the engine moves some
            _, done = yield lambda reader: reader.moves
        return published


@request(Threads.SHORT)
class PublishedRequest(Request):
    """The last number of the group that was published; None where none was, or nothing is known of it."""

    group: str = argument()

    def steps(self, client: int) -> Steps:
        group = self.group
        return (yield lambda reader: reader.last_published(group))


@request(Threads.SHORT)
class DiscardRequest(Request):
    """The number of staged transactions dropped."""

    transactions: Sequence[str] = argument((), most_values=MAX_DISCARDED)
    prefixes: Sequence[str] = argument((), most_values=MAX_PREFIXES, note="of further ones' names")
    keep: Sequence[str] = argument((), most_values=MAX_PREFIXES, note="prefixes of those that stay all the same")

    def steps(self, client: int) -> Steps:
        transactions = list(self.transactions)
        if self.prefixes:
            # Only the names are read while all other threads are kept out.
            names = yield lambda reader: list(reader.state.directory.staged)
            transactions += chosen(names, self.prefixes, self.keep)
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
    """Yield where the names are, among sorted ones, that begin with each prefix."""
    for prefix in dict.fromkeys(prefixes):
        length = len(prefix)
        first = bisect_left(ordered, prefix)
        yield first, bisect_right(ordered, prefix, first, key=lambda name: name[:length])
