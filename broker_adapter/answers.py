"""Answers that threads wait for: one answer of one call, and the limit of the sends that have none yet."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from broker_adapter.errors import JMSException, OperationTimedOutException, copied
from broker_adapter.signals import Waiters
from broker_adapter.wording import in_seconds

#: What an error says of a send that was handed over, and had no answer.
MAY_HAVE_BEEN_SENT: Final = "the message may have been sent, and sending it again may make a second one"


def unanswered_send(seconds: float, timeout: float | None) -> str:
    """The text for a send that had no answer in time.

    Args:
        seconds: how long it waited.
        timeout: what its caller gave; None: the option was the limit.
    """
    option = " (option send_timeout_seconds)" if timeout is None else ""
    return f"the send had no answer within {in_seconds(seconds)}{option}; {MAY_HAVE_BEEN_SENT}"


class Answer:
    """The answer of one call, for the thread that waits for it.

    Another thread gives it; the first one that is given counts.  Where it does not come in time, it is abandoned, and
    a thread that gives it later learns that.

    Attributes:
        result: what the answer says, where it is no error.
        error: what the answer says, where it is an error.
    """

    __slots__ = ("_arrived", "_is_abandoned", "_is_given", "error", "result")

    def __init__(self) -> None:
        self._arrived = threading.Lock()  # whoever releases it first, by giving or by abandoning the answer, has won
        self._arrived.acquire()
        self._is_given = False
        self._is_abandoned = False
        self.result: Any = None
        self.error: JMSException | None = None

    def __call__(self, result: Any, error: JMSException | None) -> bool:
        """Give the answer; returns whether the thread still waits for it."""
        if not self._is_given:
            self.result, self.error, self._is_given = result, error, True
            try:
                self._arrived.release()
            except RuntimeError:
                self._is_abandoned = True
        return not self._is_abandoned

    def reply(self, result: Any) -> None:
        """Give the answer of a command of the engine: a result, or a JMSException."""
        if not self._is_given:
            if isinstance(result, JMSException):
                self.error = result
            else:
                self.result = result
            self._is_given = True
            try:
                self._arrived.release()
            except RuntimeError:
                self._is_abandoned = True

    def settled(self, error: JMSException | None) -> None:
        """Give the answer of a send."""
        self(None, error)

    def arrives(self, seconds: float | None) -> bool:
        """Wait for the answer.

        Args:
            seconds: longest wait; None: no limit.

        Returns:
            Whether it came; where it did not, it is abandoned.
        """
        if self._arrived.acquire(timeout=-1 if seconds is None else max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            return True
        try:
            self._arrived.release()
        except RuntimeError:
            return True  # it came meanwhile
        return False

    def wait(self, seconds: float | None, what: str) -> Any:
        """Wait for the answer.

        Args:
            seconds: longest wait; None: no limit.
            what: is waited for, in the error.

        Returns:
            The result.

        Raises:
            OperationTimedOutException: it did not come in time.
            JMSException: the answer is an error.
        """
        if not self.arrives(seconds):
            raise OperationTimedOutException(f"{what} had no answer within {in_seconds(seconds or 0.0)}")
        if self.error is not None:
            # A new traceback for each thread that waits; the error itself may be shared.
            raise copied(self.error)
        return self.result


class SendWindow:
    """How many sends of a connection may wait for their answer; one more send waits.

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
                    f"the message was not sent: no place in the send window of {self._size} messages within"
                    f" {in_seconds(seconds or 0.0)} (options send_window_messages, send_timeout_seconds)"
                )

    def leave(self, count: int) -> None:
        """Give places back."""
        self._left += count
        self._waiters.wake()

    def close(self, error: JMSException) -> None:
        """Have every thread that waits raise this error."""
        self._error = error
        self._waiters.wake()
