"""What operations are made of: their steps, their arguments, and the limits that they share."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.reader import Reader, Rules
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import LAST_POSITION
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

#: A step of an operation: a command, or something to read between two cycles.  The generator gets its result.
Step = c.Command | Callable[[Reader], Any]
Steps = Generator[Step, Any, Any]


def _is_name(value: object) -> bool:
    """Whether this can be a message id, an identity (a producer, a thread and a sequence), or None: it has neither."""
    if value is None:
        return True
    if isinstance(value, list | tuple):
        if [type(each) for each in value] != [str, int, int]:
            return False
        value = value[0]
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def queue_named(state: Rules, name: str) -> QueueState | None:
    """The queue of a name, which may be a temporary one; None where there is none."""
    found = state.directory.by_destination.get(Destination(name))
    return found or state.directory.by_destination.get(Destination(name, DestinationKind.TEMPORARY_QUEUE))


class Arguments:
    """Arguments that were checked.

    Args:
        values: by name.
        client: the engine's number of the connection that asks; 0: none asks.

    Attributes:
        client: as given.
    """

    def __init__(self, values: Mapping[str, Any], client: int = 0) -> None:
        self._values = values
        self.client = client

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def rows(self, name: str, kinds: Sequence[type]) -> list[Sequence[Any]]:
        """An argument that is a list of lists, each with values of these kinds."""
        rows: list[Sequence[Any]] = self[name]
        wanted = list(kinds)
        for row in rows:
            if not isinstance(row, list | tuple) or [type(value) for value in row] != wanted:
                shown = ", ".join(kind.__name__ for kind in kinds)
                raise MessageFormatException(f"the argument {name!r} has {reprlib.repr(row)}, which is not ({shown})")
        return rows

    def given(self) -> list[Sequence[Any]]:
        """The argument ``given``: (position, name) or (position, name, failures) each."""
        values: list[Sequence[Any]] = self["given"]
        for each in values:
            if not (
                isinstance(each, list | tuple)
                and len(each) in (2, 3)
                and type(each[0]) is int
                and 0 <= each[0] <= LAST_POSITION
                and _is_name(each[1])
                and (len(each) == 2 or (type(each[2]) is int and 0 <= each[2] <= LAST_POSITION))
            ):
                raise MessageFormatException(
                    f"{reprlib.repr(each)} is not a position, a name, and a number of failures"
                )
        return values

    def queue(self, state: Rules) -> QueueState:
        """The queue that they name."""
        name = self["destination"]
        if name is None:
            name = state.directory.settings.dead_letter_queue
        if self["kind"] == "topic":
            subscription = self["subscription"]
            if subscription is None:
                raise InvalidDestinationException(f"topic {name!r} keeps no messages of its own; name a subscription")
            return state.directory.subscription(
                Destination(name, DestinationKind.TOPIC), subscription, self["client_id"], self._values.get("durable")
            )
        found = queue_named(state, name)
        if found is None:
            raise no_destination("queue", name, is_region=name in state.events.regions)
        return found

    def this_queue(self, reader: Reader) -> QueueState:
        """The queue that they name, of the incarnation that they name."""
        queue = self.queue(reader.state)
        wanted = self["incarnation"]
        incarnation = reader.state.directory.incarnation(queue)
        if wanted is not None and wanted != incarnation:
            raise InvalidDestinationException(
                f"queue {queue.label!r} was deleted and made again (it is {incarnation!r} now, and was {wanted!r}):"
                " positions of the old one mean nothing; start again"
            )
        return queue


def settle(queue: int, last: int, *, first: int = 0, delayed: bool = False, processed: bool = False) -> Steps:
    """Drop what has positions from ``first`` to ``last``, except what consumers hold; it may be ``processed``."""
    dropped = 0
    position: int | None = first
    while position is not None:
        wanted = c.Range(queue, position, last, SETTLE_ENTRIES, delayed=delayed)
        some, position = yield c.Trim(wanted, processed=processed)
        dropped += some
    return dropped
