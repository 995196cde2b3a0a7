"""The kinds of messages, one for each type of body (Jakarta Messaging 3.1 section 3.11)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from broker_adapter import BodyKind, MessageEOFException, MessageFormatException, MessageNotReadableException
from sdk.messages.conversion import Type, checked, converted
from sdk.messages.message import Message, check_body_type
from sdk.messages.typed_values import NamedValues, SequentialValues
from sdk.messages.values import copied_body, duplicated


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


class _StructuredMessage(Message):
    """One whose body has parts that can change; what was received is given out as a copy."""

    __slots__ = ()

    @property
    def body(self) -> Any:
        """What the message says, to be changed in place until it is sent; of a received message, a copy each time.

        Raises:
            MessageNotWriteableException: set on a received message; ``clear_body()`` makes it writable.
            MessageFormatException: set to a value that this kind of message does not carry.
        """
        return self._given_out(self._body)

    @body.setter
    def body(self, value: Any) -> None:
        self._set_body(value)

    def is_body_assignable_to(self, kind: type) -> bool:
        """See ``Message``."""
        check_body_type(kind)
        return self._body is None or isinstance(self._body, kind)

    def _given_out(self, value: Any) -> Any:
        return value if self._body_writable else duplicated(value)


class MapMessage(_StructuredMessage, NamedValues):
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
        return self._given_out(self._body[name])

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not name:
            raise MessageFormatException(f"the name {name!r} of a map's item is not a string of at least one character")
        self._require_writable_body()
        value = copied_body(value, 1)
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
            return copied_body(value, 0)
        raise MessageFormatException(f"a map message carries a dict, not {type(value).__name__}")

    def _body_to_send(self) -> Any:
        return None if self._body is None else self._checked_body(self._body)


class StreamMessage(_StructuredMessage, SequentialValues):
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
        return iter(self.body or ())

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
        return self._given_out(value)

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
        self._body.append(copied_body(value, 1))

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
            return copied_body(value, 0)
        raise MessageFormatException(f"a stream message carries a list, not {type(value).__name__}")

    def _body_to_send(self) -> Any:
        return None if self._body is None else self._checked_body(self._body)


class ObjectMessage(_StructuredMessage):
    """Carries one value of the types that a map message carries.  Never a pickled object."""

    __slots__ = ()
    body_kind = BodyKind.OBJECT

    def _checked_body(self, value: Any) -> Any:
        return copied_body(value, 0)

    def _body_to_send(self) -> Any:
        return copied_body(self._body, 0)


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
    """Return where the next read begins."""
    cursor = getattr(message, "_cursor", 0)  # a received message has none before its first read
    if cursor is None:
        raise MessageNotReadableException("the body is being written; call reset() to read it")
    return cursor
