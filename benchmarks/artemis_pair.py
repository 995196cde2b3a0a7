"""A group of two nodes beside Artemis's primary and backup with replication: kills, and what replication costs.

Both get the same load of the SDK on the same machine.  Artemis: two peers that take turns, a lock in a file, the
journal as ``artemis create`` makes it.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs

from benchmarks import copies, modes
from benchmarks.nodes import Group
from benchmarks.report import Figure, beside
from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSException
from tests.interop import install
from tests.interop.brokers.brokers import Process, create_artemis, free_port

_WAIT: Final = 120.0
_RATE: Final = 200  #: messages a second, over kills
_PAUSE: Final = 3.0  #: from in sync to the next kill, in seconds: more than ``stable_seconds``
_WARM_UP: Final = 60_000
_NAME: Final = f"Artemis {install.ARTEMIS}"
_BODY: Final = "x" * (modes.BODY_BYTES - 8)
#: What it logs as it is active, and as it is in sync.
_ACTIVE, _IN_SYNC = "AMQ221007", "AMQ221024"
_PRIMARY: Final = """<primary>
  <manager>
    <class-name>org.apache.activemq.artemis.lockmanager.file.FileBasedLockManager</class-name>
    <properties><property key="locks-folder" value="{locks}"/></properties>
  </manager>
  <coordination-id>holdfast-bench-1</coordination-id>
</primary>"""


@attrs.define
class Seen:
    """What clients saw; all times in seconds of one clock."""

    sent: dict[int, float] = attrs.field(factory=dict)  #: when each send began
    confirmed: dict[int, float] = attrs.field(factory=dict)  #: when each send was confirmed
    arrived: list[tuple[int, float]] = attrs.field(factory=list)
    acknowledged: dict[int, float] = attrs.field(factory=dict)  #: when that was confirmed
    kills: list[tuple[float, float]] = attrs.field(factory=list)  #: the signal, and the end of the process
    raised: list[str] = attrs.field(factory=list)


@attrs.frozen
class Verdict:
    """What came of it."""

    lost: list[int]  #: confirmed, and never there
    doubled: list[int]  #: there again after their acknowledgement was confirmed
    takeovers: list[float]  #: from each signal to the first message that was sent after the kill, in seconds


def judged(seen: Seen) -> Verdict:
    """What was lost, what came twice, and how long clients waited.

    Raises:
        ValueError: nothing came after a kill.
    """
    arrived = {number for number, _ in seen.arrived}
    doubled = [number for number, when in seen.arrived if when > seen.acknowledged.get(number, when)]
    takeovers = []
    for signalled, dead in seen.kills:
        first = min((when for number, when in seen.arrived if seen.sent[number] >= dead), default=None)
        if first is None:
            raise ValueError("nothing came after a kill")
        takeovers.append(first - signalled)
    return Verdict(sorted(seen.confirmed.keys() - arrived), doubled, takeovers)


class _Pair(Protocol):
    @property
    def url(self) -> str:
        """For clients."""

    def kill(self) -> float:
        """SIGKILL to the primary; blocks until it has ended, and returns when the signal was sent."""

    def restart(self) -> None:
        """Start it again; blocks until it is in sync."""


class _Holdfast(Group):
    """A group of two."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 2)
        self._killed = ""

    def kill(self) -> float:
        self._killed = self.status()["primary"]
        signalled = time.perf_counter()
        self.processes[self._killed].kill()
        self.processes[self._killed].wait()
        return signalled

    def restart(self) -> None:
        self.start(self._killed)
        self.wait_for(2)


class _Artemis:
    """A node of Artemis, or two."""

    def __init__(self, directory: Path, nodes: int) -> None:
        ports = [free_port() for _ in range(nodes)]
        login = ",".join(f"amqp://ada:secret@127.0.0.1:{port}" for port in ports)
        self.url = f"failover:({login})?allow_plain_without_tls=true"
        directory.mkdir()
        (directory / "locks").mkdir()
        addresses = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
        cluster = ["--clustered", "--replicated", "--cluster-user", "c", "--cluster-password", "c"]
        cluster += ["--staticCluster", addresses]
        self._commands = []
        for number, port in enumerate(ports):
            instance = directory / str(number)
            self._commands.append(
                create_artemis(instance, port, "--name", str(number), *(cluster if nodes > 1 else []))
            )
            settings = instance / "etc" / "broker.xml"
            primary = _PRIMARY.format(locks=directory / "locks")
            settings.write_text(re.sub("<primary>.*?</primary>", primary, settings.read_text(), flags=re.DOTALL))
        self._processes: list[Process] = []
        self._active = 0
        try:
            for command in self._commands:
                self._processes.append(Process(command, {}, _IN_SYNC if self._processes else _ACTIVE))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Artemis:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.stop()

    def kill(self) -> float:
        signalled = time.perf_counter()
        self._processes[self._active].stop()
        return signalled

    def restart(self) -> None:
        killed, self._active = self._active, 1 - self._active
        self._processes[killed] = Process(self._commands[killed], {}, _IN_SYNC)


