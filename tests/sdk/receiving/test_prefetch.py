"""How a consumer asks for messages: prefetch, credit, drains, deadlines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ack_modes import Outcome
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import TransportEvent
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    IllegalStateException,
    MessageConsumer,
    Session,
)
from sdk.acknowledgements import Source
from tests.contracts.transports import eventually
from tests.sdk.small_broker import SmallBroker, consumer_of, fill, lose, received, started, with_messages


@pytest.fixture
def connection(broker: SmallBroker) -> Iterator[Connection]:
    with started(broker) as connection:
        yield connection


@pytest.fixture
def session(broker: SmallBroker) -> Iterator[Session]:
    with started(broker) as connection:
        yield connection.create_session(AcknowledgeMode.AUTO)


def test_half_of_the_prefetch_is_granted_when_half_of_it_is_used(broker: SmallBroker, session: Session) -> None:
    fill(session, 30)
    consumer = consumer_of(session)
    assert broker.credits == [10]

    for _ in range(4):
        consumer.receive()
    assert broker.credits == [10]
    consumer.receive()
    assert broker.credits == [10, 5]
    assert len(broker.held) == 10


def test_consumer_holds_no_more_than_its_prefetch(broker: SmallBroker, session: Session) -> None:
    fill(session, 30)

    consumer = consumer_of(session)

    assert "10 prefetched" in repr(consumer)
    assert len(broker.held) == 10


def test_consumer_of_a_stopped_connection_takes_nothing(broker: SmallBroker) -> None:
    with broker.connect() as connection:
        session = connection.create_session()
        fill(session, 1)
        consumer = consumer_of(session)

        assert consumer.receive(0.02) is None
        assert consumer.receive_nowait() is None
        assert (broker.credits, broker.drains) == ([], 0)
        connection.start()
        assert str(consumer.receive(120)) == "0"


def test_buffered_message_costs_no_drain(broker: SmallBroker, session: Session) -> None:
    fill(session, 2)
    consumer = consumer_of(session)

    assert str(consumer.receive_nowait()) == "0"
    assert str(consumer.receive(120)) == "1"
    assert broker.drains == 0


def test_receive_nowait_asks_the_broker_before_it_says_no(broker: SmallBroker, session: Session) -> None:
    consumer = consumer_of(session)

    assert consumer.receive_nowait() is None
    assert broker.drains == 1
    assert broker.credits == [10, 10]  # what the drain took away is granted again
    fill(session, 1)
    assert str(consumer.receive_nowait()) == "0"


def test_timed_receive_asks_the_broker_before_it_says_no(broker: SmallBroker, session: Session) -> None:
    consumer = consumer_of(session)

    start = time.monotonic()
    assert consumer.receive(timeout=0.05) is None
    assert time.monotonic() - start >= 0.05
    assert broker.drains == 1


def test_timed_receive_keeps_its_deadline_when_the_broker_does_not_answer(
    broker: SmallBroker, session: Session
) -> None:
    consumer = consumer_of(session)
    broker.hold_drains = True

    began = time.monotonic()
    for _ in range(10):
        assert consumer.receive(timeout=0.02) is None
    assert time.monotonic() - began < 15  # 0.2 s, and much for a busy machine
    assert 0 < max(broker.drain_limits) <= 0.02  # nor does it let the broker take longer
    assert consumer.receive_nowait() is None
    assert 0.02 < broker.drain_limits[-1] <= ClientSettings().poll_timeout_seconds

    broker.hold_drains = False
    fill(session, 1)
    assert str(consumer.receive(timeout=120)) == "0"


def test_credit_that_a_late_drain_took_away_is_found_missing(broker: SmallBroker, session: Session) -> None:
    consumer = consumer_of(session)
    broker.hold_drains = True
    assert consumer.receive_nowait() is None
    broker.hold_drains = False
    broker.drain(consumer._prefetch.link, None)  # the broker answers what no call waits for any more
    fill(session, 1)

    assert str(consumer.receive()) == "0"


def test_without_prefetch_one_message_is_asked_for_at_a_time() -> None:
    broker = SmallBroker(prefetch_messages=0)
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 3)
        consumer = consumer_of(session)
        assert (broker.credits, len(broker.held)) == ([], 0)

        assert str(consumer.receive()) == "0"
        assert str(consumer.receive(120)) == "1"
        assert len(broker.held) == 0
        assert str(consumer.receive_nowait()) == "2"
        assert consumer.receive_nowait() is None
        assert set(broker.credits) == {1}


def test_without_prefetch_a_listener_gets_one_message_at_a_time() -> None:
    broker = SmallBroker(prefetch_messages=0)
    held: list[int] = []
    done = threading.Event()

    def listen(message: object) -> None:
        held.append(len(broker.held))
        if len(held) == 3:
            done.set()

    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 3)
        consumer_of(session).listener = listen

        assert done.wait(120)
    assert held == [1, 1, 1]


@pytest.mark.parametrize("timeout", [-1, "1", True, float("-inf")])
def test_timeout_that_is_no_number_of_seconds_is_refused(session: Session, timeout: float) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds"):
        consumer_of(session).receive(timeout)


def test_closing_releases_what_was_only_prefetched(broker: SmallBroker, session: Session) -> None:
    fill(session, 3)
    consumer = consumer_of(session)
    consumer.receive()

    consumer.close()

    assert broker.outcomes() == [Outcome.ACCEPTED, Outcome.RELEASED, Outcome.RELEASED]
    assert not broker.held


def test_recover_gives_what_was_received_ahead_of_what_was_prefetched(broker: SmallBroker) -> None:
    with started(broker) as connection:
        session = connection.create_session(AcknowledgeMode.CLIENT)
        fill(session, 30)
        consumer = consumer_of(session)
        for _ in range(3):
            consumer.receive()

        session.recover()

        again = [consumer.receive(120) for _ in range(30)]
        assert [(str(message), message and message.delivery_count) for message in again] == [
            (str(number), 2 if number < 3 else 1) for number in range(30)
        ]
        assert broker.outcomes()[:10] == [Outcome.MODIFIED] * 3 + [Outcome.RELEASED] * 7


def test_dups_ok_accepts_late_without_a_further_call() -> None:
    broker = SmallBroker(dups_ok_batch_messages=100, dups_ok_delay_seconds=0.03)
    with started(broker) as connection:
        session = connection.create_session(AcknowledgeMode.DUPS_OK)
        fill(session, 2)
        consumer = consumer_of(session)
        began = time.monotonic()
        for _ in range(2):
            consumer.receive(120)

        eventually(lambda: len(broker.settled) == 2)
        assert time.monotonic() - began >= 0.03
        assert broker.outcomes() == [Outcome.ACCEPTED] * 2


def test_each_batch_that_is_not_full_is_acknowledged_when_its_time_has_come() -> None:
    broker = SmallBroker(dups_ok_batch_messages=100, dups_ok_delay_seconds=0.03)
    with broker.connect() as connection, connection.create_session(AcknowledgeMode.DUPS_OK) as session:
        connection.start()
        producer = session.create_producer(session.create_queue("q"))
        consumer = session.create_consumer(session.create_queue("q"))
        for number in range(1, 4):  # one batch after the other, with nothing that follows it
            producer.send(str(number))
            assert consumer.receive(120) is not None
            eventually(lambda number=number: len(broker.settled) >= number)  # type: ignore[misc]


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED, AcknowledgeMode.INDIVIDUAL])
def test_credit_that_is_granted_while_the_connection_is_restored_brings_no_message_out_of_order(
    broker: SmallBroker, connection: Connection, mode: AcknowledgeMode
) -> None:
    """The thread that grants has checked that the link is there, and is suspended while it is lost and comes back."""
    _, consumer = with_messages(connection, mode, 30)
    credit = broker.credit

    def late(link: int, messages: int) -> None:
        broker.credit = credit  # type: ignore[method-assign]
        lose(broker)
        credit(link, messages)

    broker.credit = late  # type: ignore[method-assign]
    assert [str(received(consumer)) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    assert [str(received(consumer)) for _ in range(30)] == [str(number) for number in range(30)]


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
def test_credit_for_a_link_that_is_there_again_before_its_session_knows_is_drained(
    broker: SmallBroker, connection: Connection, mode: AcknowledgeMode
) -> None:
    session, consumer = with_messages(connection, mode, 40)
    credit, listener = broker.credit, broker._listener
    waiting: list[TransportEvent] = []

    def late(link: int, messages: int) -> None:
        broker.credit = credit  # type: ignore[method-assign]
        broker.interrupt_link(link)
        broker._listener = waiting.append
        broker.restore_link(link, 77)
        broker._listener = listener
        broker._receivers[link].credit += messages  # what it brings is still on its way

    broker.credit = late  # type: ignore[method-assign]
    assert [str(received(consumer)) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    (restored,) = waiting
    drains = broker.drains
    listener(restored)
    for _ in range(10):
        received(consumer)
    session.recover() if mode is AcknowledgeMode.CLIENT else session.rollback()
    assert broker.drains > drains


# What is given back, and what is lost.


def _recovered(broker: SmallBroker, connection: Connection) -> MessageConsumer:
    """A consumer whose first message is given back, while the broker does not answer its drain."""
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 5)
    assert str(received(consumer)) == "0"
    broker.hold_drains = True
    session.recover()
    assert consumer._prefetch.gives_back
    return consumer


def test_nothing_is_given_out_before_the_drain_of_a_recover_is_answered(
    broker: SmallBroker, connection: Connection
) -> None:
    consumer = _recovered(broker, connection)
    assert consumer.receive(0.05) is None
    assert consumer._prefetch.gives_back
    broker.hold_drains = False
    assert [str(received(consumer)) for _ in range(5)] == [str(number) for number in range(5)]


def test_a_consumer_goes_on_where_the_drain_of_a_recover_has_no_answer_in_time(
    broker: SmallBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = _recovered(broker, connection)
    consumer._prefetch._gives_back_until = time.monotonic()
    assert str(received(consumer)) == "0"
    assert "may come late" in caplog.text


def test_a_consumer_goes_on_where_the_broker_cannot_say_that_nothing_is_on_its_way(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = _recovered(broker, connection)
    monkeypatch.setattr(broker, "drain", lambda link, timeout: False)
    assert str(received(consumer)) == "0"
    assert not consumer._prefetch.gives_back


def test_what_was_prefetched_on_a_lost_connection_was_never_delivered(
    broker: SmallBroker, connection: Connection
) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    source = Source("q")
    assert consumer._prefetch.never_delivered(source) == []
    broker.interrupt()
    found = consumer._prefetch.never_delivered(source)
    assert [(record[0], failures) for record, failures in found] == [(source, 0)] * 3
    assert consumer.receive(0.01) is None
    broker.restore()
    assert str(received(consumer)) == "0"


def test_what_was_prefetched_ahead_of_an_earlier_loss_is_not_named_again(
    broker: SmallBroker, connection: Connection
) -> None:
    """Another consumer may have got it since, and its application may have seen it."""
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    broker.interrupt()
    assert len(consumer._prefetch.never_delivered(Source("q"))) == 3
    broker.restore()
    broker.interrupt()  # before the application receives
    assert consumer._prefetch.never_delivered(Source("q")) == []


def test_a_drain_ends_as_the_link_is_lost(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 0)

    def lost(link: int, timeout: float | None) -> bool:
        raise ConnectionLostException("lost")

    monkeypatch.setattr(broker, "drain", lost)
    assert consumer.receive(0.05) is None
    session.recover()
    assert not consumer._prefetch.drain_if_there(0.01)

    def ended(link: int, timeout: float | None) -> bool:
        raise IllegalStateException("no such link")

    monkeypatch.setattr(broker, "drain", ended)
    with pytest.raises(IllegalStateException, match="no such link"):
        consumer._prefetch.drain_if_there(0.01)
    with pytest.raises(IllegalStateException, match="no such link"):
        consumer._prefetch.stop_flow(time.monotonic())
    consumer._prefetch.closing = True
    assert not consumer._prefetch.drain_if_there(0.01)
    consumer._prefetch.stop_flow(time.monotonic())
