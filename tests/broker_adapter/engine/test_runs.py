"""Positions over the restarts of an engine: the same in a restart, not the same in an older copy of the store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.engine import run_numbers
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.effects import Effects
from broker_adapter.engine.lmdb_reads import run_items
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.lmdb_writes import Writes
from broker_adapter.engine.maintenance import check_store
from broker_adapter.engine.records import (
    NEXT_QUEUE,
    NEXT_RUN,
    CatalogRecord,
    Counters,
    RunRecord,
    decode_meta,
    encode_catalog,
    encode_counters,
    encode_meta,
    encode_run,
    quarantine_key,
    queue_key,
    run_key,
)
from broker_adapter.engine.run_numbers import (
    ALWAYS_KEPT_RUNS,
    KEPT_RUN_BYTES,
    KEPT_RUNS,
    SKIPPED_RUNS,
    next_run,
    with_gaps,
)
from broker_adapter.engine.runs import (
    AGING_STARTS,
    LINKS,
    Link,
    is_aging,
    kept,
    links_of,
    links_to,
    new_run,
    run_of,
    text_of,
)
from broker_adapter.errors import InvalidDestinationException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, send
from tests.broker_adapter.engine.storing import note


class Engines:
    """One engine after the other over a directory, which can be copied and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path / "data"
        self._copy = path / "copy"

    @contextmanager
    def running(self, **options: Any) -> Iterator[Broker]:
        broker = Broker(EngineSettings(**options), str(self.path))
        try:
            yield broker
        finally:
            broker.close()

    def back_up(self) -> None:
        shutil.copytree(self.path, self._copy)

    def back_up_running(self, broker: Broker) -> None:
        self._copy.mkdir()
        broker.store._env.copy(str(self._copy))

    def swap(self) -> None:
        """Put the copy in the place of the store, and keep that."""
        other = self._copy.with_name("other")
        self.path.rename(other)
        self._copy.rename(self.path)
        other.rename(self._copy)

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


