"""Consumers and browsers attach; subscriptions are made and ended by that."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
)
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules


def test_browsing_makes_no_queue() -> None:
    rules = Rules()
    browser = rules.attach(rules.connect(), queue("nowhere"), browse=True)
    assert [each.name for each in rules.do(c.Statistics()).queues] == ["DLQ"]
    rules.do(c.Detach(browser))
    with pytest.raises(InvalidDestinationException):
        rules.attach(rules.connect(), Destination("x" * 401), browse=True)


def test_an_invalid_selector_is_refused_and_leaves_nothing_behind() -> None:
    rules = Rules()
    client = rules.connect()
    with pytest.raises(InvalidSelectorException, match="column 4"):
        rules.attach(client, Q, selector="a =")
    assert not rules.state.directory.consumers
    assert Q not in rules.state.directory.by_destination


def test_a_durable_subscription_needs_a_client_id_and_is_used_by_one_consumer() -> None:
    rules = Rules()
    with pytest.raises(IllegalStateException, match="needs a client id"):
        rules.attach(rules.connect(), topic("t"), subscription=DURABLE)
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="in use"):
        rules.attach(client, topic("t"), subscription=DURABLE)


SHARED_DURABLE = Subscription("s", durable=True, shared=True)


def test_a_name_is_not_shared_and_unshared_at_once() -> None:
    rules = Rules()
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="is an unshared durable one"):
        rules.attach(client, topic("t"), subscription=SHARED_DURABLE)


SHARED = Subscription("s", durable=False, shared=True)


def test_a_durable_subscription_and_another_one_may_have_the_same_name() -> None:
    """Jakarta Messaging 3.1 sections 8.3.2 and 8.3.3: such subscriptions are completely separate."""
    for durable in (True, False):
        rules = Rules(durable=durable)
        client = rules.connect("me")
        consumers = [rules.attach(client, topic("t"), 5, subscription=each) for each in (DURABLE, SHARED)]
        rules.send(client, topic("t"), b"x")
        assert [len(rules.delivered[consumer]) for consumer in consumers] == [1, 1]
        for consumer in consumers:
            rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED), c.Detach(consumer))
        assert list(rules.state.directory.subscriptions) == [("me", "s", True)]


def test_a_durable_subscription_moved_to_another_topic_starts_empty() -> None:
    rules = Rules()
    client = rules.connect("me")
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    rules.do(c.Detach(consumer))
    rules.send(client, topic("t"), b"old")
    consumer = rules.attach(client, topic("other"), 10, subscription=DURABLE)
    rules.send(client, topic("t"), b"not delivered")
    rules.send(client, topic("other"), b"new")
    assert len(rules.delivered[consumer]) == 1


def test_an_attach_replaces_only_a_subscription_that_it_may_replace() -> None:
    rules = Rules()
    client = rules.connect("me")
    rules.do(c.Detach(rules.attach(client, topic("t"), subscription=DURABLE)))
    rules.send(client, topic("t"), b"old")
    elsewhere = c.Attach(client, topic("other"), print, DURABLE, may_replace=())
    answer = rules.do(elsewhere)
    assert isinstance(answer, c.WouldReplace)
    assert not rules.state.directory.consumers
    assert rules.do(elsewhere._replace(may_replace=(answer.subscription + 1,))) == answer
    assert rules.depth("t:s") == 1
    assert isinstance(rules.do(elsewhere._replace(may_replace=(answer.subscription,))), int)
    assert rules.depth("other:s") == 0


def test_an_attach_that_may_replace_nothing_makes_and_finds_a_subscription() -> None:
    rules = Rules()
    client = rules.connect("me")
    attach = c.Attach(client, topic("t"), print, DURABLE, may_replace=())
    for _ in range(2):
        rules.do(c.Detach(rules.do(attach)))


def test_a_shared_subscription_that_is_in_use_does_not_move() -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, topic("t"), subscription=SHARED)
    with pytest.raises(IllegalStateException, match="in use on topic 't'"):
        rules.attach(client, topic("other"), subscription=SHARED)
    with pytest.raises(IllegalStateException, match="in use on topic 't' with selector None"):
        rules.attach(client, topic("t"), subscription=SHARED, selector="a = 1")


@pytest.mark.parametrize("subscription", [None, SHARED], ids=["plain", "shared"])
def test_a_subscription_that_is_not_durable_ends_with_its_last_consumer(subscription: Subscription | None) -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, topic("t"), subscription=subscription)
    rules.do(c.Detach(consumer))
    assert len(rules.effects.ended) == 1
    rules.send(client, topic("t"), b"not delivered")
    assert not rules.effects.volatile
    assert rules.state.directory.subscriptions == {}


def test_a_durable_subscription_does_not_end_with_its_consumer_or_client() -> None:
    rules = Rules()
    client = rules.connect("me")
    rules.attach(client, topic("t"), subscription=DURABLE)
    rules.do(c.Disconnect(client))
    assert rules.effects.ended == []
    rules.send(rules.connect(), topic("t"), b"x")
    assert len(rules.effects.durable.entries) == 1


def test_unsubscribing_needs_a_subscription_that_is_not_in_use() -> None:
    rules = Rules()
    client = rules.connect("me")
    with pytest.raises(InvalidDestinationException, match="no durable subscription 's'"):
        rules.do(c.Unsubscribe(client, "s"))
    consumer = rules.attach(client, topic("t"), subscription=DURABLE)
    with pytest.raises(IllegalStateException, match="close it first"):
        rules.do(c.Unsubscribe(client, "s"))
    rules.do(c.Credit(consumer, 1), c.Enqueue(client, topic("t"), [c.NewMessage(0, b"x")]))
    rules.do(c.Detach(consumer))
    with pytest.raises(IllegalStateException, match="holds messages of it"):
        rules.do(c.Unsubscribe(client, "s"))
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    rules.do(c.Unsubscribe(client, "s"))
    assert len(rules.effects.ended) == 1
