"""Which version wrote a store, and how that of another one is converted or refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgpack
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.layout import (
    NEXT_QUEUE,
    STORE_VERSION,
    VERSION,
    VERSION_CHECK,
    decode_message,
    encode_message,
    encode_meta,
    queue_key,
    run_key,
    unpack_message_key,
)
from broker_adapter.engine.store import versions
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_records, check_store
from broker_adapter.errors import (
    StoreCorruptException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import connect, drained, send
from tests.broker_adapter.engine.storing import reopened

DAMAGED_VERSIONS = [b"", b"\xc1", b"\x91", msgpack.packb("4"), msgpack.packb(-1)]

#: Each with one bit of the version changed.
OTHER_VERSIONS = [bytes((STORE_VERSION ^ 1 << bit,)) for bit in range(8)]


#: A version that will come, as the software that knows it has it.
COMING = STORE_VERSION + 1


def renamed(txn: Any, tables: Mapping[str, Any]) -> None:
    """A conversion, which gives the only message another body."""
    for key, value in list(txn.cursor(db=tables["messages"])):
        number = unpack_message_key(key)[0]
        form, payload = decode_message(number, value)
        txn.put(key, encode_message(number, form, payload.replace(b"old", b"new")), db=tables["messages"])


def test_a_store_of_an_older_version_is_converted_as_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    assert send(broker, connect(broker), "q", "old") is None
    broker.close()
    before = (tmp_path / "data.mdb").read_bytes()
    monkeypatch.setattr(versions, "STORE_VERSION", COMING)
    monkeypatch.setitem(versions.CONVERSIONS, STORE_VERSION, renamed)
    assert check_store(tmp_path, EngineSettings()).is_sound
    assert (tmp_path / "data.mdb").read_bytes() == before, "a check converts nothing"
    for _ in range(2):
        broker = Broker(EngineSettings(), str(tmp_path))
        assert [each.payload for each in drained(broker, connect(broker), "q")] == [b"new"]
        broker.close()
    monkeypatch.undo()
    with pytest.raises(StoreVersionException, match=rf"has version {COMING}; this software knows .* {STORE_VERSION}:"):
        Broker(EngineSettings(), str(tmp_path))


@pytest.mark.parametrize("steps", [0, 1])
def test_an_older_version_that_cannot_be_converted_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    reopened(tmp_path).close()
    before = (tmp_path / "data.mdb").read_bytes()
    monkeypatch.setattr(versions, "STORE_VERSION", STORE_VERSION + 2)
    for step in range(steps):
        monkeypatch.setitem(versions.CONVERSIONS, STORE_VERSION + step, renamed)
    said = rf"has version {STORE_VERSION}, and this software cannot convert version {STORE_VERSION + steps}: open it"
    for _ in range(2):  # and it was given free
        with pytest.raises(StoreVersionException, match=said):
            reopened(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("version", range(1, STORE_VERSION))
def test_a_store_of_a_development_version_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    reopened(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn)
        txn.put(VERSION, msgpack.packb(version), db=meta)
        txn.put(VERSION_CHECK, encode_meta(VERSION_CHECK, version), db=meta)
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(StoreVersionException, match=rf"has version {version}, and this software cannot convert"):
        reopened(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == before


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
        assert (store.unique, store.repaired_version is not None) == (unique, True)
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


CATALOG = ("queue", "q", None, None, False, False, None, None, 0, 0, None, None)
#: Records as newer software may write them, the key of each, and what an error says of it.
NEWER_RECORDS = {
    "one more field of the catalogue": ("catalog", queue_key(1), (*CATALOG, "more"), "13 fields, .* knows 12"),
    "many more fields of the catalogue": ("catalog", queue_key(1), (*CATALOG, *range(20)), "32 fields, .* knows 12"),
    "a catalogue that is a map": ("catalog", queue_key(1), {"kind": "queue"}, "no array"),
    "a kind that is unknown": ("catalog", queue_key(1), ("shard", *CATALOG[1:]), "'q' .* kind 'shard'"),
    "a kind that is a number": ("catalog", queue_key(1), (7, *CATALOG[1:]), "'q' .* kind 7"),
    "a kind that is a list": ("catalog", queue_key(1), (["queue"], *CATALOG[1:]), r"'q' .* kind \['queue'\]"),
    "a kind that is nothing": ("catalog", queue_key(1), (None, *CATALOG[1:]), "'q' .* kind None"),
    "one more field of the counters": ("queues", queue_key(1), (9, 0, (), 1), "4 fields, .* knows 3"),
    "one more field of a lane": ("queues", queue_key(1), (9, 0, ((5, 0, 0, 1),)), "4 fields, .* knows 3"),
    "one more field of a start": ("meta", run_key(1), ("run", {}, 1), "3 fields, .* knows 2"),
}


def with_record(path: Path, table: str, key: bytes, value: object) -> bytes:
    """A store with a message, and this record; returns its file."""
    broker = Broker(EngineSettings(), str(path))
    assert send(broker, connect(broker), "q", "the only message") is None
    broker.close()
    body = msgpack.packb(value)
    with lmdb.open(str(path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        txn.put(key, crc32(body, crc32(key)).to_bytes(4) + body, db=env.open_db(table.encode(), txn))
        # A check would move this one into quarantine before it reaches most of the others.
        txn.put(b"bad", b"", db=env.open_db(b"catalog", txn))
    return (path / "data.mdb").read_bytes()


@pytest.mark.parametrize("name", NEWER_RECORDS)
def test_a_record_of_newer_software_is_refused_and_nothing_is_touched(tmp_path: Path, name: str) -> None:
    table, key, value, said = NEWER_RECORDS[name]
    before = with_record(tmp_path, table, key, value)
    for touch in (
        lambda: check_store(tmp_path, EngineSettings()),
        lambda: check_store(tmp_path, EngineSettings(), repair=True),
        lambda: Broker(EngineSettings(), str(tmp_path)),
    ):
        with pytest.raises(StoreVersionException, match=rf"{said}.*newer software has written it.*upgrade"):
            touch()
        assert (tmp_path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("name", NEWER_RECORDS)
def test_a_record_of_newer_software_is_not_touched_by_a_repair_of_pages(tmp_path: Path, name: str) -> None:
    table, key, value, _ = NEWER_RECORDS[name]
    data = bytearray(with_record(tmp_path, table, key, value))
    page = data.index(b"the only message") // 4096 * 4096
    data[page : page + 4096] = bytes(4096)
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(StoreVersionException, match=r"newer software has written it.*upgrade"):
        check_store(tmp_path, EngineSettings(), repair=True)
    assert (tmp_path / "data.mdb").read_bytes() == data
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("data")) == ["data.mdb"]
