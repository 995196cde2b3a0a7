"""How much of a message is read: the limits of its sections."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages import sections
from broker_adapter.amqp.messages.amqp_message import decode_ahead, decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import decode_received, read_head
from broker_adapter.amqp.messages.values import Symbol, Timestamp, UInt, encode
from broker_adapter.destination import queue
from broker_adapter.envelope import MAX_PROPERTIES, BodyKind, Envelope
from broker_adapter.errors import MessageFormatException


def test_what_the_server_decodes_of_a_message_has_a_limit_of_its_own() -> None:
    """The sections ahead of the body, that is; the body may have ten times as many values."""
    most = sections.MAX_AHEAD_VALUES

    def annotated(entries: int) -> bytes:
        return b"\x00\x53\x72" + encode({Symbol(f"x-{number}"): number for number in range(entries)})

    assert read_head(annotated(most // 2 - 10), 0)
    body = b"\x00\x53\x77" + encode([0] * (2 * most))
    assert read_head(annotated(1) + body, 0)
    assert decode_received(annotated(1) + body).body == [0] * (2 * most)
    with pytest.raises(MessageFormatException, match="more values than the limit"):
        read_head(annotated(most // 2), 0)


def test_properties_have_a_limit() -> None:
    properties = {f"p{number}": number for number in range(MAX_PROPERTIES)}
    most = Envelope(queue("q"), BodyKind.TEXT, "x", properties=properties)
    payload = encode_amqp(most)
    assert decode_amqp(payload, queue("q")).properties == properties
    assert read_head(payload, 0).destination == queue("q")
    # A few more are those that a client, or the engine, has added: of a dead letter, or of a message sent again.
    added = {**properties, **{f"JMS_HOLDFAST_{number}": 1 for number in range(16)}}
    assert decode_amqp(encode_amqp(most._replace(properties=added)), queue("q")).properties == added
    with pytest.raises(MessageFormatException, match="10017 properties, more than the limit of 10000"):
        encode_amqp(most._replace(properties={**added, "more": 1}))
    more = b"\x00\x53\x74" + encode({**added, "more": 1})
    for read in (lambda: decode_amqp(more, queue("q")), lambda: decode_ahead(more), lambda: read_head(more, 0)):
        with pytest.raises(MessageFormatException, match="10017 properties, more than the limit of 10000"):
            read()


def test_what_selectors_read_has_all_properties_that_a_message_may_have() -> None:
    properties = {f"p{number}": number for number in range(MAX_PROPERTIES + 16)}
    envelope = Envelope(queue("q"), BodyKind.TEXT, "x", properties, "ID:1", "c", queue("r"), "t", 1, 2, group_id="g")
    assert decode_ahead(encode_amqp(envelope)).properties == properties


def test_a_section_is_told_by_its_number_or_its_name() -> None:
    properties = encode({"a": 1})
    by_name = b"\x00\xa3\x1famqp:application-properties:map" + properties
    assert list(sections.sections(by_name, None)) == list(sections.sections(b"\x00\x53\x74" + properties, None))
    assert sections.section_code("amqp:unknown:list") is None
    assert sections.section_code(1.5) is None


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\x53\x74" + encode({"a": 1}), "a section does not begin with its descriptor"),
        (b"\x00\x53\x70" + encode({"a": 1}), "section 0x70 holds a dict"),
    ],
)
def test_what_is_no_section_is_refused(payload: bytes, error: str) -> None:
    with pytest.raises(MessageFormatException, match=error):
        list(sections.sections(payload, None))
    with pytest.raises(MessageFormatException, match="cannot be decoded"):
        decode_amqp(payload, queue("q"))


def test_the_bare_part_of_a_message_is_what_no_broker_changes() -> None:
    message = encode_amqp(Envelope(queue("q"), BodyKind.TEXT, "x", properties={"n": 1}, message_id="ID:1"))
    found, bare = sections.bare_part(message)
    assert found == "ID:1"
    assert message.endswith(bare)
    assert bare.startswith(b"\x00\x53\x73")
    header = b"\x00\x53\x70" + encode([True, None, None, None, 7])
    assert sections.bare_part(header + bare) == (found, bare)
    value = b"\x00\x53\x77" + encode("x")
    assert sections.bare_part(header + value) == (None, value)
    assert sections.bare_part(b"") == (None, b"")
    assert sections.bare_part(b"\x00\x53\x73" + encode([])) == (None, b"\x00\x53\x73" + encode([]))
    for damaged in (b"\x01", b"\x00\x53\x73" + encode("no list"), b"\x00\x53\x70\xc0"):
        with pytest.raises(MessageFormatException):
            sections.bare_part(damaged)


# What only the engine says.

HEADER = b"\x00\x53\x70\x45"
BODIES = (b"\x00\x53\x75\xa0\x01x", b"\x00\x53\x77\xa1\x01x", b"\x00\x53\x77\x41", b"\x00\x53\x77\xc0\x01\x00")


def named(properties: dict[Any, Any], *, long: bool = False, symbol: bool = False, number: bool = False) -> bytes:
    """A section of properties in one of its forms."""
    pairs = b"".join(encode(each) for pair in properties.items() for each in pair)
    head = (
        struct.pack(">II", len(pairs) + 4, 2 * len(properties))
        if long
        else bytes((len(pairs) + 1, 2 * len(properties)))
    )
    descriptor = b"\x53\x74"
    if symbol:
        descriptor = b"\xa3\x1famqp:application-properties:map"
    elif number:
        descriptor = b"\x80" + (0x74).to_bytes(8)
    return b"\x00" + descriptor + (b"\xd1" if long else b"\xc1") + head + pairs


FORGED = {"own": UInt(1), "JMS_Holdfast_Key": "a", Symbol("JMS_Holdfast_Version"): 5, "other": Timestamp(2)}
ODD_NAME = b"\x00\x53\x74\xc1\x16\x04\x45\x41\xa1\x10JMS_Holdfast_Key\x41"  # of one that is an empty list
FORMS = [named(FORGED), named(FORGED, long=True), named(FORGED, symbol=True), named(FORGED, number=True)]


@pytest.mark.parametrize("form", FORMS)
def test_properties_that_a_client_may_not_send_are_taken_out_and_the_rest_stays_as_it_came(form: bytes) -> None:
    payload = HEADER + form + BODIES[0] + b"\x00\x53\x78\xc1\x01\x00"
    left = sections.without_reserved(payload)
    assert left == HEADER + named({"own": UInt(1), "other": Timestamp(2)}, long=True) + payload[len(HEADER + form) :]
    assert read_head(payload, 0).allowed == left


@given(st.permutations([HEADER, b"\x00\x53\x73\x45", *FORMS, *BODIES]), st.integers(1, 10))
def test_no_order_of_sections_brings_in_what_only_the_engine_says(parts: list[bytes], count: int) -> None:
    payload = b"".join(parts[:count])
    allowed = read_head(payload, 0).allowed
    stored = payload if allowed is None else allowed
    assert b"JMS_Holdfast_" not in stored
    assert all(part in stored for part in parts[:count] if part not in FORMS)


def test_a_body_is_skipped_by_its_size_however_many_values_it_has() -> None:
    count = 1_000_000
    for body in (
        b"\x00\x53\x77\xd0" + (4 + count).to_bytes(4) + count.to_bytes(4) + b"\x43" * count,
        b"\x00\x53\x77\x00\xa3\x01x\xb0" + count.to_bytes(4) + bytes(count),
    ):
        ahead = b"\x00\x53\x74" + encode({"note": "JMS_Holdfast_"})
        assert sections.without_reserved(ahead + body) is None
        assert read_head(ahead + body, 0).allowed is None
        assert sections.without_reserved(body + FORMS[0]) == body + named(
            {"own": UInt(1), "other": Timestamp(2)}, long=True
        )


def test_a_name_that_is_none_stays_as_it_came() -> None:
    assert sections.without_reserved(ODD_NAME) == b"\x00\x53\x74\xd1\x00\x00\x00\x06\x00\x00\x00\x02\x45\x41"


def test_a_message_that_names_what_is_reserved_elsewhere_stays_as_it_came() -> None:
    made = Envelope(queue("JMS_Holdfast_q"), BodyKind.TEXT, "JMS_Holdfast_Key", {"x": "JMS_Holdfast_Key"})
    payload = encode_amqp(made)
    assert read_head(payload, 0).allowed is None


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x00\x53\x74\xa1\x0dJMS_Holdfast_",
        b"\x00\x53\x74\xc1\x10\x02\xa1\x0dJMS_Holdfast_",
        b"\x00\x53\x74\xc1\x02\x02\xa1\x0dJMS_Holdfast_\x41",
    ],
)
def test_a_message_with_what_is_reserved_that_cannot_be_decoded_is_refused(wrong: bytes) -> None:
    with pytest.raises(MessageFormatException):
        read_head(HEADER + wrong, 0)
