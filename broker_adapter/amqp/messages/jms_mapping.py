"""What the fields, annotations and bodies of AMQP messages mean: the rules of AMQP 1.0's JMS mapping.  Pure.

Whatever comes in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from broker_adapter.amqp.messages.sections import DATA, SEQUENCE
from broker_adapter.amqp.messages.values import Byte, Described, Symbol, Timestamp, ULong, encode
from broker_adapter.destination import DestinationKind
from broker_adapter.envelope import BodyKind, Envelope, Identity, check_identity
from broker_adapter.errors import MessageFormatException

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

MAX_UINT: Final = 0xFFFFFFFF
_MAX_LONG: Final = (1 << 63) - 1

# From a message of ours.


_ID_FORMS: Final[tuple[tuple[str, Callable[[str], Any]], ...]] = (
    ("ID:AMQP_UUID:", UUID),
    ("ID:AMQP_ULONG:", lambda text: ULong(int(text))),
    ("ID:AMQP_BINARY:", bytes.fromhex),
    ("ID:AMQP_STRING:", str),
    ("ID:AMQP_NO_PREFIX:", str),
)


#: What each of these forms begins with.
_ID_FORM: Final = "ID:AMQP_"


def is_id_form(text: str) -> bool:
    """Return whether a text may be one of these forms, or look like one."""
    return text.startswith(_ID_FORM)


def id_value(value: str | bytes | None) -> Any:
    """A message or correlation id as AMQP carries it; the escaped forms become what they stand for."""
    if isinstance(value, str) and value.startswith(_ID_FORM):
        for prefix, convert in _ID_FORMS:
            if value.startswith(prefix):
                try:
                    return convert(value[len(prefix) :])
                except ValueError as error:
                    raise ValueError(f"id {value!r} does not hold what it says") from error
    return value


def annotations_of(envelope: Envelope) -> dict[Symbol, Any]:
    """The message annotations of a message."""
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


def encoded_body(kind: BodyKind, body: Any) -> bytes:
    """Return the section of a body, which every message has; raises ValueError for what has no AMQP form."""
    if kind is BodyKind.NONE:
        return b"\x00\x53\x77\x40"
    if kind is BodyKind.BYTES:
        return b"\x00\x53\x75" + encode(b"" if body is None else body)
    if kind is BodyKind.STREAM:
        return b"\x00\x53\x76" + encode([] if body is None else body)
    return b"\x00\x53\x77" + encode({} if body is None and kind is BodyKind.MAP else body)


def duplicate_id(identity: Identity) -> str:
    """The identity of a message in the form that ActiveMQ Artemis knows."""
    producer_id, thread_id, sequence = identity
    return f"{producer_id}:{thread_id}:{sequence}"


# From a message that came in.


def body_of(bodies: list[tuple[int, Any]], kind: int | None, content_type: str | None) -> tuple[BodyKind, Any]:
    """The body by the JMS mapping: by the annotation where it fits the section, else by the section."""
    if not bodies:
        # A message of an unknown type without a body reads as in the reference client.
        if kind not in _KINDS:
            kind = BodyKind.BYTES if _charset(content_type) is None else BodyKind.TEXT
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
    charset = _charset(content_type) if kind in (None, BodyKind.TEXT) else None
    if charset is not None:
        try:
            return BodyKind.TEXT, data.decode(charset)
        except (LookupError, UnicodeDecodeError):
            pass
    return BodyKind.BYTES, data


def _charset(content_type: str | None) -> str | None:
    """Return the character set of a content type of text; None for any other."""
    media, *parameters = (part.strip() for part in (content_type or "").lower().split(";"))
    if not media.startswith(_TEXT_TYPES) and not media.endswith(("+json", "+xml")):
        return None
    return next((part[8:].strip('"') for part in parameters if part.startswith("charset=")), "utf-8")


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


PLAIN_PROPERTIES: Final = frozenset((bool, int, float, str, type(None)))


def property_value(name: Any, value: Any) -> Any:
    """A value of an application property, which is a simple one (AMQP 1.0 section 3.2.5)."""
    if isinstance(value, (list, dict, Described)):
        raise MessageFormatException(f"property {str(name)!r} is a {type(value).__name__}, which no property can be")
    return _plain(value)


def field(fields: list[Any], index: int) -> Any:
    return fields[index] if index < len(fields) else None


def string(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    raise MessageFormatException(f"{value!r} is not a string")


def integer(value: Any, name: str) -> int | None:
    if value is None or type(value) is int:
        if value is not None and not -_MAX_LONG <= value <= _MAX_LONG:
            raise MessageFormatException(f"{name} {value!r} is out of range")
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and value == value and abs(value) < 2.0**62:
        return int(value)
    raise MessageFormatException(f"{name} {value!r} is not a number")


def clamped(priority: int | None) -> int:
    return 4 if priority is None else max(0, min(9, priority))


def delivery_time(annotations: Mapping[Any, Any], now_ms: int | None) -> int | None:
    time_ms = integer(annotations.get(DELIVERY_TIME), str(DELIVERY_TIME))
    if time_ms is not None:
        return time_ms
    delay_ms = integer(annotations.get(DELIVERY_DELAY), str(DELIVERY_DELAY))
    return None if delay_ms is None or now_ms is None or delay_ms <= 0 else now_ms + delay_ms


def identity_of(annotations: Mapping[Any, Any]) -> Identity | None:
    fields = annotations.get(IDENTITY)
    if fields is None:
        return None
    if not isinstance(fields, list) or len(fields) != 3:
        raise MessageFormatException(f"{IDENTITY} {fields!r} is not a producer, a thread and a sequence")
    check_identity(*fields)
    return Identity._make(fields)


DESTINATION_KEYS: Final = (DESTINATION_TYPE, _LEGACY_DESTINATION_TYPE)
REPLY_TO_KEYS: Final = (REPLY_TO_TYPE, _LEGACY_REPLY_TO_TYPE)
_DESTINATION_KINDS: Final = {int(kind): kind for kind in DestinationKind}


def kind_of(
    annotations: Mapping[Any, Any], keys: tuple[Symbol, Symbol], default: DestinationKind | None
) -> DestinationKind:
    """Return what kind of destination an address names; where nothing says it, the default, or a queue."""
    kind = named_kind(annotations, keys)
    if kind is None:
        return DestinationKind.QUEUE if default is None else default
    return kind


def named_kind(annotations: Mapping[Any, Any], keys: tuple[Symbol, Symbol]) -> DestinationKind | None:
    """Return what kind of destination an address names, by the annotation or its older, textual form; None: nothing
    says.
    """
    number = annotations.get(keys[0])
    if type(number) is int and number in _DESTINATION_KINDS:
        return _DESTINATION_KINDS[number]
    legacy = annotations.get(keys[1])
    if isinstance(legacy, str):
        words = {word.strip() for word in legacy.split(",")}
        return DestinationKind(("topic" in words) + 2 * ("temporary" in words))
    return None


def message_id_of(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = str(value)
        if not text.startswith("ID:"):
            return f"ID:AMQP_NO_PREFIX:{text}"
        return _escaped(text)
    return _typed_id(value)


def correlation_id_of(value: Any) -> str | bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _escaped(str(value))
    return _typed_id(value)


def _escaped(text: str) -> str:
    """The text, marked as text where it looks like one of the escaped forms."""
    if text.startswith(_ID_FORM) and any(text.startswith(prefix) for prefix, _ in _ID_FORMS):
        return f"ID:AMQP_STRING:{text}"
    return text


def _typed_id(value: Any) -> str:
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"ID:AMQP_ULONG:{int(value)}"
    raise MessageFormatException(f"id {value!r} is none of the types that an id can have")
