"""A group of servers: what it costs the clients of one, and how long a takeover takes.

``make bench-group``, or ``python -m benchmarks.groups [--json] [--quick]``.  Fetches an etcd where there is none.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import copies, modes
from benchmarks.programs import cpu_of
from benchmarks.report import Figure, beside, show
from sdk import ConnectionFactory
from tests.interop import install
from tests.interop.brokers.brokers import free_port

_TURNS: Final = 5
_WAIT: Final = 60.0


class _Group:
    """Nodes, in processes of their own, and an etcd.

    Args:
        directory: for the stores.
        nodes: how many.
        lease: seconds.
    """

    def __init__(self, directory: Path, nodes: int, lease: float = 2.0) -> None:
        self._directory = directory
        self._lease = lease
        directory.mkdir()
        client, peer = free_port(), free_port()
        self._coordinator = f"etcd://127.0.0.1:{client}"
        etcd = [str(install.etcd()), "--data-dir", str(directory / "etcd")]
        etcd += ["--listen-client-urls", f"http://127.0.0.1:{client}"]
        etcd += ["--advertise-client-urls", f"http://127.0.0.1:{client}"]
        etcd += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
        self._etcd = subprocess.Popen(etcd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(2)
        self.ports = {f"n{number}": free_port() for number in range(1, nodes + 1)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("n1", "--new-group")
        self.wait_for(1)
        for name in list(self.ports)[1:]:
            self.start(name)
        self.wait_for(nodes)

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.processes.values(), self._etcd):
            each.kill()
            each.wait()

    @property
    def url(self) -> str:
        return f"failover:({','.join(f'amqp://127.0.0.1:{port}' for port in self.ports.values())})"

    def start(self, name: str, *more: str) -> None:
        address = f"127.0.0.1:{self.ports[name]}"
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(self._directory / name)]
        command += ["--group", "bench", "--node", name, "--coordinator", self._coordinator, "--advertise", address]
        command += ["--listen", address, "--lease-seconds", str(self._lease), *more]
        self.processes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def status(self) -> dict[str, Any]:
        with ConnectionFactory(self.url).create_connection() as connection:
            found: dict[str, Any] = connection.request("copies", {})["group"]
        return found

    def wait_for(self, nodes: int) -> dict[str, Any]:
        """Wait until so many nodes are in sync."""
        deadline = time.monotonic() + _WAIT
        while True:
            try:
                found = self.status()
                if len(found["in_sync"]) >= nodes:
                    return found
            except Exception:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)


def _beside_a_server(directory: Path, messages: int) -> Iterator[Figure]:
    """AUTO end to end and synchronous sends, with one further node in sync, beside a single server."""
    rates: dict[str, list[float]] = {"single": [], "group": []}
    costs: dict[str, list[float]] = {"single": [], "group": [], "second": []}
    medians: dict[str, list[float]] = {"single": [], "group": []}
    with ExitStack() as stack:
        single, process = stack.enter_context(modes.server(directory / "single"))
        group = stack.enter_context(_Group(directory / "group", 2))
        first, second = (psutil.Process(each.pid) for each in group.processes.values())
        places = {"single": (single, process), "group": (group.url, first)}
        for turn in range(_TURNS):
            for name, (url, server) in places.items():
                before, before_second = cpu_of([server]), cpu_of([second])
                rates[name].append(copies.end_to_end(url, f"stream {turn}", messages))
                costs[name].append((cpu_of([server]) - before) / messages * 1e6)
                if name == "group":
                    costs["second"].append((cpu_of([second]) - before_second) / messages * 1e6)
        for turn in range(_TURNS):
            for name, (url, _) in places.items():
                medians[name].append(statistics.median(copies.times_of_sends(url, f"sync {turn}", 200)))
    yield beside(
        *("end to end, AUTO, one further node in sync", rates["group"], rates["single"], "messages/s"),
        "a single server",
        f"us CPU a message: primary {statistics.median(costs['group']):.0f}, the other node"
        f" {statistics.median(costs['second']):.0f}, a single server {statistics.median(costs['single']):.0f}; ",
        goal="at least 0.6",
        body_bytes=modes.BODY_BYTES,
        window=modes.WINDOW,
        producers=1,
        consumers=1,
    )
    yield beside(
        *("synchronous send, p50, one further node in sync", medians["group"], medians["single"], "ms"),
        "a single server",
        goal="at most 2.5",
        body_bytes=modes.BODY_BYTES,
        producers=1,
    )


def _takeover(directory: Path, lease: float, number: signal.Signals, goal: str, rounds: int) -> Figure:
    """From the signal to the first message at a client that sends and receives, three nodes."""
    times = []
    with (
        _Group(directory, 3, lease) as group,
        ConnectionFactory(group.url).create_connection() as connection,
        connection.create_session() as session,
    ):
        connection.start()
        queue = session.create_queue("takeover")
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        for turn in range(rounds):
            primary = group.wait_for(3)["primary"]
            began = time.perf_counter()
            group.processes[primary].send_signal(number)
            producer.send(str(turn))
            while True:
                message = consumer.receive(timeout=_WAIT)
                if message is None:
                    raise TimeoutError("no message comes after the takeover")
                if message.body == str(turn):
                    break
            times.append(time.perf_counter() - began)
            group.processes[primary].wait(_WAIT)
            group.start(primary)
    return Figure(
        name=f"takeover, {number.name}, lease of {lease:g} s, to the first message at a client",
        value=statistics.median(times),
        unit="s",
        goal=goal,
        note=f"p50 of {rounds}; most {max(times):.2f}",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    yield from _beside_a_server(directory, 40_000 // share)
    rounds = max(3, 30 // share)
    yield _takeover(directory / "kill", 2.0, signal.SIGKILL, "below 3 s", rounds)
    yield _takeover(directory / "short", 0.5, signal.SIGKILL, "below 1 s", rounds)
    yield _takeover(directory / "stop", 2.0, signal.SIGTERM, "below 0.3 s", rounds)


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.groups", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a tenth of it: to see that it runs")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # servers are killed here
    directory = Path(tempfile.mkdtemp())
    try:
        show(list(figures(directory, 10 if options.quick else 1)), options.json)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
