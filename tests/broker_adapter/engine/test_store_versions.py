"""Who wrote a store, and what is taken over."""

from __future__ import annotations

from pathlib import Path

import lmdb
import msgpack
import pytest

from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.maintenance import check_records, check_store
from broker_adapter.engine.records import (
    NEXT_QUEUE,
    STORE_VERSION,
    VERSION,
    VERSION_CHECK,
    encode_meta,
)
from broker_adapter.errors import (
    StoreCorruptException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.storing import reopened

DAMAGED_VERSIONS = [b"", b"\xc1", b"\x91", msgpack.packb("4"), msgpack.packb(-1)]

#: Each with one bit of the version changed.
OTHER_VERSIONS = [bytes((STORE_VERSION ^ 1 << bit,)) for bit in range(8)]


def test_an_older_version_is_taken_over_as_it_is(tmp_path: Path) -> None:
    LmdbStore(tmp_path, EngineSettings()).close()
    with lmdb.open(str(tmp_path), max_dbs=10) as env, env.begin(write=True) as txn:
        txn.put(b"version", msgpack.packb(1), db=env.open_db(b"meta", txn))
    LmdbStore(tmp_path, EngineSettings()).close()
    with lmdb.open(str(tmp_path), max_dbs=10) as env, env.begin() as txn:
        assert msgpack.unpackb(txn.get(b"version", db=env.open_db(b"meta", txn))) == STORE_VERSION


def test_a_store_whose_version_is_lost_keeps_what_it_is_known_by(tmp_path: Path) -> None:
    """A repair may not find the record of the version; a client that fails over to the store knows it by ``unique``."""
    store = LmdbStore(tmp_path, EngineSettings())
    unique = store.unique
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn)
        txn.put(NEXT_QUEUE, encode_meta(NEXT_QUEUE, 7), db=meta)
        txn.delete(VERSION, db=meta)
        txn.delete(VERSION_CHECK, db=meta)
    store = LmdbStore(tmp_path, EngineSettings())
    assert (store.unique, store.next_queue()) == (unique, 7)
    store.close()
    store = LmdbStore(tmp_path, EngineSettings())
    assert (store.unique, store.next_queue()) == (unique, 7)
    store.close()


@pytest.mark.parametrize("value", [*DAMAGED_VERSIONS, *OTHER_VERSIONS])
def test_a_damaged_version_is_put_right_by_its_copy(tmp_path: Path, value: bytes) -> None:
    for key in (VERSION, VERSION_CHECK):
        store = reopened(tmp_path)
        unique = store.unique
        store.close()
        with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
            txn.put(key, value, db=env.open_db(b"meta", txn))
        found = check_store(tmp_path, EngineSettings())
        assert dict(found.summary.problems) == {"damaged record of the version": 1}
        store = reopened(tmp_path)
        assert (store.unique, store.mended_version is not None) == (unique, True)
        assert check_records(store).is_sound, "it is right by now"
        store.close()
        assert check_store(tmp_path, EngineSettings()).is_sound


@pytest.mark.parametrize("value", DAMAGED_VERSIONS)
def test_a_damaged_version_without_its_copy_is_a_clear_error(tmp_path: Path, value: bytes) -> None:
    reopened(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn)
        txn.put(VERSION, value, db=meta)
        txn.delete(VERSION_CHECK, db=meta)
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match="the record of its version is damaged"):
            reopened(tmp_path)


def test_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    reopened(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn)
        txn.put(VERSION, msgpack.packb(STORE_VERSION + 1), db=meta)
        txn.put(VERSION_CHECK, encode_meta(VERSION_CHECK, STORE_VERSION + 1), db=meta)
    with pytest.raises(StoreVersionException, match=rf"has version {STORE_VERSION + 1}.*upgrade"):
        reopened(tmp_path)
    with pytest.raises(StoreVersionException):  # and it was given free
        reopened(tmp_path)
