"""Damaged entries: written again where they are in memory, put aside where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import entry_key
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    change,
    connect,
    depth,
    drained,
    full_up,
    payloads,
    send,
)


@pytest.mark.damages
def test_a_damaged_entry_is_kept_aside_and_the_others_are_delivered(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "one", "two", "three")
    number = broker._state.directory.by_destination[queue("q")].id
    broker.close()
    disk.broker = None
    assert disk.path is not None
    change(disk.path, "entries", entry_key(number, 5, 2), lambda value: bytes(len(value)))
    broker = disk.start()
    client = connect(broker)
    assert payloads(drained(broker, client, "q")) == [b"one", b"three"]
    assert depth(broker, "q") == 2
    assert broker.call(c.Statistics(), WAIT).quarantined == 1


@pytest.mark.damages
def test_a_damaged_entry_for_which_there_is_no_room_counts_once(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(50))
    store = broker.store
    with store.snapshot() as tables:
        key, value = list(tables.items("entries"))[2]
    store.apply([("entries", key, value[:-1] + bytes((value[-1] ^ 1,)))])
    env = store._env
    size = env.info()["map_size"]
    with broker._runner:
        env.set_mapsize((env.info()["last_pgno"] + 100) * env.stat()["psize"])
        full_up(store)
        found = store.read_entries(int.from_bytes(key[:4]), 0, 100, 100)
        assert found.corrupt == [key]
        assert [broker._stores.set_aside(found.corrupt) for _ in range(3)] == [[key], [], []]
        assert store.quarantined() == 0
        env.set_mapsize(size)
        assert broker._stores.set_aside(found.corrupt) == []
        assert store.quarantined() == 1
        assert broker._stores.set_aside(found.corrupt) == [key], "it is not known any more: another one would count"
    broker.close()


@pytest.mark.damages
def test_a_damaged_entry_that_is_in_memory_is_written_again(disk: Engines, caplog: pytest.LogCaptureFixture) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "one", "two")
    number = broker._state.directory.by_destination[queue("q")].id
    key = entry_key(number, 5, 2)
    with broker.reading() as reader:
        broker.store.apply([("entries", key, b"damaged")])
        found = reader.entries(number, 0, 9, 9)
    assert [each.position for each in found.entries] == [1, 2]
    assert found.corrupt == []
    assert f"entry {key.hex()} fails its checksum; it is in memory" in caplog.text


@pytest.mark.damages
def test_a_damaged_entry_that_is_in_memory_stops_nothing_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "one", "two")

    def refuse(_changes: object) -> None:
        raise ResourceAllocationException("the disk is full")

    number = broker._state.directory.by_destination[queue("q")].id
    key = entry_key(number, 5, 2)
    with broker.reading() as reader:
        broker.store.apply([("entries", key, b"damaged")])
        monkeypatch.setattr(broker.store, "apply", refuse)
        found = reader.entries(number, 0, 9, 9)
        assert found.corrupt == [key]
        assert [each.position for each in found.entries] == [1]
    assert broker.failed is None
    broker.close()


@pytest.mark.damages
def test_a_damaged_entry_of_a_range_is_put_aside_and_the_counters_follow(disk: Engines) -> None:
    broker = disk.start(window_messages=10)
    send(broker, connect(broker), "q", *range(50))
    found = broker._state.directory.by_destination[queue("q")]
    with broker.reading():
        broker.store.apply([("entries", entry_key(found.id, 5, 40), b"damaged")])
        entries, after = broker._reads.of_range(c.Range(found.id, 39, 41, 9, frozenset((39, 41))))
    assert ([each.position for each in entries], after) == ([39, 41], None)
    assert found.depth == 49
