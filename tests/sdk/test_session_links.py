"""What becomes of the consumers and producers of a session whose links the broker closes."""

from __future__ import annotations

import gc
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter import BrowserInterruptedException, LinkInterrupted, LinkLost
from broker_adapter import queue as queue_of
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    JMSException,
    Message,
    MessageConsumer,
    Session,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from sdk.session_links import MAX_KEPT_EVENTS
from tests.contracts.transports import eventually
from tests.sdk.interrupts import AtStep
from tests.sdk.small_broker import SmallBroker, fill, lose, received, started, with_messages


class Lossy(SmallBroker):
    """A broker whose link is closed while acknowledgements are in transit, and that marks no redelivery."""

    drops = False

    def settle(self, settlements: Sequence[Settlement]) -> None:
        if not self.drops:
            super().settle(settlements)

    def interrupt_link(self, link: int) -> None:
        super().interrupt_link(link)
        for stored in chain(*self.waiting.values()):
            stored.failures = 0


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_what_was_acknowledged_on_a_closed_link_is_acknowledged_again_and_not_given_out(mode: AcknowledgeMode) -> None:
    broker = Lossy()
    with started(broker) as connection:
        session, consumer = with_messages(connection, mode, 3)
        broker.drops = True
        messages = [received(consumer) for _ in range(3)]
        for message in messages:
            message.acknowledge()
        broker.drops = False
        broker.interrupt_link(consumer._prefetch.link)
        broker.restore_link(consumer._prefetch.link, 77)
        with connection.create_session() as other:
            fill(other, 1)
        assert received(consumer).message_id not in [message.message_id for message in messages]
        session.recover()
        assert broker.outcomes()[:3] == [Outcome.ACCEPTED] * 3


def test_what_was_given_back_on_a_closed_link_is_redelivered_with_its_mark() -> None:
    broker = Lossy()
    with started(broker) as connection:
        session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 1)
        received(consumer)
        broker.drops = True
        session.recover()
        broker.drops = False
        broker.interrupt_link(consumer._prefetch.link)
        broker.restore_link(consumer._prefetch.link, 77)
        assert received(consumer).redelivered


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


def attach_and(broker: SmallBroker, monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None]) -> None:
    """Something happens to the next link between its attach and the answer to who has asked for it."""
    plain = broker.attach

    def attach(spec: Any, sink: Any, timeout: float | None) -> int:
        monkeypatch.undo()
        link = plain(spec, sink, timeout)
        then(link)
        return link

    monkeypatch.setattr(broker, "attach", attach)


def test_who_attaches_hears_of_a_link_that_is_lost_at_once(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [connection.create_session() for _ in range(3)]
    session, q = others[1], queue_of("q")
    attach_and(broker, monkeypatch, broker.lose_link)
    consumer = session.create_consumer(q)
    with pytest.raises(ConnectionLostException, match="link closed"):
        consumer.receive()
    attach_and(broker, monkeypatch, broker.lose_link)
    producer = session.create_producer(q)
    with pytest.raises(ConnectionLostException, match="link closed"):
        producer.send("x")
    attach_and(broker, monkeypatch, broker.lose_link)
    with pytest.raises(BrowserInterruptedException):
        next(iter(session.create_browser(q)))
    assert not any(each._links._keeps_any or each._links._attaching for each in others)


def test_a_consumer_receives_whose_link_was_closed_and_restored_at_once(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = with_messages(connection, AcknowledgeMode.CLIENT, 0)

    def bounce(link: int) -> None:
        broker.interrupt_link(link)
        broker.restore_link(link, 77)

    attach_and(broker, monkeypatch, bounce)
    consumer = session.create_consumer(queue_of("other"))
    with session.create_producer(queue_of("other")) as producer:
        producer.send("x")
    assert received(consumer).body == "x"
    attach_and(broker, monkeypatch, broker.interrupt_link)
    consumer = session.create_consumer(queue_of("third"))
    assert consumer._prefetch.is_away
    broker.restore_link(consumer._prefetch.link, 78)
    with session.create_producer(queue_of("third")) as producer:
        producer.send("y")
    assert received(consumer).body == "y"


def test_an_event_of_a_link_is_old_once_the_connection_was_lost(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = with_messages(connection, AcknowledgeMode.CLIENT, 0)

    def lose_all(link: int) -> None:
        broker.interrupt_link(link)
        lose(broker)

    attach_and(broker, monkeypatch, lose_all)
    consumer = session.create_consumer(queue_of("other"))
    assert not consumer._prefetch._away
    with session.create_producer(queue_of("other")) as producer:
        producer.send("x")
    received(consumer).acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED]


@pytest.mark.parametrize("how", ["lost", "interrupted"])
def test_an_event_of_a_link_that_is_handled_late_does_not_concern_the_next_connection(
    broker: SmallBroker, connection: Connection, how: str
) -> None:
    """Each connection numbers its links from the start, so that another consumer has the number by then."""
    session, first = with_messages(connection, AcknowledgeMode.CLIENT, 4)
    second = session.create_consumer(queue_of("other"))
    link = second._prefetch.link
    with session._links._handling:  # by another thread, which is not done yet
        if how == "lost":
            broker.lose_link(link)
        else:
            broker.interrupt_link(link)
            broker.restore_link(link, 77)
        lose(broker)
        broker.tag_links.update({first._prefetch.link: link, link: 78})
    session._links._handle()
    assert not second._prefetch._away
    messages = [received(first) for _ in range(4)]
    messages[-1].acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED] * 4
    fill(session, 1)
    received(first).acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED] * 5
    if how == "lost":
        with pytest.raises(ConnectionLostException, match="link closed"):
            second.receive()
    else:
        session.create_producer(queue_of("other")).send("x")
        assert received(second).body == "x"


