"""The port to what keeps the records.

Each call is made by one thread at a time (the broker sees to it), and sees the last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from broker_adapter.engine.effects import StoreBatch
from broker_adapter.engine.records import CatalogRecord, Counters, RawEntry

#: What a message in memory takes beside its bytes, and what each place of one in a queue or subscription takes.
MESSAGE_BYTES: Final = 220
PLACE_BYTES: Final = 240


class Loaded(NamedTuple):
    """Entries in the order of their keys; ``corrupt`` are the keys of those that cannot be trusted."""

    entries: list[RawEntry]
    corrupt: list[bytes]
    complete: bool  #: whether nothing stands behind the last one


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

    def read_entries(self, queue: int, first: int, last: int, limit: int) -> Loaded:
        """Up to ``limit`` entries of a queue with positions in [first, last], by position, without delayed ones."""

    def browse(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries in the order of delivery, behind (lane, position), without delayed ones."""

    def read_messages(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes] | None]:
        """(format, payload) of each; None where there is none or its checksum is wrong."""

    def annotations(self, key: bytes) -> dict[str, object] | None:
        """The annotations of an entry."""

    def due(self, now_ms: int, limit: int) -> list[tuple[int, RawEntry | None, bytes]]:
        """Up to ``limit`` (kind, entry, schedule key) whose time has come, the earliest first; entry None where it
        is gone."""

    def first_due_ms(self) -> int | None:
        """When the next entry of the schedule is due."""

    def quarantine(self, table: str, keys: Iterable[bytes]) -> bool:
        """Move records that cannot be trusted out of the way, as they are; False: there is no room, and they stay."""

    def close(self) -> None:
        """Give the store free."""


def by_position(entry: RawEntry) -> int:
    """The order of ``read_entries``."""
    return entry.position


def by_lane_and_position(entry: RawEntry) -> tuple[int, int]:
    """The order of ``load`` and ``browse``."""
    return entry.lane, entry.position
