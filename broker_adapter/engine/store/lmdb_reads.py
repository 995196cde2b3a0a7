"""Reads in a transaction of LMDB: records in the order of their keys, entries, and the queues at a start."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    LAST_MESSAGE,
    RUN_PREFIX,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    RunRecord,
    decode_catalog,
    decode_counters,
    decode_entry,
    decode_entry_key,
    decode_message,
    decode_message_key,
    decode_queue_key,
    decode_run,
    entry_key,
    is_run_key,
    message_key,
    queue_key,
)
from broker_adapter.engine.store.port import Loaded, StoredQueue, by_position
from broker_adapter.errors import StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")

_LAST_QUEUE = (1 << 32) - 1
#: Messages that one call of LMDB brings.  Whoever asks for them keeps all that he asks for anyway.
_MESSAGES_AT_ONCE = 100


def entries_between(cursor: Any, first: bytes, last: bytes, limit: int, most_bytes: int | None = None) -> Loaded:
    """Up to ``limit`` entries with keys in [first, last], in the order of their keys.

    Args:
        cursor: of the entries.
        first, last: keys.
        limit: of entries.
        most_bytes: of their messages; none is read behind the one that exceeds it.
    """
    entries: list[RawEntry] = []
    corrupt: list[bytes] = []
    left = sys.maxsize if most_bytes is None else most_bytes
    for key, value in items_from(cursor, first):
        if key > last:
            break
        if len(entries) == limit or left < 0:
            return Loaded(entries, corrupt, False)
        try:
            entry = decode_entry(key, value)
        except StoreCorruptException:
            corrupt.append(key)
        else:
            entries.append(entry)
            left -= entry.size
    return Loaded(entries, corrupt, True)


def by_position_of(lanes: Iterable[Loaded], limit: int) -> Loaded:
    """Up to ``limit`` entries of all lanes of a queue, in the order of their positions."""
    found = [lane for lane in lanes if lane.entries or lane.corrupt]
    if len(found) == 1:
        return found[0]
    entries = sorted(chain.from_iterable(lane.entries for lane in found), key=by_position)
    # Behind the last entry of a lane that has more, nothing is known of that lane.
    known = min([lane.entries[-1].position for lane in found if not lane.complete], default=None)
    if known is not None:
        del entries[bisect_right(entries, known, key=by_position) :]
    corrupt = [key for lane in found for key in lane.corrupt]
    return Loaded(entries[:limit], corrupt, known is None and len(entries) <= limit)


def messages_of(cursor: Any, numbers: Iterable[int]) -> Iterator[tuple[int, bytes] | None]:
    """(format, payload) of each message; None where there is none or its checksum is wrong.

    Args:
        cursor: of the messages.
        numbers: of those wanted.
    """
    rest = iter(numbers)
    while part := list(islice(rest, _MESSAGES_AT_ONCE)):
        keys = list(map(message_key, part))
        values = cursor.getmulti(keys)
        if len(values) < len(keys):  # some are not there, or asked for twice
            found = dict(values)
            values = [(key, found.get(key)) for key in keys]
        for number, (_, value) in zip(part, values, strict=True):
            try:
                yield None if value is None else decode_message(number, value)
            except StoreCorruptException:
                yield None


def items_from(cursor: Any, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records from a key on, in the order of their keys."""
    return iter(cursor) if cursor.set_range(first) else iter(())


class StoredQueues(NamedTuple):
    """What a start reads of the queues."""

    queues: list[StoredQueue]
    unknown: int  #: how many queues have entries, and are not in the catalogue
    damaged: set[bytes]  #: entries with keys of a wrong length that were met on the way


def stored_queues(txn: Any, tables: Mapping[str, Any], path: Path) -> StoredQueues:
    """Every queue, with its counters.

    Args:
        txn: the transaction.
        tables: by name.
        path: of the store, for errors.

    Raises:
        StoreCorruptException: the catalogue or the entries are damaged.
    """
    found = []
    damaged: set[bytes] = set()
    with txn.cursor(db=tables["entries"]) as entries:
        for key, value in txn.cursor(db=tables["catalog"]):
            record = _record(path, key, value)
            queue = decode_queue_key("catalog", key)
            lanes = _lanes(entries, path, queue, damaged)
            found.append(StoredQueue(queue, record, _counters(txn, tables, key), lanes))
        unknown = _unknown_queues(entries, {each.queue for each in found}, damaged)
    return StoredQueues(found, unknown, damaged)


def _lanes(cursor: Any, path: Path, queue: int, damaged: set[bytes]) -> list[int]:
    """The lanes that a queue has entries in; ``damaged`` gets the keys of a wrong length."""
    lanes: list[int] = []
    lane = 0
    while lane <= DELAYED_LANE:
        # Keys that were cut off stand before the others of their lane.
        found = _next_entry(cursor, entry_key(queue, lane, 0)[:5], damaged)
        if found is None:
            break
        number, lane_found, _ = found
        if (number, lane_found) < (queue, lane):
            raise StoreCorruptException(
                f"the entries of the store in {str(path)!r} are not in order;"
                f" run: holdfast check {str(path)!r} --repair"
            )
        if number != queue:
            break
        lanes.append(lane_found)
        lane = lane_found + 1
    return lanes


def _unknown_queues(cursor: Any, known: Container[int], damaged: set[bytes]) -> int:
    """Return how many queues have entries and are not among the known ones."""
    unknown = queue = 0
    first = b"\0"
    while (found := _next_entry(cursor, first, damaged)) is not None and found[0] >= queue:
        unknown += found[0] not in known
        queue = found[0] + 1
        if queue > _LAST_QUEUE:
            break
        first = queue_key(queue)
    return unknown


def _next_entry(cursor: Any, first: bytes, damaged: set[bytes]) -> tuple[int, int, int] | None:
    """(queue, lane, position) of the first entry from a key on; ``damaged`` gets the keys of a wrong length."""
    for key, _ in items_from(cursor, first):
        try:
            return decode_entry_key(key)
        except StoreCorruptException:
            damaged.add(key)
    return None


def _record(path: Path, key: bytes, value: bytes) -> CatalogRecord:
    try:
        decode_queue_key("catalog", key)
        record = decode_catalog(key, value)
    except (StoreCorruptException, TypeError, ValueError) as error:
        raise StoreCorruptException(
            f"the catalog of the store in {str(path)!r} is damaged (queue {key.hex()});"
            f" run: holdfast check {str(path)!r} --repair"
        ) from error
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
        try:
            _, lane, position = decode_entry_key(key)
        except StoreCorruptException:
            continue  # no queue can have it
        lanes[lane] = lanes.get(lane, 0) + 1
        last = max(last, position)
        try:
            size += decode_entry(key, value).size
        except StoreCorruptException:
            continue  # it is quarantined when it is loaded
    # It is not known which positions above the last entry were used; skip as many as could be in one queue's window.
    next_position = last + 1 + (1 << 32)
    return Counters(next_position, size, tuple(LaneCounters(*lane, 0) for lane in sorted(lanes.items())))


def last_message(cursor: Any) -> tuple[int, list[bytes]]:
    """The number of the last message (0: there is none), and the keys behind it that no message can have."""
    damaged: list[bytes] = []
    for key in cursor.iterprev(keys=True, values=False):
        with suppress(StoreCorruptException):
            number = decode_message_key(key)
            if number <= LAST_MESSAGE:
                return number, damaged
        damaged.append(key)
    return 0, damaged


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
