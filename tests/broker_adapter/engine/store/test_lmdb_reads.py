"""What a start reads of a store whose records are damaged."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    CatalogRecord,
    Counters,
    encode_catalog,
    encode_counters,
    entry_key,
    queue_key,
)
from broker_adapter.engine.store.lmdb_reads import entries_between
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.errors import (
    StoreCorruptException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import connect, send
from tests.broker_adapter.engine.storing import batch_of, damage, entry, positions, reopened


def test_damaged_counters_are_counted_again(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    batch = batch_of(entry(1, 5, 7, 1, size=10), entry(1, 4, 8, 2, size=20), entry(2, 5, 1, 3))
    batch.put("catalog", queue_key(1), encode_catalog(queue_key(1), CatalogRecord("queue", "q")))
    batch.put("queues", queue_key(1), encode_counters(queue_key(1), Counters(9, 30, ())))
    store.commit(batch)
    store.close()
    damage(tmp_path, "queues", queue_key(1))
    store = reopened(tmp_path)
    (found,) = store.queues()
    assert found.counters is not None
    assert found.counters.next_position > 9
    assert (found.counters.stored_bytes, [tuple(lane)[:2] for lane in found.counters.lanes]) == (30, [(4, 1), (5, 1)])
    store.close()


def test_a_damaged_catalog_is_refused(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    batch = StoreBatch()
    batch.put("catalog", queue_key(1), encode_catalog(queue_key(1), CatalogRecord("queue", "q")))
    store.commit(batch)
    store.close()
    damage(tmp_path, "catalog", queue_key(1))
    store = reopened(tmp_path)
    with pytest.raises(StoreCorruptException, match="catalog"):
        store.queues()
    store.close()


def test_a_queue_of_an_unknown_kind_is_named_and_left_alone(tmp_path: Path) -> None:
    """A newer version may have written it: it must not become a queue."""
    broker = Broker(EngineSettings(), str(tmp_path))
    assert send(broker, connect(broker), "the north", "a message") is None
    broker.close()
    record = encode_catalog(queue_key(1), CatalogRecord("shard", "the north"))
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        txn.put(queue_key(1), record, db=env.open_db(b"catalog", txn))
    for _ in range(2):
        for touch in (
            lambda: Broker(EngineSettings(), str(tmp_path)),
            lambda: check_store(tmp_path, EngineSettings()),
            lambda: check_store(tmp_path, EngineSettings(), repair=True),
        ):
            with pytest.raises(StoreVersionException, match=r"queue 'the north' .* of the kind 'shard', .* upgrade"):
                touch()
    with lmdb.open(str(tmp_path), max_dbs=20) as env, env.begin() as txn:
        assert txn.get(queue_key(1), db=env.open_db(b"catalog", txn)) == record


def test_entries_are_read_up_to_a_key_and_a_number_and_damaged_ones_are_named(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(*[entry(1, 5, position, position) for position in range(1, 7)], entry(2, 5, 1, 7)))
    store.close()
    damage(tmp_path, "entries", entry_key(1, 5, 3))
    store = reopened(tmp_path)
    first, last = entry_key(1, 5, 2), entry_key(1, 5, 5)
    with store._env.begin() as txn, txn.cursor(db=store._db["entries"]) as cursor:
        for limit, found, complete in ((10, [2, 4, 5], True), (3, [2, 4, 5], True), (2, [2, 4], False)):
            part = entries_between(cursor, first, last, limit)
            assert (positions(part.entries), part.corrupt) == (found, [entry_key(1, 5, 3)])
            assert part.complete is complete
        assert entries_between(cursor, entry_key(3, 0, 0), entry_key(3, 9, 0), 10).entries == []
    store.close()


def test_a_queue_without_counters_has_none_and_the_lanes_of_its_entries(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    batch = batch_of(entry(1, 2, 1, 1), entry(1, 9, 2, 2), entry(2, 5, 1, 3))
    for number in (1, 3):
        key = queue_key(number)
        batch.put("catalog", key, encode_catalog(key, CatalogRecord("queue", f"q{number}")))
    store.commit(batch)
    found = store.queues()
    assert [(each.queue, each.record.name, each.counters, each.lanes) for each in found] == [
        (1, "q1", None, [2, 9]),
        (3, "q3", None, []),
    ]
    store.close()


def test_damaged_entries_count_as_messages_whose_size_is_unknown(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1, size=10), entry(1, 5, 2, 2, size=20)))
    store.close()
    damage(tmp_path, "entries", entry_key(1, 5, 1))
    store = reopened(tmp_path)
    counters = store.count(1)
    assert (counters.stored_bytes, [tuple(lane)[:2] for lane in counters.lanes]) == (20, [(5, 2)])
    store.close()
