"""Unreadable messages of other clients: reported, set aside, and no obstacle to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import proton
import pytest

from broker_adapter.amqp.messages.values import Described, Symbol, ULong, encode
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import Destination
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT
from broker_adapter.in_process import EngineLease
from broker_adapter.server.listener import Listener
from broker_adapter.settings import ServerSettings
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import (
    BytesMessage,
    Connection,
    ConnectionFactory,
    JMSException,
    MessageFormatException,
    ObjectMessage,
    TextMessage,
)

WAIT = 120.0
Q = Destination("q")


def section(code: int, value: object) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


def nested(depth: int) -> bytes:
    """A body of lists in lists, by hand: ours writes none so deep."""
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + (len(value) + 4).to_bytes(4) + (1).to_bytes(4) + value
    return b"\x00\x53\x77" + value


BAD = {
    "a body that is cut short": section(0x77, "hello")[:-3],
    "a body that is no section": section(0x74, {"k": 1}) + b"\xff\xff",
    "a property that is a list": section(0x74, {"k": [1, 2]}) + section(0x77, "x"),
    "a property that is described": section(0x74, {"k": Described(ULong(7), "x")}) + section(0x77, "x"),
    "a section of properties that is a list": b"\x00\x53\x74\x45" + section(0x77, "x"),
    "a body nested too deep": nested(200),
    "an array of values without bytes": b"\x00\x53\x77\xf0" + (8).to_bytes(4) + (2**31).to_bytes(4) + b"\x41" * 4,
    "a time of sending that is text": section(0x73, [None] * 9 + ["yesterday"]) + section(0x77, "x"),
}


@pytest.fixture(params=["in process", "amqp", "standard amqp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Broker, Connection]]:
    """An engine, and a connection to it."""
    url = parse_url(f"embedded:{tmp_path}")
    assert isinstance(url, EmbeddedURL)
    lease = EngineLease(url)
    listener = Listener(lease.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    standard = "?envelope=false" if request.param == "standard amqp" else ""
    own = f"embedded:{tmp_path}" if request.param == "in process" else f"amqp://127.0.0.1:{port}{standard}"
    with ConnectionFactory(own).create_connection() as connection:
        connection.start()
        yield lease.broker, connection
    listener.stop()
    lease.release()


def put(broker: Broker, payload: bytes, message_format: int = AMQP_FORMAT) -> None:
    """Put a message into the queue as another client sent it."""
    client = broker.call(c.Connect(None), WAIT)
    broker.call(c.Enqueue(client, Q, [c.NewMessage(message_format, payload)]), WAIT)
    broker.call(c.Disconnect(client), WAIT)


@pytest.mark.parametrize("what", BAD)
def test_an_unreadable_message_is_reported_and_set_aside_and_the_next_message_comes(
    served: tuple[Broker, Connection], what: str
) -> None:
    broker, connection = served
    told: list[JMSException] = []
    heard = threading.Event()

    def listener(error: JMSException) -> None:
        told.append(error)
        heard.set()

    connection.exception_listener = listener
    put(broker, BAD[what])
    put(broker, section(0x77, "good"))
    with connection.create_session() as session:
        message = session.create_consumer(session.create_queue("q")).receive(timeout=WAIT)
        assert isinstance(message, TextMessage)
        assert message.text == "good"
        assert heard.wait(WAIT)
        assert [type(error) for error in told] == [MessageFormatException]
        session.create_producer(session.create_queue("q")).send("what was settled is settled when this is answered")
    depths = {each.name: each.messages for each in connection.statistics().queues}
    assert depths["DLQ"] == 1


@pytest.mark.parametrize("what", [*BAD, "a damaged envelope"])
def test_an_unreadable_dead_letter_is_received_as_bytes(served: tuple[Broker, Connection], what: str) -> None:
    broker, connection = served
    stored = BAD.get(what, b"\xdc\x00\x11garbage")
    for _ in range(3):
        put(broker, stored, AMQP_FORMAT if what in BAD else ENVELOPE_FORMAT)
    put(broker, section(0x77, "good"))
    with connection.create_session() as session:
        assert session.create_consumer(session.create_queue("q")).receive(timeout=WAIT) is not None
        session.create_producer(session.create_queue("q")).send("what was settled is settled when this is answered")
        dead = session.create_queue("DLQ")
        assert [type(message) for message in session.create_browser(dead)] == [BytesMessage] * 3
        consumer = session.create_consumer(dead)
        for _ in range(3):
            message = consumer.receive(timeout=WAIT)
            assert isinstance(message, BytesMessage)
            assert stored in message.body or stored[-2:] in message.body, "the properties of a dead letter are added"
            assert message.properties["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "q"
            assert message.destination in (Q, dead), "the server does not say where it was, if it cannot read it either"
        assert consumer.receive_nowait() is None
    assert {each.name: each.messages for each in connection.statistics().queues}["DLQ"] == 0


def test_dead_letters_that_are_rejected_again_keep_no_other_from_coming(served: tuple[Broker, Connection]) -> None:
    """Somebody has sent them there, so they are in the queue as any other message."""
    broker, connection = served
    for payload, count in ((BAD["a body that is cut short"], 12), (section(0x77, "good"), 1)):
        client = broker.call(c.Connect(None), WAIT)
        broker.call(c.Enqueue(client, Destination("DLQ"), [c.NewMessage(AMQP_FORMAT, payload)] * count), WAIT)
        broker.call(c.Disconnect(client), WAIT)
    with connection.create_session() as session:
        message = session.create_consumer(session.create_queue("DLQ"), prefetch=5).receive(timeout=WAIT)
        assert message is not None
        assert message.body == "good"


def test_a_damaged_envelope_is_set_aside_too(served: tuple[Broker, Connection]) -> None:
    broker, connection = served
    heard = threading.Event()
    connection.exception_listener = lambda error: heard.set()
    put(broker, b"\xdc\x00\x11garbage", ENVELOPE_FORMAT)
    put(broker, section(0x77, "good"))
    with connection.create_session() as session:
        message = session.create_consumer(session.create_queue("q")).receive(timeout=WAIT)
        assert message is not None
        assert message.body == "good"


def test_a_message_of_an_unknown_type_is_read_by_its_body(served: tuple[Broker, Connection]) -> None:
    broker, connection = served
    put(broker, section(0x72, {Symbol("x-opt-jms-msg-type"): 99}) + section(0x77, "text"))
    put(broker, bytes(proton.Message(body=proton.Described(proton.symbol("mine"), [1, "two"])).encode()))
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"))
        first, second = consumer.receive(timeout=WAIT), consumer.receive(timeout=WAIT)
        assert isinstance(first, TextMessage)
        assert first.text == "text"
        assert isinstance(second, ObjectMessage)
        assert second.body == [1, "two"]


def test_a_selector_leaves_what_it_cannot_read(served: tuple[Broker, Connection]) -> None:
    broker, connection = served
    put(broker, BAD["a property that is a list"])
    put(broker, section(0x74, {"k": 1}) + section(0x77, "good"))
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"), selector="k IS NOT NULL OR k IS NULL")
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        assert message.body == "good"
        assert consumer.receive_nowait() is None
