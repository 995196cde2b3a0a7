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

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.effects import Effects
from broker_adapter.engine.lmdb_reads import run_items
from broker_adapter.engine.lmdb_store import LmdbStore
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
from broker_adapter.engine.run_numbers import ALWAYS_KEPT_RUNS, KEPT_RUN_BYTES, KEPT_RUNS, SKIPPED_RUNS
from broker_adapter.engine.runs import LINKS, Link, kept, links_of, links_to, new_run, run_of, text_of
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


def test_a_bounded_number_of_starts_is_remembered_and_what_was_seen_before_is_not_known(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
    store = LmdbStore(engines.path, EngineSettings())
    for number in range(KEPT_RUNS - 2):
        note(store, RunRecord(str(number), {}))
    store.close()
    with engines.running() as broker:
        assert broker._stores.disk is not None
        assert len(broker._stores.disk.runs()) == KEPT_RUNS
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 1, "where the next run began is not known: it had none"
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
        assert broker._stores.disk is not None
        (engines.path.parent / "copy").mkdir()
        broker._stores.disk._env.copy(str(engines.path.parent / "copy"))
        seen = fill(broker, 7)  # in the run that the copy knows
        first = broker.run
    engines.restore()
    with engines.running() as broker:
        fill(broker, 50)  # nobody reads them
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
    assert store.runs() == [run_of(seen["run"]), ""], "nobody knows whether one is missing"
    note(store, RunRecord("next", {}))
    assert store.runs() == [run_of(seen["run"]), "", "next"]
    assert store.in_quarantine([quarantine_key("meta", NEXT_RUN)])
    with store._env.begin() as txn:
        noted = decode_meta(NEXT_RUN, txn.get(NEXT_RUN, db=store._db["meta"]))
    assert noted == 1 + SKIPPED_RUNS + 2
    note(store, RunRecord("last", {}))
    assert store.runs() == [run_of(seen["run"]), "", "next", "last"]
    store.close()


def test_the_number_of_a_start_is_not_given_again_where_all_are_forgotten_or_an_earlier_version_ran(
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
        fill(broker, 57)  # nobody reads them before this store fails
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


class ModelStore:
    """A store as it is, with the messages at its positions, and with its starts as it notes them."""

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}  #: position → a number that no other message has
        self.gone = 0  #: positions up to this one are settled
        self.starts: list[tuple[str, int]] = []
        self.forgotten = 0
        self.is_running = False

    @property
    def next(self) -> int:
        return len(self.messages) + 1

    def copy(self) -> ModelStore:
        made = ModelStore()
        made.messages, made.gone, made.starts = dict(self.messages), self.gone, list(self.starts)
        made.forgotten = self.forgotten
        return made

    def known(self) -> list[str]:
        return [run for run, _ in self.starts]

    def start(self, run: str) -> int:
        return dict(self.starts)[run]


class ModelQuery:
    """What has read a store through a range, and remembers how far and where."""

    def __init__(self) -> None:
        self.seen: tuple[str, int, int] | None = None  #: text of links, first position, next position
        self.read: set[int] = set()
        self.lost = 0

    def step(self, store: ModelStore, settles: bool) -> None:
        here = text_of(links_to(store.known(), store.start))
        if self.seen is not None:
            text, base, stop = self.seen
            if stop > kept(links_of(text), store.known(), store.start, store.next):
                self.seen = None
                self.lost += 1
        if self.seen is None:
            self.seen = here, store.gone + 1, store.gone + 1
        text, base, stop = self.seen
        if settles:
            for position in range(max(base, store.gone + 1), stop):
                assert store.messages[position] in self.read, f"{position} was not read"
            store.gone = max(store.gone, stop - 1)
        else:
            self.read.update(store.messages[position] for position in range(stop, store.next))
            if store.next > stop:
                self.seen = here, base, store.next


@settings(max_examples=1000)
@given(st.randoms(use_true_random=False), st.booleans())
def test_nothing_is_settled_that_was_not_read_whatever_becomes_of_the_store(chance: Random, is_one_store: bool) -> None:
    """Random histories of starts, copies, stores that are put back, clocks, forgotten and damaged starts."""
    stores = [ModelStore()]
    at, numbers = stores[0], iter(range(10**9))
    queries = [ModelQuery(), ModelQuery()]
    doubts = 0
    for _ in range(60):
        step = chance.choice(
            ["send", "send", "restart", "copy", "put back", "read", "read", "settle", "forget", "damage"]
        )
        if step == "restart" or not at.is_running:
            at.starts.append((new_run(chance.randrange(1000), str(next(numbers))), at.next))
            at.is_running = True
        if step == "send":
            for _ in range(chance.randint(1, 3)):
                at.messages[at.next] = next(numbers)
        elif step == "copy" and not is_one_store:
            stores.append(at.copy())
        elif step == "put back" and not is_one_store:
            at.is_running = False
            at = chance.choice(stores)
        elif step in ("read", "settle"):
            chance.choice(queries).step(at, step == "settle")
        elif step == "forget" and chance.random() < 0.2 and len(at.starts) > 1:
            doubts += 1
            del at.starts[0]
        elif step == "damage" and chance.random() < 0.1:
            doubts += 1
            at.starts[chance.randrange(len(at.starts))] = "", 0
            at.is_running = False
    assert doubts or not is_one_store or not any(query.lost for query in queries), "nothing was lost"


def test_runs_are_told_apart_in_order(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, EngineSettings())
    for number in range(KEPT_RUNS + 300):
        note(store, RunRecord(str(number), {7: number}))
    assert store.runs() == [str(number) for number in range(KEPT_RUNS + 300)][-KEPT_RUNS:]
    assert store.run_positions("1299") == {7: 1299}
    assert store.run_positions("299") == {}
    assert store.run_positions("0") == {}
    store.close()
