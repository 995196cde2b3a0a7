"""Sentences of *Client Failover Behaviour* on what comes back with a connection, and on listeners."""

from __future__ import annotations

import itertools
import threading

import pytest

from sdk import (
    BrowserInterruptedException,
    Connection,
    ConnectionLostException,
    Interrupted,
    JMSException,
    NoSuchElementException,
    Restored,
)
from tests.faults.conftest import Connect
from tests.faults.losses import cut, fill, in_background, lose, messages_in
from tests.faults.proxy import Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash


# "When the client connection is recreated, existing Sessions, Producers, Consumers will be refreshed transparently."


def test_everything_a_connection_had_comes_back(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    client = connect(client_id=f"client of {name}")
    got: dict[str, list[str]] = {}
    with direct.create_session() as elsewhere:
        queue, topic = elsewhere.create_queue(name), elsewhere.create_topic(name)
        sessions = [client.connection.create_session() for _ in range(5)]
        consumers = {
            "queue": sessions[0].create_consumer(queue, "colour = 'red'"),
            "topic": sessions[1].create_consumer(topic),
            "durable": sessions[2].create_durable_consumer(topic, "durable"),
            "shared": sessions[3].create_shared_consumer(topic, "shared"),
            "shared durable": sessions[4].create_shared_durable_consumer(topic, "shared durable"),
        }
        for word, consumer in consumers.items():
            consumer.listener = got.setdefault(word, []).append  # type: ignore[assignment]
        for _ in range(2):
            cut(client, proxy)
        to_queue, to_topic = elsewhere.create_producer(queue), elsewhere.create_producer(topic)
        for colour in ("blue", "red"):
            message = elsewhere.create_text_message(colour)
            message.properties["colour"] = colour
            to_queue.send(message)
        to_topic.send("news")
        assert wait_for(lambda: all(got.values())), got
    assert {word: [message.body for message in messages] for word, messages in got.items()} == {  # type: ignore[attr-defined]
        "queue": ["red"],
        "topic": ["news"],
        "durable": ["news"],
        "shared": ["news"],
        "shared durable": ["news"],
    }


def test_a_durable_subscription_has_what_came_while_the_network_was_away(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect(client_id=f"client of {name}")
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        consumer = session.create_durable_consumer(session.create_topic(name), "durable")
        lose(client, proxy)
        elsewhere.create_producer(elsewhere.create_topic(name)).send("meanwhile")
        proxy.refuse(False)
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == "meanwhile"


# "A special JMS exception (ConnectionLostException) needs to be sent into ExceptionListener."


def test_each_loss_is_told_once_with_what_became_of_it_in_order(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    for _ in range(3):
        cut(client, proxy)
    assert [type(each) for each in client.told] == [ConnectionLostException] * 3
    assert [type(each) for each in client.events] == [Interrupted, Restored] * 3
    restored = client.events[-1]
    assert isinstance(restored, Restored)
    assert restored.address == proxy.url
    assert 0 < restored.seconds < WAIT


def test_a_listener_that_raises_is_told_the_next_time_as_well(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    told = []

    def listener(error: JMSException) -> None:
        told.append(error)
        raise RuntimeError("not my day")

    client.connection.exception_listener = listener
    for _ in range(2):
        cut(client, proxy)
    assert wait_for(lambda: len(told) == 2)


def test_a_listener_may_close_the_connection(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    session = client.connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    closed = threading.Event()

    def listener(_error: JMSException) -> None:
        client.connection.close()
        closed.set()

    client.connection.exception_listener = listener
    thread, results = in_background(consumer.receive)
    proxy.cut()
    assert closed.wait(WAIT)
    thread.join(WAIT)
    assert results == [None]


# "If failover occurred while iterating through QueueBrowser enumerations a sub-class of NoSuchElementException should
# be thrown by default."


@pytest.mark.parametrize("prefetch", [500, 50])
def test_a_browser_that_was_being_iterated_says_that_it_lost_its_place(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, prefetch: int
) -> None:
    fill(direct, name, 120)
    client = connect(f"&prefetch_messages={prefetch}")
    with client.connection.create_session() as session:
        browser = session.create_browser(session.create_queue(name))
        look = iter(browser)
        assert [message.body for message in itertools.islice(look, 10)] == [str(number) for number in range(10)]
        cut(client, proxy)
        with pytest.raises(NoSuchElementException) as raised:
            list(look)
        assert type(raised.value) is BrowserInterruptedException
        assert len(list(browser)) == 120, "a new iteration begins at the head"


# "On successful failover, it is expected that a Qpid client should restore all temporary queues (by redeclaring the
# queues with the same name+attributes) created before failover."


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_temporary_destinations_come_back_under_their_names(
    connect: Connect, proxy: Proxy, direct: Connection, kind: str
) -> None:
    client = connect()
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        is_queue = kind == "queue"
        temporary = session.create_temporary_queue() if is_queue else session.create_temporary_topic()
        consumer = session.create_consumer(temporary)
        replier = elsewhere.create_producer()
        for number in range(3):
            replier.send(str(number), temporary)
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            if number == 1:
                proxy.leave_half_open()  # the server still has it when the client comes back
                client.wait_for_restore(2)
            else:
                cut(client, proxy)
        assert temporary.is_temporary
        with pytest.raises(JMSException):
            elsewhere.create_consumer(temporary)  # still for its own connection alone
        consumer.close()
        session.delete_temporary(temporary)
        with pytest.raises(JMSException):
            replier.send("gone", temporary)


# What is only prefetched is discarded, and has not failed.


def test_what_waits_behind_others_does_not_become_a_dead_letter_by_losses_alone(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    count = 14  # more than max_deliveries
    fill(direct, name, count)
    client = connect()
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        received = []
        for _ in range(count):
            message = consumer.receive(WAIT)
            assert message is not None
            received.append(message.body)
            cut(client, proxy)
        assert consumer.receive(0.1) is None
    # What was lost on the wire, which the client could not report, may have been delayed and lost its turn.
    assert sorted(received, key=int) == [str(number) for number in range(count)], "each seen once"
    assert messages_in(direct, "DLQ") == 0


@pytest.mark.parametrize("durable", [False, True])
def test_acknowledgements_of_a_shared_subscription_do_not_stand_in_the_way_of_a_restore(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, durable: bool
) -> None:
    client = connect()
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        topic = session.create_topic(name)
        make = session.create_shared_durable_consumer if durable else session.create_shared_consumer
        consumer = make(topic, f"shared {name}")
        producer = elsewhere.create_producer(topic)
        for number in range(4):
            producer.send(str(number))
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            cut(client, proxy)  # a subscription that is not durable ends with it
        restored = client.events[-1]
        assert isinstance(restored, Restored)
        assert restored.attempts == 1
        consumer.close()
        if durable:
            session.unsubscribe(f"shared {name}")
