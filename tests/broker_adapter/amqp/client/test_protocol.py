"""The client's protocol against a scripted broker, without sockets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.amqp_message import encode_amqp
from broker_adapter.amqp.client.protocol import Phase
from broker_adapter.amqp.client.requests import MAX_REQUESTS
from broker_adapter.amqp.client.subscriptions import MAX_SOURCES
from broker_adapter.amqp.conditions import IN_DOUBT, AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.management import Answer, pack_answer, unpack_request
from broker_adapter.amqp.payloads import with_place
from broker_adapter.amqp.peer import PeerLimits
from broker_adapter.amqp.values import Described, Symbol
from broker_adapter.amqp.wire import COMMIT_ID, MANAGEMENT_ADDRESS
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import ENVELOPE_VERSION, BodyKind, Envelope, pack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    ProtocolException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Delivery, Failed, LinkLost, ReceiverSpec, SenderSpec, Subscription
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired
from tests.broker_adapter.amqp.frames import transfer

QUEUE = queue("q")
BODY = b"\xdcpayload"
MESSAGE = pack(Envelope(QUEUE, BodyKind.TEXT, "hello"))


@pytest.fixture
def wired() -> Wired:
    """An open connection to a broker that says it is ours."""
    return Wired().opened()


def sender(wired: Wired, session: int = 1, destination: Any = QUEUE) -> int:
    """A producer's link."""
    link: int
    link, _ = wired.ask(wired.client.attach_sender, SenderSpec(session, destination))
    return link


def receiver(wired: Wired, sink: Any = None, session: int = 1, **spec: Any) -> int:
    """A consumer's link."""
    spec = {"destination": QUEUE, **spec}
    link: int = wired.ask(
        wired.client.attach_receiver, ReceiverSpec(session, **spec), sink or (lambda _deliveries: None)
    )
    return link


def attached(wired: Wired) -> LinkRemoteOpen:
    """The last link that the client attached."""
    opened: LinkRemoteOpen = wired.broker.of(LinkRemoteOpen)[-1]
    return opened


# The connection.


def test_open_says_who_we_are_and_what_we_want(wired: Wired) -> None:
    (opened,) = wired.broker.of(RemoteOpen)

    assert (opened.container_id, opened.hostname) == ("client-1", "host")
    assert opened.properties == {"product": "Holdfast", "version": "1"}
    assert "jms" not in opened.properties["product"].lower()
    assert opened.desired_capabilities == {
        "sole-connection-for-container",
        "ANONYMOUS-RELAY",
        "DELAYED_DELIVERY",
        "SHARED-SUBS",
        "HOLDFAST-ENVELOPE",
        f"HOLDFAST-ENVELOPE-{ENVELOPE_VERSION}",
    }


def test_open_tells_what_the_broker_is() -> None:
    result = Result()
    wired = Wired(ScriptedBroker(holdfast=False))
    wired.client.open(result)
    wired.pump()

    assert (result.value.product, result.value.is_holdfast, result.value.client_id) == ("other", False, "client-1")
    assert wired.client.envelope_version == result.value.envelope_version == 0
    assert Wired().opened().client.envelope_version == ENVELOPE_VERSION
    assert Wired(envelope=False).opened().client.envelope_version == 0


@pytest.mark.parametrize(("known", "spoken"), [(1, 1), (2, 2), (3, 2), (9999, 2)])
def test_the_lower_version_of_the_envelope_is_spoken(known: int, spoken: int) -> None:
    assert ENVELOPE_VERSION == 2
    broker = ScriptedBroker()
    broker.envelope_version = known
    assert Wired(broker).opened().client.envelope_version == spoken


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (AmqpError("amqp:invalid-field", "in use", {"invalid-field": "container-id"}), InvalidClientIDException),
        (AmqpError("amqp:unauthorized-access", "no"), JMSSecurityException),
        (AmqpError("amqp:resource-limit-exceeded", "full"), ResourceAllocationException),
    ],
)
@pytest.mark.parametrize("said", [True, "true"])
def test_a_refused_open_raises_the_reason(error: AmqpError, cls: type[JMSException], said: object) -> None:
    broker = ScriptedBroker(properties={"amqp:connection-establishment-failed": said})
    broker.open_error = error
    wired = Wired(broker)
    result = Result()
    wired.client.open(result)
    wired.pump()

    with pytest.raises(cls):
        _ = result.value
    assert wired.events == []
    assert wired.client.phase is Phase.CLOSED


def test_close_is_answered_and_legal_twice(wired: Wired) -> None:
    assert wired.ask(wired.client.close) is None
    assert wired.ask(wired.client.close) is None
    assert wired.events == []
    assert wired.client.output_closed


def test_a_lost_connection_fails_everything_that_waits_once(wired: Wired) -> None:
    wired.broker.accepts = False
    wired.broker.answers_drain = False
    wired.broker.credit = 1
    link, consumer = sender(wired), receiver(wired)
    sends: list[Any] = []
    results = [Result() for _ in range(5)]
    wired.client.send(link, BODY, sends.append)
    wired.client.send(link, BODY, sends.append)
    wired.client.credit(consumer, 5)
    wired.pump()
    wired.client.drain(consumer, results[0])
    wired.client.request("x", {}, results[1])
    wired.client.attach_sender(SenderSpec(1, queue("other")), results[2])
    wired.client.unsubscribe("sub", results[3])
    wired.client.end_session(9, results[4])
    wired.client.receive_end()

    assert results[4].value is None
    for result in results[:4]:
        with pytest.raises(ConnectionLostException):
            _ = result.value
    assert [type(error) for error in sends] == [ConnectionLostException] * 2
    assert wired.sends_done == 2
    assert [type(event) for event in wired.events] == [Failed]
    late: list[Any] = []
    wired.client.send(link, BODY, late.append)
    assert [type(error) for error in late] == [ConnectionLostException]
    assert wired.sends_done == 3


def test_a_connection_closed_by_the_broker_tells_the_reason(wired: Wired) -> None:
    wired.broker.peer.close(AmqpError("amqp:connection:forced", "maintenance"))
    wired.pump()

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert str(event.error) == "maintenance [amqp:connection:forced]"
    assert isinstance(event.error, ConnectionLostException)


