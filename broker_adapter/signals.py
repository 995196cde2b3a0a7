"""Work that no handler of a signal may interrupt.

Python runs the handlers of signals in the main thread, between any two steps of what runs there.  They may raise, as
the one for Ctrl-C does, and leave what they interrupt half done; or call back into it, where it waits for itself.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


def may_be_interrupted() -> bool:
    """Whether handlers of signals run in this thread: after a fork, that is the one that forked."""
    return threading.get_ident() == threading.main_thread().ident


def uninterrupted(function: Callable[[], T]) -> T:
    """Call a function where no handler of a signal runs, and wait for its end.

    In the main thread it runs in a thread of its own.  Where a handler raises meanwhile, the caller waits no longer,
    and the function goes on to its end, before that of the process.

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
    # Thread.start() is no single step: a handler that raises there leaves a thread that never runs what it was made
    # for.  So a bare thread, which nothing waits for when the process ends, starts the one that does the work.
    try:
        _thread.start_new_thread(work.start, ())
    except RuntimeError:
        work.carry_out()  # no thread can start: the process has too many, or ends
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
            with suppress(RuntimeError):  # it is awake already
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

    def start(self) -> None:
        """Call the function in a thread of its own."""
        try:
            threading.Thread(target=self.carry_out, name="holdfast-uninterrupted", daemon=False).start()
        except RuntimeError:
            self.carry_out()

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
