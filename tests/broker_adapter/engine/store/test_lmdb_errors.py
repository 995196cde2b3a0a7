"""What errors of the disk mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import lmdb
import pytest

from broker_adapter.engine.store import lmdb_errors, lmdb_store
from broker_adapter.engine.store.lmdb_errors import commit_failed, opening_failed
from broker_adapter.errors import (
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
)
from tests.broker_adapter.engine.storing import reopened


def _with_code(code: int) -> lmdb.Error:
    error = lmdb.Error("an error of the system")
    error.code = code
    return error


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

    target = {"read": (os, "pread"), "open": (lmdb, "open"), "write": (lmdb_store, "take_over")}[where]
    monkeypatch.setattr(*target, fail)
    with pytest.raises(StoreException, match="Input/output error") as raised:
        reopened(tmp_path)
    monkeypatch.undo()
    assert type(raised.value) is StoreException
    assert "says nothing about the messages" in str(raised.value)
    assert "copy" not in str(raised.value)
    reopened(tmp_path).close()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (lmdb.MapFullError("full"), ResourceAllocationException, "16 bytes (option max_store_bytes)"),
        (lmdb.Error("No space left on device"), ResourceAllocationException, "make room on it"),
        (_with_code(errno.EDQUOT), ResourceAllocationException, "the quota on the disk of 'dir' is used up; raise it"),
        (_with_code(errno.EFBIG), ResourceAllocationException, "the largest size that the system allows (ulimit -f"),
        (_with_code(errno.EIO), StoreException, "failed: an error of the system; stop the server"),
        (lmdb.CorruptedError("page 7"), StoreException, "failed: page 7; stop the server"),
    ],
)
def test_an_error_of_a_commit_becomes_the_exception_for_its_cause(
    error: Exception, kind: type[Exception], text: str
) -> None:
    found = commit_failed("dir", error, 16)
    assert type(found) is kind
    assert text in str(found)


def test_a_damaged_file_is_named_as_such_when_it_is_opened() -> None:
    assert type(opening_failed("dir", lmdb.CorruptedError("page 7"))) is StoreCorruptException
    assert type(opening_failed("dir", OSError(5, "Input/output error"))) is StoreException


@pytest.mark.parametrize(
    ("error", "free", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1 << 40, "the disk of 'dir' is full; make room on it, and"),
        (_with_code(errno.EDQUOT), 1 << 40, "the quota on the disk of 'dir' is used up"),
        (_with_code(errno.EIO), 8192, "the disk of 'dir' is full; make room on it, and start again"),
        (_with_code(errno.EIO), 1 << 40, "This is an error of the disk"),
    ],
)
def test_a_start_on_a_full_disk_says_that_it_is_full(
    monkeypatch: pytest.MonkeyPatch, error: Exception, free: int, text: str
) -> None:
    monkeypatch.setattr(lmdb_errors, "free_bytes", lambda _path: free)
    found = opening_failed("dir", error)
    assert type(found) is StoreException
    assert text in str(found)
