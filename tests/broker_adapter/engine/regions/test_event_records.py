"""The form of events and postings on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.regions.event_records import (
    FEW,
    EventRecord,
    Operation,
    decode_event,
    decode_numbers,
    decode_posting,
    decode_run,
    encode_event,
    encode_numbers,
    encode_posting,
    encode_run,
    position_key,
    posting_key,
    run_key,
)
from broker_adapter.errors import StoreCorruptException

NUMBERS = st.lists(st.integers(0, 2**32 - 1), max_size=20)
EVENTS = st.builds(
    EventRecord,
    st.integers(0, 2**32 - 1),
    st.sampled_from(Operation),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=100),
    NUMBERS,
    st.lists(st.tuples(st.binary(min_size=8, max_size=8), st.sampled_from(Operation)), max_size=5),
    st.integers(0, 2**64 - 1),
)


def as_lists(event: EventRecord) -> EventRecord:
    return event._replace(audiences=list(event.audiences))


@given(EVENTS, st.integers(0, 2**64 - 1))
def test_an_event_is_read_as_it_was_written(event: EventRecord, position: int) -> None:
    key = position_key(position)
    value = encode_event(key, event)
    assert as_lists(decode_event(key, value)) == as_lists(event)
    assert encode_event(key, event, encode_numbers(event.audiences)) == value


@given(EVENTS, st.data())
def test_an_event_that_is_changed_anywhere_or_in_another_place_is_not_trusted(
    event: EventRecord, data: st.DataObject
) -> None:
    key = position_key(7)
    value = bytearray(encode_event(key, event))
    with pytest.raises(StoreCorruptException):
        decode_event(position_key(8), bytes(value))
    with pytest.raises(StoreCorruptException):
        decode_event(key, bytes(value[: data.draw(st.integers(0, len(value) - 1))]))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(StoreCorruptException):
        decode_event(key, bytes(value))


def test_an_event_takes_four_bytes_for_each_audience() -> None:
    key = position_key(1)
    sizes = [
        len(encode_event(key, EventRecord(1, Operation.UPDATE, 1, 1, "IBM", range(number)))) for number in (0, 10_000)
    ]
    assert sizes[1] - sizes[0] == 40_000
    assert sizes[0] < 40


def test_an_answer_that_is_no_operation_is_not_trusted() -> None:
    key = position_key(1)
    event = EventRecord(1, Operation.UPDATE, 1, 1, "IBM", [4], [(b"12345678", 9)])  # type: ignore[list-item]
    with pytest.raises(StoreCorruptException, match="answer"):
        decode_event(key, encode_event(key, event))


def test_an_update_has_a_place_in_its_run() -> None:
    key = run_key(7, 9)
    assert decode_run(key, encode_run(key)) == (7, 9)
    assert run_key(7, 255) < run_key(7, 256) < run_key(8, 0)
    for wrong_key, value in ((run_key(7, 8), encode_run(key)), (key[:-1], encode_run(key[:-1])), (key, b"")):
        with pytest.raises(StoreCorruptException):
            decode_run(wrong_key, value)


def test_an_event_for_many_audiences_is_broad() -> None:
    assert not EventRecord(1, Operation.CREATE, 1, 1, "a", range(FEW)).is_broad
    assert EventRecord(1, Operation.CREATE, 1, 1, "a", range(FEW + 1)).is_broad


def test_numbers_are_little_endian_on_every_machine() -> None:
    assert encode_numbers([1, 258]) == b"\1\0\0\0\2\1\0\0"
    assert list(decode_numbers(b"\1\0\0\0\2\1\0\0")) == [1, 258]


def test_a_posting_says_which_one_of_its_stream_it_is() -> None:
    key = posting_key(3, 77)
    assert decode_posting(key, encode_posting(key, 9)) == (3, 77, 9)
    assert posting_key(3, 255) < posting_key(3, 256) < posting_key(4, 0)
    for wrong in (key[:-1], key + b"\0", posting_key(3, 78)):
        with pytest.raises(StoreCorruptException):
            decode_posting(wrong, encode_posting(key, 9))
    for value in (b"", encode_posting(key, 9)[:-1], encode_posting(key, 9)[:4] + encode_posting(key, 10)[4:]):
        with pytest.raises(StoreCorruptException):
            decode_posting(key, value)
