"""Messages of the form that nearly all clients write, read without a call for each value.  Pure.

That form: each section once, in the order of AMQP 1.0 section 3.2, lists and maps of plain values, and a body of one
section.  The headers, annotations and properties of a sender's messages repeat, but for the sequence of an identity,
the message id and the time of sending.  So what they mean is kept by their bytes without these.  Whatever is of another
form, beyond a limit of this module, or malformed is left to :mod:`broker_adapter.amqp.messages.amqp_message`: the
functions here return None for it, and for everything else what that would return.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from broker_adapter.amqp.messages.jms_mapping import (
    DELIVERY_DELAY,
    DELIVERY_TIME,
    DESTINATION_KEYS,
    DUPLICATE_ID,
    MESSAGE_TYPE,
    PLAIN_PROPERTIES,
    REPLY_TO_KEYS,
    body_of,
    clamped,
    correlation_id_of,
    duplicate_id,
    identity_of,
    integer,
    is_id_form,
    message_id_of,
    named_kind,
    property_value,
    string,
)
from broker_adapter.amqp.messages.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    check_properties,
)
from broker_adapter.amqp.messages.values import CONSTANTS, FIXED, MAX_VALUES, Reader, Symbol
from broker_adapter.destination import MAX_NAME_BYTES, Destination, DestinationKind
from broker_adapter.envelope import AMQP_FORMAT, RESERVED_BYTES, BodyKind, Envelope, Head, Identity
from broker_adapter.errors import MessageFormatException

#: Most bytes ahead of the properties, and of fields of them, whose meaning is kept; how many of each are kept.
MOST_KEPT_BYTES: Final = 256
_KEPT: Final = 256
#: Most values of a list or map that is read here.
_MOST_VALUES: Final = 255
#: Fields of the properties of a message, and those up to the time of sending.
_FIELDS: Final = 13
_SENT: Final = 10
#: Type code of an instant.
_TIMESTAMP: Final = 0x83
_NO_INSTANT: Final = -1 << 63  #: beyond the numbers that are taken
#: Type code of a number of eight bytes, as the sequence of an identity is written from 128 on.
_LONG: Final = 0x81
#: Stand for the sequence of an identity while the rest of the annotations is decoded.
_SOME_SEQUENCES: Final = (0x0123456789ABCDEF, 0x0123456789ABCDEE)
_u32: Final = struct.Struct(">I").unpack_from
_i64: Final = struct.Struct(">q").unpack_from
_BYTES: Final = BodyKind.BYTES
#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__
#: Bytes of a message up to which a search is faster than finding out where its properties end.
_SEARCHED_WHOLE: Final = 1024
#: What is wrong with data that is cut short, malformed or means nothing: it is left to the general reader.
_FAULTS: Final = (ValueError, TypeError, IndexError, struct.error, MessageFormatException)


class _Header(NamedTuple):
    """What a header says."""

    persistent: bool = False
    priority: int = 4
    ttl: int | None = None


class _Annotations(NamedTuple):
    """What message annotations say."""

    destination_kind: DestinationKind | None = None
    reply_kind: DestinationKind | None = None
    message_type: int | None = None
    delivery_time: int | None = None
    delivery_delay: int | None = None
    identity: Identity | None = None


_NO_HEADER: Final = _Header()
_NO_ANNOTATIONS: Final = _Annotations()


class _Ahead(NamedTuple):
    """The sections ahead of the application's."""

    header: _Header
    annotations: _Annotations
    identity: Identity | None
    properties: Sequence[Any]  #: all fields, those that are missing as None
    position: int  #: where the next section starts


def head(payload: bytes, now_ms: int) -> Head | None:
    """See :func:`broker_adapter.amqp.messages.amqp_message.read_head`; None: that has to read it."""
    try:
        found = _usual(payload, None)
        if found is not None:
            usual, identity, _, _, position = found
            if _may_be_reserved(payload, position):
                return None
            destination = usual.to if usual.has_to else None
            return _new(
                Head, (AMQP_FORMAT, destination, usual.priority, usual.persistent, None, None, None, identity, None)
            )
        (persistent, priority, ttl), annotations, identity, properties, position = _ahead(payload)
        if _may_be_reserved(payload, position):
            return None
        to, expires_at_ms, group_id = properties[2], properties[8], properties[10]
        if expires_at_ms is not None:
            expires_at_ms = integer(expires_at_ms, "absolute-expiry-time") or None
        if expires_at_ms is None and ttl is not None:
            expires_at_ms = now_ms + ttl
        destination = None if to is None else _destination(to, annotations.destination_kind)
        if group_id is not None:
            group_id = string(group_id)
        deliver_at_ms = _delivery_time(annotations, now_ms)
    except _FAULTS:
        return None
    return _new(
        Head, (AMQP_FORMAT, destination, priority, persistent, expires_at_ms, deliver_at_ms, group_id, identity, None)
    )


