"""What a session says and does when the connection is lost: for good, or for a while (DESIGN 7)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from broker_adapter import ClientSettings
from broker_adapter import queue as queue_of
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    JMSException,
    Message,
    Session,
    StaleAcknowledgementException,
)
from tests.sdk.small_broker import SmallBroker, all_again, lose, received, started, with_messages
from tests.threads import no_new_threads

# Restored.


def test_every_loss_is_told_to_the_exception_listener(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    lose(broker)
    lose(broker)

    assert [type(told.get(timeout=120)) for _ in range(2)] == [ConnectionLostException] * 2


def test_a_loss_that_no_thread_could_tell_of_is_told_with_the_next(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    with no_new_threads():
        lose(broker)
    assert told.empty()
    lose(broker)
    assert [type(told.get(timeout=120)) for _ in range(2)] == [ConnectionLostException] * 2


def test_receive_waits_across_an_outage(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.AUTO, 0)
    got: list[Message | None] = []
    receiver = threading.Thread(target=lambda: got.append(consumer.receive(120)))
    receiver.start()
    lose(broker)

    with connection.create_session() as other:
        other.create_producer(other.create_queue("q")).send("after")
    receiver.join(120)

    assert [str(message) for message in got] == ["after"]


# Between the loss and the news of it.


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_what_is_stale_is_raised_once_and_not_confirmed(mode: AcknowledgeMode, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker(prefetch_messages=10, synchronous_acknowledge=True)
    asked: list[object] = []
    monkeypatch.setattr(broker, "confirm", lambda *arguments, **_options: asked.append(arguments))
    with broker.connect() as connection:
        connection.start()
        _, consumer = with_messages(connection, mode, 2)
        message = received(consumer)
        broker.cut_untold = True
        with pytest.raises(StaleAcknowledgementException):
            message.acknowledge()
        broker.interrupt()
        message.acknowledge()
        assert asked == []


@pytest.mark.parametrize("listens", [False, True], ids=["receive", "listener"])
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK])
def test_an_acknowledgement_that_is_not_confirmed_is_told_the_same_of_receive_and_of_a_listener(
    mode: AcknowledgeMode, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = SmallBroker(prefetch_messages=10, synchronous_acknowledge=True, dups_ok_batch_messages=1)
    told: queue.SimpleQueue[JMSException] = queue.SimpleQueue()

    def confirm(*_arguments: object, **_options: object) -> None:
        raise ConnectionLostException("the network is gone")

    monkeypatch.setattr(broker, "confirm", confirm)
    with broker.connect() as connection:
        connection.exception_listener = told.put
        connection.start()
        _, consumer = with_messages(connection, mode, 1)
        if listens:
            consumer.listener = lambda _message: None
        else:
            received(consumer)
        error = told.get(timeout=10)
    assert str(error) == (
        "1 acknowledgement of session 1 is not confirmed: the network is gone; these messages may be delivered again"
    )
    assert isinstance(error, ConnectionLostException)


def test_news_of_lost_acknowledgements_is_reported_while_its_session_closes(
    connection: Connection, told: queue.SimpleQueue[JMSException], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    assert session._state.acknowledgements is not None
    too_late, on_close = session._state.acknowledgements.too_late, session._on_close

    def closes(closed: Session) -> None:
        too_late(["ID:1"])  # as the thread does that restores the connection
        on_close(closed)

    monkeypatch.setattr(session, "_on_close", closes)
    session.close()
    error = told.get(timeout=120)
    assert isinstance(error, StaleAcknowledgementException)
    assert error.message_ids == ("ID:1",)


def test_auto_raises_once_before_the_news_of_a_loss_and_gives_out_nothing_more(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 4)
    broker.cut_untold = True
    with pytest.raises(ConnectionLostException, match="could not be acknowledged, and is redelivered"):
        consumer.receive(120)
    assert consumer.receive(0.05) is None, "the rest came on the connection that is lost"
    assert all_again(broker, consumer) == [(str(number), True) for number in range(4)]
    session.close()


@pytest.mark.parametrize("batch", [1, 2])
def test_dups_ok_remembers_what_it_returned_as_its_acknowledgement_was_lost(batch: int) -> None:
    broker = SmallBroker(prefetch_messages=10, dups_ok_batch_messages=batch)
    with started(broker) as connection:
        _, consumer = with_messages(connection, AcknowledgeMode.DUPS_OK, 3)
        broker.cut_untold = True
        for _ in range(batch):
            received(consumer)
        broker.interrupt()
        for stored in broker.waiting[queue_of("q")]:
            stored.failures = 0  # a broker that marks no redelivery
        broker.restore()
        assert [received(consumer).redelivered for _ in range(3)] == [True] * batch + [False] * (3 - batch)


def test_dups_ok_says_nothing_before_the_news_of_a_loss(
    broker: SmallBroker, told: queue.SimpleQueue[JMSException]
) -> None:
    broker.settings = ClientSettings(prefetch_messages=10, dups_ok_batch_messages=2)
    with broker.connect() as connection:
        connection.start()
        session, consumer = with_messages(connection, AcknowledgeMode.DUPS_OK, 4)
        broker.cut_untold = True
        assert [received(consumer).body for _ in range(2)] == ["0", "1"]
        assert consumer.receive(0.05) is None
        assert all_again(broker, consumer) == [(str(number), True) for number in range(4)]
        session.close()


def test_an_auto_listener_before_the_news_of_a_loss_is_called_once_and_that_is_told(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 4)
    broker.cut_untold = True
    heard: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
    consumer.listener = lambda message: heard.put((message.body, message.redelivered))
    assert heard.get(timeout=120) == ("0", False)
    assert "could not be acknowledged" in told.get(timeout=120).reason
    broker.interrupt()
    broker.restore()
    assert [heard.get(timeout=120) for _ in range(4)] == [(str(number), True) for number in range(4)]
    assert heard.empty()
    session.close()


# Lost for good.


def test_receive_that_waits_raises_when_the_connection_fails(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.AUTO, 0)
    raised: list[BaseException] = []
    waiting = threading.Event()

    def receive() -> None:
        waiting.set()
        try:
            consumer.receive()
        except JMSException as error:
            raised.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    waiting.wait(120)
    broker.fail()
    receiver.join(120)

    assert [type(error) for error in raised] == [ConnectionLostException]


def test_failure_is_told_and_every_later_call_raises_it(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 1)
    producer = session.create_producer(session.create_queue("q"))
    message = received(consumer)
    broker.fail()

    calls: list[Callable[[], object]] = [
        consumer.receive,
        consumer.receive_nowait,
        message.acknowledge,
        session.recover,
        lambda: producer.send("x"),
        lambda: session.create_consumer(session.create_queue("q")),
        connection.create_session,
    ]
    for call in calls:
        with pytest.raises(ConnectionLostException):
            call()
    assert isinstance(told.get(timeout=120), ConnectionLostException)


def test_closing_after_a_failure_is_quiet(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    session.create_producer(session.create_queue("q")).send("x")
    received(consumer)
    broker.fail()

    consumer.close()
    session.close()
    connection.close()

    assert broker.closed
    assert repr(connection).endswith("CLOSED>")


# What is remembered of deliveries.


@pytest.mark.parametrize("mode", AcknowledgeMode, ids=lambda mode: mode.name)
def test_what_is_remembered_of_deliveries_stays_bounded_in_every_mode(mode: AcknowledgeMode) -> None:
    broker = SmallBroker(prefetch_messages=1)
    count = 200
    with broker.connect() as connection:
        connection.start()
        session, consumer = with_messages(connection, mode, count)
        for _ in range(count):
            received(consumer).acknowledge()
            if session.transacted:
                session.commit()
        acknowledgements = session._state.acknowledgements
        assert acknowledgements is not None
        batch = 100 if mode is AcknowledgeMode.DUPS_OK else 0  # acknowledged together, or not yet
        assert len(acknowledgements) <= 2 + 16 + 1 + batch
        assert len(acknowledgements._held) <= batch


def test_what_is_remembered_does_not_grow_with_consumers_that_come_and_go() -> None:
    broker = SmallBroker(prefetch_messages=10)
    with broker.connect() as connection, connection.create_session() as session:
        connection.start()
        queue_ = session.create_queue("q")
        producer = session.create_producer(queue_)
        for number in range(300):
            producer.send(str(number))
            with session.create_consumer(queue_) as consumer:
                received(consumer)
        acknowledgements = session._state.acknowledgements
        assert acknowledgements is not None
        assert len(acknowledgements) <= 2 * 10 + 16 + 1


@pytest.mark.parametrize("closes", ["consumer", "session"])
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT])
def test_what_was_acknowledged_is_remembered_where_the_connection_is_lost_as_it_closes(
    monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode, closes: str
) -> None:
    """The transport does not fail then, and the news of the loss comes later."""
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session, consumer = with_messages(connection, mode, 40)
        for _ in range(40):
            received(consumer).acknowledge()
        remembered = len(session._state.acknowledgements or ())
        assert remembered > 20
        for call in ("detach", "end_session"):
            monkeypatch.setattr(broker, call, lambda *_: False)
        (consumer if closes == "consumer" else session).close()
        monkeypatch.undo()
        lose(broker)
        assert len(connection._lost_acknowledgements) == remembered


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_a_reply_that_is_accepted_as_the_connection_is_lost_makes_no_session_dirty(
    monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session, consumer = with_messages(connection, mode, 2)
        reply = received(consumer)

        def settle(_: object) -> None:
            raise ConnectionLostException("cut")

        monkeypatch.setattr(broker, "settle", settle)
        session._accept(reply)
        monkeypatch.undo()
        lose(broker)
        other = received(consumer)
        other.acknowledge()
