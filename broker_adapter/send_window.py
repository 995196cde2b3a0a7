"""The limit of the sends that wait for their confirmation."""

from __future__ import annotations

import threading
import time

from broker_adapter.errors import JMSException, OperationTimedOutException, copied
from broker_adapter.signals import Condition


class SendWindow:
    """How many sends of a connection may wait for their answer; the sender of one more waits."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._waiters = 0
        self._lock = threading.RLock()
        self._room = Condition(self._lock)
        self._error: JMSException | None = None

    def enter(self, seconds: float | None, *, waits: bool = True) -> None:
        """Take a place, waiting for one at most this long; a callback, which must not wait, takes one in any case."""
        with self._lock:
            if waits and self._used >= self._size:
                self._wait(seconds)
            if self._error is not None:
                raise copied(self._error)
            self._used += 1

    def _wait(self, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        self._waiters += 1
        try:
            while self._used >= self._size and self._error is None:
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise OperationTimedOutException(
                        f"no place in the send window of {self._size} messages within {seconds:g} s"
                    )
                self._room.wait(remaining)
        finally:
            self._waiters -= 1

    def leave(self, count: int) -> None:
        """Give places back."""
        with self._lock:
            self._used -= count
            if self._waiters:
                self._room.notify_all()

    def close(self, error: JMSException) -> None:
        """Wake everybody with this error."""
        with self._lock:
            self._error = error
            self._room.notify_all()