def _may_be_reserved(payload: bytes, position: int) -> bool:
    """Return whether the sections from here on may have a property that a client may not send.

    A small message is searched whole, as is one with more sections than the properties and a body, which may have them
    in any order: text in a body costs the general reader, and no message.
    """
    size, begin = len(payload), position
    if size <= _SEARCHED_WHOLE:
        return payload.find(RESERVED_BYTES, position) >= 0
    if position == size:
        return False
    if payload[position + 2] == APPLICATION_PROPERTIES:
        code = payload[position + 3]
        if code == _MAPS[0]:
            position += 5 + payload[position + 4]
        elif code == _MAPS[1]:
            position += 8 + _u32(payload, position + 4)[0]
        else:
            return True
        if payload.find(RESERVED_BYTES, begin, position) >= 0:
            return True
        if position == size:
            return False
    width = _LAST.get(payload[position : position + 4])
    if width == 4:
        position += 8 + _u32(payload, position + 4)[0]
    elif width == 1:
        position += 5 + payload[position + 4]
    return position != size and payload.find(RESERVED_BYTES, begin) >= 0


#: The first octets of what follows the properties, and how many octets its size has: strings, lists and maps.
_LAST: Final = {
    bytes((0, 0x53, section, code)): 1 if code < 0xB0 or 0xC0 <= code < 0xD0 else 4
    for section in (DATA, SEQUENCE, VALUE)
    for code in (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3, 0xC0, 0xC1, 0xD0, 0xD1)
}


def envelope(payload: bytes, destination: Destination | None) -> Envelope | None:
    """See :func:`broker_adapter.amqp.messages.amqp_message.decode_amqp`; None: that has to decode it."""
    try:
        found = _usual(payload, destination)
        return _common_envelope(payload, destination) if found is None else _usual_envelope(payload, *found)
    except _FAULTS:
        return None


def _usual_envelope(
    payload: bytes, usual: _Usual, identity: Identity | None, message_id: str, sent_at_ms: int, position: int
) -> Envelope:
    """The envelope of a message of which nearly all repeats; the arguments are the result of :func:`_usual`."""
    to, reply_to, kind, correlation_id, user_id, content_type, _, message_type, priority, persistent, *_ = usual
    application, position = _application_of(payload, position, identity)
    body_kind, body = _body(payload, position, message_type, content_type)
    named = message_id if message_id.startswith("ID:") and not is_id_form(message_id) else message_id_of(message_id)
    # fmt: off
    return _new(
        Envelope,
        (
            to, body_kind, body, application, named, correlation_id, reply_to, kind, sent_at_ms,
            None, None, priority, persistent, None, None, user_id, identity,
        ),
    )
    # fmt: on


def _common_envelope(payload: bytes, link: Destination | None) -> Envelope:
    """The envelope of any other message of common form; raises ValueError and the like where it is of another."""
    (persistent, priority, ttl), annotations, identity, properties, position = _ahead(payload)
    application, position = _application_of(payload, position, identity)
    # fmt: off
    (
        message_id, user_id, to, subject, reply_to, correlation_id, content_type, _, expires_at_ms,
        sent_at_ms, group_id, group_sequence, _,
    ) = properties
    # fmt: on
    named = user_id, to, subject, reply_to, correlation_id, content_type
    to, reply_to, subject, correlation_id, user_id, content_type = _meaning(annotations, named, link)
    body_kind, body = _body(payload, position, annotations.message_type, content_type)
    if sent_at_ms is not None:
        sent_at_ms = integer(sent_at_ms, "creation-time")
    if expires_at_ms is not None:
        expires_at_ms = integer(expires_at_ms, "absolute-expiry-time") or None
    if expires_at_ms is None and ttl and sent_at_ms is not None:
        expires_at_ms = sent_at_ms + ttl
    if group_sequence is not None:
        group_sequence = integer(group_sequence, "group-sequence") or 0
        if group_sequence > 0x7FFFFFFF:
            group_sequence -= 1 << 32
    return _new(
        Envelope,
        (
            to,
            body_kind,
            body,
            application,
            None if message_id is None else message_id_of(message_id),
            correlation_id,
            reply_to,
            subject,
            sent_at_ms,
            expires_at_ms,
            _delivery_time(annotations, sent_at_ms),
            priority,
            persistent,
            None if group_id is None else string(group_id),
            group_sequence,
            user_id,
            identity,
        ),
    )


