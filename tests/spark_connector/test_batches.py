"""Names of what a query stages and publishes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.destination import MAX_NAME_BYTES, checked_name
from broker_adapter.engine.rules.staging import BatchName, batch_of
from spark_connector.batches import (
    Attempt,
    all_of_batch,
    all_of_run,
    earlier_attempts,
    group_of,
    transaction_of,
)

NAMES = st.text(min_size=1, max_size=20)
RUNS = st.sampled_from(["job", "7b4d", "7b4d1"])
ATTEMPTS = st.builds(Attempt, RUNS, st.integers(0, 10**6), st.integers(0, 9), st.uuids().map(str))


@given(st.lists(st.tuples(NAMES, NAMES, st.none() | st.text(max_size=9)), unique=True, min_size=2, max_size=2))
def test_another_query_queue_or_producer_is_another_group(two: list[tuple[str, str, str | None]]) -> None:
    first, second = two
    assert group_of(*first) != group_of(*second)
    assert group_of(*first) == group_of(*first)


def test_no_producer_is_not_the_same_as_an_empty_one() -> None:
    assert len({group_of("q", "out", None), group_of("q", "out", ""), group_of("q", "out\0", None)}) == 3


@given(st.text(min_size=1, max_size=MAX_NAME_BYTES // 4), st.text(), st.integers(0, 10**18 - 1), ATTEMPTS)
def test_the_broker_knows_the_batch_of_a_transaction(
    queue: str, producer_id: str, batch: int, attempt: Attempt
) -> None:
    group = group_of("0f8fad5b-d9cb-469f-a165-70867728950e", queue, producer_id)
    name = checked_name(transaction_of(group, batch, attempt))
    assert batch_of(name) == BatchName(group, batch)
    assert name.startswith(all_of_batch(group, batch))


@given(ATTEMPTS, ATTEMPTS)
def test_an_attempt_finds_the_earlier_ones_of_its_own_task_only(mine: Attempt, other: Attempt) -> None:
    prefixes = tuple(earlier_attempts("g", 3, mine))
    is_earlier = other[:2] == mine[:2] and other.number < mine.number
    assert transaction_of("g", 3, other).startswith(prefixes) is is_earlier
    assert not transaction_of("g", 4, other).startswith(prefixes)
    assert transaction_of("g", 3, other).startswith(all_of_run("g", 3, mine.run)) is (other.run == mine.run)
