"""One contract over both stores; and what only a store on disk can suffer."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import pytest

from broker_adapter.engine import lmdb_store
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import NewMessage
from broker_adapter.engine.effects import StoreBatch
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.maintenance import check_records, check_store, compact_store
from broker_adapter.engine.memory_store import MemoryStore
from broker_adapter.engine.pages import metas
from broker_adapter.engine.records import (
    DELAYED_LANE,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    NEXT_QUEUE,
    STORE_VERSION,
    VERSION,
    VERSION_CHECK,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    SequencesRecord,
    encode_annotations,
    encode_catalog,
    encode_counters,
    encode_meta,
    encode_sequences,
    entry_key,
    queue_key,
    schedule_key,
    stream_key,
)
from broker_adapter.errors import (
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
    StoreLockedException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import connect, send

SETTINGS = EngineSettings(max_store_bytes=64 * 1024 * 1024)
Store = LmdbStore | MemoryStore


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = LmdbStore(tmp_path, SETTINGS) if request.param == "lmdb" else MemoryStore()
    yield made
    made.close()


def entry(queue: int, lane: int, position: int, number: int, **fields: Any) -> tuple[bytes, RawEntry]:
    values = {"delivery_count": 0, "flags": FLAG_PERSISTENT, "expires_at_ms": 0, "size": 1, **fields}
    return entry_key(queue, lane, position), RawEntry(queue, lane, position, number, **values)


def batch_of(*entries: tuple[bytes, RawEntry], body: bytes = b"x") -> StoreBatch:
    batch = StoreBatch()
    for key, found in entries:
        batch.entries[key] = found
        batch.messages[found.number] = NewMessage(7, body + str(found.number).encode())
    return batch


def positions(entries: list[RawEntry]) -> list[int]:
    return [each.position for each in entries]


# The contract.


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
    batch.put("schedule", schedule_key(200, KIND_EXPIRE, key), b"")
    batch.put("schedule", schedule_key(100, KIND_DELIVER, entry_key(1, DELAYED_LANE, 9)), b"")
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


# On disk.


def reopened(path: Path) -> LmdbStore:
    return LmdbStore(path, SETTINGS)


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


def test_a_store_is_owned_by_one_process_and_the_error_names_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from broker_adapter.engine.lmdb_store import LmdbStore;"
        "from broker_adapter.settings import EngineSettings;"
        "store = LmdbStore(sys.argv[1], EngineSettings(max_store_bytes=1 << 26)); print('open', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreLockedException, match=rf"in use by process {process.pid} .*; stop it, or connect"):
            reopened(tmp_path)
        process.kill()
    reopened(tmp_path).close()


def test_an_older_version_is_taken_over_as_it_is(tmp_path: Path) -> None:
    LmdbStore(tmp_path, EngineSettings()).close()
    with lmdb.open(str(tmp_path), max_dbs=10) as env, env.begin(write=True) as txn:
        txn.put(b"version", msgpack.packb(1), db=env.open_db(b"meta", txn))
    LmdbStore(tmp_path, EngineSettings()).close()
    with lmdb.open(str(tmp_path), max_dbs=10) as env, env.begin() as txn:
        assert msgpack.unpackb(txn.get(b"version", db=env.open_db(b"meta", txn))) == STORE_VERSION


def test_a_store_whose_version_is_lost_keeps_what_it_is_known_by(tmp_path: Path) -> None:
    """A repair may not find the record of the version; who fails over to the store knows it by ``unique``."""
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


DAMAGED_VERSIONS = [b"", b"\xc1", b"\x91", msgpack.packb("4"), msgpack.packb(-1)]
#: Each with one bit of the version changed.
OTHER_VERSIONS = [bytes((STORE_VERSION ^ 1 << bit,)) for bit in range(8)]


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


def fill(path: Path) -> int:
    store = reopened(path)
    for start in range(0, 500, 50):
        entries = [entry(1, 5, number, number, size=1000) for number in range(start + 1, start + 51)]
        store.commit(batch_of(*entries, body=b"x" * 1000))
    store.close()
    return (path / "data.mdb").stat().st_size


@pytest.mark.parametrize("share", [0.95, 0.5, 0.01])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    size = fill(tmp_path)
    os.truncate(tmp_path / "data.mdb", int(size * share))
    with pytest.raises(StoreCorruptException, match="restore it from a copy"):
        reopened(tmp_path)


def test_a_file_whose_last_pages_were_used_and_freed_in_one_commit_is_not_truncated(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1), body=b"kept"))
    for first, last in ((2, 6), (7, 26)):  # as where messages go to a consumer in NO_ACK mode at once
        batch = StoreBatch()
        for number in range(first, last + 1):
            batch.messages[number] = NewMessage(7, b"x" * 50_000)
            batch.gone.append(number)
        store.commit(batch)
    store.close()
    data = (tmp_path / "data.mdb").read_bytes()
    newest = metas(lambda offset, size: data[offset : offset + size])[0]
    assert len(data) < (newest.last_page + 1) * newest.free.page_bytes
    for _ in range(2):
        store = reopened(tmp_path)
        assert list(store.read_messages([1])) == [(7, b"kept1")]
        store.close()
    assert not check_store(tmp_path, SETTINGS).damages


@pytest.mark.parametrize("content", [b"garbage" * 10_000, b"short"])
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreCorruptException, match="restore it from a copy"):
        reopened(tmp_path)


def test_a_store_that_was_emptied_is_refused_and_a_new_directory_is_not(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    os.truncate(tmp_path / "store" / "data.mdb", 0)
    with pytest.raises(StoreCorruptException, match="empty"):
        reopened(tmp_path / "store")
    reopened(tmp_path / "new").close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreException, match="cannot be opened"):
        reopened(tmp_path / "data")


@pytest.mark.parametrize("where", ["read", "open", "write"])
def test_an_error_of_the_disk_at_the_start_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Who restored an older copy for it would lose messages."""
    store = reopened(tmp_path)
    store.close()

    def fail(*_: Any, **__: Any) -> Any:
        if where == "read":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        raise lmdb.Error(f"{tmp_path}: Input/output error")

    target = {"read": (os, "pread"), "open": (lmdb, "open"), "write": (LmdbStore, "_take_over")}[where]
    monkeypatch.setattr(*target, fail)
    with pytest.raises(StoreException, match="Input/output error") as raised:
        reopened(tmp_path)
    monkeypatch.undo()
    assert type(raised.value) is StoreException
    assert "says nothing about the messages" in str(raised.value)
    assert "copy" not in str(raised.value)
    reopened(tmp_path).close()


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreException, match="cannot be opened"):
        reopened(tmp_path / "file")


