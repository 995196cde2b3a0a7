"""Reads in a transaction of LMDB: records in the order of their keys, entries, and the queues at a start."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from broker_adapter.engine.records import (
    DELAYED_LANE,
    RUN_PREFIX,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    RunRecord,
    check_kind,
    decode_catalog,
    decode_counters,
    decode_entry,
    decode_run,
    entry_key,
    is_run_key,
    unpack_entry_key,
    unpack_queue_key,
)
from broker_adapter.engine.store import Loaded, StoredQueue
from broker_adapter.errors import StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")


def entries_between(cursor: Any, first: bytes, last: bytes, limit: int) -> Loaded:
    """Up to ``limit`` entries with keys in [first, last], in the order of their keys."""
    entries: list[RawEntry] = []
    corrupt: list[bytes] = []
    for key, value in items_from(cursor, first):
        if key > last:
            break
        if len(entries) == limit:
            return Loaded(entries, corrupt, False)
        try:
            entries.append(decode_entry(key, value))
        except StoreCorruptException:
            corrupt.append(key)
    return Loaded(entries, corrupt, True)


def items_from(cursor: Any, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records from a key on, in the order of their keys."""
    return iter(cursor) if cursor.set_range(first) else iter(())


def stored_queues(txn: Any, tables: Mapping[str, Any], path: Path) -> list[StoredQueue]:
    """Every queue, with its counters.

    Args:
        txn: the transaction.
        tables: by name.
        path: of the store, for errors.

    Raises:
        StoreCorruptException: the catalogue or the entries are damaged.
    """
    found = []
    for key, value in txn.cursor(db=tables["catalog"]):
        (queue,) = unpack_queue_key(key)
        lanes = _lanes(txn, tables, path, queue)
        found.append(StoredQueue(queue, _record(path, key, value), _counters(txn, tables, key), lanes))
    return found


def _lanes(txn: Any, tables: Mapping[str, Any], path: Path, queue: int) -> list[int]:
    """The lanes that a queue has entries in."""
    lanes: list[int] = []
    with txn.cursor(db=tables["entries"]) as cursor:
        lane = 0
        while lane <= DELAYED_LANE and cursor.set_range(entry_key(queue, lane, 0)):
            found, lane_found, _ = unpack_entry_key(cursor.key())
            if (found, lane_found) < (queue, lane):
                raise StoreCorruptException(
                    f"the entries of the store in {str(path)!r} are not in order;"
                    f" run: holdfast check {str(path)!r} --repair"
                )
            if found != queue:
                break
            lanes.append(lane_found)
            lane = lane_found + 1
    return lanes


def _record(path: Path, key: bytes, value: bytes) -> CatalogRecord:
    try:
        record = decode_catalog(key, value)
    except (StoreCorruptException, TypeError, ValueError) as error:
        raise StoreCorruptException(
            f"the catalog of the store in {str(path)!r} is damaged (queue {key.hex()});"
            f" run: holdfast check {str(path)!r} --repair"
        ) from error
    check_kind(record)
    return record


def _counters(txn: Any, tables: Mapping[str, Any], key: bytes) -> Counters | None:
    value = txn.get(key, db=tables["queues"])
    if value is None:
        return None
    try:
        return decode_counters(key, value)
    except (StoreCorruptException, TypeError, ValueError):
        _log.warning("! the counters of queue %s fail their checksum; counting its entries", key.hex())
        return count_entries(txn, tables, key)


def count_entries(txn: Any, tables: Mapping[str, Any], prefix: bytes) -> Counters:
    """Counters made from the entries themselves.  Takes a second for about a million of them."""
    lanes: dict[int, int] = {}
    size = 0
    last = 0
    for key, value in items_from(txn.cursor(db=tables["entries"]), prefix):
        if not key.startswith(prefix):
            break
        _, lane, position = unpack_entry_key(key)
        lanes[lane] = lanes.get(lane, 0) + 1
        last = max(last, position)
        try:
            size += decode_entry(key, value).size
        except StoreCorruptException:
            continue  # it is quarantined when it is loaded
    # Nobody knows which positions above the last entry were used; skip as many as could be in one queue's window.
    next_position = last + 1 + (1 << 32)
    return Counters(next_position, size, tuple(LaneCounters(*lane, 0) for lane in sorted(lanes.items())))


def run_items(txn: Any, meta: Any) -> Iterator[tuple[bytes, bytes]]:
    """The records of the starts, the oldest first."""
    items = takewhile(lambda item: item[0].startswith(RUN_PREFIX), items_from(txn.cursor(db=meta), RUN_PREFIX))
    return filter(lambda item: is_run_key(item[0]), items)


def decoded_run(key: bytes, value: bytes) -> RunRecord | None:
    """The record of a start of the engine; None where it cannot be trusted."""
    try:
        return decode_run(key, value)
    except (StoreCorruptException, TypeError, ValueError):
        return None
