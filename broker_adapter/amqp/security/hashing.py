"""Worker threads for the hash of a password, which would block the loop of all connections.

The broker tells the number of iterations, and so decides how long the hash takes: up to a few seconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

#: Hashes that a process computes at once; others wait for their turn.
_THREADS: Final = 2

_lock = threading.Lock()
_threads: ThreadPoolExecutor | None = None


def hash_elsewhere(compute: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Have something computed in another thread, and hand its result to ``done`` there.  Neither may raise."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(_THREADS, "holdfast-login")
        _threads.submit(lambda: done(compute()))


def _after_fork() -> None:
    """The threads are the parent's."""
    global _lock, _threads
    _lock = threading.Lock()
    _threads = None


os.register_at_fork(after_in_child=_after_fork)
