"""The SDK over real engines: each mode's promise, in memory, on disk, and over AMQP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    BytesMessage,
    Connection,
    ConnectionFactory,
    DeliveryMode,
    Destination,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MapMessage,
    Message,
    MessageFormatException,
    MessageNotWriteableException,
    ObjectMessage,
    Session,
    StreamMessage,
    TextMessage,
)
from tests.aio_face import Faces

WAIT = 120.0
MODES = list(AcknowledgeMode)
#: Tests of what is called back, which the face for asyncio has not.
called_back = pytest.mark.parametrize("connection", ["threads"], indirect=True)


@pytest.fixture(params=["memory", "disk", "amqp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "disk":
        yield f"embedded:{tmp_path}?redelivery_delay_seconds=0.001"
        return
    broker = Broker(EngineSettings(redelivery_delay_seconds=0.001), str(tmp_path) if request.param == "amqp" else None)
    if request.param == "memory":
        broker.close()
        yield "embedded:"
        return
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    yield f"amqp://127.0.0.1:{port}"
    listener.stop()
    broker.close()


@pytest.fixture(params=["threads", "asyncio"])
def connection(request: pytest.FixtureRequest, url: str) -> Iterator[Connection]:
    """A connection of either face."""
    if request.param == "asyncio":
        faces = Faces()
        with faces.connect(url) as connection:
            yield connection
        faces.close()
        return
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own: the engine in memory is shared by the whole process."""
    return f"{request.node.name} {time.monotonic_ns()}"


def send(connection: Connection, name: str, *bodies: Any, **arguments: Any) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for body in bodies:
            producer.send(body, **arguments)


def left(connection: Connection, name: str) -> list[tuple[Any, int]]:
    """(body, delivery count) of what a new consumer finds; nothing of it is taken for good."""
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(name))
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append((message.body, message.delivery_count))
        session.rollback()
        return found


def bodies(messages: list[tuple[Any, int]]) -> list[Any]:
    return [body for body, _ in messages]


# The modes.


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_closed_session_leaves_what_its_mode_has_not_acknowledged(
    connection: Connection, name: str, mode: AcknowledgeMode
) -> None:
    send(connection, name, *"abcd")
    with connection.create_session(mode) as session:
        consumer = session.create_consumer(session.create_queue(name))
        for _ in range(2):
            assert consumer.receive(timeout=WAIT) is not None
    expected = {
        AcknowledgeMode.AUTO: ["c", "d"],
        AcknowledgeMode.DUPS_OK: ["c", "d"],
        AcknowledgeMode.CLIENT: ["a", "b", "c", "d"],
        AcknowledgeMode.INDIVIDUAL: ["a", "b", "c", "d"],
        AcknowledgeMode.TRANSACTED: ["a", "b", "c", "d"],
        AcknowledgeMode.NO_ACK: [],
    }[mode]
    found = left(connection, name)
    if mode is AcknowledgeMode.NO_ACK:
        # What was on its way to the client is gone; how much that was is not specified.
        assert set(bodies(found)) <= {"c", "d"}
        return
    assert bodies(found) == expected
    counts = dict(found)
    for body in expected:
        assert counts[body] == (2 if body in "ab" else 1)


def test_acknowledge_in_client_mode_is_for_all_so_far(connection: Connection, name: str) -> None:
    send(connection, name, *"abcd")
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        consumer.receive(timeout=WAIT)
        second = consumer.receive(timeout=WAIT)
        assert second is not None
        second.acknowledge()
        consumer.receive(timeout=WAIT)
    assert left(connection, name) == [("c", 2), ("d", 1)]


def test_acknowledge_in_individual_mode_is_for_one(connection: Connection, name: str) -> None:
    send(connection, name, *"abc")
    with connection.create_session(AcknowledgeMode.INDIVIDUAL) as session:
        consumer = session.create_consumer(session.create_queue(name))
        messages = [consumer.receive(timeout=WAIT) for _ in range(3)]
        assert messages[1] is not None
        messages[1].acknowledge()
    assert left(connection, name) == [("a", 2), ("c", 2)]


