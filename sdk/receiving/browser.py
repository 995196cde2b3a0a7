"""Browsers: they read what waits in a queue and take nothing (Jakarta Messaging 3.1, ``QueueBrowser``)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from broker_adapter import (
    LARGEST_WINDOW,
    BrowserInterruptedException,
    ConnectionLostException,
    Delivery,
    Destination,
    JMSException,
    MessageFormatException,
    ReceiverSpec,
    copied,
)
from sdk.finalizers import dropped
from sdk.lifecycle import Event, Lifecycle, State
from sdk.messages.envelopes import message_of
from sdk.messages.message import Message
from sdk.session_state import CALL_ERRORS, SessionState, log

#: Copies held at a time where the connection has no prefetch.
_LEAST_WINDOW = 50


class QueueBrowser:
    """Iterates over the messages of a queue in the order of their delivery.  Made by ``session.create_browser``.

    Each iteration starts at the head of the queue.  It holds as many copies at a time as the connection's
    prefetch allows.  It works on a stopped connection as well.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_attach",
        "_destination",
        "_enumerations",
        "_lifecycle",
        "_on_close",
        "_selector",
        "_state",
    )

    def __init__(
        self,
        state: SessionState,
        number: int,
        destination: Destination,
        selector: str | None,
        on_close: Callable[[], object],
        attach: Callable[[Callable[[], None]], None],
    ) -> None:
        """Made by the session.

        Args:
            state: the session's.
            number: of the browser in its session.
            destination: the queue.
            selector: which messages to show, in the selector language; None: all.
            on_close: called once.
            attach: calls what attaches a link and notes it, so that no event of it is lost.
        """
        self._attach = attach
        self._state = state
        self._destination = destination
        self._selector = selector
        self._on_close = on_close
        self._enumerations: dict[int, _Enumeration] = {}
        # At the end: what a handler of a signal interrupts here is not closed.
        self._lifecycle = Lifecycle(f"browser {number} of {state.name}")

    def __repr__(self) -> str:
        return f"<QueueBrowser {self._lifecycle.name} of {str(self._destination)!r}, {self._lifecycle.state.name}>"

    def __del__(self) -> None:
        lifecycle = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.is_to_close and self._state.lifecycle.usable:
            dropped(self, self.close, self._state.transport, warns=False)  # it has nothing that others could miss

    def __enter__(self) -> QueueBrowser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def destination(self) -> Destination:
        """The queue."""
        return self._destination

    @property
    def selector(self) -> str | None:
        """Which messages it shows; None: all."""
        return self._selector

    def __iter__(self) -> Iterator[Message]:
        """Read the queue from its head.

        Raises:
            IllegalStateException: closed, or the session is in use by another thread.
            BrowserInterruptedException: the connection was lost in the middle of it, and what would come next is not
                known.  A new iteration starts at the head.
            JMSException: the broker closed the browser.
        """
        state = self._state
        prefetch = state.settings.prefetch_messages
        window = LARGEST_WINDOW if prefetch is None else max(_LEAST_WINDOW, prefetch)
        enumeration = self._state.in_one_call(self._open)
        end = self._end
        try:
            arrived = window
            while arrived >= window:
                arrived = self._state.in_one_call(self._fetch, enumeration, window)
                while enumeration.copies:
                    self._check(enumeration)
                    message = self._opened(enumeration.copies.popleft())
                    if message is not None:
                        yield message
        except GeneratorExit:
            end = self._end_elsewhere  # the application leaves, or the garbage collector finds it, in any thread
            raise
        except CALL_ERRORS:
            raise
        except BaseException as error:
            state.calling, state.interruption = True, error
            state.interrupt()
            raise
        finally:
            state.from_any_thread(end, enumeration, state.settings.close_timeout_seconds)

    def _open(self) -> _Enumeration:
        state = self._state
        self._require_usable()
        enumeration = _Enumeration()
        spec = ReceiverSpec(
            session=state.number,
            destination=self._destination,
            selector=self._selector,
            browse=True,
            presettled=True,
        )

        def attach() -> None:
            enumeration.link = state.attach(spec, enumeration.copies.extend)
            self._enumerations[enumeration.link] = enumeration

        self._attach(attach)
        return enumeration

    def _fetch(self, enumeration: _Enumeration, window: int) -> int:
        """Wait for the next copies; returns how many came, fewer than the window at the end."""
        state = self._state
        try:
            self._require_usable()
            self._check(enumeration)
            state.transport.credit(enumeration.link, window)
            state.transport.drain(enumeration.link, state.settings.request_timeout_seconds)
            self._check(enumeration)
            return len(enumeration.copies)
        except ConnectionLostException as error:
            self._state.lifecycle.require_usable()
            raise _interrupted(self._destination) from error

    def _require_usable(self) -> None:
        self._state.lifecycle.require_usable()
        self._lifecycle.require_usable()

    @staticmethod
    def _check(enumeration: _Enumeration) -> None:
        if enumeration.error is not None:
            raise copied(enumeration.error) from enumeration.error

    def _opened(self, delivery: Delivery) -> Message | None:
        try:
            return message_of(delivery.envelope, delivery.delivery_count)
        except MessageFormatException as error:
            self._state.report(error)
            return None

    def _end(self, enumeration: _Enumeration, timeout: float) -> None:
        if enumeration.link not in self._enumerations:
            return
        try:
            self._state.transport.detach(enumeration.link, timeout)
        except JMSException as error:
            log.debug("! %s ends without the broker: %s", self._lifecycle.name, error)
        self._enumerations.pop(enumeration.link, None)

    def _end_elsewhere(self, enumeration: _Enumeration, timeout: float) -> None:
        dropped(enumeration, partial(self._end, enumeration, timeout), self._state.transport, warns=False)

    def _interrupted(self) -> None:
        """The connection was lost; for the session."""
        for enumeration in list(self._enumerations.values()):
            enumeration.error = _interrupted(self._destination)

    def _lost(self, link: int, error: JMSException) -> bool:
        """The broker closed this link; returns whether it was one of this browser; for the session."""
        enumeration = self._enumerations.get(link)
        if enumeration is None:
            return False
        enumeration.error = error
        return True

    def close(self) -> None:
        """Close; legal twice.  An iteration that is under way raises IllegalStateException at its next fetch."""
        deadline = time.monotonic() + self._state.settings.close_timeout_seconds
        self._state.from_any_thread(self._shut, deadline)

    def _shut(self, deadline: float) -> None:
        """Close before this instant (monotonic seconds); for the session."""
        if self._lifecycle.state is State.CLOSED:
            return
        self._lifecycle.process(Event.BEGIN_CLOSE)
        for enumeration in list(self._enumerations.values()):
            self._end(enumeration, max(0.001, deadline - time.monotonic()))
        self._on_close()
        self._lifecycle.process(Event.END_CLOSE)


def _interrupted(destination: Destination) -> BrowserInterruptedException:
    return BrowserInterruptedException(
        f"the connection was lost while {str(destination)!r} was browsed, so its next message is unknown; browse again"
    )


class _Enumeration:
    """One iteration."""

    __slots__ = ("copies", "error", "link")

    def __init__(self) -> None:
        self.link = -1
        self.copies: deque[Delivery] = deque()
        self.error: JMSException | None = None
