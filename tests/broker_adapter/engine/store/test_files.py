"""The files of a store: which process has them, and what is refused."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from broker_adapter.engine.check.pages import metas
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.commands.messaging import NewMessage
from broker_adapter.engine.store import lmdb_store
from broker_adapter.engine.store.files import allocate_lock, own
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store, compact_store
from broker_adapter.errors import (
    StoreCorruptException,
    StoreException,
    StoreLockedException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.storing import SETTINGS, batch_of, entry, reopened


def fill(path: Path) -> int:
    store = reopened(path)
    for start in range(0, 500, 50):
        entries = [entry(1, 5, number, number, size=1000) for number in range(start + 1, start + 51)]
        store.commit(batch_of(*entries, body=b"x" * 1000))
    store.close()
    return (path / "data.mdb").stat().st_size


def test_a_store_is_owned_by_one_process_and_the_error_names_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from broker_adapter.engine.store.lmdb_store import LmdbStore;"
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


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreException, match="cannot be opened"):
        reopened(tmp_path / "file")


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


def test_a_lock_file_for_which_there_is_no_room_is_reported_with_the_bytes_that_it_needs(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(StoreException, match=r"lock\.mdb needs 8192 bytes: make room on the disk"):
            allocate_lock(tmp_path / "lock.mdb")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    allocate_lock(tmp_path / "lock.mdb")
    assert (tmp_path / "lock.mdb").stat().st_size == 8192


def test_a_store_whose_owner_cannot_be_noted_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    with pytest.raises(StoreException, match=r"cannot be opened: .*owner"):
        own(tmp_path)


def test_a_child_process_gives_up_the_locks_of_its_parent_which_keeps_them(tmp_path: Path) -> None:
    file = own(tmp_path)
    child = os.fork()
    if child == 0:
        os._exit(7 if file.closed else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(StoreLockedException, match=rf"in use by process {os.getpid()} "):
        own(tmp_path)
    file.close()
    own(tmp_path).close()
