"""Transactions that write: a write that is cut short is told from a disk that has failed."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from broker_adapter.engine.records.layout import NEXT_RUN, RunRecord, decode_meta
from broker_adapter.engine.records.start_numbers import KEPT_RUNS
from broker_adapter.engine.store import lmdb_writes
from broker_adapter.engine.store.lmdb_writes import Writes
from broker_adapter.errors import ResourceAllocationException, StoreException
from tests.broker_adapter.engine.storing import batch_of, entry, note, positions, put, reopened


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process may not become larger, so that writes are cut short there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_is_cut_short_is_no_failure_and_is_written_once_when_there_is_room(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    put(store, 1)
    batch = batch_of(entry(1, 5, 2, 2), body=b"x" * 1_000_000)
    with largest_file((tmp_path / "data.mdb").stat().st_size + 20_000):
        for _ in range(3):
            with pytest.raises(ResourceAllocationException, match="is full; make room on it"):
                store.commit(batch)
        assert positions(store.load(1, 5, 0, 9).entries) == [1]
        store.close()  # nothing is left of what was cut short
        store = reopened(tmp_path)
        assert positions(store.load(1, 5, 0, 9).entries) == [1]
    store.commit(batch)
    assert positions(store.load(1, 5, 0, 9).entries) == [1, 2]
    store.close()


def next_number(path: Path) -> int:
    store = reopened(path)
    with store._env.begin() as txn:
        noted = txn.get(NEXT_RUN, db=store._db["meta"])
    store.close()
    return int(decode_meta(NEXT_RUN, noted))


def test_a_start_is_noted_with_what_is_written_first_and_only_once(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    before = store._env.info()["last_txnid"]
    store.begin_run(RunRecord("this", {}))
    assert store._writes.unnoted is not None
    assert (store.runs(), store._env.info()["last_txnid"]) == ([], before), "nothing is written"
    put(store, 1)
    assert store._writes.unnoted is None
    assert (store.runs(), store._env.info()["last_txnid"]) == (["this"], before + 1)
    put(store, 2)
    store.note_run()
    assert (store.runs(), store._env.info()["last_txnid"]) == (["this"], before + 2)
    store.close()
    assert next_number(tmp_path) == 2


def test_a_start_is_noted_at_once_where_that_is_wanted(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    store.note_run()
    assert store.runs() == []
    store.begin_run(RunRecord("this", {}))
    store.note_run()
    assert store._writes.unnoted is None
    assert store.runs() == ["this"]
    store.close()


def test_a_start_its_number_and_what_is_forgotten_for_it_are_one_with_the_first_commit(tmp_path: Path) -> None:
    """Also where that finds no room at first, and a reader in between sees none of it."""
    store = reopened(tmp_path)
    for number in range(KEPT_RUNS):
        note(store, RunRecord(str(number), {}))
    known = store.runs()
    store.close()
    store = reopened(tmp_path)
    store.begin_run(RunRecord("this", {1: 5}))
    with largest_file(1):
        for attempt in (store.note_run, lambda: put(store, 1), store.note_run):
            with pytest.raises(ResourceAllocationException):
                attempt()
            assert store._writes.unnoted is not None
            assert store.runs() == known
    store.close()  # the same as a crash: nothing is left of it
    assert next_number(tmp_path) == KEPT_RUNS + 1
    store = reopened(tmp_path)
    store.begin_run(RunRecord("that", {1: 5}))
    put(store, 1)
    assert store.runs() == [*known[1:], "that"]
    assert store.run_positions("that") == {1: 5}
    store.close()
    assert next_number(tmp_path) == KEPT_RUNS + 2


def test_any_number_of_starts_on_a_full_disk_forgets_none(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    note(store, RunRecord("first", {}))
    with largest_file(1):
        for number in range(2 * KEPT_RUNS):
            store.begin_run(RunRecord(str(number), {}))
            if number % 100 == 0:
                with pytest.raises(ResourceAllocationException):
                    store.note_run()
    assert store.runs() == ["first"]
    put(store, 1)
    assert store.runs() == ["first", str(2 * KEPT_RUNS - 1)]
    store.close()
    assert next_number(tmp_path) == 3


class Failing:
    """An environment of LMDB whose transactions fail, one after the other, as they are to."""

    def __init__(self, *errors: lmdb.Error | None) -> None:
        self.left = list(errors)
        self.grown = 0

    @contextmanager
    def begin(self, **_: Any) -> Iterator[None]:
        error = self.left.pop(0)
        yield
        if error is not None:
            raise error

    def can_grow(self, _path: Path) -> bool:
        self.grown += 1
        return True


def failed_disk() -> lmdb.Error:
    error = lmdb.Error("mdb_txn_commit: Input/output error")
    error.code = errno.EIO
    return error


def write(env: Failing, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the changes were put."""
    monkeypatch.setattr(lmdb_writes, "can_grow", env.can_grow)
    put: list[Any] = []
    monkeypatch.setattr(lmdb_writes, "put_changes", lambda *arguments: put.append(arguments))
    Writes(env, {}, Path("dir"), 16).write({})
    return len(put)


def test_a_disk_that_fails_twice_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Failing(failed_disk(), failed_disk())
    with pytest.raises(StoreException, match="Input/output error; stop the server"):
        write(env, monkeypatch)
    assert env.left == []


def test_a_failure_that_lmdb_does_not_recover_from_is_reported_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreException, match="Input/output error; stop the server"):
        write(Failing(failed_disk(), lmdb.PanicError("panic")), monkeypatch)


def test_a_write_for_which_room_was_made_meanwhile_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert write(Failing(failed_disk(), None), monkeypatch) == 2
    assert "succeeded when it was repeated" in caplog.text


def test_another_error_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Failing(lmdb.CorruptedError("page 7"))
    with pytest.raises(StoreException, match="page 7"):
        write(env, monkeypatch)
    assert env.grown == 0