def test_recover_delivers_again_in_order(connection: Connection, name: str) -> None:
    send(connection, name, *"abc")
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        first = [consumer.receive(timeout=WAIT) for _ in range(2)]
        session.recover()
        again = [consumer.receive(timeout=WAIT) for _ in range(3)]
        assert [message.body for message in first if message] == ["a", "b"]
        assert [(message.body, message.redelivered) for message in again if message] == [
            ("a", True),
            ("b", True),
            ("c", False),
        ]


def test_a_transaction_takes_and_sends_together(connection: Connection, name: str) -> None:
    send(connection, name, "a", "b")
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(name))
        producer = session.create_producer(session.create_queue(f"{name} out"))
        consumer.receive(timeout=WAIT)
        producer.send("lost")
        session.rollback()
        assert left(connection, f"{name} out") == []
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        assert (message.body, message.delivery_count) == ("a", 2)
        producer.send("kept")
        session.commit()
    assert bodies(left(connection, f"{name} out")) == ["kept"]
    assert bodies(left(connection, name)) == ["b"]


@pytest.mark.parametrize("url", ["disk", "amqp"], indirect=True)  # an engine in memory is shared with its options
def test_a_message_that_is_rolled_back_too_often_is_a_dead_letter(connection: Connection, name: str) -> None:
    send(connection, name, name)
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(name))
        for delivery in range(1, 11):
            message = consumer.receive(timeout=WAIT)
            assert message is not None
            assert message.delivery_count == delivery
            session.rollback()
        assert consumer.receive(timeout=0.2) is None
        dead = [each for each in session.create_browser(session.create_queue("DLQ")) if each.body == name]
        assert dead[0].properties["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == 10


@called_back
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_a_listener_that_raises_gets_its_message_again(
    connection: Connection, name: str, mode: AcknowledgeMode
) -> None:
    seen: list[tuple[Any, bool]] = []
    finished = threading.Event()

    def handle(message: Message) -> None:
        seen.append((message.body, message.redelivered))
        if len(seen) == 4:
            finished.set()
        if message.body == "b" and not message.redelivered:
            raise ValueError("not this one")

    with connection.create_session(mode) as session:
        session.create_consumer(session.create_queue(name)).listener = handle
        send(connection, name, *"abc")
        assert finished.wait(WAIT)
    assert sorted(seen) == [("a", False), ("b", False), ("b", True), ("c", False)]
    assert left(connection, name) == []


# Receiving.


def test_receive_keeps_its_time(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        started = time.monotonic()
        assert consumer.receive(timeout=0.2) is None
        assert time.monotonic() - started >= 0.2
        assert consumer.receive_nowait() is None
        send(connection, name, "x")
        message = consumer.receive()
        assert message is not None
        assert message.body == "x"


def test_receive_nowait_finds_what_is_there(connection: Connection, name: str) -> None:
    send(connection, name, "x")
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        message = consumer.receive_nowait()
        assert message is not None


def test_nothing_is_received_before_the_connection_is_started(url: str, name: str) -> None:
    with ConnectionFactory(url).create_connection() as stopped:
        send(stopped, name, "x")
        with stopped.create_session() as session:
            consumer = session.create_consumer(session.create_queue(name))
            assert consumer.receive(timeout=0.1) is None
            stopped.start()
            assert consumer.receive(timeout=WAIT) is not None


@called_back
def test_two_consumers_share_the_work(connection: Connection, name: str) -> None:
    seen: list[set[Any]] = [set(), set()]
    finished = threading.Event()

    def listener(index: int) -> Any:
        def handle(message: Message) -> None:
            seen[index].add(message.body)
            if len(seen[0]) + len(seen[1]) == 200:
                finished.set()

        return handle

    with connection.create_session() as first, connection.create_session() as second:
        for index, session in enumerate((first, second)):
            session.create_consumer(session.create_queue(name)).listener = listener(index)
        send(connection, name, *(str(number) for number in range(200)))
        assert finished.wait(WAIT)
    assert seen[0] & seen[1] == set()
    assert all(seen)


def test_a_prefetch_of_none_takes_one_at_a_time(url: str, name: str) -> None:
    separator = "&" if "?" in url else "?"
    with ConnectionFactory(f"{url}{separator}prefetch_messages=0").create_connection() as connection:
        connection.start()
        send(connection, name, *"abc")
        with connection.create_session() as session, connection.create_session() as other:
            consumer = session.create_consumer(session.create_queue(name))
            assert _body(consumer.receive(timeout=WAIT)) == "a"
            assert _body(other.create_consumer(other.create_queue(name)).receive(timeout=WAIT)) == "b"
            assert _body(consumer.receive(timeout=WAIT)) == "c"


def _body(message: Message | None) -> Any:
    assert message is not None
    return message.body


def test_a_browser_shows_what_waits(connection: Connection, name: str) -> None:
    send(connection, name, *(str(number) for number in range(50)))
    with connection.create_session() as session:
        browser = session.create_browser(session.create_queue(name))
        assert [message.body for message in browser] == [str(number) for number in range(50)]
        browser.close()
    assert len(left(connection, name)) == 50


def test_a_selector_chooses_what_is_received_and_browsed(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        producer = session.create_producer(queue)
        for colour in ("red", "blue", "red"):
            message = session.create_text_message(colour)
            message.properties["colour"] = colour
            producer.send(message)
        browser = session.create_browser(queue, selector="colour = 'red'")
        assert [str(message) for message in browser] == ["red", "red"]
        consumer = session.create_consumer(queue, selector="colour = 'blue'")
        found = consumer.receive(timeout=120)
        assert found is not None
        assert str(found) == "blue"
        assert consumer.receive_nowait() is None


def test_an_invalid_selector_is_refused_when_the_consumer_is_made(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        with pytest.raises(InvalidSelectorException, match="column 10"):
            session.create_consumer(queue, selector="colour = = 1")
        with pytest.raises(InvalidSelectorException, match="column 10"):
            session.create_browser(queue, selector="colour = ")


# Messages.


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("text ü", TextMessage),
        (b"\x00\xff", BytesMessage),
        ({"a": 1, "b": None, "c": b"x"}, MapMessage),
        ([1, "two", 3.5], StreamMessage),
    ],
)
def test_each_type_of_message_arrives_as_it_was(
    connection: Connection, name: str, body: Any, kind: type[Message]
) -> None:
    send(connection, name, body)
    with connection.create_session() as session:
        message = session.create_consumer(session.create_queue(name)).receive(timeout=WAIT)
        assert type(message) is kind
        assert message.body == body


def test_an_object_message_carries_plain_data(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        session.create_producer(queue).send(session.create_object_message({"deep": [1, {"er": None}]}))
        message = session.create_consumer(queue).receive(timeout=WAIT)
        assert type(message) is ObjectMessage
        assert message.body == {"deep": [1, {"er": None}]}
        for code in (object(), Path("x"), print, {"deep": [print]}):
            with pytest.raises(MessageFormatException, match="a message cannot carry"):
                session.create_object_message(code)


def test_headers_and_properties_arrive(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        message = session.create_text_message("x")
        message.correlation_id = "c"
        message.type = "t"
        message.reply_to = queue
        message.properties["number"] = 5
        message.properties["flag"] = True
        session.create_producer(queue).send(
            message, delivery_mode=DeliveryMode.NON_PERSISTENT, priority=8, time_to_live=60
        )
        assert message.message_id
        got = session.create_consumer(queue).receive(timeout=WAIT)
        assert got is not None
        assert (got.message_id, got.correlation_id, got.type) == (message.message_id, "c", "t")
        assert (got.reply_to, got.destination, got.priority) == (queue, queue, 8)
        assert got.delivery_mode is DeliveryMode.NON_PERSISTENT
        assert dict(got.properties) == {"number": 5, "flag": True}
        assert got.sent_at_ms is not None
        assert got.expires_at_ms == got.sent_at_ms + 60_000
        with pytest.raises(MessageNotWriteableException):
            got.properties["number"] = 6
        with pytest.raises(MessageNotWriteableException):
            got.text = "y"  # type: ignore[attr-defined]


def test_priority_expiry_and_delay_hold(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        producer = session.create_producer(queue)
        producer.send("low", priority=1)
        producer.send("high", priority=9)
        producer.send("gone", time_to_live=0.05)
        sent = time.monotonic()
        producer.send("late", priority=0, delivery_delay=0.4)
        time.sleep(0.1)  # what expires has expired
        consumer = session.create_consumer(queue)
        found = [consumer.receive(timeout=WAIT) for _ in range(3)]
        assert time.monotonic() - sent >= 0.35
        assert [_body(each) for each in found] == ["high", "low", "late"]
        assert [each.priority for each in found if each] == [9, 1, 0]
        assert [each.expires_at_ms for each in found if each] == [None] * 3
        delays = [each.deliver_at_ms and each.deliver_at_ms - (each.sent_at_ms or 0) for each in found if each]
        assert delays == [None, None, 400]
        assert consumer.receive_nowait() is None


# Sending.


@called_back
def test_completion_callbacks_come_in_order(connection: Connection, name: str) -> None:
    told: list[Any] = []
    finished = threading.Event()

    def completed(message: Message, error: JMSException | None) -> None:
        told.append((message.body, error))
        if len(told) == 100:
            finished.set()

    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(100):
            producer.send(str(number), on_completion=completed)
        assert finished.wait(WAIT)
    assert told == [(str(number), None) for number in range(100)]


def test_an_anonymous_producer_needs_a_destination_for_each_message(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(None)
        producer.send("x", destination=session.create_queue(name))
        with pytest.raises((InvalidDestinationException, IllegalStateException, TypeError)):
            producer.send("y")
    assert bodies(left(connection, name)) == ["x"]


# Topics, subscriptions, temporary destinations.


def test_a_topic_reaches_all_its_subscribers(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        topic = session.create_topic(name)
        first, second = session.create_consumer(topic), session.create_consumer(topic)
        session.create_producer(topic).send("news")
        assert _body(first.receive(timeout=WAIT)) == _body(second.receive(timeout=WAIT)) == "news"


def test_a_shared_subscription_is_shared_over_connections(url: str, name: str) -> None:
    with (
        ConnectionFactory(url).create_connection() as one,
        ConnectionFactory(url).create_connection() as two,
        one.create_session() as first,
        two.create_session() as second,
    ):
        one.start()
        two.start()
        topic = first.create_topic(name)
        consumers = [session.create_shared_consumer(topic, name) for session in (first, second)]
        producer = first.create_producer(topic)
        for number in range(10):
            producer.send(str(number))
        found = [[], []]  # type: list[list[Any]]
        while len(found[0] + found[1]) < 10:
            for index, consumer in enumerate(consumers):
                while (message := consumer.receive(timeout=0.2)) is not None:
                    found[index].append(message.body)
        assert sorted(found[0] + found[1]) == [str(number) for number in range(10)]


def test_a_reply_comes_over_a_temporary_queue(connection: Connection, name: str) -> None:
    def answer(session: Session, destination: Destination) -> None:
        request = session.create_consumer(destination).receive(timeout=WAIT)
        assert request is not None
        session.create_producer(None).send(f"re: {request.body}", destination=request.reply_to)

    with connection.create_session() as session, connection.create_session() as serving:
        requests = session.create_queue(name)
        thread = threading.Thread(target=answer, args=(serving, requests))
        thread.start()
        inbox = session.create_temporary_queue()
        message = session.create_text_message("hello")
        message.reply_to = inbox
        session.create_producer(requests).send(message)
        assert _body(session.create_consumer(inbox).receive(timeout=WAIT)) == "re: hello"
        thread.join(WAIT)


def test_a_closed_connection_says_so_and_closes_twice(url: str) -> None:
    connection = ConnectionFactory(url).create_connection()
    session = connection.create_session()
    connection.close()
    connection.close()
    with pytest.raises(IllegalStateException):
        session.create_queue("q")
    with pytest.raises(IllegalStateException):
        connection.create_session()


def test_closing_wakes_a_receiver(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    results: list[Any] = []

    def wait() -> None:
        try:
            results.append(consumer.receive(timeout=WAIT))
        except JMSException as error:
            results.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    started = time.monotonic()
    session.close()
    thread.join(WAIT)
    assert time.monotonic() - started < WAIT / 2
    assert results == [None] or isinstance(results[0], IllegalStateException)
