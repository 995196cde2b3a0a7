"""Messages as an application holds them (Jakarta Messaging 3.1 section 3).

Two functions convert between a message and the envelope that is carried and stored, and only here:
:func:`envelope_of` copies whatever the application could still change, :func:`message_of` wraps what arrived.

A message that was received is read-only: its properties and its body cannot be set before ``clear_properties()`` and
``clear_body()``.  Headers can always be set; those that a send decides are overwritten by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, MutableMapping
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeVar

from ack_modes import DeliveryTag
from broker_adapter import (
    MAX_BODY_DEPTH,
    BodyKind,
    Destination,
    Envelope,
    Identity,
    IllegalStateException,
    InvalidDestinationException,
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    MessageNotWriteableException,
    checked_property_name,
)
from sdk.conversion import Type, checked, converted
from sdk.typed_values import NamedValues, SequentialValues

_T = TypeVar("_T")
PropertyValue = bool | int | float | str | None
#: ``message.acknowledge()`` calls the function that the session gave it, with the tag of its delivery.
Acknowledge = Callable[[DeliveryTag], None]

_SCALARS: Final = frozenset({bool, int, float, str, type(None)})
_BODY_SCALARS: Final = _SCALARS | {bytes}
_LEAST, _MOST = -(2**63), 2**63 - 1


class DeliveryMode(IntEnum):
    """Whether a message survives a restart of the broker."""

    NON_PERSISTENT = 1
    PERSISTENT = 2


# Properties.


def _checked_value(name: str, value: object) -> PropertyValue:
    if type(value) not in _SCALARS:
        value = _plain_scalar(value)
        if type(value) not in _SCALARS:
            raise MessageFormatException(
                f"property {name!r} cannot have the value {value!r} of type {type(value).__name__}; "
                "bool, int, float, str and None can be properties"
            )
    if type(value) is int and not _LEAST <= value <= _MOST:
        raise MessageFormatException(f"property {name!r} cannot have the value {value!r}: it does not fit in 64 bits")
    return value  # type: ignore[return-value]


def _plain_scalar(value: object) -> object:
    """The same value without its subclass, such as the int of an IntEnum; others as they are."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value


class MessageProperties(MutableMapping[str, PropertyValue], NamedValues):
    """The application's properties of a message: names as in JMS, values bool, int, float, str or None.

    A mapping of the values as they are; ``get_int(name)`` and its like convert them.
    """

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def __getitem__(self, name: str) -> PropertyValue:
        values = self._message._property_values
        if values is None:
            raise KeyError(name)
        return values[name]  # type: ignore[no-any-return]

    def __setitem__(self, name: str, value: PropertyValue) -> None:
        if type(name) is not str:
            raise MessageFormatException(f"property name {name!r} is not a string")
        checked_property_name(name)
        self._writable()[name] = _checked_value(name, value)

    def __delitem__(self, name: str) -> None:
        del self._writable()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._message._property_values or ())

    def __len__(self) -> int:
        return len(self._message._property_values or ())

    def __repr__(self) -> str:
        return repr(self._message._property_values or {})

    def _get(self, name: str, wanted: Type) -> Any:
        values = self._message._property_values
        return converted(None if values is None else values.get(name), wanted, f"property {name!r}")

    def _set(self, name: str, value: Any, written: Type) -> None:
        self[name] = checked(value, written, f"property {name!r}")

    def _writable(self) -> dict[str, Any]:
        message = self._message
        if not message._properties_writable:
            raise MessageNotWriteableException(
                "the properties of a received message are read-only; call clear_properties() first"
            )
        if message._property_values is None:
            message._property_values = {}
        return message._property_values


# Messages.


