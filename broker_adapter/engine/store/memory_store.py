"""Records in memory: what need not survive a restart, and the whole of an engine without a directory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, merge
from typing import Any

from broker_adapter.engine.commands.effects import EntryRecord, StoreBatch
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    EVENT_TABLES,
    RawEntry,
    decode_annotations,
    decode_schedule_key,
    encode_entry,
    encode_message,
    encode_reference,
    entry_key,
    message_key,
    schedule_line,
    unpack_entry_key,
)
from broker_adapter.engine.store.memory_tables import MemoryTables
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES, Loaded


class _LaneRecords:
    """The entries of one lane by position.  New positions come in order; a deleted one leaves a hole for a while."""

    __slots__ = ("by_position", "positions", "start")

    def __init__(self) -> None:
        self.by_position: dict[int, RawEntry] = {}
        self.positions: list[int] = []
        self.start = 0  #: index of the first position that may still be there

    def put(self, entry: RawEntry) -> None:
        position = entry.position
        if position not in self.by_position:
            if self.positions and position <= self.positions[-1]:
                index = bisect_left(self.positions, position)
                if self.positions[index] != position:
                    self.positions.insert(index, position)
                self.start = min(self.start, index)
            else:
                self.positions.append(position)
        self.by_position[position] = entry

    def delete(self, position: int) -> None:
        if self.by_position.pop(position, None) is None:
            return
        positions, by_position = self.positions, self.by_position
        while self.start < len(positions) and positions[self.start] not in by_position:
            self.start += 1
        if self.start > 1024 and self.start * 2 > len(positions):
            del positions[: self.start]
            self.start = 0
        elif len(positions) > 2 * len(by_position) + 1024:
            self.positions = sorted(by_position)
            self.start = 0

    def after(self, position: int) -> Iterator[RawEntry]:
        positions = self.positions
        for index in range(bisect_right(positions, position, self.start), len(positions)):
            entry = self.by_position.get(positions[index])
            if entry is not None:
                yield entry


class MemoryStore:
    """The store port on dictionaries.

    Attributes:
        bytes: about what the messages and their places take.
        tables: those of regions and durable clients.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._messages: dict[int, tuple[int, bytes]] = {}
        self._references: dict[int, int] = {}
        self._lanes: dict[int, dict[int, _LaneRecords]] = {}
        self._annotations: dict[bytes, bytes] = {}
        self._schedule: list[bytes] = []  #: a heap; those not in ``_scheduled`` are gone
        self._scheduled: set[bytes] = set()
        self.tables = MemoryTables()

    def commit(self, batch: StoreBatch) -> None:
        """Apply the batch; at once, since there is no disk."""
        messages = self._messages
        for number, message in batch.messages.items():
            messages[number] = (message.format, message.payload)
            self.bytes += len(message.payload) + MESSAGE_BYTES
        for number, count in batch.references:
            self._references[number] = count
        for key, entry in batch.entries.items():
            self._change(key, entry)
        for number in batch.unreferenced:
            left = self._references.get(number, 1) - 1
            if left > 0:
                self._references[number] = left
            else:
                self._references.pop(number, None)
                self._remove_message(number)
        for number in batch.gone:
            self._remove_message(number)
        for key, value in batch.tables.get("annotations", {}).items():
            if value is None:
                self._annotations.pop(key, None)
            else:
                self._annotations[key] = value
        for table, changes in batch.tables.items():
            if table in EVENT_TABLES:
                self.bytes += self.tables.apply(table, changes)
        for key, value in batch.tables.get("schedule", {}).items():
            if value is None:
                self._scheduled.discard(key)
            elif key not in self._scheduled:
                self._scheduled.add(key)
                heappush(self._schedule, key)
        if len(self._schedule) > 2 * len(self._scheduled) + 1024:
            self._schedule = sorted(self._scheduled)  # a sorted list is a heap

    def _change(self, key: bytes, entry: EntryRecord | None) -> None:
        queue, lane, position = unpack_entry_key(key)
        lanes = self._lanes.get(queue)
        if lanes is None:
            if entry is None:
                return
            lanes = self._lanes[queue] = {}
        records = lanes.get(lane)
        if records is None:
            if entry is None:
                return
            records = lanes[lane] = _LaneRecords()
        if entry is not None:
            self.bytes += 0 if position in records.by_position else PLACE_BYTES
            records.put(
                RawEntry(
                    queue,
                    lane,
                    position,
                    entry.number,
                    entry.delivery_count,
                    entry.flags,
                    entry.expires_at_ms,
                    entry.size,
                    entry.group,
                )
            )
            return
        self.bytes -= PLACE_BYTES if position in records.by_position else 0
        records.delete(position)
        if not records.by_position:
            del lanes[lane]
            if not lanes:
                del self._lanes[queue]

    def _remove_message(self, number: int) -> None:
        message = self._messages.pop(number, None)
        if message is not None:
            self.bytes -= len(message[1]) + MESSAGE_BYTES

    def load(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries of a lane behind ``after``."""
        records = self._lanes.get(queue, {}).get(lane)
        return _first(records.after(after) if records else iter(()), limit)

    def read_entries(self, queue: int, first: int, last: int, limit: int, most_bytes: int | None = None) -> Loaded:
        """Up to ``limit`` entries of a queue with positions in [first, last], by position, without delayed ones."""
        lanes = self._lanes.get(queue, {})
        sources = [records.after(first - 1) for number, records in sorted(lanes.items()) if number != DELAYED_LANE]
        found = merge(*sources, key=lambda entry: entry.position)
        return _first((entry for entry in found if entry.position <= last), limit)

    def browse(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries in the order of delivery, behind (lane, position), without delayed ones."""
        entries: list[RawEntry] = []
        for number, records in sorted(self._lanes.get(queue, {}).items()):
            if number < lane or number == DELAYED_LANE:
                continue
            for entry in records.after(after if number == lane else 0):
                if len(entries) == limit:
                    return Loaded(entries, [], False)
                entries.append(entry)
        return Loaded(entries, [], True)

    def read_messages(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes] | None]:
        """(format, payload) of each message."""
        return map(self._messages.get, numbers)

    def message(self, number: int) -> tuple[int, bytes] | None:
        """(format, payload) of one message."""
        return self._messages.get(number)

    def all_messages(self) -> dict[int, tuple[int, bytes]]:
        """(format, payload) of every message by its number, as they are now."""
        return dict(self._messages)

    def entries_of(self, queue: int, lane: int) -> dict[int, RawEntry]:
        """The entries of a lane by their positions, as they are now."""
        records = self._lanes.get(queue, {}).get(lane)
        return {} if records is None else dict(records.by_position)

    def annotations(self, key: bytes) -> dict[str, Any] | None:
        """The annotations of an entry."""
        value = self._annotations.get(key)
        return None if value is None else decode_annotations(key, value)

    def due(self, now_ms: int, limit: int) -> list[tuple[int, RawEntry | None, bytes]]:
        """Up to ``limit`` (kind, entry, schedule key) whose time has come."""
        items: list[tuple[int, RawEntry | None, bytes]] = []
        while len(items) < limit:
            first = self.first_due_ms()
            if first is None or first > now_ms:
                break
            key = heappop(self._schedule)
            _, kind, of_entry = decode_schedule_key(key)
            queue, lane, position = unpack_entry_key(of_entry)
            records = self._lanes.get(queue, {}).get(lane)
            items.append((kind, records.by_position.get(position) if records else None, key))
        for _, _, key in items:  # they stay until a batch deletes them
            heappush(self._schedule, key)
        return items

    def first_due_ms(self) -> int | None:
        """Return when the next entry of the schedule is due."""
        while self._schedule and self._schedule[0] not in self._scheduled:
            heappop(self._schedule)
        return decode_schedule_key(self._schedule[0])[0] if self._schedule else None

    def quarantine(self, table: str, keys: Iterable[bytes]) -> bool:
        """Records in memory have no checksum: there is nothing to move."""
        return True

    def snapshot(self) -> Snapshot:
        """All records as they are now, in the form of a store on disk, for a check."""
        entries: dict[bytes, bytes] = {}
        for lanes in self._lanes.values():
            for records in lanes.values():
                for each in records.by_position.values():
                    key = entry_key(each.queue, each.lane, each.position)
                    fields = each.number, each.delivery_count, each.flags, each.expires_at_ms, each.size, each.group
                    entries[key] = encode_entry(key, *fields)
        messages = {message_key(number): encode_message(number, *each) for number, each in self._messages.items()}
        counts = [(message_key(number), count) for number, count in self._references.items()]
        references = {key: encode_reference(key, count) for key, count in counts}
        schedule = dict(schedule_line(*decode_schedule_key(key)) for key in self._scheduled)
        tables = {"messages": messages, "entries": entries, "references": references, **self.tables.as_mappings()}
        return Snapshot({**tables, "annotations": dict(self._annotations), "schedule": schedule})

    def close(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


class Snapshot:
    """The records of a store in memory; see :class:`broker_adapter.engine.check.findings.Tables`."""

    persistent = False

    def __init__(self, tables: Mapping[str, Mapping[bytes, bytes]]) -> None:
        self._tables = tables

    def items(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table, in the order of their keys."""
        yield from sorted(self._tables.get(table, {}).items())

    def get(self, table: str, key: bytes) -> bytes | None:
        """One record."""
        return self._tables.get(table, {}).get(key)

    def count(self, table: str) -> int:
        """Return how many records a table has."""
        return len(self._tables.get(table, {}))


def _first(entries: Iterator[RawEntry], limit: int) -> Loaded:
    found: list[RawEntry] = []
    for entry in entries:
        if len(found) == limit:
            return Loaded(found, [], False)
        found.append(entry)
    return Loaded(found, [], True)
