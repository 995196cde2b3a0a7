"""The errors that failover makes of what it meets; no I/O, clock or thread."""

from __future__ import annotations

from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
    copied,
)


def says_why(error: JMSException) -> bool:
    """Return whether the broker has ended the connection for something that it was sent, and did not just go."""
    return error.error_code is not None and not isinstance(error, ConnectionLostException | StoreException)


def as_lost(error: JMSException) -> ConnectionLostException:
    """The error of a connection that is lost for this reason."""
    if isinstance(error, ConnectionLostException):
        return error
    lost = ConnectionLostException(f"the connection is lost: {error.reason}", error_code=error.error_code)
    lost.__cause__ = error
    return lost


def out_of_time(text: str, last_error: JMSException | None) -> OperationTimedOutException:
    """The error of a wait that is over; ``last_error``: what there was to wait for."""
    if last_error is None:
        return OperationTimedOutException(text)
    error = OperationTimedOutException(f"{text}; the last error: {last_error.reason}")
    error.__cause__ = copied(last_error)
    return error


def without_thread(text: str, failure: RuntimeError) -> ResourceAllocationException:
    """The error of what needs a thread where the process has as many as it may have."""
    return ResourceAllocationException(f"{text}, for the process has no thread for that: {failure}")
