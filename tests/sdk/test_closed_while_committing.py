"""A session that is closed while its ``commit()`` waits for room: the commit says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    Destination,
    JMSException,
    Session,
    TransactionRolledBackException,
)

WAIT = 60.0


@pytest.fixture(params=["in process", "amqp", "failover"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an engine whose queues take two messages."""
    if request.param == "in process":
        yield f"embedded:{tmp_path}?max_queue_messages=2&blocked_send_timeout_seconds=50&close_timeout_seconds=1"
        return
    broker = Broker(EngineSettings(max_queue_messages=2, blocked_send_timeout_seconds=50), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    url = f"amqp://127.0.0.1:{port}"
    url = f"failover:({url})?" if request.param == "failover" else f"{url}?failover=nofailover&"
    yield f"{url}close_timeout_seconds=1"
    listener.stop()
    broker.close()


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        yield connection


def send(connection: Connection, queue: Destination, *bodies: str) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(queue)
        for body in bodies:
            producer.send(body)


def bodies(connection: Connection, queue: Destination) -> list[object]:
    with connection.create_session() as session:
        return [message.body for message in session.create_browser(queue)]


def held(connection: Connection) -> int:
    return sum(queue.blocked_sends for queue in connection.statistics().queues)


@pytest.mark.parametrize("closes", ["session", "connection"])
def test_a_commit_that_waits_for_room_is_rolled_back_by_the_close_of_its_session(
    url: str, connection: Connection, closes: str
) -> None:
    committing = ConnectionFactory(url).create_connection()
    committing.start()
    session: Session = committing.create_session(AcknowledgeMode.TRANSACTED)
    full, other = session.create_queue("full"), session.create_queue("in")
    send(connection, full, "1", "2")
    send(connection, other, "taken")
    told: list[JMSException | None] = []
    message = session.create_consumer(other).receive(WAIT)
    assert message is not None
    session.create_producer(full).send("3", on_completion=lambda _message, error: told.append(error))
    errors: list[JMSException] = []

    def commit() -> None:
        try:
            session.commit()
        except JMSException as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    while not held(connection):
        pass
    (session if closes == "session" else committing).close()
    thread.join(WAIT)
    committing.close()

    assert [type(error) for error in errors] == [TransactionRolledBackException]
    assert [type(error) for error in told] == [TransactionRolledBackException]
    assert held(connection) == 0
    assert bodies(connection, full) == ["1", "2"]
    with connection.create_session() as another:
        again = another.create_consumer(other).receive(WAIT)
        assert again is not None
        assert (again.body, again.redelivered) == ("taken", True)
