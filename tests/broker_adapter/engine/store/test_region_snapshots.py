"""Snapshots of regions: their limits, kills of the engine, and what they cost."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.destination import topic
from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.operations.requests import perform, request_of
from broker_adapter.engine.store import lmdb_store, region_snapshots
from broker_adapter.envelope import BodyKind, Envelope, pack, unpack
from broker_adapter.errors import (
    InvalidDestinationException,
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.asking import damage_body


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    path = str(tmp_path) if request.param == "disk" else None
    with closing(Broker(EngineSettings(region_snapshot_seconds=100), path)) as made:
        ask(made, "create_region", region="r")
        yield made


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return perform(broker, request_of(operation, arguments), 10)


def put(broker: Broker, *values: tuple[str, str]) -> None:
    changes = [(key, 0, pack(Envelope(topic("r"), BodyKind.TEXT, value))) for key, value in values]
    ask(broker, "change_keys", region="r", changes=changes)


def values(broker: Broker, token: str) -> dict[str, str]:
    answer = ask(broker, "read_keys", region="r", snapshot=token)
    return {key: unpack(payload).body for key, _, _, _, payload in answer["entries"]}


def snapshots(broker: Broker) -> region_snapshots.RegionSnapshots:
    with broker.reading() as reader:
        return reader.snapshots


def test_one_that_is_not_read_is_dropped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(broker_module, "_elapsed_ms", lambda: int(now * 1000))
    put(broker, ("a", "1"))
    token = ask(broker, "open_snapshot", region="r")["snapshot"]
    put(broker, ("a", "2"))
    for _ in range(12):
        now += 99
        assert values(broker, token) == {"a": "1"}
    now += 99  # it is used, and too old all the same
    with pytest.raises(InvalidDestinationException, match="for 100 s"):
        values(broker, token)
    token = ask(broker, "open_snapshot", region="r")["snapshot"]
    now += 101
    put(broker, ("a", "3"))
    with pytest.raises(InvalidDestinationException):
        values(broker, token)
    assert len(snapshots(broker)) == 0


def test_there_are_so_many_and_no_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(broker_module, "_elapsed_ms", lambda: int(now * 1000))
    tokens = [ask(broker, "open_snapshot", region="r")["snapshot"] for _ in range(region_snapshots.MAX_SNAPSHOTS)]
    with pytest.raises(ResourceAllocationException, match="64 snapshots"):
        ask(broker, "open_snapshot", region="r")
    now += 31
    values(broker, tokens[0])
    ask(broker, "open_snapshot", region="r")
    assert len(snapshots(broker)) == region_snapshots.MAX_SNAPSHOTS
    put(broker, ("a", "1"))
    assert values(broker, tokens[0]) == {}
    with pytest.raises(InvalidDestinationException):
        values(broker, tokens[1])


def test_a_restart_ends_it_unless_nothing_has_happened(tmp_path: Path) -> None:
    with closing(Broker(EngineSettings(), str(tmp_path))) as broker:
        ask(broker, "create_region", region="r")
        put(broker, ("a", "1"))
        token = ask(broker, "open_snapshot", region="r")["snapshot"]
    with closing(Broker(EngineSettings(), str(tmp_path))) as broker:
        assert values(broker, token) == {"a": "1"}
        put(broker, ("a", "2"))
        with pytest.raises(InvalidDestinationException, match="there were events since"):
            values(broker, token)


def test_a_store_without_room_drops_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_store, "_MAP_RESERVE_BYTES", 0)
    settings = attrs.evolve(EngineSettings(), max_store_bytes=64 * 1024 * 1024)
    with closing(Broker(settings, str(tmp_path))) as broker:
        ask(broker, "create_region", region="r")
        token = ask(broker, "open_snapshot", region="r")["snapshot"]
        for _ in range(60):  # each frees what the one before has put
            put(broker, *[(f"k{number}", "x" * 1500) for number in range(1000)])
        with pytest.raises(InvalidDestinationException):
            values(broker, token)
        put(broker, ("k", "1"))


def test_a_region_and_a_token_that_are_unknown(broker: Broker) -> None:
    with pytest.raises(InvalidDestinationException, match="no region 'x'"):
        ask(broker, "open_snapshot", region="x")
    ask(broker, "create_region", region="x")
    put(broker, ("a", "1"))
    token = ask(broker, "open_snapshot", region="x")["snapshot"]
    put(broker, ("a", "2"))
    with pytest.raises(InvalidDestinationException):
        values(broker, token)  # it is one of another region


def test_a_child_made_by_fork_ends_no_snapshot_of_its_parent(tmp_path: Path) -> None:
    with closing(Broker(EngineSettings(), str(tmp_path))) as broker:
        ask(broker, "create_region", region="r")
        names = [f"k{number}" for number in range(500)]
        put(broker, *[(name, "old") for name in names])
        token = ask(broker, "open_snapshot", region="r")["snapshot"]
        child = os.fork()
        if child == 0:
            broker.disown(StoreException("in a child"))
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        for number in range(20):
            put(broker, *[(name, f"new {number}") for name in names])
        assert values(broker, token) == dict.fromkeys(names, "old")


@pytest.mark.damages
def test_a_value_that_is_damaged_is_an_error_or_left_out_and_named(tmp_path: Path) -> None:
    with closing(Broker(EngineSettings(message_cache_bytes=0), str(tmp_path))) as broker:
        ask(broker, "create_region", region="r")
        put(broker, ("a", "1"), ("b", "2"), ("c", "3"))
        damage_body(broker, pack(Envelope(topic("r"), BodyKind.TEXT, "2")))
        token = ask(broker, "open_snapshot", region="r")["snapshot"]
        for snapshot in (token, None):
            with pytest.raises(StoreCorruptException, match="the value of key 'b'"):
                ask(broker, "read_keys", region="r", snapshot=snapshot)
            answer = ask(broker, "read_keys", region="r", snapshot=snapshot, skip_damaged=True)
            assert ([each[0] for each in answer["entries"]], answer["damaged"]) == (["a", "c"], ["b"])
            answer = ask(broker, "read_keys", region="r", snapshot=snapshot, values=False)
            assert [each[0] for each in answer["entries"]] == ["a", "b", "c"]
