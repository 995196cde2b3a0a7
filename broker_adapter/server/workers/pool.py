"""Worker threads for what would block the server's loop, shared fairly among its clients."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from broker_adapter.errors import IllegalStateException, ResourceAllocationException
from broker_adapter.server.workers.fair_queue import FairQueue

_log = logging.getLogger(f"holdfast.{__name__}")

Job = Callable[[], None]


class Workers:
    """A bounded number of threads.

    Args:
        name: of the threads.
        threads: how many; they are started when they are needed.
        most_running: jobs of one owner that may be under way at once.
        most_waiting: jobs of one owner that may wait.
        group_of: the group of an owner, where groups are to have equal shares; see :class:`FairQueue`.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        most_running: int,
        most_waiting: int,
        group_of: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self._name = name
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._jobs: FairQueue[Hashable, Job] = FairQueue(
            most_running=most_running, most_waiting=most_waiting, group_of=group_of
        )

    def __repr__(self) -> str:
        return f"<Workers {self._name} {self._jobs!r}>"

    def submit(self, owner: Hashable, job: Job) -> None:
        """Have a job done in one of the threads.  Does not wait.

        Args:
            owner: whose job it is; compared by equality.
            job: must not raise.

        Raises:
            ResourceAllocationException: too many jobs wait.
            IllegalStateException: the workers were stopped.
        """
        with self._lock:
            if not self._jobs.put(owner, job):
                raise ResourceAllocationException(
                    f"too many requests of this client wait already ({self._name}); wait for answers before asking more"
                )
        self._start_thread(owner)

    def _start_thread(self, owner: Hashable) -> None:
        try:
            self._threads.submit(self._work)
        except RuntimeError:  # it was shut down
            self.drop(owner)
            raise IllegalStateException("the server is stopping") from None

    def _work(self) -> None:
        """Do one job after the other, for as long as there are some that may be done."""
        while True:
            with self._lock:
                taken = self._jobs.take()
            if taken is None:
                return
            owner, job = taken
            try:
                job()
            except Exception:
                _log.exception("! a job of %s raised; it must not", self._name)
            finally:
                with self._lock:
                    self._jobs.done(owner)

    def drop(self, owner: Hashable) -> None:
        """Remove the jobs of an owner that wait.  Those under way go on."""
        with self._lock:
            self._jobs.drop(owner)

    def stop(self) -> None:
        """Do no more jobs.  Those under way go on; this does not wait for them."""
        self._threads.shutdown(wait=False, cancel_futures=True)
