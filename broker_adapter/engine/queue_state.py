"""One queue's rules: positions, order, credit, redelivery, expiry.  No I/O, clock, thread or lock.

Theory of operation
    A queue has up to ten *lanes*, one for each priority, the most urgent first.  Delivery order is (lane, position);
    positions strictly increase over the whole queue and are never used again.

    Only a window of a lane is in memory.  ``Lane.heap`` holds the positions that are ready, ``QueueState.ready`` their
    entries.  All entries up to ``Lane.loaded_through`` are in memory or in a consumer's hands; unless the lane is
    ``at_end``, more may stand behind it in the stores.  ``at_end`` is set only when the stores have been read to the
    end of the lane.  ``Lane.behind`` counts what stands there; it never decides whether something does, and is checked
    whenever the lane has been read to its end.  An entry that comes back (released, failed) is pushed onto the heap
    again, and so returns to its original position.  A heap may hold positions whose entry is gone; they are skipped.

    An entry that is to end or to move, and that no consumer holds, is read from the stores in the same cycle
    (``find``), and what the cycle has changed already is looked up in its batches: nothing that was read in an earlier
    cycle is trusted.

    ``Lane.cursor`` is the last durable position that may have been handed out.  It is stored with the commit that the
    delivery waits for, so that after a crash the messages up to it are marked as redelivered.  One of them may be what
    ended the process, so they are ``suspects``: who gives one to an application in the process of the engine has the
    delivery counted first (``take_in_hand``), and not when it fails.

    A consumer without a selector that may get a message is in ``takers``; these take turns.  A consumer with a selector
    (:mod:`search`) takes entries out of order, also such as stand behind the window.  These come into memory *early*:
    ``Lane.early`` has the positions behind ``loaded_through`` that are in memory or in a consumer's hands, and do not
    count as behind it.  Such a consumer is in ``finders`` while it has found something or has to search on.  So a
    dispatch costs what it hands out, however many consumers there are.

    The messages of a *group* go to one consumer for as long as it is there.  A message whose consumer cannot take it
    now is reserved for it.  Consumers with different selectors have groups of their own.

    A queue only records changes in the batch of the store that the entry lives in; the broker writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import NewMessage, Unseen
from broker_adapter.engine.effects import Effects, Load, Look, Outgoing, Scan, StoreBatch
from broker_adapter.engine.records import (
    DELAYED_LANE,
    FLAG_ANNOTATED,
    FLAG_HANDED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    LATEST_EXPIRY_MS,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    delayed_flags,
    entry_key,
    lane_of_delayed,
    schedule_key,
)
from broker_adapter.engine.resting import Resting
from broker_adapter.engine.search import Search
from broker_adapter.engine.selection import selectors_at_once
from broker_adapter.selectors.language import Selector

#: Positions that a restart skips where messages that did not survive it had used them.
POSITION_RESERVE = 65_536
#: Messages that one cycle hands out, about: what comes in meanwhile waits for its end.
CYCLE_HANDOUTS = 5_000
#: Deliveries that a consumer may hold although all consumers together hold as many as they may.
LEAST_UNSETTLED = 16
#: Entries of a queue that may be in memory, however many queues share the memory.
LEAST_WINDOW = 16
#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__


class Memory:
    """What the queues of one engine may keep in memory, and the consumers hold.

    Attributes:
        window: entries of one queue that may be ready in memory.
        in_hand: entries that all consumers hold.
        cycle_handouts: how many they get in one cycle, about.
        max_in_hand: how many they may hold; above it a consumer gets nothing while it holds ``LEAST_UNSETTLED``.
        limited: consumers that got less because of that, with their queues; the one that has waited longest first.
    """

    __slots__ = ("_most_each", "_most_together", "cycle_handouts", "in_hand", "limited", "max_in_hand", "window")

    def __init__(self, window: int, most_together: int, max_in_hand: int) -> None:
        self._most_each = window
        self._most_together = most_together
        self.window = window
        self.in_hand = 0
        self.cycle_handouts = CYCLE_HANDOUTS
        self.max_in_hand = max_in_hand
        self.limited: dict[Consumer, QueueState] = {}

    def share(self, queues: int) -> None:
        """So many queues have consumers: they share what may be in memory."""
        self.window = min(self._most_each, max(LEAST_WINDOW, self._most_together // max(1, queues)))

    def unlimited(self) -> Iterator[QueueState]:
        """Offer the room that there is to consumers that wait for it; yields their queues.

        Each of them may take one message at least, so no more are asked than there is room for.
        """
        for consumer in list(islice(self.limited, max(0, self.max_in_hand - self.in_hand))):
            queue = self.limited.pop(consumer)
            queue.offer(consumer)
            yield queue

    def most_unsettled(self, most: int) -> int:
        """How many deliveries a consumer may hold now, of ``most`` that it may hold at all."""
        return most if self.in_hand < self.max_in_hand else min(most, LEAST_UNSETTLED)


class Entry:
    """A message's place in one queue."""

    __slots__ = ("delivery_count", "expires_at_ms", "flags", "group", "key", "lane", "number", "position", "size")

    def __init__(
        self,
        key: bytes,
        lane: Lane,
        position: int,
        number: int,
        delivery_count: int,
        flags: int,
        expires_at_ms: int,
        size: int,
        group: int = 0,
    ) -> None:
        self.key = key
        self.lane = lane
        self.position = position
        self.number = number
        self.delivery_count = delivery_count
        self.flags = flags
        self.expires_at_ms = expires_at_ms
        self.size = size
        self.group = group


class Suspect(Enum):
    """What is counted of a message that may have ended the process of the engine."""

    UNCOUNTED = "nothing ever: it was handed out before a crash, and nobody knows whether it was seen"
    FIRST_IN_HAND = "the delivery under way, which is the first one that is"
    COUNTED = "earlier deliveries"
    IN_HAND = "earlier deliveries, and the one under way"


