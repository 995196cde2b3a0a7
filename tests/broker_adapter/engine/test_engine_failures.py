"""Errors of the store and of a full disk: what waits, what is answered, and when the engine stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.lmdb_errors import commit_failed
from broker_adapter.engine.store.lmdb_writes import Writes
from broker_adapter.envelope import Envelope, pack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
    StoreLockedException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import put
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    connect,
    depth,
    drained,
    eventually,
    full_up,
    message,
    send,
    settle,
)


class FullDisk:
    """An engine whose store has not a page left, not even for a settlement, and a consumer with its one message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        client = connect(broker)
        send(broker, client, "q", "a")
        self.consumer, inbox = attach(broker, client, "q", credit=1)
        self.handouts = inbox.wait_for(1)
        env = broker.store._env
        self._size = env.info()["map_size"]
        with broker._runner:
            env.set_mapsize((env.info()["last_pgno"] + 20) * env.stat()["psize"])
            full_up(broker.store)
        self.answers: list[Any] = []

    def settle(self) -> None:
        """Settle it, until that waits for the disk."""
        numbers = [each.number for each in self.handouts]
        self.broker.submit(c.Settle(self.consumer, numbers, Outcome.ACCEPTED, reply=self.answers.append))
        eventually(lambda: self.broker._unwritten is not None)

    def make_room(self) -> None:
        with self.broker._runner:
            self.broker.store._env.set_mapsize(self._size)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullDisk]:
    broker = Broker(EngineSettings(), str(tmp_path))
    yield FullDisk(broker)
    broker.close()


def test_the_engine_stops_on_an_error_of_the_store(disk: Engines) -> None:
    broker = disk.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    told: list[Any] = []
    held: list[Any] = []
    broker.on_failure(told.append)
    broker.submit(c.Enqueue(client, queue("q"), [message("held")], held.append))
    assert depth(broker, "q") == 1
    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    with pytest.raises(StoreException):
        send(broker, client, "other", "b")
    with pytest.raises(StoreException):
        broker.call(c.Statistics(), WAIT)
    assert [type(error) for error in told + held] == [StoreException, StoreException]


def test_what_went_on_in_the_cycle_that_failed_is_answered_too(disk: Engines) -> None:
    broker = disk.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    consumer, inbox = attach(broker, client, "q", credit=1)
    handouts = inbox.wait_for(1)
    held: list[Any] = []
    broker.submit(c.Enqueue(client, queue("q"), [message("held")], held.append))
    assert depth(broker, "q") == 1
    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    with pytest.raises(StoreException):
        settle(broker, consumer, handouts)  # makes room for what is held
    assert [type(error) for error in held] == [StoreException]