def test_garbage_from_the_broker_fails_the_connection(wired: Wired) -> None:
    wired.client.receive(b"\xff" * 100)

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert isinstance(event.error, ProtocolException)


def test_a_silent_broker_is_taken_for_lost() -> None:
    wired = Wired(limits=PeerLimits(idle_timeout_ms=1_000)).opened()
    wired.client.tick(1)
    wired.client.tick(1_002)

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert event.error.reason == "the broker was silent for 1 s"


# Links.


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


@pytest.mark.parametrize(
    ("has_client_id", "durable", "shared", "names", "capabilities"),
    [
        (True, True, False, ["sub"], ("topic",)),
        (True, True, True, ["sub", "sub|2", "sub|3"], ("topic", "shared")),
        (False, True, True, ["sub|global", "sub|global2"], ("topic", "shared", "global")),
        (True, False, True, ["sub|volatile1", "sub|volatile2"], ("topic", "shared")),
        (False, False, True, ["sub|global-volatile1", "sub|global-volatile2"], ("topic", "shared", "global")),
    ],
)
def test_subscriptions_have_the_link_names_that_brokers_know(
    has_client_id: bool, durable: bool, shared: bool, names: list[str], capabilities: tuple[str, ...]
) -> None:
    wired = Wired(has_client_id=has_client_id).opened()
    for name in names:
        receiver(wired, destination=topic("t"), subscription=Subscription("sub", durable, shared))
        opened = attached(wired)
        assert opened.name == name
        assert opened.source is not None
        assert opened.source.capabilities == capabilities
        assert (opened.source.durable, opened.source.expiry) == ((2, "never") if durable else (0, "link-detach"))


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


def test_a_link_that_both_sides_close_at_once_is_closed(wired: Wired) -> None:
    link = sender(wired)
    far = attached(wired).link
    done = Result()
    wired.client.detach(link, done)
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()

    assert done.value is None
    assert wired.events == []


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
    with pytest.raises(IllegalStateException, match="in use"):
        wired.ask(wired.client.unsubscribe, "sub")
    wired.ask(wired.client.detach, link)
    wired.broker.refusals.clear()
    wired.ask(wired.client.unsubscribe, "sub")


@pytest.mark.parametrize(
    ("condition", "cls"),
    [
        ("amqp:not-found", InvalidDestinationException),
        ("amqp:unauthorized-access", JMSSecurityException),
        ("vendor:odd", InvalidDestinationException),
    ],
)
def test_refused_links_raise_the_reason(wired: Wired, condition: str, cls: type[JMSException]) -> None:
    wired.broker.refusals["q"] = AmqpError(condition, "because")

    for attach in (sender, receiver):
        with pytest.raises(cls, match="because"):
            attach(wired)
    assert wired.events == []


def test_a_link_that_nobody_waits_for_any_more_is_detached(wired: Wired) -> None:
    for call, spec in (
        (wired.client.attach_sender, (SenderSpec(1, QUEUE),)),
        (wired.client.attach_receiver, (ReceiverSpec(1, QUEUE), lambda _deliveries: None)),
        (wired.client.declare_temporary, (DestinationKind.TEMPORARY_QUEUE,)),
    ):
        before = len(wired.broker.of(LinkRemoteClose))
        call(*spec, Result(waits=False))  # type: ignore[operator]
        wired.pump()
        assert len(wired.broker.of(LinkRemoteClose)) == before + 1


def test_a_link_closed_by_the_broker_is_told_and_its_sends_fail(wired: Wired) -> None:
    wired.broker.accepts = False
    link, consumer = sender(wired), receiver(wired)
    sends: list[Any] = []
    wired.client.send(link, BODY, sends.append)
    wired.pump()
    for far in (wired.broker.by_address["q"], wired.broker.held[0][0]):
        wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "the queue is gone"))
    wired.pump()

    assert [(event.link, type(event.error)) for event in wired.events if isinstance(event, LinkLost)] == [
        (consumer, InvalidDestinationException),
        (link, InvalidDestinationException),
    ]
    assert [str(error) for error in sends] == ["the queue is gone [amqp:resource-deleted]"]


def test_a_session_ended_by_the_broker_loses_its_links_and_is_begun_anew(wired: Wired) -> None:
    link = sender(wired)
    wired.broker.peer.end_session(attached(wired).session, AmqpError("amqp:resource-limit-exceeded", "too much"))
    wired.pump()

    (lost,) = wired.events
    assert isinstance(lost, LinkLost)
    assert (lost.link, type(lost.error)) == (link, ResourceAllocationException)
    assert sender(wired) != link


@pytest.mark.parametrize("ends", [False, True])
def test_a_link_that_the_broker_attaches_is_refused_unless_it_is_gone_already(wired: Wired, ends: bool) -> None:
    sender(wired)
    far = attached(wired).session
    wired.broker.peer.attach_sender(far, "from the broker", Terminus("a"), Terminus("b"))
    if ends:
        wired.broker.peer.end_session(far, None)
    wired.pump()

    refused = [event.error for event in wired.broker.of(LinkRemoteClose)]
    assert refused == ([] if ends else [AmqpError("amqp:not-allowed", "a broker attaches no link here", {})])
    assert sender(wired)


def test_sessions_of_the_port_have_sessions_of_their_own(wired: Wired) -> None:
    sender(wired, session=1)
    first = attached(wired).session
    sender(wired, session=2)
    second = attached(wired).session
    sender(wired, session=1)

    assert attached(wired).session == first != second
    wired.ask(wired.client.end_session, 1)
    assert wired.broker.of(SessionRemoteClose)[-1].session == first
    wired.ask(wired.client.end_session, 1)


