"""What happens to all kinds of a client's links, against a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteClose, Terminus
from broker_adapter.destination import DestinationKind
from broker_adapter.errors import InvalidDestinationException, JMSException, JMSSecurityException
from broker_adapter.transport import LinkLost, ReceiverSpec, SenderSpec
from tests.broker_adapter.amqp.client.conversations import BODY, QUEUE, attached, receiver, sender
from tests.broker_adapter.amqp.client.scripted_broker import Result, Wired


def test_a_link_that_both_sides_close_at_once_is_closed(wired: Wired) -> None:
    link = sender(wired)
    far = attached(wired).link
    done = Result()
    wired.client.detach(link, done)
    wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "gone"))
    wired.pump()

    assert done.value is None
    assert wired.events == []


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


def test_a_link_that_no_call_waits_for_any_more_is_detached(wired: Wired) -> None:
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
    wired.client.send_all([(link, BODY, sends.append)])
    wired.pump()
    for far in (wired.broker.by_address["q"], wired.broker.held[0][0]):
        wired.broker.peer.close_link(far, AmqpError("amqp:resource-deleted", "the queue is gone"))
    wired.pump()

    assert [(event.link, type(event.error)) for event in wired.events if isinstance(event, LinkLost)] == [
        (consumer, InvalidDestinationException),
        (link, InvalidDestinationException),
    ]
    assert [str(error) for error in sends] == ["the queue is gone [amqp:resource-deleted]"]


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
