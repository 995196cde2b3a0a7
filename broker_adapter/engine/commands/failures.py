"""The errors that commands of the engine are answered with, where several rules raise the same one."""

from __future__ import annotations

from typing import Any

from broker_adapter.errors import (
    DELETED,
    MESSAGE_TOO_LARGE,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
    TransactionRolledBackException,
)


def fault(command: Any, cause: Exception) -> JMSException:
    """The answer to a command that a fault of the engine has ended."""
    failure = JMSException(f"the engine could not carry out {type(command).__name__}: {cause!r:.200}")
    failure.__cause__ = cause
    return failure


def deleted(name: str) -> InvalidDestinationException:
    """The error for the consumers of a queue that was deleted."""
    return InvalidDestinationException(f"{name!r} was deleted", error_code=DELETED)


def message_too_large(size: int, limit: int) -> ResourceAllocationException:
    """The error for a message above the limit."""
    return ResourceAllocationException(
        f"message of {size} bytes is larger than the limit of {limit} bytes (option max_message_bytes)",
        error_code=MESSAGE_TOO_LARGE,
    )


def rolled_back(error: JMSException) -> TransactionRolledBackException:
    """A commit's error for this cause."""
    failure = TransactionRolledBackException(f"nothing was committed: {error.reason}", error_code=error.error_code)
    failure.__cause__ = error
    return failure
