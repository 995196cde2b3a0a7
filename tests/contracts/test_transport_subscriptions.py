"""Subscriptions and temporary destinations at their edges: who shares, who replaces, who deletes."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import DestinationKind, topic
from broker_adapter.errors import IllegalStateException, InvalidDestinationException
from broker_adapter.transport import Subscription
from tests.contracts.calls import TEMPORARY, Q, texts
from tests.contracts.transports import WAIT, Client, Engine, eventually

# Subscriptions.


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_has_no_subscriptions(engine: Engine, durable: bool) -> None:
    client = engine.open("me")
    with pytest.raises(InvalidDestinationException, match="cannot subscribe to the queue 'q'"):
        client.receiver(Q, subscription=Subscription("s", durable=durable, shared=not durable))


def test_a_temporary_topic_has_no_durable_subscriptions(engine: Engine) -> None:
    client = engine.open("me")
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    with pytest.raises(InvalidDestinationException, match="temporary"):
        client.receiver(temporary, subscription=Subscription("s", durable=True, shared=False))


def test_a_temporary_topic_may_be_shared(client: Client) -> None:
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    subscription = Subscription("s", durable=False, shared=True)
    receivers = [client.receiver(temporary, 10, subscription=subscription) for _ in range(2)]
    client.send(temporary, *texts(10))

    eventually(lambda: sum(len(each.deliveries) for each in receivers) == 10)
    assert all(each.deliveries for each in receivers)


def test_subscriptions_of_two_clients_are_two(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    receivers = [engine.open(name).receiver(topic("t"), 5, subscription=subscription) for name in ("me", "you")]
    engine.open().send(topic("t"), "news")

    assert [each.wait_for(1)[0].envelope.body for each in receivers] == ["news", "news"]


def test_a_durable_subscription_on_another_topic_is_a_new_one(engine: Engine) -> None:
    client = engine.open("me")
    subscription = Subscription("s", durable=True, shared=False)
    client.transport.detach(client.receiver(topic("t"), subscription=subscription).link, WAIT)
    client.send(topic("t"), "old")
    receiver = client.receiver(topic("u"), 5, subscription=subscription)
    client.send(topic("t"), "old")
    client.send(topic("u"), "new")
    receiver.wait_for(1)
    client.transport.drain(receiver.link, WAIT)

    assert receiver.bodies() == ["new"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_subscription_does_not_change_its_kind(engine: Engine, shared: bool) -> None:
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=shared))
    with pytest.raises(IllegalStateException, match="subscription 's'"):
        client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=not shared))
    client.transport.detach(receiver.link, WAIT)
    with pytest.raises(IllegalStateException, match="subscription 's'"):  # nor while nobody uses it
        client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=not shared))


def test_a_shared_durable_subscription_needs_no_client_id_and_outlives_its_connections(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=True)
    first = engine.open()
    first.receiver(topic("t"), subscription=subscription)
    first.close()
    second = engine.open()
    second.send(topic("t"), "kept")
    receiver = second.receiver(topic("t"), 1, subscription=subscription)
    assert receiver.wait_for(1)[0].envelope.body == "kept"
    with pytest.raises(IllegalStateException):
        engine.open().transport.unsubscribe("s", WAIT)
    second.transport.detach(receiver.link, WAIT)
    with pytest.raises(IllegalStateException, match="holds messages"):
        engine.open().transport.unsubscribe("s", WAIT)
    second.settle(receiver.deliveries)
    second.send("q", "the settlement is there when this is answered")
    engine.open().transport.unsubscribe("s", WAIT)
    with pytest.raises(InvalidDestinationException):
        engine.open().transport.unsubscribe("s", WAIT)


@pytest.mark.parametrize("durable", [True, False])
def test_consumers_of_a_shared_subscription_come_and_go(engine: Engine, durable: bool) -> None:
    client = engine.open()
    subscription = Subscription("s", durable=durable, shared=True)
    receivers = [client.receiver(topic("t"), 100, subscription=subscription) for _ in range(3)]
    for _ in range(3):
        client.transport.detach(receivers.pop(0).link, WAIT)
        receivers.append(client.receiver(topic("t"), 100, subscription=subscription))
    client.send(topic("t"), *texts(30))

    eventually(lambda: sum(len(each.deliveries) for each in receivers) == 30)
    assert all(each.deliveries for each in receivers)
    assert client.events == []


def test_a_durable_subscriber_may_settle_late_what_the_next_one_does_not_get(engine: Engine) -> None:
    client = engine.open("me")
    subscription = Subscription("s", durable=True, shared=False)
    first = client.receiver(topic("t"), 5, subscription=subscription)
    client.send(topic("t"), "a", "b")
    held = first.wait_for(2)
    client.transport.detach(first.link, WAIT)
    second = client.receiver(topic("t"), 5, subscription=subscription)
    client.transport.drain(second.link, WAIT)
    assert second.deliveries == []
    client.settle(held[:1])
    client.settle(held[1:], Outcome.RELEASED)
    client.transport.credit(second.link, 1)

    assert second.wait_for(1)[0].envelope.body == "b"


def test_a_durable_subscriber_that_goes_gives_back_what_it_held(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    receiver = client.receiver(topic("t"), 5, subscription=subscription)
    client.send(topic("t"), "a", "b")
    client.settle(receiver.wait_for(2)[:1])
    eventually(lambda: client.transport.request("statistics", {}, WAIT)["settled"] == 1)
    client.close()
    again = engine.open("me").receiver(topic("t"), 5, subscription=subscription).wait_for(1)

    assert [(each.envelope.body, each.delivery_count) for each in again] == [("b", 1)]


def test_no_local_holds_for_a_durable_subscription_while_its_client_is_away(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=subscription, no_local=True)
    client.transport.detach(receiver.link, WAIT)
    client.send(topic("t"), "mine")
    engine.open().send(topic("t"), "theirs")
    receiver = client.receiver(topic("t"), 5, subscription=subscription, no_local=True)
    receiver.wait_for(1)
    client.transport.drain(receiver.link, WAIT)

    assert receiver.bodies() == ["theirs"]


# Temporary destinations.


def test_temporary_destinations_differ_and_belong_to_their_connection(engine: Engine) -> None:
    owner, other = engine.open(), engine.open()
    names = {
        each.transport.declare_temporary(kind, WAIT).name
        for each in (owner, other)
        for kind in (TEMPORARY, DestinationKind.TEMPORARY_TOPIC)
    }
    assert len(names) == 4
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    with pytest.raises(InvalidDestinationException, match="is no temporary destination of this connection"):
        other.transport.delete_temporary(temporary, WAIT)
    other.send(temporary, "it is still there")


def test_a_temporary_topic_is_deleted_when_it_is_not_in_use(client: Client) -> None:
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    receiver = client.receiver(temporary, 5)
    with pytest.raises(IllegalStateException):
        client.transport.delete_temporary(temporary, WAIT)
    client.transport.detach(receiver.link, WAIT)
    client.transport.delete_temporary(temporary, WAIT)
    with pytest.raises(InvalidDestinationException):
        client.sender(temporary)
