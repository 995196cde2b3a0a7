"""Objects that an application drops without closing them.

Theory of operation
    An unreferenced connection, session or consumer can hold messages back, so it is closed.  For that to be
    seen, nothing here may keep it: a connection knows its sessions, a session its producers, consumers and browsers,
    and a transport its listeners, by weak references.  The other way they are strong: a consumer keeps its session, a
    session its connection.  What still works for the application is kept: a consumer with a listener by its session,
    and the session by the thread that calls it, for as long as it has something to call.

    A finalizer runs in whatever thread dropped the last reference, which may be in the middle of anything: it can
    neither wait nor take a lock.  So it hands the object to a thread of this module, which closes it.  Each broker has
    one of its own, so that one that hangs does not block the others.

    The garbage collector clears the weak references to all that it has found before it calls the first finalizer.
    Until a consumer is closed, its deliveries go on coming, and its session may be closed before it.  So what a
    consumer has prefetched is in a :class:`Sink`, which does not depend on it: closing a session or a connection
    gives back what is in the sinks, whether their consumers are still there or not.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import MethodType
from typing import Any, Generic, TypeVar

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import Delivery, JMSException, Transport, uninterrupted
from sdk.session_state import log

_T = TypeVar("_T")
_Job = tuple[Hashable, Callable[[], None]]  #: of which broker, and what closes
_lock = threading.Lock()
#: What is to be closed, and the process whose threads do it.  A finalizer may put something in at any time: that is
#: what a SimpleQueue is made for.
_inbox: queue.SimpleQueue[_Job] = queue.SimpleQueue()
_process: int | None = None
#: How long a thread waits for more to close at its broker, in seconds.
_LINGER = 1.0
#: Longest wait for a drain while a consumer with a selector is closed, in seconds.
_SELECTING_SECONDS = 0.25


def close_what_is_dropped() -> None:
    """See to it that there is a thread in this process that closes; not for finalizers."""
    if _process != os.getpid():
        uninterrupted(_begin)


def _begin() -> None:
    global _inbox, _process
    with _lock:
        if _process != os.getpid():
            _inbox = queue.SimpleQueue()  # what a parent had in it is the parent's
            threading.Thread(target=_close_all, args=(_inbox,), name="holdfast-dropped", daemon=True).start()
            _process = os.getpid()


def dropped(thing: object, close: Callable[[], None], transport: Transport, *, warns: bool = True) -> None:
    """A finalizer found that an object was not closed: have it closed.  Does not wait.

    Args:
        thing: the object.
        close: closes it.
        transport: of its connection.
        warns: whether a ResourceWarning says so.
    """
    if _process != os.getpid() or sys.is_finalizing():
        return  # it belongs to another process, or all ends anyway
    _inbox.put((id(transport), close))
    if warns:
        warnings.warn(f"unclosed {thing!r}", ResourceWarning, stacklevel=3, source=thing)


def _close_all(inbox: queue.SimpleQueue[_Job]) -> None:
    """Hand what is to be closed to the threads of the brokers."""
    closers: dict[Hashable, _Closer] = {}
    while True:
        of, close = inbox.get()
        closer = closers.get(of)
        if closer is None or not closer.take(close):
            for ended in [each for each, other in closers.items() if other.is_over]:
                del closers[ended]
            try:
                closers[of] = _Closer(close)
            except RuntimeError:  # the process has as many threads as it may
                _close(deque([close]).popleft)
        del close


class _Closer:
    """A thread that closes what was dropped at one broker, one after the other, and ends when nothing has come."""

    def __init__(self, first: Callable[[], None]) -> None:
        self.is_over = False
        self._jobs = deque([first])
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="holdfast-dropped-closer", daemon=True).start()

    def take(self, close: Callable[[], None]) -> bool:
        """Take one more, unless it is over."""
        with self._changed:
            if not self.is_over:
                self._jobs.append(close)
                self._changed.notify()
            return not self.is_over

    def _run(self) -> None:
        while self._has_one():
            _close(self._jobs.popleft)

    def _has_one(self) -> bool:
        with self._changed:
            self.is_over = not self._changed.wait_for(lambda: self._jobs, _LINGER)
            return not self.is_over


def _close(get: Callable[[], Callable[[], None]]) -> None:
    """Close one object, and forget it."""
    try:
        get()()
    except JMSException as error:
        log.debug("! what was dropped could not be closed: %s", error)
    except Exception:
        log.exception("! what was dropped could not be closed")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class WeakTable(Generic[_T]):
    """Objects by key, as long as they are referenced elsewhere.  For any number of threads."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: dict[Hashable, weakref.ref[Any]] = {}

    def __setitem__(self, key: Hashable, thing: _T) -> None:
        self._references[key] = weakref.ref(thing)

    def __contains__(self, key: Hashable) -> bool:
        return self.get(key) is not None

    def get(self, key: Hashable) -> _T | None:
        """The object, or None where there is none."""
        reference = self._references.get(key)
        return None if reference is None else reference()

    def pop(self, key: Hashable) -> bool:
        """Take an entry out; returns whether there was one."""
        return self._references.pop(key, None) is not None

    def values(self) -> list[_T]:
        """The objects, in the order in which they came."""
        things = [reference() for reference in list(self._references.values())]
        return [thing for thing in things if thing is not None]

    def clear(self) -> None:
        """Take all out."""
        self._references.clear()


