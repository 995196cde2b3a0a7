"""Our codec and proton's, on generated messages, both ways."""

from __future__ import annotations

from typing import Any

import proton
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.messages.amqp_message import decode_ahead, decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import read_head
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException
from tests.broker_adapter.amqp.messages.test_amqp_message import envelopes

NOW_MS = 1_780_000_000_000


@settings(max_examples=80)
@given(envelopes())
def test_proton_reads_what_we_write(envelope: Envelope) -> None:
    message = proton.Message()
    message.decode(encode_amqp(envelope))
    assert message.address == as_c(envelope.destination.name)
    assert message.reply_to == (None if envelope.reply_to is None else as_c(envelope.reply_to.name))
    assert (message.id, message.correlation_id) == (envelope.message_id, envelope.correlation_id)
    assert message.subject == as_c(envelope.type)
    assert (message.durable, message.priority) == (envelope.persistent, envelope.priority)
    assert message.properties == (envelope.properties or None)
    assert message.user_id == (envelope.user_id or "").encode()
    assert message.group_id == as_c(envelope.group_id)
    assert message.group_sequence == (envelope.group_sequence or 0) & 0xFFFFFFFF
    for seconds, ms in ((message.creation_time, envelope.sent_at_ms), (message.expiry_time, envelope.expires_at_ms)):
        assert round(seconds * 1000) == (ms or 0)
    annotations = {str(name): value for name, value in (message.annotations or {}).items()}
    assert annotations["x-opt-jms-msg-type"] == envelope.body_kind
    assert annotations["x-opt-jms-dest"] == envelope.destination.kind
    assert annotations.get("x-opt-delivery-time") == envelope.deliver_at_ms
    empty: dict[BodyKind, Any] = {BodyKind.MAP: {}, BodyKind.STREAM: [], BodyKind.BYTES: b""}
    assert message.body == (empty.get(envelope.body_kind) if envelope.body is None else envelope.body)


def as_c(text: str | None) -> str | None:
    """What proton's strings in C hold of a text."""
    return None if text is None else text.partition("\0")[0]


_numbers = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(proton.int32),
    st.integers(0, 2**32 - 1).map(proton.uint),
    st.integers(0, 2**64 - 1).map(proton.ulong),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-128, 127).map(proton.byte),
    st.integers(0, 255).map(proton.ubyte),
    st.integers(-(2**15), 2**15 - 1).map(proton.short),
    st.integers(0, 2**16 - 1).map(proton.ushort),
    st.floats(width=32, allow_nan=False).map(proton.float32),
    st.floats(allow_nan=False),
)
_scalars = st.one_of(
    _numbers,
    st.none(),
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.uuids(),
    st.sampled_from(["a", "key", "x-opt"]).map(proton.symbol),
    st.characters(codec="utf-8").map(proton.char),
    st.integers(0, 2**40).map(proton.timestamp),
    st.integers(0, 2**32 - 1).map(proton.decimal32),
    st.integers(0, 2**64 - 1).map(proton.decimal64),
    st.binary(min_size=16, max_size=16).map(proton.decimal128),
)
_arrays = st.one_of(
    st.lists(st.integers(-100, 100).map(proton.int32), max_size=4).map(
        lambda items: proton.Array(proton.UNDESCRIBED, proton.Data.INT, *items)
    ),
    st.lists(st.text(max_size=5), max_size=4).map(
        lambda items: proton.Array(proton.UNDESCRIBED, proton.Data.STRING, *items)
    ),
)
_bodies = st.recursive(
    st.one_of(_scalars, _arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(0, 9)), inner, max_size=3),
        st.builds(proton.Described, st.sampled_from([proton.symbol("mine"), proton.ulong(77)]), inner),
    ),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message as a program that uses proton may send it."""
    text = st.none() | st.text(max_size=10)
    message = proton.Message(
        body=draw(_bodies),
        inferred=draw(st.booleans()),
        id=draw(st.none() | st.text(max_size=10) | st.uuids() | st.integers(0, 2**63).map(proton.ulong)),
        correlation_id=draw(st.none() | st.text(max_size=10) | st.binary(max_size=5) | st.uuids()),
        address=draw(text),
        reply_to=draw(text),
        subject=draw(text),
        content_type=draw(st.sampled_from([None, "text/plain", "application/json; charset=latin-1", "x"])),
        durable=draw(st.booleans()),
        priority=draw(st.integers(0, 255)),
        ttl=draw(st.integers(0, 10_000)) / 1000,
        creation_time=draw(st.integers(0, 2**40)) / 1000,
        group_id=draw(text),
        properties=draw(st.none() | st.dictionaries(st.text(max_size=8), _scalars, max_size=4)),
        annotations=draw(
            st.none()
            | st.dictionaries(st.sampled_from(["x-opt-a", "x-opt-b"]).map(proton.symbol), _scalars, max_size=2)
        ),
    )
    return bytes(message.encode())


@settings(max_examples=100)
@given(messages())
def test_we_read_what_proton_writes_or_say_why_not(payload: bytes) -> None:
    try:
        envelope = decode_amqp(payload)
        stored = read_head(payload, NOW_MS)
    except MessageFormatException:
        return
    message = proton.Message()
    try:
        message.decode(payload)
    except (TypeError, ValueError):  # proton cannot read all that it writes: a described null or binary in a map
        return
    assert as_c(envelope.destination.name) == (message.address or "")
    assert (as_c(envelope.type), as_c(envelope.group_id)) == (message.subject, message.group_id)
    assert envelope.persistent is stored.persistent is message.durable
    assert envelope.priority == stored.priority == min(message.priority, 9)
    assert set(envelope.properties or ()) == set(message.properties or ())
    assert decode_ahead(payload).properties == envelope.properties
    # What was read can be carried in our own format, and says the same when it is written again.
    pack(envelope)
    assert decode_amqp(encode_amqp(envelope)).body == envelope.body
