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
    Message,
    ResourceAllocationException,
    StaleAcknowledgementException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from tests.sdk.interrupts import AtStep, Interrupt
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


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
@pytest.mark.parametrize("place", ["drain", "settle", "credit"])
def test_a_loss_is_told_by_the_next_call_where_the_one_that_was_to_tell_it_is_interrupted(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode, place: str
) -> None:
    session, consumer = with_messages(connection, mode, 3)
    received(consumer)
    lose(broker)
    last = received(consumer)
    end = session.commit if mode is AcknowledgeMode.TRANSACTED else last.acknowledge
    interrupt(monkeypatch, broker, place)
    broker.settles_twice = True
    with pytest.raises(Interrupt):
        end()
    with pytest.raises((StaleAcknowledgementException, TransactionRolledBackException), match="connection was lost"):
        end()
    end()


def test_nothing_of_a_transaction_is_committed_whose_rollback_was_interrupted(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 3)
    out = session.create_queue("out")
    producer = session.create_producer(out)
    producer.send(received(consumer).body)
    monkeypatch.setattr(session._state, "end_sends", raising(Interrupt()))
    with pytest.raises(Interrupt):
        session.rollback()
    monkeypatch.undo()
    producer.send(received(consumer).body)
    with pytest.raises(TransactionRolledBackException, match="interrupted during it, with 1 received"):
        session.commit()
    assert broker.waiting.get(out) is None
    assert [str(received(consumer)) for _ in range(3)] == ["0", "1", "2"]
    session.commit()
    assert broker.outcomes().count(Outcome.ACCEPTED) == 3


def test_each_message_that_an_interrupted_recover_gave_back_is_refused_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session, consumer = with_messages(connection, AcknowledgeMode.INDIVIDUAL, 3)
        messages = [received(consumer) for _ in range(2)]
        interrupt(monkeypatch, broker, "settle")
        with pytest.raises(Interrupt):
            session.recover()
        for message in messages:
            with pytest.raises(StaleAcknowledgementException) as raised:
                message.acknowledge()
            assert raised.value.stale_count == 1
        again = [received(consumer) for _ in range(3)]
        assert [(str(message), message.redelivered) for message in again] == [("0", True), ("1", True), ("2", False)]
        for message in again:
            message.acknowledge()


def test_a_batch_is_acknowledged_by_the_next_call_where_its_recover_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SmallBroker(dups_ok_delay_seconds=60.0)
    with started(broker) as connection:
        session, consumer = with_messages(connection, AcknowledgeMode.DUPS_OK, 3)
        for _ in range(2):
            received(consumer)
        interrupt(monkeypatch, broker, "settle")
        with pytest.raises(Interrupt):
            session.recover()
        session.recover()
        assert broker.outcomes() == [Outcome.ACCEPTED] * 2


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
        assert broker.outcomes() == [Outcome.ACCEPTED, Outcome.MODIFIED]


def test_producers_that_closed_in_a_transaction_have_one_time_out_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = SmallBroker(close_timeout_seconds=0.5)
    with started(broker) as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        for _ in range(5):
            with session.create_producer(session.create_queue("q")) as producer:
                producer.send("x")
        detached: list[int] = []

        def detach(link: int, timeout: float) -> None:
            detached.append(link)
            time.sleep(timeout)
            raise OperationTimedOutException("the network stalls")

        monkeypatch.setattr(broker, "detach", detach)
        began = time.monotonic()
        session.rollback()
        assert time.monotonic() - began < 1.5
        assert len(detached) == 5
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


