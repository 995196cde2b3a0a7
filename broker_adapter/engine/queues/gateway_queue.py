"""The queue of a gateway: what waits to be sent to another site, in the order in which it was decided.  Pure.

Theory of operation
    A gateway takes what its destinations take: the stored message is the same one, and its entry here refers to it.
    Nobody consumes the entries; they are read and ended by position.  So none of them is kept in memory.  All are in
    one lane whatever their priority, without an expiry or a delay of their own: what a message says of these is the
    business of the other site, and of who makes a batch.

    One decision takes all of a transaction, so its entries have positions that follow each other.  All but the first of
    them have the flag ``FLAG_JOINED``, whether the gateway keeps transactions whole or not.  An entry with the flag
    whose neighbour ahead is not there any more is of a transaction that has lost a part.

    A message that was sent here is known at other sites by its number, whichever way it comes, and says which number
    the message before it to the same destination had.  So an entry has the *step* between the two in place of a count
    of deliveries.  What came from another site has the origin that it came with.

    A position also is the time of the day at which its message came, in the bits above the lowest 16, or one behind
    the last position where that is later.  So how long a message has waited is known without reading it, and a store
    that is replaced by an older copy of itself does not give positions again: the other site knows the last one that it
    has taken, and leaves out those up to there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.message_runs import MessageRun
from broker_adapter.engine.queues.entries import Entry, Lane
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.gateway_records import UNKNOWN, GatewayRecord, is_moved
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_JOINED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    encode_annotations,
    entry_key,
)
from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.engine.regions.event_records import LANE
from broker_adapter.envelope import ENVELOPE_FORMAT

#: The kind of a region, where those of destinations are numbers.
REGION_KIND: Final = 9
#: Bits of the positions that a gateway may give in a millisecond without running ahead of the clock.
_POSITION_BITS: Final = 16
#: Annotations of an entry: the sites that have seen the message; and what its payload alone does not say.
SITES: Final = "sites"
HEAD: Final = "head"
#: Says where a message was sent first.
ORIGIN: Final = "origin"
#: The greatest step that an entry has room for.
_MAX_STEP: Final = (1 << 32) - 1


class Way(NamedTuple):
    """By which way a message came here."""

    sites: Sequence[int] = ()  #: that have seen it
    #: site, number and number of the message before it, where it was sent; None: here
    origin: Sequence[int] | None = None
    step: int = 0  #: see :meth:`Feeds.step`
    transaction: int = 0  #: number of its transaction; 0: it is of none


class GatewayQueue(QueueState):
    """The queue of one gateway.

    Attributes:
        gateway: what a restart must know of it; ``counters`` are as the last commit has them.
        stored: as it was when all of it but the counters was stored last.
        is_changed: whether something of it is to be stored.
        wakes: whether its sender has something to do, and is to be told.
        received, not_queued, divided_transactions: counted since then.
        is_sending: whether a batch may be under way.
        trouble: why its sender could not send; empty: it could.
        ended_through: the last position that was ended since the start; 0: none.
    """

    is_delivered = False

    __slots__ = (
        "_transaction",
        "divided_transactions",
        "ended_through",
        "gateway",
        "is_changed",
        "is_sending",
        "not_queued",
        "received",
        "stored",
        "trouble",
        "wakes",
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As a queue; the record is given later."""
        super().__init__(*arguments, **named)
        self.gateway: GatewayRecord = UNKNOWN
        self.stored: GatewayRecord = UNKNOWN
        self.is_changed = self.is_sending = self.wakes = False
        self.received = self.not_queued = self.divided_transactions = self.ended_through = 0
        self.trouble = ""
        self._transaction = 0  # of the last entry; 0: of none
        if not self.lanes:
            self._add_lane(Lane(LANE))
        for lane in self.lanes:
            lane.at_end = False  # what comes in stays behind the window

    def takes(self, messages: int, now_ms: int) -> bool:
        """Return whether it takes messages, which are counted; ``now_ms`` is the time of the day."""
        self.is_changed = True
        self.received += messages
        if self.gateway.state == "stopped":
            self.not_queued += messages
            return False
        self.wakes = True
        self.next_position = max(self.next_position, now_ms << _POSITION_BITS)
        return True

    def take(
        self,
        number: int,
        message: NewMessage,
        shared: bool,
        destination: int,
        effects: Effects,
        annotations: Mapping[str, Any] | None,
        way: Way,
    ) -> None:
        """Take a new message.

        Args:
            number: of the message.
            message: the message.
            shared: whether other queues of the same store have it as well.
            destination: number of that which it was sent to.
            effects: of the decision.
            annotations: what the engine adds to an event of a region; None: it is none.
            way: by which it came.
        """
        added = {} if annotations is None else dict(annotations)
        if way.sites:
            added[SITES] = list(way.sites)
        if way.origin is not None:
            added[ORIGIN] = list(way.origin)
        if message.format != ENVELOPE_FORMAT and annotations is None:
            added[HEAD] = head_of(message)
        here = NewMessage(message.format, message.payload, persistent=message.persistent, group=destination)
        entry = self.append(number, here, shared, 0, effects, added or None, self._joined(way.transaction))
        entry.delivery_count = way.step

    def take_run(
        self, number: int, run: MessageRun, shared: bool, destination: int, effects: Effects, way: Way
    ) -> None:
        """Take new messages that were sent here at once; the arguments are those of ``take``, and of the first one."""
        is_plain = all(message.format == ENVELOPE_FORMAT for message in run.messages)
        if not is_plain or not self.takes_runs(persistent=run.persistent):
            for count, message in enumerate(run.messages, number):
                self.take(count, message, shared, destination, effects, None, way)
                way = way._replace(step=NEXT)
            return
        batch = effects.durable if self.durable else effects.volatile
        flags = (FLAG_PERSISTENT if self.durable else 0) | (FLAG_SHARED if shared else 0)
        first, queue, lane = self.next_position, self.id, self._lane_for(LANE)
        self.next_position = first + len(run.sizes)
        first_flags = flags | self._joined(way.transaction)
        flags |= self._joined(way.transaction)
        entries = [
            Entry(entry_key(queue, LANE, position), lane, position, count, NEXT, flags, 0, size, destination)
            for position, (count, size) in enumerate(enumerate(run.sizes, number), first)
        ]
        entries[0].flags, entries[0].delivery_count = first_flags, way.step
        self._add_all(lane, entries, batch)

    def share(self, entry: Entry, flags: int, destination: int, effects: Effects, origin: Sequence[int] | None) -> None:
        """Take a message that another queue has; the arguments are those of its entry there, and of ``take``."""
        lane, self._transaction = self._lane_for(LANE), 0
        flags |= FLAG_ANNOTATED if origin else 0
        here = Entry(entry.key, lane, entry.position, entry.number, 0, flags, 0, entry.size, destination)
        key = self.adopt(here, lane, flags, 0, 0, effects).key
        if origin:
            batch = effects.durable if flags & FLAG_PERSISTENT else effects.volatile
            batch.put("annotations", key, encode_annotations(key, {ORIGIN: origin}))

    def _joined(self, transaction: int) -> int:
        """Return the flag of a new entry, by its transaction; 0: the entry ahead is of another one."""
        is_joined = transaction and transaction == self._transaction
        self._transaction = transaction
        return FLAG_JOINED if is_joined else 0

    def noted(self) -> GatewayRecord:
        """Return what a restart must know, with what was counted since the last commit."""
        if self.received:
            counters = self.gateway.counters
            received, not_queued = counters.received + self.received, counters.not_queued + self.not_queued
            divided = counters.divided_transactions + self.divided_transactions
            self.received = self.not_queued = self.divided_transactions = 0
            counters = counters._replace(received=received, not_queued=not_queued, divided_transactions=divided)
            self.gateway = self.gateway._replace(counters=counters)
        return self.gateway

    @property
    def moved(self) -> frozenset[int]:
        """The numbers of those of its destinations that are moved."""
        return frozenset(number for number, each in enumerate(self.gateway.destinations, 1) if is_moved(each))

    @property
    def gone(self) -> int:
        """Messages that are not there any more: not persistent, or damaged and in quarantine."""
        counted = self.noted().counters
        ended = counted.distributed + counted.refused + counted.conflated + counted.expired + counted.dropped
        return counted.queued - ended - self.depth


