"""One contract over both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    encode_annotations,
    entry_key,
    schedule_line,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.memory_store import MemoryStore
from tests.broker_adapter.engine.storing import SETTINGS, batch_of, entry, positions

Store = LmdbStore | MemoryStore


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = LmdbStore(tmp_path, SETTINGS) if request.param == "lmdb" else MemoryStore()
    yield made
    made.close()


def test_messages_and_entries_are_found_again(store: Store) -> None:
    store.commit(batch_of(entry(1, 5, 1, 10), entry(1, 5, 2, 11)))
    assert list(store.read_messages([11, 10, 99])) == [(7, b"x11"), (7, b"x10"), None]
    found = store.load(1, 5, 0, 10)
    assert found.complete
    assert found.entries == [entry(1, 5, 1, 10)[1], entry(1, 5, 2, 11)[1]]


def test_a_load_stays_in_its_lane_and_in_its_limit(store: Store) -> None:
    store.commit(batch_of(*[entry(1, 5, position, position) for position in range(1, 11)]))
    store.commit(batch_of(entry(1, 4, 11, 11), entry(1, 6, 12, 12), entry(2, 5, 1, 13)))
    found = store.load(1, 5, 3, 4)
    assert (positions(found.entries), found.complete) == ([4, 5, 6, 7], False)
    found = store.load(1, 5, 7, 4)
    assert (positions(found.entries), found.complete) == ([8, 9, 10], True)
    found = store.load(1, 5, 6, 4)
    assert (positions(found.entries), found.complete) == ([7, 8, 9, 10], True)


def test_a_range_is_by_position_over_lanes_and_a_browse_by_lane(store: Store) -> None:
    batch = batch_of(*[entry(1, lane, position, position) for lane, position in ((9, 1), (0, 2), (5, 3), (0, 4))])
    batch.entries.update([entry(1, DELAYED_LANE, 5, 5)])
    store.commit(batch)
    assert positions(store.read_entries(1, 1, 9, 10).entries) == [1, 2, 3, 4]
    assert positions(store.read_entries(1, 2, 3, 10).entries) == [2, 3]
    first = store.read_entries(1, 1, 9, 3)
    assert (positions(first.entries), first.complete) == ([1, 2, 3], False)
    assert positions(store.browse(1, 0, 0, 10).entries) == [2, 4, 3, 1]
    assert positions(store.browse(1, 0, 2, 2).entries) == [4, 3]


def test_a_range_may_end_behind_the_message_that_exceeds_its_bytes_and_never_has_a_gap(store: Store) -> None:
    placed = [(position % 3, position) for position in range(1, 31)]
    store.commit(batch_of(*[entry(1, lane, position, position) for lane, position in placed]))
    size = entry(1, 0, 1, 1)[1].size
    for most_bytes in (0, size, 4 * size, 100 * size):
        seen: list[int] = []
        while True:
            found = store.read_entries(1, len(seen) + 1, 30, 10, most_bytes)
            assert 0 < len(found.entries) <= 10
            seen += positions(found.entries)
            if found.complete:
                break
        assert seen == list(range(1, 31))


def test_a_deleted_entry_and_its_message_are_gone(store: Store) -> None:
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2)))
    batch = StoreBatch()
    batch.entries[entry_key(1, 5, 1)] = None
    batch.gone.append(1)
    store.commit(batch)
    assert positions(store.load(1, 5, 0, 10).entries) == [2]
    assert list(store.read_messages([1])) == [None]


def test_an_entry_is_replaced(store: Store) -> None:
    store.commit(batch_of(entry(1, 5, 1, 1)))
    batch = StoreBatch()
    batch.entries.update([entry(1, 5, 1, 1, delivery_count=3)])
    store.commit(batch)
    assert [each.delivery_count for each in store.load(1, 5, 0, 10).entries] == [3]


def test_a_shared_message_goes_with_its_last_entry(store: Store) -> None:
    batch = batch_of(entry(1, 5, 1, 1, flags=FLAG_PERSISTENT | FLAG_SHARED))
    batch.entries.update([entry(2, 5, 1, 1, flags=FLAG_PERSISTENT | FLAG_SHARED)])
    batch.references.append((1, 2))
    store.commit(batch)
    for left in (1, 0):
        batch = StoreBatch()
        batch.unreferenced.append(1)
        store.commit(batch)
        assert list(store.read_messages([1])) == ([(7, b"x1")] if left else [None])


def test_annotations_are_kept_by_entry(store: Store) -> None:
    batch = batch_of(entry(1, 5, 1, 1))
    batch.put("annotations", entry_key(1, 5, 1), encode_annotations(entry_key(1, 5, 1), {"why": "x", "n": 1}))
    store.commit(batch)
    assert store.annotations(entry_key(1, 5, 1)) == {"why": "x", "n": 1}
    assert store.annotations(entry_key(1, 5, 2)) is None


def test_what_is_due_comes_in_order_until_it_is_taken_off_the_schedule(store: Store) -> None:
    key, found = entry(1, 5, 1, 1, expires_at_ms=200)
    batch = batch_of((key, found))
    batch.put("schedule", *schedule_line(200, KIND_EXPIRE, key))
    batch.put("schedule", *schedule_line(100, KIND_DELIVER, entry_key(1, DELAYED_LANE, 9)))
    assert store.first_due_ms() is None
    store.commit(batch)
    assert store.first_due_ms() == 100
    assert store.due(99, 10) == []
    gone, present = store.due(500, 10)
    assert (gone[0], gone[1], present[0], present[1]) == (KIND_DELIVER, None, KIND_EXPIRE, found)
    assert len(store.due(500, 1)) == 1
    off = StoreBatch()
    off.put("schedule", gone[2], None)
    store.commit(off)
    assert store.first_due_ms() == 200
