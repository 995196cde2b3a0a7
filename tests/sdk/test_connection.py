"""A connection as its application sees it: what it says of itself, its listeners, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.transport import LinkLost
from sdk import Connection, ConnectionFactory, IllegalStateException, JMSException, session_thread
from tests.contracts.transports import eventually

WAIT = 120.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        yield connection


def test_it_says_whose_it_is_and_which_broker_answers(connection: Connection) -> None:
    assert connection.is_holdfast
    assert repr(connection).startswith(f"<Connection {connection.client_id!r} to Holdfast")
    assert repr(connection).endswith(", STOPPED>")
    connection.start()
    assert repr(connection).endswith(", STARTED>")
    connection.close()
    assert repr(connection).endswith(", CLOSED>")


@pytest.mark.parametrize("name", ["exception_listener", "event_listener"])
def test_a_listener_is_something_that_can_be_called_and_can_be_taken_away(connection: Connection, name: str) -> None:
    heard: list[object] = []
    setattr(connection, name, heard.append)
    assert getattr(connection, name) == heard.append
    with pytest.raises(TypeError, match=f"{name}='x' cannot be called"):
        setattr(connection, name, "x")
    assert getattr(connection, name) == heard.append
    setattr(connection, name, None)
    assert getattr(connection, name) is None
    connection.close()
    with pytest.raises(IllegalStateException, match="CLOSED"):
        setattr(connection, name, heard.append)


def test_a_mode_that_is_none_is_refused(connection: Connection) -> None:
    with pytest.raises(TypeError, match=r"mode='AUTO' is not an AcknowledgeMode, such as AcknowledgeMode\.AUTO"):
        connection.create_session("AUTO")  # type: ignore[arg-type]


def test_a_closed_connection_makes_no_session(connection: Connection) -> None:
    connection.close()
    with pytest.raises(IllegalStateException, match="CLOSED"):
        connection.create_session()


def test_both_listeners_are_called_for_a_consumer_that_the_broker_closes_also_after_a_fault_of_one(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[JMSException] = []
    events: list[object] = []
    heard = threading.Event()

    def fails(error: JMSException) -> None:
        errors.append(error)
        raise ZeroDivisionError("a fault")

    def hears(event: object) -> None:
        events.append(event)
        heard.set()

    connection.exception_listener = fails
    connection.event_listener = hears
    connection.start()
    session = connection.create_session()
    queue = session.create_queue("q")
    session.create_producer(queue).send("x")
    consumer = session.create_consumer(queue)
    connection.request("delete", {"destination": "q", "force": True})
    assert heard.wait(WAIT)
    assert "was deleted" in str(errors[0])
    assert isinstance(events[0], LinkLost)
    assert "a fault" in caplog.text
    consumer.close()


@pytest.mark.parametrize("url", ["embedded:", "amqp://127.0.0.1:1"])
@pytest.mark.parametrize("timeout", [-1, 0, float("nan"), True, "x"])
def test_a_connection_is_not_made_within_such_a_time(url: str, timeout: Any) -> None:
    factory = ConnectionFactory(url)
    for create in (factory.create_connection, factory.create_context):
        with pytest.raises(ValueError, match=rf"^timeout={timeout!r} "):
            create(timeout=timeout)


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_the_log_says_once_that_a_receive_waits_for_a_connection_that_was_never_started(
    connection: Connection, caplog: pytest.LogCaptureFixture, timeout: float
) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    for _ in range(2):
        assert consumer.receive(timeout) is None
    assert [each.message for each in caplog.records] == [
        f"! {consumer._lifecycle.name} gets no message before its connection is started: call connection.start()"
    ]


def test_a_receive_whose_connection_is_started_in_time_waits_without_a_warning(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    session = connection.create_session()
    queue = session.create_queue("q")
    session.create_producer(queue).send("x")
    consumer = session.create_consumer(queue)
    starter = threading.Thread(target=connection.start)
    threading.Timer(0.05, starter.start).start()
    message = consumer.receive(timeout=60)
    starter.join()
    assert message is not None
    assert caplog.records == []


def test_the_log_says_that_a_listener_waits_for_a_connection_that_was_never_started(
    connection: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "UNSTARTED_SECONDS", 0.05)
    session = connection.create_session()
    session.create_consumer(session.create_queue("q")).listener = print
    eventually(lambda: "gets no message before its connection is started" in caplog.text)


def test_a_consumer_of_a_connection_that_was_stopped_waits_without_a_warning(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    session = connection.create_session()
    connection.start()
    connection.stop()
    assert session.create_consumer(session.create_queue("q")).receive(0.01) is None
    assert caplog.records == []


def test_the_log_says_that_a_selector_compares_with_a_quoted_identifier(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    session = connection.create_session()
    session.create_consumer(session.create_queue("q"), 'region = "EU"')
    assert [each.message for each in caplog.records] == [
        '! selector region = "EU" compares with the property "EU": if the text is meant, it is in single quotes: \'EU\''
    ]