def test_temporary_destinations_are_named_by_the_broker_and_deleted_with_their_link(wired: Wired) -> None:
    destination = wired.ask(wired.client.declare_temporary, DestinationKind.TEMPORARY_TOPIC)
    opened = attached(wired)

    assert (destination.name, destination.kind) == ("temporary-1", DestinationKind.TEMPORARY_TOPIC)
    assert opened.target is not None
    assert opened.target.dynamic
    assert opened.target.dynamic_properties == {Symbol("lifetime-policy"): Described(0x2B, [])}
    consumer = receiver(wired, destination=destination)
    with pytest.raises(IllegalStateException, match="has a consumer"):
        wired.ask(wired.client.delete_temporary, destination)
    wired.ask(wired.client.detach, consumer)
    wired.ask(wired.client.delete_temporary, destination)
    with pytest.raises(InvalidDestinationException):
        wired.ask(wired.client.delete_temporary, destination)


# Messages that come in.


def deliver(wired: Wired, *payloads: bytes) -> None:
    """The broker sends on its last consumer's link."""
    for payload in payloads:
        wired.broker.peer.send(wired.broker.by_address["q"], payload)
    wired.pump()


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


def test_what_is_no_message_is_rejected_and_its_credit_given_again(wired: Wired) -> None:
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


def test_settlements_reach_the_broker_in_order_and_ranges(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 10)
    wired.pump()
    deliver(wired, *[MESSAGE] * 5)
    outcomes = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.MODIFIED, Outcome.RELEASED, Outcome.REJECTED]
    wired.client.settle([Settlement(each.tag, outcome) for each, outcome in zip(got, outcomes, strict=True)])
    wired.client.settle([Settlement(got[0].tag, Outcome.ACCEPTED)])
    wired.client.settle([Settlement(got[0].tag._replace(epoch=7, number=1), Outcome.ACCEPTED)])
    wired.pump()

    states = {number: event.state for event in wired.broker.of(Dispositions) for number in event.numbers}
    numbers = sorted(states)
    assert [states[number] for number in numbers] == [
        ACCEPTED_STATE,
        ACCEPTED_STATE,
        FAILED_STATE,
        RELEASED_STATE,
        State(REJECTED),
    ]


def test_drain_ends_with_the_credit(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.ask(wired.client.drain, link)  # there is no credit: nothing to wait for
    wired.client.credit(link, 5)
    wired.ask(wired.client.drain, link)
    with pytest.raises(IllegalStateException):
        wired.ask(wired.client.drain, 12_345)


def test_drain_ends_too_when_the_broker_uses_up_the_credit(wired: Wired) -> None:
    wired.broker.answers_drain = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 2)
    drained = Result()
    wired.client.drain(link, drained)
    wired.pump()
    assert drained.pending
    deliver(wired, MESSAGE)
    assert drained.pending
    deliver(wired, MESSAGE)

    assert drained.value is True
    assert len(got) == 2


def test_a_drain_ends_behind_all_messages_that_come_with_its_end(wired: Wired) -> None:
    wired.broker.answers_drain = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    other = receiver(wired, destination=queue("other"))
    far, far_other = wired.broker.by_address["q"], wired.broker.by_address["other"]
    wired.client.credit(link, 3)
    wired.client.credit(other, 2)
    wired.pump()
    then: list[int] = []

    def drained(_result: Any, _error: Any) -> bool:
        then.append(len(got))
        return True

    wired.client.drain(link, drained)
    wired.pump()
    for each in (far, far_other, far, far_other, far):
        wired.broker.peer.send(each, MESSAGE)
    wired.pump()
    assert then == [3]


def test_an_unreadable_message_gives_no_new_credit_during_a_drain(wired: Wired) -> None:
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 1)
    drained = Result()
    wired.client.drain(link, drained)
    wired.pump()
    deliver(wired, b"no message")
    assert drained.value is True


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


# Messages that go out.


def test_sends_are_answered_in_their_order_whatever_the_brokers(wired: Wired) -> None:
    wired.broker.accepts = False
    link = sender(wired)
    answered: list[tuple[int, Any]] = []
    for index in range(4):
        wired.client.send(link, BODY, lambda error, index=index: answered.append((index, error)))  # type: ignore[misc]
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
        wired.client.send(link, BODY, answered.append)
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


# Transactions.


def held_delivery(wired: Wired) -> Delivery:
    """A delivery that is not settled."""
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 1)
    wired.pump()
    deliver(wired, MESSAGE)
    return got[0]


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_commit_does_sends_and_settlements_in_one_transaction(holdfast: bool) -> None:
    wired = Wired(ScriptedBroker(holdfast=holdfast)).opened()
    delivery, link = held_delivery(wired), sender(wired)
    settlements = [Settlement(delivery.tag, Outcome.ACCEPTED)]
    wired.ask(wired.client.commit, 1, 7, [(link, BODY)] * 3, settlements)

    transaction = State(TRANSACTIONAL, txn_id=b"%036d" % 1)
    sent = [each for event in wired.broker.of(Transfers) for each in event.deliveries if each.payload == BODY]
    assert [each.state for each in sent] == [transaction] * 3
    assert wired.broker.of(Dispositions)[-1].state == transaction._replace(outcome=ACCEPTED_STATE)
    assert wired.broker.discharges == [(False, {COMMIT_ID: ["prefix:1", 7]})]
    assert wired.broker.next_txn == 3  # the next transaction is declared already
    assert wired.sends_done == 0


def test_commits_follow_each_other_also_when_handed_over_together(wired: Wired) -> None:
    link = sender(wired)
    results = [Result() for _ in range(3)]
    for number, result in enumerate(results):
        wired.client.commit(1, number, [(link, BODY)], [], result)
    wired.pump()

    assert [result.value for result in results] == [None] * 3
    assert [annotations[COMMIT_ID][1] for _, annotations in wired.broker.discharges] == [0, 1, 2]


def test_a_commit_larger_than_the_credit_waits_for_more(wired: Wired) -> None:
    wired.broker.credit = 10
    link = sender(wired)
    far = attached(wired).link
    result = Result()
    wired.client.commit(1, 1, [(link, BODY)] * 25, [], result)
    wired.pump()
    assert result.pending
    assert wired.broker.discharges == []
    for _ in range(2):
        wired.broker.peer.credit(far, 10)
        wired.pump()

    assert result.value is None


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_refused_commit_is_rolled_back(holdfast: bool) -> None:
    broker = ScriptedBroker(holdfast=holdfast)
    broker.discharge_outcome = State(REJECTED, error=AmqpError("amqp:transaction:rollback", "a message was refused"))
    wired = Wired(broker).opened()

    with pytest.raises(TransactionRolledBackException, match="a message was refused"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)], [])


