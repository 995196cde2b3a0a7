"""Messages of the form that nearly all applications send, written without a call for each value.  Pure.

What repeats in the messages of a producer, its header and annotations but for the sequence, and the name of its
destination, is encoded once.  Whatever is of another form, or has no form at all, is left to
:mod:`broker_adapter.amqp.amqp_message`: the function here returns None for it, and for everything else the same bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

from broker_adapter.amqp.jms_mapping import (
    DUPLICATE_ID,
    MAX_UINT,
    annotations_of,
    duplicate_id,
    encoded_body,
    is_id_form,
)
from broker_adapter.amqp.sections import HEADER, MESSAGE_ANNOTATIONS, check_properties
from broker_adapter.amqp.values import UByte, UInt, compound, encode
from broker_adapter.destination import MAX_NAME_BYTES, Destination, DestinationKind
from broker_adapter.envelope import BodyKind, Envelope, Identity

#: How many headers, annotations and names are kept; longest name of a producer in them, in characters.
_KEPT: Final = 256
_MOST_KEPT: Final = 256
_NULL: Final = b"\x40"
#: Fields ahead of the group in the properties.
_FIELDS: Final = 10
#: Content type and content encoding.
_OCTETS: Final = b"\xa3\x18application/octet-stream" + _NULL
_NO_CONTENT_TYPE: Final = _NULL * 2
_DUPLICATE_ID: Final = encode(DUPLICATE_ID)
_TEXTS: Final = tuple(bytes((0xA1, size)) for size in range(256))  #: what is ahead of a short text, by its size
_PLAIN: Final = frozenset((bool, int, float, type(None)))
_timestamp: Final = struct.Struct(">Bq").pack
_long: Final = struct.Struct(">q").pack
_sized: Final = struct.Struct(">BI").pack


def encoded(envelope: Envelope, *, has_duplicate_id: bool = False) -> bytes | None:
    """See :func:`broker_adapter.amqp.amqp_message.encode_amqp`; None: that has to encode it."""
    # fmt: off
    (
        (name, destination_kind), body_kind, body, properties, message_id, correlation_id, reply_to, message_type,
        sent_at_ms, expires_at_ms, deliver_at_ms, priority, persistent,
        group_id, group_sequence, user_id, identity,
    ) = envelope
    # fmt: on
    if identity is None or sent_at_ms is None or deliver_at_ms is not None or group_sequence is not None:
        return None
    producer_id, thread_id, sequence = identity
    if type(thread_id) is not int or len(producer_id) > _MOST_KEPT or len(name) > MAX_NAME_BYTES:
        return None
    ttl = None
    if expires_at_ms is not None:
        ttl = max(1, expires_at_ms - sent_at_ms)
        if ttl >= MAX_UINT:
            ttl = None
    try:
        reply_kind = None if reply_to is None else reply_to[1]
        kinds = body_kind, destination_kind, reply_kind
        if sequence > 127:
            annotations = _annotations(*kinds, producer_id, thread_id, _A_LONG) + _long(sequence)
        else:
            annotations = _annotations(*kinds, producer_id, thread_id, 0) + bytes((sequence,))
        if user_id is None and message_type is None and reply_to is None:
            addressed = _to(name)
        else:
            addressed = b"".join(
                (
                    _NULL if user_id is None else encode(user_id.encode()),
                    _text(name),
                    _NULL if message_type is None else _text(message_type),
                    _NULL if reply_to is None else _text(reply_to[0]),
                )
            )
        fields = b"".join(
            (
                _id(message_id),
                addressed,
                _NULL if correlation_id is None else _id(correlation_id),
                _OCTETS if body_kind is BodyKind.BYTES else _NO_CONTENT_TYPE,
                _NULL if expires_at_ms is None else _timestamp(0x83, expires_at_ms),
                _timestamp(0x83, sent_at_ms),
                b"" if group_id is None else _text(group_id),
            )
        )
        if type(body) is bytes and body_kind is BodyKind.BYTES:
            size = len(body)
            content = b"\x00\x53\x75" + (bytes((0xA0, size)) if size < 256 else _sized(0xB0, size)) + body
        elif type(body) is str and body_kind is BodyKind.TEXT:
            content = b"\x00\x53\x77" + _text(body)
        else:
            content = encoded_body(body_kind, body)
        return b"".join(
            (
                _header(persistent, priority, ttl),
                annotations,
                b"\x00\x53\x73",
                compound(0xC0, _FIELDS if group_id is None else _FIELDS + 1, fields),
                _application(properties, identity if has_duplicate_id else None),
                content,
            )
        )
    except (ValueError, TypeError, AttributeError, struct.error):
        return None


def _application(properties: dict[str, Any] | None, identity: Identity | None) -> bytes:
    """The section of the application's properties, with the identity for Artemis where it is to be one of them."""
    pairs: list[bytes] = []
    count = 0
    if properties:
        count = len(properties)
        for name, value in properties.items():
            pairs.append(_text(name))
            if type(value) is str:
                pairs.append(_text(value))
            elif type(value) in _PLAIN:
                pairs.append(encode(value))
            else:
                raise ValueError("a value of another type")
    if identity is not None and not (properties and DUPLICATE_ID in properties):
        count += 1
        pairs.append(_DUPLICATE_ID)
        pairs.append(_text(duplicate_id(identity)))
    if not count:
        return b""
    check_properties(count)
    return b"\x00\x53\x74" + compound(0xC1, 2 * count, b"".join(pairs))


def _text(value: str) -> bytes:
    data = value.encode()
    size = len(data)
    return _TEXTS[size] + data if size < 256 else _sized(0xB1, size) + data


def _id(value: str | bytes | None) -> bytes:
    """A message or correlation id."""
    if value is None:
        return _NULL
    if type(value) is str and not is_id_form(value):
        return _text(value)
    if type(value) is bytes:
        return encode(value)
    raise ValueError("an id of another form")


# What is kept.


@lru_cache(maxsize=_KEPT)
def _header(persistent: bool, priority: int, ttl: int | None) -> bytes:
    """The section of the header; nothing where it would say nothing."""
    if not persistent and priority == 4 and ttl is None:
        return b""
    fields = [persistent or None, None if priority == 4 else UByte(priority), None if ttl is None else UInt(ttl)]
    while fields[-1] is None:
        fields.pop()
    return b"\x00\x53" + bytes((HEADER,)) + encode(fields)


#: Some sequence that is written in eight bytes.
_A_LONG: Final = 1 << 32


@lru_cache(maxsize=_KEPT)
def _annotations(
    body_kind: BodyKind,
    destination_kind: DestinationKind,
    reply_kind: DestinationKind | None,
    producer_id: str,
    thread_id: int,
    sequence: int,
) -> bytes:
    """The section of message annotations up to the bytes of the sequence, which is one like this."""
    reply_to = None if reply_kind is None else Destination("", reply_kind)
    like = Envelope(
        Destination("", destination_kind),
        body_kind,
        reply_to=reply_to,
        identity=Identity(producer_id, thread_id, sequence),
    )
    section = b"\x00\x53" + bytes((MESSAGE_ANNOTATIONS,)) + encode(annotations_of(like))
    return section[:-8] if sequence == _A_LONG else section[:-1]


@lru_cache(maxsize=_KEPT)
def _to(name: str) -> bytes:
    """The fields of the properties from the user to the address for answers, where all but the destination are null."""
    return _NULL + _text(name) + _NULL * 2


#: All that keeps something of messages.
KEPT: Final = (_header, _annotations, _to)
