"""The numbers of starts, and which of them are remembered."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.records.layout import AGE, NEXT_RUN, encode_meta, run_key
from broker_adapter.engine.records.start_numbers import (
    ALWAYS_KEPT_RUNS,
    KEPT_RUN_BYTES,
    KEPT_RUNS,
    SKIPPED_RUNS,
    Next,
    next_run,
    number_of,
    superfluous,
    with_gaps,
)


def noted(number: int) -> bytes:
    return encode_meta(NEXT_RUN, number)


def test_the_next_number_follows_the_last_record_and_what_is_noted() -> None:
    assert next_run(0, None) == Next(1, True)
    assert next_run(7, None) == Next(8, True)
    assert next_run(7, noted(8)) == Next(8, True)
    assert next_run(7, noted(10)) == Next(10, True)
    assert next_run(7, noted(3)) == Next(8, True)


@pytest.mark.parametrize("damaged", [b"", b"damaged", encode_meta(NEXT_RUN, "8"), encode_meta(AGE, 8)])
def test_where_the_note_is_damaged_numbers_are_skipped(damaged: bytes) -> None:
    assert next_run(7, damaged) == Next(8 + SKIPPED_RUNS, False)
    assert list(with_gaps([(7, "a")], damaged)) == ["a", ""]


def test_a_key_has_its_number() -> None:
    assert [number_of(run_key(number)) for number in (1, 1 << 40)] == [1, 1 << 40]


def test_what_is_missing_in_the_middle_or_at_the_end_is_a_gap_and_what_was_forgotten_is_none() -> None:
    assert list(with_gaps([], None)) == []
    assert list(with_gaps([], noted(1))) == []
    assert list(with_gaps([(4, "a"), (5, "b")], noted(6))) == ["a", "b"]
    assert list(with_gaps([(4, "a"), (5, "b")], None)) == ["a", "b"]
    assert list(with_gaps([(4, "a"), (7, "b"), (8, "")], noted(9))) == ["a", "", "b", ""]
    assert list(with_gaps([(4, "a")], noted(6))) == ["a", ""]
    assert list(with_gaps([], noted(6))) == [""]


def test_the_oldest_starts_are_too_many_by_their_number_or_by_their_bytes_but_never_the_last_few() -> None:
    assert superfluous([]) == 0
    assert superfluous([1] * (KEPT_RUNS - 1)) == 0
    assert superfluous([1] * (KEPT_RUNS + 4)) == 5
    assert superfluous([KEPT_RUN_BYTES // 100] * 200) == 100
    assert superfluous([KEPT_RUN_BYTES] * 200) == 201 - ALWAYS_KEPT_RUNS


@given(st.randoms(use_true_random=False))
def test_no_number_is_given_twice_and_each_start_that_is_lost_is_missed(chance: Random) -> None:
    """A number that was given may only be reused where the note was damaged, too; the gap stands before it then."""
    records: dict[int, str] = {}  #: number → start
    note: bytes | None = None
    numbers: set[int] = set()
    starts = 0
    has_been_damaged = False
    for _ in range(30):
        step = chance.choice(["start", "start", "start", "lose last", "lose any", "forget", "damage the note"])
        if step == "start":
            number, _ = next_run(max(records, default=0), note)
            assert number > max(records, default=0)
            assert has_been_damaged or number not in numbers
            numbers.add(number)
            records[number], note = str(starts), noted(number + 1)
            starts += 1
        elif records and step == "lose last":
            del records[max(records)]
        elif records and step == "lose any":
            del records[chance.choice(list(records))]
        elif records and step == "forget":
            del records[min(records)]
        elif step == "damage the note" and note is not None and chance.random() < 0.3:
            note, has_been_damaged = b"damaged", True
        known = [records[number] for number in sorted(records)]
        found = list(with_gaps(sorted(records.items()), note))
        assert [run for run in found if run] == known
        for run, behind in pairwise([*found, str(starts)]):
            assert not run or not behind or int(behind) == int(run) + 1, "each one that is lost is missed"
