"""The room that a store on disk has."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    entry_key,
)
from broker_adapter.engine.store.lmdb_room import BALLAST_BYTES, can_grow
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.storing import BODY, put


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(tmp_path, EngineSettings(max_store_bytes=16 * 1024 * 1024, min_free_disk_bytes=0))
    yield store
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


def test_a_disk_that_is_filling_up_keeps_a_part_for_settlements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path, EngineSettings(min_free_disk_bytes=0))
    found = os.statvfs(tmp_path)
    pages = 32 * 1024 * 1024 // found.f_frsize
    nearly_full = os.statvfs_result((*found[:4], pages, *found[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda _path: nearly_full)
    before = (tmp_path / "data.mdb").stat().st_size
    room = store.room()
    assert room is not None
    assert not room.is_used_up
    assert (tmp_path / "data.mdb").stat().st_size >= before + BALLAST_BYTES - 1_000_000
    store.close()


@pytest.mark.parametrize(("largest", "said"), [(3 * 1024 * 1024, "ulimit -f"), (1 << 40, "max_store_bytes")])
def test_records_take_four_fifths_of_the_largest_file_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, said: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _what: (largest, largest))
    store = LmdbStore(tmp_path, EngineSettings(max_store_bytes=16 * 1024 * 1024, min_free_disk_bytes=0))
    room = store.room()
    assert room is not None
    assert said in room.reason
    assert room.single_pages * room.page_bytes < 0.8 * min(largest, 20 * 1024 * 1024)
    store.close()


@pytest.mark.parametrize("code", [errno.EFBIG, errno.EDQUOT, errno.ENOSPC, None])
def test_a_store_can_grow_unless_the_system_says_that_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    LmdbStore(tmp_path, EngineSettings()).close()

    def allocate(_file: int, _start: int, _size: int) -> None:
        if code is not None:
            raise OSError(code, "no room")

    monkeypatch.setattr("os.posix_fallocate", allocate)
    assert can_grow(tmp_path) is (code is None)
