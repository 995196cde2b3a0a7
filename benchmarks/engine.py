"""The engine itself, in this process."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ack_modes import Outcome
from benchmarks.report import Figure
from benchmarks.yardsticks import lmdb_commit_p50, lmdb_loop
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory

_WAIT = 60.0


def enqueue_and_acknowledge(directory: Path) -> Figure:
    """Batches of 100: an enqueue with its commit, the deliveries, an acknowledgement with its commit."""
    body, batch, messages = b"x" * 300, 100, 100_000
    raw = lmdb_loop(directory / "raw", body, messages, batch)
    broker = Broker(EngineSettings(), str(directory / "engine"))
    client = broker.call(c.Connect(None), _WAIT)
    got: list[c.Handout] = []
    consumer = broker.call(c.Attach(client, queue("q"), got.extend), _WAIT)
    broker.call(c.Credit(consumer, messages), _WAIT)
    seen = 0
    cpu = time.process_time()
    started = time.perf_counter()
    for _ in range(messages // batch):
        broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(0xFF, body) for _ in range(batch)]), _WAIT)
        broker.call(c.Settle(consumer, [handout.number for handout in got], Outcome.ACCEPTED), _WAIT)
        seen += len(got)
        got.clear()
    rate = messages / (time.perf_counter() - started)
    cpu = time.process_time() - cpu
    broker.close()
    assert seen == messages, f"{seen} of {messages} messages were delivered"
    return Figure(
        name="engine: enqueue + acknowledge, batches of 100",
        value=rate,
        unit="messages/s",
        yardstick=f"raw LMDB loop {raw:,.0f}/s",
        ratio=rate / raw,
        goal="at least 0.5",
        body_bytes=300,
        producers=1,
        consumers=1,
        note=f"{cpu / messages * 1e6:.1f} us CPU a message",
    )


def synchronous_send(directory: Path) -> Figure:
    """The median of a persistent send that returns when the message is on disk, through the SDK, embedded."""
    body, sends = "x" * 1024, 2000
    raw = lmdb_commit_p50(directory / "raw", body.encode(), sends)
    seconds = []
    with (
        ConnectionFactory(f"embedded:{directory / 'engine'}").create_connection() as connection,
        connection.create_session() as session,
    ):
        producer = session.create_producer(session.create_queue("q"))
        for _ in range(sends):
            started = time.perf_counter()
            producer.send(body)
            seconds.append(time.perf_counter() - started)
    p50 = statistics.median(seconds)
    return Figure(
        name="synchronous send p50, SDK, embedded",
        value=p50 * 1e6,
        unit="us",
        yardstick=f"raw synced LMDB commit {raw * 1e6:.0f} us",
        ratio=p50 / raw,
        goal="at most 2",
        body_bytes=1024,
        producers=1,
    )


def restart(directory: Path, messages: int = 1_000_000) -> Figure:
    """From opening a store with a million messages to the first one delivered."""
    body = b"x" * 300
    path = str(directory / "million")
    broker = Broker(EngineSettings(), path)
    client = broker.call(c.Connect(None), _WAIT)
    for _ in range(messages // 5000):
        broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(0xFF, body)] * 5000), _WAIT)
    broker.close()
    arrived = threading.Event()

    def sink(_handouts: Sequence[c.Handout]) -> None:
        arrived.set()

    started = time.perf_counter()
    broker = Broker(EngineSettings(), path)
    opened = time.perf_counter() - started
    client = broker.call(c.Connect(None), _WAIT)
    consumer = broker.call(c.Attach(client, queue("q"), sink), _WAIT)
    broker.call(c.Credit(consumer, 1), _WAIT)
    arrived.wait(_WAIT)
    first = time.perf_counter() - started
    broker.close()
    return Figure(
        name="restart over a million messages, to the first delivery",
        value=first,
        unit="s",
        goal="under 1 s",
        body_bytes=300,
        consumers=1,
        note=f"opened in {opened * 1000:.0f} ms",
    )