class Load:
    """A producer that waits for each confirmation, and a consumer that acknowledges each message and waits for it."""

    def __init__(self, url: str) -> None:
        self.seen = Seen()
        self._url = f"{url}{'&' if '?' in url else '?'}synchronous_acknowledge=true"
        self._sending = self._receiving = True
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> Seen:
        """Send no more, wait for what is under way; returns what was seen."""
        self._sending = False
        self._threads[0].join(_WAIT)
        deadline = time.perf_counter() + 20
        while time.perf_counter() < deadline and not self.seen.confirmed.keys() <= self.seen.acknowledged.keys():
            time.sleep(0.1)
        time.sleep(5)  # for what comes though it has been acknowledged
        self._receiving = False
        self._threads[1].join(_WAIT)
        return self.seen

    def has_come_since(self, when: float) -> bool:
        """Whether a message has come that was sent after this time."""
        return bool(self.seen.arrived) and self.seen.sent[self.seen.arrived[-1][0]] >= when

    def _connected(self) -> Connection:
        connection = ConnectionFactory(self._url).create_connection()
        connection.exception_listener = lambda _error: None
        connection.start()
        return connection

    def _send(self) -> None:
        with self._connected() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("kills"))
            number = 0
            while self._sending:
                self.seen.sent[number] = time.perf_counter()
                try:
                    producer.send(f"{number:08d}{_BODY}")
                    self.seen.confirmed[number] = time.perf_counter()
                except JMSException as error:
                    self.seen.raised.append(repr(error))
                number += 1
                time.sleep(1 / _RATE)

    def _receive(self) -> None:
        with self._connected() as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
            consumer = session.create_consumer(session.create_queue("kills"))
            while self._receiving:
                message = consumer.receive(timeout=0.5)
                if message is None:
                    continue
                number = int(message.body[:8])
                self.seen.arrived.append((number, time.perf_counter()))
                try:
                    message.acknowledge()
                    self.seen.acknowledged.setdefault(number, time.perf_counter())
                except JMSException as error:  # it is stale, and comes again
                    self.seen.raised.append(repr(error))


def _killed(pair: _Pair, kills: int) -> Seen:
    """Kill whoever is primary so often, under a load."""
    load = Load(pair.url)
    for _ in range(kills):
        time.sleep(_PAUSE)
        signalled, dead = pair.kill(), time.perf_counter()
        load.seen.kills.append((signalled, dead))
        while not load.has_come_since(dead):
            if time.perf_counter() > dead + _WAIT:
                raise TimeoutError(f"nothing comes after a kill: {load.seen.raised[-3:]}")
            time.sleep(0.01)
        pair.restart()
    return load.finish()


def kills(directory: Path, count: int) -> Iterator[Figure]:
    """So many kills of each: what was lost, what was doubled, how long clients waited."""
    with _Artemis(directory / "artemis", 2) as pair:
        theirs = judged(_killed(pair, count))
    with _Holdfast(directory / "group") as group:
        ours = judged(_killed(group, count))
    for what, found, other in (("lost", ours.lost, theirs.lost), ("doubled", ours.doubled, theirs.doubled)):
        yield Figure(
            name=f"{what}, {count} kills", value=len(found), unit="messages", yardstick=f"{_NAME} {len(other)}"
        )
    yield Figure(
        name=f"takeover, SIGKILL, p50 of {count}",
        value=statistics.median(ours.takeovers),
        unit="s",
        yardstick=f"{_NAME} {statistics.median(theirs.takeovers):.2f}",
        ratio=statistics.median(ours.takeovers) / statistics.median(theirs.takeovers),
        note=f"longest {max(ours.takeovers):.2f}, {_NAME} {max(theirs.takeovers):.2f}",
    )


def rates(directory: Path, messages: int, turns: int) -> Iterator[Figure]:
    """AUTO end to end and synchronous sends, with and without replication, in turns."""
    rates: dict[str, list[float]] = {}
    medians: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        urls = {
            "single": stack.enter_context(modes.server(directory / "single"))[0],
            "group": stack.enter_context(Group(directory / "group", 2)).url,
            "Artemis": stack.enter_context(_Artemis(directory / "artemis", 1)).url,
            "Artemis pair": stack.enter_context(_Artemis(directory / "pair", 2)).url,
        }
        for url in urls.values():
            copies.end_to_end(url, "warm-up", min(_WARM_UP, 3 * messages))
        for turn in range(turns):
            for name, url in urls.items():
                rates.setdefault(name, []).append(copies.end_to_end(url, f"stream {turn}", messages))
                times = copies.times_of_sends(url, f"sync {turn}", 200)
                medians.setdefault(name, []).append(statistics.median(times))
    for what, found, unit in (("end to end, AUTO", rates, "messages/s"), ("synchronous send, p50", medians, "ms")):
        yield from _compared(what, found, unit)


def _compared(what: str, found: Mapping[str, Sequence[float]], unit: str) -> Iterator[Figure]:
    """Each beside Artemis's, and what replication costs each of them."""
    pairs: Collection[tuple[str, str, str, str]] = (
        ("a single server", "single", _NAME, "Artemis"),
        ("a group of two", "group", f"{_NAME}, pair", "Artemis pair"),
        ("a group of two", "group", "a single server", "single"),
        (f"{_NAME}, pair", "Artemis pair", f"{_NAME}, single", "Artemis"),
    )
    for who, name, beside_whom, other in pairs:
        yield beside(
            *(f"{what}, {who}", found[name], found[other], unit, beside_whom),
            body_bytes=modes.BODY_BYTES,
            producers=1,
            consumers=1,
        )