class Message:
    """A message; by itself one without a body.

    Attributes:
        destination: where it was sent to; set by ``send``.
        message_id: ``ID:...``, unique; set by ``send``.
        correlation_id: of the application; str or bytes.
        reply_to: where an answer is wanted.
        type: of the application.
        priority: 0 to 9; set by ``send``.
        delivery_mode: set by ``send``.
        sent_at_ms: when it was sent, in milliseconds since the epoch; set by ``send``.
        expires_at_ms: when it expires; None: never; set by ``send``.
        deliver_at_ms: before which it is not delivered; set by ``send``.
        delivery_count: which delivery this is, 1 for the first (``JMSXDeliveryCount``); 0: it was not received.
        group_id: ``JMSXGroupID``.
        group_sequence: ``JMSXGroupSeq``.
        user_id: who sent it (``JMSXUserID``), where the sender's connection says so (option ``populate_user_id``); set
            by ``send``.
    """

    __slots__ = (
        "_acknowledge",
        "_body",
        "_body_writable",
        "_properties_writable",
        "_property_values",
        "_tag",
        "correlation_id",
        "deliver_at_ms",
        "delivery_count",
        "delivery_mode",
        "destination",
        "expires_at_ms",
        "group_id",
        "group_sequence",
        "message_id",
        "priority",
        "reply_to",
        "sent_at_ms",
        "type",
        "user_id",
    )

    body_kind: ClassVar[BodyKind] = BodyKind.NONE

    def __init__(self, body: Any = None) -> None:
        """A message to be sent.

        Args:
            body: see the class; None: no body yet.

        Raises:
            MessageFormatException: the body has another type than this kind of message carries.
        """
        self.destination: Destination | None = None
        self.message_id: str | None = None
        self.correlation_id: str | bytes | None = None
        self.reply_to: Destination | None = None
        self.type: str | None = None
        self.priority = 4
        self.delivery_mode = DeliveryMode.PERSISTENT
        self.sent_at_ms: int | None = None
        self.expires_at_ms: int | None = None
        self.deliver_at_ms: int | None = None
        self.delivery_count = 0
        self.group_id: str | None = None
        self.group_sequence: int | None = None
        self.user_id: str | None = None
        self._body: Any = None
        self._body_writable = True
        self._property_values: dict[str, Any] | None = None
        self._properties_writable = True
        self._acknowledge: Acknowledge | None = None
        self._tag: DeliveryTag | None = None
        if body is not None:
            self._body = self._checked_body(body)

    @property
    def body(self) -> Any:
        """What the message says; its type is told by the class.

        Raises:
            MessageNotWriteableException: set on a received message; ``clear_body()`` makes it writable.
            MessageFormatException: set to a value that this kind of message does not carry.
        """
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._set_body(value)

    def _set_body(self, value: Any) -> None:
        self._require_writable_body()
        self._body = None if value is None else self._checked_body(value)

    def _require_writable_body(self) -> None:
        if not self._body_writable:
            raise MessageNotWriteableException(
                "the body of a message that was received or reset is read-only; call clear_body() first"
            )

    @property
    def properties(self) -> MessageProperties:
        """The application's properties, as a mapping."""
        return MessageProperties(self)

    @property
    def redelivered(self) -> bool:
        """Whether an earlier delivery of it has failed, so that it may have been seen before."""
        return self.delivery_count > 1

    def is_body_assignable_to(self, kind: type) -> bool:
        """Whether ``get_body(kind)`` gives the body (as ``Message.isBodyAssignableTo``)."""
        return self._body is None or isinstance(self.body, kind)

    def get_body(self, kind: type[_T]) -> _T | None:
        """The body as a value of this type; None where there is no body.

        Raises:
            MessageFormatException: the body has another type.
        """
        body = self.body
        if body is not None and not isinstance(body, kind):
            raise MessageFormatException(f"the body is a {type(body).__name__}, not a {kind.__name__}")
        return body

    def clear_body(self) -> None:
        """Drop the body; it can then be set."""
        self._body = None
        self._body_writable = True

    def clear_properties(self) -> None:
        """Drop the properties; they can then be set."""
        self._property_values = None
        self._properties_writable = True

    def acknowledge(self) -> None:
        """Acknowledge as the session's mode says: CLIENT everything received, INDIVIDUAL this; others ignore it.

        Raises:
            IllegalStateException: the message was not received, or its session is closed.
            StaleAcknowledgementException: it was held when the connection was lost; it will come again.
        """
        if self._acknowledge is None or self._tag is None:
            raise IllegalStateException("cannot acknowledge: the message was not received by a consumer")
        self._acknowledge(self._tag)

    def __repr__(self) -> str:
        facts = [
            f"{name}={value!r}"
            for name, value in (
                ("message_id", self.message_id),
                ("destination", None if self.destination is None else str(self.destination)),
                ("body", _shortened(self._body)),
                ("properties", self._property_values),
                ("correlation_id", self.correlation_id),
                ("delivery_count", self.delivery_count or None),
            )
            if value is not None
        ]
        return f"<{' '.join([type(self).__name__, *facts])}>"

    def _checked_body(self, value: Any) -> Any:
        raise MessageFormatException(f"a message without a body cannot carry {_shortened(value)!r}")

    def _body_to_send(self) -> Any:
        """The body, checked and copied as far as the application could still change it."""
        return self._body


