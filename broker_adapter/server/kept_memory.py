"""Memory that a server keeps for what comes next, where the C library gives it back to the system by default.

Answers to requests for ranges, and messages that come and go in bulk, are blocks of some MiB.  With its defaults the C
library gets a block of that size from the system, page by page, and gives it back when it is free, for each answer
again: about 1.4 of the 8.3 µs of CPU that a message of 1 KiB in such an answer takes.
"""

from __future__ import annotations

import ctypes
from typing import Final

from broker_adapter.settings import MIB

#: Parameters of ``mallopt`` in glibc.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
#: Blocks below this size are taken from memory that was used before.  Answers to requests for ranges have at most half.
_KEPT_BLOCK_BYTES: Final = 8 * MIB
#: Free memory at the end of an arena (each thread that works has one, up to eight for each core) that is kept.
_KEPT_BYTES: Final = 16 * MIB


def keep_freed_memory() -> bool:
    """Have the C library keep memory that is freed, up to a limit; returns whether it can.

    For a process that is a server, since this holds for all of it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
