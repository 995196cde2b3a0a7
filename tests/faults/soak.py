"""Faults at random for as long as wanted, with every mode at work, and the contract checked at the end.

Each queue has one consumer, or two of two connections: plain ones, with message groups, or exclusive ones.
Beside the connections that the faults hit goes one whose frames are changed at random: it may get any error, but the
server must live, and keep its promises to the others.

``make soak`` (ten minutes), or ``python -m tests.faults.soak --seconds 60 --seed 7``.  Exit status 1 where a promise
was broken; what is printed then names the seed.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sdk import (
    Connection,
    ConnectionFactory,
    JMSException,
    QueueStatistics,
    Restored,
    StaleAcknowledgementException,
)
from tests.faults.faults import OPTIONS, Faults
from tests.faults.lanes import SETTLING, SHARED_PREFETCH, SHARERS, Course, Faced, lanes
from tests.faults.mutations import Mutations
from tests.faults.proxy import Proxy
from tests.faults.victim import Victim
from tests.server_process import ServerProcess

#: Mean time between two faults, in seconds.
PAUSE = 2.0
#: Part of the victim's frames that are changed.
MUTATION_RATE = 0.01
#: What the log says of them.
UNEXPECTED = "unexpected error"
console = Console() if sys.stdout.isatty() else Console(width=140)


class Unexpected(logging.Handler):
    """Errors of ours that end a connection, whatever its frames were."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See :meth:`logging.Handler.emit`."""
        if UNEXPECTED in record.getMessage():
            self.told.append(logging.Formatter().format(record))


class Soak:
    """All lanes over one connection for producers and one for consumers."""

    def __init__(self, url: str, direct: str) -> None:
        self.lanes = lanes()
        self.restores: list[float] = []
        self.losses = 0
        self._url = url + OPTIONS
        self._direct = direct
        self._course = Course()
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []
        self._connections: list[Connection] = []

    def start(self) -> None:
        """Set all lanes to work."""
        producing, consuming = self._connect("producing"), self._connect("consuming")
        sharing = [
            self._connect(f"sharing {number}", f"&prefetch_messages={SHARED_PREFETCH}") for number in range(SHARERS)
        ]
        for lane in self.lanes:
            lane.prepare(consuming)
            for each in sharing if lane.consumers > 1 else (consuming,):
                self._consumers.append(self._course.working(lane, lane.consume, each))
            self._producers.append(self._course.working(lane, lane.produce, producing))

    def _connect(self, client_id: str, options: str = "") -> Connection:
        connection = ConnectionFactory(self._url + options).create_connection(client_id=client_id)
        connection.exception_listener = self._told
        connection.event_listener = self._happened
        connection.start()
        self._connections.append(connection)
        return connection

    def _told(self, error: JMSException) -> None:
        if isinstance(error, StaleAcknowledgementException):
            for lane in self.lanes:
                lane.told(error)
        else:
            self.losses += "could not be acknowledged" not in error.reason

    def _happened(self, event: object) -> None:
        if isinstance(event, Restored):
            self.restores.append(event.seconds)

    # The end.

    def finish(self) -> None:
        """Stop sending, wait until all has arrived, and end."""
        self._course.sending = False
        self._join(self._producers)
        deadline = time.monotonic() + SETTLING
        while left := self._left():
            if time.monotonic() > deadline:
                self.lanes[0].broken.append(f"{left} messages of all lanes were not settled within {SETTLING:.0f} s")
                break
            time.sleep(0.2)
        time.sleep(1)
        self._course.receiving = False
        self._join(self._consumers)
        for connection in self._connections:
            connection.close()

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + SETTLING
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.lanes[0].broken.append(f"{thread.name} hangs")

    def _left(self) -> int:
        """Messages that wait in the queues of the lanes; the victim may leave some in its own."""
        queues = self.queues()
        return sum(lane.record(queues).messages for lane in self.lanes)

    def queues(self) -> dict[str, QueueStatistics]:
        """What the engine has on record."""
        with ConnectionFactory(self._direct).create_connection() as connection:
            return {each.name: each for each in connection.statistics().queues}

    def problems(self, kills: int) -> list[str]:
        """Promises that were broken, over so many servers killed."""
        queues = self.queues()
        faced = Faced(self.losses, kills)
        found = [f"{lane.name}: {each}" for lane in self.lanes for each in lane.problems(queues, faced)]
        if set_aside := self._set_aside():
            found.append(f"{set_aside} messages were set aside")
        return found

    def _set_aside(self) -> int:
        """Messages of the lanes that are dead letters; of the victim's, any may be."""
        with ConnectionFactory(self._direct).create_connection() as connection, connection.create_session() as session:
            connection.start()
            origins = [
                message.properties.get("JMS_HOLDFAST_DEAD_LETTER_QUEUE")
                for message in session.create_browser(session.create_queue("DLQ"))
            ]
        return len([each for each in origins if each in {lane.name for lane in self.lanes}])


