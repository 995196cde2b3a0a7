"""What handlers of signals, and forks, do to waiting threads: ``python -m tests.broker_adapter.signalled SCENARIO``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

import pytest

from broker_adapter.signals import Waiters, may_be_interrupted, uninterrupted

WAIT = 60.0


class Alarm(Exception):
    """What the handler raises."""


def alarm(*_: object) -> None:
    """The handler."""
    raise Alarm


def alarm_after(seconds: float) -> None:
    """Have it raise after so many seconds."""
    main = threading.main_thread().ident or 0
    threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1)).start()


def a_handler_that_raises_ends_the_wait_and_not_the_function() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def wait() -> None:
        assert go_on.wait(WAIT)
        ended.set()

    signal.signal(signal.SIGUSR1, alarm)
    alarm_after(0.05)
    with pytest.raises(Alarm):
        uninterrupted(wait)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(WAIT)


def the_function_is_called_once_wherever_the_handler_raises() -> None:
    signal.signal(signal.SIGUSR1, alarm)
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


def a_handler_that_raises_ends_a_wait_and_leaves_nothing_behind() -> None:
    signal.signal(signal.SIGUSR1, alarm)
    waiters = Waiters()
    alarm_after(0.05)
    with pytest.raises(Alarm):
        waiters.wait(lambda: False, time.monotonic() + WAIT)
    assert not waiters
    assert waiters.wait(lambda: True, None)


def a_handler_may_wait_for_the_thread_that_wakes_what_it_interrupts() -> None:
    waiters, woken = Waiters(), threading.Event()

    def wake() -> None:
        waiters.wake()
        woken.set()

    def handler(*_: object) -> None:
        threading.Thread(target=wake).start()
        assert woken.wait(WAIT)

    signal.signal(signal.SIGUSR1, handler)
    alarm_after(0.05)
    assert waiters.wait(woken.is_set, time.monotonic() + WAIT)


def in_a_child_the_thread_that_forked_is_the_main_thread() -> None:
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


SCENARIOS = {
    each.__name__: each
    for each in (
        a_handler_that_raises_ends_the_wait_and_not_the_function,
        the_function_is_called_once_wherever_the_handler_raises,
        a_handler_that_raises_ends_a_wait_and_leaves_nothing_behind,
        a_handler_may_wait_for_the_thread_that_wakes_what_it_interrupts,
        in_a_child_the_thread_that_forked_is_the_main_thread,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
