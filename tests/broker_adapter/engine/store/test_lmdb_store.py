"""What only a store on disk can do, and suffer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from broker_adapter.clock import epoch_ms
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    AGE,
    DELAYED_LANE,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    UNIQUE,
    VERSION,
    CatalogRecord,
    Counters,
    LaneCounters,
    LastRecord,
    RunRecord,
    SequencesRecord,
    encode_annotations,
    encode_catalog,
    encode_counters,
    encode_last,
    encode_meta,
    encode_run,
    encode_sequences,
    entry_key,
    last_key,
    message_key,
    quarantine_key,
    queue_key,
    run_key,
    schedule_key,
    schedule_line,
    stream_key,
)
from broker_adapter.engine.records.start_numbers import KEPT_RUNS
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.port import Loaded
from broker_adapter.errors import ResourceAllocationException, StoreCorruptException, StoreException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import full_up
from tests.broker_adapter.engine.storing import SETTINGS, batch_of, damage, entry, note, positions, put, reopened


def test_the_age_of_a_store_that_has_no_note_of_it_is_that_of_its_youngest_name(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    assert store.age_ms() is not None, "a new one notes the time of the day"
    batch = StoreBatch()
    batch.put("meta", AGE, None)
    store.commit(batch)
    assert store.age_ms() is None
    batch = StoreBatch()
    for table, name, used_ms in (("commits", "a", 5), ("published", "b", 9), ("commits", "c", 7)):
        batch.put(table, last_key(name), encode_last(last_key(name), LastRecord(1, used_ms)))
    batch.put("published", last_key("d"), b"damaged")
    store.commit(batch)
    assert store.age_ms() == 9
    batch = StoreBatch()
    batch.put("meta", AGE, encode_meta(AGE, 8))
    store.commit(batch)
    assert store.age_ms() == 8
    ahead = epoch_ms() + 1_000_000_000
    batch.put("commits", last_key("e"), encode_last(last_key("e"), LastRecord(1, ahead)))
    batch.put("meta", AGE, None)
    store.commit(batch)
    assert (store.age_ms() or 0) < ahead, "a name that was used while the clock was ahead makes the store no older"
    batch.put("commits", last_key("e"), None)
    batch.put("meta", AGE, b"damaged")
    store.commit(batch)
    assert store.age_ms() == 9
    store.close()


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
    batch = batch_of(entry(1, 5, 1, 41))
    batch.put("meta", NEXT_MESSAGE, encode_meta(NEXT_MESSAGE, 100))
    store.commit(batch)
    batch = StoreBatch()
    batch.gone.append(41)
    store.commit(batch)
    store.close()
    store = reopened(tmp_path)
    assert store.next_message() == 100
    store.close()


def test_damaged_entries_and_messages_are_reported_and_can_be_put_aside(tmp_path: Path) -> None:
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
    monkeypatch.setattr("broker_adapter.engine.store.lmdb_store._MAP_RESERVE_BYTES", 0)
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


def last_batch(*names: str) -> StoreBatch:
    batch = StoreBatch()
    for number, name in enumerate(names, 1):
        batch.put("commits", last_key(name), encode_last(last_key(name), LastRecord(number, 100)))
    return batch


def fill(store: LmdbStore) -> None:
    """Take every page but for a few, as in a store that is full."""
    env = store._env
    env.set_mapsize((env.info()["last_pgno"] + 100) * env.stat()["psize"])
    full_up(store)


def test_a_directory_below_a_file_is_refused_and_the_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_bytes(b"something")
    for path in (file, file / "store"):
        with pytest.raises(StoreException, match=r"a file' is a file; give a directory, which is made where there is"):
            reopened(path)
    assert file.read_bytes() == b"something"


def test_a_file_of_another_program_is_refused_and_the_directory_given_free(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=20) as env, env.begin(write=True) as txn:
        txn.put(b"meta", b"no table")
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match=r"is not one, or is damaged: .* run: holdfast check"):
            reopened(tmp_path)


def test_a_failure_says_what_to_do_in_use_and_at_the_start(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    assert isinstance(store.errors, tuple)
    assert "stop the server or program that has it open" in str(store.as_failure(OSError("input/output error")))
    assert "put that right, and start again" in str(store.as_opening_failure(OSError("input/output error")))
    store.close()


def test_a_store_that_is_to_be_kept_as_it_is_is_not_changed_by_its_opening(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1)))
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        txn.delete(VERSION, db=env.open_db(b"meta", txn))  # an opening puts it there again
    before = (tmp_path / "data.mdb").read_bytes()
    store = LmdbStore(tmp_path, SETTINGS, is_kept=True)
    with store.snapshot() as tables:
        assert tables.get("meta", VERSION) is not None, "it is seen as an engine would find it"
        assert tables.count("entries") == 1
        assert [key for key, _ in tables.items("messages")] == [message_key(1)]
    store.close()
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_check_opens_a_store_whose_name_is_damaged(tmp_path: Path) -> None:
    reopened(tmp_path).close()
    damage(tmp_path, "meta", UNIQUE)
    with pytest.raises(StoreCorruptException, match="record 'unique'"):
        reopened(tmp_path)
    store = LmdbStore(tmp_path, SETTINGS, is_checked=True)
    assert store.unique == ""
    store.close()


def test_counters_are_made_of_the_entries_of_one_queue(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 7, 1, size=10), entry(1, 4, 8, 2, size=20), entry(2, 5, 9, 3, size=40)))
    counters = store.count(1)
    assert counters.next_position > 8
    assert (counters.stored_bytes, [tuple(lane)[:2] for lane in counters.lanes]) == (30, [(4, 1), (5, 1)])
    store.close()


def test_a_damaged_stream_goes_into_quarantine_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(tmp_path)
    batch = StoreBatch()
    keys = [stream_key(name) for name in ("first", "second", "third")]
    for number, key in enumerate(keys):
        batch.put("producers", key, encode_sequences(key, SequencesRecord(number, 1, 100 + number)))
    store.commit(batch)
    store.close()
    damage(tmp_path, "producers", keys[1])
    store = reopened(tmp_path)
    assert [key for key, _ in store.streams()] == [keys[0], keys[2]]
    assert store.in_quarantine([quarantine_key("producers", key) for key in keys]) == {
        quarantine_key("producers", keys[1])
    }
    assert f"record {keys[1].hex()} of table producers is damaged" in caplog.text
    store.close()


def test_the_last_number_of_a_name_is_found_and_a_damaged_one_goes_into_quarantine(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(last_batch("a", "b"))
    store.close()
    damage(tmp_path, "commits", last_key("b"))
    store = reopened(tmp_path)
    assert store.last_number("commits", "a") == LastRecord(1, 100)
    assert store.last_number("commits", "c") is None
    assert store.last_number("published", "a") is None
    assert store.quarantined() == 0
    assert store.last_number("commits", "b") is None
    assert store.quarantined() == 1
    store.close()


def test_last_numbers_come_in_parts_and_damaged_ones_are_named(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(last_batch("a", "b", "c", "d"))
    store.close()
    damage(tmp_path, "commits", last_key("c"))
    store = reopened(tmp_path)
    part = store.last_numbers("commits", b"", 2)
    assert part == [(last_key("a"), LastRecord(1, 100)), (last_key("b"), LastRecord(2, 100))]
    assert store.last_numbers("commits", part[-1][0], 2) == [(last_key("c"), None), (last_key("d"), LastRecord(4, 100))]
    assert store.last_numbers("commits", last_key("d"), 2) == []
    store.close()


def test_the_next_number_of_a_queue_is_one_at_first_and_then_what_is_noted(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    assert store.next_queue() == 1
    batch = StoreBatch()
    batch.put("meta", NEXT_QUEUE, encode_meta(NEXT_QUEUE, 7))
    store.commit(batch)
    assert store.next_queue() == 7
    store.close()
    damage(tmp_path, "meta", NEXT_QUEUE)
    store = reopened(tmp_path)
    with pytest.raises(StoreCorruptException, match=r"record 'next_queue' .* run: holdfast check .* --repair"):
        store.next_queue()
    store.close()


def test_the_last_starts_are_remembered_with_their_positions_and_damaged_ones_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(tmp_path)
    for number in range(KEPT_RUNS + 2):
        note(store, RunRecord(str(number), {7: number}))
    assert store.runs() == [str(number) for number in range(2, KEPT_RUNS + 2)]
    assert [store.run_positions(run) for run in ("2", "1", "none")] == [{7: 2}, {}, {}]
    store.close()
    damage(tmp_path, "meta", run_key(3))  # the first one has number 1
    store = reopened(tmp_path)
    assert store.runs() == ["", *(str(number) for number in range(3, KEPT_RUNS + 2))]
    assert f"a start of the engine fails its checksum: {run_key(3).hex()}" in caplog.text
    store.close()


def test_a_key_that_only_begins_like_that_of_a_start_is_passed_over(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    note(store, RunRecord("first", {}))
    with store._env.begin(write=True) as txn:
        for key in (b"run/", b"run/1", run_key(7) + b"\0"):
            txn.put(key, encode_run(key, RunRecord("strange", {})), db=store._db["meta"])
    note(store, RunRecord("second", {}))
    assert store.runs() == ["first", "second"]
    store.close()


def test_a_start_is_not_noted_in_a_full_store_and_the_store_says_so(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    note(store, RunRecord("first", {}))
    fill(store)
    with pytest.raises(ResourceAllocationException):
        note(store, RunRecord("second", dict.fromkeys(range(1000), 1 << 60)))
    assert store.runs() == ["first"]
    assert store._writes.unnoted is not None
    store.close()


def test_what_cannot_be_set_aside_in_a_full_store_stays_and_the_log_says_so_once_for_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2), body=b"x" * 20_000))
    fill(store)
    for number in (1, 2):
        assert not store.quarantine("messages", [message_key(number)])
    assert caplog.text.count("it stays where it is, as may others") == 1
    assert message_key(1).hex() in caplog.text
    assert store.quarantined() == 0
    assert all(store.read_messages([1, 2]))
    store.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda store: note(store, RunRecord("x", {})),
        lambda store: store.quarantine("entries", [entry_key(1, 5, 1)]),
        lambda store: put(store, 2),
    ],
    ids=["run", "quarantine", "batch"],
)
def test_a_write_into_a_store_that_has_failed_is_an_error(tmp_path: Path, write: Callable[[LmdbStore], object]) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1)))
    store._env.close()
    with pytest.raises(StoreException, match=r"failed: .* and run: holdfast check"):
        write(store)
    store.close()


def test_of_many_damaged_records_the_first_are_named_and_the_others_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(*[entry(1, 5, number, number) for number in range(1, 31)]))
    keys = [entry_key(1, 5, number) for number in range(1, 41)]  # there are only 30
    assert store.quarantine("entries", keys)
    assert store.quarantined() == 30
    assert caplog.text.count("it is in quarantine") == 20
    assert "10 more records are damaged" in caplog.text
    store.close()


def test_a_shared_message_whose_count_is_damaged_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = reopened(tmp_path)
    flags = FLAG_PERSISTENT | FLAG_SHARED
    batch = batch_of(entry(1, 5, 1, 1, flags=flags))
    batch.entries.update([entry(2, 5, 1, 1, flags=flags)])
    batch.references.append((1, 2))
    store.commit(batch)
    store.close()
    damage(tmp_path, "references", message_key(1))
    store = reopened(tmp_path)
    batch = StoreBatch()
    batch.unreferenced.extend([1, 1])
    store.commit(batch)
    assert list(store.read_messages([1])) == [(7, b"x1")]
    assert "the count of references to message 1 cannot be trusted; the message is kept" in caplog.text
    store.close()


def test_damaged_annotations_are_none(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    key = entry_key(1, 5, 1)
    batch = batch_of(entry(1, 5, 1, 1))
    batch.put("annotations", key, encode_annotations(key, {"why": "x"}))
    store.commit(batch)
    store.close()
    damage(tmp_path, "annotations", key)
    store = reopened(tmp_path)
    assert store.annotations(key) is None
    store.close()


def test_what_is_due_of_a_damaged_entry_comes_without_it(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    key, found = entry(1, DELAYED_LANE, 1, 1)
    batch = batch_of((key, found))
    batch.put("schedule", *schedule_line(100, KIND_DELIVER, key))
    store.commit(batch)
    assert store.due(100, 10) == [(KIND_DELIVER, found, schedule_key(100, KIND_DELIVER, key))]
    store.close()
    damage(tmp_path, "entries", key)
    store = reopened(tmp_path)
    assert store.due(100, 10) == [(KIND_DELIVER, None, schedule_key(100, KIND_DELIVER, key))]
    store.close()


def test_a_snapshot_stays_as_it_was_while_others_write(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1)))
    with store.snapshot() as tables:
        store.commit(batch_of(entry(1, 5, 2, 2)))
        assert (tables.count("entries"), tables.get("entries", entry_key(1, 5, 2))) == (1, None)
        assert [key for key, _ in tables.items("entries")] == [entry_key(1, 5, 1)]
    with store.snapshot() as tables:
        assert tables.count("entries") == 2
    store.close()


def test_the_changes_of_a_repair_are_written_and_a_copy_has_all(tmp_path: Path) -> None:
    store = reopened(tmp_path / "one")
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2)))
    store.apply([("entries", entry_key(1, 5, 1), None), ("quarantine", b"key", b"value")])
    (tmp_path / "two").mkdir()
    store.copy(tmp_path / "two")
    unique = store.unique
    store.close()
    store = reopened(tmp_path / "two")
    assert store.unique == unique
    assert positions(store.load(1, 5, 0, 10).entries) == [2]
    assert store.quarantined() == 1
    store.close()


def test_a_range_that_ends_before_it_begins_is_empty(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2)))
    assert store.read_entries(1, 2, 1, 10) == Loaded([], [], True)
    store.close()


def test_a_store_whose_file_is_gone_beside_a_damaged_one_is_not_created_again(tmp_path: Path) -> None:
    reopened(tmp_path).close()
    (tmp_path / "data.mdb").rename(tmp_path / "data.mdb.damaged-20261122-120000")
    with pytest.raises(StoreException, match=r"has no file data.mdb, only data.mdb.damaged-20261122-120000: restore"):
        reopened(tmp_path)
    assert not (tmp_path / "data.mdb").exists()
