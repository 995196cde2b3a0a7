"""When a query is told what hinders its spool, and when what a broker had counts as read."""

from __future__ import annotations

import pytest

from broker_adapter.errors import (
    ConnectionLostException,
    JMSSecurityException,
    OperationTimedOutException,
    ResourceAllocationException,
)
from spark_connector.spool.progress import BEGINNING_SECONDS, QUIET_SECONDS, REFUSAL_SECONDS, Progress

REFUSED = JMSSecurityException("not allowed")
WORKED = Progress().with_moved(1)


def test_nothing_is_told_where_nothing_hinders_it() -> None:
    assert Progress().failure(1e9, 0) is None
    assert WORKED.with_wait(1).failure(1e9, 0) is None


@pytest.mark.parametrize("error", [ConnectionLostException("away"), OperationTimedOutException("slow")])
def test_a_broker_may_be_away_for_as_long_as_the_query_tolerates(
    error: ConnectionLostException | OperationTimedOutException,
) -> None:
    progress = Progress().with_error(error, 100.0, is_ours=False)
    assert progress.failure(699.0, 600.0) is None
    assert progress.failure(700.0, 600.0) is error


def test_what_the_broker_refuses_from_the_start_is_told_at_once() -> None:
    assert Progress().with_error(REFUSED, 100.0, is_ours=False).failure(100.0, 600.0) is REFUSED


@pytest.mark.parametrize("worked", [WORKED, Progress().with_wait(0.1)])
def test_what_the_broker_did_not_refuse_before_may_pass(worked: Progress) -> None:
    progress = worked.with_error(REFUSED, 100.0, is_ours=False)
    assert progress.failure(99.0 + REFUSAL_SECONDS, 600.0) is None
    assert progress.failure(100.0 + REFUSAL_SECONDS, 600.0) is REFUSED
    assert progress.failure(101.0, 1.0) is REFUSED


def test_what_hinders_us_is_told_at_once() -> None:
    full = ResourceAllocationException("the disk is full")
    assert WORKED.with_error(full, 100.0, is_ours=True).failure(100.0, 600.0) is full


def test_the_time_counts_from_the_first_of_several_failures() -> None:
    first, second = ConnectionLostException("1"), ConnectionLostException("2")
    progress = WORKED.with_error(first, 100.0, is_ours=False).with_error(second, 150.0, is_ours=False)
    assert progress.failure(159.0, 60.0) is None
    assert progress.failure(160.0, 60.0) is second


@pytest.mark.parametrize("again", [Progress.with_moved, Progress.with_wait])
def test_a_failure_that_has_passed_is_forgotten(again: object) -> None:
    progress = WORKED.with_error(REFUSED, 100.0, is_ours=True)
    progress = progress.with_moved(1) if again is Progress.with_moved else progress.with_wait(0.1)
    assert progress.failure(1e9, 0) is None


def test_a_queue_is_read_once_its_consumer_has_waited_in_all() -> None:
    since = Progress(moved=5).with_wait(3.0)
    half = BEGINNING_SECONDS + QUIET_SECONDS / 2
    progress = since.with_moved(1).with_wait(half).with_moved(1)
    assert not progress.has_caught_up(since, 1000)
    assert not progress.with_wait(half - 0.1).has_caught_up(since, 1000)
    assert progress.with_wait(half - 0.1).with_wait(0.2).has_caught_up(since, 1000)
    assert since.with_wait(QUIET_SECONDS).has_caught_up(since, 1000), "it goes on to wait"


def test_a_broker_far_away_is_waited_for_with_each_credit() -> None:
    since = progress = Progress()
    for _ in range(100):
        progress = progress.with_wait(0.2).with_wait(0.2).with_wait(0.2).with_moved(500)
    assert not progress.has_caught_up(since, 1_000_000)
    failed = Progress()
    for _ in range(100):
        failed = failed.with_wait(0.7).with_error(ConnectionLostException("away"), 1.0, is_ours=False)
    assert not failed.has_caught_up(since, 1_000_000), "a connection that begins again and again is no quiet queue"


def test_a_queue_counts_as_read_when_so_many_messages_have_come() -> None:
    since = Progress(moved=5)
    assert not since.with_moved(9).has_caught_up(since, 10)
    assert since.with_moved(10).has_caught_up(since, 10)
