"""Which numbers of a destination of another site have come."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.engine.commands.intervals import MOST_INTERVALS, Intervals


def added(intervals: Intervals, *messages: tuple[int, int]) -> list[bool]:
    """Of messages with their number and that of the message before, whether each is new."""
    return [intervals.add(*each) for each in messages]


def test_one_way_is_one_interval_whatever_numbers_other_destinations_have() -> None:
    come = Intervals()
    assert all(come.add(number, number - 7 if number > 3 else 0) for number in range(3, 10_000, 7))
    assert len(come) == 1
    assert come.last == 9999


def test_a_second_way_brings_nothing_new_however_late_it_is() -> None:
    come = Intervals()
    messages = [(number, number - 3) for number in range(10, 30_000, 3)]
    assert all(added(come, *messages))
    assert not any(added(come, *messages))
    assert len(come) == 1


def test_what_is_missing_between_two_intervals_is_new_once_and_joins_them() -> None:
    come = Intervals()
    assert added(come, (10, 0), (20, 10), (50, 40), (60, 50)) == [True] * 4
    assert len(come) == 2
    assert added(come, (30, 20), (40, 30), (40, 30)) == [True, True, False]
    assert added(come, (50, 40)) == [False]
    assert len(come) == 1


def test_of_messages_before_which_nothing_is_known_each_begins_an_interval() -> None:
    come = Intervals()
    assert added(come, (10, 0), (20, 0), (21, 20), (30, 0), (15, 0)) == [True] * 5
    assert len(come) == 4
    assert added(come, (10, 0), (20, 0), (21, 20), (30, 0), (15, 0)) == [False] * 5


def test_beyond_the_limit_messages_come_twice_and_none_is_lost() -> None:
    come = Intervals()
    assert all(come.add(number, number - 1 if number > 1 else 0) for number in range(1, 1000))
    numbers = range(2000, 2000 + 20 * MOST_INTERVALS, 10)
    assert all(come.add(number, 0) for number in numbers)
    assert len(come) == MOST_INTERVALS
    assert not any(come.add(number, 0) for number in range(1, 1000))
    assert not any(come.add(number, 0) for number in numbers[-MOST_INTERVALS + 1 :])
    assert all(come.add(number + 5, 0) for number in numbers)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32))
def test_several_ways_bring_each_message_once_as_a_set_would(seed: int) -> None:
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(1, 1 << 20), 60))
    # Of those behind a start of the other site, no way says what was before.
    starts = {each for each in numbers if chance.random() < 0.1} | {numbers[0]}
    before = {number: 0 if number in starts else last for last, number in zip([0, *numbers], numbers, strict=False)}
    ways = [[each for each in numbers if chance.random() < wants] for wants in (1.0, 0.9, 0.3)]
    come, known = Intervals(), set[int]()
    places = [0, 0, 0]
    while left := [way for way in range(3) if places[way] < len(ways[way])]:
        way = chance.choice(left)
        for number in ways[way][places[way] : (end := places[way] + chance.randrange(1, 20))]:
            assert come.add(number, before[number]) is (number not in known)
            known.add(number)
        places[way] = end
        if chance.random() < 0.1:
            come = Intervals(come.encoded())
        assert all((number in come) is (number in known) for number in numbers)
    assert known == set(numbers)
    assert len(come) <= len(starts)
    assert come.last == numbers[-1]
