"""All requests that our own engine takes beyond messaging, and how one is carried out.

Those are ``Transport.request``, in process and over AMQP.  Each is a class
(:mod:`broker_adapter.engine.operations.request`) in one of the files that this one imports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations import (
    arrivals,
    copies,
    durable_clients,
    gateway_batches,
    gateway_copies,
    gateways,
    groups,
    named_messages,
    ranges,
    region_digests,
    regions,
    staged,
    whole_queues,
)
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import REQUESTS, Beside, Request, Steps, request_of
from broker_adapter.errors import ConnectionLostException, OperationTimedOutException

__all__ = ["REQUESTS", "RequestEngine", "perform", "request_of", "steps_of"]

#: Each registers its requests as it is imported.
_FILES: Final = (
    *(whole_queues, ranges, staged, named_messages, regions, region_digests, durable_clients),
    *(gateways, gateway_batches, gateway_copies, arrivals, copies, groups),
)


class RequestEngine(Protocol):
    """What requests need of the broker."""

    def call(self, command: c.Command, timeout: float | None) -> Any:
        """Carry out a command."""

    def reading(self, timeout: float | None) -> AbstractContextManager[Reader]:
        """Keep all other threads out, and wait at the end until what was read is released."""

    def beside(self, look: Callable[[Any], Any]) -> Any:
        """Let the others go on."""


def perform(
    engine: RequestEngine,
    request: Request,
    timeout: float | None,
    is_cancelled: Callable[[], bool] | None = None,
    client: int = 0,
) -> Any:
    """Carry out a request.

    Args:
        engine: the broker.
        request: what is asked for.
        timeout: longest wait in seconds; None: no limit.
        is_cancelled: asked before each step; once it returns True, no further step is carried out.
        client: the engine's number of the connection that asks; 0: none asks.

    Raises:
        ConnectionLostException: the operation was cancelled; what was done so far stays done.
        InvalidDestinationException: the queue, or this incarnation of it, is gone.
        MessageFormatException: an argument is not what it must be.
        OperationTimedOutException: not done in time; what was done so far stays done, and it may be repeated.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    steps = request.steps(client)
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value
        if is_cancelled is not None and is_cancelled():
            raise ConnectionLostException("the operation was cancelled: the connection that asked for it ended")
        left = _left(deadline)
        if isinstance(step, tuple):
            result = engine.call(step, left)
        elif isinstance(step, Beside):
            result = engine.beside(step.look)
        else:
            with engine.reading(left) as reader:
                result = step(reader)


def steps_of(operation: str, arguments: Mapping[str, Any], client: int = 0) -> Steps:
    """Return the steps of one operation.

    Args:
        operation: its name.
        arguments: by name.
        client: the engine's number of the connection that asks; 0: none asks.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is not what it must be.
    """
    return request_of(operation, arguments).steps(client)


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise OperationTimedOutException("the time is over; what was done stays done, and the call may be repeated")
    return left
