"""Calls of the callbacks that clients of the engine have given it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

#: Calls a callback with a value, now or later.
Tell = Callable[[Callable[[Any], None], Any], None]
_L = TypeVar("_L", bound=Callable[..., None])
_log = logging.getLogger(f"holdfast.{__name__}")


def tell(callback: Callable[[Any], None], value: Any) -> None:
    """Call a callback; an error that it raises is logged, and does not stop the engine."""
    try:
        callback(value)
    except Exception:
        _log.exception("! a callback of the engine raised; it must not")


def registered(listener: _L, listeners: list[_L]) -> Callable[[], None]:
    """Add a listener to others; returns what takes it away, which is legal twice."""
    listeners.append(listener)

    def remove() -> None:
        with suppress(ValueError):
            listeners.remove(listener)

    return remove
