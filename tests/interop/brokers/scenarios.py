"""What an application does with a broker, one scenario a function, in our SDK.

A scenario takes the broker; its destinations have names of their own, so that all of them may run on one broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from sdk import (
    AcknowledgeMode,
    BytesMessage,
    Connection,
    ConnectionFactory,
    DeliveryMode,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    MapMessage,
    Message,
    MessageConsumer,
    ObjectMessage,
    Session,
    StreamMessage,
    TextMessage,
)
from tests.faults.proxy import Proxy
from tests.interop.brokers.brokers import Broker

WAIT = 10.0
NOTHING = 0.5
Scenario = Callable[[Broker], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(act: Scenario) -> Scenario:
    """Register one."""
    SCENARIOS[act.__name__] = act
    return act


def name(word: str = "queue") -> str:
    """A name that nothing else has."""
    return f"{word}-{uuid4().hex[:12]}"


@contextmanager
def connected(broker: Broker, client_id: str | None = None) -> Iterator[Connection]:
    """A started connection."""
    factory = ConnectionFactory(broker.url, broker.username, broker.password)
    with factory.create_connection(client_id=client_id) as connection:
        connection.start()
        yield connection


@contextmanager
def session_of(broker: Broker, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Iterator[Session]:
    """A session of a connection of its own."""
    with connected(broker) as connection, connection.create_session(mode) as session:
        yield session


def received(consumer: MessageConsumer, count: int) -> list[Message]:
    """So many messages; fails where one does not come."""
    messages = []
    for number in range(count):
        message = consumer.receive(timeout=WAIT)
        assert message is not None, f"only {number} of {count} messages came"
        messages.append(message)
    return messages


def bodies(consumer: MessageConsumer, count: int) -> list[Any]:
    """The bodies of so many messages."""
    return [message.body for message in received(consumer, count)]


def nothing_comes(consumer: MessageConsumer) -> bool:
    """Whether nothing comes for a while."""
    return consumer.receive(timeout=NOTHING) is None


# Connections.


@scenario
def log_in(broker: Broker) -> None:
    with connected(broker) as connection:
        assert connection.meta_data.broker_name


@scenario
def wrong_password_is_refused(broker: Broker) -> None:
    if broker.username is None:
        return  # any user may log in
    with pytest.raises(JMSSecurityException):
        ConnectionFactory(broker.url, broker.username, "wrong").create_connection()


@scenario
def client_id_is_for_one_connection(broker: Broker) -> None:
    client_id = name("client")
    with connected(broker, client_id), pytest.raises(InvalidClientIDException), connected(broker, client_id):
        pass
    deadline = time.monotonic() + WAIT
    while True:
        try:
            with connected(broker, client_id):
                return
        except InvalidClientIDException:  # Artemis forgets a client id just after it has answered the close
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# Messages.


@scenario
def messages_of_every_type(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        sent: list[Message] = [
            session.create_message(),
            session.create_text_message("grüße 😀"),
            session.create_bytes_message(b"\x00\x01\xff"),
            session.create_map_message({"i": 5, "s": "x", "b": b"\x09", "n": None, "f": 1.5, "t": True}),
            session.create_stream_message([1, "two", 3.5, None]),
            session.create_object_message({"list": [1, "two"], "n": None}),
        ]
        for message in sent:
            producer.send(message)
        found = received(session.create_consumer(queue), len(sent))
        kinds = [Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage]
        assert [type(message) for message in found] == kinds
        assert [message.body for message in found] == [message.body for message in sent]


@scenario
def headers_and_properties(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        message = session.create_text_message("x")
        message.correlation_id = "c-1"
        message.reply_to = session.create_queue("answers")
        message.type = "greeting"
        message.group_id = "g"
        message.group_sequence = 3
        properties = {"flag": True, "number": -(2**40), "small": 7, "ratio": 0.25, "text": "ü", "nothing": None}
        message.properties.update(properties)
        session.create_producer(queue).send(message, priority=7, time_to_live=60)
        (found,) = received(session.create_consumer(queue), 1)
        assert dict(found.properties) == properties
        assert (found.correlation_id, found.type, found.group_id, found.group_sequence) == ("c-1", "greeting", "g", 3)
        assert str(found.reply_to) == "answers"
        assert str(found.destination) == queue.name
        assert (found.message_id, found.sent_at_ms, found.expires_at_ms) == (
            message.message_id,
            message.sent_at_ms,
            message.expires_at_ms,
        )
        assert (found.priority, found.delivery_mode, found.delivery_count) == (7, DeliveryMode.PERSISTENT, 1)
        assert not found.redelivered


@scenario
def non_persistent_messages(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for number in range(100):
            producer.send(str(number), delivery_mode=DeliveryMode.NON_PERSISTENT)
        found = received(session.create_consumer(queue), 100)
        assert [message.body for message in found] == [str(number) for number in range(100)]
        assert {message.delivery_mode for message in found} == {DeliveryMode.NON_PERSISTENT}


@scenario
def large_messages(broker: Broker) -> None:
    body = bytes(range(256)) * 20_000  # 5 MiB
    with session_of(broker) as session:
        queue = session.create_queue(name())
        session.create_producer(queue).send(body)
        assert bodies(session.create_consumer(queue), 1) == [body]


@scenario
def priorities(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        session.create_consumer(queue).close()
        producer = session.create_producer(queue)
        for priority in (0, 9, 4):
            producer.send(str(priority), priority=priority)
        assert bodies(session.create_consumer(queue), 3) == ["9", "4", "0"]


@scenario
def time_to_live(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        producer.send("short", time_to_live=0.05)
        producer.send("long", time_to_live=60)
        time.sleep(0.3)
        consumer = session.create_consumer(queue)
        assert bodies(consumer, 1) == ["long"]
        assert nothing_comes(consumer)


@scenario
def delivery_delay(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        consumer = session.create_consumer(queue)
        producer = session.create_producer(queue)
        producer.send("late", delivery_delay=1)
        producer.send("early")
        assert bodies(consumer, 1) == ["early"]
        assert consumer.receive(timeout=0.2) is None
        assert bodies(consumer, 1) == ["late"]


# Acknowledge modes.


@scenario
def auto_acknowledge(broker: Broker) -> None:
    queue_name = name()
    with session_of(broker) as session:
        queue = session.create_queue(queue_name)
        producer = session.create_producer(queue)
        for body in "abc":
            producer.send(body)
        assert bodies(session.create_consumer(queue), 2) == ["a", "b"]
    with session_of(broker) as session:
        consumer = session.create_consumer(session.create_queue(queue_name))
        (found,) = received(consumer, 1)
        assert (found.body, found.redelivered) == ("c", False)
        assert nothing_comes(consumer)


@scenario
def dups_ok_acknowledge(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.DUPS_OK) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for number in range(250):
            producer.send(str(number), delivery_mode=DeliveryMode.NON_PERSISTENT)
        assert bodies(session.create_consumer(queue), 250) == [str(number) for number in range(250)]
    with session_of(broker) as session:
        assert nothing_comes(session.create_consumer(queue))


@scenario
def client_acknowledge_and_recover(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.CLIENT) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for body in "abc":
            producer.send(body)
        consumer = session.create_consumer(queue)
        first, second = received(consumer, 2)
        assert (first.body, second.body) == ("a", "b")
        session.recover()
        again = received(consumer, 3)
        assert [message.body for message in again] == ["a", "b", "c"]
        assert [message.redelivered for message in again] == [True, True, False]
        assert [message.delivery_count for message in again] == [2, 2, 1]
        again[0].acknowledge()
    with session_of(broker) as session:
        assert nothing_comes(session.create_consumer(queue))


@scenario
def what_is_not_acknowledged_is_redelivered(broker: Broker) -> None:
    queue_name = name()
    with session_of(broker, AcknowledgeMode.CLIENT) as session:
        queue = session.create_queue(queue_name)
        session.create_producer(queue).send("a")
        received(session.create_consumer(queue), 1)
    with session_of(broker) as session:
        (found,) = received(session.create_consumer(session.create_queue(queue_name)), 1)
        assert (found.body, found.redelivered) == ("a", True)


@scenario
def individual_acknowledge(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.INDIVIDUAL) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for body in "abc":
            producer.send(body)
        received(session.create_consumer(queue), 3)[1].acknowledge()
    with session_of(broker) as session:
        consumer = session.create_consumer(queue)
        assert bodies(consumer, 2) == ["a", "c"]
        assert nothing_comes(consumer)


@scenario
def synchronous_acknowledge(broker: Broker) -> None:
    queue_name = name()
    with session_of(broker) as session:
        producer = session.create_producer(session.create_queue(queue_name))
        for body in "abcd":
            producer.send(body)
    port = int(broker.url.partition("?")[0].rpartition(":")[2])
    for mode in (AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL):
        with Proxy(port) as proxy:
            url = broker.url.replace(f":{port}", f":{proxy.port}")
            url = f"{url}{'&' if '?' in url else '?'}synchronous_acknowledge=true&failover=nofailover"
            connection = ConnectionFactory(url, broker.username, broker.password).create_connection()
            connection.start()
            session = connection.create_session(mode)
            consumer = session.create_consumer(session.create_queue(queue_name), prefetch=0)
            (message,) = received(consumer, 1)
            message.acknowledge()
            proxy.cut()  # nothing that was on its way arrives
            connection.close()
    with session_of(broker) as session:
        consumer = session.create_consumer(session.create_queue(queue_name))
        assert bodies(consumer, 1) == ["d"]
        assert nothing_comes(consumer)


@scenario
def no_acknowledge(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.NO_ACK) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for body in "ab":
            producer.send(body)
        assert bodies(session.create_consumer(queue), 2) == ["a", "b"]
    with session_of(broker) as session:
        assert nothing_comes(session.create_consumer(queue))


@scenario
def transactions(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.TRANSACTED) as session, session_of(broker) as other:
        questions, answers = session.create_queue(name()), session.create_queue(name())
        producer = other.create_producer(questions)
        for body in "ab":
            producer.send(body)
        consumer, answered = session.create_consumer(questions), other.create_consumer(answers)
        sender = session.create_producer(answers)
        for body in "ab":
            assert bodies(consumer, 1) == [body]
            sender.send(f"{body}!")
            assert nothing_comes(answered)
            session.commit()
            assert bodies(answered, 1) == [f"{body}!"]


@scenario
def rollback(broker: Broker) -> None:
    with session_of(broker, AcknowledgeMode.TRANSACTED) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for number in range(10):
            producer.send(str(number))
        session.commit()
        consumer = session.create_consumer(queue)
        assert bodies(consumer, 5) == ["0", "1", "2", "3", "4"]
        producer.send("never")
        session.rollback()
        again = received(consumer, 10)
        assert [message.body for message in again] == [str(number) for number in range(10)]
        assert again[0].redelivered
        session.commit()
        assert nothing_comes(consumer)


# Producers and consumers.


@scenario
def completion_callbacks_come_in_order(broker: Broker) -> None:
    told: list[str] = []
    errors: list[JMSException] = []
    finished = threading.Event()

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.append(message.body)
        if error is not None:
            errors.append(error)
        if len(told) == 1000:
            finished.set()

    with session_of(broker) as session:
        producer = session.create_producer(session.create_queue(name()))
        for number in range(1000):
            producer.send(str(number), on_completion=on_completion)
        assert finished.wait(WAIT)
    assert told == [str(number) for number in range(1000)]
    assert not errors


@scenario
def listeners(broker: Broker) -> None:
    seen: list[Any] = []
    finished = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 100:
            finished.set()

    with connected(broker) as connection:
        session = connection.create_session()
        queue = session.create_queue(name())
        session.create_consumer(queue).listener = handle
        producer = connection.create_session().create_producer(queue)
        for number in range(100):
            producer.send(str(number))
        assert finished.wait(WAIT)
    assert seen == [str(number) for number in range(100)]


@scenario
def anonymous_producer(broker: Broker) -> None:
    with session_of(broker) as session:
        queues = [session.create_queue(name()) for _ in range(3)]
        consumers = [session.create_consumer(queue) for queue in queues]
        producer = session.create_producer()
        for queue in (*queues, *queues):
            producer.send(f"to {queue}", queue)
        for queue, consumer in zip(queues, consumers, strict=True):
            assert bodies(consumer, 2) == [f"to {queue}"] * 2


@scenario
def two_consumers_share_a_queue(broker: Broker) -> None:
    with session_of(broker) as session, session_of(broker) as other:
        queue = session.create_queue(name())
        first, second = session.create_consumer(queue), other.create_consumer(queue)
        producer = session.create_producer(queue)
        for number in range(20):
            producer.send(str(number))
        found = [message.body for consumer in (first, second) for message in drained(consumer)]
        assert sorted(found, key=int) == [str(number) for number in range(20)]


def drained(consumer: MessageConsumer) -> list[Message]:
    """Everything that comes until nothing comes for a while."""
    messages = []
    while (message := consumer.receive(timeout=NOTHING)) is not None:
        messages.append(message)
    return messages


@scenario
def receive_keeps_its_time(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        consumer = session.create_consumer(queue)
        began = time.monotonic()
        assert consumer.receive(timeout=0.3) is None
        assert 0.3 <= time.monotonic() - began < 5
        assert consumer.receive_nowait() is None
        session.create_producer(queue).send("a")
        assert bodies(consumer, 1) == ["a"]


@scenario
def receive_nowait_finds_what_waits(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        session.create_producer(queue).send("a")
        consumer = session.create_consumer(queue)
        message = consumer.receive_nowait()
        assert message is not None
        assert message.body == "a"


# Selectors and browsers.


@scenario
def selectors(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for number, colour in enumerate(("red", "blue", "red", "green")):
            message = session.create_text_message(f"{colour} {number}")
            message.properties.update({"colour": colour, "number": number})
            producer.send(message)
        consumer = session.create_consumer(queue, selector="colour = 'red' OR number > 2")
        assert bodies(consumer, 3) == ["red 0", "red 2", "green 3"]
        assert nothing_comes(consumer)
        consumer.close()
        assert bodies(session.create_consumer(queue), 1) == ["blue 1"]


@scenario
def selectors_of_headers(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for kind, priority in (("car", 4), ("boat", 4), ("car", 8)):
            message = session.create_text_message(f"{kind} {priority}")
            message.type = kind
            producer.send(message, priority=priority)
        consumer = session.create_consumer(queue, selector="JMSType = 'car' AND JMSPriority < 5")
        assert bodies(consumer, 1) == ["car 4"]
        assert nothing_comes(consumer)


@scenario
def invalid_selector_is_refused(broker: Broker) -> None:
    with session_of(broker) as session, pytest.raises(InvalidSelectorException):
        session.create_consumer(session.create_queue(name()), selector="a = = 1")


@scenario
def browsers(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_queue(name())
        producer = session.create_producer(queue)
        for body in "abc":
            producer.send(body)
        for _ in range(2):
            with session.create_browser(queue) as browser:
                assert [message.body for message in browser] == ["a", "b", "c"]
        assert bodies(session.create_consumer(queue), 3) == ["a", "b", "c"]


# Topics.


@scenario
def topics(broker: Broker) -> None:
    with session_of(broker) as session, session_of(broker) as other:
        topic = session.create_topic(name("topic"))
        consumers = [session.create_consumer(topic), other.create_consumer(topic)]
        producer = session.create_producer(topic)
        for body in "ab":
            producer.send(body)
        for consumer in consumers:
            assert bodies(consumer, 2) == ["a", "b"]


@scenario
def selectors_of_topics(broker: Broker) -> None:
    with session_of(broker) as session:
        topic = session.create_topic(name("topic"))
        consumer = session.create_consumer(topic, selector="colour = 'red'")
        producer = session.create_producer(topic)
        for colour in ("blue", "red"):
            message = session.create_text_message(colour)
            message.properties["colour"] = colour
            producer.send(message)
        assert bodies(consumer, 1) == ["red"]


@scenario
def no_local(broker: Broker) -> None:
    with session_of(broker) as session, session_of(broker) as other:
        topic = session.create_topic(name("topic"))
        consumer = session.create_consumer(topic, no_local=True)
        session.create_producer(topic).send("own")
        other.create_producer(topic).send("other")
        assert bodies(consumer, 1) == ["other"]
        assert nothing_comes(consumer)


@scenario
def durable_subscriptions(broker: Broker) -> None:
    client_id, topic_name = name("client"), name("topic")
    with connected(broker, client_id) as connection, connection.create_session() as session:
        topic = session.create_topic(topic_name)
        session.create_durable_consumer(topic, "s").close()
        session.create_producer(topic).send("meanwhile")
    with connected(broker, client_id) as connection, connection.create_session() as session:
        consumer = session.create_durable_consumer(session.create_topic(topic_name), "s")
        assert bodies(consumer, 1) == ["meanwhile"]
        consumer.close()
        session.unsubscribe("s")
        with pytest.raises(InvalidDestinationException):
            session.unsubscribe("s")


@scenario
def shared_subscriptions(broker: Broker) -> None:
    share(broker, durable=False)


@scenario
def shared_durable_subscriptions(broker: Broker) -> None:
    share(broker, durable=True)


def share(broker: Broker, *, durable: bool) -> None:
    """Two connections without client ids share a subscription."""
    with session_of(broker) as session, session_of(broker) as other:
        topic, shared = session.create_topic(name("topic")), name("subscription")
        consumers = [
            each.create_shared_durable_consumer(topic, shared)
            if durable
            else each.create_shared_consumer(topic, shared)
            for each in (session, other)
        ]
        producer = session.create_producer(topic)
        for number in range(10):
            producer.send(str(number))
        found = [message.body for consumer in consumers for message in drained(consumer)]
        assert sorted(found, key=int) == [str(number) for number in range(10)]
        for consumer in consumers:
            consumer.close()
        if durable:
            producer.send("meanwhile")
            consumer = session.create_shared_durable_consumer(topic, shared)
            assert bodies(consumer, 1) == ["meanwhile"]
            consumer.close()
            session.unsubscribe(shared)


# Temporary destinations.


@scenario
def request_and_reply(broker: Broker) -> None:
    with session_of(broker) as session, session_of(broker) as serving:
        queue = session.create_queue(name())
        answers = session.create_temporary_queue()
        answered = session.create_consumer(answers)
        question = session.create_text_message("2 + 2")
        question.reply_to = answers
        session.create_producer(queue).send(question)
        (asked,) = received(serving.create_consumer(queue), 1)
        answer = serving.create_text_message("4")
        answer.correlation_id = asked.message_id
        assert asked.reply_to is not None
        serving.create_producer().send(answer, asked.reply_to)
        (found,) = received(answered, 1)
        assert (found.body, found.correlation_id) == ("4", question.message_id)


@scenario
def temporary_topic(broker: Broker) -> None:
    with session_of(broker) as session:
        topic = session.create_temporary_topic()
        consumer = session.create_consumer(topic)
        session.create_producer(topic).send("a")
        assert bodies(consumer, 1) == ["a"]


@scenario
def temporary_queue_is_deleted(broker: Broker) -> None:
    with session_of(broker) as session:
        queue = session.create_temporary_queue()
        session.create_producer(queue).send("a")
        session.delete_temporary(queue)
        with pytest.raises(JMSException):
            session.delete_temporary(queue)
