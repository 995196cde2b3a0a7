"""The sections of an AMQP message (AMQP 1.0 section 3.2): which there are, where each begins, what it may hold.  Pure.

Whatever comes in is untrusted: what reads whole sections raises MessageFormatException, the rest ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from broker_adapter.amqp.messages.values import Reader, Symbol
from broker_adapter.envelope import MAX_PROPERTIES, RESERVED, RESERVED_BYTES
from broker_adapter.errors import MessageFormatException

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
AHEAD_OF_APPLICATION: Final = (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES)
AHEAD_OF_BODY: Final = (*AHEAD_OF_APPLICATION, APPLICATION_PROPERTIES)
_CODES: Final[dict[Any, int]] = {
    Symbol("amqp:header:list"): HEADER,
    Symbol("amqp:delivery-annotations:map"): DELIVERY_ANNOTATIONS,
    Symbol("amqp:message-annotations:map"): MESSAGE_ANNOTATIONS,
    Symbol("amqp:properties:list"): PROPERTIES,
    Symbol("amqp:application-properties:map"): APPLICATION_PROPERTIES,
    Symbol("amqp:data:binary"): DATA,
    Symbol("amqp:amqp-sequence:list"): SEQUENCE,
    Symbol("amqp:amqp-value:*"): VALUE,
    Symbol("amqp:footer:map"): 0x78,
}
_ADDED_PROPERTIES: Final = 16  #: more than may be added to those of the application
#: Most values in the sections of a message ahead of its body, which the server decodes: a name and a value of each
#: property, and what stands beside them.
MAX_AHEAD_VALUES: Final = 2 * (MAX_PROPERTIES + _ADDED_PROPERTIES) + 1_000
_MAP32: Final = 0xD1  #: the constructor of a map with more than 255 members
_APPLICATION: Final = struct.Struct(">xBBBII")  #: the head of a section of properties, with the constructor of its map
_SECTION_TYPES: Final[dict[int, tuple[type, ...]]] = {
    HEADER: (list,),
    DELIVERY_ANNOTATIONS: (dict,),
    MESSAGE_ANNOTATIONS: (dict,),
    PROPERTIES: (list,),
    APPLICATION_PROPERTIES: (dict,),
    DATA: (bytes,),
    SEQUENCE: (list,),
}


def section_start(reader: Reader) -> tuple[int, int | None, int]:
    """Return where a section starts, its code and where its value starts; leaves the reader at the value."""
    start = reader.position
    if reader.data[start : start + 1] != b"\x00":
        if start == len(reader.data):
            return start, None, start
        raise ValueError("a section does not begin with its descriptor")
    reader.position = start + 1
    descriptor = reader.value()
    return start, section_code(descriptor), reader.position


def section_code(descriptor: Any) -> int | None:
    if type(descriptor) is int:
        return descriptor
    return _CODES.get(descriptor) if isinstance(descriptor, str) else None


def check_properties(count: int) -> None:
    if count > MAX_PROPERTIES + _ADDED_PROPERTIES:
        raise ValueError(f"{count} properties, more than the limit of {MAX_PROPERTIES}")


def sections(payload: bytes, wanted: tuple[int, ...] | None) -> Iterator[Any]:
    """The sections of a message as (code, value); stops at the first that is not ``wanted``, where given.

    With one wanted section its value alone is returned.
    """
    reader = Reader(payload) if wanted is None else Reader(payload, most_values=MAX_AHEAD_VALUES)
    size = len(payload)
    try:
        while reader.position < size:
            _, code, _ = section_start(reader)
            if code == APPLICATION_PROPERTIES and reader.data[reader.position] == _MAP32:
                check_properties(int.from_bytes(payload[reader.position + 5 : reader.position + 9]) // 2)
            if wanted is not None and code not in wanted:
                return
            value = reader.value()
            types = _SECTION_TYPES.get(-1 if code is None else code)
            if types is not None and not isinstance(value, types):
                raise ValueError(f"section 0x{code:02x} holds a {type(value).__name__}")
            if wanted is not None and len(wanted) == 1:
                yield value
                return
            yield code, value
    except (ValueError, IndexError, struct.error) as error:
        raise MessageFormatException(f"the message cannot be decoded: {error}") from error


def without_reserved(payload: bytes) -> bytes | None:
    """A message without properties that a client may not send, which is else as it came; None: it has none such.

    Raises:
        MessageFormatException: its sections cannot be told apart.
    """
    if RESERVED_BYTES not in payload:
        return None
    reader, size = Reader(payload), len(payload)
    parts: list[bytes] = []
    begin = 0  # of what comes behind these parts
    try:
        while reader.position < size:
            start, code, _ = section_start(reader)
            if code != APPLICATION_PROPERTIES:
                reader.skip()
                continue
            pairs, end = _pairs(reader)
            kept = [pair for name, pair in pairs if not isinstance(name, str) or name not in RESERVED]
            if len(kept) < len(pairs):
                packed = b"".join(kept)
                parts += (
                    payload[begin:start],
                    _APPLICATION.pack(0x53, APPLICATION_PROPERTIES, _MAP32, 4 + len(packed), 2 * len(kept)),
                    packed,
                )
                begin = end
    except (ValueError, IndexError, struct.error) as error:
        raise MessageFormatException(f"the message cannot be decoded: {error}") from error
    return b"".join((*parts, payload[begin:])) if parts else None


def _pairs(reader: Reader) -> tuple[list[tuple[Any, bytes]], int]:
    """The names of a map, each with the bytes of it and its value, and where the map ends."""
    data, position = reader.data, reader.position
    if data[position] not in (0xC1, _MAP32):
        raise ValueError("section 0x74 holds no map")
    width = 4 if data[position] == _MAP32 else 1
    reader.position = position + 1 + 2 * width
    end = position + 1 + width + int.from_bytes(data[position + 1 : position + 1 + width])
    pairs = []
    while reader.position < end:
        first = reader.position
        name = reader.value()
        reader.skip()
        pairs.append((name, data[first : reader.position]))
    if reader.position != end:
        raise ValueError("the pairs do not end where their map does")
    return pairs, end


def bare_part(payload: bytes) -> tuple[Any, bytes]:
    """The message-id of a message, and the part of it that no broker on its way changes (AMQP 1.0 section 3.2).

    Args:
        payload: the message; of it only the sections up to the properties are decoded.

    Returns:
        The id as AMQP has it, None where there is none; and the message from its properties on.

    Raises:
        MessageFormatException: these sections cannot be decoded.
    """
    reader = Reader(payload, most_values=MAX_AHEAD_VALUES)
    size = len(payload)
    try:
        while reader.position < size:
            start, code, _ = section_start(reader)
            if code not in AHEAD_OF_APPLICATION:
                return None, payload[start:]
            value = reader.value()
            if code == PROPERTIES:
                if not isinstance(value, list):
                    raise ValueError(f"section 0x{code:02x} holds a {type(value).__name__}")
                return value[0] if value else None, payload[start:]
        return None, b""
    except (ValueError, IndexError, struct.error) as error:
        raise MessageFormatException(f"the message cannot be decoded: {error}") from error