def test_a_message_refused_in_a_transaction_rolls_it_back() -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()
    wired.broker.accepts = False
    link = sender(wired)
    result = Result()
    wired.client.commit(1, 1, [(link, BODY)], [], result)
    wired.pump()
    assert result.pending
    wired.broker.settle(*wired.broker.held[0], State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "full")))
    wired.pump()

    with pytest.raises(TransactionRolledBackException, match="full") as caught:
        _ = result.value
    assert isinstance(caught.value.__cause__, ResourceAllocationException)
    assert wired.broker.discharges[0][0] is True
    wired.broker.accepts = True
    wired.ask(wired.client.commit, 1, 2, [(link, BODY)], [])


def test_a_commit_with_a_stale_delivery_or_a_closed_link_sends_nothing(wired: Wired) -> None:
    delivery, link = held_delivery(wired), sender(wired)
    stale = [
        ([], [Settlement(delivery.tag._replace(epoch=3), Outcome.ACCEPTED)]),
        ([], [Settlement(delivery.tag._replace(number=99), Outcome.ACCEPTED)]),
        ([(12_345, BODY)], []),
    ]
    for sends, settlements in stale:
        with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
            wired.ask(wired.client.commit, 1, 1, [*sends, (link, BODY)], settlements)
    assert wired.broker.discharges == []


def test_a_commit_whose_discharge_was_on_its_way_is_in_doubt(wired: Wired) -> None:
    link = sender(wired)
    wired.ask(wired.client.commit, 1, 1, [], [])
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.client.pending_output()
    wired.client.receive_end()

    with pytest.raises(TransactionInDoubtException):
        _ = result.value


def test_a_commit_that_had_not_come_to_its_discharge_was_not_done(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    wired.client.receive_end()

    with pytest.raises(ConnectionLostException):
        _ = result.value


def test_a_link_lost_during_a_commit_rolls_it_back(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    far = attached(wired).link
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()
    wired.broker.peer.credit(wired.broker.links["holdfast:coordinator:client-1:2:None"], 10)
    wired.pump()

    with pytest.raises(TransactionRolledBackException, match="gone"):
        _ = result.value


def test_the_others_of_a_commit_are_not_committed_where_a_link_is_lost_with_the_last_message(wired: Wired) -> None:
    """Nothing is committed without what was never sent."""
    ready = sender(wired)
    wired.broker.credit = 0
    starved = sender(wired)
    far = attached(wired).link
    wired.broker.credit = 100
    result = Result()
    wired.client.commit(1, 2, [(ready, BODY), (starved, BODY)], [], result)
    wired.pump()
    assert (result.pending, wired.broker.discharges) == (True, [])
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="gone"):
        _ = result.value
    assert [fails for fails, _ in wired.broker.discharges] == [True]


@pytest.mark.parametrize("holdfast", [True, False])
def test_a_discharge_is_behind_all_parts_of_large_messages(holdfast: bool) -> None:
    wired = Wired(ScriptedBroker(holdfast=holdfast)).opened()
    links = [sender(wired), sender(wired)]
    seen: list[int] = []
    coordinate = wired.broker._coordinate

    def count(on: int, delivery: Any) -> None:
        messages = [each for each in wired.broker.of(Transfers) if each.link not in wired.broker.coordinators]
        seen.append(sum(len(each.deliveries) for each in messages))
        coordinate(on, delivery)

    wired.broker._coordinate = count  # type: ignore[method-assign]
    large = b"\x00\x53\x75\xb0" + (400_000).to_bytes(4, "big") + bytes(400_000)
    sends = [(links[number % 2], large if number in (1, 2, 5) else BODY) for number in range(6)]
    result = Result()
    wired.client.commit(1, 2, sends, [], result)
    wired.pump()
    assert result.value is None
    assert seen[:2] == [0, 6], "all of them came between the declare and the discharge"


def test_a_large_message_that_is_refused_half_way_rolls_its_transaction_back(wired: Wired) -> None:
    link = sender(wired)
    far = attached(wired).link
    large = b"\x00\x53\x75\xb0" + (4_000_000).to_bytes(4, "big") + bytes(4_000_000)
    result = Result()
    wired.client.commit(1, 2, [(link, BODY), (link, large)], [], result)
    while not wired.broker.peer.unfinished_bytes:
        wired.broker.peer.receive(wired.client.pending_output(10_000))
        wired.broker.handle()
        wired.client.receive(wired.broker.peer.pending_output())
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-limit-exceeded", "too large"))
    wired.client.receive(wired.broker.peer.pending_output())
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="too large"):
        _ = result.value
    assert [fails for fails, _ in wired.broker.discharges] == [True]


@pytest.mark.parametrize("what", ["session", "link", "closed by us"])
def test_a_commit_whose_discharge_was_sent_is_in_doubt_where_its_coordinator_goes(wired: Wired, what: str) -> None:
    link = sender(wired)
    far = attached(wired).session
    wired.pump()
    result = Result()
    coordinate, seen = wired.broker._coordinate, []

    def coordinate_and_end(on: int, delivery: Any) -> None:
        seen.append(delivery)
        if len(seen) == 1:
            coordinate(on, delivery)
        elif what == "session":
            wired.broker.peer.end_session(far, AmqpError("amqp:internal-error", "the session is gone"))
        elif what == "link":
            wired.broker.peer.close_link(on, AmqpError("amqp:internal-error", "the coordinator is gone"))

    wired.broker._coordinate = coordinate_and_end  # type: ignore[method-assign]
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    if what == "closed by us":
        wired.client.end_session(1, Result())
        wired.pump()
    assert len(seen) >= 2
    with pytest.raises(TransactionInDoubtException, match=r"is gone|is closed"):
        _ = result.value


