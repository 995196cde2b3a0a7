"""What the errors of LMDB, and of the system, mean for a store."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final

import lmdb

from broker_adapter.errors import ResourceAllocationException, StoreCorruptException, StoreException

#: What a store raises that its disk has failed.
STORE_ERRORS: Final = (lmdb.Error, OSError)

#: What LMDB raises that its file is damaged, or is none of LMDB's.
_DAMAGED: Final = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.MapResizedError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


#: What the system says where there is no room, and what to do then.
_NO_ROOM: Final = {
    errno.ENOSPC: "the disk of {name!r} is full; make room on it",
    errno.EDQUOT: "the quota on the disk of {name!r} is used up; raise it, or make room",
    errno.EFBIG: "the file of the store in {name!r} has the largest size that the system allows (ulimit -f, or the"
    " file system): raise that limit, or put the store on another file system",
}
#: Free bytes of a disk below which an error of input and output during a start or a repair is ascribed to that.
_SCARCE_BYTES: Final = 16 * 1024 * 1024


def code_of(error: Exception) -> int:
    """The number of an error of the system; 0 where it is none."""
    if isinstance(error, OSError):
        return error.errno or 0
    if "No space left" in str(error):
        return errno.ENOSPC
    return int(getattr(error, "code", 0) or 0)


def may_be_cut_short(error: Exception) -> bool:
    """Return whether there may have been room for a part of a write only: LMDB says then that the disk has failed."""
    return code_of(error) == errno.EIO


def no_room(path: str | os.PathLike[str], code: int) -> str | None:
    """Return what to say of an error of the system that means that there is no room; None where it means something
    else.
    """
    text = _NO_ROOM.get(code)
    return None if text is None else text.format(name=os.fspath(path))


def cut_short(path: str | os.PathLike[str]) -> ResourceAllocationException:
    """The error for a write for a part of which there was room."""
    text = _NO_ROOM[errno.ENOSPC].format(name=os.fspath(path))
    return ResourceAllocationException(f"{text} (or raise its quota, or the limit of the size of files)")


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Return what this process may still write to a disk, quotas apart."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def without_room(path: str | os.PathLike[str], error: Exception) -> str | None:
    """Return what to say of an error during a start or a repair, if a lack of room caused it; None: it did not.

    Args:
        path: of the store.
        error: what was raised.
    """
    if isinstance(error, ResourceAllocationException):
        return error.reason
    said = no_room(path, code_of(error))
    if said is None and may_be_cut_short(error):
        with suppress(OSError):
            if free_bytes(path) < _SCARCE_BYTES:
                return no_room(path, errno.ENOSPC)
    return said


def is_damage(error: BaseException | None) -> bool:
    """Return whether a failure is that of a file that is damaged."""
    return error is not None and isinstance(error.__cause__ or error, (*_DAMAGED, StoreCorruptException))


def opening_failed(path: str | os.PathLike[str], error: Exception) -> StoreException:
    """Return what an error means that was raised while a store was opened: it is damaged, or the system has failed."""
    name = os.fspath(path)
    if isinstance(error, _DAMAGED):
        text = f"the store in {name!r} is not one, or is damaged: {error}; run: holdfast check {name!r}"
        return StoreCorruptException(text)
    full = without_room(path, error)
    if full is not None:
        return StoreException(
            f"the store in {name!r} cannot be opened: {full}, and start again; its messages are as they were ({error})"
        )
    return StoreException(
        f"the store in {name!r} cannot be opened: {error}. This is an error of the disk, or of rights or room on it,"
        " and says nothing about the messages: put that right, and start again"
    )


def failed(path: str | os.PathLike[str], error: Exception) -> StoreException:
    """Return what an error means that a store in use raised."""
    name = os.fspath(path)
    return StoreException(
        f"the store in {name!r} failed: {error}; stop the server or program that has it open, and run:"
        f" holdfast check {name!r}"
    )


def commit_failed(
    path: str | os.PathLike[str], error: Exception, max_store_bytes: int
) -> ResourceAllocationException | StoreException:
    """Return what an error means that a transaction raised: there is no room, or the store has failed."""
    name = os.fspath(path)
    if isinstance(error, lmdb.MapFullError):
        return ResourceAllocationException(
            f"the store in {name!r} is full: {max_store_bytes} bytes (option max_store_bytes)"
        )
    full = no_room(path, code_of(error))
    return ResourceAllocationException(full) if full is not None else failed(path, error)
