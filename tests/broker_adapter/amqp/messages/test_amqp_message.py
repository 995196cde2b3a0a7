"""Messages and their bytes: round trips, foreign senders, what a server reads, what it rewrites."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import format_of, read_head
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import MessageFormatException

NAMES = st.text(min_size=1, max_size=10)
INSTANTS = st.integers(1, 2**41)
SIMPLE = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
)
DESTINATIONS = st.builds(Destination, NAMES, st.sampled_from(DestinationKind))
TREES = st.recursive(
    SIMPLE | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
BODIES = st.one_of(
    st.just((BodyKind.NONE, None)),
    st.tuples(st.just(BodyKind.TEXT), st.none() | st.text(max_size=300)),
    st.tuples(st.just(BodyKind.BYTES), st.binary(max_size=300)),
    st.tuples(st.just(BodyKind.MAP), st.dictionaries(NAMES, SIMPLE | st.binary(max_size=9), max_size=4)),
    st.tuples(st.just(BodyKind.STREAM), st.lists(SIMPLE | st.binary(max_size=9), max_size=4)),
    st.tuples(st.just(BodyKind.OBJECT), TREES),
)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    kind, body = draw(BODIES)
    return Envelope(
        destination=draw(DESTINATIONS),
        body_kind=kind,
        body=body,
        properties=draw(st.none() | st.dictionaries(NAMES, SIMPLE, min_size=1, max_size=4)),
        message_id=draw(st.none() | st.from_regex(r"\AID:[a-z0-9:-]{1,20}\Z")),
        correlation_id=draw(st.none() | st.text(max_size=20) | st.binary(max_size=9)),
        reply_to=draw(st.none() | DESTINATIONS),
        type=draw(st.none() | st.text(max_size=9)),
        sent_at_ms=draw(st.none() | INSTANTS),
        expires_at_ms=draw(st.none() | INSTANTS),
        deliver_at_ms=draw(st.none() | INSTANTS),
        priority=draw(st.integers(0, 9)),
        persistent=draw(st.booleans()),
        group_id=draw(st.none() | NAMES),
        group_sequence=draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        user_id=draw(st.none() | st.text(max_size=9)),
        identity=draw(st.none() | st.builds(Identity, NAMES, st.integers(0, 2**32), st.integers(0, 2**62))),
    )


FULL = Envelope(
    queue("orders"),
    BodyKind.TEXT,
    "hello",
    {"a": 1, "b": None, "c": "x", "d": 1.5, "e": True},
    "ID:1",
    "corr",
    topic("answers"),
    "kind",
    1_000,
    5_000,
    3_000,
    9,
    True,
    "g",
    3,
    "me",
    Identity("p", 1, 2),
)


def foreign(**fields: Any) -> bytes:
    """A message as proton's own class encodes it."""
    return bytes(proton.Message(**fields).encode())


@given(envelopes())
def test_an_envelope_comes_back_from_amqp_as_it_went(envelope: Envelope) -> None:
    assert decode_amqp(encode_amqp(envelope)) == envelope


def test_every_field_comes_back_from_amqp() -> None:
    defaults = Envelope(queue("other"))
    missing = [name for name, value in FULL._asdict().items() if value == getattr(defaults, name)]
    assert missing == ["persistent"]  # see envelopes(): a field that is added belongs there and into FULL
    assert decode_amqp(encode_amqp(FULL)) == FULL


def test_proton_reads_what_we_write() -> None:
    message = proton.Message()
    message.decode(encode_amqp(FULL))

    assert (message.id, message.correlation_id, message.address, message.reply_to) == (
        "ID:1",
        "corr",
        "orders",
        "answers",
    )
    assert (message.durable, message.priority, message.ttl, message.expiry_time, message.creation_time) == (
        True,
        9,
        4.0,
        5.0,
        1.0,
    )
    assert (message.subject, message.group_id, message.group_sequence, message.user_id) == ("kind", "g", 3, b"me")
    assert message.properties == FULL.properties
    assert message.body == "hello"
    assert message.annotations["x-opt-jms-msg-type"] == 5
    assert message.annotations["x-opt-jms-dest"] == 0
    assert message.annotations["x-opt-jms-reply-to"] == 1
    assert message.annotations["x-opt-delivery-time"] == 3_000


