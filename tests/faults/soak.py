"""Faults at random for as long as wanted, with every mode at work, and the contract checked at the end.

``make soak`` (ten minutes), or ``python -m tests.faults.soak --seconds 60 --seed 7``.  Exit status 1 where a promise
was broken; what is printed then names the seed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    Message,
    QueueStatistics,
    Restored,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.faults.proxy import Cut, Direction, Proxy
from tests.server_process import ServerProcess

#: Messages that each producer sends in a second.
RATE = 150
#: Mean time between two faults, in seconds.
PAUSE = 2.0
#: Longest wait for everything to arrive once the faults have ended, in seconds.
SETTLING = 60.0
OPTIONS = (
    "?reconnect_delay_seconds=0.02&max_reconnect_delay_seconds=0.5&stable_seconds=0.2&idle_timeout_seconds=1"
    "&connect_timeout_seconds=2"
)

console = Console()


@attrs.define
class Lane:
    """A queue with its producer and its consumer, and what they saw."""

    name: str
    mode: AcknowledgeMode
    listens: bool = False
    sends_later: bool = False  #: with completions, instead of waiting for each answer
    sent: int = 0
    confirmed: set[int] = attrs.field(factory=set)
    received: Counter[int] = attrs.field(factory=Counter)
    ended: Counter[int] = attrs.field(factory=Counter)  #: acknowledged or committed
    raised: Counter[str] = attrs.field(factory=Counter)
    unmarked: int = 0  #: came again without a mark
    broken: list[str] = attrs.field(factory=list)

    def saw(self, message: Message) -> int:
        number = int(message.body)
        if self.received[number] and not message.redelivered:
            self.unmarked += 1
        self.received[number] += 1
        return number


def lanes() -> list[Lane]:
    """One for each mode, two for AUTO."""
    return [
        Lane("auto receive", AcknowledgeMode.AUTO),
        Lane("auto listener", AcknowledgeMode.AUTO, listens=True, sends_later=True),
        Lane("dups_ok", AcknowledgeMode.DUPS_OK, sends_later=True),
        Lane("client", AcknowledgeMode.CLIENT),
        Lane("individual", AcknowledgeMode.INDIVIDUAL, sends_later=True),
        Lane("transacted", AcknowledgeMode.TRANSACTED),
    ]


class Soak:
    """All lanes over one connection for producers and one for consumers."""

    def __init__(self, url: str, direct: str) -> None:
        self.lanes = lanes()
        self.restores: list[float] = []
        self.losses = 0
        self._url = url + OPTIONS
        self._direct = direct
        self._sending = True
        self._receiving = True
        self._threads: list[threading.Thread] = []
        self._connections: list[Connection] = []

    def start(self) -> None:
        producing, consuming = self._connect(), self._connect()
        for lane in self.lanes:
            for connection, work in ((producing, self._produce), (consuming, self._consume)):
                thread = threading.Thread(
                    target=self._run, args=(lane, work, connection), name=f"{work.__name__} {lane.name}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _connect(self) -> Connection:
        connection = ConnectionFactory(self._url).create_connection()
        connection.exception_listener = self._told
        connection.event_listener = self._happened
        connection.start()
        self._connections.append(connection)
        return connection

    def _told(self, error: JMSException) -> None:
        self.losses += "could not be acknowledged" not in error.reason

    def _happened(self, event: object) -> None:
        if isinstance(event, Restored):
            self.restores.append(event.seconds)

    @staticmethod
    def _run(lane: Lane, work: Callable[[Lane, Connection], None], connection: Connection) -> None:
        try:
            work(lane, connection)
        except Exception as error:
            lane.broken.append(f"{threading.current_thread().name}: {error!r}")

    # Producers.

    def _produce(self, lane: Lane, connection: Connection) -> None:
        transacted = lane.mode is AcknowledgeMode.TRANSACTED
        with connection.create_session(lane.mode if transacted else AcknowledgeMode.AUTO) as session:
            producer = session.create_producer(session.create_queue(lane.name))

            def completed(message: Message, error: JMSException | None) -> None:
                if error is None:
                    lane.confirmed.add(int(message.body))
                else:
                    lane.broken.append(f"a send failed: {error!r}")

            while self._sending:
                if transacted:
                    batch = range(lane.sent, lane.sent + 5)
                    for number in batch:
                        producer.send(str(number))
                    try:
                        session.commit()
                    except TransactionRolledBackException as error:
                        lane.raised[type(error).__name__] += 1
                        continue
                    lane.confirmed.update(batch)
                    lane.sent += 5
                    time.sleep(5 / RATE)
                    continue
                if lane.sends_later:
                    producer.send(str(lane.sent), on_completion=completed)
                else:
                    producer.send(str(lane.sent))
                    lane.confirmed.add(lane.sent)
                lane.sent += 1
                time.sleep(1 / RATE)
            # A session that closes while the network is away does not wait for what has no answer.
            deadline = time.monotonic() + SETTLING
            while len(lane.confirmed) < lane.sent and time.monotonic() < deadline:
                time.sleep(0.01)

    # Consumers.

    def _consume(self, lane: Lane, connection: Connection) -> None:
        with connection.create_session(lane.mode) as session:
            consumer = session.create_consumer(session.create_queue(lane.name))
            if lane.listens:
                consumer.listener = lane.saw
                while self._receiving:
                    time.sleep(0.05)
                return
            held: list[tuple[Message, int]] = []
            while self._receiving:
                try:
                    message = consumer.receive(0.2)
                except ConnectionLostException as error:
                    lane.raised[type(error).__name__] += 1
                    continue
                if message is not None:
                    held.append((message, lane.saw(message)))
                if held and (message is None or len(held) >= 5):
                    self._end(lane, held, session.commit if session.transacted else None)
                    held = []

    @staticmethod
    def _end(lane: Lane, held: list[tuple[Message, int]], commit: Callable[[], None] | None) -> None:
        """Acknowledge or commit what is held."""
        try:
            if lane.mode is AcknowledgeMode.INDIVIDUAL:
                for message, number in held:
                    try:
                        message.acknowledge()
                        lane.ended[number] += 1
                    except StaleAcknowledgementException as error:
                        lane.raised[type(error).__name__] += 1
                return
            if commit is not None:
                commit()
            elif lane.mode is AcknowledgeMode.CLIENT:
                held[-1][0].acknowledge()
            lane.ended.update(number for _, number in held)
        except (StaleAcknowledgementException, TransactionRolledBackException) as error:
            lane.raised[type(error).__name__] += 1

    # The end.

    def finish(self) -> None:
        """Stop sending, wait until all has arrived, and end."""
        self._sending = False
        for thread in self._threads:
            if thread.name.startswith("_produce"):
                thread.join(SETTLING)
        deadline = time.monotonic() + SETTLING
        while left := sum(each.messages for each in self.queues().values()):
            if time.monotonic() > deadline:
                self.lanes[0].broken.append(f"{left} messages of all lanes were not settled within {SETTLING:.0f} s")
                break
            time.sleep(0.2)
        time.sleep(1)
        self._receiving = False
        for thread in self._threads:
            thread.join(SETTLING)
            if thread.is_alive():
                self.lanes[0].broken.append(f"{thread.name} hangs")
        for connection in self._connections:
            connection.close()

    def queues(self) -> dict[str, QueueStatistics]:
        """What the engine has on record."""
        with ConnectionFactory(self._direct).create_connection() as connection:
            return {each.name: each for each in connection.statistics().queues}

    def problems(self) -> list[str]:
        """Promises that were broken."""
        found = []
        record = self.queues()
        if "DLQ" in record and record["DLQ"].messages:
            found.append(f"{record['DLQ'].messages} messages were set aside")
        for lane in self.lanes:
            found += [f"{lane.name}: {each}" for each in lane.broken]
            sent = set(range(lane.sent))
            queue = record[lane.name]
            if lane.confirmed != sent:
                found.append(f"{lane.name}: {len(sent - lane.confirmed)} sends were never confirmed")
            if queue.next_position - 1 != lane.sent:
                found.append(f"{lane.name}: {lane.sent} sent, {queue.next_position - 1} stored")
            if queue.messages:
                found.append(f"{lane.name}: {queue.messages} left in the queue")
            if set(lane.received) != sent:
                found.append(f"{lane.name}: {len(sent - set(lane.received))} lost")
            if lane.unmarked:
                found.append(f"{lane.name}: {lane.unmarked} came again without a mark")
            if lane.mode is AcknowledgeMode.AUTO and duplicates(lane) > self.losses:
                found.append(f"{lane.name}: {duplicates(lane)} duplicates in {self.losses} losses")
            if lane.mode not in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK):
                twice = sum(count > 1 for count in lane.ended.values())
                if twice or set(lane.ended) != sent:
                    found.append(f"{lane.name}: {twice} ended twice, {len(sent - set(lane.ended))} never")
        return found


def duplicates(lane: Lane) -> int:
    """Messages that came again."""
    return sum(count - 1 for count in lane.received.values())


class Faults:
    """What goes wrong, at random."""

    def __init__(self, server: ServerProcess, proxy: Proxy, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._server = server
        self._proxy = proxy
        self._chance = chance
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "cut": (8, self._cut),
            "cut after some bytes": (4, self._cut_after),
            "half open": (4, self._half_open),
            "black hole": (2, self._black_hole),
            "away for a while": (2, self._away),
            "slow": (1, self._slow),
            "server killed": (2, self._kill),
        }

    def one(self) -> None:
        """Do one of them."""
        names = list(self._kinds)
        (name,) = self._chance.choices(names, [self._kinds[each][0] for each in names])
        self._kinds[name][1]()
        self.counts[name] += 1

    def _cut(self) -> None:
        self._proxy.cut()

    def _cut_after(self) -> None:
        self._proxy.plan(Cut(self._chance.choice(list(Direction)), bytes=0, into_next=self._chance.randrange(100)))

    def _half_open(self) -> None:
        self._proxy.leave_half_open()

    def _black_hole(self) -> None:
        self._proxy.hold(*self._chance.choice([(Direction.TO_SERVER,), (Direction.TO_CLIENT,), tuple(Direction)]))
        time.sleep(1.5)
        self._proxy.hold()

    def _away(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        time.sleep(self._chance.random())
        self._proxy.refuse(False)

    def _slow(self) -> None:
        self._proxy.delay(0.002)
        time.sleep(1)
        self._proxy.delay(0)

    def _kill(self) -> None:
        self._server.kill()
        self._server.start()


def run(seconds: float, seed: int) -> int:
    """One soak; returns the exit status."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(Path(directory) / "data") as server,
        Proxy(server.port) as proxy,
    ):
        soak = Soak(proxy.url, server.url)
        faults = Faults(server, proxy, chance)
        soak.start()
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
            soak.finish()
        problems = soak.problems()
    show(soak, faults, seconds)
    for problem in problems:
        console.print(f"[red]broken[/red]: {problem} (seed {seed})")
    if not problems:
        console.print("every promise was kept")
    return 1 if problems else 0


def show(soak: Soak, faults: Faults, seconds: float) -> None:
    """The figures."""
    table = Table(title=f"{faults.counts.total()} faults in {seconds:.0f} s; connections lost {soak.losses} times")
    for column in ("lane", "messages", "came again", "told by"):
        table.add_column(column, justify="left" if column in ("lane", "told by") else "right")
    for lane in soak.lanes:
        told = ", ".join(f"{name} {count}" for name, count in lane.raised.items())
        table.add_row(lane.name, f"{lane.sent:,}", f"{duplicates(lane):,}", told)
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
    return run(options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
