"""A copy and its server are compared while both are written, and each record that differs is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest

from broker_adapter.engine.operations.copies import OfCopy
from broker_adapter.engine.operations.copy_states import FollowedEngine
from broker_adapter.engine.operations.request import request_of
from broker_adapter.engine.store.files import put_in_place
from broker_adapter.engine.store.lmdb_store import LmdbStore, beside
from broker_adapter.errors import IllegalStateException, StoreException
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


def test_a_copy_that_an_image_replaces_meanwhile_is_an_error(copy: Path, server: LmdbStore) -> None:
    with beside(copy, EngineSettings()) as snapshot:
        (copy / "made").mkdir()
        server.copy(copy / "made")
        put_in_place(copy / "made" / "data.mdb", copy)
        with pytest.raises(StoreException, match="was replaced by an image meanwhile"):
            snapshot()


_READER = """
import sys
from pathlib import Path
from broker_adapter.engine.store.lmdb_store import beside
from broker_adapter.settings import EngineSettings
with beside(Path(sys.argv[1]), EngineSettings()) as snapshot, snapshot():
    print("reads", flush=True)
    sys.stdin.read()
"""


def test_a_store_that_is_put_in_place_beside_a_reader_has_its_own_last_commit(copy: Path, server: LmdbStore) -> None:
    for number in range(12):
        server.apply([("cursors", b"later", b"%d" % number)])
    (copy / "made").mkdir()
    made = LmdbStore(copy / "made", EngineSettings())
    made.apply([("cursors", b"later", b"first")])
    made.apply([("cursors", b"later", b"last")])
    made.close()
    with subprocess.Popen([sys.executable, "-c", _READER, str(copy)], stdin=PIPE, stdout=PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        put_in_place(copy / "made" / "data.mdb", copy)
        for wanted in (b"last", b"changed", b"changed"):
            store = LmdbStore(copy, EngineSettings())
            with store.snapshot() as records:
                assert records.get("cursors", b"later") == wanted
            store.apply([("cursors", b"later", b"changed")])
            store.close()
        reader.kill()
