"""Messages as the payload of a transfer, and back, in each of their forms.  Pure.

The payload's first octet names its format, since proton fixes ``message-format`` to 0 on the wire:

======== ==========================================================================================
``0x00`` a standard AMQP message: each of its sections begins with the constructor of a described type
``0x42`` a batch of messages (:mod:`broker_adapter.amqp.messages.batches`)
``0x48`` a packed envelope (:mod:`broker_adapter.envelope`)
``0xC1`` a delivery from our own server: position, delivery count and annotations, then the message in one of
         the forms above (msgpack never uses this octet)
``0x93`` a request to our own server or its answer: the msgpack head of an array of three
``0x98`` an event of a region, and ``0x91`` the marker: see :mod:`broker_adapter.amqp.messages.region_events`
======== ==========================================================================================

All but the first are used only between our own ends, after both named the capability for it, with the highest version
of packed envelopes that each knows (:mod:`broker_adapter.amqp.wire`); the lower one is spoken.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter import envelope
from broker_adapter.amqp.messages import amqp_message
from broker_adapter.amqp.messages.amqp_message import (
    dead_letter_properties,
    decode_amqp,
    delivery_count_of,
    encode_amqp,
)
from broker_adapter.destination import Destination
from broker_adapter.envelope import (
    AMQP_FORMAT,
    ENVELOPE_FORMAT,
    ENVELOPE_OCTET,
    Envelope,
    Head,
    annotated,
    undecodable_dead_letter,
    unpack,
)
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import unpacked

_MAX_UINT: Final = 0xFFFFFFFF
_OWN: Final = bytes([ENVELOPE_OCTET])


def format_of(payload: bytes) -> int:
    """The format number of a payload.

    Raises:
        MessageFormatException: it is none of ours and no AMQP message.
    """
    first = payload[0] if payload else 0  # a message without any section is an AMQP message
    if first == 0x00:
        return AMQP_FORMAT
    if first == ENVELOPE_OCTET:
        return ENVELOPE_FORMAT
    raise MessageFormatException(f"payload that begins with octet 0x{first:02x} is not a message")


_DELIVERED: Final = struct.Struct(">BQII")


def with_place(position: int, delivery_count: int, annotations: Mapping[str, Any] | None, payload: bytes) -> bytes:
    """A stored message as our own server sends it to our own client: the stored bytes behind a short head."""
    extra = packed_annotations(annotations) if annotations else b""
    return _DELIVERED.pack(0xC1, position, delivery_count & _MAX_UINT, len(extra)) + extra + payload


def packed_annotations(annotations: Mapping[str, Any]) -> bytes:
    """The properties that the engine adds to a message, for ``placed``."""
    packed: bytes = msgpack.packb(dict(annotations))
    return packed


def placed(position: int, delivery_count: int, annotations: bytes, payload: bytes) -> bytes:
    """As ``with_place``, of annotations that are packed already."""
    return _DELIVERED.pack(0xC1, position, delivery_count & _MAX_UINT, len(annotations)) + annotations + payload


class Received(NamedTuple):
    """What a client must know of a message before it is decoded."""

    position: int | None
    delivery_count: int


def received(payload: bytes) -> Received:
    """The place and delivery count of a received message.

    Raises:
        MessageFormatException: the payload is not a message.
    """
    first = payload[0] if payload else 0
    if first == 0xC1:
        try:
            _, position, count, _ = _DELIVERED.unpack_from(payload)
        except struct.error as error:
            raise MessageFormatException(f"delivery of {len(payload)} bytes is cut short") from error
        return Received(position, count)
    if first == 0x00:
        return Received(None, delivery_count_of(payload))
    format_of(payload)
    return Received(None, 0)


def decode_received(payload: bytes, destination: Destination | None = None) -> Envelope:
    """The envelope of a received message, in whichever form it is.

    Args:
        payload: the transfer's payload.
        destination: where it was received from; used where the message itself does not say.

    Returns:
        It; of a dead letter that cannot be decoded, the bytes of the message as a bytes message.

    Raises:
        MessageFormatException: the payload cannot be decoded, and is no dead letter.
    """
    if payload[:1] == _OWN:  # the usual case, ahead of everything else
        return unpack(payload)
    if payload[:1] != b"\xc1":
        try:
            return decode_payload(payload, destination)
        except MessageFormatException as error:
            if payload[:1] != b"\x00":
                raise
            return undecodable_dead_letter(payload, dead_letter_properties(payload), error, destination)
    try:
        size = _DELIVERED.unpack_from(payload)[3]
        start = _DELIVERED.size + size
        annotations = unpacked(payload[_DELIVERED.size : start]) if size else None
    except (struct.error, ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"the head of the delivery cannot be decoded: {error}") from error
    if not isinstance(annotations, dict):
        return decode_payload(payload[start:], destination)
    try:
        return annotated(decode_payload(payload[start:], destination), annotations)
    except MessageFormatException as error:
        return undecodable_dead_letter(payload[start:], annotations, error, destination)


def stored_part(payload: bytes) -> bytes:
    """The stored message of what came from our own server; what is no such delivery is the message itself."""
    if payload[:1] != b"\xc1" or len(payload) < _DELIVERED.size:
        return payload
    return payload[_DELIVERED.size + _DELIVERED.unpack_from(payload)[3] :]


def decode_payload(payload: bytes, destination: Destination | None = None) -> Envelope:
    """The envelope of a stored message of either format.  See ``decode_received``."""
    return decode_amqp(payload, destination) if format_of(payload) == AMQP_FORMAT else unpack(payload)


def as_amqp(format: int, payload: bytes) -> bytes:
    """A stored message as standard AMQP, for a receiver that does not speak our envelope."""
    return payload if format == AMQP_FORMAT else encode_amqp(unpack(payload))


def read_head(payload: bytes, now_ms: int) -> Head:
    """Return what routes a message that came in, in whichever form; no destination where an AMQP message names none.

    Args:
        payload: of it only the parts ahead of the application's are decoded.
        now_ms: the time it came in, milliseconds since the epoch; a time-to-live counts from it.

    Raises:
        MessageFormatException: these parts cannot be decoded.
    """
    if payload[:1] == _OWN:  # the usual case, ahead of everything else
        return envelope.read_head(payload)
    is_amqp = format_of(payload) == AMQP_FORMAT
    return amqp_message.read_head(payload, now_ms) if is_amqp else envelope.read_head(payload)
