"""What a copy gets of a store: the present records of keys, and of ranges of keys, in answers that have a bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest

from broker_adapter.engine.records.tail import decode_commit, lsn_key
from broker_adapter.engine.store import deltas
from broker_adapter.engine.store.deltas import (
    changes_behind,
    chunk_behind,
    has_commit,
    last_key,
    lsn_of,
    records_of,
    tail_keys,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore, Snapshot
from broker_adapter.errors import StoreCorruptException
from tests.broker_adapter.engine.storing import reopened

MUCH = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """A store that is followed, and has one commit."""
    store = reopened(tmp_path)
    store.begin_tail()
    yield store
    store.close()


def put(store: LmdbStore, *records: tuple[bytes, bytes | None], table: str = "cursors") -> None:
    """Make one commit."""
    store.apply((table, key, value) for key, value in records)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is full with a few records."""
    monkeypatch.setattr(deltas, "LARGE_BYTES", 100)
    monkeypatch.setattr(deltas, "_FULL_BYTES", 400)


@contextmanager
def records(store: LmdbStore) -> Iterator[Snapshot]:
    with store.snapshot() as found:
        yield found


def test_the_changes_behind_a_commit_are_the_present_records_of_its_keys(store: LmdbStore) -> None:
    put(store, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    put(store, (b"a", b"2"), (b"b", None))
    put(store, (b"d", b"1"), (b"d", None))
    with records(store) as found:
        answer, last = changes_behind(found, 1, MUCH)
        puts, deletes = answer.changes
        assert (answer.lsn, last, answer.rest) == (4, 4, [])
        assert puts["cursors"] == [(b"a", b"2"), (b"c", b"1")]
        assert deletes["cursors"] == [b"b", b"d"]
        assert [decode_commit(*each).lsn for each in puts["tail"]] == [2, 3, 4]
        answer, last = changes_behind(found, 3, MUCH)
        assert (answer.changes[0].keys(), answer.changes[1]) == ({"tail"}, {"cursors": [b"d"]})
        answer, last = changes_behind(found, 4, MUCH)
        assert (answer.lsn, last, answer.changes) == (4, 4, ({}, {}))


def test_an_answer_ends_with_a_commit_and_has_one_at_least(store: LmdbStore) -> None:
    for number in range(5):
        put(store, *[(b"%d %d" % (number, each), bytes(100)) for each in range(10)])
    with records(store) as found:
        for lsn in range(1, 6):
            answer, last = changes_behind(found, lsn, 500)
            assert (answer.lsn, last) == (6, lsn + 1)
            assert len(answer.changes[0]["cursors"]) == 10
        assert changes_behind(found, 1, 3000)[1] == 4


def test_a_commit_that_is_missing_or_damaged_has_no_changes(store: LmdbStore) -> None:
    for number in range(3):
        put(store, (b"key", b"%d" % number))
    with store._env.begin(write=True) as txn:
        txn.delete(lsn_key(3), db=store._db["tail"])
    with records(store) as found:
        assert changes_behind(found, 3, MUCH)[1] == 4
        with pytest.raises(StoreCorruptException, match="commit 3 is missing"):
            changes_behind(found, 1, MUCH)
    with store._env.begin(write=True) as txn:
        txn.put(lsn_key(3), b"damaged and long enough", db=store._db["tail"])
    with records(store) as found, pytest.raises(StoreCorruptException, match="fails its checksum"):
        changes_behind(found, 1, MUCH)


@pytest.mark.usefixtures("small")
def test_what_an_answer_has_no_room_for_is_named_with_its_checksum(store: LmdbStore) -> None:
    large, small = bytes(100), b"x" * 60
    put(store, (b"0", large), *[(b"%d" % number, small) for number in range(1, 9)], (b"9", b"small"))
    with records(store) as found:
        for answer in (
            changes_behind(found, 1, MUCH)[0],
            records_of(found, {"cursors": [b"%d" % n for n in range(10)]}),
        ):
            there = [key for key, _ in answer.changes[0]["cursors"]]
            assert there == [b"1", b"2", b"3", b"9"], "the small ones are in the answer"
            assert answer.rest[0] == ("cursors", b"0", 100, crc32(large))
            assert answer.rest[1:] == [("cursors", b"%d" % number, 60, crc32(small)) for number in range(4, 9)]


@pytest.mark.usefixtures("small")
def test_one_record_that_is_not_large_is_always_in_an_answer(store: LmdbStore) -> None:
    put(store, (b"key", bytes(99)))
    with records(store) as found:
        assert records_of(found, {"cursors": [b"key"]}).rest == []


def test_records_that_are_not_there_are_deleted(store: LmdbStore) -> None:
    put(store, (b"a", b"1"))
    with records(store) as found:
        answer = records_of(found, {"cursors": [b"a", b"b"], "keys": [b"c"]})
        assert answer.changes == ({"cursors": [(b"a", b"1")]}, {"cursors": [b"b"], "keys": [b"c"]})
        assert answer.lsn == 2


def test_a_table_comes_in_chunks_up_to_a_key(store: LmdbStore) -> None:
    put(store, *[(b"%d" % number, bytes(50)) for number in range(8)])
    with records(store) as found:
        until, after, keys = last_key(found, "cursors"), b"", []
        assert until == b"7"
        put(store, (b"8", b"too late"), (b"70", b"behind it"))
    with records(store) as found:
        for _ in range(4):
            chunk = chunk_behind(found, "cursors", after, until, 100)
            keys += [key for key, _ in chunk.answer.changes[0]["cursors"]]
            assert chunk.answer.lsn == 3
            if chunk.last is None:
                break
            after = chunk.last
        assert keys == [b"%d" % number for number in range(8)]


def test_a_table_whose_last_records_are_gone_meanwhile_has_an_end(store: LmdbStore) -> None:
    put(store, (b"1", bytes(50)), (b"2", bytes(50)))
    with records(store) as found:
        assert chunk_behind(found, "cursors", b"", b"5", 1).last == b"1"
        assert chunk_behind(found, "cursors", b"1", b"5", 10_000).last is None
        assert chunk_behind(found, "cursors", b"2", b"5", 10_000).last is None
        assert chunk_behind(found, "keys", b"", last_key(found, "keys"), 1) == ((2, ({}, {}), []), None)


def test_the_keys_behind_a_commit_are_those_that_it_and_later_ones_changed(store: LmdbStore) -> None:
    put(store, (b"a", b"1"))
    put(store, (b"b", b"1"), (b"a", b"2"))
    put(store, (b"b", None))
    with records(store) as found:
        assert tail_keys(found, 4) == ([], {})
        own, keys = tail_keys(found, 2)
        assert own == [lsn_key(3), lsn_key(4)]
        assert {table: sorted(some) for table, some in keys.items()} == {"cursors": [b"a", b"b"]}


def test_a_commit_is_known_by_its_number_and_its_writer(store: LmdbStore) -> None:
    with records(store) as found:
        assert lsn_of(found) == 1
        writer = decode_commit(*next(found.items("tail"))).writer
        assert has_commit(found, 1, writer)
        assert not has_commit(found, 2, writer)
        assert not has_commit(found, 1, bytes(8))
