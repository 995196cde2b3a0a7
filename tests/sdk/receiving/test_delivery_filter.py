"""Which deliveries the application gets, and what becomes of the others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter import Destination
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    Session,
)
from sdk.acknowledgements import AckRecord, LostAcknowledgements, Source
from tests.sdk.small_broker import SmallBroker, consumer_of, fill, received, started, with_messages

_WAIT = 120.0


def _with_options(path: Path, options: str) -> Connection:
    """A started connection to an engine of this test's own."""
    connection = ConnectionFactory(f"embedded:{path}?{options}").create_connection()
    connection.start()
    return connection


def test_unreadable_message_is_rejected_and_told_and_the_next_one_comes(broker: SmallBroker) -> None:
    told: list[object] = []
    came = threading.Event()
    with started(broker) as connection:
        connection.exception_listener = lambda error: (told.append(error), came.set())
        session = connection.create_session()
        fill(session, 3)
        broker.unreadable = {1, 2}
        consumer = consumer_of(session)

        assert str(consumer.receive(120)) == "2"
        assert broker.outcomes() == [Outcome.REJECTED, Outcome.REJECTED, Outcome.ACCEPTED]
        assert came.wait(120)
        assert "cannot be decoded" in str(told[0])


@pytest.mark.parametrize("timeout", [0, 120, None])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 10])
def test_what_waits_behind_messages_that_cannot_be_given_out_comes_at_once(
    prefetch: int, timeout: float | None
) -> None:
    broker = SmallBroker(prefetch_messages=prefetch)
    with started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session()
        fill(session, 7)
        broker.unreadable = {1, 2, 3, 4, 5}
        consumer = consumer_of(session)
        assert [str(consumer.receive(timeout)) for _ in range(2)] == ["5", "6"]
        assert consumer.receive_nowait() is None


def test_what_has_expired_here_only_is_left_to_other_consumers_and_does_not_come_again() -> None:
    """Given back as failed, it came again at once: 15,000 times in seconds at a broker that ignores expiry times."""
    broker = SmallBroker(prefetch_messages=1, poll_timeout_seconds=120, local_message_expiry=True)
    with started(broker) as connection:
        session = connection.create_session()
        with session.create_producer(session.create_queue("q")) as producer:
            producer.send("late", time_to_live=0.001)
            producer.send("next")
        consumer = consumer_of(session)
        time.sleep(0.01)
        assert str(consumer.receive_nowait()) == "next"
        assert broker.outcomes() == [Outcome.UNDELIVERABLE, Outcome.ACCEPTED]


