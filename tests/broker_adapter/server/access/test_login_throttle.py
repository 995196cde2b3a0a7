"""The rules that slow down guessing, on a clock of the test's own."""

from __future__ import annotations

from collections import defaultdict, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.server.access.login_throttle import (
    FREE_FAILURES,
    FREE_NAMES,
    MAX_INTERVAL_SECONDS,
    REMOVE_SECONDS,
    LoginThrottle,
    Pair,
)

FIRST, LONGEST = 0.5, 5.0
ALICE, BOB = Pair("1.1.1.1", "alice"), Pair("1.1.1.1", "bob")


def make(**settings: int) -> LoginThrottle[str]:
    return LoginThrottle(FIRST, LONGEST, **settings)


def checked_at(throttle: LoginThrottle[str], pair: Pair, was_right: bool, now: float) -> float:
    """When a claim that comes now is checked; only claims of this pair wait."""
    throttle.submit(pair, "x", now)
    at = throttle.next_at()
    while at is not None:
        now = max(now, at)
        if throttle.take(now) is not None:
            throttle.finished(pair, was_right, now)
            return now
        at = throttle.next_at()
    raise AssertionError("it is never checked")


def test_a_claim_is_checked_at_once() -> None:
    throttle = make()
    assert throttle.take(0.0) is None
    throttle.submit(ALICE, "first", 1.0)
    assert throttle.next_at() == 1.0
    assert throttle.take(1.0) == (ALICE, "first")
    assert throttle.next_at() is None


def test_the_pause_after_a_wrong_password_doubles_up_to_a_limit_and_ends_with_a_right_one() -> None:
    throttle, now, pauses = make(), 0.0, []
    for _ in range(FREE_FAILURES + 6):
        at = checked_at(throttle, ALICE, False, now)
        pauses.append(at - now)
        now = at
    assert pauses == [*[0.0] * FREE_FAILURES, 0.5, 1.0, 2.0, 4.0, LONGEST, LONGEST]
    now = checked_at(throttle, ALICE, True, now)
    assert checked_at(throttle, ALICE, False, now) == now


def test_claims_of_a_pair_are_checked_one_after_the_other_however_many_come_at_once() -> None:
    throttle, times = make(), []
    for number in range(FREE_FAILURES + 3):
        throttle.submit(ALICE, str(number), 0.0)
    now = 0.0
    while (at := throttle.next_at()) is not None:
        now = max(now, at)
        taken = throttle.take(now)
        assert taken == (ALICE, str(len(times)))
        assert throttle.take(now) is None, "the first is still being checked"
        times.append(now)
        throttle.finished(ALICE, False, now)
    assert times == [*[0.0] * FREE_FAILURES, 0.5, 1.5, 3.5]


def test_what_one_origin_does_slows_down_no_other_and_no_other_user() -> None:
    throttle = make()
    for _ in range(20):
        checked_at(throttle, ALICE, False, 0.0)
    assert checked_at(throttle, Pair("2.2.2.2", "alice"), True, 0.0) == 0.0
    assert checked_at(throttle, BOB, True, 0.0) == 0.0


def test_an_origin_that_tries_many_names_is_slowed_down_as_a_whole() -> None:
    throttle = make()
    for number in range(FREE_NAMES):
        assert checked_at(throttle, Pair("1.1.1.1", f"user {number}"), False, 0.0) == 0.0
    times = [checked_at(throttle, Pair("1.1.1.1", f"other {number}"), False, 0.0) for number in range(5)]
    assert times == [0.0, FIRST, *(FIRST + number * MAX_INTERVAL_SECONDS for number in (1, 2, 3))]
    assert checked_at(throttle, Pair("2.2.2.2", "other"), False, 0.0) == 0.0


def test_a_pair_that_was_right_is_not_slowed_down_with_its_origin() -> None:
    throttle = make()
    checked_at(throttle, BOB, True, 0.0)
    for number in range(FREE_NAMES + 10):
        checked_at(throttle, Pair("1.1.1.1", f"user {number}"), False, 0.0)
    assert checked_at(throttle, BOB, True, 0.0) == 0.0
    assert checked_at(throttle, ALICE, True, 0.0) > 0.0
    assert checked_at(throttle, BOB, False, 0.0) == 0.0
    assert checked_at(throttle, BOB, True, 0.0) > 0.0, "it was wrong since"


