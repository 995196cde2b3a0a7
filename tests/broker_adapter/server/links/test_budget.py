"""What may be kept for one connection, and when it is read from: without a connection."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.server.links.budget import Budget


def test_what_only_the_client_can_end_is_refused_above_the_budget() -> None:
    assert Budget(100, unfinished=60, transactions=40).excess == 0
    assert Budget(100, unfinished=60, transactions=45).excess == 5
    assert Budget(100, unanswered=500, requests=500, output=500, answers=500).excess < 0


def test_requests_are_refused_while_answers_that_are_not_taken_are_above_the_budget_and_reading_goes_on() -> None:
    assert Budget(100, answers=100).allows_requests()
    assert not Budget(100, answers=101).allows_requests()
    assert Budget(100, answers=60).allows_requests(40)
    assert not Budget(100, answers=60).allows_requests(41)
    assert Budget(100, answers=101).allows_reading


def test_nothing_is_read_above_the_budget() -> None:
    assert Budget(100).allows_reading
    kinds = ("unfinished", "transactions", "unanswered", "requests", "output")
    for kind, other in itertools.permutations(kinds, 2):
        assert Budget(100, **{kind: 60, other: 40}).allows_reading
        assert not Budget(100, **{kind: 60, other: 41}).allows_reading


@given(*[st.integers(0, 200)] * 5)
def test_a_connection_that_is_not_read_from_has_something_that_ends_by_itself(
    unfinished: int, transactions: int, unanswered: int, requests: int, output: int
) -> None:
    budget = Budget(100, unfinished, transactions, unanswered, requests, output)
    if budget.excess <= 0 and not budget.allows_reading:
        assert unanswered + requests + output > 0
    if budget.excess <= 0:
        budget.unanswered = budget.requests = budget.output = 0
        assert budget.allows_reading
