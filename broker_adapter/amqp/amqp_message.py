"""Standard AMQP messages as bytes, and back: the JMS mapping of AMQP 1.0.  Pure.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from broker_adapter.amqp.sections import (
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
)
from broker_adapter.amqp.values import Byte, Described, Symbol, Timestamp, UByte, UInt, ULong, encode
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import (
    AMQP_FORMAT,
    DEAD_LETTER_PREFIX,
    BodyKind,
    Envelope,
    Head,
    Identity,
    check_identity,
)
from broker_adapter.errors import MessageFormatException
from broker_adapter.wording import why_unencodable

#: Message annotations of the JMS mapping, and ours.
MESSAGE_TYPE: Final = Symbol("x-opt-jms-msg-type")
DESTINATION_TYPE: Final = Symbol("x-opt-jms-dest")
REPLY_TO_TYPE: Final = Symbol("x-opt-jms-reply-to")
DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
DELIVERY_DELAY: Final = Symbol("x-opt-delivery-delay")
IDENTITY: Final = Symbol("x-opt-holdfast-identity")
#: Property by which ActiveMQ Artemis knows a message that it has already.
DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_LEGACY_DESTINATION_TYPE: Final = Symbol("x-opt-to-type")
_LEGACY_REPLY_TO_TYPE: Final = Symbol("x-opt-reply-type")

_MAX_UINT: Final = 0xFFFFFFFF
_MAX_LONG: Final = (1 << 63) - 1


def read_head(payload: bytes, now_ms: int) -> Head:
    """What routes an AMQP message, from the sections ahead of the application's.

    Args:
        payload: the message.
        now_ms: the time it came in, milliseconds since the epoch; a time-to-live counts from it.

    Raises:
        MessageFormatException: these parts cannot be decoded.
    """
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
    expires_at_ms = _integer(_field(properties, 8), "absolute-expiry-time") or None
    if expires_at_ms is None:
        ttl = _integer(_field(header, 2), "ttl")
        expires_at_ms = now_ms + ttl if ttl else None
    to = _string(_field(properties, 2))
    return Head(
        AMQP_FORMAT,
        None if to is None else Destination(to, _kind(annotations, _DESTINATION_KEYS, None)),
        _clamped(_integer(_field(header, 1), "priority")),
        _field(header, 0) is True,
        expires_at_ms,
        _delivery_time(annotations, now_ms),
        _string(_field(properties, 10)),
        _identity(annotations),
    )


def delivery_count_of(payload: bytes) -> int:
    """How many deliveries of an AMQP message have failed, as its header says.

    Raises:
        MessageFormatException: the header cannot be decoded.
    """
    if payload.startswith(b"\x00\x53\x70\xc0") and len(payload) > 5 and payload[5] < 5:
        return 0
    header = next(sections(payload, (HEADER,)), None)
    return _integer(_field(header, 4), "delivery-count") or 0 if header else 0


def dead_letter_properties(payload: bytes) -> dict[str, Any]:
    """What the engine has added to a message that became a dead letter, also where the message cannot be decoded."""
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


def encode_amqp(envelope: Envelope) -> bytes:
    """An envelope as a standard AMQP message.

    Raises:
        MessageFormatException: a value in it has no AMQP form.
    """
    try:
        return b"".join(_encoded_sections(envelope))
    except ValueError as error:
        raise MessageFormatException(f"the message cannot be encoded: {why_unencodable(error)}") from error


def with_duplicate_id(envelope: Envelope) -> Envelope:
    """A message with its identity in the form that ActiveMQ Artemis knows; one that the application gave is kept."""
    properties = envelope.properties or {}
    if envelope.identity is None or DUPLICATE_ID in properties:
        return envelope
    return envelope._replace(properties={**properties, DUPLICATE_ID: _duplicate_id(envelope.identity)})


def _duplicate_id(identity: Identity) -> str:
    return ":".join(map(str, identity))


def _encoded_sections(envelope: Envelope) -> Iterator[bytes]:
    ttl = None
    if envelope.expires_at_ms is not None and envelope.sent_at_ms is not None:
        ttl = max(1, envelope.expires_at_ms - envelope.sent_at_ms)
        if ttl >= _MAX_UINT:
            ttl = None
    if envelope.persistent or envelope.priority != 4 or ttl is not None:
        priority = None if envelope.priority == 4 else UByte(envelope.priority)
        yield _list_section(HEADER, [envelope.persistent or None, priority, None if ttl is None else UInt(ttl)])
    yield _map_section(MESSAGE_ANNOTATIONS, _annotations(envelope))
    user_id = None if envelope.user_id is None else envelope.user_id.encode()
    group_sequence = envelope.group_sequence
    yield _list_section(
        PROPERTIES,
        [
            _id_value(envelope.message_id),
            user_id,
            envelope.destination.name,
            envelope.type,
            None if envelope.reply_to is None else envelope.reply_to.name,
            _id_value(envelope.correlation_id),
            Symbol("application/octet-stream") if envelope.body_kind is BodyKind.BYTES else None,
            None,
            None if envelope.expires_at_ms is None else Timestamp(envelope.expires_at_ms),
            None if envelope.sent_at_ms is None else Timestamp(envelope.sent_at_ms),
            envelope.group_id,
            None if group_sequence is None else UInt(group_sequence & _MAX_UINT),
        ],
    )
    if envelope.properties:
        check_properties(len(envelope.properties))
        for name, value in envelope.properties.items():
            if isinstance(value, (list, tuple, dict)):
                raise ValueError(f"property {name!r} is a {type(value).__name__}, which no property can be")
        yield _map_section(APPLICATION_PROPERTIES, envelope.properties)
    yield from _encoded_body(envelope.body_kind, envelope.body)


def _encoded_body(kind: BodyKind, body: Any) -> Iterator[bytes]:
    if kind is BodyKind.NONE:
        return
    if kind is BodyKind.BYTES:
        yield b"\x00\x53\x75" + encode(b"" if body is None else body)
    elif kind is BodyKind.STREAM:
        yield b"\x00\x53\x76" + encode([] if body is None else body)
    else:
        yield b"\x00\x53\x77" + encode({} if body is None and kind is BodyKind.MAP else body)


def _annotations(envelope: Envelope) -> dict[Symbol, Any]:
    annotations: dict[Symbol, Any] = {
        MESSAGE_TYPE: Byte(envelope.body_kind),
        DESTINATION_TYPE: Byte(envelope.destination.kind),
    }
    if envelope.reply_to is not None:
        annotations[REPLY_TO_TYPE] = Byte(envelope.reply_to.kind)
    if envelope.deliver_at_ms is not None:
        annotations[DELIVERY_TIME] = envelope.deliver_at_ms
    if envelope.identity is not None:
        annotations[IDENTITY] = list(envelope.identity)
    return annotations


def _list_section(code: int, fields: list[Any]) -> bytes:
    while fields and fields[-1] is None:
        fields.pop()
    return b"\x00\x53" + bytes((code,)) + encode(fields)


def _map_section(code: int, entries: Mapping[Any, Any]) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(dict(entries))


_ID_FORMS: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("ID:AMQP_UUID:", UUID),
    ("ID:AMQP_ULONG:", lambda text: ULong(int(text))),
    ("ID:AMQP_BINARY:", bytes.fromhex),
    ("ID:AMQP_STRING:", str),
    ("ID:AMQP_NO_PREFIX:", str),
)


def _id_value(value: str | bytes | None) -> Any:
    """A message or correlation id as AMQP carries it; the escaped forms become what they stand for."""
    if isinstance(value, str) and value.startswith("ID:AMQP_"):
        for prefix, convert in _ID_FORMS:
            if value.startswith(prefix):
                try:
                    return convert(value[len(prefix) :])
                except ValueError as error:
                    raise ValueError(f"id {value!r} does not hold what it says") from error
    return value


# AMQP to envelope.


def decode_amqp(payload: bytes, destination: Destination | None = None) -> Envelope:
    """The envelope of an AMQP message, of whatever sender.

    Args:
        payload: the message.
        destination: where it was received from; used where the message itself does not say.

    Raises:
        MessageFormatException: it cannot be decoded.
    """
    return _envelope_of(sections(payload, None), destination)


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
                str(name): item if type(item) in _PLAIN_PROPERTIES else _property(name, item)
                for name, item in value.items()
            }
        elif code in (DATA, SEQUENCE, VALUE):
            bodies.append((code, value))
    kind, body = _body(bodies, _integer(annotations.get(MESSAGE_TYPE), "message type"), _string(_field(properties, 6)))
    default_kind = None if destination is None else destination.kind
    to = _string(_field(properties, 2))
    if to is not None:
        destination = Destination(to, _kind(annotations, _DESTINATION_KEYS, default_kind))
    elif destination is None:
        destination = Destination("")
    reply_to = _string(_field(properties, 4))
    sent_at_ms = _integer(_field(properties, 9), "creation-time")
    ttl = _integer(_field(header, 2), "ttl")
    expires_at_ms = _integer(_field(properties, 8), "absolute-expiry-time") or None
    if expires_at_ms is None and ttl and sent_at_ms is not None:
        expires_at_ms = sent_at_ms + ttl
    user_id = _field(properties, 1)
    identity = _identity(annotations)
    if application and identity is not None and application.get(DUPLICATE_ID) == _duplicate_id(identity):
        del application[DUPLICATE_ID]  # ours, and not the application's
    group_sequence = _integer(_field(properties, 11), "group-sequence")
    if group_sequence is not None and group_sequence > 0x7FFFFFFF:
        group_sequence -= 1 << 32
    return Envelope(
        destination=destination,
        body_kind=kind,
        body=body,
        properties=application or None,
        message_id=_message_id(_field(properties, 0)),
        correlation_id=_correlation_id(_field(properties, 5)),
        reply_to=None if reply_to is None else Destination(reply_to, _kind(annotations, _REPLY_TO_KEYS, default_kind)),
        type=_string(_field(properties, 3)),
        sent_at_ms=sent_at_ms,
        expires_at_ms=expires_at_ms,
        deliver_at_ms=_delivery_time(annotations, sent_at_ms),
        priority=_clamped(_integer(_field(header, 1), "priority")),
        persistent=_field(header, 0) is True,
        group_id=_string(_field(properties, 10)),
        group_sequence=group_sequence,
        user_id=user_id.decode(errors="replace") if isinstance(user_id, bytes) else _string(user_id),
        identity=identity,
    )


def _body(bodies: list[tuple[int, Any]], kind: int | None, content_type: str | None) -> tuple[BodyKind, Any]:
    """The body by the JMS mapping: by the annotation where it fits the section, else by the section."""
    if not bodies:
        # A message of an unknown type without a body reads as bytes, as in the reference client.
        kind = kind if kind in _KINDS else BodyKind.BYTES
        empty: dict[Any, Any] = {BodyKind.MAP: {}, BodyKind.STREAM: [], BodyKind.BYTES: b""}
        return BodyKind(kind), empty.get(kind)
    code, value = bodies[0]
    if code == DATA:
        data = value if len(bodies) == 1 else b"".join([item for each, item in bodies if each == DATA])
        return _data_body(data, kind, content_type)
    if code == SEQUENCE:
        items = [item for each, part in bodies if each == SEQUENCE for item in part]
        return (BodyKind.OBJECT if kind == BodyKind.OBJECT else BodyKind.STREAM), _plain(items)
    if kind == BodyKind.OBJECT or isinstance(value, UUID):
        return BodyKind.OBJECT, _plain(value)
    value = _plain(value)
    if value is None:
        return (BodyKind(kind), None) if kind in (BodyKind.NONE, BodyKind.TEXT) else (BodyKind.TEXT, None)
    if isinstance(value, str):
        return BodyKind.TEXT, str(value)
    if isinstance(value, bytes):
        return BodyKind.BYTES, value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return BodyKind.MAP, value
    if isinstance(value, list) and kind == BodyKind.STREAM:
        return BodyKind.STREAM, value
    return BodyKind.OBJECT, value


_KINDS: Final = frozenset(int(kind) for kind in BodyKind)
_TEXT_TYPES: Final = ("text/", "application/json", "application/xml")


def _data_body(data: bytes, kind: int | None, content_type: str | None) -> tuple[BodyKind, Any]:
    if kind == BodyKind.NONE and not data:
        return BodyKind.NONE, None  # RabbitMQ adds an empty section where there was none
    if kind in (None, BodyKind.TEXT) and content_type:
        media, *parameters = (part.strip() for part in content_type.lower().split(";"))
        if media.startswith(_TEXT_TYPES) or media.endswith(("+json", "+xml")):
            charset = next((part[8:].strip('"') for part in parameters if part.startswith("charset=")), "utf-8")
            try:
                return BodyKind.TEXT, data.decode(charset)
            except (LookupError, UnicodeDecodeError):
                return BodyKind.BYTES, data
    return BodyKind.BYTES, data


def _plain(value: Any) -> Any:
    """A decoded value without AMQP's own types, so that it can travel in an envelope."""
    if isinstance(value, (Symbol, Timestamp)):
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, UUID) else value


