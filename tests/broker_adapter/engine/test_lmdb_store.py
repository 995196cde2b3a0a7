"""What only a store on disk can do, and suffer."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.effects import StoreBatch
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.records import (
    UNIQUE,
    VERSION,
    CatalogRecord,
    Counters,
    LaneCounters,
    SequencesRecord,
    encode_catalog,
    encode_counters,
    encode_sequences,
    entry_key,
    queue_key,
    stream_key,
)
from broker_adapter.errors import ResourceAllocationException, StoreCorruptException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.storing import batch_of, damage, entry, positions, put, reopened


def test_everything_is_there_after_it_is_opened_again(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    batch = batch_of(entry(1, 5, 1, 41))
    counters = Counters(2, 1, (LaneCounters(5, 1, 0),))
    batch.put("catalog", queue_key(1), encode_catalog(queue_key(1), CatalogRecord("queue", "q")))
    batch.put("queues", queue_key(1), encode_counters(queue_key(1), counters))
    streams = [(stream_key("old"), SequencesRecord(5, 1, 100)), (stream_key("new"), SequencesRecord(6, 2, 200, b"m"))]
    for key, record in reversed(streams):
        batch.put("producers", key, encode_sequences(key, record))
    store.commit(batch)
    unique = store.unique
    store.close()
    store = reopened(tmp_path)
    assert store.unique == unique
    assert [(each.queue, each.record.name, each.counters) for each in store.queues()] == [(1, "q", counters)]
    assert store.streams() == streams
    assert store.next_message() == 42
    store.close()


def test_message_numbers_are_not_used_again_where_messages_are_gone(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 41)))
    batch = StoreBatch()
    batch.gone.append(41)
    store.commit(batch)
    store.close()
    store = reopened(tmp_path)
    assert store.next_message() == 42
    store.close()


def test_damaged_entries_and_messages_are_told_and_can_be_put_aside(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2), entry(1, 5, 3, 3)))
    store.close()
    damage(tmp_path, "entries", entry_key(1, 5, 2))
    damage(tmp_path, "messages", (3).to_bytes(8))
    store = reopened(tmp_path)
    found = store.load(1, 5, 0, 10)
    assert (positions(found.entries), found.corrupt) == ([1, 3], [entry_key(1, 5, 2)])
    assert list(store.read_messages([1, 3])) == [(7, b"x1"), None]
    store.quarantine("entries", found.corrupt)
    assert store.quarantined() == 1
    assert store.load(1, 5, 0, 10).corrupt == []
    store.close()


def test_a_commit_into_a_full_file_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.lmdb_store._MAP_RESERVE_BYTES", 0)
    store = LmdbStore(tmp_path, EngineSettings(max_store_bytes=16 * 1024 * 1024, min_free_disk_bytes=0))

    def fill_up() -> None:
        for number in range(1, 100):
            put(store, number)
            taken.append(number)

    taken: list[int] = []
    with pytest.raises(ResourceAllocationException, match="max_store_bytes"):
        fill_up()
    assert len(store.load(1, 5, 0, 100).entries) == len(taken) > 5
    assert len([body for body in store.read_messages(range(100)) if body]) == len(taken)
    store.close()


def test_a_store_that_is_refused_stays_as_it_was(tmp_path: Path) -> None:
    LmdbStore(tmp_path, EngineSettings()).close()
    with lmdb.open(str(tmp_path), max_dbs=20) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            name = txn.get(UNIQUE, db=meta)
            txn.put(UNIQUE, name[:-1] + bytes([name[-1] ^ 1]), db=meta)
            txn.put(VERSION, b"\xc1", db=meta)
    with pytest.raises(StoreCorruptException, match="'unique'"):
        LmdbStore(tmp_path, EngineSettings())
    with lmdb.open(str(tmp_path), max_dbs=20) as env, env.begin() as txn:
        assert txn.get(VERSION, db=env.open_db(b"meta", txn=txn)) == b"\xc1"
