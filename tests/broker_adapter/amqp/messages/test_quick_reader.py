"""What is read without a call for each value means the same as what the general reader makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.amqp.messages import quick_reader
from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp, read_head
from broker_adapter.amqp.messages.jms_mapping import DELIVERY_TIME, IDENTITY
from broker_adapter.amqp.messages.values import Described, Symbol, Timestamp, UInt, ULong, compound, encode
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.envelope import BodyKind, Envelope, Identity
from broker_adapter.errors import MessageFormatException
from tests.broker_adapter.amqp.messages.test_amqp_message import FULL, envelopes, foreign

NOW = 1_780_000_000_000
FROM = queue("from")


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def in_general(read: Callable[..., Any], *arguments: Any) -> Any:
    """What the general reader makes of it; None: it refuses it."""
    with (
        patch.object(quick_reader, "head", return_value=None),
        patch.object(quick_reader, "envelope", return_value=None),
    ):
        try:
            return read(*arguments)
        except MessageFormatException:
            return None


def check_both(payload: bytes) -> None:
    """Check that both readers agree, if the quick one reads this at all."""
    head = quick_reader.head(payload, NOW)
    assert head is None or repr(head) == repr(in_general(read_head, payload, NOW))
    for link in (FROM, topic("t"), None):
        envelope = quick_reader.envelope(payload, link)
        assert envelope is None or repr(envelope) == repr(in_general(decode_amqp, payload, link))


def like_qpid_jms(number: int = 1, **headers: Any) -> bytes:
    """A message as Qpid JMS writes it: in the long forms of lists, maps and bodies."""
    fields = [f"ID:0b4f1c6e:1:1:1-{number}", None, "orders", None, None, None, Symbol("application/octet-stream")]
    fields += [None, headers.get("expires"), Timestamp(NOW + number)]
    listed = b"".join(map(encode, fields))
    annotations = b"".join(map(encode, (Symbol("x-opt-jms-msg-type"), 3, Symbol("x-opt-jms-dest"), 0)))
    application = b"".join(map(encode, ("colour", "red")))
    return b"".join(
        (
            section(0x70, [True, None, headers.get("ttl")]),
            b"\x00\x53\x72\xd1" + (len(annotations) + 4).to_bytes(4) + (4).to_bytes(4) + annotations,
            b"\x00\x53\x73\xd0" + (len(listed) + 4).to_bytes(4) + (len(fields)).to_bytes(4) + listed,
            b"\x00\x53\x74\xd1" + (len(application) + 4).to_bytes(4) + (2).to_bytes(4) + application,
            b"\x00\x53\x75\xb0" + (1024).to_bytes(4) + bytes(1024),
        )
    )


#: What is put in place of octets to find out whether both readers make the same of it: type codes, above all.
OCTETS = st.integers(0, 255) | st.sampled_from(
    bytes.fromhex("0001404142434445515253545556707172737475767780818283 98a0a1a3b0b1b3c0c1d0d1ff")
)


@given(envelopes(), st.lists(st.tuples(st.integers(0, 400), OCTETS), max_size=3), st.integers(0, 400))
def test_both_readers_agree_whatever_is_broken(envelope: Envelope, broken: list[tuple[int, int]], cut: int) -> None:
    payload = bytearray(encode_amqp(envelope))
    for place, octet in broken:
        payload[place % len(payload)] = octet
    check_both(bytes(payload))
    check_both(bytes(payload[:cut]))


#: Messages that are read as their sender's others are, but for what differs in each.
USUAL = st.builds(
    Envelope,
    st.sampled_from((queue("q"), topic("t"))),
    st.sampled_from((BodyKind.BYTES, BodyKind.TEXT)),
    st.none(),
    st.sampled_from((None, {"colour": "red"}, {"_AMQ_DUPL_ID": "p:1:1000"})),
    st.sampled_from(
        ("ID:p:1:1-1000", "ID:AMQP_UUID:12345678-1234-5678-1234-567812345678", "ID:AMQP_NO_PREFIX:1", "no prefix", "")
    ),
    st.sampled_from((None, "ID:a", b"raw")),
    st.sampled_from((None, queue("answers"))),
    st.sampled_from((None, "kind")),
    st.sampled_from((0, NOW)),
    expires_at_ms=st.none(),
    deliver_at_ms=st.none(),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    group_id=st.none(),
    group_sequence=st.none(),
    user_id=st.sampled_from((None, "me")),
    identity=st.sampled_from((None, Identity("p", 1, 127), Identity("p", 1, 1_000))),
)


@given(USUAL, st.booleans(), st.lists(st.tuples(st.integers(0, 400), OCTETS), max_size=2))
def test_both_readers_agree_on_what_repeats(
    envelope: Envelope, is_foreign: bool, broken: list[tuple[int, int]]
) -> None:
    """Twice: what is kept of the first one is used for the second one."""
    payload = bytearray(like_qpid_jms() if is_foreign else encode_amqp(envelope, has_duplicate_id=True))
    check_both(bytes(payload))
    for place, octet in broken:
        payload[place % len(payload)] = octet
    check_both(bytes(payload))
    check_both(bytes(payload))


@pytest.mark.parametrize("name", ["q", None])
def test_the_engine_is_told_a_destination_only_where_the_message_names_one(name: str | None) -> None:
    payload = section(0x73, ["ID:1", None, name, None, None, None, None, None, None, Timestamp(NOW)])
    head = quick_reader.head(payload, NOW)
    assert head is not None
    assert head.destination == (name and queue(name))
    check_both(payload)


@given(envelopes(), st.permutations(range(4)), st.integers(0, 9))
def test_both_readers_agree_on_sections_in_any_order(envelope: Envelope, order: list[int], delivery_count: int) -> None:
    properties = [envelope.message_id, None, envelope.destination.name]
    parts = [
        section(0x70, [envelope.persistent, None, None, None, UInt(delivery_count)]),
        section(0x71, {Symbol("x-opt-of-a-broker"): 1}),
        section(0x72, {Symbol("x-opt-jms-dest"): 1}),
        section(0x73, properties),
    ]
    check_both(b"".join(parts[place] for place in order) + section(0x77, "text"))
    check_both(b"".join(parts[place] for place in order[:2]))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(like_qpid_jms(), id="Qpid JMS"),
        pytest.param(like_qpid_jms(ttl=UInt(60_000), expires=Timestamp(NOW + 60_000)), id="Qpid JMS, it expires"),
        pytest.param(like_qpid_jms(ttl=UInt(60_000)), id="a time to live alone"),
        pytest.param(foreign(body="text", id="1", address="q", properties={"a": 1, "b": None}), id="proton, text"),
        pytest.param(foreign(body=b"raw", inferred=True, durable=True, ttl=3.0, group_id="g"), id="proton, bytes"),
        pytest.param(encode_amqp(FULL._replace(deliver_at_ms=None)), id="ours"),
        pytest.param(encode_amqp(FULL), id="ours, delivered later"),
        pytest.param(encode_amqp(FULL._replace(identity=Identity("p", 7, 1_000_000))), id="ours, a later one"),
        pytest.param(encode_amqp(FULL._replace(body_kind=BodyKind.MAP, body={"a": [1]})), id="ours, a map"),
        pytest.param(b"", id="nothing at all"),
    ],
)
def test_common_messages_are_read_quickly(payload: bytes) -> None:
    assert quick_reader.head(payload, NOW) is not None
    assert quick_reader.envelope(payload, FROM) is not None
    check_both(payload)


def test_each_message_of_a_producer_has_its_own_sequence_and_times() -> None:
    for number in (0, 1, 127, 128, 129, 2**31, 2**63 - 1):
        sent = Envelope(
            topic("t"), BodyKind.TEXT, "x", message_id=f"ID:{number}", sent_at_ms=NOW + number % 9,
            identity=Identity("a producer", 3, number),
        )  # fmt: skip
        payload = encode_amqp(sent)
        head = quick_reader.head(payload, NOW)
        assert head is not None
        assert (head.identity, head.destination) == (sent.identity, sent.destination)
        assert quick_reader.envelope(payload, FROM) == sent


def test_a_number_behind_the_identity_is_not_its_sequence() -> None:
    """It ends the annotations in the same way, and one is like that which stands for any sequence."""
    for sequence in (0x0123456789ABCDEF, 0x0123456789ABCDEE, 1_000):
        annotations = {IDENTITY: ["p", 1, sequence], DELIVERY_TIME: NOW + 1}
        payload = section(0x72, annotations) + section(0x73, [None, None, "q"])
        for _ in range(2):
            head = quick_reader.head(payload, NOW)
            assert head is not None
            assert (head.identity, head.deliver_at_ms) == (Identity("p", 1, sequence), NOW + 1)


def test_a_sequence_below_zero_is_refused_as_ever() -> None:
    payload = encode_amqp(FULL._replace(deliver_at_ms=None, identity=Identity("p", 1, 1_000)))
    bad = payload.replace(b"\x81" + (1_000).to_bytes(8), b"\x81" + (-1).to_bytes(8, signed=True))
    assert bad != payload
    assert quick_reader.head(bad, NOW) is None
    with pytest.raises(MessageFormatException, match="does not fit into 63 bits"):
        read_head(bad, NOW)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(section(0x72, {Symbol("x-long"): "x" * quick_reader.MOST_KEPT_BYTES}), id="annotations"),
        pytest.param(section(0x70, [True, "x" * quick_reader.MOST_KEPT_BYTES]), id="header"),
        pytest.param(section(0x73, [None, None, "n" * 401]), id="name"),
        pytest.param(section(0x73, [None] * 14), id="fields"),
        pytest.param(section(0x73, [None] * 256), id="values"),
        pytest.param(section(0x73, [[1]]), id="a list in a list"),
        pytest.param(b"\x00\xa3\x11amqp:header:list\x45", id="a section by its symbol"),
    ],
)
def test_what_is_long_or_strange_is_left_to_the_general_reader(payload: bytes) -> None:
    """So what is kept of headers, annotations and names has a limit, each and all together."""
    assert quick_reader.head(payload, NOW) is None
    check_both(payload)


def test_what_is_kept_of_senders_has_a_limit() -> None:
    for number in range(2_000):
        payload = section(0x70, [True, number % 10, UInt(number)]) + section(0x72, {Symbol("x"): number})
        assert quick_reader.head(payload + section(0x73, [None, None, f"q{number}"]), NOW) is not None
    for kept in quick_reader.KEPT:
        assert kept.cache_info().currsize <= 256


def test_nothing_is_kept_of_a_body() -> None:
    """Where there is a short header alone, no octet near the end of the body is that of a sequence."""
    for kept in quick_reader.KEPT:
        kept.cache_clear()
    for number in range(10):
        body = bytes((number, *[0x81] * 9))
        for header in (b"\x45", b"\xc0\x02\x01\x41"):
            payload = b"\x00\x53\x70" + header + section(0x73, ["ID:1", *[None] * 8, Timestamp(NOW)])
            check_both(payload + section(0x75, body))
    for kept in quick_reader.KEPT:
        assert kept.cache_info().currsize <= 2 * 3  # of each header, from three links


def test_more_properties_than_the_limit_are_refused_as_ever() -> None:
    pairs = b"".join(encode(f"p{number}") + encode(number) for number in range(10_017))
    payload = b"\x00\x53\x74" + compound(0xC1, 2 * 10_017, pairs)
    assert quick_reader.head(payload, NOW) is None
    with pytest.raises(MessageFormatException, match="more than the limit"):
        read_head(payload, NOW)


@given(st.binary(max_size=40))
@example(b"\x00\x53\x75")
@example(b"\x00\x53\x74")
@example(b"\x00\x53")
@example(b"\x01")
def test_both_readers_agree_on_any_bytes(payload: bytes) -> None:
    check_both(payload)
    check_both(b"\x00\x53\x73" + payload)
    check_both(b"\x00\x53\x74" + payload)


def test_where_a_message_says_nothing_it_is_from_where_it_was_received() -> None:
    payload = section(0x73, [None, None, "t", None, "answers"]) + section(0x77, "x")
    found = quick_reader.envelope(payload, topic("t"))
    assert found is not None
    assert (found.destination, found.reply_to) == (topic("t"), topic("answers"))
    nowhere = quick_reader.envelope(b"", None)
    assert nowhere is not None
    assert nowhere.destination == Destination("")
