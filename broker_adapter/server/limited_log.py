"""Warnings that unauthenticated clients can cause: of each kind a few a minute are written."""

from __future__ import annotations

import logging
import time

from broker_adapter.server.log_limiter import RECORDS, LogLimiter

_log = logging.getLogger(f"holdfast.{__name__}")


class LimitedLog:
    """Writes warnings, and counts those that it does not write."""

    def __init__(self) -> None:
        self._limiters: dict[str, LogLimiter] = {}

    def __repr__(self) -> str:
        return f"<LimitedLog {sorted(self._limiters)}>"

    def write(self, kind: str, text: str, *arguments: object, records: int = RECORDS) -> None:
        """Log a warning, unless there were too many of its kind.

        Args:
            kind: tells apart what is counted together.
            text: the record, with the places of the arguments.
            arguments: what stands there.
            records: how many of the kind are written a minute.
        """
        if self._limiters.setdefault(kind, LogLimiter(records)).may_write(time.monotonic()):
            _log.warning(text, *arguments)

    def report_suppressed(self, now: float) -> None:
        """Say how many were not written, once a minute; ``now`` is of the steady clock."""
        for kind, limiter in self._limiters.items():
            suppressed = limiter.suppressed(now)
            if suppressed:
                _log.warning("! %d more records like these were suppressed (%s)", suppressed, kind)
