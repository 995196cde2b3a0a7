"""``message.reject()`` and ``message.retry()`` in every mode, embedded and over AMQP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    IllegalStateException,
    Message,
    MessageConsumer,
    Session,
    StaleAcknowledgementException,
    UnsupportedOperationException,
)
from tests.sdk.region_connections import Connect
from tests.sdk.small_broker import SmallBroker

WAIT = 60.0
#: The delay of a retry, and the longest time for which nothing comes before it is over.
DELAY = 0.3
LISTENING = [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK]
RECEIVING = [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED]
REASON = "JMS_HOLDFAST_DEAD_LETTER_REASON"
#: Standard AMQP as well, where dispositions say how messages end.
FORMATS = pytest.mark.parametrize(
    ("connect", "client"), [("embedded", ""), ("amqp", ""), ("amqp", "envelope=false")], indirect=["connect"]
)


@pytest.fixture
def process(connect: Connect) -> Callable[..., Session]:
    """Passes each of some messages to a function in a session of a mode, by a listener or by ``receive``."""

    def process(mode: AcknowledgeMode, act: Callable[[Message], object], *bodies: Any, client: str = "") -> Session:
        connection = started(connect, client=client)
        session = connection.create_session(mode)
        queue = session.create_queue("work")
        with connection.create_session() as other:
            other.create_producer(other.create_queue("work")).send_all(bodies)
        consumer = session.create_consumer(queue)
        if mode in LISTENING:
            seen, done = [], threading.Event()

            def listen(message: Message) -> None:
                seen.append(message)
                try:
                    act(message)
                finally:
                    if len(seen) == len(bodies):
                        done.set()

            consumer.listener = listen
            assert done.wait(WAIT)
        else:
            for message in [consumer.receive(WAIT) for _ in bodies]:
                assert message is not None
                act(message)
        if mode is AcknowledgeMode.TRANSACTED:
            session.commit()
        return session

    return process


def started(connect: Connect, **options: str) -> Connection:
    connection = connect(**options)
    connection.start()
    return connection


def rest_of(consumer: MessageConsumer) -> list[Message]:
    return list(iter(lambda: consumer.receive(0.1), None))


@pytest.mark.parametrize("mode", [*LISTENING, *RECEIVING])
@FORMATS
def test_a_rejected_message_is_a_dead_letter_with_the_reason_and_the_others_are_not(
    process: Callable[..., Session], connect: Connect, mode: AcknowledgeMode, client: str
) -> None:
    def act(message: Message) -> None:
        if message.body == "bad":
            message.reject("no such customer")
            if mode is not AcknowledgeMode.TRANSACTED:  # there the last word counts
                with pytest.raises(
                    IllegalStateException, match=rf"the message has ended.* {mode.name} can be rejected"
                ):
                    message.reject("again")
        elif mode is AcknowledgeMode.INDIVIDUAL:
            message.acknowledge()

    session = process(mode, act, "good", "bad", "fine", client=client)
    if mode is AcknowledgeMode.CLIENT:
        session.acknowledge()

    with started(connect).create_session() as other:
        (dead,) = [message for message in [other.create_consumer(other.create_queue("DLQ")).receive(WAIT)] if message]
        assert (dead.body, dead.properties[REASON]) == ("bad", "rejected by a consumer: no such customer")
        assert dead.properties["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "work"
        session.close()
        assert rest_of(other.create_consumer(other.create_queue("work"))) == []
        assert rest_of(other.create_consumer(other.create_queue("DLQ"))) == []


@pytest.mark.parametrize("mode", [*LISTENING, *RECEIVING])
@FORMATS
def test_a_message_comes_again_after_the_delay_and_others_pass_it(
    process: Callable[..., Session], connect: Connect, mode: AcknowledgeMode, client: str
) -> None:
    retried = 0.0

    def act(message: Message) -> None:
        nonlocal retried
        if message.body == "late":
            retried = time.monotonic()
            message.retry(timedelta(seconds=DELAY))
        elif mode is AcknowledgeMode.INDIVIDUAL:
            message.acknowledge()

    session = process(mode, act, "late", "good", client=client)
    if mode is AcknowledgeMode.CLIENT:
        session.acknowledge()
    session.close()

    with started(connect).create_session() as other:
        consumer = other.create_consumer(other.create_queue("work"))
        message = consumer.receive(WAIT)
        assert message is not None
        assert (message.body, message.delivery_count, message.redelivered) == ("late", 2, True)
        assert time.monotonic() - retried >= DELAY - 0.05
        assert rest_of(consumer) == []


@FORMATS
def test_a_retry_counts_as_a_delivery(connect: Connect, client: str) -> None:
    connection = started(connect, client=client, engine="max_deliveries=3")
    session = connection.create_session(AcknowledgeMode.CLIENT)
    session.create_producer(session.create_queue("work")).send("x")
    consumer, dead = (session.create_consumer(session.create_queue(each)) for each in ("work", "DLQ"))
    for count in (1, 2, 3):
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.delivery_count == count
        message.retry()
    found = dead.receive(WAIT)
    assert found is not None
    assert found.properties[REASON] == "delivered 3 times without success (option max_deliveries)"


def test_a_delayed_retry_outlasts_the_connection(connect: Connect) -> None:
    with started(connect) as connection:
        session = connection.create_session(AcknowledgeMode.INDIVIDUAL)
        session.create_producer(session.create_queue("work")).send("x")
        message = session.create_consumer(session.create_queue("work")).receive(WAIT)
        assert message is not None
        message.retry(DELAY)
    session = started(connect).create_session()
    message = session.create_consumer(session.create_queue("work")).receive(WAIT)
    assert message is not None
    assert message.delivery_count == 2


def test_what_a_rolled_back_transaction_has_rejected_comes_again(connect: Connect) -> None:
    connection = started(connect)
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    session.create_producer(session.create_queue("work")).send("x")
    session.commit()
    consumer = session.create_consumer(session.create_queue("work"))
    message = consumer.receive(WAIT)
    assert message is not None
    message.reject("no such customer")
    session.rollback()
    again = consumer.receive(WAIT)
    assert again is not None
    again.reject("not yet")
    again.retry()  # the last word counts
    session.commit()
    third = consumer.receive(WAIT)
    assert third is not None
    assert third.delivery_count == 3


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.NO_ACK])
def test_where_nothing_is_left_to_settle_the_error_says_when_there_is(connect: Connect, mode: AcknowledgeMode) -> None:
    connection = started(connect)
    session = connection.create_session(mode)
    session.create_producer(session.create_queue("work")).send("x")
    message = session.create_consumer(session.create_queue("work")).receive(WAIT)
    assert message is not None
    when = "never: the broker forgets" if mode is AcknowledgeMode.NO_ACK else "only while its listener runs"
    with pytest.raises(IllegalStateException, match=rf"cannot reject: .* {mode.name} .* {when}"):
        message.reject("no such customer")
    with pytest.raises(IllegalStateException, match=rf"cannot retry: .* {when}"):
        message.retry()


def test_arguments_are_checked_and_only_received_messages_can_end() -> None:
    message = Message()
    for reason in ("", None, 5):
        with pytest.raises(ValueError, match="is not a text that says why"):
            message.reject(reason)  # type: ignore[arg-type]
    for delay in (-1, None, "5", True, float("nan"), timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="is not a number of seconds, or a timedelta"):
            message.retry(delay)  # type: ignore[arg-type]
    with pytest.raises(IllegalStateException, match="cannot reject: the message was not received"):
        message.reject("why")


def test_a_stale_message_cannot_be_rejected_and_another_broker_cannot_delay(broker: SmallBroker) -> None:
    with broker.connect() as connection:
        connection.start()
        session = connection.create_session(AcknowledgeMode.INDIVIDUAL)
        session.create_producer(session.create_queue("work")).send("x")
        message = session.create_consumer(session.create_queue("work")).receive(WAIT)
        assert message is not None
        session._state.is_holdfast = False
        with pytest.raises(UnsupportedOperationException, match=r"cannot retry after 5 s.*: .* Holdfast server"):
            message.retry(5)
        session._state.connection_lost(session._state.epoch + 1)
        with pytest.raises(StaleAcknowledgementException):
            message.reject("no such customer")
