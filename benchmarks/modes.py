"""Persistent 1 KiB messages through the SDK: send, receive and end to end, in each mode, embedded and over AMQP."""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Figure
from sdk import AcknowledgeMode, ConnectionFactory, Message, Session

BODY_BYTES = 1024
WINDOW = 1000
_PADDING = "x" * (BODY_BYTES - 8)
_WAIT = 60.0
#: Messages of one transaction, or of one CLIENT acknowledgement.
BATCH = 100


class OrderError(Exception):
    """A message was lost, doubled or came out of order."""


def send(url: str, name: str, messages: int, mode: AcknowledgeMode, *, is_topic: bool = False) -> dict[str, float]:
    """Send numbered messages, asynchronously or in transactions; returns when it began and ended, and the CPU time."""
    with ConnectionFactory(url).create_connection() as connection, connection.create_session(mode) as session:
        producer = session.create_producer(session.create_topic(name) if is_topic else session.create_queue(name))
        answered = threading.Semaphore(0)
        cpu, started = _cpu(), time.time()
        if mode is AcknowledgeMode.TRANSACTED:
            for number in range(messages):
                producer.send(f"{number:08d}{_PADDING}")
                if number % BATCH == BATCH - 1:
                    session.commit()
            session.commit()
        else:
            last = messages - 1
            errors: list[Exception] = []

            def completed(message: Message, error: Exception | None) -> None:
                if error is not None:
                    errors.append(error)
                if error is not None or int(message.body[:8]) == last:
                    answered.release()

            for number in range(messages):
                producer.send(f"{number:08d}{_PADDING}", on_completion=completed)
            if not answered.acquire(timeout=_WAIT):
                raise TimeoutError("the sends were not confirmed")
            if errors:
                raise errors[0]
        return {"started": started, "ended": time.time(), "cpu": _cpu() - cpu}


def receive(url: str, name: str, messages: int, mode: AcknowledgeMode) -> dict[str, float]:
    """Receive them, and check that each comes once and in order."""
    with ConnectionFactory(url).create_connection() as connection, connection.create_session(mode) as session:
        connection.start()
        consumer = session.create_consumer(session.create_queue(name))
        acknowledge = _acknowledger(session, mode)
        started, cpu = 0.0, 0.0
        for number in range(messages):
            message = consumer.receive(timeout=_WAIT)
            if message is None or int(message.body[:8]) != number:
                raise OrderError(f"expected message {number}, got {message and message.body[:8]!r}")
            if number == 0:
                started, cpu = time.time(), _cpu()
            acknowledge(number, message)
        acknowledge(BATCH - 1, message)
        return {"started": started, "ended": time.time(), "cpu": _cpu() - cpu}


def _acknowledger(session: Session, mode: AcknowledgeMode) -> Callable[[int, Message], None]:
    if mode is AcknowledgeMode.TRANSACTED:
        return lambda number, _message: session.commit() if number % BATCH == BATCH - 1 else None
    if mode is AcknowledgeMode.CLIENT:
        return lambda number, message: message.acknowledge() if number % BATCH == BATCH - 1 else None
    if mode is AcknowledgeMode.INDIVIDUAL:
        return lambda _number, message: message.acknowledge()
    return lambda _number, _message: None


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


@contextmanager
def server(data: Path) -> Iterator[tuple[str, psutil.Process]]:
    """``holdfast serve`` in a process of its own: its URL and the process."""
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(data)]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"ready on (amqp://\S+)", line)
        if found is None:
            raise RuntimeError(f"the server said {line!r}")
        yield found[1], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


def _run(what: str, url: str, name: str, messages: int, mode: str, results: Any) -> None:
    work = {"send": send, "receive": receive}[what]
    try:
        results.put((what, work(url, name, messages, AcknowledgeMode[mode])))
    except Exception as error:
        results.put((what, error))


def together(url: str, name: str, messages: int, mode: AcknowledgeMode, *works: str) -> dict[str, dict[str, float]]:
    """Run these at once: over AMQP each in a process of its own, embedded in threads."""
    results: Any
    workers: list[Any]
    if url.startswith("embedded:"):
        results = queue.Queue()
        make: Any = threading.Thread
    else:
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        make = context.Process
    workers = [make(target=_run, args=(work, url, name, messages, mode.name, results)) for work in works]
    for worker in workers:
        worker.start()
    found = {}
    for _ in works:
        what, result = results.get(timeout=3 * _WAIT)
        if isinstance(result, Exception):
            raise result
        found[what] = result
    for worker in workers:
        worker.join(_WAIT)
    return found


def every_mode(url: str, where: str, messages: int, server_process: psutil.Process | None) -> Iterator[Figure]:
    """Send, receive and end to end in each mode."""
    for mode in AcknowledgeMode:
        name = f"bench.{mode.name}"
        sent = together(url, name, messages, mode, "send")["send"]
        received = together(url, name, messages, mode, "receive")["receive"]
        for what, times, producers, consumers in (("send", sent, 1, 0), ("receive", received, 0, 1)):
            yield Figure(
                name=f"{what}, {mode.name}, {where}",
                value=messages / (times["ended"] - times["started"]),
                unit="messages/s",
                body_bytes=BODY_BYTES,
                window=WINDOW,
                producers=producers,
                consumers=consumers,
                note="" if server_process is None else f"{times['cpu'] / messages * 1e6:.1f} us CPU a message",
            )
        before = server_process.cpu_times() if server_process is not None else None
        both = together(url, name, messages, mode, "receive", "send")
        ended = max(times["ended"] for times in both.values())
        note = ""
        if server_process is not None and before is not None:
            after = server_process.cpu_times()
            used = after.user + after.system - before.user - before.system
            note = "us CPU a message: " + ", ".join(
                f"{what} {seconds / messages * 1e6:.1f}"
                for what, seconds in (
                    ("producer", both["send"]["cpu"]),
                    ("server", used),
                    ("consumer", both["receive"]["cpu"]),
                )
            )
        yield Figure(
            name=f"end to end, {mode.name}, {where}",
            value=messages / (ended - both["send"]["started"]),
            unit="messages/s",
            goal="at least 20,000" if mode is AcknowledgeMode.AUTO and server_process is not None else None,
            body_bytes=BODY_BYTES,
            window=WINDOW,
            producers=1,
            consumers=1,
            note=note,
        )


def server_memory(directory: Path, messages: int = 1_000_000) -> Figure:
    """Resident memory of a server with a million messages waiting, a client having just sent them."""
    with server(directory / "waiting") as (url, process):
        before = process.memory_info().rss
        for part in range(10):
            together(url, f"waiting.{part % 2}", messages // 10, AcknowledgeMode.AUTO, "send")
        after = process.memory_info().rss
        # Pages of the store that the system keeps mapped are not the server's own: it takes them back at will.
        mapped = sum(region.rss for region in process.memory_maps() if region.path.endswith("data.mdb"))
    return Figure(
        name="memory of the server, a million messages waiting",
        value=(after - mapped) / 2**20,
        unit="MiB",
        goal="under 300",
        body_bytes=BODY_BYTES,
        window=WINDOW,
        producers=1,
        note=f"before {before / 2**20:.0f} MiB; {mapped / 2**20:.0f} MiB of the mapped store are not counted",
    )
