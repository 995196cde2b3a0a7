"""What the tests of the client send to a scripted broker, and receive from it."""

from __future__ import annotations

from typing import Any

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.events import LinkRemoteOpen
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.transport import Delivery, ReceiverSpec, SenderSpec
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker, Wired

QUEUE = queue("q")
BODY = b"\xdcpayload"
MESSAGE = pack(Envelope(QUEUE, BodyKind.TEXT, "hello"))
RABBITMQ_3 = {"product": "RabbitMQ", "version": "3.10.8"}


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


def deliver(wired: Wired, *payloads: bytes) -> None:
    """The broker sends on its last consumer's link."""
    for payload in payloads:
        wired.broker.peer.send(wired.broker.by_address["q"], payload)
    wired.pump()


def held_delivery(wired: Wired) -> Delivery:
    """A delivery that is not settled."""
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 1)
    wired.pump()
    deliver(wired, MESSAGE)
    return got[0]


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