def damage(path: Path, table: str, key: bytes) -> None:
    with lmdb.open(str(path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        handle = env.open_db(table.encode(), txn)
        value = bytearray(txn.get(key, db=handle))
        value[-1] ^= 1
        txn.put(key, bytes(value), db=handle)


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


BODY = b"x" * 1_000_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(tmp_path, EngineSettings(max_store_bytes=16 * 1024 * 1024, min_free_disk_bytes=0))
    yield store
    store.close()


def put(store: LmdbStore, number: int) -> None:
    store.commit(batch_of(entry(1, 5, number, number), body=BODY))


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


def test_what_is_kept_in_reserve_lets_messages_go_out_of_a_full_store(small: LmdbStore) -> None:
    number = 0
    while (room := small.room()) is None or room.take(len(BODY), 1):
        number += 1
        put(small, number)
        assert number < 100
    assert number > 10
    assert "max_store_bytes" in room.reason
    for each in range(1, number + 1):
        batch = StoreBatch()
        batch.entries[entry_key(1, 5, each)] = None
        batch.gone.append(each)
        small.commit(batch)
    room = small.room()
    assert room is None or room.take(len(BODY), 1)
    put(small, number + 1)


def test_a_disk_that_is_nearly_full_holds_producers_back(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings(min_free_disk_bytes=1 << 60))
    room = store.room()
    assert room is not None
    assert room.is_used_up
    assert "min_free_disk_bytes" in room.reason
    store.close()


def test_a_new_store_is_for_its_user_alone_and_named_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss may take the file, with all its messages."""
    synced: list[Path] = []
    real = lmdb_store.sync_directory

    def sync(path: Path) -> None:
        synced.append(path)
        real(path)

    monkeypatch.setattr(lmdb_store, "sync_directory", sync)
    path = tmp_path / "new" / "store"
    before = os.umask(0o022)
    try:
        LmdbStore(path, EngineSettings()).close()
        compact_store(path, EngineSettings())
        LmdbStore(path, EngineSettings()).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {
        "data.mdb": 0o600,
        "lock.mdb": 0o600,
        "owner": 0o600,
    }
    assert synced == [path.parent, path.parent.parent, path]
