"""Renewals that tell the broker, while an attempt of a task runs, that its batch is still being written.

Theory of operation
    The broker drops what is staged for a batch that was not used for a time-out.  Staging rows is a use, but a task may
    compute for longer than that before its first row, or between two of them, and rows that Spark still gathers are not
    staged.  Spark calls the writer before it has the first row.  So a thread of its own renews it: first after a tenth
    of the shortest time-out, before which most tasks of small batches end, and then every tenth of the time-out, which
    is in the broker's answer.  It ends with the attempt: what a task has staged that failed, or whose process was
    killed, is dropped after the time-out as before.

    The connections of a process are for one thing at a time, and a thread that fails closes the one that it had.  So
    the thread and the task take turns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sdk import JMSException
from sdk.range_reader import renew
from spark_connector.connections import with_retries
from spark_connector.options import SinkOptions

_log = logging.getLogger(f"holdfast.{__name__}")
#: Renewals in one time-out.
_RENEWALS: Final = 10
#: Pause before the first one, in seconds: a tenth of the shortest time-out that a broker can have.
_FIRST_PAUSE: Final = 0.1
#: Longest pause between two of them, in seconds: the time-out may be a shorter one after a restart of the broker.
_LONGEST_PAUSE: Final = 60.0
#: Shortest and longest pause after one that failed, in seconds.
_SHORTEST_RETRY_PAUSE: Final = 0.1
_LONGEST_RETRY_PAUSE: Final = 2.0


class Renewal:
    """Renews a batch as long as its ``with`` block is being carried out.

    Args:
        options: where the broker is.
        group: whose batches are published once each.
        number: of the batch.
    """

    def __init__(self, options: SinkOptions, group: str, number: int) -> None:
        self._options = options
        self._group = group
        self._number = number
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-renewal", daemon=True)

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for a renewal that is under way: the connection is free for others then."""
        self._ended.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the task uses the connection by itself."""
        with self._turn:
            yield

    def _run(self) -> None:
        pause, failures = _FIRST_PAUSE, 0
        while not self._ended.wait(pause):
            with self._turn:
                if self._ended.is_set():
                    return
                try:
                    seconds = with_retries(
                        self._options, lambda connection: renew(connection, self._group, self._number), seconds=0
                    )
                # The others: the process has no thread for a connection; the password cannot be read.
                except (JMSException, RuntimeError, ValueError) as error:
                    if not failures:
                        _log.warning("could not tell the broker that a batch is still being written: %s", error)
                    pause = min(_SHORTEST_RETRY_PAUSE * 2.0**failures, _LONGEST_RETRY_PAUSE)
                    failures = min(failures + 1, 10)
                    continue
            failures = 0
            pause = min(seconds / _RENEWALS, _LONGEST_PAUSE)