class TextMessage(Message):
    """Carries a str."""

    __slots__ = ()
    body_kind = BodyKind.TEXT

    @property
    def text(self) -> str | None:
        """The body.

        Raises:
            MessageNotWriteableException: set on a received message; ``clear_body()`` makes it writable.
            MessageFormatException: set to something else than a str.
        """
        return self._body  # type: ignore[no-any-return]

    @text.setter
    def text(self, value: str | None) -> None:
        self.body = value

    def __str__(self) -> str:
        return self._body or ""

    def _checked_body(self, value: Any) -> Any:
        if type(value) is str:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        raise MessageFormatException(f"a text message carries a str, not {type(value).__name__}")


class BytesMessage(Message, SequentialValues):
    """Carries bytes; a bytearray or memoryview is copied.

    ``write_int`` and its like add to the body, ``read_int`` and its like take from it, both as Java's ``DataOutput``
    and ``DataInput`` do: big-endian, a boolean as an octet, a string as UTF-8 behind its length of 16 bits.
    """

    __slots__ = ("_cursor", "_pieces")
    body_kind = BodyKind.BYTES

    def __init__(self, body: Any = None) -> None:
        """See ``Message``."""
        super().__init__(body)
        self._cursor: int | None = None  #: None: the body is being written
        self._pieces: list[bytes] = []  #: what was written and is not part of the body yet

    def __bytes__(self) -> bytes:
        return self.body or b""

    def __len__(self) -> int:
        return len(self.body or b"")

    @property
    def body(self) -> Any:
        """The bytes.

        Raises:
            MessageNotWriteableException: set on a received message; ``clear_body()`` makes it writable.
            MessageFormatException: set to something else than bytes.
        """
        self._join()
        return self._body

    @body.setter
    def body(self, value: Any) -> None:
        self._set_body(value)
        self._pieces = []

    @property
    def body_length(self) -> int:
        """The number of bytes."""
        return len(self)

    def clear_body(self) -> None:
        """Drop the body; it can then be written."""
        super().clear_body()
        self._pieces = []
        self._cursor = None

    def reset(self) -> None:
        """Make the body read-only, and read it from its beginning."""
        self._join()
        self._body_writable = False
        self._cursor = 0

    def read_bytes(self, count: int | None = None) -> bytes:
        """The next bytes.

        Args:
            count: how many; None: all that are left.

        Raises:
            MessageEOFException: there are fewer.
            MessageNotReadableException: the body is being written; ``reset()`` ends that.
        """
        if count is None:
            count = len(self) - _cursor_of(self)
        return self._take(count)

    def read_utf(self) -> str:
        """The next string: its length in octets as 16 bits, then UTF-8.

        Raises:
            MessageEOFException: the body ends before it does.
            MessageFormatException: it is not UTF-8.
            MessageNotReadableException: the body is being written; ``reset()`` ends that.
        """
        start = _cursor_of(self)
        try:
            return self._take(int.from_bytes(self._take(2), "big")).decode()
        except UnicodeDecodeError as error:
            self._cursor = start
            raise MessageFormatException(f"octets {start} and following are not UTF-8: {error}") from error
        except MessageEOFException:
            self._cursor = start
            raise

    def write_bytes(self, value: bytes | bytearray | memoryview) -> None:
        """Add bytes.

        Raises:
            MessageFormatException: they are none.
            MessageNotWriteableException: the body is read-only.
        """
        self._add(checked(value, Type.BYTES, "the value") or b"")

    def write_utf(self, value: str) -> None:
        """Add a string: its length in octets as 16 bits, then UTF-8.

        Raises:
            MessageFormatException: it is none, or longer than 65,535 octets.
            MessageNotWriteableException: the body is read-only.
        """
        data = str(checked(value, Type.STRING, "the value")).encode()
        if len(data) > 0xFFFF:
            raise MessageFormatException(f"string of {len(data)} octets is longer than the limit of {0xFFFF}")
        self._add(len(data).to_bytes(2, "big") + data)

    def _read(self, wanted: Type) -> Any:
        form = _FORMS[wanted]
        return form.unpack(self._take(form.size))[0]

    def _write(self, value: Any, written: Type) -> None:
        self._add(_FORMS[written].pack(checked(value, written, "the value")))

    def _take(self, count: int) -> bytes:
        start = _cursor_of(self)
        body: bytes = self._body or b""
        if start + count > len(body):
            raise MessageEOFException(f"cannot read {count} bytes at {start}: the body ends at {len(body)}")
        self._cursor = start + count
        return body[start : start + count]

    def _add(self, data: bytes) -> None:
        self._require_writable_body()
        self._pieces.append(data)

    def _join(self) -> None:
        pieces = getattr(self, "_pieces", None)  # a received message has none
        if pieces:
            self._body = b"".join([self._body or b"", *pieces])
            pieces.clear()

    def _body_to_send(self) -> Any:
        return self.body

    def __bool__(self) -> bool:
        return True

    def _checked_body(self, value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise MessageFormatException(f"a bytes message carries bytes, not {type(value).__name__}")


class MapMessage(Message, NamedValues):
    """Carries a dict of names to values: bool, int, float, str, bytes, None, and lists and dicts of these.

    Other JMS clients read the flat values; lists and dicts in it are for readers of this SDK.  ``message["k"]`` and
    ``message.body`` give values as they are, ``get_int("k")`` and its like convert them.
    """

    __slots__ = ()
    body_kind = BodyKind.MAP

    @property
    def map_names(self) -> list[str]:
        """The names."""
        return list(self._body or ())

    def __contains__(self, name: object) -> bool:
        return self._body is not None and name in self._body

    def __getitem__(self, name: str) -> Any:
        if self._body is None:
            raise KeyError(name)
        return self._body[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not name:
            raise MessageFormatException(f"the name {name!r} of a map's item is not a string of at least one character")
        self._require_writable_body()
        value = _copied(value, 1)
        if self._body is None:
            self._body = {}
        self._body[name] = value

    def get_bytes(self, name: str) -> bytes | None:
        """The value of a name as bytes; None where there is none."""
        return self._get(name, Type.BYTES)  # type: ignore[no-any-return]

    def set_bytes(self, name: str, value: bytes | None) -> None:
        """Set bytes."""
        self._set(name, value, Type.BYTES)

    def _get(self, name: str, wanted: Type) -> Any:
        return converted(None if self._body is None else self._body.get(name), wanted, f"item {name!r}")

    def _set(self, name: str, value: Any, written: Type) -> None:
        self[name] = checked(value, written, f"item {name!r}")

    def _checked_body(self, value: Any) -> Any:
        if isinstance(value, dict):
            return _copied(value, 0)
        raise MessageFormatException(f"a map message carries a dict, not {type(value).__name__}")

    def _body_to_send(self) -> Any:
        return None if self._body is None else self._checked_body(self._body)


class StreamMessage(Message, SequentialValues):
    """Carries a list of values, of the types that a map message carries.

    ``message.body`` and iteration give the values as they are; ``write_int`` and its like add to them, ``read_int`` and
    its like read and convert them one after the other.
    """

    __slots__ = ("_cursor",)
    body_kind = BodyKind.STREAM

    def __init__(self, body: Any = None) -> None:
        """See ``Message``."""
        super().__init__(body)
        self._cursor: int | None = None  #: None: the body is being written

    def __iter__(self) -> Iterator[Any]:
        return iter(self._body or ())

    def clear_body(self) -> None:
        """Drop the body; it can then be written."""
        super().clear_body()
        self._cursor = None

    def reset(self) -> None:
        """Make the body read-only, and read it from its beginning."""
        self._body_writable = False
        self._cursor = 0

    def read_string(self) -> str | None:
        """The next value as a string."""
        return self._read(Type.STRING)  # type: ignore[no-any-return]

    def read_bytes(self) -> bytes | None:
        """The next value, which is bytes or None."""
        return self._read(Type.BYTES)  # type: ignore[no-any-return]

    def read_object(self) -> Any:
        """The next value as it is."""
        position, value = self._peek()
        self._cursor = position + 1
        return value

    def write_string(self, value: str | None) -> None:
        """Add a string."""
        self._write(value, Type.STRING)

    def write_bytes(self, value: bytes | None) -> None:
        """Add bytes."""
        self._write(value, Type.BYTES)

    def write_object(self, value: Any) -> None:
        """Add a value of any type that a stream carries."""
        self._require_writable_body()
        if self._body is None:
            self._body = []
        self._body.append(_copied(value, 1))

    def _read(self, wanted: Type) -> Any:
        position, value = self._peek()
        result = converted(value, wanted, f"item {position} of the stream")
        self._cursor = position + 1
        return result

    def _peek(self) -> tuple[int, Any]:
        position = _cursor_of(self)
        items = self._body or []
        if position >= len(items):
            raise MessageEOFException(f"the stream has {len(items)} items, which have all been read")
        return position, items[position]

    def _write(self, value: Any, written: Type) -> None:
        self.write_object(checked(value, written, f"item {len(self._body or ())} of the stream"))

    def _checked_body(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return _copied(value, 0)
        raise MessageFormatException(f"a stream message carries a list, not {type(value).__name__}")

    def _body_to_send(self) -> Any:
        return None if self._body is None else self._checked_body(self._body)


class ObjectMessage(Message):
    """Carries one value of the types that a map message carries.  Never a pickled object."""

    __slots__ = ()
    body_kind = BodyKind.OBJECT

    def _checked_body(self, value: Any) -> Any:
        return _copied(value, 0)

    def _body_to_send(self) -> Any:
        return _copied(self._body, 0)


#: How a bytes message holds values.
_FORMS: Final = {
    Type.BOOLEAN: struct.Struct(">?"),
    Type.BYTE: struct.Struct(">b"),
    Type.SHORT: struct.Struct(">h"),
    Type.INT: struct.Struct(">i"),
    Type.LONG: struct.Struct(">q"),
    Type.FLOAT: struct.Struct(">f"),
    Type.DOUBLE: struct.Struct(">d"),
}


def _cursor_of(message: BytesMessage | StreamMessage) -> int:
    """Where the next read begins."""
    cursor = getattr(message, "_cursor", 0)  # a received message has none before its first read
    if cursor is None:
        raise MessageNotReadableException("the body is being written; call reset() to read it")
    return cursor


def _copied(value: Any, depth: int) -> Any:
    """The value of a body, checked; a copy of whatever in it can change."""
    kind = type(value)
    if kind in _BODY_SCALARS:
        if kind is int and not _LEAST <= value <= _MOST:
            raise MessageFormatException(f"a message cannot carry {value!r}: it does not fit in 64 bits")
        return value
    if depth >= MAX_BODY_DEPTH:
        raise MessageFormatException(f"the body nests deeper than the limit of {MAX_BODY_DEPTH} levels")
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise MessageFormatException(f"a name in a message's map is a str, not {name!r}")
        return {name: _copied(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item, depth + 1) for item in value]
    if isinstance(value, bytearray | memoryview | bytes):
        return bytes(value)
    plain = _plain_scalar(value)
    if type(plain) in _SCALARS:
        return _copied(plain, depth)
    raise MessageFormatException(
        f"a message cannot carry {_shortened(value)!r} of type {kind.__name__}; "
        "bool, int, float, str, bytes, None, list and dict can be carried"
    )


def _shortened(value: Any) -> Any:
    if isinstance(value, str | bytes) and len(value) > 60:
        return value[:60] + (b"..." if isinstance(value, bytes) else "...")  # type: ignore[operator]
    return value


# The two conversions, and what leads to them.


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
        f"cannot send a value of type {type(body).__name__}; a message, str, bytes, dict or list can be sent"
    )


def envelope_of(message: Message, identity: Identity) -> Envelope:
    """The message as it is carried: no later change of the message or of its body reaches it.

    Raises:
        MessageFormatException: a header or the body has a type that a message cannot carry.
        InvalidDestinationException: ``reply_to`` is no destination.
    """
    correlation_id, reply_to, values = message.correlation_id, message.reply_to, message._property_values
    if correlation_id is not None and not isinstance(correlation_id, str | bytes):
        raise MessageFormatException(f"correlation_id={correlation_id!r} is neither str nor bytes")
    if reply_to is not None and not isinstance(reply_to, Destination):
        raise InvalidDestinationException(
            f"reply_to={reply_to!r} is not a destination; session.create_queue() makes one"
        )
    for name in ("type", "group_id", "user_id"):
        value = getattr(message, name)
        if value is not None and not isinstance(value, str):
            raise MessageFormatException(f"{name}={value!r} is not a str")
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
            message._body_to_send(),
            dict(values) if values else None,
            message.message_id,
            correlation_id,
            reply_to,
            message.type,
            message.sent_at_ms,
            message.expires_at_ms,
            message.deliver_at_ms,
            message.priority,
            message.delivery_mode is DeliveryMode.PERSISTENT,
            message.group_id,
            sequence,
            message.user_id,
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
        message.priority,
        persistent,
        message.group_id,
        message.group_sequence,
        message.user_id,
        _,
    ) = envelope
    message.delivery_mode = _PERSISTENT if persistent else _NON_PERSISTENT
    message.delivery_count = delivery_count + 1
    message._body_writable = message._properties_writable = False
    message._acknowledge = acknowledge
    message._tag = tag
    return message


_PERSISTENT, _NON_PERSISTENT = DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT
_new: Final = tuple.__new__  #: what a named tuple calls, without a function of Python