def test_producers_that_closed_in_a_transaction_are_detached_by_the_next_call_where_one_is_interrupted(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    for _ in range(3):
        with session.create_producer(session.create_queue("q")) as producer:
            producer.send("x")
    interrupt(monkeypatch, broker, "detach")
    with pytest.raises(Interrupt):
        session.rollback()
    assert len(broker._senders) == 3
    session.rollback()
    assert not broker._senders


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


@pytest.mark.parametrize(("mode", "counts"), [(AcknowledgeMode.CLIENT, (2, 1)), (AcknowledgeMode.INDIVIDUAL, (1, 1))])
@pytest.mark.parametrize("untold", [False, True])
def test_the_next_acknowledge_tells_what_an_interrupted_one_has_lost_to_another_store(
    monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode, counts: tuple[int, ...], untold: bool
) -> None:
    """Also where that one is told of a loss that was not reported yet."""
    broker = SmallBroker(prefetch_messages=10, synchronous_acknowledge=True)
    with started(broker) as connection:
        session, consumer = with_messages(connection, mode, 6)
        for count in counts:
            messages = [received(consumer) for _ in range(count)]
            interrupt(monkeypatch, broker, "confirm")
            with pytest.raises(Interrupt):
                messages[0].acknowledge()
        lose(broker)
        acknowledgements = session._state.acknowledgements
        assert acknowledgements is not None
        acknowledgements.lost.move("another", broker.epoch)
        message = received(consumer)
        if untold:
            broker.cut_untold = True
            with pytest.raises(StaleAcknowledgementException, match="while 1 message was held"):
                message.acknowledge()
            lose(broker)
            message = received(consumer)
        with pytest.raises(StaleAcknowledgementException, match="another broker's store") as raised:
            message.acknowledge()
        assert raised.value.stale_count == sum(counts)
        received(consumer).acknowledge()


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


@pytest.mark.parametrize("closes", [False, True], ids=["open producer", "closed producer"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["commits again", "sends and commits"])
def test_a_transaction_is_done_and_told_once_wherever_its_commit_is_interrupted(goes_on: bool, closes: bool) -> None:
    out, number, error = queue_of("out"), 0, None
    while number == 0 or error is not None:
        number += 1
        broker = SmallBroker(prefetch_messages=10)
        with started(broker) as connection:
            session, consumer = with_messages(connection, AcknowledgeMode.TRANSACTED, 2)
            producer, stays = session.create_producer(out), session.create_producer(out)
            told: list[tuple[str, JMSException | None]] = []

            def completed(message: Message, failure: JMSException | None, told: list[Any] = told) -> None:
                told.append((message.body, failure))

            received(consumer)
            for body in "ab":
                producer.send(body, on_completion=completed)
            if closes:
                producer.close()
            error = AtStep(number).during(session.commit)
            done = len(broker.commits)
            if goes_on:
                received(consumer)
                stays.send("c", on_completion=completed)
            session.commit()
            expected = ["a", "b", "c"] if goes_on else ["a", "b"]
            assert [body for body, _ in told] == expected, number
            assert [failure is None for _, failure in told].count(False) in ({0, 2} if done else {0}), (number, told)
            assert [each.envelope.body for each in broker.waiting[out]] == expected, number
            assert broker.outcomes() == [Outcome.ACCEPTED] * (1 + goes_on), number
            assert (producer._link in broker._senders) is not closes, number
            assert stays._link in broker._senders
    assert number > 20, "it has been interrupted at each step"


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.DUPS_OK])
def test_a_reply_is_settled_wherever_its_acceptance_is_interrupted(mode: AcknowledgeMode) -> None:
    number, interrupted = 0, True
    while interrupted:
        number += 1
        broker = SmallBroker(prefetch_messages=10, dups_ok_delay_seconds=60.0)
        broker.settles_twice = True
        with started(broker) as connection:
            session, consumer = with_messages(connection, mode, 1)
            reply = received(consumer)
            interrupted = None is not AtStep(number).during(lambda reply=reply, session=session: session._accept(reply))  # type: ignore[misc]
            session.recover()
            again = consumer.receive(0.01)
            if again is not None:
                session._accept(again)
            assert not broker.held, number
            assert broker.outcomes()[-1] is Outcome.ACCEPTED, number
            session.recover()
    assert number > 5, "it has been interrupted at each step"
