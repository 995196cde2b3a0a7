"""A client's consumers and browsers against a scripted broker, without sockets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    RELEASED_STATE,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
)
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.messages.payloads import with_place
from broker_adapter.amqp.messages.values import Described, Symbol
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import Envelope
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    ResourceAllocationException,
    UnsupportedOperationException,
)
from broker_adapter.transport import Delivery, LinkLost, ReceiverSpec, Subscription
from tests.broker_adapter.amqp.client.conversations import (
    MESSAGE,
    QUEUE,
    attached,
    deliver,
    foreign,
    receiver,
)
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired
from tests.broker_adapter.amqp.frames import transfer


def test_a_consumers_source_carries_selector_and_no_local(wired: Wired) -> None:
    receiver(wired, selector="a = 1", no_local=True)

    opened = attached(wired)
    assert opened.source is not None
    assert opened.source.filters == {
        Symbol("jms-selector"): Described(0x0000468C00000004, "a = 1"),
        Symbol("no-local"): Described(0x0000468C00000003, "NoLocalFilter{}"),
    }
    assert (opened.source.expiry, opened.source.durable, opened.presettled) == ("link-detach", 0, False)


def test_a_selector_that_the_broker_does_not_confirm_raises() -> None:
    broker = ScriptedBroker()
    broker.echo_filters = False
    wired = Wired(broker).opened()

    with pytest.raises(InvalidSelectorException, match="does not apply the selector 'a = 1'"):
        receiver(wired, selector="a = 1")
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_a_browser_copies_and_is_settled_by_the_sender(wired: Wired) -> None:
    receiver(wired, browse=True)

    opened = attached(wired)
    assert opened.presettled
    assert opened.source is not None
    assert opened.source.copies


def test_a_subscription_name_with_a_bar_is_refused(wired: Wired) -> None:
    with pytest.raises(InvalidDestinationException, match=r"has a '\|'"):
        receiver(wired, destination=topic("t"), subscription=Subscription("a|b", True, False))


def test_detaching_a_durable_consumer_keeps_its_subscription(wired: Wired) -> None:
    durable = receiver(wired, destination=topic("t"), subscription=Subscription("sub", True, False))
    plain = receiver(wired)
    wired.ask(wired.client.detach, durable)
    wired.ask(wired.client.detach, plain)
    wired.ask(wired.client.detach, 12_345)

    assert [event.closed for event in wired.broker.of(LinkRemoteClose)] == [False, True]


def test_unsubscribe_finds_the_subscription_by_its_name_and_closes_it(wired: Wired) -> None:
    wired.ask(wired.client.unsubscribe, "sub")

    assert (attached(wired).name, attached(wired).source) == ("sub", None)
    assert wired.broker.of(LinkRemoteClose)[-1].closed
    wired = Wired(has_client_id=False).opened()
    wired.ask(wired.client.unsubscribe, "sub")
    assert attached(wired).name == "sub|global"


def test_unsubscribe_refuses_what_is_unknown_or_in_use(wired: Wired) -> None:
    wired.broker.refusals[None] = AmqpError("amqp:not-found", "no subscription")
    with pytest.raises(InvalidDestinationException, match="no subscription"):
        wired.ask(wired.client.unsubscribe, "sub")
    link = receiver(wired, destination=topic("t"), subscription=Subscription("sub", True, False))
    with pytest.raises(IllegalStateException, match="a consumer uses it"):
        wired.ask(wired.client.unsubscribe, "sub")
    wired.ask(wired.client.detach, link)
    wired.broker.refusals.clear()
    wired.ask(wired.client.unsubscribe, "sub")


def test_deliveries_come_in_one_list_with_place_and_count(wired: Wired) -> None:
    got: list[list[Delivery]] = []
    link = receiver(wired, lambda deliveries: got.append(list(deliveries)))
    wired.client.credit(link, 10)
    wired.pump()
    deliver(wired, with_place(5, 0, None, MESSAGE), with_place(6, 2, {"why": "x"}, MESSAGE))

    ((first, second),) = got
    assert (first.position, first.delivery_count, second.position, second.delivery_count) == (5, 0, 6, 2)
    assert first.tag[:2] == (0, link)
    assert first.envelope.body == "hello"
    assert second.envelope.properties == {"why": "x"}


def test_messages_of_other_brokers_are_standard_amqp(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 10)
    wired.pump()
    deliver(wired, b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x40\x43\x00\x53\x77\xa1\x02hi", encode_amqp(Envelope(QUEUE)))

    assert [(each.position, each.delivery_count) for each in got] == [(None, 0), (None, 0)]
    assert got[0].envelope.body == "hi"
    assert got[0].envelope.destination == QUEUE


def test_what_is_no_message_is_rejected_and_its_credit_is_replaced(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 1)
    wired.pump()
    deliver(wired, b"junk")

    assert got == []
    assert wired.broker.of(Dispositions)[-1].state.code == REJECTED
    assert wired.broker.of(LinkFlow)[-1].credit == 1


def test_a_message_above_the_limit_is_rejected_and_its_consumer_told() -> None:
    """What came behind it is not to blame: the broker delivers it again, when the consumer is attached again."""
    wired = Wired(limits=PeerLimits(max_message_bytes=1_000)).opened()
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 10)
    wired.pump()
    far = wired.broker.by_address["q"]
    numbers = [wired.broker.peer.send(far, payload) for payload in (MESSAGE, b"\xdc" * 1_001, MESSAGE, MESSAGE)]
    wired.pump()

    (lost,) = [event for event in wired.events if isinstance(event, LinkLost)]
    assert lost.link == link
    assert isinstance(lost.error, ResourceAllocationException)
    assert "larger than the limit" in lost.error.reason
    states = {number: event.state for event in wired.broker.of(Dispositions) for number in event.numbers}
    assert states[numbers[1]].code == REJECTED
    assert [states[number] for number in numbers[2:]] == [RELEASED_STATE] * 2
    assert len(got) == 1
    wired.client.settle([Settlement(got[0].tag, Outcome.ACCEPTED)])
    wired.pump()
    assert wired.broker.of(Dispositions)[-1] == Dispositions(far, [numbers[0]], ACCEPTED_STATE)
    assert receiver(wired) != link


def test_a_message_that_the_broker_gives_up_uses_up_no_credit(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 2)
    wired.pump()
    for number in range(5):
        wired.client.receive(transfer(1, 0, number, b"t", b"part", more=True))
        wired.client.receive(transfer(1, 0, None, None, b"", aborted=True))
        wired.pump()
    wired.client.receive(transfer(1, 0, 5, b"t", MESSAGE))

    assert len(got) == 1
    assert wired.broker.of(LinkFlow)[-1].credit == 7


def test_messages_for_a_consumer_on_its_way_out_are_released(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 2)
    wired.pump()
    far = wired.broker.by_address["q"]
    wired.broker.peer.send(far, MESSAGE)
    done = Result()
    wired.client.detach(link, done)
    wired.pump()

    assert got == []
    assert done.value is None
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE


@pytest.mark.parametrize(
    ("destination", "fields", "reason"),
    [
        (topic("t"), {"browse": True}, "cannot browse 't': it is a topic"),
        (queue("q"), {"subscription": Subscription("s", True, False)}, "cannot subscribe to the queue 'q'"),
        (
            Destination("t", DestinationKind.TEMPORARY_TOPIC),
            {"subscription": Subscription("s", True, False)},
            "cannot have a durable subscription",
        ),
        (topic("t"), {"subscription": Subscription("a|b", True, False)}, "has a '|'"),
    ],
)
def test_a_receiver_that_a_broker_might_take_for_something_else_is_refused_here(
    wired: Wired, destination: Destination, fields: dict[str, Any], reason: str
) -> None:
    attaches = len(wired.broker.of(LinkRemoteOpen))
    with pytest.raises(InvalidDestinationException, match=re.escape(reason)):
        wired.ask(lambda done: wired.client.attach_receiver(ReceiverSpec(1, destination, **fields), print, done))

    assert len(wired.broker.of(LinkRemoteOpen)) == attaches


def test_what_a_broker_does_not_offer_is_refused_before_it_is_asked_for() -> None:
    wired = foreign(offered=())
    with pytest.raises(JMSException, match="does not offer shared subscriptions"):
        receiver(wired, destination=topic("t"), subscription=Subscription("s", durable=False, shared=True))
    with pytest.raises(JMSException, match="exclusive consumers need a Holdfast server"):
        receiver(wired, exclusive=True)
    assert not wired.broker.of(LinkRemoteOpen)


def test_a_broker_that_would_take_what_is_browsed_is_left() -> None:
    wired = foreign()
    wired.broker.confirms_copies = False
    with pytest.raises(JMSException, match="would deliver the messages and not only show them"):
        receiver(wired, browse=True)
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_an_exclusive_consumer_is_asked_for_by_a_capability_of_the_source(wired: Wired) -> None:
    receiver(wired, exclusive=True)
    source = attached(wired).source
    assert source is not None
    assert source.capabilities == ("queue", "HOLDFAST-EXCLUSIVE")


@pytest.mark.parametrize(
    "spec",
    [
        {"selector": "a = 1"},
        {"no_local": True},
        {"browse": True},
        {"destination": topic("t"), "subscription": Subscription("s", durable=True, shared=False)},
    ],
    ids=["selector", "no_local", "browse", "durable"],
)
def test_rabbitmq_is_not_asked_for_what_it_only_pretends_to_do(spec: dict[str, Any]) -> None:
    wired = foreign(properties={"product": "RabbitMQ", "version": "4.0.5"})
    with pytest.raises(JMSException, match=r"RabbitMQ 4\.0\.5 was not seen to"):
        receiver(wired, **spec)
    assert not wired.broker.of(LinkRemoteOpen)


def test_a_subscription_that_rabbitmq_cannot_have_is_not_deleted_there_either() -> None:
    """RabbitMQ 4 answered the attach without a source with the end of the session and a trace of Erlang."""
    wired = foreign(properties={"product": "RabbitMQ", "version": "4.0.5"})
    with pytest.raises(UnsupportedOperationException, match="was not seen to keep subscriptions, such as 's'"):
        wired.ask(wired.client.unsubscribe, "s")
    assert not wired.broker.of(LinkRemoteOpen)


def test_a_subscription_of_no_client_is_deleted_at_another_broker_by_its_source() -> None:
    wired = Wired(ScriptedBroker(holdfast=False), has_client_id=False).opened()
    link = receiver(wired, destination=topic("t"), subscription=Subscription("s", durable=True, shared=True))
    wired.ask(wired.client.detach, link)
    wired.ask(wired.client.unsubscribe, "s")
    source = attached(wired).source
    assert source is not None
    assert (attached(wired).name, source.address) == ("s|global", "t")
    assert source.capabilities == ("topic", "shared", "global")
    assert wired.broker.of(LinkRemoteClose)[-1].closed
