"""Positions over the restarts of an engine: the same in a restart, not the same in an older copy of the store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.engine.records import start_numbers as run_numbers
from broker_adapter.engine.records.layout import RunRecord
from broker_adapter.engine.records.start_numbers import ALWAYS_KEPT_RUNS, KEPT_RUNS
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.starts import (
    AGING_STARTS,
    LINKS,
    StartPosition,
    is_aging,
    kept,
    links_of,
    links_to,
    new_run,
    run_of,
    text_of,
)
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.copies import Engines, ask, fill
from tests.broker_adapter.engine.driving import connect, send
from tests.broker_adapter.engine.storing import note


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def step_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Set the clock by which the time of the day is told."""
    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() + seconds * 10**9)


def test_links_name_no_starts_between_which_the_queue_has_given_no_position() -> None:
    starts = {"1": 1, "2": 5, "3": 5, "4": 5, "5": 8, "6": 8}
    assert links_to(list(starts), starts.__getitem__) == [
        StartPosition("6", 8),
        StartPosition("4", 5),
        StartPosition("1", 1),
    ]
    known = [str(number) for number in range(50)]
    assert links_to(known, lambda _run: 5) == [StartPosition("49", 5)]


def test_a_query_that_has_waited_over_many_starts_is_known_by_an_older_copy_of_the_store(engines: Engines) -> None:
    """The queue has given no position since the copy was made."""
    with engines.running() as broker:
        seen = fill(broker, 5)
    engines.back_up()
    for _ in range(LINKS + 2):
        with engines.running() as broker:
            send(broker, connect(broker), "other", "x")
            seen = ask(broker, "bounds", run=seen["run"])
    engines.restore()
    with engines.running() as broker:
        now = fill(broker, 2)
        assert ask(broker, "bounds", run=seen["run"])["kept"] == seen["next"] == now["next"] - 2


