"""What a send takes beside the message, and what of a received message it forwards; embedded and over AMQP."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sdk import AcknowledgeMode, Message, MessageFormatException, Session
from tests.sdk.region_connections import Connect

WAIT = 60.0


def started(connect: Connect, mode: AcknowledgeMode = AcknowledgeMode.AUTO) -> Session:
    connection = connect()
    connection.start()
    return connection.create_session(mode)


def sent(session: Session, message: Any, to: str = "first", **arguments: Any) -> Message:
    """Send a message to a queue, and receive it from there."""
    with session.create_producer(session.create_queue(to)) as producer:
        producer.send(message, **arguments)
    return received(session, to)


def received(session: Session, queue: str) -> Message:
    with session.create_consumer(session.create_queue(queue)) as consumer:
        found = consumer.receive(WAIT)
    assert found is not None
    return found


def test_a_send_names_properties_group_and_correlation(connect: Connect) -> None:
    session = started(connect)
    found = sent(session, "x", properties={"kind": "a", "n": 1}, group_id="g", correlation_id="c")
    assert (dict(found.properties), found.group_id, found.correlation_id) == ({"kind": "a", "n": 1}, "g", "c")
    message = session.create_text_message("x")
    message.properties["kind"] = "b"
    message.properties["old"] = True
    message.group_id = message.correlation_id = "own"
    found = sent(session, message, properties={"kind": "a"}, correlation_id=b"c")
    assert (dict(found.properties), found.group_id, found.correlation_id) == ({"kind": "a", "old": True}, "own", b"c")
    assert dict(message.properties) == {"kind": "a", "old": True}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"properties": {"no name": 1}}, MessageFormatException, "no name"),
        ({"properties": {"a": [1]}}, MessageFormatException, "property 'a' cannot have the value"),
        ({"properties": [("a", 1)]}, TypeError, "is not a dict"),
        ({"group_id": 5}, MessageFormatException, "group_id=5 is not a str"),
        ({"correlation_id": 5}, MessageFormatException, "correlation_id=5 is neither str nor bytes"),
        ({"time_to_live": timedelta(0)}, ValueError, "time_to_live="),
        ({"time_to_live": datetime(2026, 1, 1, tzinfo=UTC)}, ValueError, "time_to_live="),
        ({"delivery_delay": timedelta(seconds=-1)}, ValueError, "delivery_delay="),
        ({"priority": 10}, ValueError, "priority="),
    ],
)
def test_what_a_send_cannot_take_is_named(
    connect: Connect, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    session = started(connect)
    producer = session.create_producer(session.create_queue("first"))
    with pytest.raises(error, match=text):
        producer.send("x", **arguments)
    producer.send("y")
    assert received(session, "first").body == "y"


@pytest.mark.parametrize("how", ["timedelta", "datetime"])
def test_a_delay_and_a_time_to_live_may_be_times(connect: Connect, how: str) -> None:
    session = started(connect)
    late = timedelta(seconds=0.3)
    begun = time.time()
    delay = late if how == "timedelta" else datetime.now(UTC) + late
    found = sent(session, "x", delivery_delay=delay, time_to_live=timedelta(minutes=1))
    assert time.time() - begun >= 0.29
    assert found.deliver_at_ms is not None
    assert begun * 1000 + 290 <= found.deliver_at_ms <= time.time() * 1000
    assert found.expires_at_ms is not None
    assert found.expires_at_ms - (found.sent_at_ms or 0) == 60_000
    producer = session.create_producer(session.create_queue("first"))
    producer.time_to_live = timedelta(seconds=2)
    producer.delivery_delay = timedelta(milliseconds=5)
    assert (producer.time_to_live, producer.delivery_delay) == (2, 0.005)
    producer.send_all(["a", "b"], time_to_live=[timedelta(seconds=9), None], delivery_delay=timedelta(0))
    a, b = received(session, "first"), received(session, "first")
    assert (a.expires_at_ms or 0) - (a.sent_at_ms or 0) == 9_000
    assert (b.expires_at_ms or 0) - (b.sent_at_ms or 0) == 2_000


KEPT = ("priority", "expires_at_ms", "group_id", "group_sequence", "correlation_id", "type", "reply_to", "body")


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.TRANSACTED])
def test_a_received_message_is_forwarded_with_all_that_belongs_to_it(connect: Connect, mode: AcknowledgeMode) -> None:
    session = started(connect)
    message = session.create_map_message({"n": 1, "b": b"x"})
    message.properties.update({"k": 1, "f": 1.5, "t": "text", "yes": True, "none": None})
    message.group_id, message.group_sequence, message.correlation_id, message.type = "g", 3, "corr", "T"
    message.reply_to = session.create_queue("back")
    first = sent(session, message, priority=7, time_to_live=3600)
    before = {name: getattr(first, name) for name in KEPT}
    properties, first_id = dict(first.properties), first.message_id

    other = started(connect, mode)
    producer = other.create_producer(other.create_queue("second"))
    producer.send_all([first])
    if mode is AcknowledgeMode.TRANSACTED:
        other.commit()
    second = received(session, "second")

    assert {name: getattr(second, name) for name in KEPT} == before
    assert (before["priority"], before["expires_at_ms"] is None) == (7, False)
    assert dict(second.properties) == properties
    assert (second.message_id != first_id, str(second.destination)) == (True, "second")
    third = sent(session, second, "third", properties={"hop": 2}, correlation_id="new", group_id="h")
    assert (third.priority, third.correlation_id, third.group_id) == (7, "new", "h")
    assert dict(third.properties) == {**properties, "hop": 2}


def test_a_call_and_then_its_producer_say_more_than_the_received_message(connect: Connect) -> None:
    session = started(connect)
    first = sent(session, "x", priority=7, time_to_live=3600)
    second = sent(session, first, "second", priority=2, time_to_live=60)
    assert second.priority == 2
    assert (second.expires_at_ms or 0) - (second.sent_at_ms or 0) == 60_000
    producer = session.create_producer(session.create_queue("third"))
    producer.priority, producer.time_to_live = 4, 30
    producer.send(second)
    third = received(session, "third")
    assert third.priority == 4
    assert (third.expires_at_ms or 0) - (third.sent_at_ms or 0) == 30_000
    third.expires_at_ms = None
    assert sent(session, third, "fourth").expires_at_ms is None


def test_a_new_message_that_is_sent_again_keeps_nothing_of_its_first_send(connect: Connect) -> None:
    session = started(connect)
    message = session.create_text_message("x")
    sent(session, message, priority=7, time_to_live=3600)
    again = sent(session, message)
    assert (again.priority, again.expires_at_ms) == (4, None)


def test_a_forwarded_dead_letter_does_not_expire(connect: Connect) -> None:
    session = started(connect, AcknowledgeMode.CLIENT)
    sent(session, "x", time_to_live=60).reject("no such customer")
    dead = received(session, "DLQ")
    assert dead.expires_at_ms is None
    found = sent(session, dead, "second")
    assert (found.body, found.expires_at_ms) == ("x", None)
    assert found.properties["JMS_HOLDFAST_DEAD_LETTER_REASON"] == "rejected by a consumer: no such customer"
