"""A group of three servers under a load, while its primary is killed, cut off, and told to hand over; with a picture.

A producer sends one message after the other, and waits for each confirmation; a consumer receives them in transactions.
Meanwhile the primary is killed and started again, then cut off from the clients, the other nodes and the coordinator at
once, and the last primary hands over.  The picture has how long each send took, and how many messages came and went.
At the end no message that was confirmed is lost, and none was received twice.

``make demo-group``, or ``python -m samples.demo.group --etcd PROGRAM``, or ``--coordinator URL`` of an etcd that runs.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

from samples.demo.servers import Server, check, console
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    TransactionRolledBackException,
)

mpl.use("Agg")
from matplotlib import pyplot as plt

PICTURE = Path("build", "demo", "group.png")
QUEUE = "orders"
NAMES = ("n1", "n2", "n3")
#: Clients give up a node that says nothing for so long, in seconds.
OPTIONS = "idle_timeout_seconds=2&connect_timeout_seconds=2"
#: The longest wait, in seconds.
LONGEST = 60.0
#: Most messages of a transaction.
BATCH = 20


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until something listens on a port."""
    deadline = time.monotonic() + LONGEST
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Wire:
    """A way to a port that can be cut: what is sent meanwhile is held back, and no end hears of it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._carry, args=(far, near), daemon=True).start()
        self._carry(near, far)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Node:
    """A node of the group, and the ways to it and from it to the coordinator."""

    def __init__(self, name: str, directory: str, coordinator: int) -> None:
        port = free_port()
        self.way, self.coordinator = Wire(port), Wire(coordinator)
        self.server = Server(
            f"{directory}/{name}",
            *("--group", "demo", "--node", name, "--coordinator", f"etcd://127.0.0.1:{self.coordinator.port}"),
            *("--advertise", f"127.0.0.1:{self.way.port}"),
            port=port,
        )

    def cut_off(self) -> None:
        """Cut it off from all others."""
        self.way.cut()
        self.coordinator.cut()

    def mend(self) -> None:
        """Let it be reached again."""
        self.way.mend()
        self.coordinator.mend()


class Load:
    """A producer and a consumer, and what they see; times are in seconds since the beginning."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._began = time.monotonic()
        self._is_over, self._all_sent = threading.Event(), threading.Event()
        self.sends: list[tuple[float, float]] = []  #: when each began, and how long it took
        self.received: list[tuple[float, int]] = []  #: when each was committed, and its number
        self.ended: list[str] = []  #: which of the two have done all, without an error
        self._producer = threading.Thread(target=self._send, daemon=True)
        self._consumer = threading.Thread(target=self._receive, daemon=True)
        self._producer.start()
        self._consumer.start()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def end(self) -> None:
        """Send no more, and wait until all was received."""
        self._is_over.set()
        self._producer.join(LONGEST)
        self._all_sent.set()  # behind the last confirmation, which the consumer would not know of else
        self._consumer.join(LONGEST)

    def _connect(self) -> Connection:
        return ConnectionFactory(self._url).create_connection()

    def _send(self) -> None:
        with self._connect() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue(QUEUE))
            while not self._is_over.is_set():
                began = self.now
                producer.send(str(len(self.sends)))
                self.sends.append((began, self.now - began))
        self.ended.append("producer")

    def _receive(self) -> None:
        with (
            self._connect() as connection,
            connection.create_session(AcknowledgeMode.TRANSACTED) as session,
            session.create_consumer(session.create_queue(QUEUE)) as consumer,
        ):
            connection.start()
            numbers: list[int] = []
            while numbers or not self._all_sent.is_set() or len(self.received) < len(self.sends):
                try:
                    numbers = []
                    while len(numbers) < BATCH and (message := consumer.receive(timeout=0.05)) is not None:
                        numbers.append(int(message.body))
                    session.commit()
                except TransactionRolledBackException:
                    continue  # the messages come again
                now = self.now
                self.received += [(now, number) for number in numbers]
        self.ended.append("consumer")


