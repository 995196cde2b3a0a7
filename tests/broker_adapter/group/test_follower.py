"""The thread that keeps a copy: it connects again, goes on trying, and ends where there is no use in that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from lmdb import CorruptedError

from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    JMSSecurityException,
    ResourceAllocationException,
    StoreException,
)
from broker_adapter.group import follower
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.follower import Follower
from broker_adapter.group.following import Standing
from broker_adapter.transport import Transport
from tests.broker_adapter.engine.driving import WAIT, eventually
from tests.broker_adapter.group.copying import URL, Copy, Primary

COPY = Standing("copy")


class Line:
    """A connection to an engine in this process.

    Args:
        primary: that has the engine.
        refusal: what a login raises; None: it succeeds.
        lost_after: requests until it is lost; None: it is not.
    """

    def __init__(self, primary: Primary, refusal: JMSException | None = None, lost_after: int | None = None) -> None:
        self._primary = primary
        self._refusal = refusal
        self._left = lost_after
        self.is_open = self.is_closed = False

    def open(self, *_arguments: object) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.is_open = True

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        if self._left == 0:
            raise ConnectionLostException("the connection is lost")
        if self._left is not None:
            self._left -= 1
        return self._primary.broker.request(operation, arguments, timeout, lambda: self.is_closed)

    def close(self, _timeout: float) -> None:
        self.is_closed = True


class Kept:
    """A copy that a thread keeps.

    Args:
        copy: its directory.
        lines: what it connects by, one after the other; the last one again and again.
        primary: that it follows.
        standing: what it is to that one.
    """

    def __init__(self, copy: Copy, *lines: Callable[[], Line], primary: Primary, standing: Standing = COPY) -> None:
        self.copy = copy
        self.primary = primary
        self.made: list[Line] = []
        self.ended: list[JMSException] = []
        self.has_ended = threading.Event()
        self.heard: list[bool] = []
        self.refused = threading.Event()
        self._lines = list(lines)
        self._files = CopyFiles(copy.path, copy.settings, URL)
        self.follower = Follower(
            *(self._files, standing, self._connect, None),
            *(self._end, self.heard.append, self.refused.set),
        )

    def _connect(self) -> Transport:
        made = self._lines[min(len(self.made), len(self._lines) - 1)]()
        self.made.append(made)
        return cast(Transport, made)

    def _end(self, error: JMSException) -> None:
        self.ended.append(error)
        self.has_ended.set()

    def __enter__(self) -> Kept:
        self.follower.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.follower.stop()
        self._files.close()

    def has_everything(self) -> bool:
        found = self.primary.copies()
        return bool(found) and found[0]["behind"] == 0 and found[0]["image"] is None


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Primary]:
    primary = Primary(tmp_path / "primary")
    primary.send("message")
    yield primary
    primary.close()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "copy")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_LONGEST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(follower, "_BATCH_SECONDS", 0.0)


def test_it_follows_until_it_is_stopped_and_leaves_a_state_of_the_server(primary: Primary, copy: Copy) -> None:
    with Kept(copy, lambda: Line(primary), primary=primary) as kept:
        eventually(kept.has_everything)
        primary.send("another")
        eventually(kept.has_everything)
        assert "copy" in repr(kept.follower)
    assert kept.made[0].is_closed
    assert (kept.ended, kept.heard) == ([], [True, False])
    assert copy.differences(primary) == []


def test_it_connects_again_whenever_the_connection_is_lost(
    primary: Primary, copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [lambda: Line(primary, lost_after=5)] * 9
    with Kept(copy, *lines, lambda: Line(primary), primary=primary) as kept:
        eventually(lambda: len(kept.made) == 10 and kept.has_everything())
    assert all(each.is_closed for each in kept.made)
    assert kept.heard == [True, False] * 10
    assert "the copy is not up to date, and goes on trying: the connection is lost" in caplog.text
    assert copy.differences(primary) == []


def test_it_says_where_nothing_listens_any_more(primary: Primary, copy: Copy) -> None:
    no_listener = ConnectionLostException("nothing listens there")
    no_listener.__cause__ = ConnectionRefusedError()
    with Kept(copy, lambda: Line(primary, lost_after=5), lambda: Line(primary, no_listener), primary=primary) as kept:
        assert kept.refused.wait(WAIT)
    assert kept.heard == [True, False]


def test_it_goes_on_trying_where_a_login_is_refused(
    primary: Primary, copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    refused = JMSSecurityException("wrong user or password")
    with Kept(copy, *[lambda: Line(primary, refused)] * 3, lambda: Line(primary), primary=primary) as kept:
        eventually(kept.has_everything)
    assert "goes on trying: wrong user or password" in caplog.text
    assert kept.ended == []


@pytest.mark.parametrize("standing", [COPY, Standing("n2", 1, "host:5672")], ids=["copy", "node"])
def test_it_goes_on_trying_where_there_is_no_room(
    primary: Primary, copy: Copy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, standing: Standing
) -> None:
    with Kept(copy, lambda: Line(primary), primary=primary, standing=standing) as kept:
        eventually(kept.has_everything)
        with monkeypatch.context() as patch:

            def full(*_arguments: object) -> None:
                raise ResourceAllocationException("the disk is full; make room on it")

            patch.setattr("broker_adapter.engine.store.lmdb_writes.Writes.copy", full)
            primary.send("behind")
            eventually(lambda: len(kept.made) > 3)
            assert not kept.has_everything()
        eventually(kept.has_everything)
    who = "the copy" if standing.term is None else "this node"
    said = f"{who} is not up to date, and goes on trying: the disk is full; make room on it"
    assert caplog.text.count(said) == 1, "once a minute"
    assert copy.differences(primary) == []


@pytest.mark.parametrize(
    "error", [StoreException("the disk has failed"), ValueError("a fault"), CorruptedError("a page")], ids=str
)
def test_it_ends_where_the_store_of_the_copy_has_failed(
    primary: Primary, copy: Copy, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("broker_adapter.engine.store.lmdb_writes.Writes.copy", failing)
    with Kept(copy, lambda: Line(primary), primary=primary) as kept:
        assert kept.has_ended.wait(WAIT)
        assert str(error) in str(kept.ended[0])
        assert error in (kept.ended[0], kept.ended[0].__cause__)
        eventually(lambda: not kept.follower._thread.is_alive())


def test_it_ends_where_the_store_is_another_ones(primary: Primary, copy: Copy, tmp_path: Path) -> None:
    copy.follow(primary)
    other = Primary(tmp_path / "other")
    with Kept(copy, lambda: Line(other), primary=other) as kept:
        assert kept.has_ended.wait(WAIT)
        assert "is no copy of the one that" in str(kept.ended[0])
    other.close()
    assert copy.differences(primary) == []


def test_a_wait_for_a_commit_ends_as_it_is_stopped(
    primary: Primary, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.operations.copies._LOOK_SECONDS", 0.01)
    with Kept(copy, lambda: Line(primary), primary=primary) as kept:
        eventually(kept.has_everything)
    assert not kept.follower._thread.is_alive()
