"""The log of events as a store has it: what the queues of clients are read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from broker_adapter.engine.regions.event_records import (
    EventRecord,
    decode_event,
    decode_posting,
    decode_run,
    position_key,
    posting_key,
    run_key,
)
from broker_adapter.errors import StoreCorruptException


class Records(Protocol):
    """The records of a store as of its last commit."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """One record."""

    def items_from(self, table: str, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The records of a table from a key on, in the order of their keys."""

    def item_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last record of a table whose key is lower than this one."""


class StoredLog:
    """The port :class:`~broker_adapter.engine.clients.client_queue.EventLog` on the records of a store.

    Args:
        records: of the store.

    Attributes:
        damaged: (table, key) of records that were met and cannot be trusted.
    """

    def __init__(self, records: Records) -> None:
        self.damaged: list[tuple[str, bytes]] = []
        self._records = records

    def postings(self, stream: int, first: int, last: int) -> Iterator[int]:
        """The positions of a stream in [first, last], in order."""
        end = posting_key(stream, last)
        for key, value in self._records.items_from("postings", posting_key(stream, first)):
            if key > end:
                return
            try:
                _, position, _ = decode_posting(key, value)
            except StoreCorruptException:
                self.damaged.append(("postings", key))
                continue
            yield position

    def event(self, position: int) -> EventRecord | None:
        """An event; None where it is gone or cannot be trusted."""
        key = position_key(position)
        value = self._records.get("events", key)
        if value is None:
            return None
        try:
            return decode_event(key, value)
        except StoreCorruptException:
            self.damaged.append(("events", key))
            return None

    def updates_behind(self, run: int, position: int) -> Iterator[int]:
        """The positions of the updates of a run behind one, in order."""
        for key, value in self._records.items_from("runs", run_key(run, position + 1)):
            try:
                of, found = decode_run(key, value)
            except StoreCorruptException:
                self.damaged.append(("runs", key))
                continue
            if of != run:
                return
            yield found

    def postings_through(self, stream: int, position: int) -> int:
        """Return how many postings a stream had when this position was given, those that are gone by now included.

        Where those up to the position are gone, this is what the first one behind them says.
        """
        end = posting_key(stream, position + 1)
        before = self._records.item_before("postings", end)
        found = self._ordinal(stream, before)
        if found is not None:
            return found
        behind = self._ordinal(stream, next(self._records.items_from("postings", end), None))
        return 0 if behind is None else behind - 1

    def last_ordinal(self, stream: int) -> int:
        """Return how many postings a stream has had, as its last one says; 0: it has none."""
        return self._ordinal(stream, self._records.item_before("postings", posting_key(stream + 1, 0))) or 0

    def _ordinal(self, stream: int, item: tuple[bytes, bytes] | None) -> int | None:
        if item is None:
            return None
        try:
            of, _, ordinal = decode_posting(*item)
        except StoreCorruptException:
            self.damaged.append(("postings", item[0]))
            return None
        return ordinal if of == stream else None
