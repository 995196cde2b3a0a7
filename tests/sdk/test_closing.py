"""One thread closes at a time."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from functools import partial

import pytest

from sdk.closing import Closing

WAIT = 120.0


def test_what_is_over_is_not_closed_again() -> None:
    closed: list[int] = []
    closing = Closing()
    for _ in range(3):
        closing.take_turn(lambda: closed.append(1), lambda: bool(closed))
    assert closed == [1]


def closing_in_a_thread(closing: Closing, end: BaseException | None) -> tuple[threading.Thread, threading.Event]:
    """Another thread, which is in the middle of closing, and what lets it go on."""
    begun, go_on = threading.Event(), threading.Event()

    def close() -> None:
        begun.set()
        assert go_on.wait(WAIT)
        if end is not None:
            raise end
        HAPPENED.append("closed")

    def run() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            closing.take_turn(close, lambda: bool(HAPPENED))

    HAPPENED.clear()
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WAIT)
    return thread, go_on


HAPPENED: list[str] = []


def test_another_thread_waits_for_the_one_that_closes() -> None:
    closing = Closing()
    thread, go_on = closing_in_a_thread(closing, None)
    never = partial(pytest.fail, "two close at once")
    closing.take_turn(never, lambda: bool(HAPPENED))  # which waits for nothing
    closing.take_turn(never, lambda: bool(HAPPENED), time.monotonic() + 0.01)
    assert HAPPENED == []
    threading.Timer(0.05, go_on.set).start()
    closing.take_turn(never, lambda: bool(HAPPENED), time.monotonic() + WAIT)
    assert HAPPENED == ["closed"]
    thread.join(WAIT)


def test_waiting_threads_close_as_soon_as_the_first_one_is_interrupted() -> None:
    closing = Closing()
    thread, go_on = closing_in_a_thread(closing, KeyboardInterrupt())
    deadline = time.monotonic() + 1_000 * WAIT

    def close() -> None:
        HAPPENED.append(threading.current_thread().name)

    waiting = [
        threading.Thread(target=closing.take_turn, args=(close, lambda: bool(HAPPENED), deadline)) for _ in range(3)
    ]
    for each in waiting:
        each.start()
    while len(closing._waiters._locks) < 3:
        time.sleep(0.001)
    go_on.set()
    for each in (thread, *waiting):
        each.join(WAIT)
        assert not each.is_alive()
    assert len(HAPPENED) == 1


def test_a_call_in_the_middle_of_it_returns() -> None:
    closing = Closing()
    calls: list[int] = []

    def close() -> None:
        calls.append(1)
        closing.take_turn(close, lambda: False, math.inf)

    closing.take_turn(close, lambda: False)
    assert calls == [1]


def test_the_next_call_goes_on_where_one_was_interrupted() -> None:
    closing = Closing()
    calls: list[int] = []

    def close() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        closing.take_turn(close, lambda: False)
    closing.take_turn(close, lambda: False)
    assert calls == [1, 1]
