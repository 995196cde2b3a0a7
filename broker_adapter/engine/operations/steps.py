"""What requests share: the queue that they name, limits, and settling in steps."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, Final

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.reader import OperationsState, Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, argument, fields_of
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from broker_adapter.refusals import no_destination

#: Messages that one request may name: each may lie in another part of its queue, and take a step of its own.
MAX_GIVEN: Final = 10_000
#: Messages that one request may stage.  Spark sends 2 MiB at once, which is up to 29,000 rows.
MAX_STAGED: Final = 50_000
#: Messages, and their bytes, that are staged in one commit; more are staged in several.
STAGED_AT_ONCE: Final = 5_000
STAGED_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
#: Staged transactions that one request may publish.  They are published together, so it is many: Spark names one for
#: each task of a batch, and ``max_destinations`` limits how many there are.
MAX_PUBLISHED: Final = 100_000
#: Staged transactions that one request may name to be dropped, and beginnings of names that it may have.
MAX_DISCARDED: Final = 10_000
MAX_PREFIXES: Final = 1_000
#: Queues that one request may ask the positions of: an answer has up to 600 bytes for each.
MAX_QUEUES: Final = 1_000
#: Queues that are looked at without the engine doing anything else.
QUEUES_AT_ONCE: Final = 50
#: Most bytes of messages that one answer carries, whatever is asked for.
MAX_RANGE_BYTES: Final = 4 * 1024 * 1024
#: Entries read at once.
RANGE_ENTRIES: Final = 5_000
#: Entries settled in one commit.
SETTLE_ENTRIES: Final = 5_000
#: Lost deliveries taken back in one commit: a message that is not in memory is read by itself.
LOST_ENTRIES: Final = 1_000
#: What came before a request is done behind this: also, what a lost connection had is given back.
ENDED: Final = c.ResolveCommit(c.CommitId("", 0))


def queue_named(state: OperationsState, name: str) -> QueueState | None:
    """The queue of a name, which may be a temporary one; None where there is none."""
    found = state.directory.by_destination.get(Destination(name))
    return found or state.directory.by_destination.get(Destination(name, DestinationKind.TEMPORARY_QUEUE))


@fields_of
class OfQueue(Request):
    """A request of a queue, or of a subscription."""

    destination: str = argument(names=Names.DESTINATION)
    kind: str = argument("queue")
    subscription: str | None = argument(None)
    client_id: str | None = argument(None)

    def check(self) -> None:
        """Refuse a word that is misspelt: it must not name something larger."""
        operation, kind = self.operation, self.kind
        if kind not in ("queue", "topic"):
            raise MessageFormatException(
                f'the argument \'kind\' is "queue" or "topic", not {kind!r:.100} (operation {operation!r})'
            )
        if kind == "queue":
            for name in ("subscription", "client_id", "durable"):
                if getattr(self, name, None) is not None:
                    raise MessageFormatException(
                        f'the argument {name!r} needs the kind "topic": a queue has none (operation {operation!r})'
                    )
        elif getattr(self, "make", False):
            raise MessageFormatException(
                "the argument 'make' needs the kind \"queue\"; make a subscription with a consumer"
            )
        elif self.subscription is None:
            for name in ("client_id", "durable"):
                if getattr(self, name, None) is not None:
                    raise MessageFormatException(
                        f"the argument {name!r} needs a 'subscription' that it is of (operation {operation!r})"
                    )

    def _name(self, state: OperationsState) -> str:
        return self.destination

    def queue_in(self, state: OperationsState) -> QueueState:
        """Return the queue that is named; raises InvalidDestinationException where there is none."""
        name = self._name(state)
        if self.kind == "topic":
            if self.subscription is None:
                raise InvalidDestinationException(f"topic {name!r} keeps no messages of its own; name a subscription")
            topic, durable = Destination(name, DestinationKind.TOPIC), getattr(self, "durable", None)
            return state.directory.subscription(topic, self.subscription, self.client_id, durable)
        found = queue_named(state, name)
        if found is None:
            raise no_destination("queue", name, is_region=name in state.events.regions)
        return found

    def this_queue(self, reader: Reader) -> QueueState:
        """Return the queue that is named, of the incarnation that is named."""
        queue = self.queue_in(reader.state)
        wanted = getattr(self, "incarnation", None)
        incarnation = reader.state.directory.incarnation(queue)
        if wanted is not None and wanted != incarnation:
            raise InvalidDestinationException(
                f"queue {queue.label!r} was deleted and made again (it is {incarnation!r} now, and was {wanted!r}):"
                " positions of the old one mean nothing; start again"
            )
        return queue


def rows(name: str, values: Sequence[Any], kinds: Sequence[type]) -> Sequence[Sequence[Any]]:
    """Return the values of an argument, each a list with values of these kinds.

    Raises:
        MessageFormatException: one of them is not.
    """
    wanted = list(kinds)
    for row in values:
        if not isinstance(row, list | tuple) or [type(value) for value in row] != wanted:
            shown = ", ".join(kind.__name__ for kind in kinds)
            raise MessageFormatException(f"the argument {name!r} has {reprlib.repr(row)}, which is not ({shown})")
    return values


def up_to(most: int, sizes: Sequence[int]) -> int:
    """Return how many of some messages have together no more than so many bytes: one at least, if there is one.

    Args:
        most: bytes.
        sizes: of the messages, in bytes.
    """
    for count, size in enumerate(sizes):
        most -= size
        if count and most < 0:
            return count
    return len(sizes)


def settle(queue: int, last: int, *, first: int = 0, delayed: bool = False, processed: bool = False) -> Steps:
    """Drop what has positions from ``first`` to ``last``, except what consumers hold; it may be ``processed``."""
    dropped = 0
    position: int | None = first
    while position is not None:
        wanted = c.Range(queue, position, last, SETTLE_ENTRIES, delayed=delayed)
        some, position = yield c.Trim(wanted, processed=processed)
        dropped += some
    return dropped
