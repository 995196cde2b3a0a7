"""Payloads in each of their forms: what names the form, what routes a message, what our own deliveries carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.management import ManagementRequest, pack_request, unpack_answer, unpack_request
from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import (
    as_amqp,
    decode_received,
    format_of,
    read_head,
    received,
    stored_part,
    with_place,
)
from broker_adapter.amqp.messages.stored_message import with_delivery
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT, Envelope, Head, pack
from broker_adapter.errors import MessageFormatException
from tests.broker_adapter.amqp.messages.test_amqp_message import FULL, envelopes


@given(envelopes())
def test_routing_fields_are_the_same_in_both_formats(envelope: Envelope) -> None:
    if envelope.sent_at_ms is None or envelope.expires_at_ms is None:
        envelope = envelope._replace(expires_at_ms=None)

    amqp, ours = (read_head(each, 0) for each in (encode_amqp(envelope), pack(envelope)))

    assert (amqp.format, ours.format) == (AMQP_FORMAT, ENVELOPE_FORMAT)
    assert amqp[1:] == ours[1:]
    assert all(getattr(ours, name) == getattr(envelope, name) for name in Head._fields[1:-1])


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
    assert pack_request(ManagementRequest(1, "x", {}))[0] == 0x93
    with pytest.raises(MessageFormatException, match="0x41"):
        format_of(b"ABC")


def test_an_envelope_becomes_amqp_for_a_receiver_that_does_not_speak_it() -> None:
    assert as_amqp(ENVELOPE_FORMAT, pack(FULL)) == encode_amqp(FULL)
    assert as_amqp(AMQP_FORMAT, b"as it came") == b"as it came"


def _takes_or_refuses(payload: bytes) -> None:
    for read in (
        decode_received,
        received,
        decode_amqp,
        lambda data: read_head(data, 0),
        lambda data: with_delivery(data, 1, {"a": "b"}),
        unpack_answer,
        unpack_request,
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
    odd = pack(FULL._replace(properties=[5]))  # type: ignore[arg-type]
    with pytest.raises(MessageFormatException, match="properties are a list"):
        decode_received(with_place(1, 2, {"a": 1}, odd))


def test_the_stored_part_of_a_delivery_is_what_stands_behind_its_head() -> None:
    for added in (None, {"reason": "x"}):
        assert stored_part(with_place(7, 1, added, b"anything")) == b"anything"
    for message in (b"", b"\x00Sw\xa1\x01x", b"H", b"\xc1", b"\xc1cut"):
        assert stored_part(message) == message
    assert stored_part(with_place(7, 1, {"reason": "x"}, b"")[:-1]) == b""
