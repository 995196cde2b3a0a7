"""How much memory checks and repairs of large messages take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.store.maintenance import Report
from tests.broker_adapter.engine.damaging import SETTINGS, Tables, Txn, check, damage, flipped, overwrite, page_of
from tests.broker_adapter.engine.driving import WAIT, connect, send


def large_store(path: Path) -> None:
    """100 messages of 1 MB."""
    broker = Broker(SETTINGS, str(path))
    client = connect(broker)
    for number in range(10):
        send(broker, client, "q", *(b"%d" % number + bytes(1_000_000) for _ in range(10)))
    broker.close()


def peak(act: Callable[[], Any]) -> int:
    """Most bytes that Python has at once meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_repair_of_large_messages_takes_little_memory(tmp_path: Path) -> None:
    large_store(tmp_path)

    def all_bodies(txn: Txn, tables: Tables) -> None:
        for key, value in list(txn.cursor(db=tables["messages"])):
            txn.put(key, flipped(value), db=tables["messages"])

    damage(tmp_path, all_bodies)
    reports: list[Report] = []
    assert peak(lambda: reports.append(check(tmp_path))) < 30_000_000
    assert peak(lambda: reports.append(check(tmp_path, repair=True))) < 60_000_000
    for report in reports:
        assert len(report.findings) >= 100
        assert not any(finding.changes for finding in report.findings)
    assert check(tmp_path).is_sound
    assert check(tmp_path).summary.quarantined >= 100


@pytest.mark.damages
def test_the_check_of_a_running_engine_keeps_no_bodies(tmp_path: Path) -> None:
    large_store(tmp_path)

    def all_entries(txn: Txn, tables: Tables) -> None:
        for key, _ in list(txn.cursor(db=tables["entries"])):
            txn.delete(key, db=tables["entries"])

    damage(tmp_path, all_entries)
    broker = Broker(SETTINGS, str(tmp_path))
    assert peak(lambda: broker.request("check", {}, WAIT)) < 30_000_000
    assert peak(broker.check) < 30_000_000
    broker.close()


def test_a_rebuilt_file_of_large_messages_takes_little_memory(tmp_path: Path) -> None:
    large_store(tmp_path)
    overwrite(tmp_path, page_of(tmp_path, "catalog", 2)[0])
    assert peak(lambda: check(tmp_path, repair=True)) < 60_000_000
    assert check(tmp_path).is_sound