def step_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Set the clock by which the time of the day is told."""
    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() + seconds * 10**9)


def test_links_name_no_starts_between_which_the_queue_has_given_no_position() -> None:
    starts = {"1": 1, "2": 5, "3": 5, "4": 5, "5": 8, "6": 8}
    assert links_to(list(starts), starts.__getitem__) == [Link("6", 8), Link("4", 5), Link("1", 1)]
    known = [str(number) for number in range(50)]
    assert links_to(known, lambda _run: 5) == [Link("49", 5)]


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


def test_starts_without_a_commit_write_nothing_and_push_none_out_that_is_remembered(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
        state = broker.store._env.info()["last_txnid"]
    for _ in range(50):
        with engines.running() as broker:
            assert not broker.store.has_noted_run
            assert ask(broker, "read_range", first=1, last=10, run=seen["run"])["next"] == 11
            assert (broker.store.runs(), broker.store._env.info()["last_txnid"]) == ([run_of(seen["run"])], state)
    with engines.running() as broker:
        now = fill(broker, 1)
        assert broker.store.runs() == [run_of(seen["run"]), broker.run]
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11
        assert links_of(now["run"]) == [Link(broker.run, 11), Link(run_of(seen["run"]), 1)]


def test_a_start_is_noted_when_a_client_asks_in_which_run_a_position_was_seen(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    with engines.running() as broker:
        again = ask(broker, "bounds", run=seen["run"])
        assert broker.store.runs() == [run_of(seen["run"]), run_of(again["run"])]
        assert ask(broker, "bounds", run=again["run"])["run"] == again["run"]
        assert len(broker.store.runs()) == 2
    with engines.running() as broker:
        assert ask(broker, "bounds", run=again["run"])["kept"] == 11


def copied(broker: Broker, engines: Engines) -> None:
    """Put what SIGKILL would leave now beside the store."""
    copy = engines.path.parent / "copy"
    copy.mkdir()
    broker.store._env.copy(str(copy))


@pytest.mark.parametrize("commits", [0, 1])
@pytest.mark.parametrize("volatile", [False, True])
def test_a_start_is_noted_before_a_crash_if_its_first_commit_is(engines: Engines, commits: int, volatile: bool) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    with engines.running() as broker:
        if volatile:
            send(broker, connect(broker), "q", *["volatile"] * 5, persistent=False)
            assert broker.store.has_noted_run, "no position is given without a commit"
        send(broker, connect(broker), "q", *["x"] * commits)
        copied(broker, engines)
        if commits:
            word = broker.run
    engines.restore()
    with engines.running() as broker:
        if commits:
            assert broker.store.runs() == [run_of(seen["run"]), word]
        assert ask(broker, "bounds", run=seen["run"])["kept"] >= 11
        fill(broker, 5)
    with engines.running() as broker:
        now = ask(broker, "bounds", run=seen["run"])
        assert now["kept"] >= 11
        assert ask(broker, "settle_through", position=10, run=seen["run"]) == 10


def test_a_start_that_cannot_be_noted_for_a_request_is_noted_by_the_next_commit(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)

    def full(_self: object, _change: object) -> None:
        raise ResourceAllocationException("full")

    with engines.running() as broker:
        with monkeypatch.context() as patch:
            patch.setattr(Writes, "carry_out", full)
            for _ in range(2):
                with pytest.raises(ResourceAllocationException, match="full, and ask again: the start"):
                    ask(broker, "bounds", run=seen["run"])
            assert ask(broker, "read_range", first=1, last=10, run=seen["run"])["next"] == 11
            assert broker.store.runs() == [run_of(seen["run"])]
        fill(broker, 1)
        assert broker.store.runs() == [run_of(seen["run"]), broker.run]
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11


def test_a_bounded_number_of_starts_is_remembered_and_what_was_seen_before_is_not_known(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, EngineSettings())
    for number in range(KEPT_RUNS - 2):
        note(store, RunRecord(str(number), {}))
    store.close()
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 1, "where the next run began is not known: it had none"
        assert len(broker.store.runs()) == KEPT_RUNS
    with engines.running() as broker:
        assert broker._stores.disk is not None
        assert len(broker._stores.disk.runs()) == KEPT_RUNS
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 1
        assert ask(broker, "bounds", run="of another store")["kept"] == 1
        with pytest.raises(InvalidDestinationException, match="started too often since to know"):
            ask(broker, "settle_through", position=10, run=seen["run"])
        assert ask(broker, "bounds")["first"] == 1


def test_starts_of_many_queues_are_remembered_as_far_as_their_bytes_go(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    positions = {number: 2**40 + number for number in range(1000)}
    for number in range(200):
        note(store, RunRecord(str(number), positions))
    size = len(encode_run(run_key(1), RunRecord("100", positions)))
    assert len(store.runs()) == KEPT_RUN_BYTES // size + 1
    positions = {number: 2**40 + number for number in range(10_000)}
    for number in range(200, 300):
        note(store, RunRecord(str(number), positions))
    assert store.runs() == [str(number) for number in range(300 - ALWAYS_KEPT_RUNS, 300)]
    store.close()


def lose_last_start(path: Path, how: str) -> None:
    """Take the record of the last start out of the store; it may have been damaged before."""
    store = LmdbStore(path, EngineSettings())
    with store._env.begin(write=True) as txn:
        *_, (key, _) = run_items(txn, store._db["meta"])
        if how == "deleted":
            txn.delete(key, db=store._db["meta"])
        else:
            txn.put(key, b"damaged", db=store._db["meta"])
    if how == "quarantined":
        assert store.quarantine("meta", [key])
    store.close()
    if how == "repaired":
        assert not check_store(path, EngineSettings(), repair=True).is_sound
        assert check_store(path, EngineSettings()).is_sound


@pytest.mark.damages
@pytest.mark.parametrize(
    ("how", "is_of_earlier_version"),  # which notes no number, so a record that is simply gone is not missed
    [
        *((how, False) for how in ("deleted", "damaged", "quarantined", "repaired")),
        ("damaged", True),
        ("repaired", True),
    ],
)
def test_the_number_of_a_start_is_given_once_so_one_that_is_lost_leaves_a_gap(
    engines: Engines, how: str, is_of_earlier_version: bool
) -> None:
    with engines.running() as broker:
        fill(broker, 3)
        engines.back_up_running(broker)
        seen = fill(broker, 7)  # in the run that the copy knows
        first = broker.run
    engines.restore()
    with engines.running() as broker:
        fill(broker, 50)  # no client reads them
    if is_of_earlier_version:
        store = LmdbStore(engines.path, EngineSettings())
        with store._env.begin(write=True) as txn:
            assert txn.delete(NEXT_RUN, db=store._db["meta"])
        store.close()
    lose_last_start(engines.path, how)
    store = LmdbStore(engines.path, EngineSettings())
    assert store.runs() == [first, ""]
    store.close()
    for _ in range(2):
        with engines.running() as broker:
            fill(broker, 1)
            assert broker._stores.disk is not None
            assert broker._stores.disk.runs()[:2] == [first, ""]
            assert ask(broker, "bounds", run=seen["run"])["kept"] == 1
            with pytest.raises(InvalidDestinationException, match="below 1 "):
                ask(broker, "settle_through", position=10, run=seen["run"])


@pytest.mark.damages
def test_where_the_number_of_the_next_start_is_damaged_some_are_skipped_and_it_is_set_aside(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, EngineSettings())
    with store._env.begin(write=True) as txn:
        txn.put(NEXT_RUN, b"damaged", db=store._db["meta"])
    assert store.runs() == [run_of(seen["run"]), ""], "it is not known whether one is missing"
    note(store, RunRecord("next", {}))
    assert store.runs() == [run_of(seen["run"]), "", "next"]
    assert store.in_quarantine([quarantine_key("meta", NEXT_RUN)])
    with store._env.begin() as txn:
        noted = decode_meta(NEXT_RUN, txn.get(NEXT_RUN, db=store._db["meta"]))
    assert noted == 1 + SKIPPED_RUNS + 2
    note(store, RunRecord("last", {}))
    assert store.runs() == [run_of(seen["run"]), "", "next", "last"]
    store.close()


def test_the_number_of_a_start_is_not_reused_where_all_are_forgotten_or_an_earlier_version_ran(
    tmp_path: Path,
) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    assert store.runs() == []
    for number in range(3):
        note(store, RunRecord(str(number), {}))
    with store._env.begin(write=True) as txn:
        for number in range(1, 4):
            assert txn.delete(run_key(number), db=store._db["meta"])
    assert store.runs() == [""]
    note(store, RunRecord("3", {}))
    with store._env.begin(write=True) as txn:
        (found,) = [key for key, _ in run_items(txn, store._db["meta"])]
        assert found == run_key(4)
        # An earlier version counts from the last record, and leaves the note as it is.
        txn.put(run_key(5), encode_run(run_key(5), RunRecord("4", {})), db=store._db["meta"])
    note(store, RunRecord("5", {}))
    assert store.runs() == ["3", "4", "5"]
    store.close()


@pytest.mark.damages
def test_a_damaged_record_of_a_start_costs_nothing_but_what_was_seen_in_it_and_after_the_start_before(
    engines: Engines,
) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, EngineSettings())
    with store._env.begin(write=True) as txn:
        txn.put(run_key(1), b"damaged", db=store._db["meta"])
    assert store.runs() == [""]
    store.close()
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 1
        seen = fill(broker, 10)
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 21
        fill(broker, 10)
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 21
    store = LmdbStore(engines.path, EngineSettings())
    with store._env.begin(write=True) as txn:
        txn.delete(run_key(3), db=store._db["meta"])  # as a repair does it
    assert [bool(run) for run in store.runs()] == [False, True, False, True]
    store.close()
    with engines.running() as broker:
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11, "where its run began, but not how far it went"


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
    expected = pytest.raises(ResourceAllocationException, match=r"option max_store_bytes\), and ask again: the start")
    with engines.running(max_store_bytes=small.max_store_bytes) as broker, expected:
        ask(broker, "bounds", run=seen["run"])
    with engines.running() as broker:
        found = ask(broker, "bounds", run=seen["run"])
        assert (run_of(found["run"]), found["kept"]) == (broker.run, 11)


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


def test_what_an_earlier_version_noted_of_a_start_is_known(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
        word = broker.run
    with engines.running() as broker:
        assert seen["run"].startswith(word)
        assert ask(broker, "bounds", run=word)["kept"] == 11


def test_links_are_read_as_they_were_written() -> None:
    links = [Link(new_run(time, "abc"), time) for time in range(LINKS + 1)]
    assert links_of(text_of(links)) == links[:LINKS]
    assert links_of("0123-ab") == [Link("0123-ab", 0)], "as earlier versions wrote them"
    assert [run_of(text) for text in (text_of(links), "0123-ab", "a@b", "")] == [links[0].run, "0123-ab", "", ""]


@given(st.text(alphabet="ab@<-1\u0661 "))
@example("1@1<<a")
def test_any_text_is_links_or_none(text: str) -> None:
    known = ["a", "b", "ab"]
    assert 1 <= kept(links_of(text), known, lambda run: 5, 7) <= 7


def test_a_run_is_aging_where_more_starts_follow_it_than_half_of_those_that_are_always_remembered() -> None:
    known = [str(number) for number in range(AGING_STARTS + 2)]
    assert is_aging([Link("0", 1)], known)
    assert not is_aging([Link("1", 1)], known)
    assert not is_aging([Link(known[-1], 1)], known)
    assert is_aging([Link("of another store", 9), Link("0", 1), Link("1", 1)], known), "the latest that is known counts"
    assert not is_aging([Link("of another store", 9)], known), "there is nothing to renew"
    assert not is_aging([], known)
    assert is_aging([Link("0", 1)], ["0", *[""] * AGING_STARTS, "last"])
    assert not is_aging([Link("", 0)], ["", *known])


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


class ModelStore:
    """A store as it is, with the messages at its positions, and with its starts as it notes them."""

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}  #: position → a number that no other message has
        self.gone = 0  #: positions up to this one are settled
        self.starts: dict[int, tuple[str, int]] = {}  #: number → run, or "" where it is damaged; where it began
        self.noted: bytes | None = None  #: the number of the next start
        self.begun: tuple[str, int] | None = None  #: the start of the engine that runs; None: it does not run
        self.is_noted = False
        self.earlier: list[str] = []  #: what that engine has found

    @property
    def next(self) -> int:
        return len(self.messages) + 1

    def copy(self) -> ModelStore:
        made = ModelStore()
        made.messages, made.gone, made.starts = dict(self.messages), self.gone, dict(self.starts)
        made.noted = self.noted
        return made

    def begin(self, run: str) -> None:
        found = [(number, run) for number, (run, _) in sorted(self.starts.items())]
        self.begun, self.is_noted, self.earlier = (run, self.next), False, list(with_gaps(found, self.noted))

    def note(self) -> None:
        if not self.is_noted and self.begun is not None:
            number, _ = next_run(max(self.starts, default=0), self.noted)
            self.starts[number], self.noted = self.begun, encode_meta(NEXT_RUN, number + 1)
            self.is_noted = True

    def known(self) -> list[str]:
        assert self.begun is not None
        return [*self.earlier, self.begun[0]]

    def start(self, run: str) -> int:
        assert self.begun is not None
        return dict([*self.starts.values(), self.begun]).get(run, 1)  # 1: it was forgotten meanwhile


class ModelQuery:
    """What has read a store through a range, and remembers how far and where."""

    def __init__(self) -> None:
        self.seen: tuple[str, int, int] | None = None  #: text of links, first position, next position
        self.read: set[int] = set()
        self.lost = 0

    def is_kept(self, store: ModelStore) -> bool:
        """Whether the store says that what was seen is what it has."""
        assert self.seen is not None
        text, _, stop = self.seen
        return stop <= kept(links_of(text), store.known(), store.start, store.next)

    def settle(self, store: ModelStore) -> None:
        """Nobody asks for the run, so that the start of the engine may not be noted."""
        if self.seen is not None and self.is_kept(store):
            _, base, stop = self.seen
            for position in range(max(base, store.gone + 1), stop):
                assert store.messages[position] in self.read, f"{position} was not read"
            if stop > store.gone + 1:
                store.note()
                store.gone = stop - 1

    def go_on(self, store: ModelStore, renews: bool) -> None:
        """Ask what is there, which notes the start of the engine, and read it."""
        store.note()
        here = text_of(links_to(store.known(), store.start))
        if self.seen is not None and not self.is_kept(store):
            self.seen = None
            self.lost += 1
        elif self.seen is not None and renews:
            self.seen = here, *self.seen[1:]
        if self.seen is None:
            self.seen = here, store.gone + 1, store.gone + 1
        _, base, stop = self.seen
        self.read.update(store.messages[position] for position in range(stop, store.next))
        if store.next > stop:
            self.seen = here, base, store.next


@settings(max_examples=1000)
@given(st.randoms(use_true_random=False), st.booleans())
def test_nothing_is_settled_that_was_not_read_whatever_becomes_of_the_store(chance: Random, is_one_store: bool) -> None:
    """Random histories of starts, copies, stores that are put back, clocks, starts that are forgotten or damaged."""
    stores = [ModelStore()]
    at, numbers = stores[0], iter(range(10**9))
    at.messages = {position: next(numbers) for position in range(1, chance.choice([1, 4]))}  # of an earlier version
    queries = [ModelQuery(), ModelQuery()]
    loses_starts, has_lost = chance.random() < 0.5, False
    for _ in range(60):
        step = chance.choice(
            ["send", "send", "restart", "copy", "put back", "read", "read", "settle", "forget", "damage", "lose"]
        )
        if step == "restart" or at.begun is None:
            at.begin(new_run(chance.randrange(1000), str(next(numbers))))
        if step == "send":
            at.note()
            for _ in range(chance.randint(1, 3)):
                at.messages[at.next] = next(numbers)
        elif step == "copy" and not is_one_store:
            stores.append(at.copy())
        elif step == "put back" and not is_one_store:
            at.begun = None
            at = chance.choice(stores)
            at.begun = None
        elif step == "read":
            chance.choice(queries).go_on(at, chance.random() < 0.2)
        elif step == "settle":
            chance.choice(queries).settle(at)
        elif step in ("forget", "damage", "lose") and loses_starts and at.starts and chance.random() < 0.3:
            has_lost = True
            if step == "damage":
                at.starts[chance.choice(list(at.starts))] = "", 0
            elif step == "lose":
                del at.starts[chance.choice([max(at.starts), chance.choice(list(at.starts))])]
            elif len(at.starts) > 1:
                del at.starts[min(at.starts)]
            if step != "forget":
                at.begun = None
    assert has_lost or not is_one_store or not any(query.lost for query in queries), "nothing was lost"


def test_runs_are_told_apart_in_order(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    for number in range(KEPT_RUNS + 300):
        note(store, RunRecord(str(number), {7: number}))
    assert store.runs() == [str(number) for number in range(KEPT_RUNS + 300)][-KEPT_RUNS:]
    assert store.run_positions("1299") == {7: 1299}
    assert store.run_positions("299") == {}
    assert store.run_positions("0") == {}
    store.close()
