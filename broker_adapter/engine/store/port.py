"""The ports to what keeps the records: :class:`Store`, and :class:`DurableStore` for what survives a restart.

The engine needs no more of a store than what stands here.  Each call is made by one thread at a time (the broker sees
to it), and sees the last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from broker_adapter.engine.check.findings import Change, Tables
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    CatalogRecord,
    Counters,
    LastRecord,
    RawEntry,
    RunRecord,
    SequencesRecord,
)
from broker_adapter.engine.regions.stored_log import Records
from broker_adapter.engine.store.room import Room
from broker_adapter.errors import StoreException

#: What a message in memory takes beside its bytes, and what each place of one in a queue or subscription takes.
MESSAGE_BYTES: Final = 220
PLACE_BYTES: Final = 240


class Loaded(NamedTuple):
    """Entries in the order of their keys; ``corrupt`` are the keys of those that cannot be trusted."""

    entries: list[RawEntry]
    corrupt: list[bytes]
    complete: bool  #: whether nothing stands behind the last one


class StoredColumns(NamedTuple):
    """Messages of a range, in the order of their positions, by field."""

    positions: Sequence[int]
    delivery_counts: Sequence[int]
    sizes: Sequence[int]  #: bytes of their payloads
    payloads: bytes  #: one behind the other
    is_complete: bool  #: whether nothing of the range stands behind the last one


class StoredQueue(NamedTuple):
    """A queue as it is found at a start."""

    queue: int
    record: CatalogRecord
    counters: Counters | None
    lanes: list[int]  #: those that have entries, whatever the counters say


class Store(Protocol):
    """Where records are kept."""

    def commit(self, batch: StoreBatch) -> None:
        """Apply the batch as a whole.  Returns only when it is on disk (where the store has one).

        Raises:
            ResourceAllocationException: the disk is full; nothing of the batch was applied.
            StoreException: anything else; the store must be closed.
        """

    def load(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries of one lane whose positions are greater than ``after``."""

    def read_entries(self, queue: int, first: int, last: int, limit: int, most_bytes: int | None = None) -> Loaded:
        """Up to ``limit`` entries of a queue with positions in [first, last], by position, without delayed ones.

        Args:
            queue: its number.
            first, last: positions.
            limit: of entries.
            most_bytes: of their messages, about; what is behind the entry that exceeds it need not be read.
        """

    def browse(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries in the order of delivery, behind (lane, position), without delayed ones."""

    def read_messages(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes] | None]:
        """(format, payload) of each; None where there is none or its checksum is wrong."""

    def annotations(self, key: bytes) -> dict[str, Any] | None:
        """The annotations of an entry."""

    def due(self, now_ms: int, limit: int) -> list[tuple[int, RawEntry | None, bytes]]:
        """Up to ``limit`` (kind, entry, schedule key) whose time has come, the earliest first.

        Returns:
            The entry is None where it is gone.  The kind is ``KIND_DAMAGED`` where the line cannot be trusted, or the
            entry contradicts it: then the entry is the one that it names, if there is one.
        """

    def first_due_ms(self) -> int | None:
        """Return when the next line of the schedule is due, also one that cannot be trusted."""

    def quarantine(self, table: str, keys: Iterable[bytes]) -> bool:
        """Move records that cannot be trusted out of the way, as they are; False: there is no room, and they stay."""

    def close(self) -> None:
        """Give the store free."""


class StoreSnapshot(Tables, Records, Protocol):
    """All records of a store at one moment."""


class DurableStore(Store, Protocol):
    """Where records are kept that survive a restart.

    Attributes:
        unique: a word that no other store has.
        errors: what a call raises where the disk, or what is on it, has failed.
    """

    unique: str
    errors: tuple[type[Exception], ...]

    def as_failure(self, error: Exception) -> StoreException:
        """Return what one of ``errors`` means that a call raised."""

    def as_opening_failure(self, error: Exception) -> StoreException:
        """The same while the engine reads what it needs for its start."""

    # What a start needs.

    def queues(self) -> list[StoredQueue]:
        """Every queue, with its counters."""

    def streams(self) -> list[tuple[bytes, SequencesRecord]]:
        """(key, sequences) of every producer's stream, the least recently used first."""

    def next_message(self) -> int:
        """The number for the next new message."""

    def next_queue(self) -> int:
        """The number for the next new queue, unless a queue has it."""

    def age_ms(self) -> int | None:
        """For how long engines have run on the store, in milliseconds, as noted last; None: it was not noted yet.

        It is not counted from zero, but from the time of the day at which the store was made.
        """

    def begin_run(self, record: RunRecord) -> None:
        """A start of the engine, which is noted by what is written next, in the same commit."""

    def note_run(self) -> None:
        """Note the start of the engine now, where no commit has done it.

        Raises:
            ResourceAllocationException: there is no room for it; what is written next notes it.
            StoreException: the store must be closed.
        """

    def runs(self) -> list[str]:
        """The starts of the engine that are known, in order; empty in place of what is missing or not to be trusted."""

    def run_positions(self, run: str) -> dict[int, int]:
        """The position that each queue would give next when this run began; queues without messages are missing."""

    def begin_tail(self) -> None:
        """Have each commit noted from now on, also after a restart, so that copies can follow.

        Raises:
            ResourceAllocationException: there is no room for the first commit that is noted.
            StoreException: the store must be closed.
        """

    # Reading.

    def count(self, queue: int) -> Counters:
        """Counters of a queue made from its entries."""

    def read_columns(self, queue: int, first: int, last: int, limit: int, most_bytes: int) -> StoredColumns | None:
        """The same messages as ``read_entries`` and ``read_messages`` give, fast; None: those two are to be asked.

        Args:
            queue: its number.
            first, last: positions.
            limit: of messages.
            most_bytes: of their payloads; one message may have more.
        """

    def last_number(self, table: str, name: str) -> LastRecord | None:
        """The record of a name in ``commits`` or ``published``; None where there is none that can be trusted."""

    def last_numbers(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, LastRecord | None]]:
        """Up to ``limit`` records of ``commits`` or ``published`` behind a key; None where one cannot be trusted."""

    def room(self) -> Room | None:
        """Return what messages may still take; None: more than is worth counting before the next check."""

    def snapshot(self) -> AbstractContextManager[StoreSnapshot]:
        """All records as of the last commit; writing may go on meanwhile.

        One that is open is not to be left in a child made by fork.
        """

    # Records that cannot be trusted.

    def quarantine_all(self, records: Sequence[tuple[str, bytes]]) -> bool:
        """The same as ``quarantine`` for (table, key) each, as a whole; the caller logs what is moved."""

    def in_quarantine(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Those of these keys of the table ``quarantine`` that are there."""

    def quarantined(self) -> int:
        """Return how many records are in quarantine."""

    def apply(self, changes: Iterable[Change]) -> None:
        """Write the changes of a repair."""


def by_position(entry: RawEntry) -> int:
    """The order of ``read_entries``."""
    return entry.position


def by_lane_and_position(entry: RawEntry) -> tuple[int, int]:
    """The order of ``load`` and ``browse``."""
    return entry.lane, entry.position
