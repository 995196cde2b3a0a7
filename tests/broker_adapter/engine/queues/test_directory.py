"""What exists: destinations up to a limit, topics while they have subscriptions, numbers that tell queues apart."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import (
    FIRST_VOLATILE_QUEUE,
)
from broker_adapter.errors import (
    InvalidDestinationException,
    ResourceAllocationException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Q, Rules


def test_destinations_have_a_limit() -> None:
    rules = Rules(max_destinations=2)
    client = rules.connect()
    rules.send(client, queue("a"), b"x")
    rules.send(client, queue("b"), b"x")
    with pytest.raises(
        ResourceAllocationException, match=r"\(option max_destinations\); delete those that are not in use"
    ):
        rules.send(client, queue("c"), b"x")
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        rules.attach(client, topic("t"))


def test_what_is_set_aside_has_its_queues_whatever_the_limit_says() -> None:
    rules = Rules(max_destinations=1, expiry_queue="gone", max_deliveries=1)
    client = rules.connect()
    rules.send(client, Q, b"rejected", b"failed", b"expired", expires_at_ms=rules.now_ms + 10)
    rules.send(client, Q, b"in hand")
    consumer = rules.attach(client, Q, 2)
    rules.do(c.Settle(consumer, [1], Outcome.REJECTED))
    rules.do(c.Disconnect(client))
    rules.pass_time(10)
    rules.attach(rules.connect(), Q, 10)
    assert {each.name for each in rules.state.directory.queues.values() for each in [each.destination]} == {
        "q",
        "DLQ",
        "gone",
    }
    assert (rules.depth("DLQ"), rules.depth("gone"), rules.depth("q")) == (2, 1, 1)


def test_a_topic_is_there_while_it_has_subscriptions() -> None:
    rules = Rules()
    client = rules.connect()
    rules.do(c.Declare(topic("t")))
    rules.send(client, topic("t"), b"without a consumer")
    assert not rules.state.directory.topics
    consumer = rules.attach(client, topic("t"))
    assert list(rules.state.directory.topics) == [topic("t")]
    rules.do(c.Detach(consumer))
    assert not rules.state.directory.topics


def test_a_durable_subscription_and_one_that_is_not_may_have_the_same_name() -> None:
    rules = Rules()
    client = rules.connect()
    news = topic("news")
    for durable in (False, True):
        rules.attach(client, news, subscription=Subscription("s", durable, shared=True, of_client=False))
    directory = rules.state.directory
    found = {durable: directory.subscription(news, "s", None, durable) for durable in (True, False, None)}
    assert found[None] is found[True] is not found[False]
    with pytest.raises(InvalidDestinationException, match="there is no subscription 'other'"):
        directory.subscription(news, "other", None, False)


def test_a_temporary_queue_of_another_run_is_another_incarnation() -> None:
    names = set()
    for secret in (b"one", b"two"):
        state = BrokerState(EngineSettings(), durable=True, secret=secret, unique="u")
        replies: list[Any] = []
        state.decide([c.Connect(None, reply=replies.append)], 0)
        state.decide([c.DeclareTemporary(1, DestinationKind.TEMPORARY_QUEUE)], 0)
        (temporary,) = [each for each in state.directory.queues.values() if each.destination.is_temporary]
        assert temporary.id == FIRST_VOLATILE_QUEUE
        names.add(state.directory.incarnation(temporary))
    assert len(names) == 2


@pytest.mark.parametrize("name", ["", "x" * 401, "a\0b"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    rules = Rules()
    with pytest.raises(InvalidDestinationException):
        rules.do(c.Declare(Destination(name)))
