"""Arithmetic on positions."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdk.range_reader import Bounds
from spark_connector.offsets import (
    Offset,
    PartCounts,
    beginning,
    has_positions,
    in_turn,
    is_due,
    latest,
    lost,
    offset_from,
    positions_of_task,
    renewed,
    shares,
    span,
    split,
)


def bounds(first: int, next_: int, **fields: Any) -> Bounds:
    return Bounds(
        **{"incarnation": "a", "run": "r", "kept": next_, "settled": 0, **fields, "first": first, "next": next_}
    )


def test_an_offset_has_one_form_only() -> None:
    offset = Offset(3, "a-1", 7, "r", claim="w")
    text = '{"base": 3, "claim": "w", "incarnation": "a-1", "next": 7, "run": "r", "settled": 0}'
    assert json.dumps(offset.to_json()) == text
    assert offset_from(dict(reversed(offset.to_json().items()))) == offset


@pytest.mark.parametrize("name", Offset._fields)
@pytest.mark.parametrize("value", [None, True, 1.0, []])
def test_another_sources_offset_is_refused(name: str, value: object) -> None:
    fields = Offset(3, "a-1", 7, "r").to_json()
    for wrong in ({**fields, name: value}, {each: fields[each] for each in fields if each != name}):
        with pytest.raises(ValueError, match="not an offset of this source"):
            offset_from(wrong)


def test_an_offset_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="not an offset of this source"):
        offset_from(Offset(8, "a-1", 7, "r").to_json())


def test_a_batch_goes_to_the_head_or_to_its_limit() -> None:
    start = Offset(1, "a", 10, "q")
    assert latest(start, bounds(10, 25), 25, None) == Offset(1, "a", 25, "r")
    assert latest(start, bounds(10, 25), 25, 5).next == 15
    assert latest(start, bounds(20, 25), 25, 5).next == 25  # what is gone below does not count
    assert latest(start, bounds(10, 25), 20, None).next == 20  # a frozen head
    assert latest(start, bounds(10, 10), 10, 5) == start
    assert latest(start, bounds(3, 5), 5, None) == start  # never backwards


def test_an_offset_whose_run_is_aging_gets_the_present_run_and_nothing_else_changes() -> None:
    offset = Offset(1, "a", 10, "old")
    assert renewed(offset, bounds(10, 10)) == offset
    again = renewed(offset, bounds(10, 10, aging=True))
    assert again == Offset(1, "a", 10, "r")
    first, stop = span(offset, again)
    assert first >= stop, "a batch without rows"
    assert lost(offset, again, bounds(10, 10)) is None
    assert renewed(again, bounds(10, 10)) == again


def test_an_offset_is_not_renewed_where_its_positions_are_not_known_to_be_those_of_the_same_messages() -> None:
    offset = Offset(1, "a", 10, "old")
    assert renewed(offset, bounds(1, 50, kept=9, aging=True)) == offset
    assert renewed(offset, bounds(1, 50, kept=10, aging=True)) == offset._replace(run="r")
    assert renewed(offset, bounds(1, 50, aging=True, incarnation="b")) == offset
    assert renewed(offset, bounds(1, 50, aging=True, run="")) == offset


def test_the_batch_between_two_offsets_is_what_the_second_adds_to_the_first() -> None:
    begin, end = Offset(1, "a", 10, "r"), Offset(1, "a", 25, "s")
    assert span(begin, end) == (10, 25)
    assert span(Offset(3, "a", 3, "r"), Offset(5, "a", 25, "r")) == (5, 25)  # asked again where to begin
    assert span(Offset(30, "a", 30, "r"), end) == (end.base, 25)  # asked again, and what was planned is gone
    assert span(Offset(1, "b", 99, "r"), Offset(1, "a", 25, "r")) == (1, 25)


def test_to_begin_again_is_a_batch_without_rows_and_the_next_one_has_what_is_there() -> None:
    before = Offset(1, "a", 100, "old")
    again = beginning(bounds(4, 60), "w")
    assert again == Offset(4, "a", 4, "r", claim="w")
    first, stop = span(before, again)
    assert first >= stop
    assert span(again, latest(again, bounds(4, 60), 60, None)) == (4, 60)


def test_what_is_lost_is_told_apart() -> None:
    offset = Offset(1, "a", 10, "r")
    assert lost(offset, offset, bounds(10, 10)) is None
    assert lost(offset, offset, bounds(20, 30, settled=9)) is None  # consumed, or expired
    made_again = lost(offset, offset, bounds(1, 99, incarnation="b"))
    assert made_again is not None
    assert ("deleted and made again" in made_again.reason, made_again.restart) == (True, True)
    assert "or the checkpoint is of another queue" in made_again.reason
    for replaced in (
        lost(offset, offset, bounds(1, 5, kept=5)),
        lost(offset, offset, bounds(1, 50, kept=9)),
    ):
        assert replaced is not None
        assert ("older copy" in replaced.reason, replaced.restart) == (True, True)
    older = lost(offset, offset, bounds(20, 30, settled=19))
    assert older is not None
    assert ("from 10 to 19" in older.reason, older.restart) == (True, False)
    planned = lost(offset, Offset(1, "a", 25, "r"), bounds(20, 30, settled=19))
    assert planned == older


def test_a_query_that_begins_is_not_older_than_the_queue_where_messages_came_back_below_the_settled_mark() -> None:
    there = bounds(2, 9, settled=5)
    start = beginning(there, "w")
    assert lost(start, start, there) is None
    end = latest(start, there, 9, None)
    assert span(start, end) == (2, 9)
    assert lost(start, end, there) is None
    assert lost(end, end, attrs.evolve(there, settled=8)) is None
    assert lost(end, end, attrs.evolve(there, settled=9, next=12)) is not None


def test_what_others_had_settled_before_a_query_began_is_no_loss() -> None:
    """They began behind messages that stayed in the queue, with which this one begins."""
    there = bounds(1, 21, settled=20)
    first = latest(beginning(there, "w"), there, 21, 5)
    left = attrs.evolve(there, first=6)
    assert lost(first, first, left) is None
    second = latest(first, left, 21, 10)
    assert lost(first, second, left) is None
    behind = attrs.evolve(there, first=30, next=30)
    assert lost(second, second, behind) is None, "these have expired, or were consumed"
    assert lost(second, second, attrs.evolve(behind, settled=29)) is not None, "a newer checkpoint has settled them"
    assert offset_from(second.to_json()) == second
    assert beginning(bounds(1, 9), "w") == Offset(1, "a", 1, "r", 0, "w")


def test_the_first_batch_of_a_checkpoint_that_is_older_than_the_queue_is_lost_like_any_other() -> None:
    """Where it is not in Spark's log, Spark asks again where the query begins."""
    planned = latest(beginning(bounds(1, 21), "w"), bounds(1, 21), 21, None)
    again = bounds(21, 31, settled=20)
    loss = lost(beginning(again, "w"), planned, again)
    assert loss is not None
    assert ("began at position 1: the positions up to 20" in loss.reason, loss.restart) == (True, False)
    assert lost(beginning(bounds(5, 31), "w"), planned, bounds(5, 31)) is None, "these have expired, or were consumed"
    assert lost(beginning(bounds(1, 31), "w"), planned, bounds(1, 31)) is None, "it runs again after a crash"


