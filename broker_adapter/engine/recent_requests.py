"""Requests that take effect once, however often a client repeats them because it lost the connection."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.errors import JMSException, OperationTimedOutException, copied

#: Answers that are remembered, and for how long.
MOST_ANSWERS: Final = 1000
ANSWER_SECONDS: Final = 600.0


class _Request:
    """One request: under way, or answered."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.result: Any = None
        self.ended = 0.0  #: by the clock that never goes back


class RecentRequests:
    """The requests of an engine by their ids, those under way and those answered lately.  For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, _Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def once(self, request_id: str, act: Callable[[], Any], timeout: float | None) -> Any:
        """The result of a request, which is carried out if it is new.

        Args:
            request_id: names the request; the same where it is repeated.
            act: carries it out.
            timeout: longest wait in seconds for one that is under way; None: no limit.

        Raises:
            OperationTimedOutException: it is still under way; it may be asked for again.
            JMSException: what the request has raised, each time.
        """
        with self._lock:
            request = self._requests.get(request_id)
            is_new = request is None
            if request is None:
                self._forget_old()
                request = self._requests[request_id] = _Request()
        if is_new:
            try:
                request.result = act()
            except OperationTimedOutException:
                with self._lock:
                    del self._requests[request_id]  # what is left of it may be asked for again
                request.result = OperationTimedOutException("the request was given up; ask again")
                raise
            except JMSException as error:
                request.result = error
                raise
            except BaseException as error:
                request.result = JMSException(f"the request failed: {error!r}")
                raise
            finally:
                request.ended = time.monotonic()
                request.over.set()
            return request.result
        if not request.over.wait(timeout):
            raise OperationTimedOutException("the request is still under way; ask again")
        if isinstance(request.result, JMSException):
            raise copied(request.result)
        return request.result

    def _forget_old(self) -> None:
        oldest = time.monotonic() - ANSWER_SECONDS
        ended = [key for key, each in self._requests.items() if each.over.is_set()]
        excess = len(ended) - MOST_ANSWERS + 1
        for index, key in enumerate(ended):
            if index >= excess and self._requests[key].ended >= oldest:
                break
            del self._requests[key]
