"""Strategies for values that no honest client has: any plain value in any field, any bytes as a message."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

from broker_adapter.amqp.codec import DELIVERY_DELAY, DELIVERY_TIME, DESTINATION_TYPE, IDENTITY, MESSAGE_TYPE
from broker_adapter.amqp.values import Symbol, Timestamp, encode
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, pack

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
_FIELDS = len(Envelope._fields)


@st.composite
def _packed(draw: st.DrawFn) -> bytes:
    """An envelope of which some fields are anything."""
    good = msgpack.unpackb(pack(Envelope(queue("q"), BodyKind.TEXT, "body", {"colour": "red", "n": 7})))
    for _ in range(draw(st.integers(0, 3))):
        good[draw(st.integers(0, _FIELDS - 1))] = draw(VALUES)
    try:
        return bytes(msgpack.packb(good))
    except (OverflowError, ValueError):
        return b""  # a number that msgpack has no form for


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


def _is_hashable(value: Any) -> bool:
    return not isinstance(value, list | dict)


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
