"""Which deliveries the application gets, and what becomes of the others."""

from __future__ import annotations

import threading
import time

import pytest

from ack_modes import Outcome
from sdk import Connection, MessageConsumer, Session
from tests.sdk.small_broker import SmallBroker


def _started(broker: SmallBroker) -> Connection:
    connection = broker.connect()
    connection.start()
    return connection


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10)


def _fill(session: Session, count: int) -> None:
    with session.create_producer(session.create_queue("q")) as producer:
        for number in range(count):
            producer.send(str(number))


def _consumer(session: Session) -> MessageConsumer:
    return session.create_consumer(session.create_queue("q"))


def test_unreadable_message_is_rejected_and_told_and_the_next_one_comes(broker: SmallBroker) -> None:
    told: list[object] = []
    came = threading.Event()
    with _started(broker) as connection:
        connection.exception_listener = lambda error: (told.append(error), came.set())
        session = connection.create_session()
        _fill(session, 3)
        broker.unreadable = {1, 2}
        consumer = _consumer(session)

        assert str(consumer.receive(120)) == "2"
        assert broker.outcomes() == [Outcome.REJECTED, Outcome.REJECTED, Outcome.ACCEPTED]
        assert came.wait(120)
        assert "cannot be decoded" in str(told[0])


@pytest.mark.parametrize("timeout", [0, 0.2, 120, None])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 10])
def test_what_waits_behind_messages_that_cannot_be_given_out_comes_at_once(
    prefetch: int, timeout: float | None
) -> None:
    broker = SmallBroker(prefetch_messages=prefetch)
    with _started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session()
        _fill(session, 7)
        broker.unreadable = {1, 2, 3, 4, 5}
        consumer = _consumer(session)
        assert [str(consumer.receive(timeout)) for _ in range(2)] == ["5", "6"]
        assert consumer.receive_nowait() is None


def test_receive_nowait_does_not_ask_again_for_what_has_expired_here_only() -> None:
    """The broker's clock is behind: it sends the message again and again."""
    broker = SmallBroker(prefetch_messages=1, poll_timeout_seconds=120, local_message_expiry=True)
    with _started(broker) as connection:
        session = connection.create_session()
        with session.create_producer(session.create_queue("q")) as producer:
            producer.send("late", time_to_live=0.001)
        consumer = _consumer(session)
        time.sleep(0.01)
        assert consumer.receive_nowait() is None
        assert len(broker.settled) <= 2  # once given back, it comes once more


def test_unreadable_message_does_not_stop_a_listener(broker: SmallBroker) -> None:
    got: list[str] = []
    done = threading.Event()

    def listen(message: object) -> None:
        got.append(str(message))
        done.set()

    with _started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session()
        _fill(session, 2)
        broker.unreadable = {1}
        _consumer(session).listener = listen

        assert done.wait(120)
    assert got == ["1"]
    assert broker.outcomes() == [Outcome.REJECTED, Outcome.ACCEPTED]
