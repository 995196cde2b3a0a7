"""A consumer that holds a message for too long: others get it, and it is told."""

from __future__ import annotations

import threading

import pytest

from broker_adapter.engine.queues.queue import Consumer, QueueState
from sdk import (
    AcknowledgeMode,
    Connection,
    Message,
    MessageConsumer,
    ResourceAllocationException,
    Session,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.broker_adapter.engine.decisions import Q, Rules
from tests.contracts.transports import eventually
from tests.sdk.region_connections import Connect

WAIT = 60.0
REASON = "held for more than 1 s and not settled (option consumer_timeout_seconds)"
HOLDING = (AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED)


def holder(rules: Rules, messages: int) -> Consumer:
    """A consumer that has credit, and so many messages that wait for it."""
    client = rules.connect()
    number = rules.attach(client, Q, credit=100)
    for _ in range(messages):
        rules.send(client, Q, b"x")
    return rules.state.directory.consumers[number]


def test_a_consumer_holds_too_long_what_was_there_at_a_mark_that_is_as_old_as_the_limit() -> None:
    consumer = holder(Rules(), 2)
    assert [consumer.holds_too_long(now, 8_000) for now in (0, 4_000, 7_999)] == [False] * 3
    assert consumer.holds_too_long(8_000, 8_000)
    consumer.unsettled.pop(1)
    assert consumer.holds_too_long(8_001, 8_000), "the second one is as old"
    consumer.unsettled.clear()
    assert not consumer.holds_too_long(8_002, 8_000)


def test_a_consumer_that_settles_in_time_may_hold_something_all_the_time() -> None:
    rules = Rules()
    consumer = holder(rules, 1)
    for now in range(0, 100_000, 500):
        assert not consumer.holds_too_long(now, 8_000)
        if now % 6_000 == 0:
            rules.send(consumer.client, Q, b"x")
            consumer.unsettled.pop(next(iter(consumer.unsettled)))
        assert len(consumer.marks) <= 10


def started(connect: Connect, engine: str = "consumer_timeout_seconds=1") -> Connection:
    connection = connect(engine=engine)
    connection.start()
    return connection


def reports(connection: Connection) -> list[str]:
    """What its listeners are called with."""
    told: list[str] = []
    connection.event_listener = lambda event: told.append(str(event))
    connection.exception_listener = lambda error: told.append(str(error))
    return told


def taken(consumer: MessageConsumer) -> Message:
    message = consumer.receive(WAIT)
    assert message is not None
    return message


def sent(session: Session, *bodies: str) -> None:
    with session.create_producer(session.create_queue("work")) as producer:
        producer.send_all(bodies)


@pytest.mark.parametrize("mode", HOLDING)
def test_what_is_held_for_too_long_goes_to_others_and_its_late_end_is_refused(
    connect: Connect, mode: AcknowledgeMode
) -> None:
    connection = started(connect)
    told = reports(connection)
    hung, other = connection.create_session(mode), connection.create_session()
    sent(other, "a")
    consumer = hung.create_consumer(hung.create_queue("work"), prefetch=1)
    message = taken(consumer)
    hung.create_producer(hung.create_queue("results")).send("of a")
    again = taken(other.create_consumer(other.create_queue("work"), prefetch=0))
    assert (again.body, again.redelivered, again.delivery_count) == ("a", True, 2)
    eventually(lambda: REASON in str(told))
    if mode is AcknowledgeMode.TRANSACTED:
        with pytest.raises(TransactionRolledBackException):
            hung.commit()
        assert list(other.create_browser(other.create_queue("results"))) == []
    else:
        with pytest.raises(StaleAcknowledgementException):
            message.acknowledge()
    assert other.create_consumer(other.create_queue("work"), prefetch=0).receive_nowait() is None
    other.close()
    with connection.create_session() as producing:
        sent(producing, "b")
    try:
        assert taken(consumer).body == "b"
    except ResourceAllocationException:  # embedded it has ended
        assert taken(hung.create_consumer(hung.create_queue("work"))).body == "b"


def test_a_listener_that_hangs_loses_its_message_and_the_connection_tells_why(connect: Connect) -> None:
    connection = started(connect)
    told = reports(connection)
    hung, other = connection.create_session(), connection.create_session()
    go_on = threading.Event()
    hung.create_consumer(hung.create_queue("work")).listener = lambda message: go_on.wait(WAIT)
    sent(other, "a")
    try:
        assert taken(other.create_consumer(other.create_queue("work"), prefetch=0)).redelivered
    finally:
        go_on.set()
    eventually(lambda: REASON in str(told))


def test_nobody_is_asked_where_no_queue_has_the_setting() -> None:
    state: QueueState = holder(Rules(), 1).queue
    assert state.settings.consumer_timeout_seconds is None
    assert not Rules().state.directory.policies.has_consumer_timeouts
