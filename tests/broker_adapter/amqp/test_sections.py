"""How much of a message is read: the limits of its sections."""

from __future__ import annotations

import pytest

from broker_adapter.amqp import sections
from broker_adapter.amqp.amqp_message import decode_ahead, decode_amqp, encode_amqp
from broker_adapter.amqp.payloads import decode_received, read_head
from broker_adapter.amqp.values import Symbol, encode
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
