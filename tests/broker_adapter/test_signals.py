"""Functions that no handler of a signal interrupts."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

import pytest

from broker_adapter.signals import Condition, Waiters, may_be_interrupted, uninterrupted

WAIT = 120.0


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def alarm_after() -> Iterator[Callable[[float], threading.Thread]]:
    """Starts a thread that has a handler raise after so many seconds.  (SIGALRM is that of the test's time limit.)"""

    def alarm(*_: object) -> None:
        raise Alarm

    def send(seconds: float) -> None:
        time.sleep(seconds)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def start(seconds: float) -> threading.Thread:
        thread = threading.Thread(target=send, args=(seconds,))
        thread.start()
        return thread

    before = signal.signal(signal.SIGUSR1, alarm)
    yield start
    signal.signal(signal.SIGUSR1, before)


def test_a_function_of_the_main_thread_runs_in_a_thread_of_its_own() -> None:
    assert may_be_interrupted()
    assert uninterrupted(threading.get_ident) != threading.get_ident()
    assert not uninterrupted(may_be_interrupted)


def test_a_function_of_another_thread_runs_there() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted(threading.get_ident) == threading.get_ident()))
    thread.start()
    thread.join()
    assert found == [True]


def test_what_the_function_raises_is_raised_by_the_call() -> None:
    def fail() -> NoReturn:
        raise KeyError("of the function")

    with pytest.raises(KeyError, match="of the function"):
        uninterrupted(fail)


def test_a_handler_that_raises_ends_the_wait_and_not_the_function(
    alarm_after: Callable[[float], threading.Thread],
) -> None:
    go_on, ended = threading.Event(), threading.Event()

    def wait() -> None:
        assert go_on.wait(WAIT)
        ended.set()

    alarm_after(0.05)
    with pytest.raises(Alarm):
        uninterrupted(wait)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(WAIT)


def test_the_function_is_called_once_wherever_the_handler_raises(
    alarm_after: Callable[[float], threading.Thread],
) -> None:
    calls: list[int] = []
    returned = 0
    for number in range(300):
        try:
            alarm_after(0.000005 * (number % 40))
            uninterrupted(partial(calls.append, number))
            returned += 1
            for _ in range(10_000):  # the system may interrupt another thread, so that one long sleep would go on
                time.sleep(0.001)
            pytest.fail("no handler ran")
        except Alarm:
            pass
    end = time.monotonic() + WAIT
    while any(thread.name == "holdfast-uninterrupted" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert len(calls) == len(set(calls))
    assert len(calls) >= returned


def test_a_function_runs_in_the_main_thread_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert uninterrupted(threading.get_ident) == threading.get_ident()


def test_a_condition_has_its_lock_when_a_handler_raises_in_the_middle_of_its_wait() -> None:
    class Interrupted(Condition):
        def _release_save(self) -> NoReturn:
            self.release()
            raise Alarm  # before the wait that takes the lock again

    condition = Interrupted(threading.Lock())
    with pytest.raises(Alarm), condition:
        condition.wait(WAIT)
    assert not condition._is_owned()  # type: ignore[attr-defined]


def test_who_waits_looks_again_when_somebody_wakes() -> None:
    waiters = Waiters()
    assert not waiters
    waiters.wake()
    found: list[int] = []
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(waiters.wait(lambda: bool(found), time.monotonic() + WAIT)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + WAIT
    while len(waiters._locks) < 5:
        assert time.monotonic() < end
        time.sleep(0.001)
    for _ in range(3):
        waiters.wake()  # nothing has changed
    assert results == []
    found.append(1)
    waiters.wake()
    for thread in threads:
        thread.join(WAIT)
    assert results == [True] * 5
    assert not waiters


def test_who_waits_for_too_long_hears_that() -> None:
    waiters = Waiters()
    asked: list[int] = []
    assert not waiters.wait(lambda: bool(asked.append(1)), time.monotonic() + 0.01)
    assert len(asked) >= 1
    assert not waiters.wait(lambda: False, time.monotonic() - 1)
    assert waiters.wait(lambda: True, time.monotonic() - 1), "what is so already needs no time"
    assert not waiters


def test_a_handler_that_raises_ends_a_wait_and_leaves_nothing_behind(
    alarm_after: Callable[[float], threading.Thread],
) -> None:
    waiters = Waiters()
    alarm_after(0.05)
    with pytest.raises(Alarm):
        waiters.wait(lambda: False, time.monotonic() + WAIT)
    assert not waiters
    assert waiters.wait(lambda: True, None)


def test_a_handler_may_wait_for_who_wakes_what_it_interrupts() -> None:
    waiters, woken = Waiters(), threading.Event()

    def handler(*_: object) -> None:
        def wake() -> None:
            waiters.wake()
            woken.set()

        threading.Thread(target=wake).start()
        assert woken.wait(WAIT)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sender = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGUSR1))
        sender.start()
        assert waiters.wait(woken.is_set, time.monotonic() + WAIT)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_a_child_the_thread_that_forked_is_the_main_thread() -> None:
    statuses: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if may_be_interrupted() and uninterrupted(threading.get_ident) != threading.get_ident() else 1)
        statuses.append(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    assert statuses == [0]
