"""What waits for its commit leaves in order, once that is released, and is counted meanwhile."""

from __future__ import annotations

from typing import Any

from broker_adapter.engine.commands.messaging import Handout
from broker_adapter.engine.commands.regions import MarkerHandout
from broker_adapter.engine.cycle.releases import Effect, Releases


def ignore(_value: Any) -> None:
    pass


def answer(value: Any) -> Effect:
    return Effect(ignore, value, is_answer=True)


def delivery(*payloads: bytes) -> Effect:
    return Effect(ignore, [Handout(1, 1, 0, 0, each, None, False) for each in payloads], is_answer=False)


def values(effects: list[Effect]) -> list[Any]:
    return [each.value for each in effects]


def test_nothing_leaves_ahead_of_its_commit() -> None:
    releases = Releases()
    releases.add(5, [answer("five")])
    assert not releases.has(4)
    assert releases.release(4) == []
    assert releases.has(5)
    assert values(releases.release(5)) == ["five"]
    assert releases.release(5) == []


def test_what_leaves_has_the_order_of_the_commits_and_of_each_of_them() -> None:
    releases = Releases()
    for lsn in (3, 4, 6):
        releases.add(lsn, [answer((lsn, 1)), answer((lsn, 2))])
    assert values(releases.release(4)) == [(3, 1), (3, 2), (4, 1), (4, 2)]
    assert values(releases.release(9)) == [(6, 1), (6, 2)]


def test_effects_of_a_cycle_without_a_commit_leave_behind_those_of_the_commit_before() -> None:
    releases = Releases(most_commits=2)
    releases.add(3, [answer("commit")])
    releases.add(3, [answer("behind it")])
    assert not releases.is_full, "it is one commit"
    assert values(releases.release(3)) == ["commit", "behind it"]


def test_it_is_full_once_too_many_commits_wait_until_one_is_released() -> None:
    releases = Releases(most_commits=2)
    releases.add(1, [answer(None)])
    assert not releases.is_full
    releases.add(2, [answer(None)])
    assert releases.is_full
    releases.release(1)
    assert not releases.is_full


def test_it_is_full_once_too_many_bytes_wait_until_enough_are_released() -> None:
    releases = Releases(most_bytes=10_000)
    releases.add(1, [delivery(bytes(4_000))])
    releases.add(2, [delivery(bytes(2_000), bytes(2_000))])
    assert not releases.is_full
    releases.add(2, [delivery(bytes(4_000))])
    assert releases.is_full
    releases.release(1)
    assert not releases.is_full
    releases.release(2)
    assert releases.size == 0


def test_answers_and_markers_without_a_payload_take_something_too() -> None:
    releases = Releases()
    releases.add(1, [answer(None), Effect(ignore, [MarkerHandout(1)], is_answer=False)])
    assert releases.size > 0


def test_all_that_waits_can_be_taken_out() -> None:
    releases = Releases()
    assert releases.clear() == []
    releases.add(1, [answer(1)])
    releases.add(2, [answer(2)])
    assert values(releases.clear()) == [1, 2]
    assert releases.size == 0
    assert not releases.has(2)
