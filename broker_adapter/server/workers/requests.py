"""Operations beyond messaging in worker threads, so that none of them blocks the server's loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Protocol

from broker_adapter.engine.operations.request import Threads
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.engine.recent_requests import UNDER_WAY
from broker_adapter.errors import JMSException, copied
from broker_adapter.server.workers.pool import Workers

_log = logging.getLogger(f"holdfast.{__name__}")

#: Operations beyond messaging have groups of worker threads, so that a long one delays no short one, nor those that
#: streaming queries cannot go on without, and none of these delays what failover needs.  Those that do little but wait,
#: for the disk or for room in a queue, have more threads, and delay only their like.  A connection has one operation of
#: each group under way, so those of one group are carried out in the order in which its client asked for them.  A
#: repetition of one that is under way waits for its answer without a thread.
#:
#: What a durable client says of its events does little but wait.  What it wants takes longer, since its expressions are
#: compiled; changes of keys wait for the disk, and to read keys may take long, by a selector.
_WAITING_THREADS: Final = 16
#: Each copy has a question under way that waits for the next commit.
_FOLLOWING_THREADS: Final = 100
THREADS: Final = {
    Threads.RESTORING: 2,
    Threads.CONFIRMING: _WAITING_THREADS,
    Threads.PUBLISHING: _WAITING_THREADS,
    Threads.SHORT: 2,
    Threads.STREAMING: 2,
    Threads.EVENTS: _WAITING_THREADS,
    Threads.INTEREST: 2,
    Threads.CHANGING: _WAITING_THREADS,
    Threads.DESCRIBING: 2,
    Threads.READING: 4,
    Threads.LONG: 4,
    Threads.GATEWAY: _WAITING_THREADS,
    Threads.FOLLOWING: _FOLLOWING_THREADS,
}
#: Operations of each group that a connection may have waiting; one more is refused.
MAX_WAITING: Final = 200
#: Longest time such an operation may take, in seconds.
_REQUEST_SECONDS = 300.0


class RequestedEngine(Protocol):
    """What carries requests out; see :class:`broker_adapter.engine.broker.Broker`."""

    def request(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        is_cancelled: Callable[[], bool] | None = None,
        later: Callable[[Any], None] | None = None,
        client: int = 0,
    ) -> Any:
        """Carry out an operation beyond messaging."""


class Asker(Hashable, Protocol):
    """A connection whose client asks for operations."""

    is_closed: bool

    @property
    def client(self) -> int:
        """The engine's number of its client."""

    def refusal(self) -> JMSException | None:
        """Why no request of the client may begin now; None: one may."""


class RequestWorkers:
    """The groups of workers.

    Args:
        broker: carries the operations out.
    """

    def __init__(self, broker: RequestedEngine) -> None:
        self._broker = broker
        self._workers = {group: _workers(group.value, threads) for group, threads in THREADS.items()}

    def __repr__(self) -> str:
        return f"<RequestWorkers {[*self._workers.values()]}>"

    def request(
        self, connection: Asker, operation: str, unpack: Callable[[], dict[str, Any]], done: Callable[[Any], None]
    ) -> None:
        """Carry out an operation in a worker thread.

        Operations that have not begun when the connection ends are dropped; one under way ends after its current step.
        Those that take effect once go on, for a client that asks for them again under their id.

        Args:
            connection: whose client asks.
            operation: its name.
            unpack: gives its arguments, or raises MessageFormatException; called when it is its turn.
            done: called, in any thread, with the result or a JMSException.
        """

        def is_cancelled() -> bool:
            return connection.is_closed

        def answer(result: Any) -> None:
            if not connection.is_closed:
                done(result)

        client = connection.client

        def work() -> None:
            refusal = connection.refusal()  # of the requests that came together, the first ones may have filled it
            if refusal is not None:
                answer(refusal)
                return
            try:
                result = self._broker.request(operation, unpack(), _REQUEST_SECONDS, is_cancelled, answer, client)
            except JMSException as error:
                result = copied(error)  # its traceback would keep the arguments in memory
            except Exception as error:
                _log.exception("! request %s failed unexpectedly", operation)
                result = JMSException(f"the request failed unexpectedly: {error!r}")
            if result is not UNDER_WAY:
                answer(result)

        try:
            request = REQUESTS.get(operation)
            self._workers[Threads.LONG if request is None else request.threads].submit(connection, work)
        except JMSException as error:
            done(error)

    def drop(self, connection: Asker) -> None:
        """A connection has ended: what it asked for and has not begun is dropped."""
        for workers in self._workers.values():
            workers.drop(connection)

    def stop(self) -> None:
        """Begin no more operations.  Those under way go on; this does not wait for them."""
        for workers in self._workers.values():
            workers.stop()


def _workers(name: str, threads: int) -> Workers:
    return Workers(f"holdfast-{name}", threads, most_running=1, most_waiting=MAX_WAITING)
