"""A queue that an administrator deletes while applications use it, in the process and over AMQP."""

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
    ConnectionFactory,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageConsumer,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)

WAIT = 120.0


@pytest.fixture(params=["embedded", "amqp", "nofailover"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConnectionFactory]:
    if request.param == "embedded":
        yield ConnectionFactory(f"embedded:{tmp_path}")
        return
    broker = Broker(EngineSettings(), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    options = "?failover=nofailover" if request.param == "nofailover" else ""
    try:
        yield ConnectionFactory(f"amqp://127.0.0.1:{port}{options}")
    finally:
        listener.stop()
        broker.close()


def receive_all(consumer: MessageConsumer) -> None:
    while consumer.receive(timeout=WAIT) is not None:
        pass


def test_a_queue_is_deleted_when_it_is_not_in_use(factory: ConnectionFactory) -> None:
    with factory.create_connection() as connection, connection.create_session() as session:
        connection.start()
        queue = session.create_queue("q")
        session.create_producer(queue).send("x")
        consumer = session.create_consumer(queue)
        with pytest.raises(IllegalStateException, match="consumer is attached"):
            connection.request("delete", {"destination": "q"})
        consumer.close()
        assert connection.request("delete", {"destination": "q"}) == 1
        with pytest.raises(InvalidDestinationException, match="there is no queue"):
            connection.request("delete", {"destination": "q"})
        session.create_producer(queue).send("again")
        message = session.create_consumer(queue).receive(timeout=WAIT)
        assert message is not None
        assert message.body == "again"


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
def test_consumers_of_a_queue_that_is_deleted_by_force_are_told(
    factory: ConnectionFactory, mode: AcknowledgeMode
) -> None:
    told: list[JMSException] = []
    heard = threading.Event()

    def listener(error: JMSException) -> None:
        told.append(error)
        heard.set()

    with factory.create_connection() as connection, connection.create_session(mode) as session:
        connection.exception_listener = listener
        connection.start()
        queue = session.create_queue("q")
        with connection.create_session() as sending:
            producer = sending.create_producer(queue)
            for number in range(3):
                producer.send(str(number))
        consumer = session.create_consumer(queue)
        first = consumer.receive(timeout=WAIT)
        assert first is not None
        with factory.create_connection() as other:
            assert other.request("delete", {"destination": "q", "force": True}) >= 2
        assert heard.wait(WAIT)
        assert "'q' was deleted" in str(told[0])
        with pytest.raises(InvalidDestinationException, match="'q' was deleted"):
            receive_all(consumer)
        if mode is AcknowledgeMode.TRANSACTED:
            session.rollback()
        session.create_producer(queue).send("afterwards")
        if mode is AcknowledgeMode.TRANSACTED:
            session.commit()
        again = session.create_consumer(queue).receive(timeout=WAIT)
        assert again is not None
        assert again.body == "afterwards"


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED])
def test_what_was_received_of_a_queue_that_is_deleted_cannot_be_acknowledged_and_the_error_names_the_queue(
    factory: ConnectionFactory, mode: AcknowledgeMode
) -> None:
    heard = threading.Event()
    with factory.create_connection() as connection, connection.create_session(mode) as session:
        connection.exception_listener = lambda _error: heard.set()
        connection.start()
        gone, kept = session.create_queue("gone"), session.create_queue("kept")
        with connection.create_session() as sending:
            for each in (gone, kept):
                sending.create_producer(each).send("x")
        consumer, other = session.create_consumer(gone), session.create_consumer(kept)
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        assert other.receive(timeout=WAIT) is not None
        connection.request("delete", {"destination": "gone", "force": True})
        assert heard.wait(WAIT)
        if mode is AcknowledgeMode.TRANSACTED:
            session.create_producer(session.create_queue("to")).send("y")
            with pytest.raises(TransactionRolledBackException, match=r"a consumer \('gone' was deleted.* 1 received"):
                session.commit()
            session.commit()
        else:
            with pytest.raises(StaleAcknowledgementException, match=r"a consumer \('gone' was deleted.*1 message "):
                message.acknowledge()
            message.acknowledge()
        if mode is not AcknowledgeMode.INDIVIDUAL:  # where each message stands for itself
            again = other.receive(timeout=WAIT)
            assert again is not None
            assert again.redelivered
