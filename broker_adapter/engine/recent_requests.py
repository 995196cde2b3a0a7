"""Requests that take effect once, however often a client repeats them because it lost the connection."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    copied,
)

_log = logging.getLogger(f"holdfast.{__name__}")

#: Answers that are remembered, and for how long.
MOST_ANSWERS: Final = 1000
ANSWER_SECONDS: Final = 600.0
#: Repetitions of one request that wait for its answer without a thread; one more is refused.
MOST_WAITING: Final = 100
#: How often a thread that waits checks whether it still has to.
_LOOK_SECONDS: Final = 0.5
#: The result of a repetition whose answer comes later.
UNDER_WAY: Final = object()

IsCancelled = Callable[[], bool]


class _Request:
    """One request: under way, or answered."""

    def __init__(self, what: Any) -> None:
        self.what = what
        self.over = threading.Event()
        self.result: Any = None
        self.ended = 0.0  #: by the clock that never goes back
        self.waiting: list[tuple[IsCancelled | None, Callable[[Any], None]]] = []

    def check_place(self) -> None:
        """Make sure that one more may wait; raises ResourceAllocationException."""
        if len(self.waiting) >= MOST_WAITING:
            self.waiting = [each for each in self.waiting if each[0] is None or not each[0]()]
        if len(self.waiting) >= MOST_WAITING:
            raise ResourceAllocationException(
                f"{MOST_WAITING} repetitions of this request wait for its answer already; ask again when it is done"
            )

    def wait(self, timeout: float | None, is_cancelled: IsCancelled | None) -> None:
        """Wait for the answer in this thread."""
        if is_cancelled is None:
            is_over = self.over.wait(timeout)
        else:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not (is_over := self.over.is_set()):
                if is_cancelled():
                    raise ConnectionLostException("the connection that asked for it ended; the request goes on")
                left = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    break
                self.over.wait(left)
        if not is_over:
            raise OperationTimedOutException("the request is still under way; ask again")


class RecentRequests:
    """The requests of an engine by their ids, those under way and those answered lately.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, _Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def once(
        self,
        request_id: str,
        act: Callable[[], Any],
        timeout: float | None,
        is_cancelled: IsCancelled | None = None,
        later: Callable[[Any], None] | None = None,
        *,
        what: Any = None,
    ) -> Any:
        """The result of a request, which is carried out if it is new.

        Args:
            request_id: names the request; the same where it is repeated.
            act: carries it out.
            timeout: longest wait in seconds for one that is under way; None: no limit.
            is_cancelled: called now and then while waiting for one that is under way, which goes on in any case.
            later: called with the answer, or the error, of one that is under way, in the thread that carries it out;
                None: this call waits.
            what: what is asked for; the same each time.

        Returns:
            The result; ``UNDER_WAY`` where ``later`` will be called.

        Raises:
            ConnectionLostException: cancelled while it was under way.
            IllegalStateException: something else was asked for under this id.
            OperationTimedOutException: it is still under way; it may be asked for again.
            ResourceAllocationException: too many wait for it already.
            JMSException: what the request has raised, each time.
        """
        with self._lock:
            request = self._requests.get(request_id)
            is_new = request is None
            if request is None:
                self._remove_old()
                request = self._requests[request_id] = _Request(what)
            elif request.what != what:
                raise IllegalStateException(
                    f"the request id {request_id!r} was given to another request; give each request an id of its own"
                )
            elif later is not None and not request.over.is_set():
                request.check_place()
                request.waiting.append((is_cancelled, later))
                return UNDER_WAY
        if is_new:
            try:
                request.result = act()
            except OperationTimedOutException:
                with self._lock:
                    del self._requests[request_id]  # what is left of it may be asked for again
                request.result = OperationTimedOutException("the request was given up; ask again")
                raise
            except JMSException as error:
                request.result = copied(error)  # without its traceback, which would keep more in memory
                raise
            except BaseException as error:
                request.result = JMSException(f"the request failed: {error!r}")
                raise
            finally:
                with self._lock:
                    request.ended = time.monotonic()
                    request.over.set()
                    waiting, request.waiting = request.waiting, []
                for _, answer in waiting:
                    try:
                        answer(request.result)
                    except Exception:
                        _log.exception("! a callback for the answer to a request raised an exception; it must not")
            return request.result
        request.wait(timeout, is_cancelled)
        if isinstance(request.result, JMSException):
            raise copied(request.result)
        return request.result

    def _remove_old(self) -> None:
        oldest = time.monotonic() - ANSWER_SECONDS
        ended = [key for key, each in self._requests.items() if each.over.is_set()]
        excess = len(ended) - MOST_ANSWERS + 1
        for index, key in enumerate(ended):
            if index >= excess and self._requests[key].ended >= oldest:
                break
            del self._requests[key]