class Group:
    """The three nodes."""

    def __init__(self, directory: str, coordinator: int) -> None:
        self.nodes = {name: Node(name, directory, coordinator) for name in NAMES}
        self.url = (
            f"failover:({','.join(f'amqp://127.0.0.1:{each.way.port}' for each in self.nodes.values())})?{OPTIONS}"
        )

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the primary something."""
        with ConnectionFactory(self.url).create_connection() as connection:
            return connection.request(operation, arguments)

    def hand_over(self, primary: str) -> None:
        """Have another node be primary; this one may do so ahead of its answer."""
        with contextlib.suppress(ConnectionLostException):
            self.ask("hand_over", node=next(each for each in NAMES if each != primary))

    def wait_for_sync(self) -> str:
        """Wait until all nodes are in sync; returns which one is primary."""
        deadline = time.monotonic() + LONGEST
        while True:
            with contextlib.suppress(JMSException):
                found = self.ask("copies")["group"]
                if len(found["in_sync"]) == len(NAMES):
                    return str(found["primary"])
            if time.monotonic() > deadline:
                raise TimeoutError("the nodes did not get in sync")
            time.sleep(0.1)


def lost_and_doubled(confirmed: int, received: Iterable[int]) -> tuple[int, int]:
    """Return how many of the messages that were confirmed were not received, and how many came once more."""
    times = Counter(received)
    return len(set(range(confirmed)) - set(times)), times.total() - len(times)


def run(group: Group, load: Load, calm: float, away: float) -> list[tuple[float, float, str]]:
    """Have the primary lost in three ways, with some seconds in between; returns from when until when, and what."""
    outages: list[tuple[float, float, str]] = []

    def lose(what: str, begin: Callable[[str], None], end: Callable[[str], None] | None) -> None:
        primary = group.wait_for_sync()
        time.sleep(calm)
        what = f"{primary} {what}"
        console.print(f"[red]{what}[/red]")
        began = load.now
        begin(primary)
        if end is not None:
            time.sleep(away)
            end(primary)
        outages.append((began, load.now, what))
        console.print(f"{group.wait_for_sync()} is the primary now, and all nodes are in sync")

    lose("is killed", lambda it: group.nodes[it].server.kill(), lambda it: group.nodes[it].server.start())
    lose("is cut off", lambda it: group.nodes[it].cut_off(), lambda it: group.nodes[it].mend())
    lose("hands over", group.hand_over, None)
    time.sleep(calm)
    return outages


def draw(load: Load, outages: list[tuple[float, float, str]]) -> None:
    """Draw how long the sends took, and how many messages came and went."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    above.scatter(
        [when + took for when, took in load.sends], [1000 * took for _, took in load.sends], s=4, color="#33658a"
    )
    above.set_yscale("log")
    above.set_ylabel("a send, in milliseconds")
    bins = [each / 4 for each in range(int(load.now * 4) + 1)]
    below.hist([when + took for when, took in load.sends], bins, histtype="step", color="#33658a", label="confirmed")
    below.hist([when for when, _ in load.received], bins, histtype="step", color="#f26419", label="received")
    below.set_ylabel("messages in a quarter of a second")
    below.set_xlabel("seconds")
    below.legend(loc="upper right")
    for first, last, what in outages:
        for axes in (above, below):
            axes.axvspan(first, max(last, first + 0.1), color="#dddddd", zorder=0)
        above.annotate(what, (first, 1.0), xycoords=("data", "axes fraction"), fontsize=9, va="bottom")
    figure.savefig(PICTURE, dpi=120)
    console.print(f"drawn in {PICTURE}")


@contextlib.contextmanager
def etcd(program: str | None, url: str | None, directory: str) -> Iterator[int]:
    """Give the port of an etcd: one that runs, or one that is started."""
    if url is not None:
        yield int(url.rpartition(":")[2])
        return
    program = program or shutil.which("etcd")
    if program is None:
        raise SystemExit(
            "there is no etcd: give --etcd PROGRAM, or --coordinator etcd://127.0.0.1:PORT of one that runs"
        )
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    command = [program, "--data-dir", f"{directory}/etcd", "--listen-peer-urls", peers]
    for each in ("listen", "advertise"):
        command += [f"--{each}-client-urls", f"http://127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="samples.demo.group", description=__doc__.partition("\n")[0])
    parser.add_argument("--etcd", metavar="PROGRAM", help="the program of an etcd; else that on the PATH")
    parser.add_argument("--coordinator", metavar="URL", help="an etcd on this machine that runs already")
    parser.add_argument("--calm", metavar="SECONDS", type=float, default=4.0, help="between two losses; default 4")
    parser.add_argument("--away", metavar="SECONDS", type=float, default=5.0, help="of a node that is lost; default 5")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # servers are lost here
    with tempfile.TemporaryDirectory() as directory, etcd(options.etcd, options.coordinator, directory) as coordinator:
        group = Group(directory, coordinator)
        try:
            for name, node in group.nodes.items():
                node.server.start(*(("--new-group", "--min-in-sync", "2") if name == NAMES[0] else ()))
            group.wait_for_sync()
            console.print("three nodes are in sync")
            load = Load(group.url)
            outages = run(group, load, options.calm, options.away)
            load.end()
        finally:
            for node in group.nodes.values():
                node.server.stop()
    draw(load, outages)
    for first, last, what in outages:
        during = [took for when, took in load.sends if first - 1.0 <= when <= last + 1.0]
        console.print(f"{what}: the longest send took {max(during, default=float('nan')):.2f} s")
    lost, doubled = lost_and_doubled(len(load.sends), (number for _, number in load.received))
    results = [
        check("producer and consumer have done all", load.ended, ["producer", "consumer"]),
        check(f"{len(load.sends)} confirmed: {lost} lost, {doubled} doubled", (lost, doubled), (0, 0)),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
