"""Objects that an application drops without closing them.

Theory of operation
    A connection, session or consumer that nobody has any more can hold messages back, so it is closed.  For that to be
    seen, nothing here may keep it: a connection knows its sessions, a session its producers, consumers and browsers,
    and a transport whom it tells, by weak references.  The other way they are strong: a consumer keeps its session, a
    session its connection.  What still works for the application is kept: a consumer with a listener by its session,
    and the session by the thread that calls it.

    A finalizer runs in whatever thread dropped the last reference, which may be in the middle of anything: it can
    neither wait nor take a lock.  So it hands the object to a thread of this module, which closes it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Generic, TypeVar

from broker_adapter import JMSException
from sdk.session_state import log

_T = TypeVar("_T")
_lock = threading.Lock()
#: What is to be closed, and the process whose thread does it.  A finalizer may put something in at any time: that is
#: what a SimpleQueue is made for.
_inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_process: int | None = None


def close_what_is_dropped() -> None:
    """See to it that there is a thread in this process that closes; not for finalizers."""
    global _inbox, _process
    if _process == os.getpid():
        return
    with _lock:
        if _process != os.getpid():
            _inbox = queue.SimpleQueue()  # what a parent had in it is the parent's
            threading.Thread(target=_close_all, args=(_inbox,), name="holdfast-dropped", daemon=True).start()
            _process = os.getpid()


def dropped(thing: object, close: Callable[[], None], *, warns: bool = True) -> None:
    """A finalizer found that an object was not closed: have it closed.  Does not wait.

    Args:
        thing: the object.
        close: closes it.
        warns: whether a ResourceWarning says so.
    """
    if _process != os.getpid() or sys.is_finalizing():
        return  # it belongs to another process, or all ends anyway
    _inbox.put(close)
    if warns:
        warnings.warn(f"unclosed {thing!r}", ResourceWarning, stacklevel=3, source=thing)


def _close_all(inbox: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        _close(inbox.get)


def _close(get: Callable[[], Callable[[], None]]) -> None:
    """Close one object, and forget it."""
    try:
        get()()
    except JMSException as error:
        log.debug("! what was dropped could not be closed: %s", error)
    except Exception:
        log.exception("! what was dropped could not be closed")


class WeakTable(Generic[_T]):
    """Objects by key, as long as somebody else has them.  For any number of threads."""

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


def weakly(method: Callable[[_T], object]) -> Callable[[_T], None]:
    """What calls a method of an object that it does not keep, and does nothing once the object is gone."""
    assert isinstance(method, MethodType)
    reference, function = weakref.ref(method.__self__), method.__func__

    def call(argument: _T) -> None:
        owner = reference()
        if owner is not None:
            function(owner, argument)

    return call
