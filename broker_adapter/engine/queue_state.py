"""One queue's rules: positions, order, credit, redelivery, expiry.  No I/O, clock, thread or lock.

Theory of operation
    A queue has up to ten *lanes*, one for each priority, the most urgent first.  Delivery order is (lane, position);
    positions strictly increase over the whole queue and are never used again.

    Only a window of a lane is in memory.  ``Lane.heap`` holds the positions that are ready, ``QueueState.ready`` their
    entries.  All entries up to ``Lane.loaded_through`` are in memory or in a consumer's hands; ``Lane.unloaded`` more
    stand behind it in the store.  An entry that comes back (released, failed) is pushed onto the heap again, and so
    returns to its original position.  A heap may hold positions whose entry is gone; they are skipped.

    ``Lane.cursor`` is the last durable position that may have been handed out.  It is stored with the commit that the
    delivery waits for, so that after a crash the messages up to it are marked as redelivered.

    A queue only records changes in the batch of the store that the entry lives in; the broker writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import NewMessage
from broker_adapter.engine.effects import Effects, Load, Outgoing, StoreBatch
from broker_adapter.engine.records import (
    DELAYED_LANE,
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    delayed_flags,
    entry_key,
    lane_of_delayed,
    schedule_key,
)

#: Positions that a restart skips where messages that did not survive it had used them.
POSITION_RESERVE = 65_536


class Entry:
    """A message's place in one queue."""

    __slots__ = ("delivery_count", "expires_at_ms", "flags", "key", "lane", "number", "position", "size")

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
    ) -> None:
        self.key = key
        self.lane = lane
        self.position = position
        self.number = number
        self.delivery_count = delivery_count
        self.flags = flags
        self.expires_at_ms = expires_at_ms
        self.size = size


class Lane:
    """The messages of one priority."""

    __slots__ = ("cursor", "heap", "loaded_through", "loading", "number", "restart_cursor", "stored", "unloaded")

    def __init__(self, number: int, counters: LaneCounters | None = None) -> None:
        self.number = number
        self.heap: list[int] = []
        self.loaded_through = 0
        self.unloaded = counters.stored if counters else 0
        self.loading = False
        self.stored = counters.stored if counters else 0  #: entries of it in the durable store
        self.cursor = counters.cursor if counters else 0
        self.restart_cursor = self.cursor


