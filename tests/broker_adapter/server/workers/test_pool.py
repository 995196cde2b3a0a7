"""Threads that are shared fairly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from broker_adapter.errors import IllegalStateException, ResourceAllocationException
from broker_adapter.server.workers.pool import Workers

WAIT = 120.0


@pytest.fixture
def make() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(threads: int, most_running: int = 1, most_waiting: int = 100) -> Workers:
        made.append(Workers("test", threads, most_running=most_running, most_waiting=most_waiting))
        return made[-1]

    yield make
    for each in made:
        each.stop()


class Job:
    """A job that says when it has begun, and goes on when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.ended = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT)
        self.ended.set()

    def end(self) -> None:
        self.may_end.set()
        assert self.ended.wait(WAIT)


def test_one_owner_leaves_threads_for_others(make: Callable[..., Workers]) -> None:
    workers = make(2)
    greedy, other = [Job() for _ in range(5)], Job()
    for job in greedy:
        workers.submit("greedy", job)
    assert greedy[0].begun.wait(WAIT)
    workers.submit("other", other)
    assert other.begun.wait(WAIT)
    assert not greedy[1].begun.is_set()
    other.end()
    for job in greedy:
        assert job.begun.wait(WAIT)
        job.end()


def test_what_was_dropped_is_not_begun(make: Callable[..., Workers]) -> None:
    workers = make(1)
    jobs, last = [Job() for _ in range(3)], Job()
    for job in jobs:
        workers.submit("gone", job)
    assert jobs[0].begun.wait(WAIT)
    workers.drop("gone")
    workers.submit("other", last)
    jobs[0].end()
    assert last.begun.wait(WAIT)
    last.end()
    assert not any(job.begun.is_set() for job in jobs[1:])


def test_too_many_that_wait_are_refused(make: Callable[..., Workers]) -> None:
    workers = make(1, most_waiting=2)
    first = Job()
    workers.submit("a", first)
    assert first.begun.wait(WAIT)
    others = [Job(), Job()]
    for job in others:
        workers.submit("a", job)
    with pytest.raises(ResourceAllocationException, match="wait for answers"):
        workers.submit("a", Job())
    for job in (first, *others):
        job.end()


def test_a_job_that_raises_is_logged_and_the_next_one_is_done(
    make: Callable[..., Workers], caplog: pytest.LogCaptureFixture
) -> None:
    workers = make(1)
    last = Job()

    def fails() -> None:
        raise ValueError("x")

    with caplog.at_level(logging.ERROR):
        workers.submit("a", fails)
        workers.submit("a", last)
        assert last.begun.wait(WAIT)
    last.end()
    assert "it must not" in caplog.text


def test_after_the_end_nothing_is_taken(make: Callable[..., Workers]) -> None:
    workers = make(1)
    workers.stop()
    with pytest.raises(IllegalStateException, match="stopping"):
        workers.submit("a", lambda: None)
    assert repr(workers) == "<Workers test <FairQueue waiting=0 running=0 owners=0>>"
