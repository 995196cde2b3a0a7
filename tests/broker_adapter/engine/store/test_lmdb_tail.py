"""The tail of a store: its bounds, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from broker_adapter.engine.records.layout import MAX_KEY_BYTES
from broker_adapter.engine.records.tail import Commit, Span, decode_commit, encode_commit
from broker_adapter.engine.store.deltas import lsn_of, spans_of
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store, compact_store
from broker_adapter.errors import ResourceAllocationException
from tests.broker_adapter.engine.driving import full_up
from tests.broker_adapter.engine.storing import SETTINGS, batch_of, damage, entry, put, reopened

MIB = 1024 * 1024
BOUNDED = attrs.evolve(SETTINGS, tail_bytes=MIB)
#: Keys whose names take 100 KB in the record of their commit.
MANY = [number.to_bytes(MAX_KEY_BYTES) for number in range(200)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """A store that is followed, with a bound of a MiB."""
    store = LmdbStore(tmp_path / "store", BOUNDED)
    store.begin_tail()
    yield store
    store.close()


def commits(store: LmdbStore) -> list[Commit]:
    with store.snapshot() as records:
        return [decode_commit(*each) for each in records.items("tail")]


def lsn(store: LmdbStore) -> int:
    with store.snapshot() as records:
        return lsn_of(records)


def spans(store: LmdbStore) -> list[Span]:
    with store.snapshot() as records:
        return spans_of(records)


def change(store: LmdbStore, keys: list[bytes]) -> None:
    store.apply([("quarantine", key, None) for key in keys])


def pages(store: LmdbStore) -> int:
    with store._env.begin() as txn:
        stat = txn.stat(store._db["tail"])
    return int(stat["leaf_pages"] + stat["overflow_pages"])


def test_a_store_that_nobody_follows_notes_nothing(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    put(store, 1)
    assert store.tail is None
    assert lsn(store) == 0
    store.close()


def test_each_commit_is_noted_with_the_keys_that_it_put_and_deleted(store: LmdbStore) -> None:
    one, other = entry(1, 5, 1, 1), entry(1, 5, 2, 2)
    store.commit(batch_of(one, other))
    store.apply([("entries", one[0], None), ("entries", other[0], b"x"), ("quarantine", b"k", b"v")])
    first, second, third = commits(store)
    assert (first.lsn, second.lsn, third.lsn) == (1, 2, 3)
    assert first.keys == {}
    assert second.keys["entries"] == [one[0], other[0]]
    assert len(second.keys["messages"]) == 2
    assert sorted(third.keys["entries"]) == [one[0], other[0]]
    assert third.keys["quarantine"] == [b"k"]


def test_it_goes_on_after_a_restart_with_another_writer(store: LmdbStore) -> None:
    put(store, 1)
    store.close()
    again = LmdbStore(store.path, BOUNDED)
    again.begin_tail()
    assert lsn(again) == 2, "it was begun before"
    put(again, 2)
    again.close()
    again = LmdbStore(store.path, BOUNDED)
    first, second = spans(again)
    assert (first.first, first.last, second.first, second.last) == (1, 2, 3, 3)
    assert first.writer != second.writer
    again.close()


def test_a_commit_that_fails_has_no_number(store: LmdbStore) -> None:
    full_up(store)
    before = lsn(store)
    with pytest.raises(ResourceAllocationException):
        store.apply([("meta", b"large", bytes(20 * MIB))])
    assert store.tail is not None
    assert store.tail.lsn == lsn(store) == before
    store.apply([("meta", b"1000000 0", None)])
    assert store.tail.lsn == lsn(store) == before + 1


def test_the_oldest_commits_are_dropped_behind_the_bound(store: LmdbStore) -> None:
    for _ in range(40):
        change(store, MANY)
    last = commits(store)[-1].lsn
    assert last == 41
    assert 5 < len(commits(store)) < 12
    assert pages(store) * 4096 < 1.2 * MIB
    change(store, [b"small"])
    assert commits(store)[-1].lsn == last + 1


def test_the_bound_holds_where_all_commits_are_small(store: LmdbStore) -> None:
    for _ in range(20):
        change(store, MANY)
    with store._env.begin(write=True) as txn:  # as commits by the thousand do
        for number in range(22, 12_000):
            txn.put(*encode_commit(number, b"writer w", {"entries": [bytes(30)]}), db=store._db["tail"])
    store.close()
    again = LmdbStore(store.path, BOUNDED)
    for number in range(12_000, 14_000):
        change(again, [bytes(60)])
        assert again.tail is not None
        assert again.tail.lsn == number
    assert pages(again) * 4096 < 1.2 * MIB
    again.close()


def test_a_commit_larger_than_the_bound_stays_until_the_next_one(store: LmdbStore) -> None:
    put(store, 1)
    change(store, MANY)
    change(store, [number.to_bytes(MAX_KEY_BYTES) for number in range(3000)])
    assert [each.lsn for each in commits(store)] == [4]
    change(store, [b"small"])
    assert [each.lsn for each in commits(store)] == [5]
    change(store, [b"small"])
    assert [each.lsn for each in commits(store)] == [5, 6]


def test_the_tail_of_a_small_store_takes_no_more_than_a_part_of_it(tmp_path: Path) -> None:
    settings = attrs.evolve(SETTINGS, max_store_bytes=16 * MIB)
    store = LmdbStore(tmp_path, settings)
    store.begin_tail()
    for _ in range(100):
        change(store, MANY)
    assert pages(store) * 4096 < 3 * MIB, "the rest is for messages"
    store.write_copied([({"tail": [encode_commit(lsn(store) + 1, b"writer w", {"meta": MANY})]}, {})] * 2)
    assert pages(store) * 4096 < 3 * MIB
    store.close()


def test_a_tail_whose_last_commit_is_damaged_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = reopened(tmp_path)
    store.begin_tail()
    put(store, 1)
    store.close()
    damage(tmp_path, "tail", (2).to_bytes(8))
    store = reopened(tmp_path)
    assert "each of them takes an image" in caplog.text
    assert commits(store) == []
    store.begin_tail()
    assert lsn(store) == 1
    store.close()


@pytest.mark.damages
def test_a_damaged_commit_is_found_and_set_aside_by_a_check(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.begin_tail()
    for number in range(1, 4):
        put(store, number)
    store.close()
    damage(tmp_path, "tail", (2).to_bytes(8))
    report = check_store(tmp_path, SETTINGS)
    assert "tail" in [each.table for each in report.findings]
    assert check_store(tmp_path, SETTINGS, repair=True).repaired
    assert check_store(tmp_path, SETTINGS).is_sound
    store = reopened(tmp_path)
    assert [(each.first, each.last) for each in spans(store)] == [(3, 4), (5, 5)], "the repair is a commit, too"
    store.close()


def test_it_is_in_a_store_that_is_compacted(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.begin_tail()
    put(store, 1)
    before = commits(store)
    store.close()
    compact_store(tmp_path, SETTINGS)
    store = reopened(tmp_path)
    assert commits(store) == before
    store.close()


def test_a_wait_ends_with_a_commit_and_without_one(store: LmdbStore) -> None:
    assert store.tail is not None
    store.tail.wait_behind(0, 60)  # there is one
    store.tail.wait_behind(1, 0.001)  # there is none