class Consumer:
    """Who takes from a queue, what it may still get, and what it holds."""

    __slots__ = (
        "attached",
        "client",
        "credit",
        "id",
        "next_number",
        "presettled",
        "queue",
        "room_bytes",
        "sink",
        "slice_bytes",
        "subscription",
        "unsettled",
    )

    def __init__(
        self, number: int, client: int, queue: QueueState, sink: Any, presettled: bool, slice_bytes: int | None
    ) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
        self.presettled = presettled
        self.credit = 0
        self.slice_bytes = inf if slice_bytes is None else slice_bytes
        self.room_bytes = self.slice_bytes  #: what is left of the slice; below 0 by a part of the last message
        self.next_number = 1
        self.unsettled: dict[int, Entry] = {}
        self.attached = True

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
        "sink",
        "slice_bytes",
        "through",
    )

    def __init__(self, number: int, client: int, queue: QueueState, sink: Any, slice_bytes: int | None) -> None:
        self.id = number
        self.client = client
        self.queue = queue
        self.sink = sink
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
        "_by_number",
        "bytes",
        "consumers",
        "counters_due",
        "delayed",
        "depth",
        "destination",
        "durable",
        "held",
        "id",
        "label",
        "lanes",
        "max_deliveries",
        "max_unsettled",
        "next_position",
        "owner",
        "ready",
        "record",
        "reserved",
        "stored_bytes",
        "window",
    )

    def __init__(
        self,
        number: int,
        destination: Destination,
        record: CatalogRecord,
        *,
        durable: bool,
        window: int,
        max_deliveries: int | None,
        max_unsettled: int,
        counters: Counters | None = None,
        owner: int | None = None,
    ) -> None:
        self.id = number
        self.destination = destination
        self.label = record.name
        self.record = record
        self.durable = durable
        self.window = window
        self.max_deliveries = max_deliveries
        self.max_unsettled = max_unsettled
        self.owner = owner  #: the client of a temporary queue
        self.next_position = counters.next_position if counters else 1
        self.reserved = self.next_position
        self.stored_bytes = counters.stored_bytes if counters else 0
        self.bytes = self.stored_bytes
        self.lanes: list[Lane] = []
        self._by_number: dict[int, Lane] = {}
        self.delayed = Lane(DELAYED_LANE)
        self.depth = 0
        for lane in counters.lanes if counters else ():
            self.depth += lane.stored
            if lane.lane == DELAYED_LANE:
                self.delayed = Lane(DELAYED_LANE, lane)
            else:
                self._add_lane(Lane(lane.lane, lane))
        self.ready: dict[int, Entry] = {}
        self.consumers: deque[Consumer] = deque()
        self.held: deque[Any] = deque()
        self.counters_due = False

    def __repr__(self) -> str:
        return f"<QueueState {self.label!r}, {self.depth} messages, {len(self.consumers)} consumers>"

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
        entry = Entry(key, lane, position, number, 0, flags, message.expires_at_ms or 0, size)
        self._add(entry, batch)
        if lane is self.delayed:
            batch.put("schedule", schedule_key(due_ms or 0, KIND_DELIVER, key), b"")

    def adopt(
        self, entry: Entry, lane: Lane, flags: int, expires_at_ms: int, delivery_count: int, effects: Effects
    ) -> Entry:
        """Take over a message that another place gave up (``forget`` with ``keep_message``), at a new position."""
        position = self.next_position
        self.next_position = position + 1
        lane = self._by_number.get(lane.number) or self._add_lane(Lane(lane.number))
        key = entry_key(self.id, lane.number, position)
        moved = Entry(key, lane, position, entry.number, delivery_count, flags, expires_at_ms, entry.size)
        self._add(moved, effects.durable if flags & FLAG_PERSISTENT else effects.volatile)
        return moved

    def _add(self, entry: Entry, batch: StoreBatch) -> None:
        lane = entry.lane
        batch.entries[entry.key] = entry
        self.depth += 1
        self.bytes += entry.size
        if entry.flags & FLAG_PERSISTENT:
            lane.stored += 1
            self.stored_bytes += entry.size
            self.counters_due = True
        if lane is self.delayed:
            return
        if entry.expires_at_ms:
            batch.put("schedule", schedule_key(entry.expires_at_ms, KIND_EXPIRE, entry.key), b"")
        if lane.unloaded or len(self.ready) >= self.window:
            lane.unloaded += 1
        else:
            lane.loaded_through = entry.position
            self.ready[entry.position] = entry
            heappush(lane.heap, entry.position)

    def _add_lane(self, lane: Lane) -> Lane:
        self._by_number[lane.number] = lane
        self.lanes = sorted(self._by_number.values(), key=lambda each: each.number)
        return lane

    # Messages go out.

    def dispatch(self, now_ms: int, effects: Effects) -> list[Entry]:
        """Hand out what the consumers have credit for, one message each in turn.  Returns what has expired."""
        expired: list[Entry] = []
        consumers = self.consumers
        out: dict[Consumer, list[Outgoing]] = {}
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            if consumer.credit <= 0 or consumer.room_bytes <= 0 or len(consumer.unsettled) >= self.max_unsettled:
                consumers.rotate(-1)
                idle += 1
                continue
            idle = 0
            messages = out.get(consumer)
            if messages is None:
                messages = out[consumer] = []
            # A lone consumer takes all it may at once; several take turns.
            room = min(consumer.credit, self.max_unsettled - len(consumer.unsettled)) if len(consumers) == 1 else 1
            taken = self._hand_out(consumer, room, messages, expired, now_ms, effects)
            if taken < room:
                break
            consumers.rotate(-1)
        for consumer, messages in out.items():
            if messages:
                effects.deliveries.append((consumer, messages))
        return expired

    def _hand_out(
        self,
        consumer: Consumer,
        room: int,
        messages: list[Outgoing],
        expired: list[Entry],
        now_ms: int,
        effects: Effects,
    ) -> int:
        ready, unsettled = self.ready, consumer.unsettled
        room_bytes = consumer.room_bytes
        number = consumer.next_number
        first = number
        last = number + room
        for lane in self.lanes:
            heap = lane.heap
            while number < last:
                if lane.unloaded and (not heap or heap[0] > lane.loaded_through):
                    if not lane.loading:
                        lane.loading = True
                        effects.loads.append(Load(self.id, lane.number, lane.loaded_through, self.window))
                    last = number  # nothing may overtake what is on its way into memory
                    break
                if not heap:
                    break
                entry = ready.pop(heappop(heap), None)
                if entry is None:
                    continue
                if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
                    expired.append(entry)
                    continue
                position = entry.position
                messages.append(Outgoing(number, position, entry.delivery_count, entry.number, entry.flags, entry.key))
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
        return number - first

    def loaded(
        self, lane_number: int, entries: Iterable[RawEntry], corrupt: int, complete: bool, settled: bool
    ) -> bool:
        """Entries that ``Load`` asked for have come.

        Args:
            lane_number: of the load.
            entries: in order of position.
            corrupt: how many could not be trusted, and are in quarantine now.
            complete: whether the stores have nothing behind the last one.
            settled: whether the stores have seen every change (nothing waits for a commit).

        Returns:
            Whether more is to come after the next commit.
        """
        lane = self._by_number[lane_number]
        lane.loading = False
        for raw in entries:
            count = raw.delivery_count
            if count == 0 and raw.position <= lane.restart_cursor and raw.flags & FLAG_PERSISTENT:
                count = 1  # it may have been delivered before the restart
            key = entry_key(raw.queue, raw.lane, raw.position)
            entry = Entry(key, lane, raw.position, raw.number, count, raw.flags, raw.expires_at_ms, raw.size)
            lane.unloaded -= 1
            lane.loaded_through = raw.position
            self.ready[raw.position] = entry
            heappush(lane.heap, raw.position)
        if corrupt:
            lane.unloaded -= corrupt
            lane.stored -= corrupt
            self.depth -= corrupt
            self.counters_due = True
        if complete and lane.unloaded > 0:
            if not settled:
                lane.loading = True
                return True
            # The counters promise what the store does not have: the store is right.
            self.depth -= lane.unloaded
            lane.stored -= min(lane.stored, lane.unloaded)
            lane.unloaded = 0
            self.counters_due = True
        lane.unloaded = max(lane.unloaded, 0)
        return False

    # Messages come back, or end.

    def give_back(self, entry: Entry) -> None:
        """Make a message available again, at its original position."""
        self.ready[entry.position] = entry
        heappush(entry.lane.heap, entry.position)

    def raise_count(self, entry: Entry, effects: Effects) -> None:
        """Count a failed delivery."""
        entry.delivery_count += 1
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry

    def forget(self, entry: Entry, effects: Effects, *, keep_message: bool = False) -> None:
        """Remove an entry; with ``keep_message`` another place takes the message over."""
        flags = entry.flags
        if flags & FLAG_PERSISTENT:
            batch = effects.durable
            entry.lane.stored -= 1
            self.stored_bytes -= entry.size
            self.counters_due = True
        else:
            batch = effects.volatile
        batch.entries[entry.key] = None
        self.depth -= 1
        self.bytes -= entry.size
        if entry.expires_at_ms and entry.lane is not self.delayed:
            batch.put("schedule", schedule_key(entry.expires_at_ms, KIND_EXPIRE, entry.key), None)
        if flags & FLAG_ANNOTATED:
            batch.put("annotations", entry.key, None)
        if keep_message:
            return
        if flags & FLAG_SHARED:
            batch.unreferenced.append(entry.number)
        else:
            batch.gone.append(entry.number)

    def find(self, raw: RawEntry) -> Entry | None:
        """The entry of a stored record, taken out of what is ready; None where a consumer holds it.

        An entry that was not in memory is made, and no longer counts as unloaded.
        """
        lane = self.delayed if raw.lane == DELAYED_LANE else self._by_number[raw.lane]
        if lane is self.delayed or raw.position > lane.loaded_through:
            if lane is not self.delayed:
                lane.unloaded -= 1
            key = entry_key(raw.queue, raw.lane, raw.position)
            return Entry(
                key, lane, raw.position, raw.number, raw.delivery_count, raw.flags, raw.expires_at_ms, raw.size
            )
        entry = self.ready.pop(raw.position, None)
        if entry is not None and len(lane.heap) > 2 * len(self.ready) + 64:
            # Positions without an entry would pile up where nobody consumes.
            lane.heap = [position for position in lane.heap if position in self.ready]
            heapify(lane.heap)
        return entry

    def now_due(self, entry: Entry, effects: Effects) -> Entry:
        """Give a delayed message its place at the end of its lane."""
        self.forget(entry, effects, keep_message=True)
        lane = Lane(lane_of_delayed(entry.flags))
        return self.adopt(entry, lane, entry.flags & 0xFF, entry.expires_at_ms, entry.delivery_count, effects)

    # What is kept beside the entries.

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
        return sum(len(consumer.unsettled) for consumer in self.consumers)

    @property
    def is_loading(self) -> bool:
        """Whether entries are on their way into memory."""
        return any(lane.loading for lane in self.lanes)