class Lane:
    """The messages of one priority.

    Attributes:
        number: 9 - priority, or that of the delayed messages.
        heap: positions of entries that are ready.
        loaded_through: up to here everything is in memory or in consumers' hands.
        at_end: whether nothing stands behind ``loaded_through``, but for ``early``.
        early: positions behind ``loaded_through`` that are in memory or in consumers' hands.
        behind: how many entries stand behind ``loaded_through`` in the stores, by count.
        loading: whether a load is under way.
        stored: entries of it in the durable store.
        cursor: the last durable position that may have been handed out.
        restart_cursor: that of the start.
    """

    __slots__ = (
        "at_end",
        "behind",
        "cursor",
        "early",
        "heap",
        "loaded_through",
        "loading",
        "number",
        "restart_cursor",
        "stored",
    )

    def __init__(self, number: int, stored: int = 0, cursor: int = 0, *, at_end: bool = True) -> None:
        self.number = number
        self.heap: list[int] = []
        self.loaded_through = 0
        self.at_end = at_end
        self.early: set[int] = set()
        self.behind = stored
        self.loading = False
        self.stored = stored
        self.cursor = cursor
        self.restart_cursor = cursor


class Consumer:
    """Who takes from a queue, what it may still get, and what it holds."""

    __slots__ = (
        "attached",
        "client",
        "credit",
        "ended",
        "exclusive",
        "groups",
        "id",
        "next_number",
        "owed",
        "presettled",
        "queue",
        "queued",
        "reserved",
        "room_bytes",
        "search",
        "sink",
        "slice_bytes",
        "unseen",
        "unsettled",
    )

    def __init__(
        self,
        number: int,
        client: int,
        queue: QueueState,
        sink: Any,
        presettled: bool = False,
        slice_bytes: int | None = None,
        selector: Selector | None = None,
        exclusive: bool = False,
        ended: Callable[[Any], None] | None = None,
    ) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
        self.ended = ended
        self.presettled = presettled
        self.credit = 0
        self.slice_bytes = inf if slice_bytes is None else slice_bytes
        self.room_bytes = self.slice_bytes  #: what is left of the slice; below 0 by a part of the last message
        self.next_number = 1
        self.unsettled: dict[int, Entry] = {}
        self.attached = True
        self.exclusive = exclusive
        self.search = None if selector is None else Search(selector)
        self.owed = False  #: whether the queue is to look at what is kept for it
        self.queued = False  #: whether it is among the queue's ``takers`` or ``finders``
        self.reserved: list[tuple[int, int]] = []  #: a heap of (lane, position): messages of its groups
        self.groups: set[tuple[str | None, int]] = set()
        self.unseen: Unseen = ()  #: of one that goes: numbers of deliveries

    def has_not_seen(self, number: int) -> bool:
        """Whether a delivery came to nobody's eyes before the consumer went."""
        return any(number in part for part in self.unseen)

    @property
    def is_waiting(self) -> bool:
        """Whether messages for it may be on their way into memory."""
        queue, search = self.queue, self.search
        is_shown = search is not None and (search.is_scanning or queue.unseen > 0)
        return queue.is_loading or is_shown or bool(queue.returning)

    def __repr__(self) -> str:
        state = "" if self.attached else ", DETACHED"
        return (
            f"<Consumer {self.id} of {self.queue.label}, credit {self.credit}, unsettled {len(self.unsettled)}{state}>"
        )


class Browser:
    """Who looks at a snapshot of a queue, in the order of delivery, taking nothing."""

    __slots__ = (
        "client",
        "credit",
        "drains",
        "id",
        "next_number",
        "place",
        "queue",
        "room_bytes",
        "selector",
        "sink",
        "slice_bytes",
        "through",
    )

    def __init__(
        self,
        number: int,
        client: int,
        queue: QueueState,
        sink: Any,
        slice_bytes: int | None,
        selector: Selector | None = None,
    ) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
        self.selector = selector
        self.credit = 0
        self.slice_bytes = inf if slice_bytes is None else slice_bytes
        self.room_bytes = self.slice_bytes  #: as a consumer's
        self.next_number = 1
        self.place = (0, 0)  #: lane and position of the last message seen
        self.through = queue.next_position - 1  #: the last position of the snapshot
        self.drains: list[Any] = []  #: replies of those who wait for the end


