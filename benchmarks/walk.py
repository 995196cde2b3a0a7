"""How wide a message's walk is: the Python functions that one message enters, and the files that they are in.

``make walk`` prints a table.  Calls are counted, so a busy machine gives the same figures; each is the mean of many
walks, so what happens once per many messages counts as its share.  A second table compares the CPU of a message in
memory with that of an old version, in alternating pairs.
"""

from __future__ import annotations

import _thread
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks import interpreter, shape
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import AcknowledgeMode, ConnectionFactory

ROOT: Final = Path(__file__).parent.parent
#: The packages whose functions count.
PACKAGES: Final = ("ack_modes", "broker_adapter", "sdk")
#: How often each walk is made before and while it is counted.
WARM_UP: Final = 50
TIMES: Final = 100
#: The version that the CPU is compared with, from before limits of files and classes spread a message's walk.
OLD: Final = "c6f166b"
PAIRS: Final = 3
_BODY: Final = "x" * 100
#: Threads of the server, by their names; the others are the client's.
_SERVER_THREADS: Final = ("holdfast-server", "holdfast-engine")


@attrs.define
class Walk:
    """What was entered, in all threads of one side.

    Attributes:
        calls: how often a function was entered.
        functions: which, as file and name.
        changes: how often the next one was in another file than the one before it in the same thread.
    """

    calls: int = 0
    functions: set[tuple[str, str]] = attrs.field(factory=set)
    changes: int = 0

    @property
    def files(self) -> int:
        """How many files they are in."""
        return len({file for file, _ in self.functions})


@attrs.frozen
class Row:
    """One line of the table: a walk with its name, by message."""

    name: str
    walk: Walk
    times: int
    threads: int


class Counter:
    """Counts the functions that are entered while it is on, by thread."""

    def __init__(self) -> None:
        self._prefixes = tuple(f"{ROOT / package}/" for package in PACKAGES)
        self._on = False
        self._walks: dict[str, Walk] = {}
        self._last: dict[int, str] = {}
        self._threads = 0
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In this thread, and in all that start until the end of the block."""
        start = _thread.start_new_thread

        def start_counted(function: Callable[..., object], *arguments: Any) -> int:
            self._threads += self._on

            def run(*given: Any) -> None:
                sys.setprofile(self._note)
                function(*given)

            return start(run, *arguments)

        _thread.start_new_thread = threading._start_new_thread = start_counted  # type: ignore[attr-defined]
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            _thread.start_new_thread = threading._start_new_thread = start  # type: ignore[attr-defined]

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self._on or event != "call":
            return
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(self._prefixes):
            return
        thread = threading.current_thread()
        side = "server" if thread.name.startswith(_SERVER_THREADS) else "client"
        with self._lock:
            walk = self._walks.setdefault(side, Walk())
            walk.calls += 1
            walk.functions.add((file, code.co_qualname))
            if self._last.get(thread.ident or 0) != file:
                walk.changes += 1
                self._last[thread.ident or 0] = file

    def count(self, act: Callable[[], object]) -> tuple[dict[str, Walk], int]:
        """Do something, and return the walks by side, and how many threads were started."""
        self._walks, self._last, self._threads = {}, {}, 0
        self._on = True
        try:
            act()
        finally:
            self._on = False
        return self._walks, self._threads


def _rows(counter: Counter, name: str, act: Callable[[], object], times: int = TIMES, messages: int = 1) -> list[Row]:
    """Do something often; one row for each side that took part.

    Args:
        counter: counts.
        name: of the walk.
        act: makes it once.
        times: how often it is counted.
        messages: of one walk.
    """
    for _ in range(min(times, WARM_UP)):
        act()

    def often() -> None:
        for _ in range(times):
            act()

    walks, threads = counter.count(often)
    sides = sorted(walks)
    return [
        Row(name if len(sides) == 1 else f"{name}, {side}", walks[side], times * messages, threads if not index else 0)
        for index, side in enumerate(sides)
    ]


def _messaging(counter: Counter, url: str, where: str) -> Iterator[Row]:
    """One sender and one receiver, each with what it does with a message."""
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        session = connection.create_session(AcknowledgeMode.CLIENT)
        queue = session.create_queue("walk")
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        total = WARM_UP + TIMES
        yield from _rows(counter, f"{where}: send", lambda: producer.send(_BODY))
        received: list[Any] = []
        yield from _rows(counter, f"{where}: receive", lambda: received.append(consumer.receive(timeout=10)))
        assert len(received) == total
        assert None not in received
        for message in received:
            message.acknowledge()
        inbox = iter(received)

        def receive_and_acknowledge() -> None:
            message = consumer.receive(timeout=10)
            assert message is not None
            message.acknowledge()

        for _ in range(total):
            producer.send(_BODY)
        yield from _rows(counter, f"{where}: receive and acknowledge", receive_and_acknowledge)
        del inbox
        batch = [_BODY] * 100
        yield from _rows(counter, f"{where}: send_all of 100, a message", lambda: producer.send_all(batch), 10, 100)


def _region(counter: Counter) -> Iterator[Row]:
    """A put of one connection, until the cache of another one has it."""
    factory = ConnectionFactory("embedded:")
    with factory.create_connection() as writing, factory.create_connection() as reading:
        reading.start()
        there = reading.create_session().create_region("walk")
        there.register_interest(all_keys=True)
        here = writing.create_session().create_region("walk")
        number = 0

        def put() -> None:
            nonlocal number
            number += 1
            here.put("key", str(number))
            while there.get("key") != str(number):
                threading.Event().wait(0.001)

        yield from _rows(counter, "region: put to another cache", put)


def rows() -> Iterator[Row]:
    """All walks."""
    counter = Counter()
    with counter.installed(), tempfile.TemporaryDirectory() as directory:
        yield from _messaging(counter, "embedded:", "memory")
        yield from _messaging(counter, f"embedded:{directory}/embedded", "embedded")
        yield from _region(counter)
        broker = Broker(EngineSettings(), f"{directory}/server")
        listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
        _, port = listener.start()
        try:
            yield from _messaging(counter, f"amqp://127.0.0.1:{port}", "AMQP")
            yield from _messaging(counter, f"amqp://127.0.0.1:{port}?envelope=false", "plain AMQP")
        finally:
            listener.stop()
            broker.close()


def _unpacked(version: str, directory: Path) -> bool:
    """Unpack the packages of a version from the history; returns False where there is none, as in a release."""
    archive = directory / "old.tar"
    with archive.open("wb") as file:
        done = subprocess.run(["git", "archive", version, *PACKAGES], cwd=ROOT, stdout=file, stderr=subprocess.DEVNULL)
    if done.returncode:
        return False
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    return True


def _measured(root: Path) -> list[float]:
    """Run :mod:`benchmarks.in_memory` with the packages of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
    program = [sys.executable, "-P", str(ROOT / "benchmarks" / "in_memory.py")]
    done = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return [float(each) for each in done.stdout.split()]