def test_a_failed_engine_says_what_to_do(disk: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = disk.start()
    client = connect(broker)
    assert broker._stores.disk is not None

    def fails(_batch: object) -> None:
        raise commit_failed(broker.store.path, lmdb.CorruptedError("page 7"), 0)

    monkeypatch.setattr(broker._stores.disk, "commit", fails)
    with pytest.raises(StoreException, match=r"page 7; .* run: holdfast check"):
        send(broker, client, "q", "a")


def test_a_failing_engine_calls_all_listeners_though_callbacks_send_again(disk: Engines) -> None:
    """Else the listeners of its failure, which would end that, wait for the end of it."""
    broker = disk.start()
    client = connect(broker)
    told = threading.Event()
    broker.on_failure(lambda _error: told.set())

    def again(_answer: Any) -> None:
        if not told.is_set():
            broker.submit(c.Enqueue(client, queue("q"), [message("again")], again))

    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    broker.submit(c.Enqueue(client, queue("q"), [message("first")], again))
    assert told.wait(WAIT)
    with pytest.raises(StoreException):
        send(broker, client, "q", "x")


def test_a_call_of_a_failed_engine_ends_in_time_where_another_thread_has_it(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    broker.failed = StoreException("failed")
    with broker._runner, pytest.raises(OperationTimedOutException):
        broker.call(c.Connect(None), 0.05)
    broker.failed = None
    send(broker, client, "q", "x")


def test_a_closed_engine_says_so(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    replies: list[Any] = []
    broker.close()
    broker.close()
    with pytest.raises(IllegalStateException, match="closed"):
        send(broker, client, "q", "x")
    broker.submit(c.Enqueue(client, queue("q"), [message()], replies.append))
    assert replies == [] or isinstance(replies[0], IllegalStateException)


def test_closing_answers_the_sends_that_are_blocked(engines: Engines) -> None:
    broker = engines.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    replies: list[Any] = []
    broker.submit(c.Enqueue(client, queue("q"), [message()], replies.append))
    broker.close()
    ((error,),) = replies
    assert isinstance(error, IllegalStateException)


def test_a_call_keeps_its_deadline_and_is_carried_out_all_the_same(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    with broker._runner, pytest.raises(OperationTimedOutException, match="no answer to Enqueue within"):
        broker.call(c.Enqueue(client, queue("q"), [message()]), 0.05)
    eventually(lambda: depth(broker, "q") == 1)


def test_a_store_has_one_owner(disk: Engines) -> None:
    disk.start()
    with pytest.raises(StoreLockedException, match=r"in use by process \d+"):
        Broker(EngineSettings(), str(disk.path))


@pytest.mark.damages
def test_what_is_decided_waits_for_room_on_the_disk_and_is_written_then(
    full: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    broker = full.broker
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    with pytest.raises(ResourceAllocationException, match=r"is full.*, and ask again"):
        broker.request("bounds", {"destination": "q"}, WAIT)
    with pytest.raises(ResourceAllocationException, match="is full"):
        broker.check()
    assert (full.answers, later, broker.failed) == ([], [], None)
    assert caplog.text.count("the engine waits for that, and goes on then") == 1
    full.make_room()
    eventually(lambda: full.answers and later)
    assert full.answers == [None]
    assert depth(broker, "q") == 0


def test_an_engine_stops_where_the_note_of_its_start_meets_a_failed_disk(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker := disk.start(), connect(broker), "q", "a")
    broker = disk.start()
    told: list[JMSException] = []

    def hear(error: JMSException) -> None:
        told.append(error)
        with pytest.raises(IllegalStateException, match="callback"):
            broker.call(c.Statistics(), WAIT)

    broker.on_failure(hear)

    def fails(_writes: Writes, _change: Any) -> None:
        raise StoreException("the store failed: Input/output error")

    monkeypatch.setattr(Writes, "write", fails)
    with pytest.raises(StoreException, match="Input/output error"):
        broker.request("bounds", {"destination": "q"}, WAIT)
    assert [str(each) for each in told] == ["the store failed: Input/output error"]
    with pytest.raises(StoreException, match="Input/output error"):
        broker.call(c.Statistics(), WAIT)


@pytest.mark.damages
def test_while_the_engine_waits_for_room_sends_and_connections_are_refused_and_the_rest_waits(
    tmp_path: Path,
) -> None:
    broker = Broker(EngineSettings(blocked_send_timeout_seconds=0), str(tmp_path))
    full = FullDisk(broker)
    client = connect(broker)
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    for _ in range(2):
        with pytest.raises(
            ResourceAllocationException, match=r"is full.* the engine waits for that, and takes nothing"
        ):
            send(broker, client, "q", "b")
        with pytest.raises(ResourceAllocationException, match="the engine waits for that"):
            put(broker, "quotes", "IBM")
        with pytest.raises(ResourceAllocationException, match="the engine waits for that"):
            connect(broker)
    assert (full.answers, later, broker.failed) == ([], [], None)
    full.make_room()
    eventually(lambda: full.answers and later)
    assert send(broker, connect(broker), "q", "c") is None
    assert [each.payload for each in drained(broker, client, "q", presettled=True)] == [b"c"]
    broker.close()


@pytest.mark.damages
def test_what_finds_no_room_on_the_disk_until_the_engine_is_closed_is_not_confirmed(full: FullDisk) -> None:
    broker = full.broker
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    broker.close()
    assert [type(error) for error in full.answers + later] == [IllegalStateException] * 2
    assert "the engine is closed" in str(full.answers[0])
    broker = Broker(EngineSettings(), str(broker.store.path))
    assert depth(broker, "q") == 1
    broker.close()


def test_a_command_that_cannot_be_supplied_is_answered_and_the_others_go_on(
    disk: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = disk.start()
    client = connect(broker)
    supply = broker._supply

    def fails(command: c.Command) -> c.Command:
        if isinstance(command, c.ResolveCommit):
            raise ZeroDivisionError("a fault")
        return supply(command)

    monkeypatch.setattr(broker, "_supply", fails)
    with pytest.raises(JMSException, match=r"could not carry out ResolveCommit: ZeroDivisionError\('a fault'\)"):
        broker.call(c.ResolveCommit(c.CommitId("session", 1), 0), WAIT)
    assert "ResolveCommit failed unexpectedly" in caplog.text
    assert send(broker, client, "q", "x") is None


def test_a_selector_that_fails_unexpectedly_selects_nothing_and_the_log_says_so(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start()

    def fails(*_: object) -> bool:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("broker_adapter.engine.rules.matching.selects", fails)
    client = connect(broker)
    send(broker, client, "q", pack(Envelope(queue("q"))))
    assert drained(broker, client, "q", selector="n = 1") == []
    assert "the selector 'n = 1' failed unexpectedly" in caplog.text
    assert len(drained(broker, client, "q")) == 1


def test_an_error_that_is_none_of_the_stores_stops_the_engine_too(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = disk.start()
    client = connect(broker)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(broker._state, "decide", fails)
    with pytest.raises(StoreException, match=r"the engine stopped: ZeroDivisionError\('a fault'\)"):
        send(broker, client, "q", "x")


def test_an_engine_in_memory_has_no_store_to_check() -> None:
    broker = Broker(EngineSettings())
    with pytest.raises(IllegalStateException, match="the engine has no store on disk"):
        broker.request("check", {}, WAIT)
    broker.close()


def test_a_check_ends_when_no_call_waits_for_it_any_more(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "x")
    assert broker.request("check", {}, WAIT)["problems"] == {}
    with pytest.raises(ConnectionLostException, match="the check was cancelled"):
        broker.request("check", {}, WAIT, is_cancelled=lambda: True)


def test_a_request_of_another_run_of_the_engine_is_refused(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "x")
    asked = {"destination": "q", "request_id": "once", "request_run": broker.run}
    assert [broker.request("purge", asked, WAIT) for _ in range(2)] == [1, 1]
    broker = disk.start()
    with pytest.raises(IllegalStateException, match="the engine was started again while the request 'purge' was under"):
        broker.request("purge", asked, WAIT)


def test_a_removed_listener_is_not_called_for_a_failure(disk: Engines) -> None:
    broker = disk.start()
    told: SimpleQueue[str] = SimpleQueue()
    remove = broker.on_failure(lambda error: told.put("removed"))
    broker.on_failure(lambda error: told.put("other"))
    remove()
    remove()
    broker.store._env.close()
    with pytest.raises(StoreException):
        send(broker, connect(broker), "q", "x")
    assert told.get(timeout=WAIT) == "other"  # perhaps by the engine's own thread, after the send has failed
    assert told.empty()
