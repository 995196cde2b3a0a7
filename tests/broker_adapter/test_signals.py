"""Functions that no handler of a signal interrupts."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from collections import deque
from typing import NoReturn

import pytest

from broker_adapter import signals
from broker_adapter.signals import Condition, Waiters, may_be_interrupted, uninterrupted
from tests import forked_command
from tests.broker_adapter.signalled import SCENARIOS

WAIT = 120.0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_handlers_of_signals_harm_nothing(scenario: str) -> None:
    """In processes of their own, so that nothing else is interrupted, or loses what belongs to a thread by a fork."""
    done = forked_command.run_python(["-m", "tests.broker_adapter.signalled", scenario], timeout=WAIT)
    assert done.returncode == 0, done.stderr[-3000:]


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


def test_a_function_runs_in_the_main_thread_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    monkeypatch.setattr(signals, "_idle", deque())
    assert uninterrupted(threading.get_ident) == threading.get_ident()


def test_a_condition_has_its_lock_when_a_handler_raises_in_the_middle_of_its_wait() -> None:
    class Interrupted(Condition):
        def _release_save(self) -> NoReturn:
            self.release()
            raise KeyError  # as a handler does, before the wait that takes the lock again

    condition = Interrupted(threading.Lock())
    with pytest.raises(KeyError), condition:
        condition.wait(WAIT)
    assert not condition._is_owned()  # type: ignore[attr-defined]


def test_a_waiting_thread_checks_again_when_it_is_woken() -> None:
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


def test_a_wait_that_times_out_says_so() -> None:
    waiters = Waiters()
    asked: list[int] = []
    assert not waiters.wait(lambda: bool(asked.append(1)), time.monotonic() + 0.01)
    assert len(asked) >= 1
    assert not waiters.wait(lambda: False, time.monotonic() - 1)
    assert waiters.wait(lambda: True, time.monotonic() - 1), "what is so already needs no time"
    assert not waiters


def test_work_that_an_idle_thread_has_been_given_is_done_before_the_process_ends() -> None:
    """Its caller was interrupted as it began to wait, and the process ends at once."""
    program = """
import time
from broker_adapter import signals

signals.uninterrupted(int)
while not signals._idle:
    time.sleep(0.001)
worker = signals._idle.pop()
worker.works.put(signals._Work(lambda: time.sleep(0.3)))
worker.works.put(signals._Work(lambda: print("done", flush=True)))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert finished.stdout == "done\n"
