"""What a cycle loads and scans, and in which order it comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.matching import Matching
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import (
    SELECTED,
    Engines,
    attach,
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
    monkeypatch.setattr("broker_adapter.engine.loading.SCAN_SECONDS", -1.0)
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
    monkeypatch.setattr("broker_adapter.engine.loading.CYCLE_LOADS", 20)
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
