"""Listeners: the thread that they run in, what they may do there, and what happens when they raise."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, IllegalStateException, JMSException, Message
from tests.sdk.small_broker import SmallBroker
from tests.sdk.threads.calls import WAIT, Hanging, in_thread, send, send_to


def test_listeners_of_one_session_run_one_after_the_other_on_its_thread(connection: Connection) -> None:
    connection.stop()
    session = connection.create_session()
    running: list[int] = []
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        running.append(1)
        assert len(running) == 1
        seen.append((str(message), threading.current_thread().name))
        running.pop()
        if len(seen) == 100:
            done.set()

    for name in ("a", "b"):
        destination = session.create_queue(name)
        producer = session.create_producer(destination)
        for number in range(50):
            producer.send(f"{name}{number}")
        session.create_consumer(destination).listener = listen
    connection.start()

    assert done.wait(WAIT)
    assert {thread for _, thread in seen} == {"holdfast-session-1"}
    for name in ("a", "b"):
        assert [body for body, _ in seen if body[0] == name] == [f"{name}{number}" for number in range(50)]


def test_listener_that_raises_is_logged_and_the_next_message_comes(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append((str(message), message.delivery_count))
        if len(seen) == 3:
            done.set()
        if str(message) == "bad" and not message.redelivered:
            raise SystemExit("not even this ends the thread")

    session = connection.create_session()
    send(connection, "bad", "good")
    with caplog.at_level(logging.ERROR, "holdfast.sdk"):
        session.create_consumer(session.create_queue("q")).listener = listen
        assert done.wait(WAIT)
        session.close()

    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]
    assert "SystemExit: not even this" in caplog.text


def test_client_session_goes_on_when_its_listener_raises(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Jakarta Messaging 8.7: it does not recover by itself; what the listener raised on is held like the others."""
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append((str(message), message.delivery_count))
        if str(message) == "b" and not message.redelivered:
            raise ValueError("failed")
        if str(message) == "c" and not message.redelivered:
            session.recover()
        elif str(message) == "c":
            message.acknowledge()
            done.set()

    session = connection.create_session(AcknowledgeMode.CLIENT)
    send(connection, "a", "b", "c")
    with caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        session.create_consumer(session.create_queue("q")).listener = listen
        assert done.wait(WAIT)
        session.close()

    assert seen == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]


def test_listener_may_use_its_session(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("out"))
    done = threading.Event()

    def forward(message: Message) -> None:
        producer.send(message)
        session.commit()
        done.set()

    session.create_consumer(session.create_queue("q")).listener = forward
    send(connection, "x")

    assert done.wait(WAIT)
    other = connection.create_session()
    assert str(other.create_consumer(other.create_queue("out")).receive(WAIT)) == "x"


def test_listener_that_recovers_gets_the_message_again(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.AUTO)
    counts: list[int] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        counts.append(message.delivery_count)
        if message.redelivered:
            done.set()
        else:
            session.recover()

    session.create_consumer(session.create_queue("q")).listener = listen
    send(connection, "x")

    assert done.wait(WAIT)
    assert counts == [1, 2]


def test_listener_may_close_its_consumer(broker: SmallBroker, connection: Connection) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    seen: list[str] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append(str(message))
        consumer.close()
        done.set()

    send(connection, "a", "b")
    consumer.listener = listen
    assert done.wait(WAIT)
    session.close()

    assert seen == ["a"]
    assert [outcome.name for outcome in broker.outcomes()] == ["RELEASED", "ACCEPTED"]


@pytest.mark.parametrize("what", ["session.close", "connection.close", "connection.stop"])
def test_listener_cannot_close_or_stop_what_it_runs_in(connection: Connection, what: str) -> None:
    session = connection.create_session()
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    act = {"session.close": session.close, "connection.close": connection.close, "connection.stop": connection.stop}

    def listen(message: Message) -> None:
        try:
            results.put(act[what]())
        except JMSException as error:
            results.put(error)

    session.create_consumer(session.create_queue("q")).listener = listen
    send(connection, "x")

    assert isinstance(results.get(timeout=WAIT), IllegalStateException)


# The exception listener.


def test_exception_listener_may_close_the_connection(broker: SmallBroker) -> None:
    connection = broker.connect()
    closed = threading.Event()
    connection.exception_listener = lambda error: (connection.close(), closed.set())
    connection.create_session()

    broker.fail()

    assert closed.wait(WAIT)
    assert broker.closed


def test_exception_listener_that_raises_is_called_for_the_next_error(
    broker: SmallBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    told: queue.SimpleQueue[JMSException] = queue.SimpleQueue()

    def listen(error: JMSException) -> None:
        told.put(error)
        raise ValueError("the listener is wrong")

    connection.exception_listener = listen
    with caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        for _ in range(2):
            broker.interrupt()
            broker.restore()
            told.get(timeout=WAIT)


def test_taking_a_listener_away_waits_for_it(connection: Connection) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    send_to(connection, "a", 2)
    assert hanging.entered.wait(WAIT)

    def take_away() -> str:
        hanging.consumer.listener = None
        return str(hanging.consumer.receive(WAIT))

    thread, results = in_thread(take_away)
    thread.join(0.02)
    assert results.empty()
    hanging.leave.set()
    assert results.get(timeout=WAIT) == "1"
    assert hanging.seen == 1
