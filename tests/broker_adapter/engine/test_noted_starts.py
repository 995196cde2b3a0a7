"""Starts of an engine: when one is noted, how many are remembered, and what a damaged note costs."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.records.layout import (
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
from broker_adapter.engine.records.start_numbers import ALWAYS_KEPT_RUNS, KEPT_RUN_BYTES, KEPT_RUNS, SKIPPED_RUNS
from broker_adapter.engine.store.lmdb_reads import run_items
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.lmdb_writes import Writes
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.engine.store.starts import StartPosition, links_of, run_of
from broker_adapter.errors import InvalidDestinationException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.copies import Engines, ask, fill
from tests.broker_adapter.engine.driving import connect, send
from tests.broker_adapter.engine.storing import note


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def test_starts_without_a_commit_write_nothing_and_push_none_out_that_is_remembered(engines: Engines) -> None:
    with engines.running() as broker:
        seen = fill(broker, 10)
        state = broker.store._env.info()["last_txnid"]
    for _ in range(50):
        with engines.running() as broker:
            assert broker.store._writes.unnoted is not None
            assert ask(broker, "read_range", first=1, last=10, run=seen["run"])["next"] == 11
            assert (broker.store.runs(), broker.store._env.info()["last_txnid"]) == ([run_of(seen["run"])], state)
    with engines.running() as broker:
        now = fill(broker, 1)
        assert broker.store.runs() == [run_of(seen["run"]), broker.run]
        assert ask(broker, "bounds", run=seen["run"])["kept"] == 11
        assert links_of(now["run"]) == [StartPosition(broker.run, 11), StartPosition(run_of(seen["run"]), 1)]


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
            assert broker.store._writes.unnoted is None, "no position is given without a commit"
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
            patch.setattr(Writes, "write", full)
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
        # A record above the note, as where the note is lost.
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
