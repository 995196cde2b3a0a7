"""The callbacks by which a client's connection answers what it was asked for.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_adapter.errors import JMSException

#: Called once, with a result or with an error; returns whether the caller still waits for it.
Done = Callable[[Any, JMSException | None], bool]


def ignore(_result: Any, _error: JMSException | None) -> bool:
    """Take an answer that no caller waits for."""
    return True