class Sink:
    """Where a transport puts what comes for a consumer.  It does not keep the consumer.

    Attributes:
        link: the consumer's.
        buffer: what has come and was not received yet, which the consumer takes from.
        presettled: whether what comes is not to be settled.
        selects: whether the consumer has a selector.
    """

    __slots__ = ("_accept", "_prefetch", "buffer", "link", "presettled", "selects")

    def __init__(
        self,
        accept: Callable[[Sequence[Delivery]], None],
        buffer: deque[Delivery],
        *,
        presettled: bool,
        selects: bool,
    ) -> None:
        """A sink without a link yet.

        Args:
            accept: the method of the consumer's prefetch that puts deliveries into the buffer.
            buffer: the consumer's.
            presettled: whether what comes is not to be settled.
            selects: whether the consumer has a selector.
        """
        assert isinstance(accept, MethodType)
        self._prefetch: weakref.ref[Any] = weakref.ref(accept.__self__)
        self._accept = accept.__func__
        self.buffer = buffer
        self.presettled = presettled
        self.selects = selects
        self.link = -1

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries, in the transport's thread."""
        prefetch = self._prefetch()
        if prefetch is not None:
            self._accept(prefetch, deliveries)
        else:
            self.buffer.extend(deliveries)


def taken_out(buffer: deque[Delivery]) -> list[Delivery]:
    """Take out all that is in a buffer; another thread may take some of it."""
    taken = []
    with contextlib.suppress(IndexError):
        while True:
            taken.append(buffer.popleft())
    return taken


def drain_end(deadline: float, *, selects: bool) -> float:
    """When a close with a deadline stops waiting for a drain, so that time is left for the rest.

    Args:
        deadline: of the whole (monotonic seconds).
        selects: whether the consumer has a selector: the answer may take as long as the broker takes for its backlog.
    """
    now = time.monotonic()
    end = (now + deadline) / 2
    return min(end, now + _SELECTING_SECONDS) if selects else end


def stop_flows(transport: Transport, sinks: Iterable[Sink], deadline: float) -> None:
    """Have nothing on its way to consumers that end, where the broker answers in time.

    Args:
        transport: of their connection.
        sinks: theirs.
        deadline: of all that closes them (monotonic seconds).
    """
    common = drain_end(deadline, selects=False)
    for sink in sinks:
        if not sink.presettled:  # what comes on such a link cannot be given back
            try:
                end = min(common, drain_end(deadline, selects=sink.selects))
                transport.drain(sink.link, max(0.0, end - time.monotonic()))
            except JMSException as error:
                log.debug("! what is on its way on link %d comes: %s", sink.link, error)


def taken_from(sinks: Iterable[Sink], epoch: int) -> list[DeliveryTag]:
    """Take out what came for consumers and was not examined; returns what of it can be settled.

    Args:
        sinks: theirs.
        epoch: what deliveries carry that can still be settled.
    """
    found = [each for sink in sinks if not sink.presettled for each in taken_out(sink.buffer)]
    return [each.tag for each in found if each.tag.epoch == epoch]


def detach_all(transport: Transport, sinks: Iterable[Sink], epoch: int, deadline: float) -> None:
    """Detach consumers that end, and give back what still came for them.

    Args:
        transport: of their connection.
        sinks: theirs.
        epoch: what deliveries carry that can still be settled.
        deadline: when to stop waiting for the broker (monotonic seconds).
    """
    for sink in sinks:
        try:
            transport.detach(sink.link, max(0.001, deadline - time.monotonic()))
            transport.settle([Settlement(tag, Outcome.RELEASED) for tag in taken_from((sink,), epoch)])
        except JMSException as error:
            log.debug("! a consumer ends without the broker: %s", error)


def weakly(method: Callable[[_T], object]) -> Callable[[_T], None]:
    """What calls a method of an object that it does not keep, and does nothing once the object is gone."""
    assert isinstance(method, MethodType)
    reference, function = weakref.ref(method.__self__), method.__func__

    def call(argument: _T) -> None:
        owner = reference()
        if owner is not None:
            function(owner, argument)

    return call