def test_a_link_that_was_restored_before_the_connection_was_lost_has_its_credit_once(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 1)
    link = consumer._prefetch.link
    with session._links._handling:
        broker.interrupt_link(link)
        broker.restore_link(link, 77)
        lose(broker)
        received(consumer)
    session._links._handle()
    assert not consumer._prefetch.needs_reset


def test_a_link_that_was_lost_with_a_connection_that_a_call_knows_to_be_lost_is_forgotten(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    other = session.create_consumer(queue_of("other"))
    broker.cut_untold = True
    with pytest.raises(StaleAcknowledgementException):
        received(consumer).acknowledge()
    broker.lose_link(other._prefetch.link)
    broker.interrupt()
    broker.tag_links[consumer._prefetch.link] = other._prefetch.link
    broker.restore()
    assert not session._state.lost_links
    received(consumer).acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED]


def test_events_of_unknown_links_are_kept_while_something_is_attached_and_not_without_limit(
    broker: SmallBroker, connection: Connection
) -> None:
    session = connection.create_session()
    links = session._links

    def attach() -> None:
        for number in range(MAX_KEPT_EVENTS + 10):
            broker.lose_link(1000 + number)
        assert len(links._kept) == MAX_KEPT_EVENTS

    links.attach(attach)
    assert not links._kept


def browsed(session: Session) -> object:
    """An iteration that has begun."""
    looks = iter(session.create_browser(queue_of("q")))
    next(looks)
    return looks


@pytest.mark.parametrize(
    "attach",
    [
        lambda session: session.create_producer(queue_of("q")),
        lambda session: session.create_consumer(queue_of("q")),
        browsed,
    ],
    ids=["producer", "consumer", "browser"],
)
def test_nothing_counts_as_being_attached_wherever_that_was_interrupted(
    broker: SmallBroker, connection: Connection, attach: Callable[[Session], object]
) -> None:
    with connection.create_session() as filling:
        fill(filling, 1)
    number, error = 0, None
    while number == 0 or error is not None:
        number += 1
        session, made = connection.create_session(), list[object]()
        # Both are kept: what is made, and the error with all that is in its traceback.
        error = AtStep(number).during(lambda session=session, made=made: made.append(attach(session)))  # type: ignore[misc]
        assert not session._links._attaching, number
        session.close()
    assert number > 20, "it has been interrupted at each step"


def test_what_others_hold_is_acknowledged_together_though_a_link_cannot_be_attached_again(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 2)
    other = session.create_consumer(session.create_queue("other"))
    broker.interrupt_link(other._prefetch.link)
    broker._listener(LinkLost(other._prefetch.link, ConnectionLostException("refused for good")))
    received(consumer)
    session.acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED]


def lost_consumer(broker: SmallBroker, session: Session) -> None:
    consumer = session.create_consumer(queue_of("q"))
    broker.lose_link(consumer._prefetch.link)


def lost_listener(broker: SmallBroker, session: Session) -> None:
    consumer = session.create_consumer(queue_of("q"))
    consumer.listener = print
    broker.lose_link(consumer._prefetch.link)


def lost_producer(broker: SmallBroker, session: Session) -> None:
    producer = session.create_producer(queue_of("q"))
    broker.lose_link(producer._link)


@pytest.mark.parametrize("lose_one", [lost_consumer, lost_listener, lost_producer])
def test_what_is_dropped_whose_link_the_broker_has_closed_leaves_nothing_in_its_session(
    broker: SmallBroker, connection: Connection, lose_one: Callable[[SmallBroker, Session], None]
) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    links, state = session._links, session._state
    acknowledgements = state.acknowledgements
    assert acknowledgements is not None
    reach = acknowledgements._reach
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            lose_one(broker, session)
        gc.collect()
        eventually(lambda: not (links.consumers._references or links.producers._references))
    assert (len(links.sinks), len(state.listening), len(state.lost_links)) == (
        0,
        0,
        1 if lose_one != lost_producer else 0,
    )
    session.create_consumer(queue_of("q")).close()
    assert acknowledgements._reach == reach
    assert not state.lost_links


def test_a_listener_that_is_set_as_its_link_is_closed_does_not_stay(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(queue_of("q"))
    plain = consumer._require_usable

    def close_behind() -> None:
        plain()
        broker.lose_link(consumer._prefetch.link)

    monkeypatch.setattr(MessageConsumer, "_require_usable", lambda _consumer: close_behind())
    with pytest.raises(ConnectionLostException, match="link closed"):
        consumer.listener = print
    assert not session._state.listening