_PLAIN_PROPERTIES: Final = frozenset((bool, int, float, str, type(None)))


def _property(name: Any, value: Any) -> Any:
    """A value of an application property, which is a simple one (AMQP 1.0 section 3.2.5)."""
    if isinstance(value, (list, dict, Described)):
        raise MessageFormatException(f"property {str(name)!r} is a {type(value).__name__}, which no property can be")
    return _plain(value)


def _field(fields: list[Any], index: int) -> Any:
    return fields[index] if index < len(fields) else None


def _string(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    raise MessageFormatException(f"{value!r} is not a string")


def _integer(value: Any, name: str) -> int | None:
    if value is None or type(value) is int:
        if value is not None and not -_MAX_LONG <= value <= _MAX_LONG:
            raise MessageFormatException(f"{name} {value!r} is out of range")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value == value and abs(value) < 2.0**62:
        return int(value)
    raise MessageFormatException(f"{name} {value!r} is not a number")


def _clamped(priority: int | None) -> int:
    return 4 if priority is None else max(0, min(9, priority))


def _delivery_time(annotations: Mapping[Any, Any], now_ms: int | None) -> int | None:
    time_ms = _integer(annotations.get(DELIVERY_TIME), str(DELIVERY_TIME))
    if time_ms is not None:
        return time_ms
    delay_ms = _integer(annotations.get(DELIVERY_DELAY), str(DELIVERY_DELAY))
    return None if delay_ms is None or now_ms is None or delay_ms <= 0 else now_ms + delay_ms


def _identity(annotations: Mapping[Any, Any]) -> Identity | None:
    fields = annotations.get(IDENTITY)
    if fields is None:
        return None
    if not isinstance(fields, list) or len(fields) != 3:
        raise MessageFormatException(f"{IDENTITY} {fields!r} is not a producer, a thread and a sequence")
    check_identity(*fields)
    return Identity._make(fields)


_DESTINATION_KEYS: Final = (DESTINATION_TYPE, _LEGACY_DESTINATION_TYPE)
_REPLY_TO_KEYS: Final = (REPLY_TO_TYPE, _LEGACY_REPLY_TO_TYPE)
_DESTINATION_KINDS: Final = {int(kind): kind for kind in DestinationKind}


def _kind(
    annotations: Mapping[Any, Any], keys: tuple[Symbol, Symbol], default: DestinationKind | None
) -> DestinationKind:
    """What kind of destination an address names, by the annotation or its older, textual form."""
    number = annotations.get(keys[0])
    if type(number) is int and number in _DESTINATION_KINDS:
        return _DESTINATION_KINDS[number]
    legacy = annotations.get(keys[1])
    if isinstance(legacy, str):
        words = {word.strip() for word in legacy.split(",")}
        return DestinationKind(("topic" in words) + 2 * ("temporary" in words))
    return DestinationKind.QUEUE if default is None else default


def _message_id(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = str(value)
        if not text.startswith("ID:"):
            return f"ID:AMQP_NO_PREFIX:{text}"
        return _escaped(text)
    return _typed_id(value)


def _correlation_id(value: Any) -> str | bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _escaped(str(value))
    return _typed_id(value)


def _escaped(text: str) -> str:
    """The text, marked as text where it looks like one of the escaped forms."""
    return f"ID:AMQP_STRING:{text}" if any(text.startswith(prefix) for prefix, _ in _ID_FORMS) else text


def _typed_id(value: Any) -> str:
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"ID:AMQP_ULONG:{int(value)}"
    raise MessageFormatException(f"id {value!r} is none of the types that an id can have")