@given(
    positions=st.lists(st.integers(1, 200), min_size=3, max_size=3).map(sorted),
    kept=st.integers(1, 200),
    most=st.none() | st.integers(1, 50),
)
def test_nothing_is_settled_that_was_not_read(positions: list[int], kept: int, most: int | None) -> None:
    """Whatever the broker has become: what an offset settles was in the batches that lead to it, or is kept."""
    first, read, head = positions
    offset = Offset(1, "a", read, "old")
    there = bounds(first, head, kept=min(kept, head), aging=True)
    assert (renewed(offset, there).run == "r") is (read <= there.kept)
    loss = lost(offset, offset, there)
    batches = set(range(offset.base, offset.next))
    if loss is None:
        assert offset.next <= there.kept
    else:
        offset, batches = beginning(there, "w"), set()
    end = latest(offset, there, head, most)
    assert set(range(end.base, end.next)) <= batches | set(range(*span(offset, end)))


@given(first=st.integers(0, 10**6), size=st.integers(-5, 5_000), most=st.integers(1, 6_000))
def test_ranges_cover_everything_once_and_keep_their_limit(first: int, size: int, most: int) -> None:
    ranges = split(first, first + size, most)
    assert sum(high - low + 1 for low, high in ranges) == max(size, 0)
    assert all(1 <= high - low + 1 <= most for low, high in ranges)
    assert [low for low, _ in ranges] == [first, *[high + 1 for _, high in ranges]][: len(ranges)]


def test_ranges_are_as_many_as_is_asked_for_as_far_as_there_are_positions() -> None:
    assert split(0, 10, 100, PartCounts(4)) == [(0, 1), (2, 4), (5, 6), (7, 9)]
    assert split(0, 3, 100, PartCounts(8)) == [(0, 0), (1, 1), (2, 2)]
    assert len(split(0, 1000, 10, PartCounts(4))) == 100
    assert split(5, 5, 10, PartCounts(4, 4)) == []


