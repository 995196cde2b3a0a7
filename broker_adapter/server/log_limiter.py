"""Limits the log records that unauthenticated clients can cause: a few a minute, and then how many more; no clock."""

from __future__ import annotations

from typing import Final

#: Records that are written in a period.
RECORDS: Final = 20
#: Length of a period, in seconds.
PERIOD_SECONDS: Final = 60.0


class LogLimiter:
    """Decides which records of one kind are written.  All instants are seconds of one steady clock.

    Args:
        records: how many are written in a period.
        period: in seconds; it begins with the first record.
    """

    def __init__(self, records: int = RECORDS, period: float = PERIOD_SECONDS) -> None:
        self._records = records
        self._period = period
        self._began = 0.0
        self._count = 0

    def may_write(self, now: float) -> bool:
        """Whether one more record is to be written."""
        if not self._count:
            self._began = now
        self._count += 1
        return self._count <= self._records

    def suppressed(self, now: float) -> int:
        """How many records were not written, where the period is over: a new one begins.  Otherwise 0."""
        if not self._count or now - self._began < self._period:
            return 0
        suppressed = max(0, self._count - self._records)
        self._count = 0
        return suppressed