def test_a_plain_message_has_no_header() -> None:
    assert b"\x00\x53\x70" not in encode_amqp(Envelope(queue("q"), persistent=False))


def test_a_message_without_a_body_has_the_section_that_every_message_needs() -> None:
    """AMQP 1.0, part 3, 3.2; RabbitMQ 4 ends the session of a sender that leaves it out."""
    encoded = encode_amqp(Envelope(queue("q"), persistent=False))

    assert encoded.endswith(b"\x00\x53\x77\x40")
    assert decode_amqp(encoded).body_kind is BodyKind.NONE


@pytest.mark.parametrize(
    ("fields", "kind", "body"),
    [
        ({"body": "text"}, BodyKind.TEXT, "text"),
        ({"body": None}, BodyKind.BYTES, b""),
        ({"body": None, "content_type": "application/octet-stream"}, BodyKind.BYTES, b""),
        ({"body": None, "content_type": "text/plain"}, BodyKind.TEXT, None),
        ({"body": None, "content_type": "application/json;charset=utf-8"}, BodyKind.TEXT, None),
        ({"body": b"raw"}, BodyKind.BYTES, b"raw"),
        ({"body": b"raw", "inferred": True}, BodyKind.BYTES, b"raw"),
        ({"body": b"caf\xc3\xa9", "inferred": True, "content_type": "text/plain"}, BodyKind.TEXT, "café"),
        ({"body": b"caf\xe9", "inferred": True, "content_type": "text/plain; charset=latin-1"}, BodyKind.TEXT, "café"),
        ({"body": b"\xff", "inferred": True, "content_type": "text/plain"}, BodyKind.BYTES, b"\xff"),
        ({"body": b"x", "inferred": True, "content_type": "text/plain;charset=no-such"}, BodyKind.BYTES, b"x"),
        ({"body": b"{}", "inferred": True, "content_type": "application/json"}, BodyKind.TEXT, "{}"),
        ({"body": b"{}", "inferred": True, "content_type": "application/octet-stream"}, BodyKind.BYTES, b"{}"),
        ({"body": {"a": 1}}, BodyKind.MAP, {"a": 1}),
        ({"body": {1: 1}}, BodyKind.OBJECT, {1: 1}),
        ({"body": [1, "b"]}, BodyKind.OBJECT, [1, "b"]),
        ({"body": [1, "b"], "inferred": True}, BodyKind.STREAM, [1, "b"]),
        ({"body": 5}, BodyKind.OBJECT, 5),
        ({"body": UUID(int=1)}, BodyKind.OBJECT, str(UUID(int=1))),
    ],
)
def test_messages_of_foreign_senders_are_read_by_their_body(fields: Any, kind: BodyKind, body: Any) -> None:
    envelope = decode_amqp(foreign(**fields))

    assert (envelope.body_kind, envelope.body) == (kind, body)


def test_a_message_without_anything_reads_as_bytes() -> None:
    assert decode_amqp(b"").body_kind is BodyKind.BYTES
    assert format_of(b"") == AMQP_FORMAT


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ID:x", "ID:x"),
        ("x", "ID:AMQP_NO_PREFIX:x"),
        ("ID:AMQP_ULONG:5", "ID:AMQP_STRING:ID:AMQP_ULONG:5"),
        (5, "ID:AMQP_ULONG:5"),
        (UUID(int=7), f"ID:AMQP_UUID:{UUID(int=7)}"),
        (b"\x0a\xff", "ID:AMQP_BINARY:0AFF"),
    ],
)
def test_message_ids_of_every_type_are_escaped_and_come_back(value: Any, text: str) -> None:
    envelope = decode_amqp(foreign(id=value))
    back = proton.Message()
    back.decode(encode_amqp(envelope))

    assert envelope.message_id == text
    assert back.id == value


