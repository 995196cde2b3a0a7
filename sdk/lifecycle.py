"""The states of a connection and of all that hangs on it, in one table.

A new connection is STOPPED: its consumers get nothing before ``start()`` (Jakarta Messaging 3.1 section 6.1.3).
Sessions follow their connection.  Producers, consumers and browsers only ever close.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final

from broker_adapter import IllegalStateException, JMSException

_log = logging.getLogger("holdfast.sdk")


class State(Enum):
    """What an object can be."""

    STOPPED = "stopped"
    STARTED = "started"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class Event(Enum):
    """What can happen to it."""

    START = "start"
    STOP = "stop"
    FAIL = "fail"
    BEGIN_CLOSE = "begin to close"
    END_CLOSE = "end the close"


#: What is not in here is a mistake of the caller.
TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.STOPPED, Event.START): State.STARTED,
    (State.STOPPED, Event.STOP): State.STOPPED,
    (State.STOPPED, Event.FAIL): State.FAILED,
    (State.STOPPED, Event.BEGIN_CLOSE): State.CLOSING,
    (State.STARTED, Event.START): State.STARTED,
    (State.STARTED, Event.STOP): State.STOPPED,
    (State.STARTED, Event.FAIL): State.FAILED,
    (State.STARTED, Event.BEGIN_CLOSE): State.CLOSING,
    (State.FAILED, Event.FAIL): State.FAILED,
    (State.FAILED, Event.BEGIN_CLOSE): State.CLOSING,
    (State.CLOSING, Event.FAIL): State.CLOSING,
    (State.CLOSING, Event.BEGIN_CLOSE): State.CLOSING,
    (State.CLOSING, Event.END_CLOSE): State.CLOSED,
    (State.CLOSED, Event.FAIL): State.CLOSED,
    (State.CLOSED, Event.BEGIN_CLOSE): State.CLOSED,
    (State.CLOSED, Event.END_CLOSE): State.CLOSED,
}

_STOPPED: Final = State.STOPPED
_STARTED: Final = State.STARTED


class Lifecycle:
    """The state of one object.

    Its owner calls ``process`` under a lock of its own, and ``fail`` from any thread without one: that thread may be
    the one that the handler of a signal waits for, in the middle of what holds that lock.

    Attributes:
        name: what the object is called in errors and logs, such as ``session 3``.
        state: where it stands; only ``process`` changes it.
        usable: whether calls are to be let in: neither closed, nor closing, nor failed.
        error: why it failed.
    """

    __slots__ = ("error", "name", "state", "usable")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.STOPPED
        self.usable = True
        self.error: JMSException | None = None

    def __repr__(self) -> str:
        return f"<Lifecycle {self.name} is {self.state.name}>"

    def process(self, event: Event) -> bool:
        """Go to the next state; returns whether the state changed.

        Raises:
            IllegalStateException: the event does not fit the state.
        """
        while True:
            before = self.state
            state = TRANSITIONS.get((before, event))
            if state is None:
                raise self._refusal(f"cannot {event.value}")
            # In one step: no other thread runs between these lines, which call nothing.
            if self.state is before:
                self.state = state
                self.usable = state is _STOPPED or state is _STARTED
                break
        changed = state is not before
        if changed:
            _log.debug("= %s is %s", self.name, state.name)
        return changed

    def fail(self, error: JMSException) -> bool:
        """``process(FAIL)`` with the reason; the first reason is kept."""
        if self.error is None and TRANSITIONS[self.state, Event.FAIL] is State.FAILED:
            self.error = error  # ahead of the state, which another thread may be changing
        return self.process(Event.FAIL)

    @property
    def is_to_close(self) -> bool:
        """Whether it is usable, or its ``close()`` was interrupted, so that it has to be closed when it is dropped."""
        return self.usable or self.state is State.CLOSING

    @property
    def is_listed(self) -> bool:
        """Whether its owner still lists it, though it may have failed: when it is dropped, a close removes it."""
        return self.state is not State.CLOSED

    def require_usable(self) -> None:
        """Raises where the object is closed, closing or failed.

        Raises:
            IllegalStateException: it is closed.
            JMSException: what made it fail; a new error of the same type for each caller.
        """
        if not self.usable:
            raise self._refusal("cannot be used")

    def _refusal(self, what: str) -> JMSException:
        error = self.error
        if error is not None and (self.state is State.FAILED or isinstance(error, IllegalStateException)):
            again = type(error)(error.reason, error_code=error.error_code)
            again.__cause__ = error
            return again
        return IllegalStateException(f"{what}: {self.name} is {self.state.name}")
