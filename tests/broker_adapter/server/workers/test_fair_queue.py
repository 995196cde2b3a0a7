"""The rules by which workers are shared."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.server.workers.fair_queue import FairQueue


def make(most_running: int = 1, most_waiting: int = 10) -> FairQueue[str, int]:
    return FairQueue(most_running=most_running, most_waiting=most_waiting)


def test_owners_take_turns_and_each_keeps_its_order() -> None:
    jobs = make()
    for number in range(3):
        assert jobs.put("a", number)
    assert jobs.put("b", 10)
    taken = []
    while (found := jobs.take()) is not None:
        taken.append(found)
        jobs.done(found[0])
    assert taken == [("a", 0), ("b", 10), ("a", 1), ("a", 2)]
    assert len(jobs) == 0


def test_an_owner_has_no_more_jobs_under_way_than_it_may() -> None:
    jobs = make(most_running=2)
    for number in range(5):
        jobs.put("a", number)
    assert [jobs.take(), jobs.take(), jobs.take()] == [("a", 0), ("a", 1), None]
    jobs.put("b", 9)
    assert jobs.take() == ("b", 9)
    jobs.done("b")
    assert jobs.take() is None
    jobs.done("a")
    assert jobs.take() == ("a", 2)


def test_the_jobs_of_an_owner_that_wait_are_limited() -> None:
    jobs = make(most_waiting=2)
    assert [jobs.put("a", number) for number in range(3)] == [True, True, False]
    assert jobs.put("b", 0)
    assert len(jobs) == 3
    assert jobs.take() == ("a", 0)
    assert jobs.put("a", 5)  # the one under way does not wait


def test_groups_take_turns_and_within_them_their_owners() -> None:
    jobs: FairQueue[tuple[str, str], int] = FairQueue(most_running=1, most_waiting=9, group_of=lambda owner: owner[0])
    for owner in (("x", "a"), ("x", "b"), ("x", "c"), ("y", "a")):
        for number in range(2):
            jobs.put(owner, number)
    taken = []
    while (found := jobs.take()) is not None:
        taken.append(f"{found[0][0]}{found[0][1]}{found[1]}")
        jobs.done(found[0])
    assert taken == ["xa0", "ya0", "xb0", "ya1", "xc0", "xa1", "xb1", "xc1"]


def test_what_is_dropped_is_not_taken_any_more() -> None:
    jobs = make()
    for number in range(3):
        jobs.put("a", number)
    jobs.put("b", 7)
    assert jobs.take() == ("a", 0)
    assert jobs.drop("a") == [1, 2]
    assert jobs.drop("a") == []
    assert jobs.take() == ("b", 7)
    jobs.done("a")
    jobs.done("b")
    assert jobs.take() is None
    assert repr(jobs) == "<FairQueue waiting=0 running=0 owners=0>"


@settings(max_examples=300, deadline=None)
@given(
    most_running=st.integers(1, 3),
    most_waiting=st.integers(1, 4),
    groups=st.sampled_from(["abc", "aab", "aaa"]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abc")),
            st.tuples(st.just("take"), st.just("")),
            st.tuples(st.just("done"), st.sampled_from("abc")),
            st.tuples(st.just("drop"), st.sampled_from("abc")),
            st.tuples(st.just("remove"), st.sampled_from("abc")),
        ),
        max_size=60,
    ),
)
def test_no_job_is_lost_doubled_or_out_of_its_owners_order(
    most_running: int, most_waiting: int, groups: str, steps: list[tuple[str, str]]
) -> None:
    jobs: FairQueue[str, int] = FairQueue(
        most_running=most_running, most_waiting=most_waiting, group_of=dict(zip("abc", groups, strict=True)).get
    )
    waiting: dict[str, deque[int]] = {owner: deque() for owner in "abc"}
    running: Counter[str] = Counter()
    for number, (what, owner) in enumerate(steps):
        if what == "put":
            taken = jobs.put(owner, number)
            assert taken is (len(waiting[owner]) < most_waiting)
            if taken:
                waiting[owner].append(number)
        elif what == "take":
            owner = "a"
            found = jobs.take()
            able = [each for each in "abc" if waiting[each] and running[each] < most_running]
            assert (found is not None) is bool(able)
            if found is not None:
                assert found[0] in able
                assert found[1] == waiting[found[0]].popleft()
                running[found[0]] += 1
        elif what == "done" and running[owner]:
            jobs.done(owner)
            running[owner] -= 1
        elif what == "drop":
            assert jobs.drop(owner) == list(waiting[owner])
            waiting[owner].clear()
        elif what == "remove" and waiting[owner]:
            jobs.remove(owner, waiting[owner].pop())
        assert jobs.waiting_of(owner) == len(waiting[owner])
        assert len(jobs) == sum(map(len, waiting.values()))


@pytest.mark.parametrize("many", [1, 50])
def test_a_newcomer_waits_for_one_job_of_each_other_at_most(many: int) -> None:
    jobs = make(most_running=1, most_waiting=1000)
    for owner in range(many):
        for number in range(100):
            jobs.put(f"greedy {owner}", number)
    jobs.put("newcomer", 1)
    before = 0
    while (found := jobs.take()) is not None and found[0] != "newcomer":
        before += 1
        jobs.done(found[0])
    assert before == many
