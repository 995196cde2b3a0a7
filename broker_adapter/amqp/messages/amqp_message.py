"""Standard AMQP messages as bytes, and back: the JMS mapping of AMQP 1.0.  Pure.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker_adapter.amqp.messages import quick_reader, quick_writer
from broker_adapter.amqp.messages.jms_mapping import (
    DESTINATION_KEYS,
    DUPLICATE_ID,
    MAX_UINT,
    MESSAGE_TYPE,
    PLAIN_PROPERTIES,
    REPLY_TO_KEYS,
    annotations_of,
    body_of,
    clamped,
    correlation_id_of,
    delivery_time,
    duplicate_id,
    encoded_body,
    field,
    id_value,
    identity_of,
    integer,
    kind_of,
    message_id_of,
    property_value,
    string,
)
from broker_adapter.amqp.messages.sections import (
    AHEAD_OF_APPLICATION,
    AHEAD_OF_BODY,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    check_properties,
    sections,
    without_reserved,
)
from broker_adapter.amqp.messages.values import Symbol, Timestamp, UByte, UInt, encode
from broker_adapter.destination import Destination
from broker_adapter.envelope import AMQP_FORMAT, DEAD_LETTER_PREFIX, BodyKind, Envelope, Head
from broker_adapter.errors import MessageFormatException
from broker_adapter.wording import why_unencodable


def read_head(payload: bytes, now_ms: int) -> Head:
    """Return what routes an AMQP message, from the sections ahead of the application's.

    Args:
        payload: the message.
        now_ms: the time it came in, milliseconds since the epoch; a time-to-live counts from it.

    Raises:
        MessageFormatException: these parts cannot be decoded.
    """
    found = quick_reader.head(payload, now_ms)
    if found is not None:
        return found
    header: list[Any] = []
    annotations: Mapping[Any, Any] = {}
    properties: list[Any] = []
    for code, value in sections(payload, AHEAD_OF_APPLICATION):
        if code == HEADER:
            header = value
        elif code == MESSAGE_ANNOTATIONS:
            annotations = value
        elif code == PROPERTIES:
            properties = value
    expires_at_ms = integer(field(properties, 8), "absolute-expiry-time") or None
    if expires_at_ms is None:
        ttl = integer(field(header, 2), "ttl")
        expires_at_ms = None if ttl is None else now_ms + ttl  # also of 0 (AMQP 1.0 section 3.2.1: "If this is set")
    to = string(field(properties, 2))
    return Head(
        AMQP_FORMAT,
        None if to is None else Destination(to, kind_of(annotations, DESTINATION_KEYS, None)),
        clamped(integer(field(header, 1), "priority")),
        field(header, 0) is True,
        expires_at_ms,
        delivery_time(annotations, now_ms),
        string(field(properties, 10)),
        identity_of(annotations),
        without_reserved(payload),
    )


def delivery_count_of(payload: bytes) -> int:
    """Return how many deliveries of an AMQP message have failed, as its header says.

    Raises:
        MessageFormatException: the header cannot be decoded.
    """
    if payload.startswith(b"\x00\x53\x70\xc0") and len(payload) > 5 and payload[5] < 5:
        return 0
    header = next(sections(payload, (HEADER,)), None)
    return integer(field(header, 4), "delivery-count") or 0 if header else 0


def dead_letter_properties(payload: bytes) -> dict[str, Any]:
    """Return what the engine has added to a message that became a dead letter, also where the message cannot be
    decoded.
    """
    try:
        for code, value in sections(payload, AHEAD_OF_BODY):
            if code == APPLICATION_PROPERTIES:
                return {
                    str(name): each
                    for name, each in value.items()
                    if isinstance(name, str) and name.startswith(DEAD_LETTER_PREFIX) and isinstance(each, str | int)
                }
    except MessageFormatException:
        pass
    return {}


# Envelope to AMQP.


def encode_amqp(envelope: Envelope, *, has_duplicate_id: bool = False) -> bytes:
    """An envelope as a standard AMQP message.

    Args:
        envelope: the message.
        has_duplicate_id: whether its identity is to be a property as well, in the form that ActiveMQ Artemis knows; one
            that the application gave is kept.

    Raises:
        MessageFormatException: a value in it has no AMQP form.
    """
    encoded = quick_writer.encoded(envelope, has_duplicate_id=has_duplicate_id)
    if encoded is not None:
        return encoded
    if has_duplicate_id:
        envelope = _with_duplicate_id(envelope)
    try:
        return b"".join(_encoded_sections(envelope))
    except ValueError as error:
        raise MessageFormatException(f"the message cannot be encoded: {why_unencodable(error)}") from error


def _with_duplicate_id(envelope: Envelope) -> Envelope:
    properties = envelope.properties or {}
    if envelope.identity is None or DUPLICATE_ID in properties:
        return envelope
    return envelope._replace(properties={**properties, DUPLICATE_ID: duplicate_id(envelope.identity)})


def _encoded_sections(envelope: Envelope) -> Iterator[bytes]:
    ttl = None
    if envelope.expires_at_ms is not None and envelope.sent_at_ms is not None:
        ttl = max(1, envelope.expires_at_ms - envelope.sent_at_ms)
        if ttl >= MAX_UINT:
            ttl = None
    if envelope.persistent or envelope.priority != 4 or ttl is not None:
        priority = None if envelope.priority == 4 else UByte(envelope.priority)
        yield _list_section(HEADER, [envelope.persistent or None, priority, None if ttl is None else UInt(ttl)])
    yield _map_section(MESSAGE_ANNOTATIONS, annotations_of(envelope))
    user_id = None if envelope.user_id is None else envelope.user_id.encode()
    group_sequence = envelope.group_sequence
    yield _list_section(
        PROPERTIES,
        [
            id_value(envelope.message_id),
            user_id,
            envelope.destination.name,
            envelope.type,
            None if envelope.reply_to is None else envelope.reply_to.name,
            id_value(envelope.correlation_id),
            Symbol("application/octet-stream") if envelope.body_kind is BodyKind.BYTES else None,
            None,
            None if envelope.expires_at_ms is None else Timestamp(envelope.expires_at_ms),
            None if envelope.sent_at_ms is None else Timestamp(envelope.sent_at_ms),
            envelope.group_id,
            None if group_sequence is None else UInt(group_sequence & MAX_UINT),
        ],
    )
    if envelope.properties:
        check_properties(len(envelope.properties))
        for name, value in envelope.properties.items():
            if isinstance(value, (list, tuple, dict)):
                raise ValueError(f"property {name!r} is a {type(value).__name__}, which no property can be")
        yield _map_section(APPLICATION_PROPERTIES, envelope.properties)
    yield encoded_body(envelope.body_kind, envelope.body)


def _list_section(code: int, fields: list[Any]) -> bytes:
    while fields and fields[-1] is None:
        fields.pop()
    return b"\x00\x53" + bytes((code,)) + encode(fields)


def _map_section(code: int, entries: Mapping[Any, Any]) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(dict(entries))


# AMQP to envelope.


def decode_amqp(payload: bytes, destination: Destination | None = None) -> Envelope:
    """The envelope of an AMQP message, of whatever sender.

    Args:
        payload: the message.
        destination: where it was received from; used where the message itself does not say.

    Raises:
        MessageFormatException: it cannot be decoded.
    """
    found = quick_reader.envelope(payload, destination)
    return _envelope_of(sections(payload, None), destination) if found is None else found


def decode_ahead(payload: bytes) -> Envelope:
    """The headers and properties of an AMQP message; its body is not decoded.

    Raises:
        MessageFormatException: they cannot be decoded.
    """
    return _envelope_of(sections(payload, AHEAD_OF_BODY), None)


def _envelope_of(sections: Iterator[tuple[int, Any]], destination: Destination | None) -> Envelope:
    header: list[Any] = []
    annotations: Mapping[Any, Any] = {}
    properties: list[Any] = []
    application: dict[str, Any] | None = None
    bodies: list[tuple[int, Any]] = []
    for code, value in sections:
        if code == HEADER:
            header = value
        elif code == MESSAGE_ANNOTATIONS:
            annotations = value
        elif code == PROPERTIES:
            properties = value
        elif code == APPLICATION_PROPERTIES:
            application = {
                str(name): item if type(item) in PLAIN_PROPERTIES else property_value(name, item)
                for name, item in value.items()
            }
        elif code in (DATA, SEQUENCE, VALUE):
            bodies.append((code, value))
    kind, body = body_of(bodies, integer(annotations.get(MESSAGE_TYPE), "message type"), string(field(properties, 6)))
    default_kind = None if destination is None else destination.kind
    to = string(field(properties, 2))
    if to is not None:
        destination = Destination(to, kind_of(annotations, DESTINATION_KEYS, default_kind))
    elif destination is None:
        destination = Destination("")
    reply_to = string(field(properties, 4))
    sent_at_ms = integer(field(properties, 9), "creation-time")
    ttl = integer(field(header, 2), "ttl")
    expires_at_ms = integer(field(properties, 8), "absolute-expiry-time") or None
    if expires_at_ms is None and ttl and sent_at_ms is not None:
        expires_at_ms = sent_at_ms + ttl
    user_id = field(properties, 1)
    identity = identity_of(annotations)
    if application and identity is not None and application.get(DUPLICATE_ID) == duplicate_id(identity):
        del application[DUPLICATE_ID]  # ours, and not the application's
    group_sequence = integer(field(properties, 11), "group-sequence")
    if group_sequence is not None and group_sequence > 0x7FFFFFFF:
        group_sequence -= 1 << 32
    return Envelope(
        destination=destination,
        body_kind=kind,
        body=body,
        properties=application or None,
        message_id=message_id_of(field(properties, 0)),
        correlation_id=correlation_id_of(field(properties, 5)),
        reply_to=None if reply_to is None else Destination(reply_to, kind_of(annotations, REPLY_TO_KEYS, default_kind)),
        type=string(field(properties, 3)),
        sent_at_ms=sent_at_ms,
        expires_at_ms=expires_at_ms,
        deliver_at_ms=delivery_time(annotations, sent_at_ms),
        priority=clamped(integer(field(header, 1), "priority")),
        persistent=field(header, 0) is True,
        group_id=string(field(properties, 10)),
        group_sequence=group_sequence,
        user_id=user_id.decode(errors="replace") if isinstance(user_id, bytes) else string(user_id),
        identity=identity,
    )
