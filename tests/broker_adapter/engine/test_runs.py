"""Positions over the restarts of an engine: the same in a restart, not the same in an older copy of the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.effects import Effects
from broker_adapter.engine.lmdb_store import KEPT_RUNS, LmdbStore
from broker_adapter.engine.records import (
    NEXT_QUEUE,
    CatalogRecord,
    Counters,
    RunRecord,
    encode_catalog,
    encode_counters,
    encode_meta,
    queue_key,
    run_key,
)
from broker_adapter.engine.runs import following, new_run
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, send


class Engines:
    """One engine after the other over a directory, which can be copied and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path / "data"
        self._copy = path / "copy"

    @contextmanager
    def running(self, **settings: Any) -> Iterator[Broker]:
        broker = Broker(EngineSettings(**settings), str(self.path))
        try:
            yield broker
        finally:
            broker.close()

    def back_up(self) -> None:
        shutil.copytree(self.path, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self._copy, self.path)


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, {"destination": "q", **arguments}, WAIT)


def fill(broker: Broker, count: int) -> dict[str, Any]:
    """Send messages; what the queue has then."""
    send(broker, connect(broker), "q", *["x"] * count)
    bounds: dict[str, Any] = ask(broker, "bounds")
    return bounds


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
        assert broker._stores.disk is not None
        (engines.path.parent / "copy").mkdir()
        broker._stores.disk._env.copy(str(engines.path.parent / "copy"))
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


def test_a_bounded_number_of_starts_is_remembered_and_older_ones_are_still_kept(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    for number in range(KEPT_RUNS + 3):
        with engines.running() as broker:
            fill(broker, number % 2)
    with engines.running() as broker:
        assert broker._stores.disk is not None
        assert len(broker._stores.disk.runs()) == KEPT_RUNS
        assert seen["run"] not in broker._stores.disk.runs()
        assert ask(broker, "bounds", run=seen["run"])["kept"] >= seen["next"]
        assert ask(broker, "bounds", run="of another store")["kept"] >= seen["next"]


@pytest.mark.damages
def test_a_damaged_record_of_a_start_costs_nothing_but_its_knowledge(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, EngineSettings())
    with store._env.begin(write=True) as txn:
        txn.put(run_key(1), b"damaged", db=store._db["meta"])
    assert store.runs() == []
    store.close()
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11


def test_a_start_that_finds_no_room_to_be_noted_is_a_start(engines: Engines) -> None:
    small = EngineSettings(max_store_bytes=16 * 1024 * 1024)
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, small)
    many = Effects().durable
    for number in range(1000, 4000):
        many.put("catalog", queue_key(number), encode_catalog(queue_key(number), CatalogRecord("queue", str(number))))
        many.put("queues", queue_key(number), encode_counters(queue_key(number), Counters(10**9, 0, ())))
    many.put("meta", NEXT_QUEUE, encode_meta(NEXT_QUEUE, 4000))
    store.commit(many)
    size, key = 1024 * 1024, 0
    while size >= 64:
        try:
            with store._env.begin(write=True) as txn:
                txn.put(b"%d" % key, b"x" * size, db=store._db["quarantine"])
            key += 1
        except lmdb.MapFullError:
            size //= 2
    store.close()
    with engines.running(max_store_bytes=small.max_store_bytes) as broker:
        unnoted = ask(broker, "bounds", run=seen["run"])
        assert (unnoted["run"], unnoted["kept"]) == ("", 11)
    with engines.running() as broker:
        assert broker.run
        assert ask(broker, "bounds", run=unnoted["run"])["kept"] == 11


@given(st.lists(st.integers(0, 2**43), min_size=1, unique=True), st.integers(0, 2**43))
def test_a_run_has_its_place_by_its_time_whether_it_is_known_or_not(times: list[int], time: int) -> None:
    runs = [new_run(each, "0") for each in sorted(times)]
    later = [each for each in sorted(times) if each > time]
    assert following(runs, new_run(time, "0")) == (new_run(later[0], "0") if later else None)


def test_known_runs_stay_in_their_order_where_the_clock_went_back() -> None:
    runs = [new_run(5, "a"), new_run(3, "b"), new_run(4, "c")]
    assert [following(runs, each) for each in runs] == [runs[1], runs[2], None]


def test_runs_are_told_apart_in_order(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    for number in range(300):
        assert store.begin_run(RunRecord(str(number), {7: number}))
    assert store.runs() == [str(number) for number in range(300 - KEPT_RUNS, 300)]
    assert store.run_positions("299") == {7: 299}
    assert store.run_positions("0") == {}
    store.close()
