"""What errors of the disk mean."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import lmdb
import pytest

from broker_adapter.engine import lmdb_store
from broker_adapter.errors import (
    StoreException,
)
from tests.broker_adapter.engine.storing import reopened


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
