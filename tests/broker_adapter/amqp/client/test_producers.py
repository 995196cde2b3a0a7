"""A client's producers against a scripted broker, without sockets."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import REJECTED, RELEASED_STATE, State
from broker_adapter.amqp.messages.values import Described, Symbol
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
)
from broker_adapter.transport import SenderSpec
from tests.broker_adapter.amqp.client.conversations import BODY, QUEUE, attached, receiver, sender
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired


@pytest.mark.parametrize(
    ("destination", "capability"),
    [
        (queue("n"), "queue"),
        (topic("n"), "topic"),
        (queue("n")._replace(kind=DestinationKind.TEMPORARY_QUEUE), "temporary-queue"),
    ],
)
def test_a_producers_target_has_address_and_capability(wired: Wired, destination: Any, capability: str) -> None:
    sender(wired, destination=destination)

    target = attached(wired).target
    assert target is not None
    assert (target.address, target.capabilities) == ("n", (capability,))


def test_an_anonymous_producer_has_a_target_without_address(wired: Wired) -> None:
    sender(wired, destination=None)

    target = attached(wired).target
    assert target is not None
    assert (target.address, target.capabilities) == (None, ())


def test_a_temporary_destination_that_the_broker_will_not_delete_raises(wired: Wired) -> None:
    destination = wired.ask(wired.client.declare_temporary, DestinationKind.TEMPORARY_QUEUE)
    wired.broker.closes_links = False
    done = Result()
    wired.client.delete_temporary(destination, done)
    wired.pump()
    wired.broker.peer.close_link(attached(wired).link, AmqpError("amqp:illegal-state", "it is consumed elsewhere"))
    wired.pump()

    with pytest.raises(IllegalStateException, match="consumed elsewhere"):
        _ = done.value


def test_temporary_destinations_are_named_by_the_broker_and_deleted_with_their_link(wired: Wired) -> None:
    destination = wired.ask(wired.client.declare_temporary, DestinationKind.TEMPORARY_TOPIC)
    opened = attached(wired)

    assert (destination.name, destination.kind) == ("temporary-1", DestinationKind.TEMPORARY_TOPIC)
    assert opened.target is not None
    assert opened.target.dynamic
    assert opened.target.dynamic_properties == {Symbol("lifetime-policy"): Described(0x2B, [])}
    consumer = receiver(wired, destination=destination)
    with pytest.raises(IllegalStateException, match="a consumer uses it"):
        wired.ask(wired.client.delete_temporary, destination)
    wired.ask(wired.client.detach, consumer)
    wired.ask(wired.client.delete_temporary, destination)
    with pytest.raises(InvalidDestinationException):
        wired.ask(wired.client.delete_temporary, destination)


def test_sends_are_answered_in_their_order_whatever_the_brokers(wired: Wired) -> None:
    wired.broker.accepts = False
    link = sender(wired)
    answered: list[tuple[int, Any]] = []

    def note(index: int, error: JMSException | None) -> None:
        answered.append((index, error))

    for index in range(4):
        wired.client.send_all([(link, BODY, partial(note, index))])
    wired.pump()
    held = wired.broker.held
    wired.broker.settle(*held[2])
    wired.broker.settle(*held[1], State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "full")))
    wired.pump()
    assert answered == []
    wired.broker.settle(*held[0])
    wired.pump()
    assert [index for index, _ in answered] == [0, 1, 2]
    wired.broker.settle(*held[3], RELEASED_STATE)
    wired.pump()

    assert [type(error) for _, error in answered] == [type(None), ResourceAllocationException, type(None), JMSException]
    assert wired.sends_done == 4


def test_sends_wait_for_credit(wired: Wired) -> None:
    wired.broker.credit = 2
    link = sender(wired)
    answered: list[Any] = []
    for _ in range(5):
        wired.client.send_all([(link, BODY, answered.append)])
    wired.pump()
    assert answered == [None, None]
    wired.broker.peer.credit(attached(wired).link, 10)
    wired.pump()

    assert answered == [None] * 5


def test_the_brokers_greatest_message_is_told_with_the_link() -> None:
    broker = ScriptedBroker()
    broker.max_message_bytes = 4_000
    wired = Wired(broker).opened()

    assert wired.ask(wired.client.attach_sender, SenderSpec(1, QUEUE))[1] == 4_000