def compare(directory: Path) -> Table | None:
    """Compare the CPU of a message in memory with that of the old version; None: the history does not have it."""
    if not _unpacked(OLD, directory):
        return None
    pairs = [(_measured(directory), _measured(ROOT)) for _ in range(PAIRS)]
    table = Table(title=f"CPU of a message in memory, microseconds, median of {PAIRS} alternating pairs")
    for column in ("operation", OLD, "now", "ratio"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    names = ("send", "receive", "send, another thread", "receive, another thread")
    for index, name in enumerate(names):
        old = statistics.median(pair[0][index] for pair in pairs)
        now = statistics.median(pair[1][index] for pair in pairs)
        ratio = statistics.median(pair[1][index] / pair[0][index] for pair in pairs)
        table.add_row(name, f"{old:.1f}", f"{now:.1f}", f"{ratio:.2f}")
    return table


def main() -> int:
    """Print the tables."""
    console = Console(width=120)
    console.print(f"{interpreter.description()}; byte code: {interpreter.byte_code_ns():.0f} ns a turn")
    table = Table(title="The walk of a message: Python functions of Holdfast that it enters")
    for column in ("walk", "calls", "functions", "files", "changes of file", "threads started"):
        table.add_column(column, justify="left" if column == "walk" else "right")
    for row in rows():
        walk = row.walk
        table.add_row(
            row.name,
            f"{walk.calls / row.times:.1f}",
            str(len(walk.functions)),
            str(walk.files),
            f"{walk.changes / row.times:.1f}",
            str(row.threads),
        )
    console.print(table)
    console.print(shape.table(ROOT, ("ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector")))
    with tempfile.TemporaryDirectory() as directory:
        console.print(compare(Path(directory)) or f"no history with {OLD}: its CPU is not compared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
