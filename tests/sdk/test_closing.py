"""One thread closes at a time."""

from __future__ import annotations

import threading

import pytest

from sdk.closing import Closing

WAIT = 120.0


def test_what_is_over_is_not_closed_again() -> None:
    closed: list[int] = []
    closing = Closing()
    for _ in range(3):
        closing.take_turn(lambda: closed.append(1), lambda: bool(closed))
    assert closed == [1]


def test_another_thread_waits_for_the_one_that_closes() -> None:
    closing, begun, go_on = Closing(), threading.Event(), threading.Event()
    happened: list[str] = []

    def close() -> None:
        begun.set()
        assert go_on.wait(WAIT)
        happened.append("closed")

    def is_over() -> bool:
        return bool(happened)

    thread = threading.Thread(target=closing.take_turn, args=(close, is_over))
    thread.start()
    assert begun.wait(WAIT)
    closing.take_turn(close, is_over)  # which waits for nothing, and does not close
    closing.take_turn(close, is_over, lambda: (go_on.set(), thread.join(WAIT), happened.append("waited")))
    assert happened == ["closed", "waited"]


def test_who_has_waited_closes_where_the_first_one_was_interrupted() -> None:
    closing, begun, go_on = Closing(), threading.Event(), threading.Event()
    happened: list[str] = []

    def interrupted() -> None:
        begun.set()
        assert go_on.wait(WAIT)
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            closing.take_turn(interrupted, lambda: False)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(WAIT)
    closing.take_turn(
        lambda: happened.append("closed"), lambda: bool(happened), lambda: (go_on.set(), thread.join(WAIT))
    )
    assert happened == ["closed"]


def test_a_call_in_the_middle_of_it_returns() -> None:
    closing = Closing()
    calls: list[int] = []

    def close() -> None:
        calls.append(1)
        closing.take_turn(close, lambda: False, lambda: pytest.fail("it would wait for itself"))

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
