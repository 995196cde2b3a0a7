"""Stopping and starting a connection beside receivers, listeners and other threads."""

from __future__ import annotations

import sys
import threading
from typing import Any
from uuid import uuid4

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, OperationTimedOutException, Session
from tests.contracts.transports import eventually
from tests.sdk.small_broker import SmallBroker
from tests.sdk.threads.calls import WAIT, Hanging, in_thread, send, send_to


@pytest.mark.parametrize("confirms", [False, True])
def test_no_receiver_returns_a_message_after_a_stop(confirms: bool) -> None:
    """Also where it has checked its buffer before, and where its acknowledgement is being confirmed."""
    url = "embedded:?synchronous_acknowledge=true" if confirms else "embedded:"
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        session = connection.create_session()
        name = f"queue {uuid4()}"
        with connection.create_session() as other:
            producer = other.create_producer(other.create_queue(name))
            for number in range(3000):
                producer.send(str(number))
        consumer = session.create_consumer(session.create_queue(name))
        taken: list[str] = []

        def receive() -> None:
            while not over.is_set():
                message = consumer.receive(0.05)
                if message is None:
                    continue
                taken.append(message.text)  # type: ignore[attr-defined]

        over = threading.Event()
        thread = threading.Thread(target=receive)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            for _ in range(50):
                threading.Event().wait(0.002)
                connection.stop()
                count = len(taken)
                threading.Event().wait(0.002)
                # One may have been returned, and not been noted yet.
                assert len(taken) - count <= 1
                connection.start()
        finally:
            sys.setswitchinterval(interval)
        over.set()
        thread.join(WAIT)
        assert taken == [str(number) for number in range(len(taken))]


def test_a_message_that_a_receiver_checked_before_a_stop_stays_in_its_place(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    send(connection, "1", "2")
    eventually(lambda: len(consumer._prefetch.buffer) == 2)
    opened = consumer._opened

    def stop_first(delivery: Any, tag: Any) -> Any:
        found = opened(delivery, tag)
        stopper = threading.Thread(target=connection.stop)
        stopper.start()
        stopper.join(WAIT)
        return found

    monkeypatch.setattr(consumer, "_opened", stop_first)
    assert consumer.receive(0.05) is None
    monkeypatch.undo()
    connection.start()
    received = [consumer.receive(WAIT) for _ in range(2)]
    assert [each and each.text for each in received] == ["1", "2"]  # type: ignore[attr-defined]


def test_a_listener_that_hangs_keeps_no_other_session_from_being_stopped() -> None:
    broker = SmallBroker(close_timeout_seconds=0.05)
    with broker.connect() as connection:
        connection.start()
        sessions = [connection.create_session() for _ in range(3)]
        hanging = Hanging(sessions[0], "a")
        consumers = [session.create_consumer(session.create_queue("b")) for session in sessions[1:]]
        taken: list[str] = []
        consumers[0].listener = lambda message: taken.append(str(message))
        send_to(connection, "a", 2)
        assert hanging.entered.wait(WAIT)
        for _ in range(2):  # nor is the second stop less than the first
            with pytest.raises(OperationTimedOutException, match="listener of session 1 has not returned in time"):
                connection.stop()
            send_to(connection, "b", 10)
            assert consumers[1].receive(0.05) is None
            assert taken == []
        hanging.leave.set()
        connection.stop()
        assert hanging.seen == 1


def test_each_stop_waits_for_a_listener_that_runs(connection: Connection) -> None:
    hanging = Hanging(connection.create_session(), "a")
    send_to(connection, "a", 2)
    assert hanging.entered.wait(WAIT)
    stops = [in_thread(lambda: (connection.stop(), hanging.leave.is_set())[1]) for _ in range(2)]
    eventually(lambda: not hanging.consumer._state.running)
    for thread, _ in stops:
        thread.join(0.02)
    hanging.leave.set()
    assert [results.get(timeout=WAIT) for _, results in stops] == [True, True]
    assert hanging.seen == 1


def test_a_connection_that_is_started_while_another_thread_stops_it_is_started(connection: Connection) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    send_to(connection, "a", 2)
    assert hanging.entered.wait(WAIT)
    thread, results = in_thread(connection.stop)
    eventually(lambda: not session._state.running)
    connection.start()
    assert results.get(timeout=WAIT) is None  # its stop is over
    hanging.leave.set()
    eventually(lambda: hanging.seen == 2)
    thread.join(WAIT)


@pytest.mark.parametrize("what", ["start", "stop"])
def test_a_connection_is_started_and_stopped_while_a_session_of_it_is_being_closed(
    connection: Connection, what: str
) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    send_to(connection, "a", 1)
    assert hanging.entered.wait(WAIT)
    if what == "start":
        thread, _ = in_thread(connection.stop)
        eventually(lambda: not session._state.running)
    closing, _ = in_thread(session.close)
    eventually(lambda: session._state.closes)
    stopping, results = in_thread(connection.start if what == "start" else connection.stop)
    stopping.join(0.05)
    hanging.leave.set()
    assert results.get(timeout=WAIT) is None
    closing.join(WAIT)
    if what == "start":
        thread.join(WAIT)


@pytest.mark.parametrize("what", ["stop", "no listener", "closed consumer"])
def test_a_session_is_free_as_soon_as_its_listeners_are_done(connection: Connection, what: str) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        session = connection.create_session()
        other = session.create_consumer(session.create_queue("other"))
        for _ in range(100):
            consumer = session.create_consumer(session.create_queue("q"))
            came = threading.Event()
            consumer.listener = lambda _message, came=came: came.set()  # type: ignore[misc]
            send_to(connection, "q", 1)
            assert came.wait(WAIT)
            if what == "stop":
                connection.stop()
                session.recover()
                consumer.listener = None
                connection.start()
            elif what == "no listener":
                consumer.listener = None
            else:
                consumer.close()
            assert other.receive(0.001) is None
            consumer.close()
    finally:
        sys.setswitchinterval(interval)


def test_a_start_while_something_is_given_back_grants_nothing_before_that_is_back(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the broker sends for it passes what is given back."""
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumers = [session.create_consumer(session.create_queue(name), prefetch=4) for name in ("a", "b")]
    send_to(connection, "a", 10)
    assert [str(consumers[0].receive(WAIT)) for _ in range(3)] == ["0", "1", "2"]
    drain, receiver, on_its_way = broker.drain, broker._receivers[consumers[0]._prefetch.link], list[Any]()
    sink, restarts = receiver.sink, 0

    def restart_behind_it(link: int, timeout: float | None) -> bool:
        nonlocal restarts
        answer = drain(link, timeout)
        receiver.sink = on_its_way.extend
        thread, results = in_thread(lambda: (connection.stop(), connection.start()))
        assert results.get(timeout=WAIT) == (None, None)
        thread.join()
        restarts += 1
        return answer

    monkeypatch.setattr(broker, "drain", restart_behind_it)
    session.recover()
    monkeypatch.undo()
    assert restarts
    receiver.sink = sink
    sink(on_its_way)
    assert [str(consumers[0].receive(WAIT)) for _ in range(10)] == [str(number) for number in range(10)]


def test_a_start_that_was_interrupted_is_finished_by_the_next(connection: Connection) -> None:
    send(connection, "a")
    connection.stop()
    with connection.create_session() as first, connection.create_session() as second:
        start = Session._start

        def interrupted(session: Session) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "_start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.start()
        assert Session._start is start
        connection.start()
        message = second.create_consumer(second.create_queue("q")).receive(WAIT)
        assert message is not None
        assert first._state.running
