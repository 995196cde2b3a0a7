"""Calls of the callbacks that clients of the engine have given it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(f"holdfast.{__name__}")


def tell(callback: Callable[[Any], None], value: Any) -> None:
    """Call a callback; an error that it raises is logged, and does not stop the engine."""
    try:
        callback(value)
    except Exception:
        _log.exception("! a callback of the engine raised; it must not")
