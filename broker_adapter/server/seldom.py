"""Lines of the log that strangers can cause: a few a minute, and then how many there were more; no clock."""

from __future__ import annotations

from typing import Final

#: Lines that are written in a period.
LINES: Final = 20
#: Length of a period, in seconds.
PERIOD_SECONDS: Final = 60.0


class Seldom:
    """Decides which lines of one kind are written.  All instants are seconds of one steady clock.

    Args:
        lines: how many are written in a period.
        period: in seconds; it begins with the first line.
    """

    def __init__(self, lines: int = LINES, period: float = PERIOD_SECONDS) -> None:
        self._lines = lines
        self._period = period
        self._began = 0.0
        self._count = 0

    def may_write(self, now: float) -> bool:
        """Whether one more line is to be written."""
        if not self._count:
            self._began = now
        self._count += 1
        return self._count <= self._lines

    def left_out(self, now: float) -> int:
        """How many were not written, where the period is over: a new one begins.  Otherwise 0."""
        if not self._count or now - self._began < self._period:
            return 0
        more = max(0, self._count - self._lines)
        self._count = 0
        return more
