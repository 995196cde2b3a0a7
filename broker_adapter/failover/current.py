"""Which inner transport carries a connection now, and how calls wait until there is one.

Theory of operation
    The rules (:mod:`broker_adapter.failover.rules`) have the state of the connection.  While it is CONNECTED, there is
    one inner transport that all calls use.  While it is RECONNECTING, calls that need the network wait for the next
    one, as long as their deadlines allow.

    Locks: ``lock`` guards the rules, the tables and what is unanswered, and is never held while anything waits.
    ``events_lock`` is held while the listener is called, so that events come in the order in which they happen; it is
    taken before ``lock``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException, copied
from broker_adapter.failover.failures import out_of_time
from broker_adapter.failover.inner import EndWait, Inner
from broker_adapter.failover.links import Link
from broker_adapter.failover.rules import Action, Close, Connected, Lost, Reconnect, State
from broker_adapter.own_threads import may_wait
from broker_adapter.signals import Condition
from broker_adapter.transport import Peer, TransportEvent


class SessionCall:
    """A call of a session, which waits for the connection no longer than the session lasts.

    Attributes:
        session: the session's number; None: the call is of no session.
        link: of the consumer whose call it is, which has to last as well; None: of none.
        ended: what has ended meanwhile, the session or the consumer; None: neither.
        end_wait: ends its wait for the broker; None: it does not wait for that.
    """

    __slots__ = ("end_wait", "ended", "link", "session")

    def __init__(self, session: int | None, link: int | None = None) -> None:
        self.session = session
        self.link = link
        self.ended: str | None = None
        self.end_wait: EndWait | None = None

    @property
    def is_over(self) -> bool:
        """Whether the call waits no more."""
        return self.ended is not None

    def end(self, ended: str) -> None:
        """The session or the consumer, as this says, has ended."""
        self.ended = ended
        if self.end_wait is not None:
            self.end_wait(self.error("the acknowledgement"))

    def error(self, what: str) -> IllegalStateException:
        """Return what the call raises; ``what`` is the operation that waits."""
        return IllegalStateException(f"{what}: {self.ended} was closed meanwhile")


class CurrentTransport:
    """The inner transport of a connection.  See the module's theory of operation.

    Attributes:
        rules: the rules of reconnecting, with the state of the connection.
        clock: the time, in seconds of any steady clock.
        lock, events_lock: see the module's theory of operation.
        changed: notified when the state, the inner transport or a link changes.
        listener: gets the events of the connection.
        last: the inner transport that was made last.
        connected: the same while the connection is there, else None.
        peer: what is known of the broker that is connected, or was connected last.
        error: why the connection cannot be used any more; None while it can.
        last_error: while the connection is away: why it was lost, or why the last attempt to restore it failed.
        broken: why the last inner transport was lost before the connection was restored; None: it was not.
        calls: the calls of sessions that may have to wait; each step that changes or copies this is a single one.  The
            handler of a signal may raise behind any call of a function, so each call is put here, and taken out again,
            by its caller, and within its ``try``.
    """

    def __init__(self, rules: Reconnect, clock: Callable[[], float]) -> None:
        self.rules = rules
        self.clock = clock
        self.lock = threading.RLock()
        self.changed = Condition(self.lock)
        self.events_lock = threading.RLock()
        self.listener: Callable[[TransportEvent], None] = lambda _event: None
        self.last: Inner | None = None
        self.connected: Inner | None = None
        self.peer: Peer | None = None
        self.error: JMSException | None = None
        self.last_error: JMSException | None = None
        self.broken: JMSException | None = None
        self.calls: dict[SessionCall, None] = {}

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self.rules.state

    def is_closed(self) -> bool:
        """Return whether the application has closed the connection."""
        return self.rules.state is State.CLOSED

    # Changes, under the lock.

    def begin(self, inner: Inner) -> None:
        """Another inner transport is tried."""
        self.last, self.broken = inner, None

    def connect(self, inner: Inner, peer: Peer) -> bool:
        """The connection is there, and everything is restored; returns False where it was lost again already."""
        if self.broken is not None or inner.is_lost or self.rules.state in (State.CLOSED, State.FAILED):
            return False
        self.peer = peer
        self.rules.process(Connected(peer.idle_seconds), self.clock())
        self.connected = inner
        self.last_error = None
        self.changed.notify_all()
        return True

    def connection_lost(self, error: JMSException, now: float) -> Action:
        """The connection is lost at this instant; returns what the rules say."""
        action = self.rules.process(Lost(error), now)
        self.connected = None
        self.changed.notify_all()
        return action

    def fail(self, error: JMSException) -> None:
        """The connection has failed for this reason: the rules make no further attempt."""
        self.error = error
        self.changed.notify_all()

    def close(self) -> None:
        """The application closes the connection."""
        self.error = IllegalStateException("the connection is closed")
        self.rules.process(Close(), self.clock())
        self.connected = None
        self.changed.notify_all()

    # Calls of sessions.

    def end_session(self, session: int) -> None:
        """Under the lock: a session has ended, and its calls do not wait any more."""
        for call in list(self.calls):
            if call.session == session:
                call.end("the session")
        self.changed.notify_all()

    def end_consumer(self, link: int) -> None:
        """Under the lock: the consumer of a link has ended, and its calls do not wait any more."""
        for call in list(self.calls):
            if call.link == link:
                call.end("the consumer")
        self.changed.notify_all()

    # What does not wait.

    def usable(self) -> Inner:
        """The inner transport.

        Raises:
            ConnectionLostException: the network is away.
            JMSException: the connection is closed, has failed, or is not open yet.
        """
        inner = self.connected
        if inner is not None:
            return inner
        if self.rules.state is State.RECONNECTING:
            raise ConnectionLostException("the connection is lost, and is being restored")
        raise self._unusable()

    def require_usable(self) -> None:
        """Raises where the connection is closed or has failed, or where a callback makes a call that may wait."""
        if self.rules.state not in (State.CONNECTED, State.RECONNECTING):
            raise self._unusable()
        if self.last is not None and self.last.in_callback():
            raise IllegalStateException("a callback of the transport cannot call what waits")

    def _unusable(self) -> JMSException:
        with self.lock:  # the error is set together with the state
            return copied(self.error or IllegalStateException("the connection is not open yet"))

    # Waiting.

    def wait_until_connected(self, deadline: float | None, what: str, call: SessionCall | None = None) -> Inner:
        """The inner transport, once there is one that works.

        Raises:
            OperationTimedOutException: the connection was not restored in time.
            IllegalStateException: the session or the consumer of the call has ended.
            JMSException: the connection is closed, has failed, or is not open yet.
        """
        inner = self.connected
        if inner is not None and (call is None or not call.is_over):
            return inner
        return self.wait_for(lambda: self.connected is not None, deadline, what, call=call)

    def wait_until_lost(self, inner: Inner, deadline: float | None, what: str, call: SessionCall | None = None) -> None:
        """Wait until it is known here that an inner transport was lost."""
        self.wait_for(lambda: self.connected is not inner, deadline, what, call=call)

    def wait_until_loss_is_announced(self, inner: Inner, deadline: float) -> None:
        """Wait until the listener was called for the loss of an inner transport, so that later calls follow it."""
        with contextlib.suppress(JMSException):
            self.wait_until_lost(inner, deadline, "the loss")
        if self.events_lock.acquire(timeout=max(0.0, deadline - self.clock())):
            self.events_lock.release()

    def wait_for(
        self,
        condition: Callable[[], bool],
        deadline: float | None,
        what: str,
        link: Link | None = None,
        call: SessionCall | None = None,
    ) -> Inner:
        """Wait until a condition holds; returns the last inner transport.

        Args:
            condition: called under the lock.
            deadline: by the clock; None: no limit.
            what: the operation that waits, for the errors.
            link: the link that is being attached again; None: the wait is for the connection.
            call: the call that waits; None: it is of no session, or its link says whether it is closed.

        Raises:
            OperationTimedOutException: the deadline has passed.
            IllegalStateException: the session or the consumer of the call has ended.
            JMSException: the connection is closed, has failed, or is not open yet.
        """
        with self.lock:
            while True:
                if self.rules.state in (State.CLOSED, State.FAILED, State.CONNECTING):
                    raise self._unusable()
                if call is not None and call.is_over:
                    raise call.error(what)
                if condition():
                    assert self.last is not None
                    return self.last
                if self.last is not None and self.last.in_callback():
                    raise IllegalStateException(f"{what} cannot wait in a callback of the transport")
                if not may_wait():
                    raise IllegalStateException(
                        f"{what} would wait for the network, which is away, in {threading.current_thread().name!r}, a"
                        " thread of the SDK that others need: let a log handler or exception listener that uses the"
                        " connection do so in a thread of its own (QueueHandler and a filter: docs/faq.md)"
                    )
                left = None if deadline is None else deadline - self.clock()
                if left is not None and left <= 0:
                    if link is not None and self.rules.state is State.CONNECTED:
                        raise out_of_time(f"{what}: its link was not attached again in time", link.error)
                    raise out_of_time(f"the connection was not restored in time for {what}", self.last_error)
                self.changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
