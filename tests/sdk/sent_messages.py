"""Messages as a receiver gets them, for the tests of messages."""

from __future__ import annotations

from ack_modes import DeliveryTag
from broker_adapter import Destination, Identity, pack, unpack
from sdk.messages.envelopes import envelope_of, message_of
from sdk.messages.message import Message

QUEUE = Destination("orders")
IDENTITY = Identity("producer", 1, 7)
TAG = DeliveryTag(0, 1, 1)


def sent(message: Message) -> Message:
    """The message as a consumer gets it."""
    message.destination = QUEUE
    return message_of(unpack(pack(envelope_of(message, IDENTITY))), 0, lambda tag: None, TAG)


def received(message: Message) -> Message:
    """The message as it arrives, without an acknowledgement."""
    message.destination = QUEUE
    return message_of(unpack(pack(envelope_of(message, Identity("p", 1, 1)))), 0)
