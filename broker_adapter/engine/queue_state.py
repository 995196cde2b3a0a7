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

    A consumer with a selector (:mod:`search`) takes entries out of order, also such as stand behind the window.  These
    come into memory *early*: ``Lane.early`` has the positions behind ``loaded_through`` that are in memory or in a
    consumer's hands, and no longer count as unloaded.

    The messages of a *group* go to one consumer for as long as it is there.  Who comes across a message of another's
    group reserves it for that one.  Consumers with different selectors have groups of their own.

    A queue only records changes in the batch of the store that the entry lives in; the broker writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import NewMessage
from broker_adapter.engine.effects import Effects, Load, Outgoing, Scan, StoreBatch
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
from broker_adapter.selector import Selector

#: Positions that a restart skips where messages that did not survive it had used them.
POSITION_RESERVE = 65_536


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


class Lane:
    """The messages of one priority."""

    __slots__ = (
        "cursor",
        "early",
        "heap",
        "loaded_through",
        "loading",
        "number",
        "restart_cursor",
        "stored",
        "unloaded",
    )

    def __init__(self, number: int, counters: LaneCounters | None = None) -> None:
        self.number = number
        self.heap: list[int] = []
        self.loaded_through = 0
        self.early: set[int] = set()  #: positions behind ``loaded_through`` that do not count as unloaded
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
        "exclusive",
        "id",
        "next_number",
        "presettled",
        "queue",
        "reserved",
        "room_bytes",
        "search",
        "sink",
        "slice_bytes",
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
        self.exclusive = exclusive
        self.search = None if selector is None else Search(selector)
        self.reserved: list[tuple[int, int]] = []  #: a heap of (lane, position): messages of its groups

    @property
    def is_waiting(self) -> bool:
        """Whether messages for it may be on their way into memory."""
        return self.queue.is_loading or (self.search is not None and self.search.is_scanning)

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
        "_by_number",
        "bytes",
        "consumers",
        "counters_due",
        "delayed",
        "depth",
        "destination",
        "durable",
        "exclusive",
        "groups",
        "held",
        "id",
        "kept",
        "label",
        "lanes",
        "max_deliveries",
        "max_unsettled",
        "next_position",
        "owner",
        "ready",
        "record",
        "reserved",
        "resting",
        "searching",
        "selector",
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
        self.exclusive: list[Consumer] = []  #: in the order in which they came; the first one gets everything
        self.searching: list[Consumer] = []  #: those with a selector
        self.selector: Selector | None = None  #: of a subscription: what it wants of its topic
        self.groups: dict[tuple[str | None, int], Consumer] = {}  #: (selector, group) → whose messages these are
        self.kept = 0  #: messages that are reserved for the consumers of their groups
        self.resting: Resting[Entry] = Resting()
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
            effects.looks.append((self, entry))
            return
        for consumer in self.searching:
            if consumer.search is not None:
                consumer.search.lane(entry.lane.number).put_off()

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

    # Consumers come and go.

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a consumer take part."""
        self.consumers.append(consumer)
        if consumer.exclusive:
            self.exclusive.append(consumer)
        if consumer.search is not None:
            self.searching.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer takes part no more: what was kept for it is for others."""
        self.consumers.remove(consumer)
        if consumer.exclusive:
            self.exclusive.remove(consumer)
        for lane_number, position in consumer.reserved:
            heappush(self._by_number[lane_number].heap, position)
        self.kept -= len(consumer.reserved)
        consumer.reserved = []
        selector = None
        if consumer.search is not None:
            selector = consumer.search.selector.text
            consumer.search = None
            self.searching.remove(consumer)
            if not self.searching:
                self._forget_early()
        groups = [key for key, owner in self.groups.items() if owner is consumer]
        for key in groups:
            del self.groups[key]
        if groups and selector is not None:
            for other in self.searching:
                if other.search is not None and other.search.selector.text == selector:
                    other.search.restart()  # it passed over what was in these groups

    def _forget_early(self) -> None:
        """Nobody searches any more: what came into memory for that comes again in its turn."""
        for lane in self.lanes:
            early = [position for position in lane.early if position > lane.loaded_through and position in self.ready]
            for position in early:
                del self.ready[position]
                lane.early.discard(position)
            lane.unloaded += len(early)

    # Messages go out.

    def dispatch(self, now_ms: int, effects: Effects) -> list[Entry]:
        """Hand out what the consumers have credit for, one message each in turn.  Returns what has expired."""
        expired: list[Entry] = []
        consumers = deque(self.exclusive[:1]) if self.exclusive else self.consumers
        out: dict[Consumer, list[Outgoing]] = {}
        idle = 0
        while idle < len(consumers):
            consumer = consumers[0]
            if consumer.credit <= 0 or consumer.room_bytes <= 0 or len(consumer.unsettled) >= self.max_unsettled:
                consumers.rotate(-1)
                idle += 1
                continue
            messages = out.get(consumer)
            if messages is None:
                messages = out[consumer] = []
            # A lone consumer takes all it may at once; several take turns.
            room = min(consumer.credit, self.max_unsettled - len(consumer.unsettled)) if len(consumers) == 1 else 1
            kept = self.kept
            taken = self._hand_out(consumer, room, messages, expired, now_ms, effects)
            if taken < room and not self.searching and not self.groups:
                break
            idle = 0 if taken or self.kept > kept else idle + 1
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
        """Hand out up to ``room`` messages; returns how many."""
        first = consumer.next_number
        last = first + room
        give = partial(self._give, consumer, messages, expired, now_ms, effects)
        if consumer.search is not None:
            self._hand_out_found(consumer, consumer.search, last, give, effects)
        else:
            while consumer.reserved and consumer.next_number < last and consumer.room_bytes > 0:
                self.kept -= 1
                entry = self.ready.pop(heappop(consumer.reserved)[1], None)
                if entry is not None:
                    give(entry)
            if consumer.next_number < last and consumer.room_bytes > 0:
                self._hand_out_next(consumer, last, messages, expired, now_ms, effects)
        taken = consumer.next_number - first
        consumer.credit -= taken
        return taken

    def _hand_out_next(
        self,
        consumer: Consumer,
        last: int,
        messages: list[Outgoing],
        expired: list[Entry],
        now_ms: int,
        effects: Effects,
    ) -> None:
        """Hand out what comes next, up to the delivery before ``last``.  Here most messages go: it calls little."""
        ready, unsettled = self.ready, consumer.unsettled
        room_bytes = consumer.room_bytes
        number = consumer.next_number
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
                if entry.group and not self._may_take(consumer, entry):
                    if not self._reserve(entry):
                        last = number
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

    def _hand_out_found(
        self, consumer: Consumer, search: Search, last: int, give: Callable[[Entry], None], effects: Effects
    ) -> None:
        """Hand out what a selector has found, and search on where nothing is left."""
        for lane in self.lanes:
            looking = search.lane(lane.number)
            while consumer.next_number < last and consumer.room_bytes > 0:
                if not looking.found:
                    break
                entry = self.ready.get(heappop(looking.found))
                if entry is None or (entry.group and not self._may_take(consumer, entry)):
                    continue
                del self.ready[entry.position]
                if entry.flags & FLAG_PERSISTENT and not entry.flags & FLAG_HANDED:
                    entry.flags |= FLAG_HANDED
                    effects.durable.entries[entry.key] = entry
                give(entry)
            else:
                return
            if not looking.complete:
                if not looking.scanning:
                    looking.scanning = True
                    effects.scans.append(Scan(consumer.id, self.id, lane.number, looking.through, self.window))
                return

    def _give(
        self,
        consumer: Consumer,
        messages: list[Outgoing],
        expired: list[Entry],
        now_ms: int,
        effects: Effects,
        entry: Entry,
    ) -> None:
        """Hand out one message, which is in nobody's hands."""
        if entry.expires_at_ms and entry.expires_at_ms <= now_ms:
            expired.append(entry)
            return
        number = consumer.next_number
        consumer.next_number = number + 1
        consumer.room_bytes -= entry.size
        messages.append(Outgoing(number, entry.position, entry.delivery_count, entry.number, entry.flags, entry.key))
        if consumer.presettled:
            self.forget(entry, effects)
        else:
            consumer.unsettled[number] = entry

    # Message groups.

    def _may_take(self, consumer: Consumer, entry: Entry) -> bool:
        """Whether the group of a message is this consumer's; a group that is nobody's becomes its own."""
        search = consumer.search
        key = (None if search is None else search.selector.text, entry.group)
        return self.groups.setdefault(key, consumer) is consumer

    def _reserve(self, entry: Entry) -> bool:
        """Keep a message for the consumer that has its group; returns False where as many are kept as may be."""
        self.ready[entry.position] = entry
        if self.kept >= self.window:
            heappush(entry.lane.heap, entry.position)
            return False
        self.kept += 1
        heappush(self.groups[None, entry.group].reserved, (entry.lane.number, entry.position))
        return True

    # Selectors.

    def look(self, entry: Entry, wants: Callable[[Selector], bool]) -> None:
        """Those who search look at a message that came in or came back, if it is still there."""
        if entry.position not in self.ready:
            return
        for consumer in self.searching:
            search = consumer.search
            if (
                search is not None
                and search.lane(entry.lane.number).look(entry.position, self.window)
                and wants(search.selector)
            ):
                search.add(entry.lane.number, entry.position)

    def scanned(
        self, search: Search, lane_number: int, through: int, found: Iterable[RawEntry], complete: bool
    ) -> None:
        """What a scan has found.

        Args:
            search: whose.
            lane_number: of the scan.
            through: the last position that was looked at.
            found: what the selector wants of it.
            complete: whether there is nothing behind it.
        """
        looking = search.lane(lane_number)
        looking.scanning = False
        looking.through = max(looking.through, through)
        looking.complete = complete
        lane = self._by_number[lane_number]
        for raw in found:
            if raw.position > lane.loaded_through and raw.position not in lane.early:
                self._bring_in(raw, lane)
                lane.early.add(raw.position)
            if raw.position in self.ready:
                search.add(lane_number, raw.position)

    def _bring_in(self, raw: RawEntry, lane: Lane) -> None:
        """Make an entry in memory of one that was only in the store."""
        count = raw.delivery_count
        may_have_been_delivered = raw.position <= lane.restart_cursor or raw.flags & FLAG_HANDED
        if count == 0 and may_have_been_delivered and raw.flags & FLAG_PERSISTENT:
            count = 1  # before the restart
        lane.unloaded -= 1
        self.ready[raw.position] = _entry_of(raw, lane, count)
        heappush(lane.heap, raw.position)

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
            if raw.position not in lane.early:
                self._bring_in(raw, lane)
            lane.early.discard(raw.position)
            lane.loaded_through = raw.position
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

    def give_back(self, entry: Entry, effects: Effects) -> None:
        """Make a message available again, at its original position."""
        self.ready[entry.position] = entry
        heappush(entry.lane.heap, entry.position)
        if self.searching:
            self._arrived(entry, effects)

    def raise_count(self, entry: Entry, effects: Effects) -> None:
        """Count a failed delivery."""
        entry.delivery_count += 1
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry

    def forgive(self, position: int, effects: Effects) -> bool:
        """Take back the last failed delivery of what waits in memory; returns whether there is such a message."""
        entry = self.ready.get(position)
        if entry is None:
            entry = self.resting.take(position)
            if entry is not None:
                self.give_back(entry, effects)
        if entry is None or not entry.delivery_count:
            return False
        entry.delivery_count -= 1
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry
        return True

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
        if entry.lane.early and entry.position in entry.lane.early:
            entry.lane.early.discard(entry.position)
            effects.touches_unloaded = True
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
        if raw.lane == DELAYED_LANE:
            return _entry_of(raw, self.delayed, raw.delivery_count)
        lane = self._by_number[raw.lane]
        if raw.position > lane.loaded_through and raw.position not in lane.early:
            lane.unloaded -= 1
            return _entry_of(raw, lane, raw.delivery_count)
        entry = self.ready.pop(raw.position, None) or self.resting.take(raw.position)
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


def _entry_of(raw: RawEntry, lane: Lane, delivery_count: int) -> Entry:
    key = entry_key(raw.queue, raw.lane, raw.position)
    flags, expires_at_ms = raw.flags, raw.expires_at_ms
    return Entry(key, lane, raw.position, raw.number, delivery_count, flags, expires_at_ms, raw.size, raw.group)