def _meaning(
    annotations: _Annotations, fields: Sequence[Any], link: Destination | None
) -> tuple[Destination, Destination | None, str | None, str | bytes | None, str | None, str | None]:
    """Return what the properties from the user to the content type say.

    Args:
        annotations: of the message.
        fields: user, destination, type, address for answers, correlation id and content type.
        link: where the message comes from; None: not known.

    Returns:
        Destination, address for answers, type, correlation id, user and content type.
    """
    user_id, to, subject, reply_to, correlation_id, content_type = fields
    usual = None if link is None else link.kind
    if to is not None:
        to = _destination(to, usual if annotations.destination_kind is None else annotations.destination_kind)
    else:
        to = Destination("") if link is None else link
    if reply_to is not None:
        reply_to = _destination(reply_to, usual if annotations.reply_kind is None else annotations.reply_kind)
    if user_id is not None:
        user_id = user_id.decode(errors="replace") if isinstance(user_id, bytes) else string(user_id)
    correlation_id = None if correlation_id is None else correlation_id_of(correlation_id)
    return to, reply_to, string(subject), correlation_id, user_id, string(content_type)


def _delivery_time(annotations: _Annotations, now_ms: int | None) -> int | None:
    if annotations.delivery_time is not None:
        return annotations.delivery_time
    delay_ms = annotations.delivery_delay
    return None if delay_ms is None or now_ms is None or delay_ms <= 0 else now_ms + delay_ms


def _usual(payload: bytes, link: Destination | None) -> tuple[_Usual, Identity | None, str, int, int] | None:
    """Return what is ahead of the application's sections of a message of which nearly all repeats.

    Args:
        payload: the message.
        link: where it comes from; None: not known.

    Returns:
        What repeats, the identity, message id and time of sending, and where the next section starts; None where it is
        of another form.
    """
    position = _end_of_annotations(payload)
    fields = _sent_fields(payload, position + 3) if payload.startswith(b"\x00\x53\x73", position) else None
    if fields is None:
        return None
    start, behind, end = fields
    if position > MOST_KEPT_BYTES or end - behind > MOST_KEPT_BYTES:
        return None
    between = payload[behind : end - 8]
    identity: Identity | None = None
    usual = None
    if position > 8 and payload[position - 9] == _LONG:  # else there is none, and this is an octet of the body
        usual = _kept_usual(payload[: position - 8], between, link, True)
        if usual is not None:
            sequence = _i64(payload, position - 8)[0]
            if sequence < 0:
                return None
            identity = _new(Identity, (usual.producer_id, usual.thread_id, sequence))
    if usual is None:
        usual = _kept_usual(payload[:position], between, link, False)
        if usual is None:
            return None
    sent_at_ms = _i64(payload, end - 8)[0]
    if sent_at_ms == _NO_INSTANT:
        return None
    _check_behind(payload, end)
    return usual, identity, payload[start + 2 : behind].decode(), sent_at_ms, end


def _ahead(payload: bytes) -> _Ahead:
    """The sections ahead of the application's; raises ValueError and the like where they are of another form."""
    position = _end_of_annotations(payload)
    identity: Identity | None = None
    known: _Known | None = None
    if position > 8 and payload[position - 9] == _LONG and position <= MOST_KEPT_BYTES:
        known = _known(payload[: position - 8], True)
        if known is not None:
            sequence = _i64(payload, position - 8)[0]
            if sequence < 0:
                raise ValueError("no sequence of an identity is below 0")
            identity = _new(Identity, (known.producer_id, known.thread_id, sequence))
    if known is None:
        known = _known(payload[:position], False) if position <= MOST_KEPT_BYTES else None
        if known is None:
            raise ValueError("a header or annotations of another form")
        identity = known.annotations.identity
    properties: Sequence[Any] = _NOTHING
    if payload.startswith(b"\x00\x53\x73", position):
        properties, position = _properties(payload, position + 3)
    _check_behind(payload, position)
    return _new(_Ahead, (known.header, known.annotations, identity, properties, position))