def test_one_client_with_a_wrong_password_does_not_slow_down_its_origin() -> None:
    throttle, now = make(), 0.0
    for _ in range(10 * FREE_NAMES):
        now = checked_at(throttle, ALICE, False, now)
    assert checked_at(throttle, BOB, True, now) == now


def test_failures_are_forgotten_after_a_while() -> None:
    throttle = make()
    for number in range(FREE_NAMES + 5):
        checked_at(throttle, Pair("1.1.1.1", f"user {number}"), False, 0.0)
    last = 0.0
    for _ in range(10):
        last = checked_at(throttle, ALICE, False, last)
    much_later = last + REMOVE_SECONDS + 1
    for _ in range(FREE_FAILURES):
        assert checked_at(throttle, ALICE, False, much_later) == much_later
    assert checked_at(throttle, ALICE, False, much_later) == much_later + FIRST
    assert checked_at(throttle, BOB, False, much_later) == much_later


def test_what_is_known_is_limited_and_the_oldest_is_forgotten() -> None:
    throttle = make(max_known=3)
    pairs = [Pair(f"origin {number}", "alice") for number in range(4)]
    for pair in pairs:
        for _ in range(FREE_FAILURES):
            checked_at(throttle, pair, False, 0.0)
    assert checked_at(throttle, pairs[0], False, 0.0) == 0.0
    assert checked_at(throttle, pairs[3], False, 0.0) == FIRST
    assert repr(throttle) == "<LoginThrottle waiting=0 verifying=0 failed=3>"


def test_abandoned_claims_are_skipped_and_cost_no_pause() -> None:
    gone: set[str] = set()
    throttle: LoginThrottle[str] = LoginThrottle(FIRST, LONGEST, is_abandoned=gone.__contains__)
    for number in range(FREE_FAILURES):
        throttle.submit(ALICE, str(number), 0.0)
        assert throttle.take(0.0) is not None
        throttle.finished(ALICE, False, 0.0)
    for number in range(100):
        throttle.submit(ALICE, f"gone {number}", 0.0)
        gone.add(f"gone {number}")
    throttle.submit(ALICE, "here", 0.0)
    assert throttle.take(0.0) is None
    assert throttle.take(FIRST) == (ALICE, "here")
    throttle.finished(ALICE, None, FIRST)
    throttle.submit(ALICE, "next", FIRST)
    assert throttle.take(FIRST) == (ALICE, "next"), "what was not checked is no failure"


def test_without_a_first_pause_there_is_none() -> None:
    throttle: LoginThrottle[str] = LoginThrottle(0.0, LONGEST)
    for number in range(50):
        assert checked_at(throttle, ALICE, False, 0.0) == 0.0
        assert checked_at(throttle, Pair("1.1.1.1", f"user {number}"), False, 0.0) == 0.0


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "take", "judge", "wait"]),
            st.sampled_from([ALICE, BOB, Pair("2.2.2.2", "alice")]),
            st.booleans(),
        ),
        max_size=80,
    )
)
def test_no_claim_is_lost_doubled_or_out_of_its_pairs_order(steps: list[tuple[str, Pair, bool]]) -> None:
    throttle, now = LoginThrottle[int](FIRST, LONGEST), 0.0
    waiting: dict[Pair, deque[int]] = defaultdict(deque)
    busy: dict[Pair, int] = {}

    def take() -> None:
        taken = throttle.take(now)
        if taken is not None:
            pair, claim = taken
            assert pair not in busy
            assert claim == waiting[pair].popleft()
            busy[pair] = claim

    for number, (what, pair, flag) in enumerate(steps):
        if what == "arrive":
            throttle.submit(pair, number, now)
            waiting[pair].append(number)
        elif what == "take":
            take()
        elif what == "judge" and pair in busy:
            del busy[pair]
            throttle.finished(pair, flag, now)
        elif what == "wait":
            now += 1.0
    for _ in range(500):
        for pair in list(busy):
            del busy[pair]
            throttle.finished(pair, True, now)
        at = throttle.next_at()
        if at is None:
            break
        now = max(now, at)
        take()
    assert not any(waiting.values())
    assert not busy
