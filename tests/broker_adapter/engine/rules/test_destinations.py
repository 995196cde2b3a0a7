"""Destinations are declared and deleted: by force, by their connection, or because they are not in use."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.records.layout import (
    decode_catalog,
)
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
)
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules


def test_a_queue_is_deleted_with_its_messages_and_made_again_by_the_next_send() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    first = rules.state.directory.by_destination[Q]
    assert rules.do(c.Delete(Q)) == 2
    assert rules.effects.ended == [first.id]
    assert Q not in rules.state.directory.by_destination
    rules.send(client, Q, b"c")
    assert rules.state.directory.by_destination[Q].id != first.id
    with pytest.raises(InvalidDestinationException, match="there is no queue 'unknown'"):
        rules.do(c.Delete(queue("unknown")))
    with pytest.raises(InvalidDestinationException, match="can be purged"):
        rules.do(c.Delete(queue("DLQ")))


def test_a_region_is_no_queue_and_no_topic_that_can_be_deleted_and_the_error_says_so() -> None:
    rules = Rules()
    rules.do(e.MakeRegion("quotes"))
    for destination, kind in ((queue("quotes"), "queue"), (topic("quotes"), "topic")):
        with pytest.raises(InvalidDestinationException) as refused:
            rules.do(c.Delete(destination))
        assert refused.value.reason == (
            f"there is no {kind} 'quotes': it is a region, which cannot be deleted; create_region('quotes') reads its"
            " keys, and destroys them"
        )
    rules.send(rules.connect(), queue("quotes"), b"a")
    assert rules.do(c.Delete(queue("quotes"))) == 1  # a queue of the same name is another thing


def test_what_is_in_use_is_deleted_by_force_only_and_its_consumers_are_told() -> None:
    rules = Rules(max_queue_messages=2)
    client = rules.connect()
    told: list[Any] = []
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q, 1, ended=told.append)
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        rules.do(c.Delete(Q))
    rules.do(c.Detach(consumer))
    with pytest.raises(IllegalStateException, match="sessions hold 1 message"):
        rules.do(c.Delete(Q))
    rules.do(c.Settle(consumer, [1], Outcome.RELEASED))
    browser = rules.attach(client, Q, browse=True)
    with pytest.raises(IllegalStateException, match="a browser reads it"):
        rules.do(c.Delete(Q))
    rules.do(c.Detach(browser))
    assert rules.send(client, Q, b"c") == "held"
    with pytest.raises(IllegalStateException, match="1 send waits for room"):
        rules.do(c.Delete(Q))
    consumer = rules.attach(client, Q, 1, ended=told.append)
    assert rules.do(c.Delete(Q, force=True)) == 2
    assert [error.reason for error in told] == ["'q' was deleted"]
    assert not rules.state.directory.consumers
    assert rules.state.directory.memory.in_hand == 0
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))  # too late, and harmless
    rules.do(c.Disconnect(client))


def test_a_subscription_or_a_whole_topic_is_deleted() -> None:
    rules = Rules()
    client = rules.connect("me")
    for name in ("one", "two"):
        subscription = Subscription(name, durable=True, shared=False)
        rules.do(c.Detach(rules.attach(client, topic("t"), subscription=subscription)))
    rules.send(client, topic("t"), b"x")
    with pytest.raises(InvalidDestinationException, match="there is one of client id 'me' \\(--client-id"):
        rules.do(c.Delete(topic("t"), "one"))
    assert rules.do(c.Delete(topic("t"), "one", "me")) == 1
    assert [each.record.name for each in rules.state.directory.topics[topic("t")]] == ["two"]
    assert rules.do(c.Delete(topic("t"))) == 1
    assert not rules.state.directory.topics
    assert not rules.state.directory.subscriptions


def test_what_is_not_in_use_is_deleted_where_the_options_say_so() -> None:
    day = 86_400
    rules = Rules(delete_idle_queues_seconds=day, delete_idle_subscriptions_seconds=2 * day)
    client = rules.connect("me")
    for name in ("empty", "full", "consumed"):
        rules.send(client, queue(name), b"x")
    rules.do(c.Settle(rules.attach(client, queue("empty"), 1), [1], Outcome.ACCEPTED))
    rules.do(c.Disconnect(client))
    client = rules.connect("me")
    consumer = rules.attach(client, queue("consumed"), 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    for name in ("left", "used"):
        subscription = Subscription(name, durable=True, shared=False)
        number = rules.attach(client, topic("t"), subscription=subscription)
        if name == "left":
            rules.do(c.Detach(number))
    rules.pass_time(day * 1000)
    assert len(rules.do(c.DeleteIdle())) == 1
    assert queue("empty") not in rules.state.directory.by_destination
    rules.send(client, topic("t"), b"x")
    rules.pass_time(day * 1000)
    assert len(rules.do(c.DeleteIdle())) == 1
    assert [each.record.name for each in rules.state.directory.topics[topic("t")]] == ["used"]
    assert {str(each) for each in rules.state.directory.by_destination} == {"full", "consumed", "DLQ"}


def test_a_restart_leaves_whoever_used_a_subscription_its_time_to_come_back() -> None:
    """Also where the consumer left once before, and the crash came while it was there again."""
    rules = Rules(delete_idle_subscriptions_seconds=60)
    client = rules.connect("me")
    catalog: dict[bytes, bytes | None] = {}
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    catalog.update(rules.effects.durable.tables.get("catalog", {}))
    rules.do(c.Detach(consumer))
    catalog.update(rules.effects.durable.tables.get("catalog", {}))
    rules.attach(client, topic("t"), subscription=DURABLE)
    records = [(int.from_bytes(key), decode_catalog(key, value), None, []) for key, value in catalog.items() if value]
    rules.pass_time(3_600_000)
    started = Rules(delete_idle_subscriptions_seconds=60)
    started.now_ms = rules.now_ms
    started.state.restore(records, [], 1)
    assert len(started.do(c.DeleteIdle())) == 0
    started.pass_time(59_999)
    assert len(started.do(c.DeleteIdle())) == 0
    started.pass_time(1)
    assert len(started.do(c.DeleteIdle())) == 1


def test_a_subscription_is_idle_from_when_the_last_delivery_of_its_consumer_has_ended() -> None:
    rules = Rules(delete_idle_subscriptions_seconds=60)
    client = rules.connect("me")
    consumer = rules.attach(client, topic("t"), 1, subscription=DURABLE)
    rules.send(client, topic("t"), b"x")
    rules.do(c.Detach(consumer))
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 0
    rules.do(c.Settle(consumer, [1], Outcome.RELEASED))
    assert len(rules.do(c.DeleteIdle())) == 0
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 1


def test_a_queue_that_is_declared_or_browsed_is_in_use() -> None:
    rules = Rules(delete_idle_queues_seconds=60)
    client = rules.connect()
    rules.do(c.Declare(Q))
    browser = rules.attach(client, Q, browse=True)
    for use in (c.Detach(browser), c.Declare(Q)):
        rules.pass_time(60_000)
        rules.do(use)
        assert len(rules.do(c.DeleteIdle())) == 0
    rules.pass_time(60_000)
    assert len(rules.do(c.DeleteIdle())) == 1


def test_by_default_nothing_is_deleted_by_itself() -> None:
    rules = Rules()
    rules.do(c.Declare(Q))
    rules.pass_time(1 << 50)
    assert len(rules.do(c.DeleteIdle())) == 0


def test_what_was_settled_of_a_temporary_queue_is_forgotten_with_it_and_costs_no_commit_where_nothing_was() -> None:
    rules = Rules()
    client = rules.connect()
    for number in (0, 5):
        temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
        group = rules.state.directory.settled_group(rules.state.directory.by_destination[temporary])
        if number:
            rules.do(c.Publish(group, number, ()))
        rules.do(c.DeleteTemporary(client, temporary))
        assert bool(rules.effects.durable) is bool(number)
        assert rules.state.published.last(group) is None


@pytest.mark.parametrize("kind", [DestinationKind.TEMPORARY_QUEUE, DestinationKind.TEMPORARY_TOPIC])
def test_a_temporary_destination_is_its_connections_own(kind: DestinationKind) -> None:
    rules = Rules()
    owner, other = rules.connect(), rules.connect()
    temporary = rules.do(c.DeclareTemporary(owner, kind))
    consumer = rules.attach(owner, temporary, 10)
    rules.send(other, temporary, b"x")
    assert len(rules.delivered[consumer]) == 1
    with pytest.raises(InvalidDestinationException, match="only by the connection that made it"):
        rules.attach(other, temporary)
    with pytest.raises(InvalidDestinationException, match="no temporary destination of this connection"):
        rules.do(c.DeleteTemporary(other, temporary))
    with pytest.raises(IllegalStateException, match="close it first"):
        rules.do(c.DeleteTemporary(owner, temporary))
    rules.do(c.Disconnect(owner))
    with pytest.raises(InvalidDestinationException, match="does not exist any more"):
        rules.send(other, temporary, b"x")
