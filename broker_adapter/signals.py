"""Work that no handler of a signal may interrupt.

Python runs the handlers of signals in the main thread, between any two steps of what runs there.  They may raise, as
the one for Ctrl-C does, and leave what they interrupt half done; or call back into it, where it waits for itself.
"""

from __future__ import annotations

import _thread
import atexit
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

#: How long a thread waits for more work, in seconds.
_LINGER_SECONDS: Final = 1.0


def may_be_interrupted() -> bool:
    """Return whether handlers of signals run in this thread: after a fork, that is the one that forked."""
    return threading.get_ident() == threading.main_thread().ident


def uninterrupted(function: Callable[[], T]) -> T:
    """Call a function where no handler of a signal runs, and wait for its end.

    In the main thread it runs in another thread.  Where a handler raises meanwhile, the caller waits no longer, and the
    function goes on to its end, before that of the process.

    Args:
        function: called once.

    Returns:
        What the function returns.

    Raises:
        BaseException: what the function raises, or a handler of a signal.
    """
    if not may_be_interrupted():
        return function()
    work = _Work(function)
    try:
        worker = _idle.pop()
    except IndexError:
        # Thread.start() is no single step: a handler that raises there leaves a thread that never runs.  So a bare
        # thread starts the one that does the work.
        try:
            _thread.start_new_thread(_Worker(work).start, ())
        except RuntimeError:
            work.carry_out()  # no thread can start: the process has too many, or ends
    else:
        worker.works.put(work)
    return work.result()


class Condition(threading.Condition):
    """A condition whose lock is held when ``wait`` ends, also where a handler of a signal raises in the middle of it.

    That of Python may have let the lock go then, so that ``with`` raises RuntimeError in place of what the handler did.
    The lock must not be held twice.
    """

    def wait(self, timeout: float | None = None) -> bool:
        """See :meth:`threading.Condition.wait`."""
        try:
            return super().wait(timeout)
        except BaseException:
            if not self._is_owned():  # type: ignore[attr-defined]  # as the methods of Condition ask
                self.acquire()
            raise


class Waiters:
    """Threads that wait for something, and are woken without any lock that one of them may hold.

    A thread that is interrupted while it holds one could wait, in the handler of the signal, for the thread that wakes.
    """

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()  #: of each waiter, which waits for its own

    def __bool__(self) -> bool:
        return bool(self._locks)

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until something is so; the condition is checked again at each ``wake``.

        Args:
            condition: asked without any lock.
            deadline: in monotonic seconds; None: no limit.

        Returns:
            Whether it is so; False when the deadline passed first.
        """
        lock = threading.Lock()
        lock.acquire()
        try:
            self._locks.append(lock)
            while not condition():
                remaining = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and remaining <= 0:
                    return False
                lock.acquire(timeout=min(remaining, threading.TIMEOUT_MAX))
            return True
        finally:
            with suppress(ValueError):  # the handler of a signal has raised ahead of the first step
                self._locks.remove(lock)

    def wake(self) -> None:
        """Have all of them check again; after the change that they wait for."""
        for lock in list(self._locks):
            if lock.locked():  # else it is awake already, and checks the condition yet
                with suppress(RuntimeError):  # another thread has woken it meanwhile
                    lock.release()


class _Work(Generic[T]):
    """A function that is called once, and what comes of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._unclaimed = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()
        self._error: BaseException | None = None
        self._result: T

    def carry_out(self) -> None:
        """Call the function, unless that has been done or is under way."""
        if not self._unclaimed.acquire(blocking=False):
            return
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def is_done(self, seconds: float) -> bool:
        """Wait for the end of the call, at most so long, where nothing else waits for it; returns whether it came."""
        return self._done.acquire(timeout=seconds)

    def result(self) -> T:
        """Wait for the end of the call, and return or raise what it did."""
        self._done.acquire()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error  # it refers to this frame


class _Worker:
    """A thread that carries out one piece of work after the other, and ends when none has come for a while.

    Args:
        work: the first one.

    Attributes:
        works: those that are to come.
    """

    def __init__(self, work: _Work[Any]) -> None:
        self.works: queue.SimpleQueue[_Work[Any]] = queue.SimpleQueue()
        self.works.put(work)

    def start(self) -> None:
        """Begin."""
        _workers.append(self)
        try:
            threading.Thread(target=self._run, name="holdfast-uninterrupted", daemon=True).start()
        except RuntimeError:
            self.works.get().carry_out()
            _workers.remove(self)

    def _run(self) -> None:
        while True:
            try:
                work = self.works.get(timeout=_LINGER_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # the main thread has taken it out, and is about to give it work
                _workers.remove(self)
                return
            work.carry_out()
            del work  # it has the result
            _idle.append(self)


#: Workers without work.  The main thread takes one out, a worker itself.
_idle: deque[_Worker] = deque()
#: Those that run.
_workers: deque[_Worker] = deque()


@atexit.register
def _finish() -> None:
    """Wait for what no caller waits for any more, as the process ends."""
    for worker in list(_workers):
        last = _Work(int)
        worker.works.put(last)
        while worker in _workers and not last.is_done(_LINGER_SECONDS):
            pass


def _after_fork() -> None:
    _idle.clear()
    _workers.clear()


os.register_at_fork(after_in_child=_after_fork)