def test_a_broker_that_commits_without_a_message_that_it_refused_leaves_a_doubt() -> None:
    wired = Wired(ScriptedBroker(holdfast=True)).opened()
    wired.broker.accepts = False
    coordinate = wired.broker._coordinate

    def refuse_and_commit(on: int, delivery: Any) -> None:
        while wired.broker.held:
            full = State(REJECTED, error=AmqpError("amqp:resource-limit-exceeded", "full"))
            wired.broker.settle(*wired.broker.held.pop(), full)
        coordinate(on, delivery)

    wired.broker._coordinate = refuse_and_commit  # type: ignore[method-assign]
    with pytest.raises(TransactionInDoubtException, match=r"full.*; and it committed the others"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)] * 2, [])


def test_a_commit_whose_discharge_was_sent_is_in_doubt_though_its_producers_link_goes_too() -> None:
    """That the link's messages have no answer does not say that they are no part of the transaction."""
    wired = Wired(ScriptedBroker(holdfast=True)).opened()
    link = sender(wired)
    far = attached(wired).link
    coordinate, seen = wired.broker._coordinate, []

    def coordinate_and_close(on: int, delivery: Any) -> None:
        seen.append(delivery)
        if len(seen) == 1:
            coordinate(on, delivery)
        else:  # of the discharge nothing is heard
            wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "the queue was deleted"))

    wired.broker.accepts = False
    wired.broker._coordinate = coordinate_and_close  # type: ignore[method-assign]
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)], [], result)
    wired.pump()
    assert len(seen) >= 2
    wired.client.receive_end()
    with pytest.raises(TransactionInDoubtException):
        _ = result.value


def test_what_a_store_that_failed_says_of_a_commit_is_a_doubt() -> None:
    broker = ScriptedBroker(holdfast=True)
    broker.discharge_outcome = State(REJECTED, error=AmqpError(IN_DOUBT, "the store failed"))
    wired = Wired(broker).opened()
    with pytest.raises(TransactionInDoubtException, match="the store failed"):
        wired.ask(wired.client.commit, 1, 1, [(sender(wired), BODY)], [])


@pytest.mark.parametrize("sends", [1, 5])
def test_a_session_that_ends_as_its_transaction_is_declared_ends_nothing_else(wired: Wired, sends: int) -> None:
    """Both come in one read: the link is gone before the client has heard of it."""
    link = sender(wired)
    far = attached(wired).session
    wired.pump()
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * sends, [], result)
    declare = wired.broker._coordinate

    def declare_and_end(on: int, delivery: Any) -> None:
        declare(on, delivery)
        wired.broker.peer.end_session(far, AmqpError("amqp:internal-error", "the session is gone"))

    wired.broker._coordinate = declare_and_end  # type: ignore[method-assign]
    wired.pump()
    wired.broker._coordinate = declare  # type: ignore[method-assign]
    with pytest.raises(TransactionRolledBackException, match="the session is gone"):
        _ = result.value
    other = sender(wired, session=7)
    sent: list[JMSException | None] = []
    wired.client.send(other, BODY, sent.append)
    wired.pump()
    assert sent == [None]


def test_a_coordinator_closed_by_the_broker_rolls_back_and_is_attached_anew(wired: Wired) -> None:
    wired.broker.credit = 1
    link = sender(wired)
    wired.broker.credit = 100
    result = Result()
    wired.client.commit(1, 2, [(link, BODY)] * 5, [], result)
    wired.pump()
    (coordinator,) = wired.broker.coordinators
    wired.broker.peer.close_link(coordinator, AmqpError("amqp:transaction:timeout", "too slow"))
    wired.pump()
    with pytest.raises(TransactionRolledBackException, match="too slow"):
        _ = result.value

    other = sender(wired)
    wired.ask(wired.client.commit, 1, 3, [(other, BODY)], [])
    assert len(wired.broker.coordinators) == 2


def test_a_broker_without_transactions_says_so() -> None:
    broker = ScriptedBroker(holdfast=False)
    broker.refusals[None] = AmqpError("amqp:not-implemented", "no transactions here")
    wired = Wired(broker).opened()

    with pytest.raises(TransactionRolledBackException, match="no transactions here"):
        wired.ask(wired.client.commit, 1, 1, [], [])


# Requests.


class Manager:
    """Answers requests at the broker's management node."""

    def __init__(self, wired: Wired) -> None:
        self._wired = wired

    def requests(self) -> list[Any]:
        """All requests so far."""
        return [unpack_request(each.payload) for _, each in self._wired.broker.held]

    def answer(self, answer: Answer) -> None:
        """Send an answer."""
        peer = self._wired.broker.peer
        (link,) = [
            event.link
            for event in self._wired.broker.of(LinkRemoteOpen)
            if event.is_sender and event.source == Terminus(MANAGEMENT_ADDRESS, expiry="session-end")
        ]
        peer.send(link, pack_answer(answer))
        self._wired.pump()


def test_requests_are_answered_by_number(wired: Wired) -> None:
    wired.broker.accepts = False
    manager = Manager(wired)
    first, second = Result(), Result()
    wired.client.request("one", {"a": 1}, first)
    wired.client.request("two", {}, second)
    wired.pump()

    assert [(each.operation, each.arguments) for each in manager.requests()] == [("one", {"a": 1}), ("two", {})]
    manager.answer(Answer(2, ("InvalidDestinationException", "no such queue", "amqp:not-found"), None))
    manager.answer(Answer(1, None, {"depth": 3}))
    manager.answer(Answer(77, None, None))
    assert first.value == {"depth": 3}
    with pytest.raises(InvalidDestinationException, match="no such queue"):
        _ = second.value


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.MODIFIED, Outcome.FAILED])
def test_credit_comes_after_what_was_given_back_before_it(wired: Wired, outcome: Outcome) -> None:
    """proton writes flows ahead of dispositions: the broker would send what is later before what comes back."""
    wired.broker.accepts = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 3)
    wired.pump()
    for _ in range(3):
        wired.broker.peer.send(wired.broker.by_address["q"], MESSAGE)
    wired.pump()
    before = len(wired.broker.log)
    wired.client.settle([Settlement(delivery.tag, outcome) for delivery in got])
    wired.client.credit(link, 3)
    wired.pump()

    happened = [event for event in wired.broker.log[before:] if isinstance(event, Dispositions | LinkFlow)]
    assert [type(event) for event in happened] == [Dispositions, LinkFlow]


