"""Who closes an object: one thread at a time; what a handler of a signal has interrupted, the next call takes up."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Closing:
    """The turns of those who close one object.  For any number of threads."""

    __slots__ = ("_lock", "_thread")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the handler of a signal, which runs in the middle of it, may close as well
        self._thread: int | None = None  #: that closes

    def take_turn(
        self, close: Callable[[], None], is_over: Callable[[], bool], wait: Callable[[], object] = lambda: None
    ) -> None:
        """Close, unless that is done, or this thread is at it: where the handler of a signal has interrupted it.

        Args:
            close: closes the object.  Where the handler of a signal raises in it, the next call goes on.
            is_over: whether it is closed.
            wait: called in place of ``close`` where another thread is at it.
        """
        own, is_first = threading.get_ident(), False
        try:
            with self._lock:
                if self._thread == own or is_over():
                    return
                is_first = self._thread is None
                if is_first:
                    self._thread = own
            if is_first:
                close()
            else:
                wait()
        finally:
            if is_first:
                self._thread = None
        if not is_first and not is_over() and self._thread is None:
            self.take_turn(close, is_over, wait)  # the first one was interrupted
