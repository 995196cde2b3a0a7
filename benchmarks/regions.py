"""What an event costs that many durable clients want which are away, and how fast they come back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.server.raw_client import memory

_WAIT = 600.0
_BODY = b"x" * 100
_EVENTS = 200
_BATCH = 100

#: What client number ``n`` wants: the same as all others, or something besides, so that all have sets of their own.
_WISHES: dict[str, Callable[[int], list[Interest]]] = {
    "that want the same": lambda _: [ALL_KEYS],
    "each with another set of interests": lambda number: [ALL_KEYS, Interest(InterestKind.KEY, f"own {number}")],
}


def _put(broker: Broker, keys: list[str]) -> None:
    changes = [e.KeyChange(key, Wanted.PUT, c.NewMessage(0xFF, _BODY)) for key in keys]
    broker.call(e.ChangeKeys("quotes", changes), _WAIT)


def _away(broker: Broker, clients: int, wishes: Callable[[int], list[Interest]]) -> None:
    """Durable clients that have registered interest, and are away."""
    broker.call(e.MakeRegion("quotes"), _WAIT)
    for number in range(clients):
        connection = broker.call(c.Connect(None), _WAIT)
        broker.submit(e.ConnectDurable(connection, f"client {number}", None, 100, lambda _: None))
        broker.submit(e.RegisterInterest(connection, "quotes", wishes(number), True))
        broker.submit(c.Disconnect(connection))
    broker.call(c.Statistics(), _WAIT)


def _bytes_of(broker: Broker) -> int:
    """What the records of events, and of their messages, take in the store."""
    with broker.store.snapshot() as tables:
        return sum(
            len(key) + len(value)
            for table in ("events", "postings", "entries", "messages", "references")
            for key, value in tables.items(table)
        )


def _cpu(action: Callable[[], object], count: int) -> float:
    started = time.process_time()
    action()
    return (time.process_time() - started) / count * 1e6


def _yardstick(broker: Broker) -> float:
    """The CPU time of a send to a queue without consumers, in batches as large, in microseconds."""
    client = broker.call(c.Connect(None), _WAIT)

    def send() -> None:
        for _ in range(_EVENTS // _BATCH):
            messages = [c.NewMessage(0xFF, _BODY) for _ in range(_BATCH)]
            broker.call(c.Enqueue(client, queue("plain"), messages), _WAIT)

    return _cpu(send, _EVENTS)


def _fan_out(directory: Path, clients: int, wish: str) -> Figure:
    with closing(Broker(EngineSettings(), str(directory / f"{clients} {wish}"))) as broker:
        _away(broker, clients, _WISHES[wish])
        _put(broker, ["IBM"])
        plain = _yardstick(broker)
        before = _bytes_of(broker)
        cpu = _cpu(lambda: [_put(broker, ["IBM"] * _BATCH) for _ in range(_EVENTS // _BATCH)], _EVENTS)
        size = (_bytes_of(broker) - before) / _EVENTS
        return Figure(
            name=f"a put for {clients:,} durable clients that are away, {wish}",
            value=cpu,
            unit="us of CPU",
            yardstick=f"a send to a queue ({plain:.1f} us)",
            ratio=cpu / plain,
            goal="5,000 us and 4 bytes a client at 10,000" if clients == 10_000 else None,
            body_bytes=len(_BODY),
            note=f"{size:,.0f} bytes a put, {size / clients:.2f} a client",
        )


def _by_key(directory: Path, clients: int) -> Figure:
    with closing(Broker(EngineSettings(), str(directory / "by key"))) as broker:
        _away(broker, clients, lambda number: [Interest(InterestKind.KEY, f"key {number}")])
        plain = _yardstick(broker)
        keys = [f"key {number % clients}" for number in range(10 * _BATCH)]
        parts = [keys[first : first + _BATCH] for first in range(0, len(keys), _BATCH)]
        cpu = _cpu(lambda: [_put(broker, part) for part in parts], len(keys))
        return Figure(
            name=f"a put, with {clients:,} clients each of which wants another key",
            value=cpu,
            unit="us of CPU",
            yardstick=f"a send to a queue ({plain:.1f} us)",
            ratio=cpu / plain,
            body_bytes=len(_BODY),
        )


def _reconnect(directory: Path, events: int) -> Iterator[Figure]:
    with closing(Broker(EngineSettings(), str(directory / "reconnect"))) as broker:
        _away(broker, 1, _WISHES["that want the same"])
        for first in range(0, events, _BATCH * 10):
            _put(broker, [f"key {number % 1000}" for number in range(first, min(first + _BATCH * 10, events))])
        got: list[Any] = []
        arrived = threading.Event()
        connection = broker.call(c.Connect(None), _WAIT)

        def sink(handouts: Any) -> None:
            got.extend(handouts)
            if isinstance(got[-1], e.MarkerHandout):
                arrived.set()
            elif isinstance(got[-1], e.EventHandout):
                broker.submit(e.AcknowledgeEvents(connection, got[-1].position))

        started = time.perf_counter()
        pending = broker.call(e.ConnectDurable(connection, "client 0", None, 10_000, sink), _WAIT)
        connected = time.perf_counter() - started
        broker.call(e.ReadyForEvents(connection), _WAIT)
        if not arrived.wait(_WAIT):
            raise AssertionError("the marker did not arrive")
        seconds = time.perf_counter() - started
        positions = [each.position for each in got if isinstance(each, e.EventHandout)]
        if pending != events or len(positions) != events or positions != sorted(set(positions)):
            raise AssertionError(f"{pending} events were pending, and {len(positions)} of {events} arrived in order")
        yield Figure(
            name=f"a durable client comes back to {events:,} events: until it has its marker",
            value=seconds,
            unit="s",
            body_bytes=len(_BODY),
            note=f"{seconds / events * 1e6:.1f} us an event, acknowledged as it comes",
        )
        yield Figure(name=f"its connection, which counts the {events:,} events", value=connected * 1000, unit="ms")


def _memory(directory: Path, clients: int) -> Figure:
    """In a process of its own: what is in memory of this one belongs to other benchmarks."""
    program = f"from benchmarks.regions import paused; paused({str(directory / 'memory')!r}, {clients})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    return Figure(
        name=f"memory of {clients:,} durable clients that are away, with 100 events each",
        value=(after - before) / 2**20,
        unit="MiB",
        goal="below 200 MiB",
        note=f"the process had {before / 2**20:.0f} MiB before, and the pages of the store's file do not count",
    )


def paused(directory: str, clients: int) -> None:
    """Print the memory of this process in bytes, before and with so many clients that are away."""
    with closing(Broker(EngineSettings(), directory)) as broker:
        before = memory(os.getpid(), "RssAnon")
        _away(broker, clients, _WISHES["each with another set of interests"])
        _put(broker, ["IBM"] * 100)
        print(before, memory(os.getpid(), "RssAnon"))


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    for clients in (100, 1_000, 10_000 // share):
        for wish in _WISHES:
            yield _fan_out(directory, clients, wish)
    yield _by_key(directory, 1_000)
    yield from _reconnect(directory, 100_000 // share)
    yield _memory(directory, 10_000 // share)