def test_a_request_comes_after_what_was_settled_before_it(wired: Wired) -> None:
    """proton writes transfers ahead of dispositions where both are to be written."""
    wired.broker.accepts = False
    Manager(wired)
    wired.client.request("first", {}, Result())  # attaches the links
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 3)
    wired.pump()
    far = wired.broker.by_address["q"]
    for _ in range(3):
        wired.broker.peer.send(far, MESSAGE)
    wired.pump()
    before = len(wired.broker.log)
    for number, delivery in enumerate(got):
        wired.client.settle([Settlement(delivery.tag, Outcome.ACCEPTED)])
        wired.client.request(str(number), {}, Result())
    wired.pump()

    happened = [event for event in wired.broker.log[before:] if isinstance(event, Dispositions | Transfers)]
    assert [type(event) for event in happened] == [Dispositions, Transfers] * 3


def test_requests_need_our_own_server() -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()

    with pytest.raises(JMSException, match="needs a Holdfast server; this broker is 'other'"):
        wired.ask(wired.client.request, "one", {})


def test_requests_that_wait_have_a_limit(wired: Wired) -> None:
    wired.broker.accepts = False
    waiting = [Result() for _ in range(MAX_REQUESTS)]
    for each in waiting:
        wired.client.request("x", {}, each)
    with pytest.raises(ResourceAllocationException, match="that is the limit"):
        wired.ask(wired.client.request, "x", {})
    assert all(each.pending for each in waiting)


def test_a_lost_management_link_fails_the_requests_that_wait(wired: Wired) -> None:
    wired.broker.refusals[MANAGEMENT_ADDRESS] = AmqpError("amqp:unauthorized-access", "not for you")

    with pytest.raises(JMSSecurityException, match="not for you"):
        wired.ask(wired.client.request, "x", {})


# Hostile brokers: callbacks, or one failure; never another error.


def busy(wired: Wired, feed: Any) -> None:
    """A client that does everything once; ``feed`` carries bytes."""
    results = [Result() for _ in range(9)]
    got: list[Delivery] = []
    answers: list[Any] = []
    client = wired.client
    client.open(results[0])
    feed()
    for step in (
        lambda: client.attach_sender(SenderSpec(1, QUEUE), results[1]),
        lambda: client.attach_receiver(ReceiverSpec(1, QUEUE, selector="a = 1"), got.extend, results[2]),
        lambda: client.credit(results[2].calls[0][0], 9),
        lambda: client.send(results[1].calls[0][0][0], BODY, answers.append),
        lambda: client.settle([Settlement(each.tag, Outcome.ACCEPTED) for each in got]),
        lambda: client.commit(1, 1, [(results[1].calls[0][0][0], BODY)], [], results[3]),
        lambda: client.drain(results[2].calls[0][0], results[4]),
        lambda: client.declare_temporary(DestinationKind.TEMPORARY_QUEUE, results[5]),
        lambda: client.unsubscribe("sub", results[6]),
        lambda: client.detach(results[2].calls[0][0], results[7]),
        lambda: client.close(results[8]),
    ):
        if client.phase is not Phase.OPEN:
            break
        try:
            step()
        except (IndexError, TypeError):
            continue  # what the step builds on was damaged
        feed()
    client.receive_end()
    assert client.phase is Phase.CLOSED
    assert all(len(result.calls) <= 1 for result in results)
    assert len([event for event in wired.events if isinstance(event, Failed)]) <= 1


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_answers_give_callbacks_or_one_failure(data: st.DataObject) -> None:
    wired = Wired()

    def feed() -> None:
        for _ in range(8):
            sent = wired.client.pending_output()
            if sent:
                wired.broker.peer.receive(sent)
            wired.broker.handle()
            answer = bytearray(wired.broker.peer.pending_output())
            if not answer and not sent:
                return
            if answer and data.draw(st.integers(0, 4)) == 0:
                where = data.draw(st.integers(0, len(answer) - 1))
                answer[where] = data.draw(st.integers(0, 255))
            wired.client.receive(bytes(answer))

    busy(wired, feed)


def test_a_commit_that_is_withdrawn_before_its_discharge_is_never_done(wired: Wired) -> None:
    wired.broker.credit = 2
    link = sender(wired)
    far = attached(wired).link
    wired.broker.credit = 100  # of the coordinator
    first, second = Result(waits=False), Result(waits=False)
    wired.client.commit(1, 1, [(link, BODY)] * 5, [], first)
    wired.client.commit(1, 2, [(link, BODY)], [], second)
    wired.pump()
    assert first.pending
    assert wired.ask(wired.client.withdraw, 1, 2) is False, "it was not begun"
    assert wired.ask(wired.client.withdraw, 1, 1) is False, "a part of it was sent"
    wired.broker.peer.credit(far, 10)
    wired.pump()
    assert [(fails, annotations[COMMIT_ID][1]) for fails, annotations in wired.broker.discharges] == [(True, 1)]
    with pytest.raises(TransactionRolledBackException):
        _ = first.value
    assert wired.ask(wired.client.commit, 1, 3, [(link, BODY)], []) is None


def test_a_commit_that_was_discharged_cannot_be_withdrawn(wired: Wired) -> None:
    link = sender(wired)
    result = Result(waits=False)
    wired.client.commit(1, 1, [(link, BODY)], [], result)
    assert wired.ask(wired.client.withdraw, 2, 1) is None, "of another session"
    wired.pump()
    assert wired.ask(wired.client.withdraw, 1, 1) is True
    discharge = wired.broker.peer.settle
    wired.broker.peer.settle = lambda *_arguments: None  # type: ignore[method-assign]
    late = Result(waits=False)
    wired.client.commit(1, 2, [(link, BODY)], [], late)
    wired.pump()
    assert late.pending
    assert wired.ask(wired.client.withdraw, 1, 2) is None
    wired.broker.peer.settle = discharge  # type: ignore[method-assign]