@pytest.mark.parametrize("options", [{"max_redeliveries": 2}, {}])
def test_what_a_broker_sends_again_after_each_rejection_is_left_to_other_consumers_in_the_end(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Broker-J does so, without end where its queue has no limit of deliveries."""
    broker = SmallBroker(**options)
    broker.returns_rejected = True
    with started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session(AcknowledgeMode.CLIENT)
        fill(session, 1)
        if not options:
            broker.unreadable = {1}
        consumer = consumer_of(session)
        for _ in range(options.get("max_redeliveries", -1) + 1):
            assert str(consumer.receive(_WAIT)) == "0"
            session.recover()
        assert consumer.receive_nowait() is None
    refused = [outcome for outcome in broker.outcomes() if outcome in (Outcome.REJECTED, Outcome.UNDELIVERABLE)]
    assert refused == [Outcome.REJECTED] * 20 + [Outcome.UNDELIVERABLE]
    lines = [
        record.getMessage() for record in caplog.records if "comes again after each rejection" in record.getMessage()
    ]
    assert len(lines) == 1


@pytest.mark.parametrize("max_redeliveries", [3, None])
def test_deliveries_that_others_have_failed_before_are_no_rejections(max_redeliveries: int | None) -> None:
    """They made a message that was never rejected one that comes again after each rejection."""
    broker = SmallBroker(max_redeliveries=max_redeliveries)
    with started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session()
        fill(session, 1)
        broker.waiting[Destination("q")][0].failures = 30
        if max_redeliveries is None:
            broker.unreadable = {1}
        assert consumer_of(session).receive_nowait() is None
    assert broker.outcomes() == [Outcome.REJECTED]


def test_each_of_several_messages_that_come_again_is_left_to_other_consumers() -> None:
    broker = SmallBroker(max_redeliveries=0, prefetch_messages=10)
    broker.returns_rejected = True
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 3)
        for stored in broker.waiting[Destination("q")]:
            stored.failures = 1
        assert consumer_of(session).receive_nowait() is None
    assert broker.outcomes().count(Outcome.UNDELIVERABLE) == 3
    assert len(broker.outcomes()) <= 3 * (20 + 1) + 3 * 20


def test_many_messages_that_are_rejected_once_are_none_that_come_again() -> None:
    broker = SmallBroker(max_redeliveries=0, prefetch_messages=10)
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 2500)
        for number, stored in enumerate(broker.waiting[Destination("q")], 1):
            stored.failures = number
        assert consumer_of(session).receive_nowait() is None
    assert broker.outcomes() == [Outcome.REJECTED] * 2500


def test_unreadable_message_does_not_stop_a_listener(broker: SmallBroker) -> None:
    got: list[str] = []
    done = threading.Event()

    def listen(message: object) -> None:
        got.append(str(message))
        done.set()

    with started(broker) as connection:
        connection.exception_listener = lambda error: None
        session = connection.create_session()
        fill(session, 2)
        broker.unreadable = {1}
        consumer_of(session).listener = listen

        assert done.wait(120)
    assert got == ["1"]
    assert broker.outcomes() == [Outcome.REJECTED, Outcome.ACCEPTED]


def test_a_message_redelivered_too_often_is_rejected_by_the_client(tmp_path: Path) -> None:
    with _with_options(tmp_path, "max_redeliveries=2&redelivery_delay_seconds=0") as connection:
        with connection.create_session(AcknowledgeMode.CLIENT) as session:
            destination = session.create_queue("q")
            producer = session.create_producer(destination)
            producer.send("bad")
            consumer = session.create_consumer(destination)
            for count in (1, 2, 3):
                message = consumer.receive(timeout=_WAIT)
                assert message is not None
                assert message.delivery_count == count
                session.recover()
            producer.send("good")
            message = consumer.receive(timeout=_WAIT)
            assert message is not None
            assert message.body == "good"
        with connection.create_session() as session:
            dead = list(session.create_browser(session.create_queue("DLQ")))
            assert [each.body for each in dead] == ["bad"]


def test_of_many_messages_redelivered_too_often_some_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        _with_options(tmp_path, "max_redeliveries=0&redelivery_delay_seconds=0") as connection,
        connection.create_session(AcknowledgeMode.CLIENT) as session,
    ):
        destination = session.create_queue("q")
        producer = session.create_producer(destination)
        for _ in range(150):
            producer.send("bad")
        consumer = session.create_consumer(destination)
        for _ in range(150):
            assert consumer.receive(timeout=_WAIT) is not None
        session.recover()
        producer.send("good")
        message = consumer.receive(timeout=_WAIT)
        assert message is not None
        assert message.body == "good"
    lines = [record.getMessage() for record in caplog.records if "max_redeliveries" in record.getMessage()]
    assert [line.rpartition("; ")[2] for line in lines] == [f"it rejected {count} others before" for count in (0, 100)]


def _lost(session: Session) -> LostAcknowledgements:
    acknowledgements = session._state.acknowledgements
    assert acknowledgements is not None
    return acknowledgements.lost


def _record(broker: SmallBroker, number: int) -> AckRecord:
    """What an acknowledgement of the message with this number, in order, is remembered as."""
    envelope = broker.waiting[Destination("q")][number].envelope
    return Source("q"), envelope.identity, None, 0, envelope.message_id


def test_a_message_that_was_acknowledged_before_a_loss_is_acknowledged_again_and_not_given_out() -> None:
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 3)
        _lost(session).add([_record(broker, 0)], lambda ids: None)
        consumer = consumer_of(session)
        assert [str(received(consumer)) for _ in range(2)] == ["1", "2"]
        assert broker.outcomes() == [Outcome.ACCEPTED] * 3
        assert len(_lost(session)) == 0


def test_an_acknowledgement_that_is_lost_once_more_is_remembered_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 1)
        _lost(session).add([_record(broker, 0)], lambda ids: None)
        consumer = consumer_of(session)

        def settle(settlements: object) -> None:
            raise ConnectionLostException("lost")

        monkeypatch.setattr(broker, "settle", settle)
        assert consumer.receive(0.01) is None
        assert len(_lost(session)) == 1


def test_a_message_that_the_application_had_before_a_loss_is_redelivered() -> None:
    broker = SmallBroker(prefetch_messages=10)
    with started(broker) as connection:
        session = connection.create_session()
        fill(session, 2)
        _lost(session).add_seen([_record(broker, 0)])
        consumer = consumer_of(session)
        assert [received(consumer).redelivered for _ in range(2)] == [True, False]


def test_a_message_that_the_broker_does_not_let_out_of_hand_is_not_given_out(broker: SmallBroker) -> None:
    with started(broker) as connection:
        _, consumer = with_messages(connection, AcknowledgeMode.AUTO, 2)
        consumer._prefetch.buffer[0].take_in_hand = lambda: False
        assert str(received(consumer)) == "1"
