"""Snapshots of regions: all keys and values as of one position of the events, whatever is put meanwhile.

Theory of operation
    A snapshot of a store on disk is a transaction of LMDB that only reads; it is opened between two cycles, so it has
    all that is committed, and nothing else.  It costs no memory.  As long as it is open, LMDB uses no page again that
    was freed since, so the file grows by what is written meanwhile.  A snapshot of a store in memory is a copy of the
    tables' pointers: the records themselves are shared.

    A client names its snapshot by a token, from any connection, and as often as it likes: tasks of a job that run in
    many processes, and again.  A reader may never close one, so there are limits: of their number, of the time
    for which one is not used, and of its age.  A store that has no room for a commit drops all of them first.

    A token says which position its snapshot has, and in which run of the engine.  So one that is gone, after a restart
    say, is as good as the present as long as no event has happened behind that position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from broker_adapter.engine.records.layout import (
    MAX_KEY_BYTES,
    RawEntry,
    decode_entry,
    decode_message,
    entry_key,
    message_key,
)
from broker_adapter.engine.regions.event_records import LANE
from broker_adapter.engine.regions.key_records import region_key
from broker_adapter.engine.regions.stored_key import StoredKey, key_text, records_behind, stored_key
from broker_adapter.engine.store.memory_store import MemoryStore
from broker_adapter.engine.store.memory_tables import MemoryTables
from broker_adapter.engine.store.port import DurableStore, StoreSnapshot
from broker_adapter.errors import InvalidDestinationException, ResourceAllocationException, StoreCorruptException
from broker_adapter.settings import EngineSettings

_log = logging.getLogger(f"holdfast.{__name__}")

#: Snapshots that are open at once; beyond it the one that was not used for longest is dropped, if that is long enough.
MAX_SNAPSHOTS: Final = 64
#: For how long it must not have been used then.
_UNUSED_MS: Final = 30_000
#: Ages at which one is dropped, however often it is used, in times of the limit for one that is not used.
_AGES: Final = 12

Message = tuple[int, bytes]


class _Source(Protocol):
    """Where a snapshot's records are."""

    def items_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The records of keys, from one on."""

    def get(self, name: bytes) -> bytes | None:
        """The record of a key."""

    def entry(self, region: int, place: int) -> RawEntry | None:
        """The place of a value; None where it cannot be trusted."""

    def message(self, number: int) -> Message | None:
        """A message; None where it cannot be trusted."""


class _DiskSource:
    """The records of a store on disk, in a transaction."""

    def __init__(self, records: StoreSnapshot) -> None:
        self._records = records

    def items_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._records.items_from("keys", first)

    def get(self, name: bytes) -> bytes | None:
        return self._records.get("keys", name)

    def entry(self, region: int, place: int) -> RawEntry | None:
        key = entry_key(region, LANE, place)
        value = self._records.get("entries", key)
        try:
            return None if value is None else decode_entry(key, value)
        except StoreCorruptException as error:
            _log.error("! %s; its key has no value in a snapshot", error)
            return None

    def message(self, number: int) -> Message | None:
        value = self._records.get("messages", message_key(number))
        try:
            return None if value is None else decode_message(number, value)
        except StoreCorruptException:
            return None


class _MemorySource:
    """The records of a store in memory, as they were."""

    def __init__(self, store: MemoryStore, region: int) -> None:
        self._keys: MemoryTables = store.tables.copy_of("keys")
        self._entries: Mapping[int, RawEntry] = store.entries_of(region, LANE)
        self._messages: Mapping[int, Message] = store.all_messages()

    def items_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._keys.items_from("keys", first)

    def get(self, name: bytes) -> bytes | None:
        return self._keys.get("keys", name)

    def entry(self, region: int, place: int) -> RawEntry | None:
        return self._entries.get(place)

    def message(self, number: int) -> Message | None:
        return self._messages.get(number)


class RegionSnapshot:
    """One region as of one position.

    Args:
        region: its number.
        position: of the last event that it has.
        source: its records.
        close: lets go of them.
        elapsed_ms: now, by the monotonic clock.

    Attributes:
        region: as given.
        position: as given.
        opened_ms: when it was opened, by the monotonic clock.
        used_ms: when it was used last, by the same clock.
    """

    def __init__(
        self, region: int, position: int, source: _Source, close: Callable[[], object], elapsed_ms: int
    ) -> None:
        self.region = region
        self.position = position
        self.opened_ms = self.used_ms = elapsed_ms
        self._source = source
        self.close = close

    def key(self, region: int, key: str) -> StoredKey:
        """Return what is known of a key of the region."""
        name = region_key(region, key)
        value = self._source.get(name) if len(name) <= MAX_KEY_BYTES else None
        return StoredKey(key, None, None) if value is None else self._stored(name, value)

    def keys_behind(self, region: int, after: str | None, limit: int, *, places: bool = True) -> list[StoredKey]:
        """Up to ``limit`` keys of the region behind one (None: from the first on), as ``Reader.keys_behind``."""
        return [self._stored(name, value, places=places) for name, value in self._items(after, limit)]

    def key_ahead(self, after: str | None, count: int) -> tuple[int, str | None]:
        """The ``count``-th key behind one.

        Args:
            after: the one; None: from the first on.
            count: at least 1.

        Returns:
            How many keys were passed, at most ``count``, and the last of them; None where there is none.
        """
        passed, last = 0, None
        for name, _ in self._items(after, count):
            passed, last = passed + 1, name
        return passed, None if last is None else key_text(self.region, last)

    def values(self, keys: Sequence[StoredKey]) -> list[Message | None]:
        """The value of each key; None where it has none, or a record that cannot be trusted."""
        return [None if each.entry is None else self._source.message(each.entry.number) for each in keys]

    def _items(self, after: str | None, limit: int) -> Iterator[tuple[bytes, bytes]]:
        return records_behind(self._source.items_from, self.region, after, limit)

    def _stored(self, name: bytes, value: bytes, *, places: bool = True) -> StoredKey:
        return stored_key(self.region, name, value, partial(self._source.entry, self.region) if places else None)


class RegionSnapshots:
    """The snapshots that are open, by their tokens.  For one thread at a time, as the store is.

    Args:
        settings: the limits of the engine.
        disk: the store on disk; None: all is in memory.
        memory: the store in memory.
    """

    def __init__(self, settings: EngineSettings, disk: DurableStore | None, memory: MemoryStore) -> None:
        self._most_unused_ms = int(settings.region_snapshot_seconds * 1000)
        self._disk = disk
        self._memory = memory
        self._number = 0
        self.by_token: dict[str, RegionSnapshot] = {}  #: those that were used last at the end

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self.by_token)

    def open(self, region: int, position: int, run: str, elapsed_ms: int) -> str:
        """Open one of what is committed now.

        Args:
            region: its number.
            position: of the last event.
            run: of the engine, in which that is the position.
            elapsed_ms: now, by the monotonic clock.

        Returns:
            Its token.

        Raises:
            ResourceAllocationException: too many are open and in use.
        """
        self.expire(elapsed_ms)
        if len(self.by_token) >= MAX_SNAPSHOTS:
            token, unused = next(iter(self.by_token.items()))
            if elapsed_ms - unused.used_ms < _UNUSED_MS:
                raise ResourceAllocationException(
                    f"{MAX_SNAPSHOTS} snapshots of regions are being read, which is the limit; try again later"
                )
            self.drop(token)
        if self._disk is None:
            made = RegionSnapshot(region, position, _MemorySource(self._memory, region), lambda: None, elapsed_ms)
        else:
            held = self._disk.snapshot()
            source = _DiskSource(held.__enter__())
            made = RegionSnapshot(region, position, source, partial(held.__exit__, None, None, None), elapsed_ms)
        self._number += 1
        token = f"{position}/{self._number}/{run}"
        self.by_token[token] = made
        return token

    def find(self, token: str, region: int, elapsed_ms: int) -> RegionSnapshot | None:
        """The snapshot of a token; None where it is gone, or is one of another region."""
        self.expire(elapsed_ms)
        found = self.by_token.get(token)
        if found is None or found.region != region:
            return None
        del self.by_token[token]
        self.by_token[token] = found
        found.used_ms = elapsed_ms
        return found

    def drop(self, token: str) -> bool:
        """Close one; returns whether it was open."""
        found = self.by_token.pop(token, None)
        if found is not None:
            found.close()
        return found is not None

    def expire(self, elapsed_ms: int) -> None:
        """Close those that are too old, or were not used for too long."""
        if not self.by_token:
            return
        unused, aged = elapsed_ms - self._most_unused_ms, elapsed_ms - _AGES * self._most_unused_ms
        for token in [token for token, each in self.by_token.items() if each.used_ms < unused or each.opened_ms < aged]:
            self.drop(token)

    def disown(self) -> None:
        """In a child made by fork: they are the parent's, and must not be closed here."""
        self.by_token = {}

    def drop_all(self) -> int:
        """Close all; returns how many these were."""
        count = len(self.by_token)
        for token in list(self.by_token):
            self.drop(token)
        return count


def position_of_token(token: str) -> tuple[int, str]:
    """(position, run) of the snapshot that a token names; raises InvalidDestinationException where it names none."""
    position, _, rest = token.partition("/")
    _, _, run = rest.partition("/")
    if not position.isascii() or not position.isdigit() or len(position) > 20 or not run:
        raise InvalidDestinationException(f"{token!r:.100} names no snapshot of a region")
    return int(position), run


def gone(token: str, region: str, seconds: float) -> InvalidDestinationException:
    """Return what a client is told whose snapshot is gone, where the region has changed since."""
    position, _ = position_of_token(token)
    return InvalidDestinationException(
        f"the snapshot of region {region!r} at position {position} is gone, and there were events since: the server was"
        f" started again, it had no room, or the snapshot was not read for {seconds:g} s (the limit"
        " region_snapshot_seconds); read the region again from the start"
    )
