"""What the application's code may not hold up: the threads of the SDK that all of its calls wait for.

Theory of operation
    A handler of ``logging`` belongs to the application, and may hold a lock while it sends through the SDK, as one does
    that sends every record to a queue.  Where the network is away, that send waits for a thread of the SDK, and a
    thread of the SDK that logs would wait for the lock.  So what these threads log is written by another one.

    That thread, and the one that calls exception listeners, may send as well, but do not wait for a network that is
    away: what they are there for would wait with them.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import traceback
from contextlib import suppress
from typing import Final

#: Most records that wait for the handlers; those beyond are dropped and counted.
MAX_RECORDS: Final = 10_000
#: Longest wait for the handlers as the process ends, in seconds.
_AT_EXIT_SECONDS: Final = 2.0

#: Threads that the calls of applications wait for, and the loggers of what holds the lock of an engine while it logs.
_OWN_THREADS: Final = ("holdfast-io", "holdfast-engine", "holdfast-exceptions", "holdfast-failover")
_ENGINE: Final = "holdfast.broker_adapter.engine."
#: Attribute of a record that has gone through the queue.
_HANDED_OVER: Final = "holdfast_handed_over"

_local = threading.local()


def never_wait() -> None:
    """Mark the current thread as one that does not wait for a network that is away."""
    _local.never_waits = True


def may_wait() -> bool:
    """Return whether the current thread may wait for a network that is away."""
    return not getattr(_local, "never_waits", False)


class LogWriter(logging.Filter):
    """Passes what the SDK's own threads log to the handlers on a thread of its own; any other thread logs as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.start_over()

    def start_over(self) -> None:
        """Begin without records and thread, as in a process made by fork."""
        self._starting = threading.RLock()  # the handler of a signal may connect
        self._records: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def start(self) -> None:
        """Start the thread; where the process may have no more threads, records are written where they are logged."""
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-log", daemon=True)
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the logger passes a record to its handlers now: it was handed over before, or need not be."""
        if hasattr(record, _HANDED_OVER) or self._thread is None:
            return True
        if not (record.threadName or "").startswith(_OWN_THREADS) and not record.name.startswith(_ENGINE):
            return True
        if self._records.qsize() >= MAX_RECORDS:
            self._dropped += 1
            return False
        try:
            record.msg, record.args = record.getMessage(), None  # now: its arguments may change
        except Exception:  # handlers tell of it
            return True
        setattr(record, _HANDED_OVER, True)
        self._records.put(record)
        return False

    def flush(self, seconds: float) -> None:
        """Wait until the handlers have what was logged before, at most so many seconds."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            written = threading.Event()
            self._records.put(written)
            written.wait(seconds)

    def _run(self) -> None:
        never_wait()
        while True:
            record = self._records.get()
            if isinstance(record, threading.Event):
                record.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                record.msg = f"{record.msg} (before this, {dropped} records were dropped: a handler of the log is slow)"
            try:
                logging.getLogger(record.name).handle(record)
            except BaseException:  # whatever a handler raises: the next record is written all the same
                traceback.print_exc()


_writer = LogWriter()


def hand_over_log() -> None:
    """Have what the SDK's own threads log written by another thread, by all loggers that there are; idempotent."""
    _writer.start()
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.startswith("holdfast.") and isinstance(logger, logging.Logger):
            logger.addFilter(_writer)


def flush_log(seconds: float) -> None:
    """Wait until the handlers of the log have what was logged before.

    Args:
        seconds: longest wait.
    """
    _writer.flush(seconds)


atexit.register(flush_log, _AT_EXIT_SECONDS)
os.register_at_fork(after_in_child=_writer.start_over)