@pytest.mark.parametrize("text", ["ID:AMQP_UUID:no", "ID:AMQP_ULONG:x", "ID:AMQP_ULONG:-1", "ID:AMQP_BINARY:xyz"])
def test_escaped_ids_that_do_not_hold_what_they_say_are_refused(text: str) -> None:
    with pytest.raises(MessageFormatException):
        encode_amqp(Envelope(queue("q"), correlation_id=text))


def test_correlation_ids_are_text_or_bytes() -> None:
    assert decode_amqp(foreign(correlation_id="any text")).correlation_id == "any text"
    assert decode_amqp(foreign(correlation_id=b"\x01")).correlation_id == b"\x01"
    assert decode_amqp(foreign(correlation_id=9)).correlation_id == "ID:AMQP_ULONG:9"


@pytest.mark.parametrize(
    ("annotations", "kind"),
    [
        ({"x-opt-jms-dest": proton.byte(1)}, DestinationKind.TOPIC),
        ({"x-opt-to-type": "topic,temporary"}, DestinationKind.TEMPORARY_TOPIC),
        ({"x-opt-to-type": "queue"}, DestinationKind.QUEUE),
        ({}, DestinationKind.TEMPORARY_QUEUE),
        ({"x-opt-jms-dest": proton.byte(77)}, DestinationKind.TEMPORARY_QUEUE),
    ],
)
def test_the_kind_of_destination_comes_from_the_annotation_or_the_consumer(
    annotations: Any, kind: DestinationKind
) -> None:
    payload = foreign(address="there", annotations={proton.symbol(key): value for key, value in annotations.items()})

    assert decode_amqp(payload, Destination("here", DestinationKind.TEMPORARY_QUEUE)).destination == Destination(
        "there", kind
    )


def test_a_message_without_an_address_is_from_where_it_was_consumed() -> None:
    assert decode_amqp(foreign(body="x"), topic("here")).destination == topic("here")


def test_expiry_of_a_foreign_message_is_absolute_or_counts_from_its_arrival() -> None:
    assert read_head(foreign(ttl=2.5), 10_000).expires_at_ms == 12_500
    assert read_head(foreign(ttl=2.5, expiry_time=99), 10_000).expires_at_ms == 99_000
    assert read_head(foreign(body="x"), 10_000).expires_at_ms is None
    for null, zero in ((b"\x40", b"\x43"), (b"\x42", b"\x52\x00")):
        header = b"\x00\x53\x70\xc0" + bytes((3 + len(zero), 3)) + null + b"\x40" + zero
        sent = foreign(body="x", creation_time=1.5, id="i")
        assert read_head(header + sent[sent.index(b"\x00\x53\x73") :], 10_000).expires_at_ms == 10_000


def test_delivery_time_is_an_instant_or_a_delay() -> None:
    def annotated(name: str, value: Any) -> bytes:
        return foreign(annotations={proton.symbol(name): value})

    assert read_head(annotated("x-opt-delivery-time", 5_000), 1).deliver_at_ms == 5_000
    assert read_head(annotated("x-opt-delivery-time", proton.timestamp(5_000)), 1).deliver_at_ms == 5_000
    assert read_head(annotated("x-opt-delivery-delay", proton.ulong(500)), 1_000).deliver_at_ms == 1_500
    assert read_head(annotated("x-opt-delivery-delay", 0), 1_000).deliver_at_ms is None


def test_priority_is_clamped() -> None:
    assert read_head(foreign(priority=200), 0).priority == 9
    assert read_head(pack(FULL._replace(priority=77)), 0).priority == 9
    assert unpack(pack(FULL._replace(priority=-1))).priority == 0


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(queue("q"), BodyKind.OBJECT, object()),
        Envelope(queue("q"), BodyKind.TEXT, "\ud800"),
        Envelope(queue("q"), properties={"nested": [1]}),
        Envelope(queue("q"), BodyKind.OBJECT, 1 << 70),
    ],
)
def test_what_amqp_cannot_carry_is_refused(envelope: Envelope) -> None:
    with pytest.raises(MessageFormatException):
        encode_amqp(envelope)
