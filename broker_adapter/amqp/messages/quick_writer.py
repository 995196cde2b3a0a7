"""Messages of the form that nearly all applications send, written without a call for each value.  Pure.

What repeats in the messages of a producer, its header and annotations but for the sequence, and the name of its
destination, is encoded once.  Whatever is of another form, or has no form at all, is left to
:mod:`broker_adapter.amqp.messages.amqp_message`: the function here returns None for it, and for everything else the
same bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

from broker_adapter.amqp.messages.jms_mapping import (
    DUPLICATE_ID,
    MAX_UINT,
    annotations_of,
    duplicate_id,
    encoded_body,
    is_id_form,
)
from broker_adapter.amqp.messages.sections import HEADER, MESSAGE_ANNOTATIONS, check_properties
from broker_adapter.amqp.messages.values import UByte, UInt, compound, encode
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
#: What is ahead of properties with the usual fields, by the size that their list says.
_SHORT_PROPERTIES: Final = tuple(b"\x00\x53\x73" + bytes((0xC0, size, _FIELDS)) for size in range(256))
#: Correlation id, address for answers, type, expiry, group and user of a message that has none of them.
_NO_OTHERS: Final = (None,) * 6
#: Type code of an instant.
_TIMESTAMP: Final = 0x83
_timestamp: Final = struct.Struct(">Bq").pack
_long: Final = struct.Struct(">q").pack
_sized: Final = struct.Struct(">BI").pack


def encoded(envelope: Envelope, *, has_duplicate_id: bool = False) -> bytes | None:
    """See :func:`broker_adapter.amqp.messages.amqp_message.encode_amqp`; None: that has to encode it."""
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
    others = correlation_id, reply_to, message_type, expires_at_ms, group_id, user_id
    try:
        if others == _NO_OTHERS and sequence > 127 and type(message_id) is str and not is_id_form(message_id):
            # All but the sequence, the message id and the time of sending repeats.
            ahead, behind_id = _repeated(envelope[0], body_kind, persistent, priority, producer_id, thread_id)
            ahead += _long(sequence)
            fields = _text(message_id) + behind_id + _long(sent_at_ms)
            count = _FIELDS
        else:
            reply_kind = None if reply_to is None else reply_to[1]
            kinds = body_kind, destination_kind, reply_kind
            if sequence > 127:
                annotations = _annotations(*kinds, producer_id, thread_id, _A_LONG) + _long(sequence)
            else:
                annotations = _annotations(*kinds, producer_id, thread_id, 0) + bytes((sequence,))
            ttl = None
            if expires_at_ms is not None:
                ttl = max(1, expires_at_ms - sent_at_ms)
                if ttl >= MAX_UINT:
                    ttl = None
            ahead = _header(persistent, priority, ttl) + annotations
            fields = b"".join(
                (
                    _id(message_id),
                    _NULL if user_id is None else encode(user_id.encode()),
                    _text(name),
                    _NULL if message_type is None else _text(message_type),
                    _NULL if reply_to is None else _text(reply_to[0]),
                    _NULL if correlation_id is None else _id(correlation_id),
                    _OCTETS if body_kind is BodyKind.BYTES else _NO_CONTENT_TYPE,
                    _NULL if expires_at_ms is None else _timestamp(_TIMESTAMP, expires_at_ms),
                    _timestamp(_TIMESTAMP, sent_at_ms),
                    b"" if group_id is None else _text(group_id),
                )
            )
            count = _FIELDS if group_id is None else _FIELDS + 1
        size = len(fields) + 1
        if size < 256 and count == _FIELDS:
            listed = _SHORT_PROPERTIES[size] + fields
        else:
            listed = b"\x00\x53\x73" + compound(0xC0, count, fields)
        if type(body) is bytes and body_kind is BodyKind.BYTES:
            length = len(body)
            content = b"\x00\x53\x75" + (bytes((0xA0, length)) if length < 256 else _sized(0xB0, length)), body
        elif type(body) is str and body_kind is BodyKind.TEXT:
            content = b"\x00\x53\x77", _text(body)
        else:
            content = encoded_body(body_kind, body), b""
        return b"".join(
            (
                ahead,
                listed,
                _application(properties, identity if has_duplicate_id else None),
                *content,
            )
        )
    except (ValueError, TypeError, AttributeError, struct.error):
        return None


def _application(properties: dict[str, Any] | None, identity: Identity | None) -> bytes:
    """The section of the application's properties, with the identity for Artemis where it is to be one of them."""
    pairs: list[bytes] = []
    add = pairs.append
    if properties:
        for name, value in properties.items():
            add(_text(name))
            if type(value) is str:
                add(_text(value))
            elif type(value) in _PLAIN:
                add(encode(value))
            else:
                raise ValueError("a value of another type")
    if identity is not None and not (properties and DUPLICATE_ID in properties):
        producer_id, thread_id, sequence = identity
        ahead = _duplicate_ids(producer_id, thread_id)
        number = b"%d" % sequence
        size = len(ahead) + len(number)
        add(_DUPLICATE_ID)
        add((_TEXTS[size] if size < 256 else _sized(0xB1, size)) + ahead + number)
    if not pairs:
        return b""
    count = len(pairs)
    check_properties(count // 2)
    return b"\x00\x53\x74" + compound(0xC1, count, b"".join(pairs))


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


@lru_cache(maxsize=_KEPT)
def _repeated(
    destination: Destination,
    body_kind: BodyKind,
    persistent: bool,
    priority: int,
    producer_id: str,
    thread_id: int,
) -> tuple[bytes, bytes]:
    """Return what repeats in the messages of a producer that say no more than they have to.

    Returns:
        What is ahead of the sequence; what is between the message id and the time of sending.
    """
    header = _header(persistent, priority, None)
    annotations = _annotations(body_kind, destination.kind, None, producer_id, thread_id, _A_LONG)
    content_type = _OCTETS if body_kind is BodyKind.BYTES else _NO_CONTENT_TYPE
    fields = (_NULL, _text(destination.name), _NULL * 3, content_type, _NULL, bytes((_TIMESTAMP,)))
    return header + annotations, b"".join(fields)


@lru_cache(maxsize=_KEPT)
def _duplicate_ids(producer_id: str, thread_id: int) -> bytes:
    """Return what repeats in the identities of a producer's messages in the form for Artemis: all but the sequence."""
    return duplicate_id(Identity(producer_id, thread_id, 0))[:-1].encode()


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


#: All that keeps something of messages.
KEPT: Final = (_header, _annotations, _repeated, _duplicate_ids)
