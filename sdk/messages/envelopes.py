"""Converts between messages and the envelopes that are carried and stored.

:func:`envelope_of` copies whatever the application could still change, :func:`message_of` wraps what arrived.
"""

from __future__ import annotations

from typing import Final

from ack_modes import DeliveryTag
from broker_adapter import (
    BodyKind,
    Envelope,
    Identity,
    MessageFormatException,
)
from sdk.messages.message import Acknowledge, DeliveryMode, Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage
from sdk.messages.values import check_correlation_id, check_reply_to, check_text_header


def wrapped(body: object) -> Message:
    """The message itself, or a new one that carries this str, bytes, dict or list.

    Raises:
        MessageFormatException: it is none of these, or holds what a message cannot carry.
    """
    if isinstance(body, Message):
        return body
    if isinstance(body, str):
        return TextMessage(body)
    if isinstance(body, bytes | bytearray | memoryview):
        return BytesMessage(body)
    if isinstance(body, dict):
        return MapMessage(body)
    if isinstance(body, list | tuple):
        return StreamMessage(body)
    raise MessageFormatException(
        f"cannot send a value of type {type(body).__name__}; a message, str, bytes, dict or list can be"
        " sent, and a dict or list may hold numbers, as in {'price': 92.5}"
    )


def envelope_of(message: Message, identity: Identity, *, is_own: bool = False) -> Envelope:
    """Return the message as it is carried: no later change of the message or of its body reaches it.

    Args:
        message: what is sent.
        identity: of its producer, and its number.
        is_own: whether ``wrapped`` has just made it, and so has checked and copied its body already.

    Raises:
        MessageFormatException: a header or the body has a type that a message cannot carry.
        InvalidDestinationException: ``reply_to`` is no destination.
    """
    correlation_id, reply_to, values = message.correlation_id, message.reply_to, message._property_values
    if correlation_id is not None:
        check_correlation_id(correlation_id)
    if reply_to is not None:
        check_reply_to(reply_to)
    message_type, group_id, user_id = message.type, message.group_id, message.user_id
    if message_type is not None:
        check_text_header("type", message_type)
    if group_id is not None:
        check_text_header("group_id", group_id)
    if user_id is not None:
        check_text_header("user_id", user_id)
    sequence = message.group_sequence
    if sequence is not None and (type(sequence) is not int or not 0 <= sequence < 2**32):
        raise MessageFormatException(f"group_sequence={sequence!r} is not an int of 32 bits")
    destination = message.destination
    assert destination is not None
    return _new(
        Envelope,
        (
            destination,
            message.body_kind,
            message._body if is_own else message._body_to_send(),
            dict(values) if values else None,
            message.message_id,
            correlation_id,
            reply_to,
            message_type,
            message.sent_at_ms,
            message.expires_at_ms,
            message.deliver_at_ms,
            message._priority,
            message.delivery_mode is DeliveryMode.PERSISTENT,
            group_id,
            sequence,
            user_id,
            identity,
        ),
    )


_CLASSES: Final[dict[BodyKind, type[Message]]] = {
    BodyKind.NONE: Message,
    BodyKind.OBJECT: ObjectMessage,
    BodyKind.MAP: MapMessage,
    BodyKind.BYTES: BytesMessage,
    BodyKind.STREAM: StreamMessage,
    BodyKind.TEXT: TextMessage,
}


def message_of(
    envelope: Envelope, delivery_count: int, acknowledge: Acknowledge | None = None, tag: DeliveryTag | None = None
) -> Message:
    """The message that arrived in an envelope, read-only.

    Args:
        envelope: what was carried.
        delivery_count: failed deliveries before this one.
        acknowledge: what ``message.acknowledge()`` calls.
        tag: what it passes on.
    """
    kind = envelope[1]
    message = _CLASSES[kind].__new__(_CLASSES[kind])
    # One unpacking into the slots: a third of the time of seventeen assignments.
    (
        message.destination,
        _,
        message._body,
        message._property_values,
        message.message_id,
        message.correlation_id,
        message.reply_to,
        message.type,
        message.sent_at_ms,
        message.expires_at_ms,
        message.deliver_at_ms,
        message._priority,
        persistent,
        message.group_id,
        message.group_sequence,
        message.user_id,
        _,
    ) = envelope
    message.delivery_mode = _PERSISTENT if persistent else _NON_PERSISTENT
    message._delivery_count = delivery_count + 1
    message._body_writable = message._properties_writable = False
    message._acknowledge = acknowledge
    message._tag = tag
    return message


_PERSISTENT, _NON_PERSISTENT = DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT
_new: Final = tuple.__new__  #: what a named tuple calls, without a function of Python
