"""A process with regions and a durable client is killed at any moment: nothing that was confirmed is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk
from tests.broker_adapter.engine.driving import connect, drained, payloads
from tests.broker_adapter.engine.regions.values import values_of

pytestmark = pytest.mark.crash

VALUED = (Operation.CREATE, Operation.UPDATE)


def lines_of(directory: Path, seed: int, seconds: float) -> list[list[str]]:
    """What the program has printed before it was killed, in whole lines."""
    command = [sys.executable, "-m", "tests.crash.region_writer", str(directory), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline()  # it is at work
        time.sleep(seconds)
        running.kill()
        return [line.split() for line in running.stdout.read().splitlines(keepends=True) if line.endswith("\n")]


def check_conflated(slow: Desk, newest: dict[str, int]) -> None:
    """A client that has processed nothing yet has the newest update of each key, and each event is accounted for."""
    before = slow.described()
    slow.ready()
    last: dict[str, e.EventHandout] = {}
    for each in slow.handouts():
        older = last.get(each.key)
        assert older is None or (older.operation, each.operation) != (Operation.UPDATE, Operation.UPDATE)
        last[each.key] = each
    assert all(last[key].position == position for key, position in newest.items())
    if last:
        slow.acknowledge(max(each.position for each in last.values()))
    found = slow.described()
    assert (found.size, found.queued, found.is_exact) == (0, before.queued, True)
    slow.lose()


def check_transactions(broker: Broker, values: dict[tuple[str, str], bytes], committed: int) -> None:
    """A commit is there as a whole, in both regions and in the queue, or not at all."""
    found = values.get(("quotes", "transaction"))
    assert values.get(("orders", "transaction")) == found
    sent = payloads(drained(broker, connect(broker), "sent"))
    assert (sent[-1] if sent else None) == found
    assert int(found or 0) >= committed, "a confirmed commit is lost"


def test_confirmed_changes_and_queued_events_survive_kills(tmp_path: Path) -> None:
    acknowledged = unknown = committed = 0
    events: dict[int, str] = {}  # version → key and value, of what was confirmed
    for round_ in range(6):
        for line in lines_of(tmp_path, round_ + 1, random.uniform(0.05, 0.6)):
            if line[0] == "put":
                events[int(line[3])] = f"{line[1]}={line[2]}"
            elif line[0] == "destroy":
                events[int(line[2])] = line[1]
            elif line[0] == "acknowledged":
                acknowledged = max(acknowledged, int(line[1]))
            elif line[0] == "commit":
                committed = int(line[1])
        assert check_store(tmp_path, EngineSettings()).is_sound
        broker = Broker(EngineSettings(), str(tmp_path))
        desk = Desk(broker, window=100_000)
        pending = desk.pending
        desk.ready()
        got = desk.events()
        assert got.pop() == "marker"
        assert len(got) == pending
        positions = [each.position for each in desk.handouts()]
        assert positions == sorted(set(positions)), "in order, each once"
        assert not [each for each in positions if each <= acknowledged], "processed, and confirmed"
        expected = {version for version in events if version > acknowledged}
        # The last acknowledgement may have been done and not been answered.
        cursor = positions[0] - 1 if positions else broker._state.events.head
        assert {each for each in expected if each > cursor} <= set(positions), "a confirmed event is not queued"
        found = {each.position: each for each in desk.handouts()}
        for version, text in events.items():
            if version in found and "=" in text:
                assert f"{found[version].key}={found[version].payload.decode()}" == text
        if cursor > max(events, default=0):
            unknown = cursor  # an event may have been processed before its change was confirmed
        events |= {
            position: f"{each.key}={each.payload.decode()}" if each.operation in VALUED else each.key
            for position, each in found.items()
        }
        values = values_of(broker)
        check_transactions(broker, values, committed)
        last = {}
        for version, text in sorted(events.items()):
            last[text.partition("=")[0]] = version, text
        for key, (version, text) in last.items():
            if version > unknown and key != "transaction":  # whose versions no commit tells
                assert values.get(("quotes", key)) == (text.partition("=")[2].encode() if "=" in text else None)
        desk.lose()
        newest = {each.key: each.position for each in found.values()}
        check_conflated(Desk(broker, "slow", window=100_000, conflation="true"), newest)
        broker.close()
