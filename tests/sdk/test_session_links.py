"""What becomes of the consumers and producers of a session whose links the broker closes."""

from __future__ import annotations

import queue
import threading

import pytest

from ack_modes import Outcome
from broker_adapter import BrowserInterruptedException, LinkInterrupted
from broker_adapter import queue as queue_of
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    JMSException,
    Message,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.sdk.small_broker import SmallBroker, received, with_messages


@pytest.mark.parametrize("listens", [False, True])
def test_nothing_of_a_link_that_was_closed_twice_is_given_out(
    broker: SmallBroker, connection: Connection, listens: bool
) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 20)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    first, go_on = threading.Event(), threading.Event()

    def listener(message: Message) -> None:
        heard.put(str(message))
        first.set()
        assert go_on.wait(120)

    if listens:
        consumer.listener = listener
        assert first.wait(120)
    broker.interrupt_link(consumer._prefetch.link)
    broker.restore_link(consumer._prefetch.link, 77)
    broker._listener(LinkInterrupted(consumer._prefetch.link, ConnectionLostException("closed again"), 77))
    broker.restore_link(consumer._prefetch.link, 78)
    go_on.set()
    expected = [str(number) for number in range(20)]
    if listens:
        assert [heard.get(timeout=120) for _ in range(21)] == ["0", *expected]
    else:
        assert [str(received(consumer)) for _ in range(20)] == expected


def test_a_consumer_whose_link_is_lost_keeps_nothing_in_its_session(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 5)
    assert len(session._links.sinks) == 1
    broker.lose_link(consumer._prefetch.link)
    assert not session._links.sinks


def test_lost_link_ends_its_consumer_alone(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 1)
    other = session.create_consumer(session.create_queue("other"))
    producer = session.create_producer(session.create_queue("other"))
    broker.lose_link(consumer._prefetch.link)

    with pytest.raises(ConnectionLostException, match="link closed"):
        consumer.receive()
    assert "link closed" in str(told.get(timeout=120))
    producer.send("still there")
    assert str(received(other)) == "still there"
    broker.lose_link(producer._link)
    with pytest.raises(ConnectionLostException, match="link closed"):
        producer.send("x")
    consumer.close()
    producer.close()


def test_client_what_came_on_a_closed_link_is_stale_once_and_is_redelivered(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 4)
    messages = [received(consumer) for _ in range(2)]
    broker.interrupt_link(consumer._prefetch.link)
    assert "link closed by the broker" in told.get(timeout=120).reason
    assert consumer.receive(0.05) is None, "what was prefetched is stale as well"
    broker.restore_link(consumer._prefetch.link, 77)
    with pytest.raises(StaleAcknowledgementException) as raised:
        messages[1].acknowledge()
    assert raised.value.stale_count == 2
    again = [received(consumer) for _ in range(4)]
    assert [message.body for message in again] == ["0", "1", "2", "3"]
    messages[0].acknowledge()  # of the old link: acknowledges nothing
    assert not broker.settled
    again[3].acknowledge()
    assert [outcome for _, outcome in broker.settled] == [Outcome.ACCEPTED] * 4
    session.close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_link_that_comes_back_with_the_whole_connection_delivers_again(
    broker: SmallBroker, connection: Connection, listens: bool
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 3)
    assert received(consumer).body == "0"
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    broker.interrupt_link(consumer._prefetch.link)
    if listens:
        consumer.listener = lambda message: heard.put(message.body)
    broker.interrupt()
    broker.restore()  # under the number in tags that it had
    if listens:
        assert [heard.get(timeout=120) for _ in range(2)] == ["1", "2"]
    else:
        assert [received(consumer).body for _ in range(2)] == ["1", "2"]
    session.close()


def test_a_transaction_that_received_on_a_closed_link_is_rolled_back(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    received(consumer)
    broker.interrupt_link(consumer._prefetch.link)
    broker.restore_link(consumer._prefetch.link, 78)
    with pytest.raises(TransactionRolledBackException):
        session.commit()
    assert [received(consumer).body for _ in range(2)] == ["0", "1"]
    session.commit()
    session.close()


def test_what_a_session_was_never_given_is_named_behind_a_loss(broker: SmallBroker, connection: Connection) -> None:
    session, _ = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    session.create_consumer(session.create_temporary_topic())
    broker.interrupt()
    assert [failures for _, failures in session._links.never_delivered()] == [0, 0, 0]
    broker.restore()


def test_a_session_closes_all_that_it_has_made_also_where_the_network_is_away(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 30)
    producer, browser = session.create_producer(session.create_queue("q")), session.create_browser(queue_of("q"))
    looks = iter(browser)
    next(looks)
    received(consumer)

    def lost(*_: object) -> None:
        raise ConnectionLostException("lost")

    monkeypatch.setattr(broker, "settle", lost)
    monkeypatch.setattr(broker, "end_session", lost)
    broker.interrupt()
    session.close()
    monkeypatch.undo()
    assert [repr(each).split(", ")[1].strip(">") for each in (producer, browser, consumer)] == ["CLOSED"] * 3
    assert not session._links.producers.values()
    with pytest.raises(BrowserInterruptedException):
        next(looks)
