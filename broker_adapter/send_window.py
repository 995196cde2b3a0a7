"""The limit of the sends that wait for their confirmation."""

from __future__ import annotations

import threading
import time

from broker_adapter.errors import JMSException, OperationTimedOutException, copied
from broker_adapter.signals import Waiters


class SendWindow:
    """How many sends of a connection may wait for their answer; the sender of one more waits.

    Places are taken by any thread, and given back by one at a time, which never waits for one that takes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entered = 0  #: under the lock
        self._left = 0
        self._lock = threading.RLock()  # the handler of a signal may send, too
        self._waiters = Waiters()
        self._error: JMSException | None = None

    @property
    def _is_open(self) -> bool:
        return self._entered - self._left < self._size or self._error is not None

    def enter(self, seconds: float | None, *, waits: bool = True) -> None:
        """Take a place, waiting for one at most this long; a callback, which must not wait, takes one in any case."""
        deadline = None
        while True:
            with self._lock:
                if self._error is not None:
                    raise copied(self._error)
                if not waits or self._entered - self._left < self._size:
                    self._entered += 1
                    return
            if deadline is None and seconds is not None:
                deadline = time.monotonic() + seconds
            if not self._waiters.wait(lambda: self._is_open, deadline):
                raise OperationTimedOutException(
                    f"no place in the send window of {self._size} messages within {seconds:g} s"
                )

    def leave(self, count: int) -> None:
        """Give places back."""
        self._left += count
        self._waiters.wake()

    def close(self, error: JMSException) -> None:
        """Wake everybody with this error."""
        self._error = error
        self._waiters.wake()
