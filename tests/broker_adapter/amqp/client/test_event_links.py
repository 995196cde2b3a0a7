"""A client's link for events against a scripted broker, without sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkFlow, LinkRemoteClose
from broker_adapter.amqp.messages.region_events import (
    EVENTS_ADDRESS,
    EVENTS_CAPABILITY,
    EventsRequest,
    encode_event,
    encode_marker,
    request_of,
)
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    JMSSecurityException,
    MessageFormatException,
    ProtocolException,
    ResourceAllocationException,
    UnsupportedOperationException,
)
from broker_adapter.transport import EventDelivery, EventsSpec, Failed, LinkLost
from tests.broker_adapter.amqp.client.conversations import MESSAGE, attached, foreign
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired


class Events:
    """A link for events, and what has come on it."""

    def __init__(self, wired: Wired, window: int = 10, **fields: Any) -> None:
        self.got: list[EventDelivery] = []
        self.batches: list[int] = []
        self.wired = wired
        spec = EventsSpec(1, fields.pop("timeout_ms", None), window, **fields)
        self.link: int = wired.ask(wired.client.attach_events, spec, self._take)
        self.far = wired.broker.links[attached(wired).name]

    def _take(self, events: Sequence[EventDelivery]) -> None:
        self.got += events
        self.batches.append(len(events))

    def send(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.wired.broker.peer.send(self.far, payload, settled=True)
        self.wired.pump()

    def lost(self) -> list[tuple[int, type[JMSException]]]:
        return [(each.link, type(each.error)) for each in self.wired.events if isinstance(each, LinkLost)]


def event(position: int, key: str = "k") -> bytes:
    return encode_event(position, "r", 0, key, (), (), False, MESSAGE)


def test_the_attach_says_what_is_asked_for_and_gives_the_window_as_credit(wired: Wired) -> None:
    events = Events(wired, 7, timeout_ms=300_000, conflation="true")
    opened = attached(wired)
    assert opened.source is not None
    assert (opened.source.address, opened.source.capabilities) == (EVENTS_ADDRESS, (EVENTS_CAPABILITY,))
    assert opened.presettled
    assert request_of(opened.properties) == EventsRequest(300_000, 7, "true")
    assert wired.broker.peer.remaining_credit(events.far) == 7


def test_events_and_the_marker_come_in_order_and_their_credit_is_given_again(wired: Wired) -> None:
    events = Events(wired, 3)
    events.send(event(1, "a"), event(2, "b"), encode_marker(2))
    events.send(event(9, "c"))
    assert [each.key if each.region else "marker" for each in events.got] == ["a", "b", "marker", "c"]
    assert events.got[0].envelope.body == "hello"
    assert events.batches == [3, 1]
    assert wired.broker.peer.remaining_credit(events.far) == 3
    assert wired.broker.of(LinkFlow)[-1].credit == 3


@pytest.mark.parametrize(
    "sent",
    [
        (b"",),
        (b"\x98",),
        (MESSAGE,),
        (event(5), event(5)),
        (event(5), event(4)),
        (event(5), encode_marker(4)),
    ],
    ids=["nothing", "cut short", "a message", "the same again", "an earlier one", "an earlier marker"],
)
def test_what_is_no_event_or_not_the_next_one_ends_the_link_and_nothing_else(
    wired: Wired, sent: Sequence[bytes]
) -> None:
    events = Events(wired)
    events.send(*sent, event(100))
    assert [each.position for each in events.got] == [5] * (len(sent) - 1)
    assert events.lost() == [(events.link, ProtocolException)]
    (closed,) = wired.broker.of(LinkRemoteClose)
    assert closed.error.condition == "amqp:decode-error"
    events.send()
    again = Events(wired)
    again.send(event(1))
    assert [each.position for each in again.got] == [1]


def test_an_event_larger_than_the_client_takes_ends_the_link() -> None:
    wired = Wired(limits=PeerLimits(max_message_bytes=1_000)).opened()
    events = Events(wired)
    events.send(event(1, "k" * 2_000))
    assert events.got == []
    assert events.lost() == [(events.link, ResourceAllocationException)]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (AmqpError("amqp:invalid-field", "taken", {"invalid-field": "container-id"}), InvalidClientIDException),
        (AmqpError("amqp:unauthorized-access", "no"), JMSSecurityException),
        (AmqpError("amqp:illegal-state", "has one"), IllegalStateException),
    ],
)
def test_a_refusal_arrives_as_what_it_is(wired: Wired, refusal: AmqpError, kind: type[JMSException]) -> None:
    wired.broker.refusals[EVENTS_ADDRESS] = refusal
    with pytest.raises(kind):
        wired.ask(wired.client.attach_events, EventsSpec(1, None, 1), lambda _events: None)
    assert wired.events == []


def test_a_queue_that_is_dropped_is_the_loss_of_the_link(wired: Wired) -> None:
    events = Events(wired)
    wired.broker.peer.close_link(events.far, AmqpError("amqp:resource-limit-exceeded", "too many events"))
    wired.pump()
    assert events.lost() == [(events.link, ResourceAllocationException)]


@pytest.mark.parametrize(
    "asked", [{"window": 0}, {"window": 10_001}, {"timeout_ms": -1}, {"conflation": "never"}], ids=repr
)
def test_what_cannot_be_asked_for_is_not_sent(wired: Wired, asked: dict[str, Any]) -> None:
    spec = EventsSpec(1, **{"timeout_ms": None, "window": 1, **asked})
    with pytest.raises(MessageFormatException):
        wired.client.attach_events(spec, lambda _events: None, Result())


def test_a_link_that_is_detached_gets_nothing_more(wired: Wired) -> None:
    events = Events(wired)
    result = Result()
    wired.broker.peer.send(events.far, event(1), settled=True)  # on its way
    wired.client.detach(events.link, result)
    wired.pump()
    assert result.calls == [(None, None)]
    assert events.got == []
    assert events.lost() == []


def test_the_end_of_the_session_ends_the_link(wired: Wired) -> None:
    events = Events(wired)
    wired.ask(wired.client.end_session, 1)
    assert events.lost() == []
    again = Events(wired)
    wired.broker.peer.end_session(attached(wired).session, AmqpError("amqp:internal-error", "why not"))
    wired.pump()
    assert again.lost() == [(again.link, JMSException)]


def test_a_lost_connection_is_told_to_an_attach_that_waits(wired: Wired) -> None:
    result = Result()
    wired.client.attach_events(EventsSpec(1, None, 1), lambda _events: None, result)
    wired.client.receive_end()
    with pytest.raises(ConnectionLostException):
        _ = result.value
    assert [type(each) for each in wired.events] == [Failed]


def test_another_broker_has_no_regions_and_the_error_says_what_to_do() -> None:
    wired = foreign()
    sayings = "needs a Holdfast server, and this broker is 'other'; connect to a Holdfast server, or to the engine"
    for ask in (
        lambda: wired.ask(wired.client.attach_events, EventsSpec(1, None, 1), lambda _events: None),
        lambda: wired.ask(wired.client.request, "create_region", {}),
    ):
        with pytest.raises(UnsupportedOperationException, match=sayings):
            ask()
    assert attached_links(wired) == 0


def attached_links(wired: Wired) -> int:
    return len(wired.broker.links)


def test_a_server_that_does_not_know_the_link_is_not_taken_for_one_that_does() -> None:
    wired = Wired(_Forgetful()).opened()
    with pytest.raises(UnsupportedOperationException, match="does not send the events"):
        wired.ask(wired.client.attach_events, EventsSpec(1, None, 1), lambda _events: None)


class _Forgetful(ScriptedBroker):
    """Answers an attach without the capabilities of its source."""

    def _attach(self, event: Any) -> None:
        super()._attach(event._replace(source=event.source and event.source._replace(capabilities=())))
