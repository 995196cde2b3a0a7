"""Messages and their bytes: round trips, foreign senders, what a server reads, what it rewrites."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgpack
import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp import codec
from broker_adapter.amqp.codec import (
    Answer,
    Request,
    decode_amqp,
    decode_payload,
    decode_received,
    encode_amqp,
    format_of,
    new_message,
    received,
    with_delivery,
    with_place,
)
from broker_adapter.amqp.values import Symbol, encode
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    StaleAcknowledgementException,
)
from broker_adapter.packing import MAX_CONTAINERS

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


@given(envelopes())
def test_routing_fields_are_the_same_in_both_formats(envelope: Envelope) -> None:
    if envelope.sent_at_ms is None or envelope.expires_at_ms is None:
        envelope = envelope._replace(expires_at_ms=None)

    amqp, amqp_to = new_message(encode_amqp(envelope), 0)
    ours, ours_to = new_message(pack(envelope), 0)

    assert (amqp.format, ours.format) == (AMQP_FORMAT, ENVELOPE_FORMAT)
    assert amqp[2:] == ours[2:]
    assert amqp_to == ours_to == envelope.destination
    assert (ours.priority, ours.persistent, ours.identity) == (
        envelope.priority,
        envelope.persistent,
        envelope.identity,
    )


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


def test_a_plain_message_has_neither_header_nor_body() -> None:
    encoded = encode_amqp(Envelope(queue("q"), persistent=False))

    assert b"\x00\x53\x70" not in encoded
    assert b"\x00\x53\x75" not in encoded
    assert b"\x00\x53\x77" not in encoded


@pytest.mark.parametrize(
    ("fields", "kind", "body"),
    [
        ({"body": "text"}, BodyKind.TEXT, "text"),
        ({"body": None}, BodyKind.BYTES, b""),
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
    assert new_message(foreign(ttl=2.5), 10_000)[0].expires_at_ms == 12_500
    assert new_message(foreign(ttl=2.5, expiry_time=99), 10_000)[0].expires_at_ms == 99_000
    assert new_message(foreign(body="x"), 10_000)[0].expires_at_ms is None


def test_delivery_time_is_an_instant_or_a_delay() -> None:
    def annotated(name: str, value: Any) -> bytes:
        return foreign(annotations={proton.symbol(name): value})

    assert new_message(annotated("x-opt-delivery-time", 5_000), 1)[0].deliver_at_ms == 5_000
    assert new_message(annotated("x-opt-delivery-time", proton.timestamp(5_000)), 1)[0].deliver_at_ms == 5_000
    assert new_message(annotated("x-opt-delivery-delay", proton.ulong(500)), 1_000)[0].deliver_at_ms == 1_500
    assert new_message(annotated("x-opt-delivery-delay", 0), 1_000)[0].deliver_at_ms is None


def test_priority_is_clamped() -> None:
    assert new_message(foreign(priority=200), 0)[0].priority == 9
    assert new_message(pack(FULL._replace(priority=77)), 0)[0].priority == 9
    assert unpack(pack(FULL._replace(priority=-1))).priority == 0


@given(st.integers(0, 2**32 - 1), st.none() | st.dictionaries(NAMES, st.text(max_size=9), min_size=1, max_size=3))
def test_a_delivery_changes_only_the_count_and_the_added_properties(count: int, added: dict[str, str] | None) -> None:
    for original in (
        encode_amqp(FULL),
        encode_amqp(Envelope(queue("q"), persistent=False)),
        foreign(body={"k": [1, 2]}, properties={"old": proton.int32(5)}, durable=True, ttl=3.0),
        foreign(body=b"x", inferred=True),
    ):
        before, after = proton.Message(), proton.Message()
        before.decode(original)
        after.decode(with_delivery(original, count, added))

        assert after.delivery_count == count
        assert received(with_delivery(original, count, added)).delivery_count == count
        assert after.properties == ({**(before.properties or {}), **(added or {})} or None)
        # What the engine has added properties to is where it stays: it does not expire any more.
        assert after.ttl == (0 if added else before.ttl)
        assert after.expiry_time == (0 if added else before.expiry_time)
        for name in ("body", "id", "address", "durable", "priority", "annotations", "creation_time", "reply_to"):
            assert getattr(after, name) == getattr(before, name)
        assert decode_payload(original)._replace(properties=None, expires_at_ms=None) == decode_payload(
            with_delivery(original, count, added)
        )._replace(properties=None, expires_at_ms=None)


def test_a_first_delivery_is_the_stored_bytes_themselves() -> None:
    stored = encode_amqp(FULL)

    assert with_delivery(stored, 0) is stored


def test_properties_keep_their_types_when_one_is_added() -> None:
    stored = foreign(properties={"number": proton.int32(5), "gone": "x"}, body="b")

    changed = with_delivery(stored, 0, {"gone": "y"})

    assert b"\xa1\x06numberT\x05" in changed
    assert decode_amqp(changed).properties == {"number": 5, "gone": "y"}


def test_a_producer_cannot_preset_the_delivery_count() -> None:
    assert received(with_delivery(foreign(delivery_count=7, body="x"), 0)).delivery_count == 0


@given(envelopes(), st.integers(0, 2**63), st.integers(0, 1000))
def test_our_own_deliveries_carry_place_count_and_annotations(envelope: Envelope, position: int, count: int) -> None:
    for stored in (pack(envelope), encode_amqp(envelope)):
        delivered = with_place(position, count, {"why": "x"}, stored)

        assert received(delivered) == (position, count)
        properties = {**(envelope.properties or {}), "why": "x"}
        assert decode_received(delivered) == envelope._replace(properties=properties, expires_at_ms=None)
        assert decode_received(with_place(position, count, None, stored)) == envelope


def test_the_first_octet_names_the_format() -> None:
    assert format_of(encode_amqp(FULL)) == AMQP_FORMAT
    assert format_of(pack(FULL)) == ENVELOPE_FORMAT
    assert codec.pack_request(Request(1, "x", {}))[0] == 0x93
    with pytest.raises(MessageFormatException, match="0x41"):
        format_of(b"ABC")


def test_an_envelope_becomes_amqp_for_a_receiver_that_does_not_speak_it() -> None:
    assert codec.as_amqp(ENVELOPE_FORMAT, pack(FULL)) == encode_amqp(FULL)
    assert codec.as_amqp(AMQP_FORMAT, b"as it came") == b"as it came"


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


def _takes_or_refuses(payload: bytes) -> None:
    for read in (
        decode_received,
        received,
        decode_amqp,
        lambda data: new_message(data, 0),
        lambda data: with_delivery(data, 1, {"a": "b"}),
        codec.unpack_answer,
        codec.unpack_request,
    ):
        try:
            read(payload)
        except MessageFormatException:
            pass


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"\x00\x53" + tail))
def test_any_bytes_give_a_message_or_a_message_format_exception(payload: bytes) -> None:
    _takes_or_refuses(payload)


@given(st.sampled_from([encode_amqp(FULL), pack(FULL), with_place(1, 2, {"a": 1}, pack(FULL))]), st.data())
def test_damaged_messages_are_read_or_refused(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    _takes_or_refuses(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    _takes_or_refuses(bytes(damaged))


def test_a_delivery_whose_message_has_properties_that_are_no_map_is_refused() -> None:
    odd = msgpack.packb(FULL._replace(properties=5))
    with pytest.raises(MessageFormatException, match="'properties' is a int"):
        decode_received(with_place(1, 2, {"a": 1}, odd))


def test_what_the_server_decodes_of_a_message_has_a_limit_of_its_own() -> None:
    """The sections ahead of the body, that is; the body may have ten times as many values."""
    most = codec._MAX_AHEAD_VALUES

    def annotated(entries: int) -> bytes:
        return b"\x00\x53\x72" + encode({Symbol(f"x-{number}"): number for number in range(entries)})

    assert new_message(annotated(most // 2 - 10), 0)
    body = b"\x00\x53\x77" + encode([0] * (2 * most))
    assert new_message(annotated(1) + body, 0)
    assert decode_received(annotated(1) + body).body == [0] * (2 * most)
    with pytest.raises(MessageFormatException, match="more values than the limit"):
        new_message(annotated(most // 2), 0)


def test_a_request_of_more_lists_than_the_limit_or_with_other_keys_than_strings_is_refused() -> None:
    for arguments, reason in (({"x": [[]] * MAX_CONTAINERS}, "more lists and maps"), ({1: 2}, "int is not allowed")):
        with pytest.raises(MessageFormatException, match=reason):
            codec.unpack_request(codec.pack_request(Request(1, "x", arguments)))
    with pytest.raises(MessageFormatException, match="more lists and maps"):
        codec.unpack_answer(codec.pack_answer(Answer(1, None, [[]] * MAX_CONTAINERS)))
    assert codec.unpack_answer(codec.pack_answer(Answer(1, None, {1: 2}))).result == {1: 2}


def test_requests_and_answers_come_back_as_they_went() -> None:
    request = Request(5, "statistics", {"queue": "q", "raw": b"\x00"})
    assert codec.unpack_request(codec.pack_request(request)) == request

    for answer in (Answer(5, None, {"depth": 3}), Answer(6, ("JMSException", "why", None), None)):
        assert codec.unpack_answer(codec.pack_answer(answer)) == answer


def test_requests_have_a_greatest_size() -> None:
    at_limit = codec.MAX_MANAGEMENT_BYTES - len(codec.pack_request(Request(1, "x", {"a": b"\0" * 70_000}))) + 70_000

    codec.unpack_request(codec.pack_request(Request(1, "x", {"a": b"\0" * at_limit})))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        codec.pack_request(Request(1, "x", {"a": b"\0" * (at_limit + 1)}))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        codec.unpack_answer(b"\x93" + b"\0" * codec.MAX_MANAGEMENT_BYTES)


def test_errors_of_answers_keep_their_class() -> None:
    error = codec.error_from_fields(
        codec.error_fields(InvalidDestinationException("gone", error_code="amqp:not-found"))
    )
    stale = codec.error_from_fields(("StaleAcknowledgementException", "old", None))
    unknown = codec.error_from_fields(("SomethingNew", "why", None))

    assert (type(error), error.reason, error.error_code) == (InvalidDestinationException, "gone", "amqp:not-found")
    assert type(stale) is StaleAcknowledgementException
    assert type(unknown) is JMSException
    assert unknown.reason == "SomethingNew: why"
