"""A copy and its server are compared while both are written, and each record that differs is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from broker_adapter.engine.operations.copies import OfCopy
from broker_adapter.engine.operations.copy_states import FollowedEngine
from broker_adapter.engine.operations.request import request_of
from broker_adapter.engine.store.lmdb_store import LmdbStore, beside
from broker_adapter.errors import IllegalStateException
from broker_adapter.group import comparing
from broker_adapter.group.comparing import Comparison, Difference
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.damaging import damage

Compare = Callable[[], list[Difference]]
_KEYS = [b"%04d" % number for number in range(2000)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LmdbStore]:
    """A store that is followed, with 2 MB in a table, of which ``copy`` is a copy."""
    store = LmdbStore(tmp_path / "server", EngineSettings())
    store.begin_tail()
    store.apply([("cursors", key, key * 250) for key in _KEYS])
    (tmp_path / "copy").mkdir()
    store.copy(tmp_path / "copy")
    yield store
    store.close()


@pytest.fixture
def copy(tmp_path: Path, server: LmdbStore) -> Path:
    return tmp_path / "copy"


@pytest.fixture
def compare(server: LmdbStore, copy: Path) -> Compare:
    def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
        request = request_of(operation, arguments)
        assert isinstance(request, OfCopy)
        with server.snapshot() as records:
            return request.read(cast(FollowedEngine, None), records)

    def differences() -> list[Difference]:
        with beside(copy, EngineSettings()) as snapshot:
            return list(Comparison(ask, snapshot).differences())

    return differences


def test_what_the_server_has_written_since_is_no_difference(server: LmdbStore, compare: Compare) -> None:
    assert compare() == []
    server.apply([("cursors", key, b"changed") for key in _KEYS[:900:3]])
    server.apply([("cursors", key, None) for key in _KEYS[500:700]])
    server.apply([("cursors", b"new %d" % number, b"value") for number in range(300)])
    assert compare() == []


def test_records_that_are_changed_or_gone_or_too_many_are_named(
    server: LmdbStore, copy: Path, compare: Compare
) -> None:
    server.apply([("cursors", key, b"changed") for key in _KEYS[:900:3]])

    def act(txn: Any, tables: dict[str, Any]) -> None:
        txn.put(_KEYS[1000], b"another", db=tables["cursors"])
        txn.delete(_KEYS[1500], db=tables["cursors"])
        txn.put(b"zz", b"too many", db=tables["cursors"])
        txn.put(b"alone", b"in its table", db=tables["audiences"])

    damage(copy, act)
    assert compare() == [
        Difference("audiences", b"alone"),
        Difference("cursors", _KEYS[1000]),
        Difference("cursors", _KEYS[1500]),
        Difference("cursors", b"zz"),
    ]


def test_a_store_that_is_no_copy_is_an_error(
    server: LmdbStore, copy: Path, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "_PAUSE_SECONDS", 0.0)
    damage(copy, lambda txn, tables: txn.drop(tables["tail"], delete=False))
    with pytest.raises(IllegalStateException, match="it is no copy of it, or is too far behind"):
        compare()