def test_ranges_are_not_more_than_is_asked_for_however_large_they_get() -> None:
    assert split(0, 1000, 10, PartCounts(most=4)) == [(0, 249), (250, 499), (500, 749), (750, 999)]
    assert split(0, 10, 100, PartCounts(1, 4)) == [(0, 9)]
    assert split(0, 10, 100, PartCounts(4, 4)) == [(0, 1), (2, 4), (5, 6), (7, 9)]


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 50),
    st.sampled_from((1, 10, 100, 10**6)),
)
@example([1000] * 5, 4, 6, 100)  # the least is below the number of queues
@example([3, 391], 1, 6, 100)  # all fit, though not in proportion
def test_the_ranges_of_several_queues_are_together_as_many_as_is_asked_for(
    counts: list[int], least: int | None, most: int | None, size: int
) -> None:
    if least is not None and most is not None:
        least = min(least, most)
    named = {str(place): count for place, count in enumerate(counts)}
    wanted = PartCounts(least, most).of_each(named, dict.fromkeys(named, size))
    ranges = {name: split(0, count, size, wanted[name]) for name, count in named.items()}
    found = sum(map(len, ranges.values()))
    assert all(bool(ranges[name]) == (count > 0) for name, count in named.items())
    assert most is None or found <= max(most, len([count for count in counts if count]))
    assert least is None or found >= min(least, sum(counts))
    needed = {name: -(-count // size) for name, count in named.items()}
    if most is None or sum(needed.values()) <= most:
        assert all(len(ranges[name]) >= each for name, each in needed.items()), "none is larger than it has to be"
    else:
        assert found >= most, "none is larger than it has to be"


@pytest.mark.parametrize(
    ("waiting", "waited", "is_one"), [(0, 99, False), (9, 0, False), (10, 0, True), (1, 60, True), (0, 60, False)]
)
def test_a_batch_begins_with_enough_messages_or_after_a_time(waiting: int, waited: float, is_one: bool) -> None:
    assert is_due(waiting, 10, waited, 60) == is_one
    assert is_due(waiting, None, waited, 60)


@given(st.integers(0, 1000), st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=8))
def test_a_limit_is_used_up_and_nobody_gets_more_than_it_wants(most: int, wanted: dict[str, int]) -> None:
    given = shares(most, wanted)
    assert sum(given.values()) == min(most, sum(wanted.values()))
    assert all(0 <= given[name] <= count for name, count in wanted.items())
    if most >= len(wanted):
        assert all(given[name] for name, count in wanted.items() if count), "none is starved"


@given(st.integers(1, 8), st.integers(1, 8))
def test_none_is_starved_though_the_limit_is_below_the_number_of_those_that_want_something(
    most: int, all_: int
) -> None:
    names, last = [str(number) for number in range(all_)], None
    served: set[str] = set()
    for _ in range(-(-all_ // most)):
        given = shares(most, dict.fromkeys(names, 9), last)
        turn = in_turn((name for name in names if given[name]), last)
        served |= set(turn)
        last = turn[-1]
    assert served == set(names)


def test_names_are_served_in_turn() -> None:
    assert in_turn("cab", None) == ["a", "b", "c"]
    assert in_turn("cab", "a") == ["b", "c", "a"]
    assert in_turn("cab", "c") == ["a", "b", "c"]
    assert in_turn("ca", "b") == ["c", "a"]
    assert shares(2, {"a": 9, "b": 9, "c": 9}, "b") == {"a": 1, "b": 0, "c": 1}


def test_a_limit_is_shared_in_proportion() -> None:
    assert shares(100, {"a": 900, "b": 90, "c": 0, "d": 1}) == {"a": 90, "b": 9, "c": 0, "d": 1}


def test_a_task_has_as_many_positions_as_its_limits_of_number_and_bytes_allow_and_one_at_least() -> None:
    assert positions_of_task(100, None, 1000) == 100
    assert positions_of_task(100, 5000, None) == 100
    assert positions_of_task(100, 5000, 0) == 100
    assert positions_of_task(100, 5000, 1000) == 5
    assert positions_of_task(3, 5000, 1000) == 3
    assert positions_of_task(100, 999, 1000) == 1


def test_a_batch_has_positions_or_a_new_beginning() -> None:
    start = Offset(1, "a", 5, "r")
    assert has_positions(start, start._replace(next=6))
    assert not has_positions(start, start)
    assert has_positions(Offset(9, "a", 9, "r"), Offset(1, "a", 9, "r"))
    assert not has_positions(start, Offset(7, "b", 7, "s"))