def test_positions_are_kept_over_restarts(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
        assert seen["kept"] == seen["next"]
    for _ in range(3):
        with engines.running() as broker:
            now = ask(broker, "bounds", run=seen["run"])
            assert now["run"] != seen["run"]
            assert now["kept"] >= seen["next"]
            fill(broker, 5)
    with engines.running() as broker:
        last = seen["next"] - 1
        ask(broker, "read_range", first=1, last=last, run=seen["run"])
        assert ask(broker, "settle_through", position=last, run=seen["run"]) == 10


def test_positions_are_kept_over_a_crash_also_those_of_messages_that_did_not_survive_it(engines: Engines) -> None:
    with engines.running() as broker:
        fill(broker, 3)
        send(broker, connect(broker), "q", *["volatile"] * 5, persistent=False)
        seen = ask(broker, "bounds")
        assert broker._stores.disk is not None
        (engines.path.parent / "copy").mkdir()
        broker._stores.disk._env.copy(str(engines.path.parent / "copy"))  # what SIGKILL would leave
    engines.restore()
    with engines.running() as broker:
        now = ask(broker, "bounds", run=seen["run"])
        assert seen["next"] == 9
        assert now["kept"] >= seen["next"]
        assert ask(broker, "settle_through", position=8, run=seen["run"]) == 3


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_an_older_copy_of_the_store_does_not_keep_them(engines: Engines, restarts: int) -> None:
    with engines.running() as broker:
        fill(broker, 10)
    engines.back_up()
    with engines.running() as broker:
        seen = fill(broker, 10)
    engines.restore()
    with engines.running() as broker:
        fill(broker, 50)  # so that the copy has given more positions than were seen
    for _ in range(restarts):
        with engines.running() as broker:
            fill(broker, 1)
    with engines.running() as broker:
        bounds = ask(broker, "bounds", run=seen["run"])
        assert (bounds["kept"], bounds["next"] > seen["next"]) == (11, True)
        for operation, arguments in (
            ("read_range", {"first": 15, "last": 20}),
            ("read_range", {"first": 9, "last": 11}),
            ("settle_through", {"position": 20}),
            ("settle_through", {"position": 11}),
        ):
            with pytest.raises(InvalidDestinationException, match=r"below 11 .* restored from an older copy"):
                ask(broker, operation, run=seen["run"], incarnation=seen["incarnation"], **arguments)
        assert ask(broker, "bounds")["first"] == 1
        assert ask(broker, "settle_through", position=10, run=seen["run"]) == 10


def test_a_copy_that_was_taken_while_the_engine_ran_does_not_keep_them_either(engines: Engines) -> None:
    with engines.running() as broker:
        fill(broker, 10)
        engines.back_up_running(broker)
        seen = fill(broker, 10)  # in the run that the copy knows
    engines.restore()
    with engines.running() as broker:
        fill(broker, 50)
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11


def test_a_position_that_was_never_given_is_not_settled(engines: Engines) -> None:
    with engines.running() as broker:
        bounds = fill(broker, 3)
        with pytest.raises(InvalidDestinationException, match="through position 4"):
            ask(broker, "settle_through", position=bounds["next"])
        assert ask(broker, "bounds")["first"] == 1


def test_only_the_range_that_was_read_is_settled(engines: Engines) -> None:
    with engines.running() as broker:
        fill(broker, 10)
        assert ask(broker, "settle_through", first=4, position=6) == 3
        answer = ask(broker, "read_range", first=1, last=10)
        assert [message[0] for message in answer["messages"]] == [1, 2, 3, 7, 8, 9, 10]


def test_what_was_settled_by_a_range_is_remembered(engines: Engines) -> None:
    with engines.running() as broker:
        assert fill(broker, 10)["settled"] == 0
        ask(broker, "settle_through", position=7)
        ask(broker, "settle_through", position=5)
    with engines.running() as broker:
        assert ask(broker, "bounds")["settled"] == 7


@pytest.mark.parametrize("clock_step", [0, -300, 86400])
@pytest.mark.parametrize("restarts", [0, 1])
def test_the_store_that_a_backup_replaced_does_not_take_positions_of_the_backup_for_its_own(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, clock_step: int, restarts: int
) -> None:
    with engines.running() as broker:
        fill(broker, 3)
    engines.back_up()
    with engines.running() as broker:
        fill(broker, 57)  # no client reads them before this store fails
    engines.swap()
    step_clock(monkeypatch, clock_step)
    with engines.running() as broker:
        seen = fill(broker, 50)
        assert ask(broker, "settle_through", position=53, run=seen["run"]) == 53
    engines.swap()
    for _ in range(restarts):
        with engines.running() as broker:
            fill(broker, 1)
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 4
        with pytest.raises(InvalidDestinationException, match="below 4 "):
            ask(broker, "settle_through", position=53, run=seen["run"])
        assert ask(broker, "bounds")["first"] == 1


@pytest.mark.parametrize(("clock_before", "clock_after"), [(0, -300), (86400, 0), (0, 86400)])
def test_an_older_copy_of_the_store_does_not_keep_them_whatever_the_clock_says(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, clock_before: int, clock_after: int
) -> None:
    with engines.running() as broker:
        fill(broker, 3)
    engines.back_up()
    step_clock(monkeypatch, clock_before)
    with engines.running() as broker:
        seen = fill(broker, 3)
    engines.restore()
    step_clock(monkeypatch, clock_after - clock_before)
    with engines.running() as broker:
        fill(broker, 50)
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 4


def test_links_are_read_as_they_were_written() -> None:
    links = [StartPosition(new_run(time, "abc"), time) for time in range(LINKS + 1)]
    assert links_of(text_of(links)) == links[:LINKS]
    assert links_of("0123-ab") == links_of("0123-ab@x") == [], "nothing says where that run began"
    assert [run_of(text) for text in (text_of(links), "0123-ab", "")] == [links[0].run, "0123-ab", ""]


@given(st.text(alphabet="ab@<-1\u0661 "))
@example("1@1<<a")
def test_any_text_is_links_or_none(text: str) -> None:
    known = ["a", "b", "ab"]
    assert 1 <= kept(links_of(text), known, lambda run: 5, 7) <= 7


def test_a_run_is_aging_where_more_starts_follow_it_than_half_of_those_that_are_always_remembered() -> None:
    known = [str(number) for number in range(AGING_STARTS + 2)]
    assert is_aging([StartPosition("0", 1)], known)
    assert not is_aging([StartPosition("1", 1)], known)
    assert not is_aging([StartPosition(known[-1], 1)], known)
    assert is_aging([StartPosition("of another store", 9), StartPosition("0", 1), StartPosition("1", 1)], known), (
        "the latest that is known counts"
    )
    assert not is_aging([StartPosition("of another store", 9)], known), "there is nothing to renew"
    assert not is_aging([], known)
    assert is_aging([StartPosition("0", 1)], ["0", *[""] * AGING_STARTS, "last"])
    assert not is_aging([StartPosition("", 0)], ["", *known])


def test_bounds_say_that_a_run_is_aging_before_it_is_forgotten(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
        assert seen["aging"] is False
    for start in range(ALWAYS_KEPT_RUNS - 1):
        with engines.running() as broker:
            bounds = ask(broker, "bounds", run=seen["run"])
            assert (bounds["kept"], bounds["aging"]) == (11, start >= AGING_STARTS)
    with engines.running() as broker:
        assert ask(broker, "bounds")["aging"] is False
        bounds = ask(broker, "bounds", run=bounds["run"])
        assert (bounds["kept"], bounds["aging"]) == (11, False)


def test_a_client_that_renews_what_is_aging_is_never_told_of_a_loss(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_numbers, "KEPT_RUNS", ALWAYS_KEPT_RUNS)
    with engines.running() as broker:
        first = last = fill(broker, 10)["run"]
    for _ in range(3 * ALWAYS_KEPT_RUNS):
        with engines.running() as broker:
            bounds = ask(broker, "bounds", run=last)
            assert bounds["kept"] >= 11
            last = bounds["run"] if bounds["aging"] else last
            fill(broker, 1)
    with engines.running() as broker:
        assert ask(broker, "bounds", run=first)["kept"] == 1
        assert ask(broker, "settle_through", position=10, run=last) == 10


def test_runs_are_told_apart_in_order(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    for number in range(KEPT_RUNS + 300):
        note(store, RunRecord(str(number), {7: number}))
    assert store.runs() == [str(number) for number in range(KEPT_RUNS + 300)][-KEPT_RUNS:]
    assert store.run_positions("1299") == {7: 1299}
    assert store.run_positions("299") == {}
    assert store.run_positions("0") == {}
    store.close()
