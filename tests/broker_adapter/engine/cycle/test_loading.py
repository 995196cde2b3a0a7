"""What a cycle loads and scans, and in which order it comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle.loading import SCAN_BYTES, _Slice
from broker_adapter.engine.records.layout import entry_key
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import (
    SELECTED,
    WAIT,
    Engines,
    attach,
    change,
    connect,
    depth,
    drained,
    lettered,
    payloads,
    send,
)


def test_a_backlog_far_beyond_the_window_keeps_its_order(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    for start in range(0, 1000, 100):
        send(broker, client, "q", *range(start, start + 100), persistent=start % 200 == 0)
    assert payloads(drained(broker, client, "q")) == [str(number).encode() for number in range(1000)]


def test_priorities_hold_over_the_whole_backlog(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    send(broker, client, "q", *["low"] * 50, priority=1)
    send(broker, client, "q", *["high"] * 50, priority=9)
    send(broker, client, "q", *["middle"] * 50, priority=4, persistent=False)
    assert payloads(drained(broker, client, "q")) == [b"high"] * 50 + [b"middle"] * 50 + [b"low"] * 50


def test_a_search_whose_selector_takes_long_goes_on_in_the_next_cycle(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.cycle.loading.SCAN_SECONDS", -1.0)
    broker = engines.start()
    client = connect(broker)
    bodies = lettered(60)
    send(broker, client, "q", *bodies)
    scans = 0
    scanned = Matching.scanned

    def counted(self: Matching, *arguments: Any) -> None:
        nonlocal scans
        scans += 1
        scanned(self, *arguments)

    monkeypatch.setattr(Matching, "scanned", counted)
    handouts = drained(broker, client, "q", selector=SELECTED)
    assert payloads(handouts) == bodies[::3]
    assert scans >= 60
    assert depth(broker, "q") == 60


def test_a_cycle_loads_a_bounded_number_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.cycle.loading.CYCLE_LOADS", 20)
    limits = EngineSettings(window_messages=10)
    broker = Broker(limits, str(tmp_path))
    for number in range(10):
        send(broker, connect(broker), f"q{number}", *map(str, range(15)))
    broker.close()
    broker = Broker(limits, str(tmp_path))
    client = connect(broker)
    attached = [attach(broker, client, f"q{number}") for number in range(10)]
    loads = [0]
    read, cycle = broker._loading._read_sound, broker._cycle

    def counted(*arguments: Any) -> Any:
        loads[-1] += 1
        return read(*arguments)

    def begun() -> None:
        loads.append(0)
        cycle()

    monkeypatch.setattr(broker._loading, "_read_sound", counted)
    monkeypatch.setattr(broker, "_cycle", begun)
    broker.submit_all([c.Credit(consumer, 15) for consumer, _ in attached])
    for _, inbox in attached:
        assert payloads(inbox.wait_for(15)) == [str(number).encode() for number in range(15)]
    assert max(loads) <= 5, "two windows are 20 entries, and ends of others may come with them"
    broker.close()


def large(number: int) -> bytes:
    return pack(Envelope(queue("q"), BodyKind.TEXT, f"{number} " + "x" * (SCAN_BYTES // 3), {"third": True}))


def test_a_scan_reads_a_bounded_part_of_large_messages_at_once(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = engines.start()
    client = connect(broker)
    bodies = [large(number) for number in range(8)]
    for body in bodies:
        send(broker, client, "q", body)
    examined: list[int] = []
    selectables = broker._loading._selectables

    def counted(entries: Any, pending: Any) -> Any:
        examined.append(sum(entry.size for entry in entries))
        return selectables(entries, pending)

    monkeypatch.setattr(broker._loading, "_selectables", counted)
    assert payloads(drained(broker, client, "q", selector=SELECTED)) == bodies
    assert max(examined) <= SCAN_BYTES
    assert sum(examined) >= sum(map(len, bodies))


@pytest.mark.parametrize("seconds", [-1.0, 10.0])
def test_what_comes_in_for_consumers_with_selectors_is_matched_also_where_each_takes_long(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("broker_adapter.engine.cycle.loading.SELECT_SECONDS", seconds)
    broker = engines.start()
    client = connect(broker)
    inboxes = [
        attach(broker, client, name, credit=100, selector=selector)[1]
        for name in ("q", "r")
        for selector in (SELECTED, "third = FALSE")
    ]
    bodies = lettered(60)
    for name in ("q", "r"):
        send(broker, client, name, *bodies)
    for number, inbox in enumerate(inboxes):
        expected = [body for index, body in enumerate(bodies) if (index % 3 == 0) is (number % 2 == 0)]
        assert payloads(inbox.wait_for(len(expected))) == expected


def test_large_messages_that_come_in_for_consumers_with_selectors_are_read_in_parts(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    _, inbox = attach(broker, client, "q", credit=100, selector=SELECTED)
    bodies = [large(number) for number in range(8)]
    send(broker, client, "q", *bodies)
    assert payloads(inbox.wait_for(8)) == bodies


@pytest.mark.damages
def test_what_a_consumer_with_a_selector_meets_damaged_is_passed_over(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    bodies = lettered(9)
    send(broker, client, "q", *bodies)
    number = broker._state.directory.by_destination[queue("q")].id
    broker.close()
    disk.broker = None
    assert disk.path is not None
    change(disk.path, "entries", entry_key(number, 5, 4), lambda value: bytes(len(value)))
    broker = disk.start()
    client = connect(broker)
    assert payloads(drained(broker, client, "q", selector=SELECTED)) == [bodies[0], bodies[6]]
    assert depth(broker, "q") == 8
    assert broker.call(c.Statistics(), WAIT).quarantined == 1


@pytest.mark.damages
def test_counters_that_were_wrong_are_corrected_and_the_log_says_so(
    disk: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", *range(5))
    key = entry_key(broker._state.directory.by_destination[queue("q")].id, 5, 3)
    broker.close()
    disk.broker = None
    assert disk.path is not None
    store = LmdbStore(disk.path, EngineSettings())
    store.apply([("entries", key, None)])
    store.close()
    broker = disk.start()
    assert payloads(drained(broker, connect(broker), "q")) == [b"0", b"1", b"3", b"4"]
    assert "they are corrected; run 'holdfast check'" in caplog.text
    assert depth(broker, "q") == 4
    assert broker.call(c.Statistics(), WAIT).miscounted == 1


def test_the_time_of_a_slice_begins_when_it_is_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("broker_adapter.engine.cycle.loading.time.monotonic", lambda: now)
    is_late = _Slice()
    now = 200.0
    assert not is_late()
    now = 200.009
    assert not is_late()
    now = 200.011
    assert is_late()
