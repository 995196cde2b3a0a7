"""What waits for a client's window or credit does not keep the server from reading the frame that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_adapter.amqp.messages.values import Described, ULong, encode
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import ConnectionFactory
from tests.broker_adapter.amqp.frames import DISPOSITION, FLOW, TRANSFER, attach, begin, flow
from tests.broker_adapter.server.raw_client import RawClient, request

BUDGET = 1 << 20
_DECLARE = b"\x00\x53\x77" + encode(Described(ULong(0x31), [None]))
_SIZE = 50_000
_COUNT = 20


@pytest.fixture
def port() -> Iterator[int]:
    broker = Broker(EngineSettings())
    settings = ServerSettings(max_connection_bytes=BUDGET, transaction_timeout_seconds=3600.0)
    listener = Listener(broker, "127.0.0.1", 0, settings, lambda: ServerLogin(None, plain=True))
    port = listener.start()[1]
    factory = ConnectionFactory(f"amqp://127.0.0.1:{port}")
    with factory.create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("big"))
        for _ in range(_COUNT):
            producer.send(bytes(_SIZE))
    yield port
    listener.stop()
    broker.close()


def fill_budget(client: RawClient) -> None:
    """A transaction, on session 0, that is just below the budget."""
    client.send(begin(0), attach(0, 0, "send", "other"), attach(0, 100, "c", coordinator=True))
    client.until(lambda: client.count(FLOW) >= 2)
    client.send(*client.deliver(0, 100, _DECLARE))

    def declared() -> list[Any]:
        states: list[Any] = [fields[4] for fields in client.fields(DISPOSITION)]
        return [state.value[0] for state in states if getattr(state, "descriptor", None) == 0x33]

    client.until(lambda: len(declared()) == 1)
    settled = client.count(DISPOSITION)
    for _ in range(BUDGET // _SIZE):
        body = b"\x00\x53\x75\xb0" + (_SIZE - 1000).to_bytes(4) + bytes(_SIZE - 1000)
        client.send(*client.deliver(0, 0, body, txn_id=declared()[0]))
    client.until(lambda: client.count(DISPOSITION) == settled + BUDGET // _SIZE)


def test_messages_that_wait_for_the_window_of_their_session_come_when_it_opens(port: int) -> None:
    with RawClient(port) as client:
        fill_budget(client)
        client.send(begin(1, window=1), attach(1, 0, "r", "big", receives=True), flow(1, 0, _COUNT, window=1))
        client.until(lambda: client.count(TRANSFER) == 1)
        client.send(flow(1, window=1000))
        client.until(lambda: client.count(TRANSFER) >= _COUNT)


def test_answers_that_wait_for_credit_come_with_it(port: int) -> None:
    with RawClient(port) as client:
        fill_budget(client)
        client.send(begin(1), attach(1, 0, "ask", "$holdfast"), attach(1, 1, "answers", "$holdfast", receives=True))
        client.until(lambda: any(channel == 1 and code == FLOW for channel, code, _ in list(client.received)))
        read = {"destination": "big", "first": 0, "last": 5}
        for number in range(3):
            client.send(*client.deliver(1, 0, request(number, "read_range", read)))
        client.send(flow(1, 1, 1))
        client.until(lambda: client.count(TRANSFER) >= 1)
        client.send(flow(1, 1, 100, count=1))
        client.until(lambda: client.count(TRANSFER) >= 3)
