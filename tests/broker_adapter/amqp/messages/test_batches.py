"""Several messages as one payload, and which of them were refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.messages.batches import (
    BATCH_OCTET,
    MOST_BYTES,
    MOST_MESSAGES,
    PARTLY_REFUSED,
    Delivered,
    batch_size,
    delivered_size,
    is_batch,
    pack_batch,
    pack_deliveries,
    refusal_of_some,
    refused_in,
    unpack_batch,
    unpack_deliveries,
)
from broker_adapter.amqp.messages.payloads import format_of
from broker_adapter.errors import MessageFormatException

FULL = AmqpError("amqp:resource-limit-exceeded", "the queue is full")


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=MOST_MESSAGES))
def test_messages_come_out_as_they_went_in(messages: list[bytes]) -> None:
    assert unpack_batch(pack_batch(messages)) == messages


def test_a_batch_is_no_message() -> None:
    batch = pack_batch([b"\x00"])

    assert is_batch(batch)
    assert not any(is_batch(payload) for payload in (b"", b"\x00", b"\x48", b"\xc1"))
    with pytest.raises(MessageFormatException):
        format_of(batch)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes([BATCH_OCTET]),
        struct.pack(">BI", BATCH_OCTET, 0),
        struct.pack(">BI", BATCH_OCTET, 2**32 - 1),
        struct.pack(">BI", BATCH_OCTET, MOST_MESSAGES + 1) + bytes(4 * (MOST_MESSAGES + 1)),
        struct.pack(">BII", BATCH_OCTET, 1, 2) + b"a",
        struct.pack(">BII", BATCH_OCTET, 1, 2) + b"abc",
        struct.pack(">BIII", BATCH_OCTET, 2, 2**32 - 1, 2**32 - 1) + b"ab",
    ],
)
def test_what_is_damaged_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageFormatException):
        unpack_batch(payload)


@given(st.binary(max_size=60))
def test_whatever_comes_in_is_a_batch_or_refused(payload: bytes) -> None:
    try:
        messages = unpack_batch(bytes([BATCH_OCTET]) + payload)
    except MessageFormatException:
        return
    assert pack_batch(messages) == bytes([BATCH_OCTET]) + payload


@given(st.lists(st.integers(0, MOST_BYTES * 2), min_size=1, max_size=400), st.integers(0, MOST_BYTES))
def test_a_batch_has_as_many_messages_as_fit_and_at_least_one(sizes: list[int], most_bytes: int) -> None:
    count = batch_size(iter(sizes), most_bytes)

    assert 1 <= count <= min(MOST_MESSAGES, len(sizes))
    taken = len(pack_batch([bytes(size) for size in sizes[:count]]))
    assert count == 1 or taken <= most_bytes
    if count < min(MOST_MESSAGES, len(sizes)):
        assert taken + 4 + sizes[count] > most_bytes - 9  # the head of another kind of batch is larger


def test_what_was_refused_is_told_by_its_place() -> None:
    refused = {1: FULL, 255: AmqpError("amqp:decode-error", "no message")}

    assert refused_in(refusal_of_some(refused), 256) == refused
    assert refused_in(AmqpError(*refusal_of_some(refused)), 2) == dict.fromkeys((0, 1), refusal_of_some(refused))


@pytest.mark.parametrize("length", [1, 1_000, 100_000])
def test_the_table_of_a_whole_batch_fits_into_a_frame(length: int) -> None:
    refused = {place: AmqpError(f"holdfast:{place}", "é" * length) for place in range(MOST_MESSAGES)}

    error = refusal_of_some(refused)

    assert error.info is not None
    assert len(error.info["refused"]) < MOST_BYTES - 512
    told = refused_in(error, MOST_MESSAGES)
    assert [each.condition for each in told.values()] == [f"holdfast:{place}" for place in range(MOST_MESSAGES)]
    assert all(each.description for each in told.values())


@pytest.mark.parametrize(
    "table",
    [None, "text", b"", b"\xc1", b"\x90", b"\x01", b"\x91\x01", b"\x91\x93\xa1a\xa1b\xa1c", b"\x91\x93\x05\x01\xc0"],
)
def test_all_have_the_same_error_where_there_is_no_table(table: object) -> None:
    error = AmqpError(PARTLY_REFUSED, "some", {"refused": table})

    assert refused_in(error, 2) == {0: error, 1: error}
    assert refused_in(FULL, 2) == {0: FULL, 1: FULL}
    assert refused_in(None, 1)[0].condition == ""


DELIVERED = st.builds(
    Delivered, st.integers(0, 2**63), st.integers(0, 2**32 - 1), st.binary(max_size=9), st.binary(max_size=40)
)


@given(st.integers(0, 2**63), st.lists(DELIVERED, max_size=MOST_MESSAGES), st.booleans())
def test_what_is_delivered_comes_out_as_it_went_in(first: int, messages: list[Delivered], is_drained: bool) -> None:
    payload = pack_deliveries(first, messages, is_drained=is_drained)

    assert unpack_deliveries(payload) == (first, messages, is_drained)
    assert len(payload) == len(pack_deliveries(first, ())) + sum(map(delivered_size, messages))


@given(st.lists(DELIVERED, max_size=4), st.data())
def test_a_damaged_batch_is_refused_when_it_is_delivered(messages: list[Delivered], data: st.DataObject) -> None:
    payload = pack_deliveries(1, messages)

    cut = data.draw(st.integers(0, len(payload) - 1))
    for damaged in (payload[:cut], payload + b"x", b"\x00" + payload[1:]):
        with pytest.raises(MessageFormatException):
            unpack_deliveries(damaged)


def test_more_messages_than_a_batch_may_have_are_refused() -> None:
    payload = pack_deliveries(1, [Delivered(1, 0, b"", b"")] * (MOST_MESSAGES + 1))

    with pytest.raises(MessageFormatException):
        unpack_deliveries(payload)
