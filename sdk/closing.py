"""Closing an object: by one thread at a time; the next call completes what a handler of a signal has interrupted.

In a child made by fork nothing is closed: the object is the parent's, and so are the threads that a close waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from broker_adapter import Waiters


class Closing:
    """The turns of the threads that close one object.  For any number of threads."""

    __slots__ = ("_lock", "_process", "_thread", "_waiters")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the handler of a signal, which runs in the middle of it, may close as well
        self._thread: int | None = None  #: that closes
        self._waiters = Waiters()  #: those that wait for it
        self._process = os.getpid()  #: that made the object

    def take_turn(self, close: Callable[[], None], is_over: Callable[[], bool], deadline: float | None = None) -> None:
        """Close, unless that is done, or this thread is at it: where the handler of a signal has interrupted it.

        Args:
            close: closes the object.  Where the handler of a signal raises in it, the next call goes on, or one that
                waits for it.
            is_over: whether it is closed.
            deadline: until when to wait for another thread that is at it (monotonic seconds); None: not at all.
        """
        if os.getpid() != self._process:
            return
        own = threading.get_ident()
        while True:
            is_first = False
            try:
                with self._lock:
                    if self._thread == own or is_over():
                        return
                    is_first = self._thread is None
                    if is_first:
                        self._thread = own
                if is_first:
                    close()
                    return
            finally:
                if is_first:
                    self._thread = None
                    self._waiters.wake()
            if deadline is None or time.monotonic() >= deadline:
                return
            if not self._waiters.wait(lambda: self._thread is None or is_over(), deadline):
                return