def _end_of_annotations(payload: bytes) -> int:
    """Return where the header and both kinds of annotations end."""
    position = _end(payload, 3, _LISTS) if payload.startswith(b"\x00\x53\x70") else 0
    if payload.startswith(b"\x00\x53\x71", position):
        position = _end(payload, position + 3, _MAPS)
    if payload.startswith(b"\x00\x53\x72", position):
        position = _end(payload, position + 3, _MAPS)
    return position


def _check_behind(payload: bytes, position: int) -> None:
    """Raise ValueError where another section follows than one behind the properties."""
    # It is not one of those sections, in another order, nor one that is named by its symbol.
    if position < len(payload):
        code = payload[position + 2]
        if payload[position] or payload[position + 1] != 0x53 or code < APPLICATION_PROPERTIES:
            raise ValueError("another section follows")
        if code == APPLICATION_PROPERTIES and payload[position + 3] == _MAPS[1]:
            check_properties(_u32(payload, position + 8)[0] // 2)


def _sent_fields(payload: bytes, position: int) -> tuple[int, int, int] | None:
    """Properties from a short message id to the time of sending: where they start, where the id ends, and they end."""
    code = payload[position]
    if code == _LISTS[0]:
        start, end, count = position + 3, position + 2 + payload[position + 1], payload[position + 2]
    elif code == _LISTS[1]:
        start, end = position + 9, position + 5 + _u32(payload, position + 1)[0]
        count = _u32(payload, position + 5)[0]
    else:
        return None
    if count == _SENT and payload[start] == 0xA1 and end <= len(payload) and payload[end - 9] == _TIMESTAMP:
        return start, start + 2 + payload[start + 1], end
    return None


def _properties(payload: bytes, position: int) -> tuple[Sequence[Any], int]:
    """The fields of the properties, all of them, and where they end."""
    found = _sent_fields(payload, position)
    if found is not None:
        start, behind, end = found
        between = _between(payload[behind : end - 8]) if end - behind <= MOST_KEPT_BYTES else None
        if between is not None:
            return (payload[start + 2 : behind].decode(), *between, *_i64(payload, end - 8), None, None, None), end
    fields, end = _values(payload, position)
    if len(fields) > _FIELDS:
        raise ValueError("the properties have fields that are not known here")
    return (*fields, *_NOTHING[len(fields) :]), end


_NOTHING: Final = (None,) * _FIELDS
#: The type codes of a short, a long and an empty list, and of a short and a long map.
_LISTS: Final = (0xC0, 0xD0, 0x45)
_MAPS: Final = (0xC1, 0xD1, -1)


def _end(data: bytes, position: int, codes: tuple[int, int, int]) -> int:
    """Return where a list or map ends whose type code is here."""
    code = data[position]
    if code == codes[0]:
        end = position + 2 + data[position + 1]
    elif code == codes[1]:
        end = position + 5 + _u32(data, position + 1)[0]
    elif code == codes[2]:
        end = position + 1
    else:
        raise ValueError("another value than expected")
    if end > len(data):
        raise ValueError("the data ends early")
    return end


def _values(data: bytes, position: int) -> tuple[list[Any], int]:
    """The plain values of a list, and where it ends."""
    code = data[position]
    if code == _LISTS[0]:
        end, count, position = position + 2 + data[position + 1], data[position + 2], position + 3
    elif code == _LISTS[1]:
        end, count, position = position + 5 + _u32(data, position + 1)[0], _u32(data, position + 5)[0], position + 9
    elif code == _LISTS[2]:
        return [], position + 1
    else:
        raise ValueError("another value than expected")
    if end > len(data):
        raise ValueError("the data ends early")
    return _plain(data, position, end, count), end


def _plain(data: bytes, position: int, end: int, count: int) -> list[Any]:
    """So many plain values."""
    if count > _MOST_VALUES:
        raise ValueError("many values")
    values: list[Any] = []
    add = values.append
    for _ in range(count):
        code = data[position]
        if code == 0x40:
            add(None)
            position += 1
        elif code == 0xA1:
            start = position + 2
            position = start + data[position + 1]
            add(data[start:position].decode())
        else:
            value, position = _value(data, position)
            add(value)
    if position != end:
        raise ValueError("the values do not end where their list or map does")
    return values


def _value(data: bytes, position: int) -> tuple[Any, int]:
    """A plain value, and where it ends."""
    code = data[position]
    if code in FIXED:
        size, read = FIXED[code]
        return read(data, position + 1), position + 1 + size
    if code in CONSTANTS:
        return CONSTANTS[code], position + 1
    if code in (0xA0, 0xA1, 0xA3):
        start = position + 2
        end = start + data[position + 1]
    elif code == 0xB1:
        start = position + 5
        end = start + _u32(data, position + 1)[0]
    else:
        raise ValueError("a value of another type")
    raw = data[start:end]
    if code == 0xA0:
        return raw, end
    return (Symbol(raw.decode("ascii")) if code == 0xA3 else raw.decode()), end


def _application_of(payload: bytes, position: int, identity: Identity | None) -> tuple[dict[str, Any] | None, int]:
    """The application's properties, if any, without the identity for Artemis, and where they end."""
    if not payload.startswith(b"\x00\x53\x74", position):
        return None, position
    found, position = _application(payload, position + 3)
    if identity is not None and found.get(DUPLICATE_ID) == duplicate_id(identity):
        del found[DUPLICATE_ID]  # ours, and not the application's
    return found or None, position


def _application(payload: bytes, position: int) -> tuple[dict[str, Any], int]:
    """The application's properties, and where they end."""
    code = payload[position]
    if code == _MAPS[0]:
        end, count, position = position + 2 + payload[position + 1], payload[position + 2], position + 3
    elif code == _MAPS[1]:
        end, count = position + 5 + _u32(payload, position + 1)[0], _u32(payload, position + 5)[0]
        position += 9
    else:
        raise ValueError("another value than expected")
    if count % 2 or count > _MOST_VALUES or end > len(payload):
        raise ValueError("not made of pairs, many, or cut short")
    found: dict[str, Any] = {}
    while position < end:
        if payload[position] != 0xA1:
            raise ValueError("a name that is no short string")
        start = position + 2
        position = start + payload[position + 1]
        name = payload[start:position].decode()
        if payload[position] == 0xA1:
            start = position + 2
            position = start + payload[position + 1]
            found[name] = payload[start:position].decode()
        else:
            value, position = _value(payload, position)
            found[name] = value if type(value) in PLAIN_PROPERTIES else property_value(name, value)
        count -= 2
    if position != end or count:
        raise ValueError("the pairs do not end where their map does")
    return found, end


def _body(payload: bytes, position: int, message_type: int | None, content_type: str | None) -> tuple[BodyKind, Any]:
    """The kind of the body, and the body."""
    if message_type == _BYTES and payload.startswith(b"\x00\x53\x75\xb0", position):
        start = position + 8
        if start + _u32(payload, position + 4)[0] == len(payload):
            return _BYTES, payload[start:]
    return body_of(_bodies(payload, position), message_type, content_type)


def _bodies(payload: bytes, position: int) -> list[tuple[int, Any]]:
    """The section of the body, if any, behind which nothing follows."""
    size = len(payload)
    if position == size:
        return []
    code = payload[position + 2]
    if payload[position] or payload[position + 1] != 0x53 or code not in (DATA, VALUE):
        raise ValueError("another section than those of a common body")
    kind = payload[position + 3]
    if code == DATA:
        if kind == 0xB0:
            start, length = position + 8, _u32(payload, position + 4)[0]
        elif kind == 0xA0:
            start, length = position + 5, payload[position + 4]
        else:
            raise ValueError("a body that is no binary")
        if start + length != size:
            raise ValueError("more than one section of the body")
        return [(DATA, payload[start:])]
    if kind == 0xA1:
        start = position + 5
        if start + payload[position + 4] == size:
            return [(VALUE, payload[start:].decode())]
    elif kind == 0xB1:
        start = position + 8
        if start + _u32(payload, position + 4)[0] == size:
            return [(VALUE, payload[start:].decode())]
    reader = Reader(payload, position + 3, most_values=MAX_VALUES - 10 * _MOST_VALUES)
    value = reader.value()
    if reader.position != size:
        raise ValueError("more than one section of the body")
    return [(VALUE, value)]


# What is kept.


class _Known(NamedTuple):
    """What a header and annotations say, of a message that has an identity at their end: whose it is."""

    header: _Header
    annotations: _Annotations
    producer_id: str = ""
    thread_id: int = 0


@lru_cache(maxsize=_KEPT)
def _known(ahead: bytes, ends_with_sequence: bool) -> _Known | None:
    """Return what the sections ahead of the properties say.

    Args:
        ahead: their bytes.
        ends_with_sequence: whether they would end with the eight bytes of an identity's sequence, which are missing.

    Returns:
        This, or None where they are of another form, or would not end so.
    """
    try:
        if not ends_with_sequence:
            return _decoded(ahead)
        first, second = [_decoded(ahead + each.to_bytes(8)) for each in _SOME_SEQUENCES]
    except _FAULTS:
        return None
    identities = [each.annotations.identity for each in (first, second)]
    if [each and each.sequence for each in identities] != list(_SOME_SEQUENCES):
        return None
    assert identities[0] is not None
    return first._replace(producer_id=identities[0].producer_id, thread_id=identities[0].thread_id)


def _decoded(ahead: bytes) -> _Known:
    """Return what the sections ahead of the properties say, with the limits of
    :mod:`broker_adapter.amqp.messages.values`.
    """
    header, annotations = _NO_HEADER, _NO_ANNOTATIONS
    reader = Reader(ahead)
    while reader.position < len(ahead):
        code = ahead[reader.position + 2]
        reader.position += 3
        value = reader.value()
        if code == HEADER:
            fields = [*value, None, None, None]
            header = _Header(fields[0] is True, clamped(integer(fields[1], "priority")), integer(fields[2], "ttl"))
        elif code == MESSAGE_ANNOTATIONS:
            annotations = _Annotations(
                named_kind(value, DESTINATION_KEYS),
                named_kind(value, REPLY_TO_KEYS),
                integer(value.get(MESSAGE_TYPE), "message type"),
                integer(value.get(DELIVERY_TIME), str(DELIVERY_TIME)),
                integer(value.get(DELIVERY_DELAY), str(DELIVERY_DELAY)),
                identity_of(value),
            )
    return _Known(header, annotations)


@lru_cache(maxsize=_KEPT)
def _between(fields: bytes) -> Sequence[Any] | None:
    """The fields of the properties behind the message id, up to the time of sending, of which only the type is here."""
    try:
        return tuple(_plain(fields, 0, len(fields) - 1, _SENT - 2))
    except _FAULTS:
        return None


class _Usual(NamedTuple):
    """What repeats in messages of one sender."""

    to: Destination
    reply_to: Destination | None
    type: str | None
    correlation_id: str | bytes | None
    user_id: str | None
    content_type: str | None
    has_to: bool  #: whether the messages name ``to``
    message_type: int | None
    priority: int
    persistent: bool
    producer_id: str
    thread_id: int


@lru_cache(maxsize=_KEPT)
def _kept_usual(ahead: bytes, between: bytes, link: Destination | None, ends_with_sequence: bool) -> _Usual | None:
    """Return what repeats in messages with these bytes.

    Args:
        ahead: as in :func:`_known`.
        between: as in :func:`_between`.
        link: where they come from; None: not known.
        ends_with_sequence: as in :func:`_known`.

    Returns:
        This, or None where a message may be of another form, expire, be delivered later, or have an identity elsewhere.
    """
    known, fields = _known(ahead, ends_with_sequence), _between(between)
    if known is None or fields is None:
        return None
    (_, priority, ttl), annotations = known.header, known.annotations
    *named, _, expires_at_ms = fields
    later = annotations.delivery_time, annotations.delivery_delay, expires_at_ms
    if ttl is not None or later != (None, None, None) or (annotations.identity is not None and not ends_with_sequence):
        return None
    try:
        meaning = _meaning(annotations, named, link)
    except _FAULTS:
        return None
    whose = known.producer_id, known.thread_id
    return _Usual(*meaning, named[1] is not None, annotations.message_type, priority, known.header.persistent, *whose)


@lru_cache(maxsize=_KEPT)
def _kept_destination(name: str, kind: DestinationKind | None) -> Destination:
    return Destination(name, DestinationKind.QUEUE if kind is None else kind)


def _destination(name: Any, kind: DestinationKind | None) -> Destination:
    if len(name) > MAX_NAME_BYTES or type(name) is not str:
        raise ValueError("no common name")
    return _kept_destination(name, kind)


#: All that keeps something of messages.
KEPT: Final = (_known, _between, _kept_usual, _kept_destination)