class QueueState:
    """A queue, or the queue behind a subscription."""

    __slots__ = (
        "_behind_bytes",
        "_by_number",
        "_owed",
        "bytes",
        "consumers",
        "counters_due",
        "delayed",
        "depth",
        "destination",
        "durable",
        "exclusive",
        "finders",
        "groups",
        "id",
        "kept",
        "kept_for",
        "label",
        "lanes",
        "leaving",
        "left_ms",
        "max_deliveries",
        "max_unsettled",
        "memory",
        "next_position",
        "owner",
        "ready",
        "record",
        "reserved",
        "resting",
        "returning",
        "searching",
        "selector",
        "stored_bytes",
        "suspects",
        "takers",
        "unseen",
        "used_ms",
        "wait_queue",
    )

    def __init__(
        self,
        number: int,
        destination: Destination,
        record: CatalogRecord,
        *,
        durable: bool,
        memory: Memory,
        max_deliveries: int | None,
        max_unsettled: int,
        counters: Counters | None = None,
        lanes: Iterable[int] = (),
        owner: int | None = None,
    ) -> None:
        """A queue, new or as the store has it.

        Args:
            number: names it in the stores.
            destination: whose messages it holds.
            record: what it is.
            durable: whether its persistent messages survive a restart.
            memory: shared with the engine's other queues.
            max_deliveries: failed deliveries of a message, after which it is set aside; None: no limit.
            max_unsettled: deliveries that a consumer may hold.
            counters: what the store says of its entries.
            lanes: those that the store has entries of, whatever the counters say.
            owner: the client of a temporary queue.
        """
        self.id = number
        self.destination = destination
        self.label = record.name
        self.record = record
        self.durable = durable
        self.memory = memory
        self.max_deliveries = max_deliveries
        self.max_unsettled = max_unsettled
        self.owner = owner
        self.next_position = counters.next_position if counters else 1
        self.reserved = self.next_position
        self.stored_bytes = counters.stored_bytes if counters else 0
        self.bytes = self.stored_bytes
        self.lanes: list[Lane] = []
        self._by_number: dict[int, Lane] = {}
        self.delayed = Lane(DELAYED_LANE, at_end=False)
        self.depth = 0
        for lane in counters.lanes if counters else ():
            self.depth += lane.stored
            if lane.lane == DELAYED_LANE:
                self.delayed = Lane(DELAYED_LANE, lane.stored, at_end=False)
            else:
                self._add_lane(Lane(lane.lane, lane.stored, lane.cursor, at_end=False))
        for lane_number in lanes:
            if lane_number != DELAYED_LANE and lane_number not in self._by_number:
                self._add_lane(Lane(lane_number, at_end=False))
        self._behind_bytes = self.stored_bytes  #: of what is counted as behind, in all lanes
        self.ready: dict[int, Entry] = {}
        self.consumers: dict[Consumer, None] = {}  #: those attached, in the order in which they came
        self.leaving: dict[Consumer, None] = {}  #: those detached that hold deliveries
        self.takers: deque[Consumer] = deque()
        self.finders: deque[Consumer] = deque()
        self._owed: deque[Consumer] = deque()  #: those that may get what was reserved for them
        self.exclusive: list[Consumer] = []  #: in the order in which they came; the first one gets everything
        self.searching: dict[Consumer, None] = {}  #: those with a selector
        self.selector: Selector | None = None  #: of a subscription: what it wants of its topic
        self.groups: dict[tuple[str | None, int], Consumer] = {}  #: (selector, group) → whose messages these are
        self.kept = 0  #: messages that are reserved for the consumers of their groups, or whose listeners raised
        self.kept_for: dict[int, Consumer] = {}  #: position → whose listener raised, and gets it again
        self.suspects: dict[int, Suspect] = {}  #: position → what is counted of it
        self.resting: Resting[Entry, Consumer] = Resting()
        self.returning: set[int] = set()  #: clients that are leaving, of which not all that they hold is back
        self.unseen = 0  #: messages that came in or back, and that those who search are still to be shown
        self.wait_queue: deque[Any] = deque()
        self.counters_due = False
        self.used_ms = 0  #: when something happened to it last, by the clock that nobody sets
        self.left_ms = 0  #: when it had a consumer, or a reader of ranges, last; by the same clock

    def __repr__(self) -> str:
        return f"<QueueState {self.label!r}, {self.depth} messages, {len(self.consumers)} consumers>"

    def note_use(self, elapsed_ms: int) -> None:
        """Somebody uses the queue or subscription now, also without a consumer: it is not idle."""
        self.used_ms = self.left_ms = elapsed_ms

    # Messages come in.

    def append(self, number: int, message: NewMessage, shared: bool, now_ms: int, effects: Effects) -> None:
        """Take a new message at the end of its lane, or among those that are not due yet."""
        position = self.next_position
        self.next_position = position + 1
        size = len(message.payload)
        flags = FLAG_SHARED if shared else 0
        if self.durable and message.persistent:
            flags |= FLAG_PERSISTENT
            batch = effects.durable
        else:
            batch = effects.volatile
            if self.durable and position >= self.reserved:
                self.reserved = position + POSITION_RESERVE
                self.counters_due = True
        lane_number = 9 - message.priority
        lane = self._by_number.get(lane_number) or self._add_lane(Lane(lane_number))
        due_ms = message.deliver_at_ms
        if due_ms is not None and due_ms > now_ms:
            flags = delayed_flags(flags, lane_number)
            lane = self.delayed
        key = entry_key(self.id, lane.number, position)
        expires_at_ms = message.expires_at_ms
        expires_at_ms = 0 if expires_at_ms is None else min(expires_at_ms, LATEST_EXPIRY_MS)
        entry = Entry(key, lane, position, number, 0, flags, expires_at_ms, size, message.group)
        self._add(entry, batch)
        if lane is self.delayed:
            batch.put("schedule", schedule_key(due_ms or 0, KIND_DELIVER, key), b"")
        elif self.searching:
            self._arrived(entry, effects)

    def adopt(
        self, entry: Entry, lane: Lane, flags: int, expires_at_ms: int, delivery_count: int, effects: Effects
    ) -> Entry:
        """Take over a message that another place gave up (``forget`` with ``keep_message``), at a new position."""
        position = self.next_position
        self.next_position = position + 1
        lane = self._by_number.get(lane.number) or self._add_lane(Lane(lane.number))
        key = entry_key(self.id, lane.number, position)
        flags &= ~FLAG_HANDED
        moved = Entry(key, lane, position, entry.number, delivery_count, flags, expires_at_ms, entry.size, entry.group)
        self._add(moved, effects.durable if flags & FLAG_PERSISTENT else effects.volatile)
        if self.searching:
            self._arrived(moved, effects)
        return moved

    def _arrived(self, entry: Entry, effects: Effects) -> None:
        """A message came in or came back: those who search have to look at it."""
        if entry.position in self.ready:
            self.unseen += 1
            effects.looks.append(Look(self, entry))
            return
        for consumer in self.searching:
            if consumer.search is not None:
                consumer.search.lane(entry.lane.number).put_off()
                self.offer(consumer)

    def _add(self, entry: Entry, batch: StoreBatch) -> None:
        lane = entry.lane
        batch.entries[entry.key] = entry
        self.depth += 1
        self.bytes += entry.size
        if entry.flags & FLAG_PERSISTENT:
            lane.stored += 1
            self.stored_bytes += entry.size
            self.counters_due = True
        if lane is not self.delayed:
            if entry.expires_at_ms:
                batch.put("schedule", schedule_key(entry.expires_at_ms, KIND_EXPIRE, entry.key), b"")
            if lane.at_end and len(self.ready) < self.memory.window:
                lane.loaded_through = entry.position
                self.ready[entry.position] = entry
                heappush(lane.heap, entry.position)
                return
            lane.at_end = False
        lane.behind += 1
        self._behind_bytes += entry.size

    def _add_lane(self, lane: Lane) -> Lane:
        self._by_number[lane.number] = lane
        self.lanes = sorted(self._by_number.values(), key=lambda each: each.number)
        return lane

    # Consumers come and go.

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        self.consumers[consumer] = None
        if consumer.exclusive:
            self.exclusive.append(consumer)
        if consumer.search is not None:
            self.searching[consumer] = None

    def is_served(self, consumer: Consumer) -> bool:
        """Whether a consumer may get something: an exclusive one that came first shuts out all others."""
        return not self.exclusive or self.exclusive[0] is consumer

    def offer(self, consumer: Consumer) -> None:
        """Let a consumer have its turn, if it has credit: it may get something now."""
        if consumer.reserved and not consumer.owed:
            consumer.owed = True
            self._owed.append(consumer)
        if not consumer.queued and consumer.credit > 0:
            consumer.queued = True
            (self.takers if consumer.search is None else self.finders).append(consumer)

    def remove_consumer(self, consumer: Consumer, effects: Effects) -> None:
        """A consumer takes part no more: what was kept for it is for others."""
        del self.consumers[consumer]
        self.memory.limited.pop(consumer, None)
        if consumer.exclusive:
            self.exclusive.remove(consumer)
        selector = consumer.search.selector.text if consumer.search is not None else None
        if consumer.search is not None:
            consumer.search = None
            del self.searching[consumer]
        self._let_go_of_kept(consumer, selector, effects)
        if selector is not None and not self.searching:
            self._forget_early(effects)
        if not self.consumers:
            self.takers.clear()
            self.finders.clear()
            self._owed.clear()
        if consumer.unsettled:
            self.leaving[consumer] = None

    def serve_only(self, exclusive: Consumer, effects: Effects) -> None:
        """A first exclusive consumer has come: what was kept for the others is for it, and so are their groups."""
        for consumer in self.consumers:
            if consumer is not exclusive:
                self._let_go_of_kept(consumer, consumer.search.selector.text if consumer.search else None, effects)
                for entry in self.resting.take_of(consumer):
                    self.give_back(entry, effects)

    def _let_go_of_kept(self, consumer: Consumer, selector: str | None, effects: Effects) -> None:
        """What was kept for a consumer is for others, and its groups are nobody's."""
        reserved, consumer.reserved = consumer.reserved, []
        for lane_number, position in reserved:
            self.kept_for.pop(position, None)
            heappush(self._by_number[lane_number].heap, position)
        self.kept -= len(reserved)
        groups, consumer.groups = consumer.groups, set()
        for key in groups:
            del self.groups[key]
        if groups and selector is not None:
            for other in self.searching:
                if other.search is not None and other.search.selector.text == selector:
                    other.search.restart()  # it passed over what was in these groups
                    self.offer(other)
        if self.searching:
            for _, position in reserved:  # nobody was shown what had failed on this consumer's listener
                if position in self.ready:
                    self._arrived(self.ready[position], effects)

    def _forget_early(self, effects: Effects) -> None:
        """Nobody searches any more: what came into memory for that comes again in its turn."""
        effects.touches_unloaded = True  # it may have changed in this cycle
        for lane in self.lanes:
            early = [position for position in lane.early if position > lane.loaded_through and position in self.ready]
            for position in early:
                self._put_behind(self.ready.pop(position))
            lane.early.difference_update(early)

    def _put_behind(self, entry: Entry) -> None:
        """An entry is in memory no more; it is in its store."""
        entry.lane.at_end = False
        entry.lane.behind += 1
        self._behind_bytes += entry.size

    def drop_window(self) -> None:
        """Keep nothing in memory that is ready: there is no consumer.  A later load brings it again."""
        for entry in self.ready.values():
            self._put_behind(entry)
        self.ready.clear()
        for lane in self.lanes:
            lane.heap.clear()
            if not lane.at_end:
                lane.loaded_through = 0
                lane.early.clear()
        stay = [*self._in_hands(), *self.resting.entries()]
        for entry in stay:
            if not entry.lane.at_end:
                entry.lane.early.add(entry.position)
        if self.suspects:
            positions = {entry.position for entry in stay}
            self.suspects = {each: suspect for each, suspect in self.suspects.items() if each in positions}

    def _in_hands(self) -> Iterator[Entry]:
        for consumer in (*self.consumers, *self.leaving):
            yield from consumer.unsettled.values()

    # Messages go out.

    def dispatch(self, now_ms: int, effects: Effects) -> list[Entry]:
        """Hand out what the consumers have credit for.  Returns what has expired.

        A lone consumer takes all that it may at once; several take turns, one message each.  Beyond
        ``memory.cycle_handouts`` messages of all queues in one cycle, the rest is for the next one.
        """
        for consumer in self.resting.take_released():
            if consumer.attached:
                self.offer(consumer)
        if self.returning:
            return []
        turn = _Turn(self, now_ms, effects)
        if self.exclusive:
            self._serve(self.exclusive[0], turn)
        else:
            while self._owed and turn.left > 0:
                consumer = self._owed.popleft()
                consumer.owed = False
                self._hand_out_reserved(consumer, turn)
            takers, finders = self.takers, self.finders
            dry = False
            while turn.left > 0:
                progress = False
                if not dry and takers:
                    progress = self._next_taker(turn)
                    dry = not progress
                if finders and turn.left > 0 and not self.unseen:  # what came back may be ahead of what they have found
                    progress |= self._next_finder(turn)
                if not progress:
                    break
        for consumer, messages in turn.out.items():
            effects.deliveries.append((consumer, messages))
            effects.handouts += len(messages)
            if not consumer.presettled:
                self.memory.in_hand += len(messages)
        return turn.expired

    def _serve(self, consumer: Consumer, turn: _Turn) -> None:
        """Hand out all that one consumer may have, as if it were alone."""
        self._hand_out_reserved(consumer, turn)
        room = turn.room_of(consumer)
        if room <= 0 or turn.left <= 0:
            return
        if consumer.search is not None:
            if not self.unseen:
                self._hand_out_found(consumer, consumer.search, room, turn)
        else:
            self._hand_out_next(consumer, room, turn)

    def _next_taker(self, turn: _Turn) -> bool:
        """Hand out one message to the next consumer without a selector, or all it may have to a lone one.

        Returns False where there is none for any of them.
        """
        takers = self.takers
        while takers:
            consumer = takers[0]
            room = turn.room_of(consumer)
            if room > 0:
                break
            takers.popleft()
            consumer.queued = False
        else:
            return False
        if len(takers) == 1 and not self.finders:
            self._hand_out_next(consumer, room, turn)
            return False
        while True:
            entry = self._take_next(turn)
            if entry is None:
                return False
            if entry.group and not self._may_take(consumer, entry):
                owner = self.groups[None, entry.group]
                if turn.room_of(owner) > 0 and not owner.reserved:
                    turn.give(owner, entry)
                elif not self._reserve(entry):
                    return False
                continue
            turn.give(consumer, entry)
            takers.rotate(-1)
            return True

    def _take_next(self, turn: _Turn) -> Entry | None:
        """Take out the entry that comes next for whoever has no selector; None where none is in memory."""
        ready, kept_for = self.ready, self.kept_for
        for lane in self.lanes:
            heap = lane.heap
            while True:
                if not lane.at_end and (not heap or heap[0] > lane.loaded_through):
                    self._ask_for_more(lane, turn.effects)
                    return None  # nothing may overtake what is on its way into memory
                if not heap:
                    break
                position = heappop(heap)
                if kept_for and position in kept_for:
                    continue  # it is in the heap again if its consumer leaves
                entry = ready.pop(position, None)
                if entry is None:
                    continue
                if entry.expires_at_ms and entry.expires_at_ms <= turn.now_ms:
                    turn.expired.append(entry)
                    continue
                return entry
        return None

    def _ask_for_more(self, lane: Lane, effects: Effects) -> None:
        if not lane.loading:
            lane.loading = True
            effects.loads.append(Load(self.id, lane.number, lane.loaded_through, self.memory.window))

    def _hand_out_reserved(self, consumer: Consumer, turn: _Turn) -> None:
        """Hand out what was reserved for a consumer."""
        while consumer.reserved and turn.room_of(consumer) > 0:
            self.kept -= 1
            position = heappop(consumer.reserved)[1]
            self.kept_for.pop(position, None)
            entry = self.ready.pop(position, None)
            if entry is not None:
                turn.give_unless_expired(consumer, entry)

    def _hand_out_next(self, consumer: Consumer, room: int, turn: _Turn) -> None:
        """Hand out what comes next to a lone consumer.  Here most messages go: it calls little."""
        now_ms, effects = turn.now_ms, turn.effects
        ready, kept_for, unsettled = self.ready, self.kept_for, consumer.unsettled
        messages: list[Outgoing] = []
        room_bytes = consumer.room_bytes
        first = number = consumer.next_number
        last = first + min(room, turn.left)
        for lane in self.lanes:
            heap = lane.heap
            while number < last:
                if not lane.at_end and (not heap or heap[0] > lane.loaded_through):
                    self._ask_for_more(lane, effects)
                    last = number  # nothing may overtake what is on its way into memory
                    break
                if not heap:
                    break
                position = heappop(heap)
                if kept_for and kept_for.get(position, consumer) is not consumer:
                    continue  # as above
                entry = ready.pop(position, None)
                if entry is None:
                    continue
                if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
                    turn.expired.append(entry)
                    continue
                if entry.group and not self._may_take(consumer, entry):
                    if not self._reserve(entry):
                        last = number
                    continue
                fields = (number, position, entry.delivery_count, entry.number, entry.flags, entry.key)
                messages.append(_new(Outgoing, fields))
                if consumer.presettled:
                    self.forget(entry, effects)
                else:
                    unsettled[number] = entry
                    if position > lane.cursor and entry.flags & FLAG_PERSISTENT:
                        lane.cursor = position
                        self.counters_due = True
                number += 1
                room_bytes -= entry.size
                if room_bytes <= 0:
                    last = number
        consumer.room_bytes = room_bytes
        consumer.next_number = number
        consumer.credit -= number - first
        turn.left -= number - first
        if messages:
            turn.messages_of(consumer).extend(messages)

    def _next_finder(self, turn: _Turn) -> bool:
        """Hand out what the next consumer with a selector has found; a lone one gets all it may have."""
        finders = self.finders
        while finders:
            consumer = finders[0]
            room = turn.room_of(consumer)
            search = consumer.search
            if room > 0 and search is not None:
                alone = len(finders) == 1 and not self.takers
                if self._hand_out_found(consumer, search, room if alone else 1, turn):
                    finders.rotate(-1)
                    return True
            # What it finds later offers it again.
            finders.popleft()
            consumer.queued = False
        return False

    def _hand_out_found(self, consumer: Consumer, search: Search, room: int, turn: _Turn) -> int:
        """Hand out up to ``room`` messages that a selector has found, and search on where nothing is left.

        Returns how many were handed out.
        """
        effects = turn.effects
        first = consumer.next_number
        last = first + min(room, turn.left)
        for lane in self.lanes:
            looking = search.lane(lane.number)
            while consumer.next_number < last and consumer.room_bytes > 0:
                if not looking.found:
                    break
                entry = self.ready.get(heappop(looking.found))
                if entry is None or (entry.group and not self._may_take(consumer, entry)):
                    continue
                if self.kept_for and self.kept_for.get(entry.position, consumer) is not consumer:
                    continue  # it is shown again if that consumer leaves
                del self.ready[entry.position]
                self._tidy(lane)
                if entry.flags & FLAG_PERSISTENT and not entry.flags & FLAG_HANDED:
                    entry.flags |= FLAG_HANDED
                    effects.durable.entries[entry.key] = entry
                turn.give_unless_expired(consumer, entry)
            else:
                break
            if not looking.complete:
                if not looking.scanning:
                    looking.scanning = True
                    effects.scans.append(Scan(consumer.id, self.id, lane.number, looking.through, self.memory.window))
                break
        return consumer.next_number - first

    def _tidy(self, lane: Lane) -> None:
        """Positions whose entry was taken out of turn must not pile up."""
        if len(lane.heap) > 2 * len(self.ready) + 64:
            lane.heap = [position for position in lane.heap if position in self.ready]
            heapify(lane.heap)

    # Message groups.

    def _may_take(self, consumer: Consumer, entry: Entry) -> bool:
        """Whether the group of a message is this consumer's; a group that is nobody's becomes its own."""
        search = consumer.search
        key = (None if search is None else search.selector.text, entry.group)
        owner = self.groups.get(key)
        if owner is None:
            self.groups[key] = consumer
            consumer.groups.add(key)
            return True
        return owner is consumer

    def _reserve(self, entry: Entry) -> bool:
        """Keep a message for the consumer that has its group; returns False where as many are kept as may be."""
        self.ready[entry.position] = entry
        if self.kept >= self.memory.window:
            heappush(entry.lane.heap, entry.position)
            return False
        self._keep(self.groups[None, entry.group], entry)
        return True

    def _keep(self, owner: Consumer, entry: Entry) -> None:
        self.kept += 1
        heappush(owner.reserved, (entry.lane.number, entry.position))

    # Selectors.

    def look(self, look: Look, wants: Callable[[Selector], bool], is_late: Callable[[], bool]) -> bool:
        """Those who search look at a message that came in or came back, if it is still there.

        Args:
            look: at what, and who has looked already.
            wants: asks a selector.
            is_late: asked now and then; once it returns True, the others are left for another call.

        Returns:
            Whether all have looked.
        """
        entry = look.entry
        if entry.position not in self.ready:
            return True
        window = self.memory.window
        lane = entry.lane.number
        answers: dict[str, bool] = {}  # many consumers may have the same selector
        at_once = selectors_at_once(entry.size)
        consumers: Iterable[Consumer] = self.searching
        if look.through:
            consumers = [each for each in consumers if each.id > look.through]
        for consumer in consumers:
            search = consumer.search
            if search is None:
                continue
            if not search.lane(lane).look(entry.position, window):
                self.offer(consumer)  # a scan will come to it
                continue
            text = search.selector.text
            wanted = answers.get(text)
            if wanted is None:
                if len(answers) % at_once == 0 and is_late():
                    return False
                wanted = answers[text] = wants(search.selector)
            if wanted:
                search.add(lane, entry.position)
                self.offer(consumer)
            look.through = consumer.id
        return True

    def scanned(
        self, consumer: Consumer, lane_number: int, through: int, found: Iterable[RawEntry], complete: bool
    ) -> None:
        """What a scan has found.

        Args:
            consumer: whose, attached.
            lane_number: of the scan.
            through: the last position that was looked at.
            found: what the selector wants of it.
            complete: whether there is nothing behind it.
        """
        search = consumer.search
        assert search is not None
        looking = search.lane(lane_number)
        looking.scanned(through, complete)
        lane = self._lane(lane_number)
        for raw in found:
            if raw.position > lane.loaded_through and raw.position not in lane.early:
                self._bring_in(raw, lane)
                lane.early.add(raw.position)
            if raw.position in self.ready:
                search.add(lane_number, raw.position)
        self.offer(consumer)

    def _lane(self, number: int) -> Lane:
        """The lane of this number; what the counters do not know of may still be in the store."""
        return self._by_number.get(number) or self._add_lane(Lane(number, at_end=False))

    def _bring_in(self, raw: RawEntry, lane: Lane) -> None:
        """Make an entry in memory of one that was only in the store."""
        count = raw.delivery_count
        may_have_been_delivered = raw.position <= lane.restart_cursor or raw.flags & FLAG_HANDED
        if may_have_been_delivered and raw.flags & FLAG_PERSISTENT:
            self.suspects[raw.position] = Suspect.COUNTED if count else Suspect.UNCOUNTED
            count = max(1, count)  # before the restart
        lane.behind -= 1
        self._behind_bytes -= raw.size
        self.ready[raw.position] = _entry_of(raw, lane, count)
        heappush(lane.heap, raw.position)

    def loaded(self, load: Load, entries: Iterable[RawEntry], corrupt: int, complete: bool) -> int:
        """Entries that were asked for have come.

        Args:
            load: the question.
            entries: in order of position, as the stores have them, with the changes of this cycle.
            corrupt: how many could not be trusted, and are in quarantine now.
            complete: whether there is nothing behind the last one.

        Returns:
            How many entries the counters had too many (below 0: too few), where the lane has been read to its end.
        """
        lane = self._lane(load.lane)
        lane.loading = False
        if load.after != lane.loaded_through:
            return 0  # the window was dropped meanwhile: the next dispatch asks again
        for raw in entries:
            if raw.position in lane.early:
                lane.early.discard(raw.position)
            else:
                self._bring_in(raw, lane)
            lane.loaded_through = raw.position
        if corrupt:
            self._uncount(lane, corrupt)
        if not complete:
            return 0
        lane.at_end = True
        lane.early.clear()
        wrong = lane.behind
        if wrong:
            self._uncount(lane, wrong)
        if self._behind_bytes and not self.delayed.behind and all(each.at_end for each in self.lanes):
            self._uncount_bytes()
        return wrong

    def lost(self, lane: int, entries: int) -> None:
        """So many entries behind the window of a lane could not be trusted, and are in quarantine now."""
        self._uncount(self._lane(lane), entries)

    def recounted(self, counters: Counters) -> None:
        """Take over what the durable store has, between two cycles: entries of it were damaged.

        None of these is in memory.
        """
        stored = {lane.lane: lane.stored for lane in counters.lanes}
        for lane in (*self.lanes, self.delayed):
            if wrong := lane.stored - stored.get(lane.number, 0):
                self._uncount(lane, wrong)
        size = self.stored_bytes - counters.stored_bytes
        self.stored_bytes -= size
        self.bytes -= size
        self._behind_bytes -= size
        self.counters_due = True

    def in_memory(self, lane: int, position: int) -> Entry | None:
        """The entry at a position, where it waits in memory or a consumer holds it."""
        entry = self.ready.get(position) or self.resting.get(position)
        if entry is None:
            entry = next((each for each in self._in_hands() if each.position == position), None)
        return entry if entry is not None and entry.lane.number == lane else None

    def _uncount(self, lane: Lane, entries: int) -> None:
        """So many entries that were counted as behind ``loaded_through`` are not there (below 0: too few were).

        The counters of a store that is damaged may be anything.
        """
        lane.behind -= entries
        self.depth = max(0, self.depth - entries)
        if self.durable:
            lane.stored = max(0, lane.stored - entries)
            self.counters_due = True

    def _uncount_bytes(self) -> None:
        """Everything is in memory: what is still counted as behind is not there."""
        self.bytes = max(0, self.bytes - self._behind_bytes)
        if self.durable:
            self.stored_bytes = max(0, self.stored_bytes - self._behind_bytes)
            self.counters_due = True
        self._behind_bytes = 0

    # Messages come back, or end.

    def give_back(self, entry: Entry, effects: Effects) -> None:
        """Make a message available again, at its original position."""
        self.ready[entry.position] = entry
        owner = self.groups.get((None, entry.group)) if entry.group else None
        if owner is not None and owner.reserved:
            self._keep(owner, entry)  # ahead of what is kept for its consumer already
            self.offer(owner)
        else:
            heappush(entry.lane.heap, entry.position)
        if self.searching:
            self._arrived(entry, effects)

    def release(self, entry: Entry, effects: Effects) -> None:
        """Make a message available again that nobody has looked at."""
        if entry.flags & FLAG_HANDED and not entry.delivery_count:
            entry.flags &= ~FLAG_HANDED
            effects.durable.entries[entry.key] = entry
        self.give_back(entry, effects)

    def give_back_to(self, entry: Entry, consumer: Consumer | None, effects: Effects) -> None:
        """Keep a message for the consumer whose listener failed to process it: it comes next.

        It is for everybody where that consumer has gone (None), where others are not served for an exclusive one, or
        where as many are kept as may be.
        """
        if consumer is None or self.kept >= self.memory.window or not self.is_served(consumer):
            self.give_back(entry, effects)
            return
        self.ready[entry.position] = entry
        self.kept_for[entry.position] = consumer
        self._keep(consumer, entry)
        self.offer(consumer)

    def count(self, entry: Entry, deliveries: int, effects: Effects) -> None:
        """Count so many failed deliveries more."""
        entry.delivery_count += deliveries
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry

    def take_in_hand(self, entry: Entry, effects: Effects) -> bool:
        """Count the delivery of what may have ended the process, before the application sees it.

        Returns:
            False where as many have failed as may: it is to be set aside instead.
        """
        suspect = self.suspects.get(entry.position)
        most = self.max_deliveries
        if suspect is Suspect.COUNTED:
            if most is not None and entry.delivery_count >= most:
                return False
            self.suspects[entry.position] = Suspect.IN_HAND
        elif suspect is Suspect.UNCOUNTED:
            self.suspects[entry.position] = Suspect.FIRST_IN_HAND
        else:
            return True
        self.count(entry, 1, effects)
        return True

    def out_of_hand(self, entry: Entry, *, seen: bool) -> bool:
        """A delivery has ended, and not in an acceptance; returns whether it was counted when it began."""
        suspect = self.suspects.get(entry.position)
        if suspect is None or suspect is Suspect.UNCOUNTED or suspect is Suspect.COUNTED:
            return False
        first = suspect is Suspect.FIRST_IN_HAND and not seen
        self.suspects[entry.position] = Suspect.UNCOUNTED if first else Suspect.COUNTED
        return True

    def uncount(self, position: int, failures: int | None, effects: Effects) -> bool:
        """Take back the last failed delivery of what waits in memory.

        Args:
            position: of the message.
            failures: how many deliveries had failed before that one; None: any number.
            effects: of the decision.

        Returns:
            Whether there is such a message, and that delivery counts.
        """
        entry = self.ready.get(position) or self.resting.get(position)
        if entry is None or not entry.delivery_count or failures not in (None, entry.delivery_count - 1):
            return False
        if self.resting.take(position) is not None:
            self.give_back(entry, effects)
        entry.delivery_count -= 1
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry
        return True

    def forget(self, entry: Entry, effects: Effects, *, keep_message: bool = False) -> None:
        """Remove an entry; with ``keep_message`` another place takes the message over."""
        flags = entry.flags
        lane = entry.lane
        if self.resting.failures:
            self.resting.forget(entry.position)
        if self.suspects:
            self.suspects.pop(entry.position, None)
        if flags & FLAG_PERSISTENT:
            batch = effects.durable
            if lane.stored:
                lane.stored -= 1
            if (left := self.stored_bytes - entry.size) >= 0:
                self.stored_bytes = left
            self.counters_due = True
        else:
            batch = effects.volatile
        batch.entries[entry.key] = None
        if entry.position > lane.loaded_through:
            lane.early.discard(entry.position)
            effects.touches_unloaded = True
        if self.depth:
            self.depth -= 1
        if (left := self.bytes - entry.size) >= 0:
            self.bytes = left
        if entry.expires_at_ms and lane is not self.delayed:
            batch.put("schedule", schedule_key(entry.expires_at_ms, KIND_EXPIRE, entry.key), None)
        if flags & FLAG_ANNOTATED:
            annotations = batch.tables.get("annotations", {}).get(entry.key)
            if annotations is not None:
                effects.taken_annotations[entry.key] = annotations
            batch.put("annotations", entry.key, None)
        if keep_message:
            return
        if flags & FLAG_SHARED:
            batch.unreferenced.append(entry.number)
        else:
            batch.gone.append(entry.number)

    def find(self, raw: RawEntry, effects: Effects) -> Entry | None:
        """The entry of a record that a store has in this cycle, taken out of what is ready.

        Args:
            raw: as the store has it; read in this cycle.
            effects: what the cycle has changed so far.

        Returns:
            None where a consumer holds it, or where the cycle has ended or moved it already.  An entry that was not in
            memory is made, and does not count as behind the window any more.
        """
        key = entry_key(raw.queue, raw.lane, raw.position)
        for changed in (effects.durable.entries, effects.volatile.entries):
            if key in changed and changed[key] is None:
                return None
        if raw.lane == DELAYED_LANE:
            return self._from_behind(raw, self.delayed)
        lane = self._lane(raw.lane)
        if raw.position > lane.loaded_through and raw.position not in lane.early:
            return self._from_behind(raw, lane)
        entry = self.ready.pop(raw.position, None) or self.resting.take(raw.position)
        if entry is not None:
            self._tidy(lane)  # where nobody consumes, positions without an entry would pile up
        return entry

    def _from_behind(self, raw: RawEntry, lane: Lane) -> Entry:
        lane.behind -= 1
        self._behind_bytes -= raw.size
        return _entry_of(raw, lane, raw.delivery_count)

    def now_due(self, entry: Entry, effects: Effects) -> Entry:
        """Give a delayed message its place at the end of its lane."""
        self.forget(entry, effects, keep_message=True)
        lane = Lane(lane_of_delayed(entry.flags))
        return self.adopt(entry, lane, entry.flags & 0xFF, entry.expires_at_ms, entry.delivery_count, effects)

    # What is kept beside the entries.

    def end_run(self) -> bool:
        """Nothing is in anybody's hands, and what has failed says so itself.

        Returns whether counters are to be noted.
        """
        for lane in self.lanes:
            if lane.cursor != lane.restart_cursor:
                lane.cursor = lane.restart_cursor
                self.counters_due = True
        return self.counters_due

    def counters(self) -> Counters:
        """What a restart must know."""
        lanes = [LaneCounters(lane.number, lane.stored, lane.cursor) for lane in (*self.lanes, self.delayed)]
        return Counters(
            max(self.next_position, self.reserved),
            self.stored_bytes,
            tuple(lane for lane in lanes if lane.stored or lane.cursor),
        )

    @property
    def in_hand(self) -> int:
        """Messages that consumers hold."""
        return sum([len(consumer.unsettled) for consumer in (*self.consumers, *self.leaving)])

    @property
    def is_loading(self) -> bool:
        """Whether entries are on their way into memory."""
        return any(lane.loading for lane in self.lanes)


