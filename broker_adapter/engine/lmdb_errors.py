"""What the errors of LMDB, and of the system, mean for a store."""

from __future__ import annotations

import errno
import os
from typing import Final

import lmdb

from broker_adapter.errors import ResourceAllocationException, StoreCorruptException, StoreException

#: What a store raises that its disk has failed.
STORE_ERRORS: Final = (lmdb.Error, OSError)

#: What LMDB raises that its file is damaged, or is none of LMDB's.
_DAMAGED: Final = (
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


def opening_failed(path: str | os.PathLike[str], error: Exception) -> StoreException:
    """What an error means that was raised while a store was opened: it is damaged, or the system has failed."""
    name = os.fspath(path)
    if isinstance(error, _DAMAGED):
        text = f"the store in {name!r} is not one, or is damaged: {error}; run: holdfast check {name!r}"
        return StoreCorruptException(text)
    return StoreException(
        f"the store in {name!r} cannot be opened: {error}. This is an error of the disk, or of rights or room on it,"
        " and says nothing about the messages: put that right, and start again"
    )


def failed(path: str | os.PathLike[str], error: Exception) -> StoreException:
    """What an error means that a store in use raised."""
    name = os.fspath(path)
    return StoreException(
        f"the store in {name!r} failed: {error}; stop the server or program that has it open, and run:"
        f" holdfast check {name!r}"
    )


def commit_failed(
    path: str | os.PathLike[str], error: Exception, max_store_bytes: int
) -> ResourceAllocationException | StoreException:
    """What an error means that a transaction raised: there is no room, or the store has failed."""
    name = os.fspath(path)
    if isinstance(error, lmdb.MapFullError):
        return ResourceAllocationException(
            f"the store in {name!r} is full: {max_store_bytes} bytes (option max_store_bytes)"
        )
    if errno.errorcode.get(getattr(error, "code", 0)) == "ENOSPC" or "No space left" in str(error):
        return ResourceAllocationException(f"the disk of {name!r} is full; make room on it")
    return failed(path, error)
