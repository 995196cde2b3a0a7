"""A session that is closed while its ``commit()`` waits for room: the commit says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
from tests.faults.proxy import Proxy

WAIT = 60.0


@pytest.fixture
def served() -> Iterator[Callable[[Path], int]]:
    """Starts a server whose queues take two messages; returns its port."""
    with ExitStack() as stack:

        def serve(directory: Path) -> int:
            broker = Broker(EngineSettings(max_queue_messages=2, blocked_send_timeout_seconds=50), str(directory))
            stack.callback(broker.close)
            listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
            stack.callback(listener.stop)
            return listener.start()[1]

        yield serve


@pytest.fixture(params=["in process", "amqp", "failover"])
def url(request: pytest.FixtureRequest, tmp_path: Path, served: Callable[[Path], int]) -> str:
    """The URL of an engine whose queues take two messages."""
    if request.param == "in process":
        return f"embedded:{tmp_path}?max_queue_messages=2&blocked_send_timeout_seconds=50&close_timeout_seconds=3"
    url = f"amqp://127.0.0.1:{served(tmp_path)}"
    url = f"failover:({url})?" if request.param == "failover" else f"{url}?failover=nofailover&"
    return f"{url}close_timeout_seconds=3"


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


def commit(session: Session, errors: list[JMSException]) -> None:
    try:
        session.commit()
    except JMSException as error:
        errors.append(error)


def held(connection: Connection) -> int:
    return sum(queue.blocked_sends for queue in connection.statistics().queues)


def test_a_commit_that_waits_for_room_has_its_answer_over_a_slow_network(
    tmp_path: Path, served: Callable[[Path], int]
) -> None:
    """A tenth of the time for closing is kept for what comes behind the wait for the commit."""
    port = served(tmp_path)
    with Proxy(port) as proxy, ConnectionFactory(f"amqp://127.0.0.1:{port}").create_connection() as watching:
        url = f"{proxy.url}?failover=nofailover&close_timeout_seconds=10"
        committing = ConnectionFactory(url).create_connection()
        session: Session = committing.create_session(AcknowledgeMode.TRANSACTED)
        full = session.create_queue("full")
        send(watching, full, "1", "2")
        session.create_producer(full).send("3")
        errors: list[JMSException] = []
        thread = threading.Thread(target=commit, args=(session, errors))
        thread.start()
        while not held(watching):
            pass
        proxy.delay(0.035)
        committing.close()
        thread.join(WAIT)
        assert [type(error) for error in errors] == [TransactionRolledBackException]


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
    thread = threading.Thread(target=commit, args=(session, errors))
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