def test_a_repeated_commit_is_answered_without_the_broker(wired: Wired) -> None:
    link = sender(wired)
    wired.ask(lambda done: wired.client.commit(1, 7, [(link, BODY)], [], done))
    discharges = len(wired.broker.discharges)
    for number in (7, 6):
        wired.ask(lambda done, number=number: wired.client.commit(1, number, [(link, BODY)], [], done))
    assert len(wired.broker.discharges) == discharges
    wired.ask(lambda done: wired.client.commit(2, 7, [(link, BODY)], [], done))

    assert len(wired.broker.discharges) == discharges + 1


def test_a_commit_that_was_rolled_back_may_be_done_again(wired: Wired) -> None:
    link = sender(wired)
    wired.broker.discharge_outcome = State(REJECTED, error=AmqpError("amqp:transaction:rollback", "no"))
    with pytest.raises(TransactionRolledBackException):
        wired.ask(lambda done: wired.client.commit(1, 1, [(link, BODY)], [], done))
    wired.broker.discharge_outcome = ACCEPTED_STATE
    wired.ask(lambda done: wired.client.commit(1, 1, [(link, BODY)], [], done))

    assert len(wired.broker.discharges) == 2


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


def test_our_own_server_is_known_also_where_our_own_format_is_not_used() -> None:
    wired = Wired(envelope=False)
    result = Result()
    wired.client.open(result)
    wired.pump()

    assert result.value.is_holdfast
    assert wired.client.envelope_version == 0


# Brokers that are not ours.


RABBITMQ_3 = {"product": "RabbitMQ", "version": "3.10.8"}


def foreign(**fields: Any) -> Wired:
    """An open connection to a broker that is not ours."""
    return Wired(ScriptedBroker(holdfast=False, **fields)).opened()


def delivered(wired: Wired, link: int, inbox: list[Delivery], count: int) -> list[Settlement]:
    """Have the broker send so many messages on the last link; returns how to accept them."""
    far = wired.broker.links[attached(wired).name]
    wired.client.credit(link, count)
    wired.pump()
    for _ in range(count):
        wired.broker.peer.send(far, encode_amqp(Envelope(QUEUE)))
    wired.pump()
    return [Settlement(delivery.tag, Outcome.ACCEPTED) for delivery in inbox[-count:]]


def test_a_consumer_is_detached_from_another_broker_when_all_it_got_is_settled() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    first, second = delivered(wired, link, inbox, 2)
    wired.ask(wired.client.detach, link)
    assert not wired.broker.of(LinkRemoteClose)
    wired.client.settle([first])
    wired.pump()
    assert not wired.broker.of(LinkRemoteClose)
    wired.client.settle([second])
    wired.pump()
    assert [type(event) for event in wired.broker.log[-2:]] == [Dispositions, LinkRemoteClose]


def test_what_still_comes_to_a_consumer_that_leaves_is_released() -> None:
    wired = foreign()
    wired.broker.answers_drain = False
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    (settlement,) = delivered(wired, link, inbox, 1)
    wired.client.credit(link, 1)
    wired.ask(wired.client.detach, link)
    wired.broker.peer.send(wired.broker.links[attached(wired).name], encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    assert len(inbox) == 1
    wired.client.settle([settlement])
    wired.pump()
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_a_subscription_is_in_use_until_its_consumer_has_left() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    spec: dict[str, Any] = {"destination": topic("t"), "subscription": Subscription("s", durable=True, shared=False)}
    link = receiver(wired, inbox.extend, **spec)
    settlements = delivered(wired, link, inbox, 1)
    wired.ask(wired.client.detach, link)
    with pytest.raises(IllegalStateException, match="in use"):
        receiver(wired, **spec)
    wired.client.settle(settlements)
    wired.pump()
    (closed,) = wired.broker.of(LinkRemoteClose)
    assert not closed.closed
    receiver(wired, **spec)


def test_the_end_of_a_session_ends_the_consumers_that_are_leaving() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    settlements = delivered(wired, link, inbox, 1)
    wired.ask(wired.client.detach, link)
    wired.ask(wired.client.end_session, 1)
    wired.client.settle(settlements)
    wired.pump()
    assert len(wired.broker.of(SessionRemoteClose)) == 1


def draining() -> tuple[Wired, int, int]:
    """A consumer whose drain has no answer yet: the connection, its link here and there."""
    wired = foreign()
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 10)
    wired.client.drain(link, Result())
    wired.pump()
    return wired, link, wired.broker.links[attached(wired).name]


