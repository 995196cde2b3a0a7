"""The time of the day as messages carry it."""

from __future__ import annotations

import time


def epoch_ms() -> int:
    """Milliseconds since 1970 by the clock of this machine; 0 where that is set to an earlier time.

    Nothing that is stored or sent has a place for times before 1970.
    """
    return max(0, time.time_ns() // 1_000_000)
