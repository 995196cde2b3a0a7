"""How a session ends deliveries and transactions, also behind a loss of the connection (DESIGN 7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter import OperationTimedOutException
from broker_adapter import queue as queue_of
from sdk import (
    AcknowledgeMode,
    Connection,
    IllegalStateException,
    JMSException,
    ResourceAllocationException,
    StaleAcknowledgementException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from tests.sdk.interrupts import Interrupt
from tests.sdk.small_broker import SmallBroker, all_again, lose, received, started, with_messages


def test_dirty_client_session_says_so_once(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 5)
    received(consumer)
    last = received(consumer)
    lose(broker)

    with pytest.raises(StaleAcknowledgementException, match="2 messages") as caught:
        last.acknowledge()

    assert caught.value.stale_count == 2
    again = [received(consumer) for _ in range(5)]
    assert [str(message) for message in again] == ["0", "1", "2", "3", "4"]
    assert again[0].redelivered
    again[-1].acknowledge()
    assert broker.outcomes() == [Outcome.ACCEPTED] * 5


def test_dirty_client_session_recovers_what_came_since(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    received(consumer)
    lose(broker)
    new = received(consumer)
    assert str(new) == "0"

    with pytest.raises(StaleAcknowledgementException):
        new.acknowledge()

    assert [str(received(consumer)) for _ in range(3)] == ["0", "1", "2"]


def test_recover_makes_a_dirty_session_clean(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 2)
    received(consumer)
    lose(broker)

    session.recover()

    message = received(consumer)
    message.acknowledge()
    assert str(message) == "0"


def test_clean_client_session_notices_nothing(broker: SmallBroker, connection: Connection) -> None:
    _, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 3)
    received(consumer).acknowledge()
    lose(broker)

    message = received(consumer)
    message.acknowledge()

    assert (str(message), broker.outcomes()) == ("1", [Outcome.ACCEPTED] * 2)


def test_dirty_transaction_is_rolled_back_by_its_commit(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    out = session.create_queue("out")
    producer = session.create_producer(out)
    producer.send(received(consumer).body)
    lose(broker)

    with pytest.raises(TransactionRolledBackException, match="connection was lost"):
        session.commit()

    assert broker.waiting.get(out) is None
    producer.send(received(consumer).body)
    session.commit()
    assert len(broker.waiting[out]) == 1


def test_the_commit_of_a_dirty_transaction_returns_when_its_callbacks_have_and_ends_closed_producers(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    producer = session.create_producer(session.create_queue("out"))
    told: list[tuple[str, type]] = []
    for body in "ab":
        producer.send(body, on_completion=lambda message, error: told.append((str(message), type(error))))
    received(consumer)
    link = producer._link
    producer.close()
    assert link in broker._senders
    lose(broker)

    with pytest.raises(TransactionRolledBackException):
        session.commit()
    assert told == [("a", TransactionRolledBackException), ("b", TransactionRolledBackException)]
    assert link not in broker._senders


def test_rollback_of_a_dirty_transaction_succeeds(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    received(consumer)
    lose(broker)

    session.rollback()

    assert str(received(consumer)) == "0"
    session.commit()


def test_transaction_that_had_done_nothing_notices_nothing(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 1)
    lose(broker)

    received(consumer)
    session.commit()

    assert broker.outcomes() == [Outcome.ACCEPTED]


def test_client_is_stale_once_before_the_news_of_a_loss_and_after_it(
    broker: SmallBroker, connection: Connection
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.CLIENT, 4)
    messages = [received(consumer) for _ in range(2)]
    broker.cut_untold = True
    with pytest.raises(StaleAcknowledgementException) as raised:
        messages[1].acknowledge()
    assert raised.value.stale_count == 2
    assert consumer.receive(0.05) is None
    assert all_again(broker, consumer) == [(str(number), True) for number in range(4)]
    session.close()


def interrupt(monkeypatch: pytest.MonkeyPatch, broker: SmallBroker, method: str) -> None:
    """The handler of a signal raises in the next call of this method of the transport."""

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(broker, method, interrupted)


def test_a_batch_that_is_due_while_it_is_given_back_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker(prefetch_messages=10, dups_ok_delay_seconds=0.3)
    with started(broker) as connection:
        session, consumer = with_messages(connection, AcknowledgeMode.DUPS_OK, 2)
        drain = broker.drain

        def drain_slowly(link: int, timeout: float | None) -> bool:
            time.sleep(0.6)  # meanwhile the batch is due
            return drain(link, timeout)

        monkeypatch.setattr(broker, "drain", drain_slowly)
        received(consumer)
        session._state.policy.delivered(consumer._prefetch.buffer.popleft().tag)  # a receive that was interrupted
        session.recover()
        assert broker.outcomes() == [Outcome.ACCEPTED, Outcome.FAILED]


def test_producers_that_closed_in_a_transaction_have_one_time_out_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SmallBroker(close_timeout_seconds=0.5)
    with started(broker) as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        for _ in range(5):
            with session.create_producer(session.create_queue("q")) as producer:
                producer.send("x")
        waited: list[float] = []

        def detach(link: int, timeout: float) -> None:
            waited.append(timeout)
            time.sleep(timeout)
            raise OperationTimedOutException("the network stalls")

        monkeypatch.setattr(broker, "detach", detach)
        session.rollback()
        assert len(waited) == 5
        assert sum(waited) < 1
        monkeypatch.undo()


def test_a_producer_waits_for_answers_and_for_the_broker_with_one_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker(close_timeout_seconds=0.5)
    with started(broker) as connection:
        producer = connection.create_session().create_producer(queue_of("q"))
        broker.hold_answers = True
        producer.send("x", on_completion=lambda *_: None)
        waits: list[float] = []
        monkeypatch.setattr(broker, "detach", lambda _link, timeout: waits.append(timeout))
        producer.close()
        assert 0 < waits[0] < 0.1
        broker.answers[0](None)


def raising(error: Exception) -> Callable[..., None]:
    """What raises an error."""

    def call(*_: object) -> None:
        raise error

    return call


def test_refused_commit_rolls_back(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    received(consumer)
    broker.refuse_commit = ResourceAllocationException("the queue is full")

    with pytest.raises(TransactionRolledBackException, match="the queue is full"):
        session.commit()

    broker.refuse_commit = None
    message = received(consumer)
    assert (str(message), message.delivery_count) == ("0", 2)


@pytest.mark.parametrize(
    "error", [OperationTimedOutException("no answer within 60 s"), TransactionInDoubtException("lost in mid-commit")]
)
def test_commit_with_an_unknown_result_is_in_doubt(
    broker: SmallBroker, connection: Connection, error: JMSException
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    received(consumer)
    broker.refuse_commit = error

    with pytest.raises(TransactionInDoubtException):
        session.commit()

    # The transaction is over: its message is not settled here, whatever its result was.
    broker.refuse_commit = None
    session.rollback()
    assert broker.outcomes() == []
    assert str(received(consumer)) == "1"


def test_transaction_is_one_commit_numbered_upwards(broker: SmallBroker, connection: Connection) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
    producer = session.create_producer(session.create_queue("out"))

    session.commit()  # nothing to do
    producer.send(received(consumer).body)
    assert broker.outcomes() == []
    session.commit()
    producer.send(received(consumer).body)
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


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_acknowledge_raises_where_the_broker_has_refused_to_hear_again_what_a_loss_took(
    monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    broker = SmallBroker(prefetch_messages=10, synchronous_acknowledge=True)
    with started(broker) as connection:
        session, consumer = with_messages(connection, mode, 2)
        lost, message = connection._lost_acknowledgements, received(consumer)

        def lose_it(*_: Any, **__: Any) -> None:
            monkeypatch.undo()
            lose(broker)
            lost.refused_at = broker.epoch

        monkeypatch.setattr(broker, "confirm", lose_it)
        with pytest.raises(StaleAcknowledgementException, match="refused to hear of them again") as raised:
            message.acknowledge()
        assert raised.value.stale_count == 1
        received(consumer).acknowledge()  # once
        session.close()


def test_a_commit_and_what_it_gives_back_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker(prefetch_messages=10, request_timeout_seconds=0.5, poll_timeout_seconds=3600)
    with started(broker) as connection:
        session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 3)

        def commit(*_: object) -> None:
            raise TransactionRolledBackException("nothing was committed")

        monkeypatch.setattr(broker, "commit", commit)
        received(consumer)
        with pytest.raises(TransactionRolledBackException):
            session.commit()
        assert 0 <= broker.drain_limits[-1] <= 0.5
        received(consumer)
        session.rollback()
        assert 0.5 < broker.drain_limits[-1] <= 3600


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL])
def test_each_acknowledge_asks_again_for_what_is_unconfirmed(
    monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    with started(SmallBroker(prefetch_messages=10, synchronous_acknowledge=True)) as connection:
        _, consumer = with_messages(connection, mode, 2)
        message = received(consumer)
        asked: list[object] = []

        def confirm(*_: object, **__: object) -> None:
            asked.append(None)
            if len(asked) < 4:
                raise OperationTimedOutException("the acknowledgement had no answer")

        monkeypatch.setattr(connection._transport, "confirm", confirm)
        text = r"^1 acknowledgement of session \d+ is not confirmed: .* no answer; the next acknowledge\(\) asks again"
        for _ in range(2):
            with pytest.raises(OperationTimedOutException, match=text):
                message.acknowledge()
        other = received(consumer)
        with pytest.raises(OperationTimedOutException, match=r"^2 acknowledgements of session \d+ are not confirmed"):
            other.acknowledge()
        message.acknowledge()
        message.acknowledge()
        assert len(asked) == 4
