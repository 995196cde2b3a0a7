"""What a start reads of a store whose records are damaged."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.effects import StoreBatch
from broker_adapter.engine.maintenance import check_store
from broker_adapter.engine.records import (
    CatalogRecord,
    Counters,
    encode_catalog,
    encode_counters,
    queue_key,
)
from broker_adapter.errors import (
    StoreCorruptException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import connect, send
from tests.broker_adapter.engine.storing import batch_of, damage, entry, reopened


def test_damaged_counters_are_counted_anew(tmp_path: Path) -> None:
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
    record = encode_catalog(queue_key(1), CatalogRecord("region", "the north"))
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        txn.put(queue_key(1), record, db=env.open_db(b"catalog", txn))
    for _ in range(2):
        for touch in (
            lambda: Broker(EngineSettings(), str(tmp_path)),
            lambda: check_store(tmp_path, EngineSettings()),
            lambda: check_store(tmp_path, EngineSettings(), repair=True),
        ):
            with pytest.raises(StoreVersionException, match=r"queue 'the north' .* of the kind 'region', .* upgrade"):
                touch()
    with lmdb.open(str(tmp_path), max_dbs=20) as env, env.begin() as txn:
        assert txn.get(queue_key(1), db=env.open_db(b"catalog", txn)) == record
