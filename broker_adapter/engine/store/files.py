"""The files of a store: ``data.mdb`` (the records), ``lock.mdb`` (LMDB's own) and ``owner`` (its process)."""

from __future__ import annotations

import fcntl
import os
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from broker_adapter.engine.check.pages import File, Read, contradiction, metas
from broker_adapter.engine.store.lmdb_errors import opening_failed
from broker_adapter.errors import StoreCorruptException, StoreException, StoreLockedException

#: The name of the file that has the records.
DATA: Final = "data.mdb"
#: That of LMDB's own.
LOCK: Final = "lock.mdb"
#: Between the name of the first and the time of a damaged file that is kept beside.
PUT_ASIDE: Final = ".damaged-"
#: Bytes of LMDB's lock file with its 126 places for readers.
_LOCK_BYTES: Final = 8192


def existing_store(path: str | os.PathLike[str]) -> Path:
    """The directory of a store; raises StoreException where there is none."""
    directory = Path(path)
    if not (directory / DATA).exists():
        raise StoreException(f"there is no store in {str(directory)!r}: it has no file {DATA}")
    return directory


def allocate_lock(path: Path) -> None:
    """Have the blocks of the lock file on the disk: LMDB maps it, and a full disk would end the process (SIGBUS).

    Raises:
        StoreException: there is no room for it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(handle).st_blocks * 512 < _LOCK_BYTES:
            os.posix_fallocate(handle, 0, _LOCK_BYTES)
    except OSError as error:
        raise StoreException(
            f"the store in {str(path.parent)!r} cannot be opened: {error}; its file {path.name} needs"
            f" {_LOCK_BYTES} bytes: make room on the disk"
        ) from error
    finally:
        os.close(handle)


def reader_of(handle: int) -> Read:
    """Return what reads the open file, for :mod:`broker_adapter.engine.check.pages`."""
    return lambda offset, size: os.pread(handle, size, offset)


def check_size(data: Path) -> None:
    """Raise StoreCorruptException where the file lacks pages that hold something: reading them would be a bus error.

    LMDB does not write a page that was used and freed in the same transaction.  So the last pages of a sound file may
    be missing, if they are all among the free ones; room is made for them then.
    """
    try:
        size = data.stat().st_size
    except FileNotFoundError:
        return
    if size == 0:
        raise StoreCorruptException(
            f"{str(data)!r} is empty: restore it from a copy, or remove it to begin with an empty store"
        )
    with data.open("rb") as file:
        read = reader_of(file.fileno())
        found = metas(read)
        if len(found) < 2:
            raise StoreCorruptException(
                f"{str(data)!r} is not an LMDB file, or is damaged; run: holdfast check {str(data.parent)!r},"
                " or restore it from a copy"
            )
        wrong = contradiction(found)
        if wrong is not None:
            raise StoreCorruptException(
                f"{str(data)!r} is damaged: {wrong}; run: holdfast check {str(data.parent)!r} --repair"
            )
        page_bytes = found[0].free.page_bytes
        needed = (found[0].last_page + 1) * page_bytes
        if size >= needed:
            return
        if not File(read, found[0], size).ends_with_free():
            raise StoreCorruptException(
                f"{str(data)!r} is truncated: it has {size} bytes and should have {needed}; restore it from a copy,"
                f" or take out what is left of it: holdfast check {str(data.parent)!r} --repair"
            )
    os.truncate(data, needed)


def _private(path: str, flags: int) -> int:
    """Open a file that only its user may read."""
    return os.open(path, flags, 0o600)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(made: Path, directory: Path) -> None:
    """Put a whole file into the place of the records of a store that no process writes; at no moment is there none.

    LMDB's lock file knows the last transaction of the file that it was made for.  A reader of another process keeps it
    open; the next opening makes its own.
    """
    os.replace(made, directory / DATA)
    (directory / LOCK).unlink(missing_ok=True)
    sync_directory(directory)


def own(path: Path) -> IO[str]:
    """Take the lock on a store, and write into it which process has it; the lock is given up when the file is closed.

    Raises:
        StoreLockedException: another process has it (the error says which).
        StoreException: it cannot be taken.
    """
    try:
        # It stays open as long as the store.
        file = open(path / "owner", "a+", encoding="utf-8", opener=_private)  # noqa: SIM115
    except OSError as error:
        raise opening_failed(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read(1000).strip() or "another process"
        file.close()
        raise StoreLockedException(
            f"the store in {str(path)!r} is in use by {owner}; stop it, or connect to it as a server (amqp://...)"
        ) from error
    command = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    owner = f"process {os.getpid()} ({command}), since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    with suppress(OSError):  # it is for people: a store is opened on a full disk as well
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), owner.encode(errors="replace"))
    _owned.add(file)
    return file


_owned: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _after_fork() -> None:
    """A child process has the parent's locks as well, and would keep them for as long as it runs."""
    for file in _owned:
        file.close()  # the lock stays with the parent
    _owned.clear()


os.register_at_fork(after_in_child=_after_fork)
