"""Which staged transactions belong together, and when they are dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.rules.staging import BatchName, Staging, batch_of

HOUR = 3_600_000


def test_the_time_of_a_batch_is_noted_with_another_transaction_when_one_ends() -> None:
    staging = Staging(10_000)
    staging.begin("g/1/a", 0)
    staging.begin("g/1/b", 0)
    assert staging.renew("g", 1, 9_000) == "g/1/a"
    assert staging.end("g/1/a") == ("g/1/b", 9_000)
    assert staging.end("g/1/b") is None


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("spark/query/7/0.1.x", BatchName("spark/query", 7)),
        ("group/0/task", BatchName("group", 0)),
        ("t", BatchName("t", None)),
        ("a/b/c", BatchName("a/b/c", None)),
        ("a/-1/c", BatchName("a/-1/c", None)),
        ("a/\u0664/c", BatchName("a/\u0664/c", None)),
        ("/1/c", BatchName("/1/c", None)),
        (f"a/{'9' * 5000}/c", BatchName(f"a/{'9' * 5000}/c", None)),
    ],
)
def test_a_name_that_is_a_path_tells_its_group_and_number(name: str, batch: BatchName) -> None:
    assert batch_of(name) == batch


def test_the_timeout_counts_from_the_last_use() -> None:
    staging = Staging(HOUR)
    staging.begin("t", 0)
    staging.used("t", HOUR - 1)
    assert staging.overdue(2 * HOUR - 2) == []
    assert staging.overdue(2 * HOUR - 1) == ["t"]


def test_a_batch_is_kept_while_any_of_its_tasks_adds_to_it() -> None:
    staging = Staging(HOUR)
    staging.begin("g/1/first", 0)
    staging.begin("g/1/last", 0)
    staging.begin("other/1/first", 0)
    staging.used("g/1/last", 2 * HOUR)
    assert staging.overdue(2 * HOUR) == ["other/1/first"]


def test_a_batch_is_kept_while_it_is_renewed() -> None:
    staging = Staging(HOUR)
    assert staging.renew("g", 1, 0) is None  # nothing is staged yet
    staging.begin("g/1/first", 0)
    staging.begin("g/2/first", 0)
    staging.begin("1/g", 0)
    assert staging.renew("g", 1, 2 * HOUR) == "g/1/first"
    assert staging.renew("g", 1, 2 * HOUR) is None
    assert staging.overdue(3 * HOUR - 1) == ["g/2/first", "1/g"]
    assert "g/1/first" in staging.overdue(3 * HOUR)
    staging.end("g/1/first")
    assert staging.renew("g", 1, 4 * HOUR) is None


def test_a_renewal_of_a_clock_that_went_back_shortens_nothing() -> None:
    staging = Staging(HOUR)
    staging.begin("g/1/a", 5 * HOUR)
    assert staging.renew("g", 1, HOUR) is None
    assert staging.overdue(6 * HOUR - 1) == []


def test_the_catalog_is_told_at_most_ten_times_in_a_timeout() -> None:
    staging = Staging(HOUR)
    staging.begin("t", 0)
    told = [staging.used("t", second * 1000) for second in range(3600)]
    assert 9 <= sum(told) <= 10


def test_a_restart_knows_the_last_use_of_the_batch_from_any_of_its_transactions() -> None:
    staging = Staging(HOUR)
    staging.begin("g/1/a", 5 * HOUR)
    staging.begin("g/1/b", HOUR)
    assert staging.overdue(6 * HOUR - 1) == []


def test_a_later_number_supersedes_the_earlier_ones_of_its_group_only() -> None:
    staging = Staging(HOUR)
    assert staging.begin("g/1/a", 0) == []
    assert staging.begin("g/2/a", 0) == ["g/1/a"]
    assert staging.begin("g/1/late", 0) == []
    assert staging.begin("h/9/a", 0) == []
    assert sorted(staging.through("g", 1)) == ["g/1/a", "g/1/late"]
    assert staging.through("unknown", 9) == []


def test_nothing_is_left_of_what_has_ended() -> None:
    staging = Staging(HOUR)
    for name in ("t", "g/1/a", "g/1/b"):
        staging.begin(name, 0)
    for name in ("t", "g/1/a", "g/1/b", "g/1/b", "never"):
        staging.end(name)
    assert len(staging) == 0
    assert staging._groups == {}


@given(
    st.lists(st.tuples(st.sampled_from(["t", "g/1/a", "g/1/b", "g/2/a", "h/1/a"]), st.integers(0, 400)), max_size=30)
)
def test_what_is_overdue_was_not_used_by_its_batch_for_the_timeout(uses: list[tuple[str, int]]) -> None:
    staging = Staging(100)
    last: dict[BatchName, int] = {}
    names: set[str] = set()
    for name, now_ms in uses:
        if name in names:
            staging.used(name, now_ms)
        else:
            staging.begin(name, now_ms)
            names.add(name)
        last[batch_of(name)] = max(last.get(batch_of(name), 0), now_ms)
    assert set(staging.overdue(400)) == {name for name in names if last[batch_of(name)] + 100 <= 400}
