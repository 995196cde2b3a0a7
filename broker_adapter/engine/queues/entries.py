"""The entries of one queue: where each has its place, which of them are in memory, and how they are counted.

Theory of operation
    A queue has up to ten *lanes*, one for each priority, the most urgent first.  Delivery order is (lane, position);
    positions strictly increase over the whole queue and are never used again.

    Only a window of a lane is in memory.  ``Lane.heap`` holds the positions that are ready, ``QueueEntries.ready``
    their entries.  All entries up to ``Lane.loaded_through`` are in memory or in a consumer's hands; unless the lane is
    ``at_end``, more may stand behind it in the stores.  ``at_end`` is set only when the stores have been read to the
    end of the lane.  ``Lane.behind`` counts what stands there; it never decides whether something does, and is checked
    whenever the lane has been read to its end.  A heap may hold positions whose entry is gone; they are skipped.

    A consumer with a selector takes entries out of order, also such as stand behind the window.  These come into memory
    *early*: ``Lane.early`` has the positions behind ``loaded_through`` that are in memory or in a consumer's hands, and
    do not count as behind it.

    An entry that is to end or to move, and that no consumer holds, is read from the stores in the same cycle
    (``find``), and what the cycle has changed already is looked up in its batches: nothing that was read in an earlier
    cycle is trusted.

    ``Lane.cursor`` is the last durable position that may have been handed out.  It is stored with the commit that the
    delivery waits for, so that after a crash the messages up to it are marked as redelivered.  One of them may be what
    ended the process, so they are ``suspects``.

    A queue only records changes in the batch of the store that the entry lives in; the broker writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from heapq import heapify, heappush
from typing import Any

from broker_adapter.engine.commands.effects import Effects, Load, StoreBatch
from broker_adapter.engine.queues.backoff import Backoff
from broker_adapter.engine.queues.memory import QueueMemory
from broker_adapter.engine.queues.undeliverable import Undeliverable
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    FLAG_ANNOTATED,
    FLAG_HANDED,
    FLAG_JOINED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    Counters,
    LaneCounters,
    RawEntry,
    delayed_flags,
    entry_key,
    schedule_key,
    schedule_line,
)

_new = tuple.__new__  #: what a named tuple calls, without a function of Python


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

    UNCOUNTED = "nothing ever: it was handed out before a crash, and may have been seen"
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


class QueueEntries:
    """The entries of a queue.

    Attributes:
        id: the number that names the queue in the stores.
        durable: whether its persistent messages survive a restart.
        memory: shared with the engine's other queues.
        next_position: of the next message.
        reserved: the position from which a restart goes on, if it is higher.
        depth: how many entries there are.
        bytes: of all messages.
        stored_bytes: of those in the durable store.
        lanes: by priority.
        delayed: messages that are not due yet.
        ready: entries in memory that no consumer holds, by position.
        kept_for: position of what is ready and not for every consumer → the one that failed on it, or its group.
        backoff: messages whose redelivery is delayed.
        undeliverable: messages that some consumers do not take.
        suspects: position → what is counted of a message that may have ended the process.
        counters_due: whether the counters are to be stored.
        is_delivered: whether messages go to consumers, so that their deliveries are counted.
    """

    is_delivered = True

    __slots__ = (
        "_behind_bytes",
        "_by_number",
        "backoff",
        "bytes",
        "counters_due",
        "delayed",
        "depth",
        "durable",
        "id",
        "kept_for",
        "lanes",
        "memory",
        "next_position",
        "ready",
        "reserved",
        "stored_bytes",
        "suspects",
        "undeliverable",
    )

    def __init__(
        self,
        number: int,
        *,
        durable: bool,
        memory: QueueMemory[Any, Any],
        counters: Counters | None,
        lanes: Iterable[int],
    ) -> None:
        """The entries of a queue, new or as the store has them; the arguments are those of ``QueueState``."""
        self.id = number
        self.durable = durable
        self.memory = memory
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
        self.kept_for: dict[int, Any] = {}
        self.suspects: dict[int, Suspect] = {}
        self.backoff: Backoff[Entry, Any] = Backoff()
        self.undeliverable: Undeliverable[Any] = Undeliverable()
        self.counters_due = False

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
                batch.put("schedule", *schedule_line(entry.expires_at_ms, KIND_EXPIRE, entry.key))
            if lane.at_end and len(self.ready) < self.memory.window:
                lane.loaded_through = entry.position
                self.ready[entry.position] = entry
                heappush(lane.heap, entry.position)
                return
            lane.at_end = False
        lane.behind += 1
        self._behind_bytes += entry.size

    def _add_all(self, lane: Lane, entries: Sequence[Entry], batch: StoreBatch) -> None:
        """``_add`` for new entries of one lane that follow each other, are due and never expire."""
        batch.entries.update([(entry.key, entry) for entry in entries])
        size = sum([entry.size for entry in entries])
        self.depth += len(entries)
        self.bytes += size
        if entries[0].flags & FLAG_PERSISTENT:
            lane.stored += len(entries)
            self.stored_bytes += size
            self.counters_due = True
        free = self.memory.window - len(self.ready) if lane.at_end else 0
        near = entries[: max(0, free)]
        if near:
            positions = [entry.position for entry in near]
            lane.loaded_through = positions[-1]
            self.ready.update(zip(positions, near, strict=True))
            lane.heap += positions  # which are above all that is in it
        if len(near) < len(entries):
            lane.at_end = False
            lane.behind += len(entries) - len(near)
            self._behind_bytes += sum([entry.size for entry in entries[len(near) :]])

    def _add_lane(self, lane: Lane) -> Lane:
        self._by_number[lane.number] = lane
        self.lanes = sorted(self._by_number.values(), key=lambda each: each.number)
        return lane

    def _lane(self, number: int) -> Lane:
        """The lane of this number; what the counters do not know of may still be in the store."""
        return self._by_number.get(number) or self._add_lane(Lane(number, at_end=False))

    def _lane_for(self, number: int) -> Lane:
        """The lane of this number for a message that comes in."""
        return self._by_number.get(number) or self._add_lane(Lane(number))

    def _put_behind(self, entry: Entry) -> None:
        """An entry leaves the memory; it is in its store."""
        entry.lane.at_end = False
        entry.lane.behind += 1
        self._behind_bytes += entry.size

    def _drop_early(self, effects: Effects) -> None:
        """No consumer searches any more: what came into memory for that is loaded again in its turn."""
        effects.touches_unloaded = True  # it may have changed in this cycle
        stay = self.undeliverable.refusers  # no load brings them to those that may have them
        for lane in self.lanes:
            early = [
                position
                for position in lane.early
                if position > lane.loaded_through
                and position in self.ready
                and position not in stay
                and position not in self.kept_for
            ]
            for position in early:
                self._put_behind(self.ready.pop(position))
            lane.early.difference_update(early)

    def first_waiting(self) -> int:
        """Return a position below which no message waits."""
        if self.delayed.behind:
            return 0
        delayed = [entry.position for entry in self.backoff.entries()]
        behind = [lane.loaded_through + 1 for lane in self.lanes if not lane.at_end]
        return min([*self.ready, *delayed, *behind], default=0)

    def ask_for_more(self, lane: Lane, effects: Effects) -> None:
        """Ask for the entries behind the window of a lane, if they are not on their way."""
        if not lane.loading:
            lane.loading = True
            effects.loads.append(Load(self.id, lane.number, lane.loaded_through, self.memory.window))

    def tidy(self, lane: Lane) -> None:
        """Drop the positions of entries that were taken out of turn, once there are many."""
        if len(lane.heap) > 2 * len(self.ready) + 64:
            lane.heap = [position for position in lane.heap if position in self.ready]
            heapify(lane.heap)

    def _bring_in(self, raw: RawEntry, lane: Lane) -> None:
        """Make an entry in memory of one that was only in the store."""
        count = raw.delivery_count
        may_have_been_delivered = raw.position <= lane.restart_cursor or raw.flags & FLAG_HANDED
        if may_have_been_delivered and raw.flags & FLAG_PERSISTENT:
            self.suspects[raw.position] = Suspect.COUNTED if count else Suspect.UNCOUNTED
            count = max(1, count)  # before the restart
        lane.behind -= 1
        self._behind_bytes -= raw.size
        self.ready[raw.position] = entry_of(raw, lane, count)
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

    def count(self, entry: Entry, deliveries: int, effects: Effects) -> None:
        """Count so many failed deliveries more."""
        entry.delivery_count += deliveries
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry

    def note_ended(self, entry: Entry, effects: Effects, failures: int | None = None) -> None:
        """Note that a message is processed, or set aside, of which a delivery had failed.

        Whoever had that delivery, and lost its connection, may say that it had acknowledged it.

        Args:
            entry: of the message.
            effects: of the decision.
            failures: before the delivery that processed it; None: as many as count.
        """
        effects.ended_again.append((self.id, entry.position, entry.delivery_count if failures is None else failures))

    def remove(self, entry: Entry, effects: Effects, *, keep_message: bool = False) -> None:
        """Remove an entry; with ``keep_message`` another place takes the message over."""
        flags = entry.flags
        lane = entry.lane
        if self.backoff.failures:
            self.backoff.stop_counting(entry.position)
        if self.suspects:
            self.suspects.pop(entry.position, None)
        if self.undeliverable.refusers:
            self.undeliverable.remove(entry.position)
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

    def put_off(self, entry: Entry, due_ms: int, effects: Effects) -> Entry:
        """Put a message that no consumer holds among those that are not due yet; returns its new entry."""
        self.remove(entry, effects, keep_message=True)
        position = self.next_position
        self.next_position = position + 1
        key = entry_key(self.id, DELAYED_LANE, position)
        flags = delayed_flags(entry.flags & ~FLAG_HANDED, entry.lane.number)
        fields = entry.number, entry.delivery_count, flags, entry.expires_at_ms, entry.size, entry.group
        moved = Entry(key, self.delayed, position, *fields)
        batch = effects.durable if flags & FLAG_PERSISTENT else effects.volatile
        self._add(moved, batch)
        batch.put("schedule", *schedule_line(due_ms, KIND_DELIVER, key))
        return moved

    def split_run(self, raws: Sequence[RawEntry], effects: Effects) -> tuple[list[RawEntry], list[RawEntry]]:
        """Those records that may be removed together, and those whose entries are to be found one by one.

        Together may go what stands behind the window of its lane, and was never delivered.

        Args:
            raws: as a store has them; read in this cycle.
            effects: what the cycle has changed so far.
        """
        if self.suspects or self.backoff.failures:
            return [], list(raws)
        changed, number = effects.durable.entries, self.id
        run, others = [], []
        lane_number, lane = -1, self.delayed
        for raw in raws:
            if raw.lane != lane_number and raw.lane != DELAYED_LANE:
                lane_number, lane = raw.lane, self._lane(raw.lane)
            position = raw.position
            if (
                raw.lane == lane_number
                and position > lane.loaded_through
                and raw.flags & ~(FLAG_JOINED | FLAG_SHARED) == FLAG_PERSISTENT
                and (not raw.delivery_count or not self.is_delivered)
                and position not in lane.early
                and entry_key(number, lane_number, position) not in changed
            ):
                run.append(raw)
            else:
                others.append(raw)
        return run, others

    def remove_run(self, run: Sequence[RawEntry], effects: Effects, *, keep_messages: bool = False) -> None:
        """Remove entries that ``split_run`` found; with ``keep_messages`` another place takes the messages over."""
        if not run:
            return
        batch, number = effects.durable, self.id
        counts: dict[int, int] = {}
        size = 0
        for raw in run:
            lane = raw.lane
            key = entry_key(number, lane, raw.position)
            batch.entries[key] = None
            counts[lane] = counts.get(lane, 0) + 1
            size += raw.size
            if raw.expires_at_ms:
                batch.put("schedule", schedule_key(raw.expires_at_ms, KIND_EXPIRE, key), None)
        if not keep_messages:
            batch.gone += [raw.number for raw in run if not raw.flags & FLAG_SHARED]
            batch.unreferenced += [raw.number for raw in run if raw.flags & FLAG_SHARED]
        for lane_number, count in counts.items():
            found = self._lane(lane_number)
            found.behind -= count
            found.stored = max(0, found.stored - count)
        self._behind_bytes -= size
        self.stored_bytes = max(0, self.stored_bytes - size)
        self.bytes = max(0, self.bytes - size)
        self.depth = max(0, self.depth - len(run))
        self.counters_due = True
        effects.touches_unloaded = True

    def add_behind(self, run: Iterable[RawEntry], effects: Effects) -> None:
        """Take persistent messages at new positions, behind what is in memory: lane by lane they are loaded later.

        Args:
            run: their records; the queue and the position of each are replaced.
            effects: of the decision.
        """
        batch, number, position = effects.durable, self.id, self.next_position
        first, size = position, 0
        lane_number, lane = -1, self.delayed
        for raw in run:
            if raw.lane != lane_number:
                lane_number = raw.lane
                lane = self._lane_for(lane_number)
                lane.at_end = False
            key = entry_key(number, lane_number, position)
            _, _, _, message, count, flags, expires_at_ms, length, group = raw
            batch.entries[key] = _new(
                RawEntry, (number, lane_number, position, message, count, flags, expires_at_ms, length, group)
            )
            lane.stored += 1
            lane.behind += 1
            position += 1
            size += length
            if expires_at_ms:
                batch.put("schedule", *schedule_line(expires_at_ms, KIND_EXPIRE, key))
        self.next_position = position
        self.depth += position - first
        self.bytes += size
        self.stored_bytes += size
        self._behind_bytes += size
        self.counters_due = True

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
        entry = self.ready.pop(raw.position, None) or self.backoff.take(raw.position)
        self.kept_for.pop(raw.position, None)
        if entry is not None:
            self.tidy(lane)  # without consumers, positions without an entry would pile up
        return entry

    def behind(self, raw: RawEntry, effects: Effects) -> Entry | None:
        """The entry of a record that stands behind the window of its lane, and stays there; to be counted.

        Args:
            raw: as the store has it; read in this cycle.
            effects: what the cycle has changed so far.
        """
        lane = self._lane(raw.lane)
        if raw.position <= lane.loaded_through or raw.position in lane.early:
            return None
        effects.touches_unloaded = True
        key = entry_key(raw.queue, raw.lane, raw.position)
        for changed in (effects.durable.entries, effects.volatile.entries):
            if key in changed:
                entry = changed[key]
                return entry if isinstance(entry, Entry) else None
        return entry_of(raw, lane, raw.delivery_count)

    def _from_behind(self, raw: RawEntry, lane: Lane) -> Entry:
        lane.behind -= 1
        self._behind_bytes -= raw.size
        return entry_of(raw, lane, raw.delivery_count)

    def end_run(self) -> bool:
        """No consumer holds anything, and what has failed is counted.

        Returns whether counters are to be noted.
        """
        for lane in self.lanes:
            if lane.cursor != lane.restart_cursor:
                lane.cursor = lane.restart_cursor
                self.counters_due = True
        return self.counters_due

    def counters(self) -> Counters:
        """Return what a restart must know."""
        lanes = [LaneCounters(lane.number, lane.stored, lane.cursor) for lane in (*self.lanes, self.delayed)]
        return Counters(
            max(self.next_position, self.reserved),
            self.stored_bytes,
            tuple(lane for lane in lanes if lane.stored or lane.cursor),
        )

    @property
    def is_loading(self) -> bool:
        """Whether entries are on their way into memory."""
        return any(lane.loading for lane in self.lanes)


def entry_of(raw: RawEntry, lane: Lane, delivery_count: int) -> Entry:
    """An entry in memory of a record."""
    key = entry_key(raw.queue, raw.lane, raw.position)
    flags, expires_at_ms = raw.flags, raw.expires_at_ms
    return Entry(key, lane, raw.position, raw.number, delivery_count, flags, expires_at_ms, raw.size, raw.group)
