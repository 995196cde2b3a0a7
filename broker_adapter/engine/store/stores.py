"""The two stores of an engine, read as one, and the cache of messages in front of the disk.

Persistent records are in the store on disk, where there is one; all other records are in the store in memory.
:class:`Stores` routes each read to the store that has the record, merges reads of both in the order of the call, and
commits the batches of one cycle.  It does not know the rules of the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain
from typing import Any

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects, StoreBatch
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    RawEntry,
    decode_annotations,
    entry_key,
    message_key,
)
from broker_adapter.engine.regions.stored_log import Records
from broker_adapter.engine.store.memory_store import MemoryStore
from broker_adapter.engine.store.port import (
    DurableStore,
    Loaded,
    Store,
    StoredColumns,
    by_lane_and_position,
    by_position,
)
from broker_adapter.engine.store.region_snapshots import RegionSnapshots
from broker_adapter.errors import ResourceAllocationException, StoreException
from broker_adapter.settings import EngineSettings

_log = logging.getLogger(f"holdfast.{__name__}")

#: Numbers of messages that are no longer in the cache, and still in the queue of those to be dropped.
_MOST_GONE = 10_000
#: What a message in the cache takes beside the bytes of its body.
_CACHED_BYTES = 330
#: Damaged messages that one line of the log names.
_NAMED = 10

Message = tuple[int, bytes]  #: message-format, payload


class Stores:
    """The store on disk, the store in memory, and the messages of the disk that are cached.

    Args:
        settings: the limits of the engine.
        disk: the store on disk, which is closed with this object; None: everything is in memory.

    Attributes:
        disk: as given.
        memory: the store in memory.
        region_snapshots: of regions, that clients read.
        due_ms: when the first item of both schedules is due, by the time of the day; None: there is none.
    """

    def __init__(self, settings: EngineSettings, disk: DurableStore | None) -> None:
        self.disk = disk
        self.memory = MemoryStore()
        self.region_snapshots = RegionSnapshots(settings, disk, self.memory)
        self.due_ms: int | None = None
        self._cache_limit = settings.message_cache_bytes
        self._cache: dict[int, c.NewMessage] = {}
        self._cache_bytes = 0
        self._cached: deque[int] = deque()  #: the numbers in the cache and of some that are gone, the oldest first
        self._not_set_aside: set[bytes] = set()  #: entries that cannot be trusted, for which there was no room

    def close(self) -> None:
        """Close the store on disk."""
        self.region_snapshots.drop_all()
        if self.disk is not None:
            self.disk.close()

    # Writing.

    def commit(self, effects: Effects) -> bool:
        """Commit the batches of a cycle; returns whether the disk has committed one.

        Raises:
            ResourceAllocationException: the disk is full; nothing was committed.
            StoreException: the batch for the disk cannot be written.
        """
        durable, volatile = effects.durable, effects.volatile
        has_committed = False
        if durable:
            if self.disk is None:
                raise StoreException("the rules put something durable into an engine without a disk")
            self._commit_to_disk(self.disk, durable)
            has_committed = True
            self._keep_in_cache(durable)
        if volatile:
            self.memory.commit(volatile)
        if durable.tables.get("schedule") or volatile.tables.get("schedule"):
            self.note_first_due()
        return has_committed

    def _commit_to_disk(self, disk: DurableStore, batch: StoreBatch) -> None:
        try:
            disk.commit(batch)
        except ResourceAllocationException:
            # As long as one is open, no page that was freed since is used again.
            dropped = self.region_snapshots.drop_all()
            if not dropped:
                raise
            _log.warning("! %d snapshots of regions are dropped, since the store has no room left", dropped)
            disk.commit(batch)

    def note_first_due(self) -> None:
        """Read when the first item of both schedules is due."""
        first = self.memory.first_due_ms()
        if self.disk is not None:
            on_disk = self.disk.first_due_ms()
            if first is None or (on_disk is not None and on_disk < first):
                first = on_disk
        self.due_ms = first

    def _keep_in_cache(self, batch: StoreBatch) -> None:
        cache, messages = self._cache, batch.messages
        if batch.behind:
            left_out = set(chain.from_iterable(batch.behind))
            messages = {number: message for number, message in messages.items() if number not in left_out}
        size = self._cache_bytes
        if messages:
            cache.update(messages)
            self._cached.extend(messages)
            size += sum([len(message.payload) for message in messages.values()]) + _CACHED_BYTES * len(messages)
        for number in batch.gone:
            message = cache.pop(number, None)
            if message is not None:
                size -= len(message.payload) + _CACHED_BYTES
        limit = self._cache_limit
        cached = self._cached
        while size > limit:
            # The first key of the dictionary would be found behind the places of all that are gone.
            message = cache.pop(cached.popleft(), None)
            if message is not None:
                size -= len(message.payload) + _CACHED_BYTES
        if len(cached) > 2 * len(cache) + _MOST_GONE:
            self._cached = deque(cache)
        self._cache_bytes = size

    @contextmanager
    def records(self) -> Iterator[Records]:
        """The records of regions and durable clients, as of the last commit: all are in one store."""
        if self.disk is None:
            yield self.memory.tables
            return
        with self.disk.snapshot() as found:
            yield found

    # Reading both stores as one.

    def load(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries of one lane whose positions are greater than ``after``."""
        if self.disk is None:
            return self.memory.load(queue, lane, after, limit)
        first = self.disk.load(queue, lane, after, limit)
        return _merged(first, self.memory.load(queue, lane, after, limit), by_lane_and_position, limit)

    def read_entries(self, queue: int, first: int, last: int, limit: int, most_bytes: int | None = None) -> Loaded:
        """Up to ``limit`` entries of a queue with positions in [first, last], by position, without delayed ones.

        With ``most_bytes`` what is behind the entry whose message exceeds it may be left out, too.
        """
        if self.disk is None:
            return self.memory.read_entries(queue, first, last, limit)
        on_disk = self.disk.read_entries(queue, first, last, limit, most_bytes)
        return _merged(on_disk, self.memory.read_entries(queue, first, last, limit), by_position, limit)

    def read_columns(self, queue: int, first: int, last: int, limit: int, most_bytes: int) -> StoredColumns | None:
        """Messages with positions in [first, last], by field; None where some are to be read one by one.

        Args:
            queue: its number.
            first, last: positions.
            limit: of messages.
            most_bytes: of their payloads; one message may have more.
        """
        if self.disk is None or self.memory.read_entries(queue, first, last, 1).entries:
            return None
        return self.disk.read_columns(queue, first, last, limit, most_bytes)

    def browse(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries in the order of delivery, behind (lane, position), without delayed ones."""
        if self.disk is None:
            return self.memory.browse(queue, lane, after, limit)
        first = self.disk.browse(queue, lane, after, limit)
        return _merged(first, self.memory.browse(queue, lane, after, limit), by_lane_and_position, limit)

    def due(self, now_ms: int, limit: int) -> list[tuple[int, RawEntry | None, bytes]]:
        """Items of the schedules whose time has come: up to ``limit`` of each store, those of the disk first."""
        items = [] if self.disk is None else self.disk.due(now_ms, limit)
        return items + self.memory.due(now_ms, limit)

    def bodies(self, wanted: Sequence[tuple[int, int]], pending: Effects | None = None) -> list[Message | None]:
        """(format, payload) for each (message, flags); None where the record cannot be trusted.

        Args:
            wanted: numbers and flags of the messages.
            pending: what is decided and not committed yet, where that counts as well.
        """
        cache = self._cache
        memory = self.memory
        if pending is None and self.disk is not None and all(flags & FLAG_PERSISTENT for _, flags in wanted):
            numbers = [number for number, _ in wanted]
            if cache.keys().isdisjoint(numbers):
                return list(self.disk.read_messages(numbers))
        bodies: list[Message | None] = []
        missing: list[int] = []
        for index, (number, flags) in enumerate(wanted):
            if pending is not None:
                batch = pending.durable if flags & FLAG_PERSISTENT else pending.volatile
                message = batch.messages.get(number)
                if message is not None:
                    bodies.append((message.format, message.payload))
                    continue
            if flags & FLAG_PERSISTENT:
                message = cache.get(number)
                if message is None:
                    missing.append(index)
                    bodies.append(None)
                else:
                    bodies.append((message.format, message.payload))
            else:
                bodies.append(memory.message(number))
        if missing and self.disk is not None:
            for index, body in zip(missing, self.disk.read_messages([wanted[i][0] for i in missing]), strict=True):
                bodies[index] = body
        return bodies

    def annotations_of(self, entry: RawEntry) -> dict[str, Any] | None:
        """Return what the engine has added to a message."""
        if not entry.flags & FLAG_ANNOTATED:
            return None
        return self.annotations(entry_key(entry.queue, entry.lane, entry.position), entry.flags)

    def annotations(self, key: bytes, flags: int, pending: Effects | None = None) -> dict[str, Any] | None:
        """Return what the engine has added to the message of an entry that is marked as annotated.

        Args:
            key: of the entry.
            flags: of the entry.
            pending: what is decided and not committed yet, where that counts as well.
        """
        if pending is not None:
            batch = pending.durable if flags & FLAG_PERSISTENT else pending.volatile
            value = batch.tables.get("annotations", {}).get(key) or pending.taken_annotations.get(key)
            if value is not None:
                return decode_annotations(key, value)
        store: Store = self.disk if self.disk is not None and flags & FLAG_PERSISTENT else self.memory
        return store.annotations(key)

    def look_up(self, numbers: LastNumbers, name: str) -> None:
        """Tell ``numbers`` the last number of a name from the disk, where it needs that."""
        if self.disk is not None and numbers.needs(name):
            numbers.learn(name, self.disk.last_number(numbers.table, name))

    # Quarantine.

    @property
    def in_quarantine(self) -> int:
        """How many records are in quarantine; without a store on disk, none."""
        return 0 if self.disk is None else self.disk.quarantined()

    def set_aside(self, corrupt: Sequence[bytes]) -> list[bytes]:
        """Put entries that cannot be trusted aside, where there is room; returns those that were not met before."""
        if self.disk is None:
            return []
        new = [key for key in corrupt if key not in self._not_set_aside]
        if self.disk.quarantine("entries", corrupt):
            self._not_set_aside.difference_update(corrupt)
        else:
            self._not_set_aside.update(corrupt)
        return new

    def set_body_aside(self, message: int) -> bool:
        """Put the body of a message aside, which is the largest part of it; returns False where there is no room."""
        return self.disk is None or self.disk.quarantine("messages", [message_key(message)])

    def set_messages_aside(self, messages: Sequence[tuple[int, bytes]]) -> bool:
        """Put messages aside that cannot be delivered, each with the key of its entry.

        Returns:
            False where there is no room for them, and they stay.
        """
        if self.disk is None or not messages:
            return True
        records = [("messages", message_key(message)) for message, _ in messages]
        if not self.disk.quarantine_all([*records, *(("entries", key) for _, key in messages)]):
            return False
        numbers = ", ".join(str(message) for message, _ in messages[:_NAMED])
        more = f" and {len(messages) - _NAMED} more" if len(messages) > _NAMED else ""
        _log.error("! message %s%s cannot be trusted; in quarantine, and not delivered", numbers, more)
        return True


def _merged(first: Loaded, second: Loaded, order: Callable[[RawEntry], Any], limit: int) -> Loaded:
    """The entries of both stores in one order; ``first``: those of the disk."""
    if not second.entries and second.complete:
        return first
    if not first.entries and first.complete and not first.corrupt:
        return second
    # Behind the last entry of a store that has more, nothing is known of that store.
    ends = [order(part.entries[-1]) for part in (first, second) if not part.complete]
    entries = merge(first.entries, second.entries, key=order)
    known = [entry for entry in entries if not ends or order(entry) <= min(ends)]
    return Loaded(known[:limit], first.corrupt, not ends and len(known) <= limit)