class Feed(NamedTuple):
    """What a gateway takes of one destination."""

    queue: GatewayQueue
    number: int  #: of the destination among those of the gateway

    @property
    def moves(self) -> bool:
        """Whether the gateway takes what is sent to the destination away from here."""
        gateway = self.queue.gateway
        return gateway.state != "stopped" and is_moved(gateway.destinations[self.number - 1])


#: The step of a message whose number is that behind the one before it, and that of one of which this is not known.
NEXT: Final = 2
UNKNOWN_STEP: Final = 1


class Feeds(list[Feed]):
    """The gateways that take what is sent to a destination.

    Attributes:
        last: the number of the last message that any of them took; 0: it is not known.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        """No gateways."""
        super().__init__()
        self.last = 0

    def step(self, first: int, last: int) -> int:
        """Note that messages come in which are sent here.

        Args:
            first: number of the first one.
            last: number of the last one.

        Returns:
            The step of the first one: by how much its number is above that of the message before it, and one more;
            ``UNKNOWN_STEP``: that is not known.
        """
        before, self.last = self.last, last
        step = first - before + 1
        return step if before and step <= _MAX_STEP else UNKNOWN_STEP


def origin_of(site: int, number: int, step: int, annotations: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the origin of a message in the queue of a gateway.

    Args:
        site: this one.
        number: of the message here.
        step: of its entry; 0: it has none.
        annotations: of its entry.

    Returns:
        Site, number and number of the message before it; all are 0: it has none.
    """
    if ORIGIN in annotations:
        of, number, previous = annotations[ORIGIN]
        return of or site, number, previous
    if not step:
        return 0, 0, 0
    return site, number, 0 if step == UNKNOWN_STEP else number - step + 1


def came_at_ms(position: int) -> int:
    """Return the time of the day at which the message of a position came."""
    return position >> _POSITION_BITS


def head_of(message: NewMessage) -> list[Any]:
    """What a message says of itself, where only who took it in can read that."""
    identity = message.identity
    return [
        message.priority,
        message.persistent,
        message.expires_at_ms,
        message.deliver_at_ms,
        message.group,
        None if identity is None else list(identity),
    ]
