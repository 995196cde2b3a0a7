"""Messages of a range read from LMDB as columns: no object, and few steps of Python, for each of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, Final

from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    decode_bodies,
    decode_columns,
    entry_key,
    message_key,
)
from broker_adapter.engine.store.lmdb_reads import items_from
from broker_adapter.engine.store.port import StoredColumns

#: Entries that are decoded at once.
_AT_ONCE: Final = 256
#: Lanes that messages can have.
_LANES: Final = range(10)


def columns_between(
    entries: Any, messages: Any, queue: int, first: int, last: int, limit: int, most_bytes: int
) -> StoredColumns | None:
    """The messages of a queue with positions in [first, last], in order, up to a number and a size.

    Args:
        entries: a cursor of the entries.
        messages: a cursor of the messages, in a transaction with ``buffers``.
        queue: its number.
        first, last: positions.
        limit: of messages, 1 or more.
        most_bytes: of their payloads; one message may have more.

    Returns:
        None where that needs a look at each of them: they have several priorities, or one has annotations, or is not
        as it was stored.
    """
    lanes = [lane for lane in _LANES if _has_entry(entries, queue, lane, first, last)]
    if not lanes:
        return StoredColumns((), (), (), b"", is_complete=True)
    if len(lanes) > 1:
        return None
    last_key = entry_key(queue, lanes[0], last)
    items = items_from(entries, entry_key(queue, lanes[0], first))
    positions: list[int] = []
    counts: list[int] = []
    bodies: list[memoryview] = []
    left = most_bytes
    while True:
        part = list(islice(items, min(_AT_ONCE, limit - len(positions))))
        is_last = not part or part[-1][0] > last_key
        if is_last:
            del part[bisect_right(part, last_key, key=itemgetter(0)) :]
            if not part:
                break
        found = decode_columns(part)
        if found is None or not all(flags & FLAG_PERSISTENT and not flags & FLAG_ANNOTATED for flags in {*found.flags}):
            return None
        ends = list(accumulate(found.sizes))
        fitting = bisect_right(ends, left) or (0 if positions else 1)
        if fitting:
            taken = _bodies_of(messages, found.numbers[:fitting])
            if taken is None:
                return None
            positions += found.positions[:fitting]
            counts += found.delivery_counts[:fitting]
            bodies += taken
        left -= ends[-1]
        if fitting < len(part):
            is_last = False
            break
        if is_last:
            break
        if len(positions) == limit:
            is_last = all(key > last_key for key, _ in islice(items, 1))
            break
    return StoredColumns(positions, counts, list(map(len, bodies)), b"".join(bodies), is_complete=is_last)


def _has_entry(entries: Any, queue: int, lane: int, first: int, last: int) -> bool:
    """Return whether a lane has a record in [first, last]."""
    found = entries.set_range(entry_key(queue, lane, first))
    return bool(found and entries.key() <= entry_key(queue, lane, last))


def _bodies_of(messages: Any, numbers: Sequence[int]) -> list[memoryview] | None:
    """The payloads of messages; None where one is missing or its checksum is wrong."""
    count, first = len(numbers), numbers[0]
    if tuple(range(first, first + count)) == tuple(numbers):
        # The checksum of a message covers its number, so that another one in its place is noticed.
        if not messages.set_key(message_key(first)):
            return None
        values = list(islice(messages.iternext(keys=False), count))
    else:
        values = [value for _, value in messages.getmulti(list(map(message_key, numbers)))]
    return decode_bodies(numbers, values) if len(values) == count else None
