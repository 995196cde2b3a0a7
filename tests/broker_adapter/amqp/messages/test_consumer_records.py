"""What a client says of its consumers: credit, drains, and how deliveries ended."""

from __future__ import annotations

from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ack_modes import Failure, Outcome
from ack_modes.outcome import MAX_REASON_BYTES
from broker_adapter.amqp.messages.consumer_records import (
    MOST_RECORD_BYTES,
    Credited,
    DrainAsked,
    Record,
    Settled,
    pack_records,
    ranges_of,
    split_records,
    unpack_records,
)
from broker_adapter.errors import MessageFormatException

NUMBER = st.integers(0, 2**63 - 1)
RANGE = st.tuples(NUMBER, NUMBER).map(lambda pair: (min(pair), max(pair)))
RECORD = st.one_of(
    st.builds(Credited, NUMBER, st.integers(1, 2**31 - 1)),
    st.builds(DrainAsked, NUMBER),
    st.builds(Settled, NUMBER, st.sampled_from(Outcome), st.lists(RANGE, min_size=1, max_size=5)),
    st.builds(
        Settled,
        NUMBER,
        st.builds(
            Failure,
            st.text(max_size=MAX_REASON_BYTES // 4),
            st.sampled_from([Outcome.REJECTED, Outcome.MODIFIED, Outcome.FAILED]),
            NUMBER,
        ),
        st.lists(RANGE, min_size=1, max_size=5),
    ),
)


def many_ranges(count: int) -> Record:
    """A record with so many ranges, of large numbers, and for some numbers of them a long reason."""
    outcome = Outcome.ACCEPTED if count % 2 else Failure("x" * MAX_REASON_BYTES)
    return Settled(2**62, outcome, [(2**62 + 2 * each, 2**62 + 2 * each) for each in range(count + 1)])


@given(st.lists(RECORD, max_size=10))
def test_records_come_out_as_they_went_in(records: list[Record]) -> None:
    assert unpack_records(pack_records(records)) == records


@given(st.lists(st.integers(0, 20), max_size=30))
def test_numbers_as_ranges_keep_their_order(numbers: list[int]) -> None:
    ranges = ranges_of(numbers)

    assert [number for first, last in ranges for number in range(first, last + 1)] == numbers
    assert all(before[1] + 1 != after[0] for before, after in pairwise(ranges))


@pytest.mark.parametrize(
    "rows",
    [
        None,
        5,
        [5],
        [[]],
        [[0]],
        [[3, 1, 2, 0, "why"]],
        [[3, 1, 2, 0, b"why", 1, 1]],
        [[3, 1, 2, -1, "why", 1, 1]],
        [[3, 1, 2, 2**63, "why", 1, 1]],
        [[3, 1, 1, 0, "why", 1, 1]],
        [[3, 1, 7, 0, "why", 1, 1]],
        [[3, 1, [2], 0, "why", 1, 1]],
        [[3, "1", 2, 0, "why", 1, 1]],
        [[3, 1, 2, 0, "why", 2, 1]],
        [[0, 1]],
        [[0, 1, -1]],
        [[0, 1, 0]],
        [[0, 1, 2**31]],
        [[0, 1, 1, 1]],
        [[0, True, 1]],
        [[1, 1, 1]],
        [[2, 1, 1]],
        [[2, 1, 1, 5]],
        [[2, 1, 0, 1, 1]],
        [[2, 1, len(Outcome) + 1, 1, 1]],
        [[2, 1, 1, 2, 1]],
        [[2, 1, 1, 1, 2, 3]],
        [[2, 1, 1, 1.0, 2.0]],
        [[2, 1, 1, "a", "b"]],
        [[2, 1, 1, 1, 2**63]],
        [[3, 1]],
    ],
)
def test_what_is_no_record_is_refused(rows: object) -> None:
    with pytest.raises(MessageFormatException):
        unpack_records(msgpack.packb(rows))


@given(st.lists(st.one_of(RECORD, st.integers(0, 900).map(many_ranges)), max_size=30))
def test_records_are_split_into_small_payloads_and_keep_their_order(records: list[Record]) -> None:
    payloads = split_records(records)

    assert all(len(pack_records(each)) <= MOST_RECORD_BYTES for each in payloads)
    assert all(unpack_records(pack_records(each)) == each for each in payloads)
    joined: list[Record] = []
    for record in (record for each in payloads for record in each):
        last = joined[-1] if joined else None
        if isinstance(record, Settled) and isinstance(last, Settled) and last[:2] == record[:2]:
            joined[-1] = last._replace(ranges=[*last.ranges, *record.ranges])
        else:
            joined.append(record)
    expected: list[Record] = []
    for record in records:
        last = expected[-1] if expected else None
        if isinstance(record, Settled) and isinstance(last, Settled) and last[:2] == record[:2]:
            expected[-1] = last._replace(ranges=[*last.ranges, *record.ranges])
        else:
            expected.append(record)
    assert joined == expected


def test_too_many_records_are_refused() -> None:
    with pytest.raises(MessageFormatException, match="4096 at most"):
        unpack_records(pack_records([DrainAsked(1)] * 4_000))


@given(st.binary(max_size=40))
def test_whatever_comes_in_is_records_or_refused(payload: bytes) -> None:
    try:
        records = unpack_records(payload)
    except MessageFormatException:
        return
    assert unpack_records(pack_records(records)) == records
