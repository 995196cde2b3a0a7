"""An AMQP message as the server has stored it: delivered again with other headers, without decoding its body.  Pure.

Whatever came in is untrusted: every failure is a MessageFormatException.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from broker_adapter.amqp.messages.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    section_start,
)
from broker_adapter.amqp.messages.values import Described, Reader, Symbol, UInt, ULong, compound, encode
from broker_adapter.annotations import ANNOTATION_PREFIX, is_set_aside
from broker_adapter.envelope import MAX_REASON
from broker_adapter.errors import MessageFormatException

#: Why the body of a message is the stored bytes of another one.
UNDECODABLE: Final = Symbol("x-opt-holdfast-undecodable")
_TTL: Final = 2  #: its place in the header
_CONTENT_TYPE: Final = 6  #: that of content-type in the properties
_EXPIRY: Final = 8  #: that of absolute-expiry-time in the properties


def undecodable(payload: bytes, reason: str) -> bytes:
    """A stored message that cannot be decoded, as the body of an AMQP message that can.

    Args:
        payload: the message as it is stored, in whichever form.
        reason: why it cannot be decoded.
    """
    annotations = encode(Described(ULong(MESSAGE_ANNOTATIONS), {UNDECODABLE: reason[:MAX_REASON]}))
    content_type = [None] * _CONTENT_TYPE + [Symbol("application/octet-stream")]
    properties = encode(Described(ULong(PROPERTIES), content_type))
    return annotations + properties + encode(Described(ULong(DATA), payload))


def with_delivery(payload: bytes, delivery_count: int, annotations: Mapping[str, Any] | None = None) -> bytes:
    """A stored AMQP message as it is delivered: its bytes, with the delivery count set.

    Args:
        payload: the message as it came in.
        delivery_count: failed deliveries before this one.
        annotations: what was added to it: application properties, and message annotations by their names behind
            :data:`broker_adapter.envelope.ANNOTATION_PREFIX`; those that it has are replaced.

    Raises:
        MessageFormatException: the sections ahead of the body cannot be decoded.
    """
    short_head = payload.startswith(b"\x00\x53\x70\xc0") and len(payload) > 5 and payload[5] < 5
    if delivery_count == 0 and not annotations and (short_head or not payload.startswith(b"\x00\x53\x70")):
        return payload
    is_aside = bool(annotations) and is_set_aside(annotations or ())
    try:
        reader = Reader(payload)
        start, code, position = section_start(reader)
        if code == HEADER:
            fields = _raw_list(payload, position, reader)
            start = reader.position
        else:
            fields = []
        fields = [*fields, *[b"\x40"] * (4 - len(fields))][:4]
        if is_aside:
            fields[_TTL] = b"\x40"
        fields.append(encode(UInt(delivery_count)))
        head = b"\x00\x53\x70" + compound(0xC0, 5, b"".join(fields))
        if not annotations:
            return head + payload[start:]
        return head + _with_added(payload, start, annotations, is_aside=is_aside)
    except (ValueError, IndexError, struct.error) as error:
        raise MessageFormatException(f"the message cannot be decoded: {error}") from error


def _with_added(payload: bytes, start: int, annotations: Mapping[str, Any], *, is_aside: bool) -> bytes:
    """The payload from ``start`` on, with more in two of its maps; entries that stay keep their bytes."""
    added: dict[int, dict[str, bytes]] = {MESSAGE_ANNOTATIONS: {}, APPLICATION_PROPERTIES: {}}
    for name, value in annotations.items():
        if name.startswith(ANNOTATION_PREFIX):
            symbol = Symbol(name.removeprefix(ANNOTATION_PREFIX))
            encoded = value[1] if type(value) is list else encode(value)
            added[MESSAGE_ANNOTATIONS][symbol] = encode(symbol) + encoded
        else:
            added[APPLICATION_PROPERTIES][name] = encode(name) + encode(value)
    reader = Reader(payload, start)
    parts: list[bytes] = []
    while True:
        before, code, position = section_start(reader)
        # The maps stand in the order of their codes, and the body behind them.
        missing = [each for each in added if code is None or code > each]
        parts += [_map_section(each, more.values()) for each in missing if (more := added.pop(each))]
        if code is None or code > APPLICATION_PROPERTIES:
            return b"".join((*parts, payload[before:]))
        if more := added.pop(code, {}):
            pairs = _raw_pairs(payload, position, reader, frozenset(more))
            parts.append(_map_section(code, (*pairs, *more.values())))
        elif code == PROPERTIES and is_aside:
            parts.append(_without_expiry(payload, position, reader))
        else:
            reader.value()
            parts.append(payload[before : reader.position])


def _map_section(code: int, pairs: Collection[bytes]) -> bytes:
    return bytes((0x00, 0x53, code)) + compound(0xC1, 2 * len(pairs), b"".join(pairs))


def _without_expiry(payload: bytes, position: int, reader: Reader) -> bytes:
    """The section of properties, the rest of which keeps its bytes; leaves the reader behind it."""
    fields = _raw_list(payload, position, reader)
    if len(fields) > _EXPIRY:
        fields[_EXPIRY] = b"\x40"
    return b"\x00\x53\x73" + compound(0xC0, len(fields), b"".join(fields))


def _compound_start(data: bytes, position: int, codes: tuple[int, int, int]) -> tuple[int, int]:
    """The number of members of a list or map, and where the first one starts; ``codes``: empty, short, long."""
    code = data[position]
    if code == codes[0]:
        return 0, position + 1
    if code == codes[1]:
        return data[position + 2], position + 3
    if code == codes[2]:
        return int.from_bytes(data[position + 5 : position + 9]), position + 9
    raise ValueError(f"type code 0x{code:02x} where a section's list or map should be")


def _raw_list(data: bytes, position: int, reader: Reader) -> list[bytes]:
    reader.position = position
    reader.value()  # the limits are checked here
    end = reader.position
    count, start = _compound_start(data, position, (0x45, 0xC0, 0xD0))
    fields = []
    reader.position = start
    for _ in range(count):
        reader.value()
        fields.append(data[start : reader.position])
        start = reader.position
    reader.position = end
    return fields


def _raw_pairs(data: bytes, position: int, reader: Reader, left_out: frozenset[str]) -> list[bytes]:
    reader.position = position
    reader.value()
    end = reader.position
    count, start = _compound_start(data, position, (-1, 0xC1, 0xD1))
    pairs = []
    reader.position = start
    for _ in range(count // 2):
        key = reader.value()
        reader.value()
        if key not in left_out:
            pairs.append(data[start : reader.position])
        start = reader.position
    reader.position = end
    return pairs
