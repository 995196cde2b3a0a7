"""A session or connection that is closed while asynchronous sends have no answer yet: each callback is told."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    ConnectionLostException,
    DeliveryMode,
    JMSException,
    TransactionRolledBackException,
)
from tests.contracts.transports import eventually
from tests.sdk.test_closed_by_handlers import MOST_STEPS, Handler

#: Takes two messages, and holds back what comes then.
LIMITS = {"max_queue_messages": 2, "blocked_send_timeout_seconds": 60.0}


@pytest.fixture(params=["in process", "amqp", "failover"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    options = "close_timeout_seconds=0.5"
    if request.param == "in process":
        limits = "&".join(f"{name}={value}" for name, value in LIMITS.items())
        yield f"embedded:{tmp_path}?{limits}&{options}"
        return
    broker = Broker(EngineSettings(**LIMITS), str(tmp_path))  # type: ignore[arg-type]
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    address = f"amqp://127.0.0.1:{port}"
    yield (
        f"failover:({address})?{options}" if request.param == "failover" else f"{address}?failover=nofailover&{options}"
    )
    listener.stop()
    broker.close()


@pytest.mark.parametrize("closed", ["session", "connection"])
def test_every_callback_is_told_when_the_queue_is_full_and_the_session_is_closed(url: str, closed: str) -> None:
    told: list[JMSException | None] = []
    with ConnectionFactory(url).create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        for number in range(200):
            producer.send(str(number), on_completion=lambda _message, error: told.append(error))
        (session if closed == "session" else connection).close()
        eventually(lambda: len(told) == 200)
        assert len([error for error in told if isinstance(error, ConnectionLostException)]) >= 198
        assert "may have been sent" in str(told[-1])
    time.sleep(0.1)
    assert len(told) == 200, "each is told once"


def test_a_close_waits_for_callbacks_that_are_told_of_it(url: str) -> None:
    ended = threading.Event()

    def slow(_message: object, error: JMSException | None) -> None:
        if error is not None:
            time.sleep(0.02)
            ended.set()

    with ConnectionFactory(url).create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        for number in range(3):
            producer.send(str(number), on_completion=slow)
        session.close()
        assert ended.is_set()


def test_a_send_of_a_transaction_is_told_of_wherever_its_session_is_closed(tmp_path: Path) -> None:
    """By the handler of a signal, in the middle of the send."""
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        for step in range(1, MOST_STEPS):
            session = connection.create_session(AcknowledgeMode.TRANSACTED)
            producer = session.create_producer(session.create_queue("q"))
            told: list[JMSException | None] = []
            handler = Handler(step, session.close)

            def send(producer=producer, told=told) -> None:  # type: ignore[no-untyped-def]
                producer.send("x", on_completion=lambda _message, fault: told.append(fault))

            error = handler.during(send)
            session.close()
            eventually(lambda error=error, told=told: error is not None or len(told) == 1)  # type: ignore[misc]
            assert all(isinstance(each, TransactionRolledBackException) for each in told)
            if handler.left > 0:
                return
        raise AssertionError("the call has no end")


@pytest.mark.parametrize("closed", ["session", "connection"])
def test_a_non_persistent_send_without_an_answer_at_a_close_may_have_been_sent(url: str, closed: str) -> None:
    if closed == "session" and url.startswith("embedded:"):
        pytest.skip("an engine in the process still answers the send, since the connection is open")
    told: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    with ConnectionFactory(url).create_connection() as connection:
        connection.exception_listener = told.put
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        for body in "ab":
            producer.send(body)
        message = session.create_text_message("c")
        producer.send(message, delivery_mode=DeliveryMode.NON_PERSISTENT)
        (session if closed == "session" else connection).close()
        error = told.get(timeout=120)
    assert type(error) is ConnectionLostException
    assert re.fullmatch(
        rf"message {message.message_id!r} to 'q': session \d+ was closed before the answer;"
        " the message may have been sent",
        str(error),
    )
