"""Messages of the form that nearly all clients write, read without a call for each value.  Pure.

That form: each section once, in the order of AMQP 1.0 section 3.2, lists and maps of plain values, and a body of one
section.  The headers and annotations of a sender's messages repeat, so what they mean is kept by their bytes; of our
own, which have an identity, by all but the eight bytes of its sequence.  Whatever is of another form, beyond a limit of
this module, or malformed is left to :mod:`broker_adapter.amqp.amqp_message`: the functions here return None for it,
and for everything else what that would return.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from broker_adapter.amqp.jms_mapping import (
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
    message_id_of,
    named_kind,
    property_value,
    string,
)
from broker_adapter.amqp.sections import APPLICATION_PROPERTIES, DATA, VALUE, check_properties
from broker_adapter.amqp.values import CONSTANTS, FIXED, MAX_VALUES, Reader, Symbol
from broker_adapter.destination import MAX_NAME_BYTES, Destination, DestinationKind
from broker_adapter.envelope import AMQP_FORMAT, Envelope, Head, Identity
from broker_adapter.errors import MessageFormatException

#: Longest header, and longest annotations, whose meaning is kept, in bytes; and how many of each are kept.
MOST_KEPT_BYTES: Final = 256
_KEPT: Final = 256
#: Most values of a list or map that is read here.
_MOST_VALUES: Final = 255
#: Fields of the properties of a message.
_FIELDS: Final = 13
#: Type code of a number of eight bytes, as the sequence of an identity is written from 128 on.
_LONG: Final = 0x81
#: Stand for the sequence of an identity while the rest of the annotations is decoded.
_SOME_SEQUENCES: Final = (0x0123456789ABCDEF, 0x0123456789ABCDEE)
_u32: Final = struct.Struct(">I").unpack_from
_i64: Final = struct.Struct(">q").unpack_from
#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__
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
    properties: list[Any]  #: all fields, those that are missing as None
    position: int  #: where the next section starts


def head(payload: bytes, now_ms: int) -> Head | None:
    """See :func:`broker_adapter.amqp.amqp_message.read_head`; None: that has to read it."""
    try:
        (persistent, priority, ttl), annotations, identity, properties, _ = _ahead(payload)
        to, expires_at_ms, group_id = properties[2], properties[8], properties[10]
        if expires_at_ms is not None:
            expires_at_ms = integer(expires_at_ms, "absolute-expiry-time") or None
        if expires_at_ms is None and ttl:
            expires_at_ms = now_ms + ttl
        destination = None if to is None else _destination(to, annotations.destination_kind)
        if group_id is not None:
            group_id = string(group_id)
        deliver_at_ms = _delivery_time(annotations, now_ms)
    except _FAULTS:
        return None
    return _new(
        Head, (AMQP_FORMAT, destination, priority, persistent, expires_at_ms, deliver_at_ms, group_id, identity)
    )


def envelope(payload: bytes, destination: Destination | None) -> Envelope | None:
    """See :func:`broker_adapter.amqp.amqp_message.decode_amqp`; None: that has to decode it."""
    try:
        (persistent, priority, ttl), annotations, identity, properties, position = _ahead(payload)
        application: dict[str, Any] | None = None
        if payload.startswith(b"\x00\x53\x74", position):
            values, position = _values(payload, position + 3, _MAPS)
            application = _application(values)
            if identity is not None and application.get(DUPLICATE_ID) == duplicate_id(identity):
                del application[DUPLICATE_ID]  # ours, and not the application's
        # fmt: off
        (
            message_id, user_id, to, subject, reply_to, correlation_id, content_type, _, expires_at_ms,
            sent_at_ms, group_id, group_sequence, _,
        ) = properties
        # fmt: on
        bodies = _bodies(payload, position)
        body_kind, body = body_of(
            bodies, annotations.message_type, None if content_type is None else string(content_type)
        )
        if to is not None:
            kind = annotations.destination_kind
            if kind is None and destination is not None:
                kind = destination.kind
            to = _destination(to, kind)
        else:
            to = Destination("") if destination is None else destination
        if reply_to is not None:
            kind = annotations.reply_kind
            if kind is None and destination is not None:
                kind = destination.kind
            reply_to = _destination(reply_to, kind)
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
        if user_id is not None:
            user_id = user_id.decode(errors="replace") if isinstance(user_id, bytes) else string(user_id)
        return _new(
            Envelope,
            (
                to,
                body_kind,
                body,
                application or None,
                None if message_id is None else message_id_of(message_id),
                None if correlation_id is None else correlation_id_of(correlation_id),
                reply_to,
                None if subject is None else string(subject),
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
    except _FAULTS:
        return None


def _delivery_time(annotations: _Annotations, now_ms: int | None) -> int | None:
    if annotations.delivery_time is not None:
        return annotations.delivery_time
    delay_ms = annotations.delivery_delay
    return None if delay_ms is None or now_ms is None or delay_ms <= 0 else now_ms + delay_ms


def _ahead(payload: bytes) -> _Ahead:
    """The sections ahead of the application's; raises ValueError and the like where they are of another form."""
    position = 0
    header, annotations, identity = _NO_HEADER, _NO_ANNOTATIONS, None
    if payload.startswith(b"\x00\x53\x70"):
        position = _end(payload, 3, _LISTS)
        header = _header(payload[:position])
    if payload.startswith(b"\x00\x53\x71", position):
        start, position = position, _end(payload, position + 3, _MAPS)
        _annotations(payload[start:position])  # it must be one
    if payload.startswith(b"\x00\x53\x72", position):
        start, position = position, _end(payload, position + 3, _MAPS)
        identified = None
        if payload[position - 9] == _LONG and position - start <= MOST_KEPT_BYTES:
            identified = _identified(payload[start : position - 8])
        if identified is None:
            annotations = _annotations(payload[start:position])
            identity = annotations.identity
        else:
            annotations, producer_id, thread_id = identified
            sequence = _i64(payload, position - 8)[0]
            if sequence < 0:
                raise ValueError("no sequence of an identity is below 0")
            identity = _new(Identity, (producer_id, thread_id, sequence))
    properties: list[Any] = []
    if payload.startswith(b"\x00\x53\x73", position):
        properties, position = _values(payload, position + 3, _LISTS)
    if len(properties) < _FIELDS:
        properties += _NOTHING[len(properties) :]
    elif len(properties) > _FIELDS:
        raise ValueError("the properties have fields that are not known here")
    # What is behind them is not one of these sections, in another order, nor one that is named by its symbol.
    if position < len(payload):
        code = payload[position + 2]
        if payload[position] or payload[position + 1] != 0x53 or code < APPLICATION_PROPERTIES:
            raise ValueError("another section follows")
        if code == APPLICATION_PROPERTIES and payload[position + 3] == _MAPS[1]:
            check_properties(_u32(payload, position + 8)[0] // 2)
    return _new(_Ahead, (header, annotations, identity, properties, position))


_NOTHING: Final = (None,) * _FIELDS
#: The type codes of a short, a long and an empty list, and of a short and a long map.
_LISTS: Final = (0xC0, 0xD0, 0x45)
_MAPS: Final = (0xC1, 0xD1, -1)


def _end(data: bytes, position: int, codes: tuple[int, int, int]) -> int:
    """Where a list or map ends whose type code is here."""
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


def _values(data: bytes, position: int, codes: tuple[int, int, int]) -> tuple[list[Any], int]:
    """The plain values of a list, or the keys and values of a map, and where it ends."""
    code = data[position]
    if code == codes[0]:
        end, count, position = position + 2 + data[position + 1], data[position + 2], position + 3
    elif code == codes[1]:
        end, count, position = position + 5 + _u32(data, position + 1)[0], _u32(data, position + 5)[0], position + 9
    elif code == codes[2]:
        return [], position + 1
    else:
        raise ValueError("another value than expected")
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
        elif code in FIXED:
            size, read = FIXED[code]
            add(read(data, position + 1))
            position += 1 + size
        elif code in CONSTANTS:
            add(CONSTANTS[code])
            position += 1
        elif code == 0xA3:
            start = position + 2
            position = start + data[position + 1]
            add(Symbol(data[start:position].decode("ascii")))
        elif code == 0xA0:
            start = position + 2
            position = start + data[position + 1]
            add(data[start:position])
        elif code == 0xB1:
            start = position + 5
            position = start + _u32(data, position + 1)[0]
            add(data[start:position].decode())
        else:
            raise ValueError("a value of another type")
    if position != end or end > len(data):
        raise ValueError("the values do not end where their list or map does")
    return values, end


def _application(values: list[Any]) -> dict[str, Any]:
    """Application properties from their keys and values."""
    if len(values) % 2:
        raise ValueError("not made of pairs")
    found: dict[str, Any] = {}
    pairs = iter(values)
    for name, value in zip(pairs, pairs, strict=True):
        if type(name) is not str:
            raise ValueError("a name that is no string")
        found[name] = value if type(value) in PLAIN_PROPERTIES else property_value(name, value)
    return found


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


@lru_cache(maxsize=_KEPT)
def _kept_header(section: bytes) -> _Header | None:
    try:
        fields = [*_value(section), None, None, None]
        return _Header(fields[0] is True, clamped(integer(fields[1], "priority")), integer(fields[2], "ttl"))
    except _FAULTS:
        return None


def _header(section: bytes) -> _Header:
    found = _kept_header(section) if len(section) <= MOST_KEPT_BYTES else None
    if found is None:
        raise ValueError("a header of another form")
    return found


@lru_cache(maxsize=_KEPT)
def _kept_annotations(section: bytes) -> _Annotations | None:
    try:
        annotations = _value(section)
        return _Annotations(
            named_kind(annotations, DESTINATION_KEYS),
            named_kind(annotations, REPLY_TO_KEYS),
            integer(annotations.get(MESSAGE_TYPE), "message type"),
            integer(annotations.get(DELIVERY_TIME), str(DELIVERY_TIME)),
            integer(annotations.get(DELIVERY_DELAY), str(DELIVERY_DELAY)),
            identity_of(annotations),
        )
    except _FAULTS:
        return None


def _annotations(section: bytes) -> _Annotations:
    found = _kept_annotations(section) if len(section) <= MOST_KEPT_BYTES else None
    if found is None:
        raise ValueError("annotations of another form")
    return found


@lru_cache(maxsize=_KEPT)
def _identified(section: bytes) -> tuple[_Annotations, str, int] | None:
    """What annotations say that end with the eight bytes of a sequence, which are missing here; the producer, thread.

    None where they end with something else.
    """
    found = [_kept_annotations.__wrapped__(section + each.to_bytes(8)) for each in _SOME_SEQUENCES]
    identities = [each.identity for each in found if each is not None and each.identity is not None]
    if [each.sequence for each in identities] != list(_SOME_SEQUENCES):
        return None
    assert found[0] is not None
    return found[0], identities[0].producer_id, identities[0].thread_id


def _value(section: bytes) -> Any:
    """The value of a section of this form, with the limits of :mod:`broker_adapter.amqp.values`."""
    reader = Reader(section, 3)
    value = reader.value()
    if reader.position != len(section):
        raise ValueError("the value ends early")
    return value


@lru_cache(maxsize=_KEPT)
def _kept_destination(name: str, kind: DestinationKind | None) -> Destination:
    return Destination(name, DestinationKind.QUEUE if kind is None else kind)


def _destination(name: Any, kind: DestinationKind | None) -> Destination:
    if len(name) > MAX_NAME_BYTES or type(name) is not str:
        raise ValueError("no common name")
    return _kept_destination(name, kind)


#: All that keeps something of messages.
KEPT: Final = (_kept_header, _kept_annotations, _identified, _kept_destination)
