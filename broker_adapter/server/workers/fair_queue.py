"""A queue that takes the jobs of several owners in turn; no threads or clock.

Theory of operation
    Each owner has a queue of jobs.  ``take()`` gives the next job of the owner whose turn it is.  An owner that has as
    many jobs under way as it may is passed over until one of them is done.  So however many jobs one owner has, the
    next job of any other owner waits for a bounded number of jobs only.

    Owners may belong to groups.  Groups take turns, and within a group its owners do, so that one group with many
    owners gets no more than one with few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Job = TypeVar("Job")


class FairQueue(Generic[Owner, Job]):
    """Jobs that wait, and how many of each owner are under way.

    Args:
        most_running: jobs of one owner that may be under way at once.
        most_waiting: jobs of one owner that may wait.
        group_of: the group of an owner; None: each is a group of its own.
    """

    def __init__(
        self, *, most_running: int, most_waiting: int, group_of: Callable[[Owner], Hashable] | None = None
    ) -> None:
        self._most_running = most_running
        self._most_waiting = most_waiting
        self._group_of: Callable[[Owner], Hashable] = group_of or (lambda owner: owner)
        self._waiting: dict[Owner, deque[Job]] = {}
        self._running: dict[Owner, int] = {}
        #: Group → those of its owners of which a job may be taken; both in the order in which they have their turn.
        self._turns: dict[Hashable, dict[Owner, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return self._count

    def __repr__(self) -> str:
        return f"<FairQueue waiting={self._count} running={sum(self._running.values())} owners={len(self._waiting)}>"

    def put(self, owner: Owner, job: Job) -> bool:
        """Add a job; returns False, and adds nothing, where too many wait."""
        jobs = self._waiting.get(owner)
        if jobs is not None and len(jobs) >= self._most_waiting:
            return False
        if jobs is None:
            jobs = self._waiting[owner] = deque()
        jobs.append(job)
        self._count += 1
        if self._running.get(owner, 0) < self._most_running:
            self._give_turn(owner)
        return True

    def take(self) -> tuple[Owner, Job] | None:
        """The next job and its owner; it counts as running from now on.  None where there is none to be taken."""
        group = next(iter(self._turns), None)
        if group is None:
            return None
        owners = self._turns.pop(group)
        owner = next(iter(owners))
        del owners[owner]
        if owners:
            self._turns[group] = owners  # behind the other groups
        jobs = self._waiting[owner]
        job = jobs.popleft()
        self._count -= 1
        running = self._running[owner] = self._running.get(owner, 0) + 1
        if not jobs:
            del self._waiting[owner]
        elif running < self._most_running:
            self._give_turn(owner)
        return owner, job

    def _give_turn(self, owner: Owner) -> None:
        self._turns.setdefault(self._group_of(owner), {}).setdefault(owner)

    def done(self, owner: Owner) -> None:
        """A job of this owner is not under way any more."""
        running = self._running[owner] - 1
        if running:
            self._running[owner] = running
        else:
            del self._running[owner]
        if owner in self._waiting:
            self._give_turn(owner)

    @property
    def has_next(self) -> bool:
        """Whether ``take`` would give a job."""
        return bool(self._turns)

    def waiting_of(self, owner: Owner) -> int:
        """Return how many jobs of this owner wait."""
        return len(self._waiting.get(owner, ()))

    def last_of(self, owner: Owner) -> Job | None:
        """The newest job of this owner that waits; it stays there."""
        jobs = self._waiting.get(owner)
        return jobs[-1] if jobs else None

    def remove(self, owner: Owner, job: Job) -> None:
        """Take out one job that waits; the newest and the oldest ones at once, others by a search."""
        jobs = self._waiting[owner]
        if jobs[-1] == job:
            jobs.pop()
        else:
            jobs.remove(job)
        self._count -= 1
        if not jobs:
            self._remove_owner(owner)

    def drop(self, owner: Owner) -> list[Job]:
        """Take out all jobs of an owner that wait."""
        jobs = self._waiting.get(owner)
        if jobs is None:
            return []
        self._count -= len(jobs)
        self._remove_owner(owner)
        return list(jobs)

    def _remove_owner(self, owner: Owner) -> None:
        """An owner has no more jobs that wait."""
        del self._waiting[owner]
        group = self._group_of(owner)
        owners = self._turns.get(group, {})
        owners.pop(owner, None)
        if not owners:
            self._turns.pop(group, None)