class _Turn:
    """One dispatch: what it hands out, and to whom."""

    __slots__ = ("_most", "_queue", "_waiting", "effects", "expired", "left", "now_ms", "out")

    def __init__(self, queue: QueueState, now_ms: int, effects: Effects) -> None:
        self._queue = queue
        self._most = queue.memory.most_unsettled(queue.max_unsettled)
        self._waiting = queue.resting.holders  #: consumers that wait with a message that rests
        self.now_ms = now_ms
        self.effects = effects
        self.left = queue.memory.cycle_handouts - effects.handouts  #: messages that may still be handed out
        self.expired: list[Entry] = []
        self.out: dict[Consumer, list[Outgoing]] = {}

    def room_of(self, consumer: Consumer) -> int:
        """How many messages a consumer may still get."""
        if consumer.credit <= 0 or consumer.room_bytes <= 0 or consumer in self._waiting:
            return 0
        if consumer.credit + len(consumer.unsettled) <= self._most:
            return consumer.credit
        queue = self._queue
        if self._most < queue.max_unsettled:
            queue.memory.limited[consumer] = queue
        return self._most - len(consumer.unsettled)

    def messages_of(self, consumer: Consumer) -> list[Outgoing]:
        """What a consumer gets."""
        messages = self.out.get(consumer)
        if messages is None:
            messages = self.out[consumer] = []
        return messages

    def give_unless_expired(self, consumer: Consumer, entry: Entry) -> None:
        """Hand out one message, which is in nobody's hands."""
        if entry.expires_at_ms and entry.expires_at_ms <= self.now_ms:
            self.expired.append(entry)
        else:
            self.give(consumer, entry)

    def give(self, consumer: Consumer, entry: Entry) -> None:
        """Hand out one message that has not expired."""
        number = consumer.next_number
        consumer.next_number = number + 1
        consumer.credit -= 1
        self.left -= 1
        consumer.room_bytes -= entry.size
        self.messages_of(consumer).append(
            Outgoing(number, entry.position, entry.delivery_count, entry.number, entry.flags, entry.key)
        )
        if consumer.presettled:
            self._queue.forget(entry, self.effects)
            return
        consumer.unsettled[number] = entry
        lane = entry.lane
        if consumer.search is None and entry.position > lane.cursor and entry.flags & FLAG_PERSISTENT:
            lane.cursor = entry.position
            self._queue.counters_due = True


def _entry_of(raw: RawEntry, lane: Lane, delivery_count: int) -> Entry:
    key = entry_key(raw.queue, raw.lane, raw.position)
    flags, expires_at_ms = raw.flags, raw.expires_at_ms
    return Entry(key, lane, raw.position, raw.number, delivery_count, flags, expires_at_ms, raw.size, raw.group)
