"""What only a store in memory does: it counts its bytes, and keeps no trace of what is gone.

What both stores have in common is in :mod:`tests.broker_adapter.engine.store.test_port`.
"""

from __future__ import annotations

import random

import pytest

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    FLAG_SHARED,
    KIND_DELIVER,
    decode_entry,
    decode_message,
    decode_reference,
    encode_annotations,
    entry_key,
    message_key,
    schedule_key,
    schedule_line,
)
from broker_adapter.engine.store.memory_store import MemoryStore
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES
from tests.broker_adapter.engine.storing import batch_of, entry, positions


def taken(*keys: bytes, gone: tuple[int, ...] = ()) -> StoreBatch:
    batch = StoreBatch()
    batch.entries.update(dict.fromkeys(keys))
    batch.gone.extend(gone)
    return batch


def test_bytes_are_those_of_messages_and_places_and_none_when_all_is_gone() -> None:
    store = MemoryStore()
    batch = batch_of(entry(1, 5, 1, 1, flags=FLAG_SHARED), body=b"x" * 99)
    batch.entries.update([entry(2, 5, 1, 1, flags=FLAG_SHARED)])
    batch.references.append((1, 2))
    store.commit(batch)
    assert store.bytes == 100 + MESSAGE_BYTES + 2 * PLACE_BYTES
    store.commit(batch_of(entry(1, 5, 2, 2), body=b""))
    store.commit(taken(entry_key(1, 5, 2), gone=(2, 2)))
    replaced = StoreBatch()
    replaced.entries.update([entry(1, 5, 1, 1, delivery_count=1)])
    store.commit(replaced)
    assert store.bytes == 100 + MESSAGE_BYTES + 2 * PLACE_BYTES
    last = taken(entry_key(1, 5, 1), entry_key(2, 5, 1))
    last.unreferenced.extend([1, 1])
    store.commit(last)
    assert store.bytes == 0
    assert not store._lanes


@pytest.mark.parametrize("key", [entry_key(1, 5, 2), entry_key(1, 4, 1), entry_key(2, 5, 1)])
def test_what_is_not_there_can_be_deleted(key: bytes) -> None:
    store = MemoryStore()
    store.commit(batch_of(entry(1, 5, 1, 1)))
    before = store.bytes
    store.commit(taken(key, gone=(99,)))
    assert store.bytes == before
    assert positions(store.load(1, 5, 0, 10).entries) == [1]


def test_positions_that_come_late_or_come_back_have_their_place_once() -> None:
    store = MemoryStore()
    store.commit(batch_of(*[entry(1, 5, position, position) for position in (2, 4, 6, 8)]))
    store.commit(taken(entry_key(1, 5, 2), entry_key(1, 5, 4), entry_key(1, 5, 8)))
    for position in (4, 3, 1, 8):
        batch = StoreBatch()
        batch.entries.update([entry(1, 5, position, position)])
        store.commit(batch)
    assert positions(store.load(1, 5, 0, 10).entries) == [1, 3, 4, 6, 8]


@pytest.mark.parametrize("order", ["first", "last", "random"])
def test_places_of_what_is_gone_are_given_up(order: str) -> None:
    store = MemoryStore()
    count = 5_000
    store.commit(batch_of(*[entry(1, 5, position, position) for position in range(1, count + 1)]))
    numbers = list(range(1, count))
    if order == "last":
        numbers.reverse()
    elif order == "random":
        random.shuffle(numbers)
    for number in numbers:
        store.commit(taken(entry_key(1, 5, number), gone=(number,)))
        left = store._lanes[1][5]
        assert len(left.positions) - left.start <= 2 * len(left.by_position) + 1024
    assert len(store._lanes[1][5].positions) < 2_100
    assert positions(store.load(1, 5, 0, 10).entries) == [count]


def test_a_schedule_forgets_what_is_taken_off_it() -> None:
    store = MemoryStore()
    keys = [schedule_key(due_ms, KIND_DELIVER, entry_key(1, 5, due_ms)) for due_ms in range(1, 3_001)]
    for value in (b"", b"", None):  # put twice, it is there once
        batch = StoreBatch()
        for key in keys[:-1] if value is None else keys:
            batch.put("schedule", key, value)
        store.commit(batch)
    assert len(store._schedule) <= 1024 + 2
    assert store.due(10_000, 10) == [(KIND_DELIVER, None, keys[-1])]


def test_annotations_that_are_deleted_are_gone() -> None:
    store = MemoryStore()
    key = entry_key(1, 5, 1)
    for value in (encode_annotations(key, {"n": 1}), None, None):
        batch = StoreBatch()
        batch.put("annotations", key, value)
        store.commit(batch)
        assert store.annotations(key) == (None if value is None else {"n": 1})


def test_a_message_is_read_by_its_number() -> None:
    store = MemoryStore()
    store.commit(batch_of(entry(1, 5, 1, 1)))
    assert (store.message(1), store.message(2)) == ((7, b"x1"), None)


def test_nothing_in_memory_goes_into_quarantine() -> None:
    store = MemoryStore()
    store.commit(batch_of(entry(1, 5, 1, 1)))
    assert store.quarantine("entries", [entry_key(1, 5, 1)])
    assert positions(store.load(1, 5, 0, 10).entries) == [1]


def test_a_snapshot_has_the_records_as_a_store_on_disk_would() -> None:
    store = MemoryStore()
    flags = FLAG_SHARED
    batch = batch_of(entry(2, 5, 1, 1, flags=flags), entry(1, 5, 1, 1, flags=flags))
    batch.references.append((1, 2))
    key = schedule_key(5, KIND_DELIVER, entry_key(1, 5, 1))
    batch.put("schedule", key, b"")
    store.commit(batch)
    tables = store.snapshot()
    store.commit(taken(entry_key(1, 5, 1)))
    entries = list(tables.items("entries"))
    assert [decode_entry(*each) for each in entries] == [
        entry(1, 5, 1, 1, flags=flags)[1],
        entry(2, 5, 1, 1, flags=flags)[1],
    ]
    found = tables.get("messages", message_key(1))
    assert found is not None
    assert decode_message(1, found) == (7, b"x1")
    ((counted, value),) = tables.items("references")
    assert decode_reference(counted, value) == 2
    assert list(tables.items("schedule")) == [schedule_line(5, KIND_DELIVER, entry_key(1, 5, 1))]
    assert [tables.count(table) for table in ("entries", "messages", "schedule", "catalog")] == [2, 1, 1, 0]
    assert tables.get("catalog", b"key") is None