def run(seconds: float, seed: int) -> int:
    """One soak; returns the exit status."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(Path(directory) / "data", log=Path(directory) / "log") as server,
        Proxy(server.port) as proxy,
        Proxy(server.port) as mutating,
    ):
        soak = Soak(proxy.url, server.url)
        faults = Faults(server, proxy, chance)
        mutations = Mutations(random.Random(seed), MUTATION_RATE)
        mutating.mutate(mutations)
        victim = Victim(mutating)
        unexpected = Unexpected()
        logging.getLogger().addHandler(unexpected)
        soak.start()
        victim.start()
        start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            bar = bars.add_task("soaking", total=seconds)
            while (elapsed := time.monotonic() - start) < seconds:
                bars.update(bar, completed=elapsed, description=f"soaking: {faults.counts.total()} faults")
                time.sleep(chance.expovariate(1 / PAUSE))
                faults.one()
            bars.update(bar, completed=seconds, description="settling")
            proxy.plan(None)
            victim.stop()
            soak.finish()
        logging.getLogger().removeHandler(unexpected)
        problems = soak.problems(faults.counts["server killed"]) + victim.broken + unexpected.told
        log = (Path(directory) / "log").read_text()
        if UNEXPECTED in log:
            problems.append(f"the server met one: {log[log.index(UNEXPECTED) :][:5000]}")
        if faults.found_dead or not server.is_running:
            problems.append(f"the server ended by itself: {log[-2000:]}")
    show(soak, faults, seconds)
    told = ", ".join(f"{name} {count}" for name, count in victim.raised.most_common())
    console.print(
        f"{mutations.counts.total()} changed frames in {victim.lives} connections, {victim.finished} of which did their"
        f" work: {told}"
    )
    for problem in problems:
        console.print(f"[red]broken[/red]: {problem} (seed {seed})")
    if not problems:
        console.print("every promise was kept")
    return 1 if problems else 0


def show(soak: Soak, faults: Faults, seconds: float) -> None:
    """The figures."""
    table = Table(title=f"{faults.counts.total()} faults in {seconds:.0f} s; connections lost {soak.losses} times")
    for column in ("lane", "messages", "redelivered", "reported by"):
        table.add_column(column, justify="left" if column in ("lane", "reported by") else "right")
    for lane in soak.lanes:
        told = ", ".join(f"{name} {count}" for name, count in lane.raised.items())
        table.add_row(lane.name, f"{lane.sent:,}", f"{lane.duplicates:,}", told)
    console.print(table)
    console.print("faults: " + ", ".join(f"{name} {count}" for name, count in faults.counts.most_common()))
    if len(soak.restores) > 1:
        cuts = statistics.quantiles(soak.restores, n=100)
        console.print(f"time to restore: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms")


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    console.print(f"seed {options.seed}")
    logging.disable(logging.WARNING)  # each fault is told there, and most of what becomes of the victim
    return run(options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
