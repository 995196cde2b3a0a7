"""Consumers of the SDK that close while large messages come in, against a server on a loopback socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import AcknowledgeMode, ConnectionFactory
from tests.broker_adapter.engine.driving import WAIT
from tests.contracts.transports import eventually

SIZE = 3_000_000
COUNT = 12


@pytest.fixture
def factory() -> Iterator[ConnectionFactory]:
    broker = Broker(EngineSettings())
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    port = listener.start()[1]
    yield ConnectionFactory(f"amqp://127.0.0.1:{port}")
    listener.stop()
    broker.close()


@pytest.mark.parametrize("on_the_same_session", [True, False])
def test_messages_that_a_closed_consumer_did_not_get_come_to_the_next_one(
    factory: ConnectionFactory, on_the_same_session: bool
) -> None:
    with factory.create_connection() as connection, factory.create_connection() as other:
        connection.start()
        other.start()
        beside = other.create_session(AcknowledgeMode.AUTO)
        producer = beside.create_producer(beside.create_queue("q"))
        for number in range(COUNT):
            producer.send(bytes([number]) * SIZE)
        session = connection.create_session(AcknowledgeMode.AUTO)
        destination = session.create_queue("q")
        taken = []
        for turn in range(6):
            with session.create_consumer(destination) as consumer:
                if turn % 2:
                    message = consumer.receive(timeout=WAIT)
                    assert message is not None
                    taken.append((message.body[0], message.delivery_count))

        last = session if on_the_same_session else beside
        with last.create_consumer(destination) as consumer:
            while len(taken) < COUNT:
                message = consumer.receive(timeout=WAIT)
                assert message is not None, taken
                assert message.body == message.body[:1] * SIZE
                taken.append((message.body[0], message.delivery_count))
        # What another session has given back is not waited for.
        assert (taken if on_the_same_session else sorted(taken)) == [(number, 1) for number in range(COUNT)]
        eventually(lambda: [each.messages for each in other.statistics().queues if each.name == "q"] == [0])
        assert other.request("delete", {"destination": "q"}, timeout=WAIT) == 0