def test_a_consumer_is_detached_from_another_broker_when_its_drain_is_answered() -> None:
    """Artemis answers a drain whose link or session has ended on a channel that there is not."""
    wired, link, far = draining()
    detached = Result()
    wired.client.detach(link, detached)
    wired.pump()
    assert detached.pending
    assert not wired.broker.of(LinkRemoteClose)
    wired.broker.peer.drained(far)
    wired.pump()
    assert detached.value is None
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_a_session_is_ended_at_another_broker_when_its_drains_are_answered() -> None:
    wired, link, far = draining()
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.end_session(1, ended)
    wired.pump()
    assert detached.value is None, "it goes with its session"
    assert ended.pending
    assert not wired.broker.of(SessionRemoteClose)
    wired.broker.peer.send(far, encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    wired.broker.peer.drained(far)
    wired.pump()
    assert ended.value is None
    assert len(wired.broker.of(SessionRemoteClose)) == 1


def test_a_drain_whose_credit_is_used_up_needs_no_answer() -> None:
    wired, _, far = draining()
    ended = Result()
    wired.client.end_session(1, ended)
    for _ in range(10):
        wired.broker.peer.send(far, encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert ended.value is None


@pytest.mark.parametrize("what", ["link", "session"])
def test_a_drain_of_what_the_broker_closes_itself_is_not_waited_for(what: str) -> None:
    wired, link, far = draining()
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    if what == "link":
        wired.broker.peer.close_link(far)
        wired.pump()
        assert detached.value is None
        wired.client.end_session(1, ended)
    else:
        wired.client.end_session(1, ended)
        wired.broker.peer.end_session(wired.broker.of(LinkRemoteOpen)[0].session)
    wired.pump()
    assert ended.value is None


def test_a_broker_that_does_not_answer_a_drain_is_waited_for_two_seconds() -> None:
    wired, link, _ = draining()
    wired.client.tick(10_000)
    wired.client.drain(link, Result())  # asked again: still since the first time
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.end_session(1, ended)
    wired.client.tick(10_001)
    wired.pump()
    assert not ended.pending


def test_a_drain_that_was_asked_for_just_now_is_waited_for_until_two_seconds_have_passed() -> None:
    wired = Wired(ScriptedBroker(holdfast=False))
    wired.client.tick(10_000)  # as a connection does when it is made
    wired.opened()
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 10)
    wired.client.drain(link, Result())
    detached = Result()
    wired.client.detach(link, detached)
    wired.client.tick(11_999)
    wired.pump()
    assert detached.pending
    wired.client.tick(12_000)
    wired.pump()
    assert detached.value is None


def test_those_who_wait_for_a_drain_are_told_when_the_connection_is_lost() -> None:
    wired, link, _ = draining()
    other = receiver(wired, destination=queue("other"))
    wired.client.credit(other, 10)
    wired.client.drain(other, Result())
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.fail(ConnectionLostException("gone"))
    wired.client.end_session(1, ended)
    assert isinstance(detached.calls[0][1], ConnectionLostException)


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
    with pytest.raises(JMSException, match="would hand messages out for good"):
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
def test_rabbitmq_3_is_not_asked_for_what_it_only_pretends_to_do(spec: dict[str, Any]) -> None:
    wired = foreign(properties=RABBITMQ_3)
    with pytest.raises(JMSException, match="RabbitMQ 3"):
        receiver(wired, **spec)
    assert not wired.broker.of(LinkRemoteOpen)


def test_rabbitmq_3_is_neither_drained_nor_told_that_a_delivery_was_modified() -> None:
    wired = foreign(properties=RABBITMQ_3)
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    (settlement,) = delivered(wired, link, inbox, 1)
    assert wired.ask(wired.client.drain, link) is False
    wired.client.settle([Settlement(settlement.tag, Outcome.MODIFIED)])
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    assert not any(event.drain for event in wired.broker.of(LinkFlow))


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


def test_only_so_many_sources_of_subscriptions_are_remembered() -> None:
    wired = Wired(ScriptedBroker(holdfast=False), has_client_id=False).opened()
    for number in range(MAX_SOURCES + 1):
        subscription = Subscription(str(number), durable=True, shared=True)
        link = receiver(wired, destination=topic("t"), subscription=subscription)
        wired.ask(wired.client.detach, link)
    for name, source in (("1", "t"), ("0", None)):
        wired.ask(wired.client.unsubscribe, name)
        found = attached(wired).source
        assert (None if found is None else found.address) == source


# Prefixes of addresses.


@pytest.mark.parametrize(
    ("wanted", "offered"), [("q/", None), (None, "q/"), ("q/", "other/")], ids=["option", "broker", "option first"]
)
def test_queues_have_the_prefix_that_the_user_or_the_broker_wants(wanted: str | None, offered: str | None) -> None:
    properties = {} if offered is None else {"queue-prefix": offered}
    wired = Wired(ScriptedBroker(holdfast=False, properties=properties), queue_prefix=wanted).opened()
    inbox: list[Delivery] = []
    sender(wired)
    target = attached(wired).target
    assert target is not None
    assert target.address == "q/q"
    link = receiver(wired, inbox.extend)
    far = wired.broker.links[attached(wired).name]
    wired.client.credit(link, 2)
    wired.pump()
    for body in (Envelope(queue("q/q"), reply_to=queue("q/answers")), Envelope(topic("t"))):
        wired.broker.peer.send(far, encode_amqp(body))
    wired.pump()
    assert [each.envelope.destination for each in inbox] == [QUEUE, topic("t")]
    assert inbox[0].envelope.reply_to == queue("answers")


# Conversations, frame by frame.


def test_a_transaction_is_a_declare_then_all_of_it_then_a_discharge() -> None:
    wired = foreign()
    wired.broker.expect(RemoteOpen, SessionRemoteOpen)
    link = sender(wired)
    inbox: list[Delivery] = []
    consumer = receiver(wired, inbox.extend)
    wired.broker.expect(SessionRemoteOpen, LinkRemoteOpen, LinkRemoteOpen)
    (settlement,) = delivered(wired, consumer, inbox, 1)
    wired.ask(wired.client.commit, 1, 1, [(link, MESSAGE)], [settlement])
    wired.broker.expect(
        (LinkRemoteOpen, lambda event: event.target.coordinator),
        Transfers,  # the declare
        (Dispositions, lambda event: event.state.code == TRANSACTIONAL),
        (Transfers, lambda event: event.deliveries[0].state.code == TRANSACTIONAL),
        Transfers,  # the discharge, and the declare of the next one
    )


def test_what_was_not_expected_is_shown_beside_what_was() -> None:
    wired = foreign()
    with pytest.raises(AssertionError) as caught:
        wired.broker.expect(RemoteOpen, Transfers, LinkRemoteOpen)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[1].split()[0] == "RemoteOpen"
    assert "SessionRemoteOpen" in lines[2]
    assert lines[3].endswith("(nothing)")


def test_closing_a_session_and_the_connection_says_goodbye_in_order() -> None:
    wired = foreign()
    sender(wired)
    wired.broker.expect(RemoteOpen, SessionRemoteOpen, SessionRemoteOpen, LinkRemoteOpen)
    wired.ask(wired.client.end_session, 1)
    wired.broker.expect(SessionRemoteClose)
    wired.client.close(Result())
    wired.pump()
    wired.broker.expect(RemoteClose)
