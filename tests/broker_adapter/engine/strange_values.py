"""Strategies for values that no honest client has: any plain value in any field, any bytes as a message."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
from hypothesis import strategies as st

from broker_adapter.amqp.messages.jms_mapping import (
    DELIVERY_DELAY,
    DELIVERY_TIME,
    DESTINATION_TYPE,
    IDENTITY,
    MESSAGE_TYPE,
)
from broker_adapter.amqp.messages.values import Symbol, Timestamp, encode
from broker_adapter.destination import queue
from broker_adapter.envelope import ENVELOPE_VERSION, BodyKind, Envelope, pack

#: Numbers at the edges of what fits somewhere.
NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([0, -1, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 1 << 48, 253402300800000]),
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["q", "DLQ", "t", "x" * 600, "\0", "", "temporary-queue/x", "\N{SNOWMAN}" * 300]),
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def msgpack_of(value: Any) -> bytes:
    try:
        return bytes(msgpack.packb(value))
    except (OverflowError, ValueError):
        return b""  # a number that msgpack has no form for


def _is_hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


_NAMES = st.text(max_size=20).map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=20)
_PACKABLE = VALUES.map(msgpack_of)


@st.composite
def _packed(draw: st.DrawFn) -> bytes:
    """An envelope whose fields, sections and sizes are anything."""
    good = pack(Envelope(queue("q"), BodyKind.TEXT, "body", {"colour": "red", "n": 7}, type="x"))
    octets = list(good[:8])
    for _ in range(draw(st.integers(0, 3))):
        octets[draw(st.integers(1, 7))] = draw(st.integers(0, 255))
    octets[1] = draw(st.sampled_from([ENVELOPE_VERSION, ENVELOPE_VERSION, ENVELOPE_VERSION, 0, 2, 255]))
    keys = st.sampled_from(["corr", "reply", "type", "seq", "user", "x"])
    sections = [draw(_NAMES) for _ in range(4)]
    sections.append(draw(st.dictionaries(keys, VALUES, max_size=3).map(msgpack_of) | _PACKABLE))
    named = st.dictionaries(st.sampled_from(["colour", "n", ""]) | _SCALARS.filter(_is_hashable), VALUES, max_size=3)
    sections.append(draw(named.map(msgpack_of) | _PACKABLE))
    sections.append(draw(_PACKABLE | st.binary(max_size=20)))
    sizes = [len(each) for each in sections]
    if not draw(st.integers(0, 4)):
        sizes[draw(st.integers(0, 6))] = draw(st.integers(0, (1 << 32) - 1))
    numbers = [draw(NUMBERS.filter(lambda number: -(1 << 63) <= number < 1 << 63)) for _ in range(5)]
    return bytes(octets) + struct.pack(">7I5q", *sizes, *numbers) + b"".join(sections)


PACKED = _packed()


def _section(code: int, value: Any) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode(value)


#: What AMQP has for a field: of the type that belongs there, of another one, nothing.
_AMQP = VALUES | st.builds(Timestamp, st.integers(-(1 << 63), (1 << 63) - 1)) | st.builds(Symbol, st.just("colour"))


@st.composite
def _foreign(draw: st.DrawFn) -> bytes:
    """An AMQP message whose sections hold anything."""
    instructions = draw(
        st.dictionaries(
            st.sampled_from([DELIVERY_TIME, DELIVERY_DELAY, IDENTITY, MESSAGE_TYPE, DESTINATION_TYPE]),
            _AMQP,
            max_size=3,
        )
    )
    named = st.dictionaries(st.sampled_from(["colour", "n", ""]), _AMQP, max_size=3)
    parts = [
        (0x70, draw(st.lists(_AMQP, max_size=5))),
        (0x72, instructions),
        (0x73, draw(st.lists(_AMQP, max_size=13))),
        (0x74, draw(named | st.dictionaries(_AMQP.filter(_is_hashable), _AMQP, max_size=2))),
        (0x77, draw(_AMQP)),
    ]
    try:
        return b"".join(_section(code, value) for code, value in parts if draw(st.integers(0, 3)))
    except ValueError:
        return b""  # a number that AMQP has no form for


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A message of which some bytes are others."""
    data = bytearray(draw(PACKED | _foreign()))
    for _ in range(draw(st.integers(0, 4)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


FOREIGN = _foreign()
MUTATED = _mutated()
#: The payload of a message, good or not.
PAYLOADS = PACKED | FOREIGN | MUTATED
