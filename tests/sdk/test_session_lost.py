"""What a session says and does when the connection is lost: for good, or for a while (DESIGN 7)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from ack_modes import Outcome
from broker_adapter import ClientSettings, LinkInterrupted, OperationTimedOutException
from broker_adapter.transport import TransportEvent
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    Message,
    MessageConsumer,
    ResourceAllocationException,
    Session,
    StaleAcknowledgementException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from tests.sdk.small_broker import SmallBroker
from tests.threads import no_new_threads


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10)


@pytest.fixture
def told() -> queue.SimpleQueue[JMSException]:
    return queue.SimpleQueue()


@pytest.fixture
def connection(broker: SmallBroker, told: queue.SimpleQueue[JMSException]) -> Iterator[Connection]:
    with broker.connect() as connection:
        connection.exception_listener = told.put
        connection.start()
        yield connection


def _with_messages(connection: Connection, mode: AcknowledgeMode, count: int) -> tuple[Session, MessageConsumer]:
    session = connection.create_session(mode)
    with connection.create_session() as other, other.create_producer(other.create_queue("q")) as producer:
        for number in range(count):
            producer.send(str(number))
    return session, session.create_consumer(session.create_queue("q"))


def _received(consumer: MessageConsumer) -> Message:
    message = consumer.receive(120)
    assert message is not None
    return message


def _lose(broker: SmallBroker) -> None:
    broker.interrupt()
    broker.restore()


# Restored.


def test_every_loss_is_told_to_the_exception_listener(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    _lose(broker)
    _lose(broker)

    assert [type(told.get(timeout=120)) for _ in range(2)] == [ConnectionLostException] * 2


def test_a_loss_that_no_thread_could_tell_of_is_told_with_the_next(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    with no_new_threads():
        _lose(broker)
    assert told.empty()
    _lose(broker)
    assert [type(told.get(timeout=120)) for _ in range(2)] == [ConnectionLostException] * 2


def test_dirty_client_session_says_so_once(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 5)
    _received(consumer)
    last = _received(consumer)
    _lose(broker)

    with pytest.raises(StaleAcknowledgementException, match="2 messages") as caught:
        last.acknowledge()

    assert caught.value.stale_count == 2
    again = [_received(consumer) for _ in range(5)]
    assert [str(message) for message in again] == ["0", "1", "2", "3", "4"]
    assert again[0].redelivered
    again[-1].acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED] * 5


def test_dirty_client_session_recovers_what_came_since(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 3)
    _received(consumer)
    _lose(broker)
    new = _received(consumer)
    assert str(new) == "0"

    with pytest.raises(StaleAcknowledgementException):
        new.acknowledge()

    assert [str(_received(consumer)) for _ in range(3)] == ["0", "1", "2"]


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED, AcknowledgeMode.INDIVIDUAL])
def test_credit_that_is_granted_while_the_connection_is_restored_brings_no_message_out_of_order(
    broker: SmallBroker, connection: Connection, mode: AcknowledgeMode
) -> None:
    """The thread that grants has looked whether the link is there, and stands still while it is lost and comes back."""
    _, consumer = _with_messages(connection, mode, 30)
    credit = broker.credit

    def late(link: int, messages: int) -> None:
        broker.credit = credit  # type: ignore[method-assign]
        _lose(broker)
        credit(link, messages)

    broker.credit = late  # type: ignore[method-assign]
    assert [str(_received(consumer)) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    assert [str(_received(consumer)) for _ in range(30)] == [str(number) for number in range(30)]


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
def test_credit_for_a_link_that_is_there_again_before_its_session_knows_is_drained_by_a_recover(
    broker: SmallBroker, connection: Connection, mode: AcknowledgeMode
) -> None:
    session, consumer = _with_messages(connection, mode, 40)
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
    assert [str(_received(consumer)) for _ in range(5)] == ["0", "1", "2", "3", "4"]
    (restored,) = waiting
    listener(restored)
    for _ in range(10):
        _received(consumer)
    drains = broker.drains
    session.recover() if mode is AcknowledgeMode.CLIENT else session.rollback()
    assert broker.drains > drains


@pytest.mark.parametrize("listens", [False, True])
def test_nothing_of_a_link_that_was_closed_twice_is_given_out(
    broker: SmallBroker, connection: Connection, listens: bool
) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 20)
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
        assert [str(_received(consumer)) for _ in range(20)] == expected


def test_a_consumer_whose_link_is_lost_keeps_nothing_in_its_session(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 5)
    assert len(session._sinks) == 1
    broker.lose_link(consumer._prefetch.link)
    assert not session._sinks


def test_clean_client_session_notices_nothing(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 3)
    _received(consumer).acknowledge()
    _lose(broker)

    message = _received(consumer)
    message.acknowledge()

    assert (str(message), broker.outcomes()) == ("1", [Outcome.ACCEPTED] * 2)


def test_recover_makes_a_dirty_session_clean(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 2)
    _received(consumer)
    _lose(broker)

    session.recover()

    message = _received(consumer)
    message.acknowledge()
    assert str(message) == "0"


def test_dirty_transaction_is_rolled_back_by_its_commit(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    out = session.create_queue("out")
    producer = session.create_producer(out)
    producer.send(_received(consumer).body)
    _lose(broker)

    with pytest.raises(TransactionRolledBackException, match="connection was lost"):
        session.commit()

    assert broker.waiting.get(out) is None
    producer.send(_received(consumer).body)
    session.commit()
    assert len(broker.waiting[out]) == 1


def test_the_commit_of_a_dirty_transaction_returns_when_its_callbacks_have_and_ends_closed_producers(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    producer = session.create_producer(session.create_queue("out"))
    told: list[tuple[str, type]] = []
    for body in "ab":
        producer.send(body, on_completion=lambda message, error: told.append((str(message), type(error))))
    _received(consumer)
    link = producer._link
    producer.close()
    assert link in broker._senders
    _lose(broker)

    with pytest.raises(TransactionRolledBackException):
        session.commit()
    assert told == [("a", TransactionRolledBackException), ("b", TransactionRolledBackException)]
    assert link not in broker._senders


def test_rollback_of_a_dirty_transaction_succeeds(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    _received(consumer)
    _lose(broker)

    session.rollback()

    assert str(_received(consumer)) == "0"
    session.commit()


def test_transaction_that_had_done_nothing_notices_nothing(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 1)
    _lose(broker)

    _received(consumer)
    session.commit()

    assert broker.outcomes() == [Outcome.ACCEPTED]


def test_receive_waits_across_an_outage(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 0)
    got: list[Message | None] = []
    receiver = threading.Thread(target=lambda: got.append(consumer.receive(120)))
    receiver.start()
    _lose(broker)

    with connection.create_session() as other:
        other.create_producer(other.create_queue("q")).send("after")
    receiver.join(120)

    assert [str(message) for message in got] == ["after"]


# Lost for good.


# Between the loss and the news of it.


def _all_again(broker: SmallBroker, consumer: MessageConsumer) -> list[tuple[str, bool]]:
    broker.interrupt()
    broker.restore()
    messages = [_received(consumer) for _ in range(4)]
    messages[-1].acknowledge()
    return [(message.body, message.redelivered) for message in messages]


def test_auto_raises_once_before_the_news_of_a_loss_and_gives_out_nothing_more(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 4)
    broker.cut_untold = True
    with pytest.raises(ConnectionLostException, match="could not be acknowledged, and will come again"):
        consumer.receive(120)
    assert consumer.receive(0.05) is None, "the rest came on the connection that is lost"
    assert _all_again(broker, consumer) == [(str(number), True) for number in range(4)]
    session.close()


def test_dups_ok_says_nothing_before_the_news_of_a_loss(
    broker: SmallBroker, told: queue.SimpleQueue[JMSException]
) -> None:
    broker.settings = ClientSettings(prefetch_messages=10, dups_ok_batch_messages=2)
    with broker.connect() as connection:
        connection.start()
        session, consumer = _with_messages(connection, AcknowledgeMode.DUPS_OK, 4)
        broker.cut_untold = True
        assert [_received(consumer).body for _ in range(2)] == ["0", "1"]
        assert consumer.receive(0.05) is None
        assert _all_again(broker, consumer) == [(str(number), True) for number in range(4)]
        session.close()


def test_client_is_stale_once_before_the_news_of_a_loss_and_after_it(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 4)
    messages = [_received(consumer) for _ in range(2)]
    broker.cut_untold = True
    with pytest.raises(StaleAcknowledgementException) as raised:
        messages[1].acknowledge()
    assert raised.value.stale_count == 2
    assert consumer.receive(0.05) is None
    assert _all_again(broker, consumer) == [(str(number), True) for number in range(4)]
    session.close()


def test_an_auto_listener_before_the_news_of_a_loss_is_called_once_and_that_is_told(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 4)
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


def test_receive_that_waits_raises_when_the_connection_fails(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 0)
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
    session, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 1)
    producer = session.create_producer(session.create_queue("q"))
    message = _received(consumer)
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
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    session.create_producer(session.create_queue("q")).send("x")
    _received(consumer)
    broker.fail()

    consumer.close()
    session.close()
    connection.close()

    assert broker.closed
    assert repr(connection).endswith("CLOSED>")


def test_lost_link_ends_its_consumer_alone(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 1)
    other = session.create_consumer(session.create_queue("other"))
    producer = session.create_producer(session.create_queue("other"))
    broker.lose_link(consumer._prefetch.link)

    with pytest.raises(ConnectionLostException, match="link closed"):
        consumer.receive()
    assert "link closed" in str(told.get(timeout=120))
    producer.send("still there")
    assert str(_received(other)) == "still there"
    broker.lose_link(producer._link)
    with pytest.raises(ConnectionLostException, match="link closed"):
        producer.send("x")
    consumer.close()
    producer.close()


# Commits.


def test_refused_commit_rolls_back(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    _received(consumer)
    broker.refuse_commit = ResourceAllocationException("the queue is full")

    with pytest.raises(TransactionRolledBackException, match="the queue is full"):
        session.commit()

    broker.refuse_commit = None
    message = _received(consumer)
    assert (str(message), message.delivery_count) == ("0", 2)


@pytest.mark.parametrize(
    "error", [OperationTimedOutException("no answer within 60 s"), TransactionInDoubtException("lost in mid-commit")]
)
def test_commit_that_nobody_can_tell_about_is_in_doubt(
    broker: SmallBroker, connection: Connection, error: JMSException
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    _received(consumer)
    broker.refuse_commit = error

    with pytest.raises(TransactionInDoubtException):
        session.commit()

    # The transaction is over: its message is settled by nobody here, whatever became of it.
    broker.refuse_commit = None
    session.rollback()
    assert broker.outcomes() == []
    assert str(_received(consumer)) == "1"


def test_transaction_is_one_commit_numbered_upwards(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    producer = session.create_producer(session.create_queue("out"))

    session.commit()  # nothing to do
    producer.send(_received(consumer).body)
    assert broker.outcomes() == []
    session.commit()
    producer.send(_received(consumer).body)
    session.commit()

    assert broker.commits == [(1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("settings", "what"),
    [({"transaction_messages": 2}, "transaction_messages"), ({"transaction_bytes": 400}, "transaction_bytes")],
)
def test_transaction_has_a_limit(settings: dict[str, int], what: str) -> None:
    broker = SmallBroker(**settings)
    with broker.connect() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        producer = session.create_producer(session.create_queue("q"))
        producer.send("x" * 30)
        producer.send("x" * 30)

        with pytest.raises(ResourceAllocationException, match=what):
            producer.send("x" * 300)

        session.commit()
        producer.send("x")
        session.commit()
        assert sum(len(waiting) for waiting in broker.waiting.values()) == 3


def test_producer_closed_in_a_transaction_leaves_its_messages_in_it(
    broker: SmallBroker, connection: Connection
) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    with session.create_producer(session.create_queue("q")) as producer:
        producer.send("x")

    session.commit()

    assert sum(len(waiting) for waiting in broker.waiting.values()) == 1
    with pytest.raises(IllegalStateException, match="CLOSED"):
        producer.send("y")


# A link that the broker closes, and that is attached again.


def test_client_what_came_on_a_closed_link_is_stale_once_and_comes_again(
    broker: SmallBroker, connection: Connection, told: queue.SimpleQueue[JMSException]
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.CLIENT, 4)
    messages = [_received(consumer) for _ in range(2)]
    broker.interrupt_link(consumer._prefetch.link)
    assert "link closed by the broker" in told.get(timeout=120).reason
    assert consumer.receive(0.05) is None, "what was prefetched is stale as well"
    broker.restore_link(consumer._prefetch.link, 77)
    with pytest.raises(StaleAcknowledgementException) as raised:
        messages[1].acknowledge()
    assert raised.value.stale_count == 2
    again = [_received(consumer) for _ in range(4)]
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
    session, consumer = _with_messages(connection, AcknowledgeMode.AUTO, 3)
    assert _received(consumer).body == "0"
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    broker.interrupt_link(consumer._prefetch.link)
    if listens:
        consumer.listener = lambda message: heard.put(message.body)
    broker.interrupt()
    broker.restore()  # under the number in tags that it had
    if listens:
        assert [heard.get(timeout=120) for _ in range(2)] == ["1", "2"]
    else:
        assert [_received(consumer).body for _ in range(2)] == ["1", "2"]
    session.close()


def test_a_transaction_that_received_on_a_closed_link_is_rolled_back(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = _with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    _received(consumer)
    broker.interrupt_link(consumer._prefetch.link)
    broker.restore_link(consumer._prefetch.link, 78)
    with pytest.raises(TransactionRolledBackException):
        session.commit()
    assert [_received(consumer).body for _ in range(2)] == ["0", "1"]
    session.commit()
    session.close()


@pytest.mark.parametrize("mode", AcknowledgeMode, ids=lambda mode: mode.name)
def test_what_is_remembered_of_deliveries_stays_bounded_in_every_mode(mode: AcknowledgeMode) -> None:
    broker = SmallBroker(prefetch_messages=1)
    count = 200
    with broker.connect() as connection:
        connection.start()
        session, consumer = _with_messages(connection, mode, count)
        for _ in range(count):
            _received(consumer).acknowledge()
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
                _received(consumer)
        acknowledgements = session._state.acknowledgements
        assert acknowledgements is not None
        assert len(acknowledgements) <= 2 * 10 + 16 + 1
