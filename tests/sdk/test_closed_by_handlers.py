"""A session that is closed in the middle of its own call, as a signal handler may do, at each step of the call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    IllegalStateException,
    JMSException,
    Session,
    TransactionRolledBackException,
)

WAIT = 60.0
MOST_STEPS = 2_000


@pytest.fixture(params=["in process", "amqp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "in process":
        yield f"embedded:{tmp_path}"
        return
    broker = Broker(EngineSettings(), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    yield f"amqp://127.0.0.1:{port}?failover=nofailover"
    listener.stop()
    broker.close()


class Handler:
    """Does something at the given step of this thread: before a line, at a call or at a return."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.left = step
        self.act = act

    def trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event != "exception":
            self.left -= 1
        if self.left:
            return self.trace
        sys.settrace(None)
        self.act()
        return None

    def during(self, call: Callable[[], None]) -> JMSException | None:
        """What a call raises in the middle of which this happens."""
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            call()
        except JMSException as error:
            return error
        finally:
            sys.settrace(before)
        return None


def send(connection: Connection, *bodies: str) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        for body in bodies:
            producer.send(body)


def closed_at_each_step(
    url: str, mode: AcknowledgeMode, prepare: Callable[[Session], Callable[[], None]]
) -> Iterator[Any]:
    """For each step of a call: its error, and the connection to check with; the session is closed at that step."""
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        for step in range(1, MOST_STEPS):
            session = connection.create_session(mode)
            call = prepare(session)
            handler = Handler(step, session.close)
            error = handler.during(call)
            session.close()
            yield step, error, connection
            if handler.left > 0:
                return
        raise AssertionError("the call has no end")


def left(connection: Connection) -> list[object]:
    """What is in the queue; it is empty then."""
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"))
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(message.body)
        return found


def test_a_commit_says_whether_its_messages_were_sent_wherever_its_session_is_closed(url: str) -> None:
    def prepare(session: Session) -> Callable[[], None]:
        producer = session.create_producer(session.create_queue("q"))
        for body in "abc":
            producer.send(body)
        return session.commit

    outcomes = set()
    for step, error, connection in closed_at_each_step(url, AcknowledgeMode.TRANSACTED, prepare):
        assert error is None or isinstance(error, TransactionRolledBackException | IllegalStateException), step
        assert left(connection) == (list("abc") if error is None else []), (step, error)
        outcomes.add(type(error))
    assert {type(None), TransactionRolledBackException} <= outcomes


def test_a_commit_says_whether_its_messages_were_received_wherever_its_session_is_closed(url: str) -> None:
    with ConnectionFactory(url).create_connection() as sending:

        def prepare(session: Session) -> Callable[[], None]:
            send(sending, "a")
            consumer = session.create_consumer(session.create_queue("q"))
            assert consumer.receive(WAIT) is not None
            return session.commit

        for step, error, connection in closed_at_each_step(url, AcknowledgeMode.TRANSACTED, prepare):
            assert error is None or isinstance(error, TransactionRolledBackException | IllegalStateException), step
            assert left(connection) == ([] if error is None else ["a"]), (step, error)


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_an_acknowledgement_that_returns_has_acknowledged_wherever_its_session_is_closed(
    url: str, mode: AcknowledgeMode
) -> None:
    with ConnectionFactory(url).create_connection() as sending:

        def prepare(session: Session) -> Callable[[], None]:
            send(sending, "a")
            message = session.create_consumer(session.create_queue("q")).receive(WAIT)
            assert message is not None
            return message.acknowledge

        for step, error, connection in closed_at_each_step(url, mode, prepare):
            assert error is None or isinstance(error, IllegalStateException), step
            found = left(connection)
            assert error is not None or found == [], step
