"""Two sites with a gateway: puts at one of them, and a backlog that is sent to the other; ours beside Apache Geode's.

A part of :mod:`benchmarks.geode`.

Theory of operation: *sites* are two servers over loopback, the first of which has a gateway to the second, and a client
of the first. Geode's are measured twice: in memory, as it is by default, and on disk with each write synced, as ours
are. All do all works several times to warm up, as Java compiles what runs often, and then take turns at each work, so
that all have their part in what else the machine does meanwhile. Each work begins with an empty region. The rate of
puts is that of the client; CPU time is that of both servers, as the system counts it, until the second one has all
keys, which is checked. A ratio is the median of those of the turns.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import psutil

from benchmarks.gateways import Site
from benchmarks.geode_java import Start
from benchmarks.programs import Failed, Program, cpu_of
from benchmarks.report import Figure
from sdk import AcknowledgeMode, ConnectionFactory
from tests.server_process import ServerProcess

_BYTES = 1024
#: Puts of a transaction, and values of one ``put_all`` of a backlog.
TRANSACTION = 3
BATCH = 100
_WAIT = 600.0


@attrs.frozen
class Work:
    """What sites do.

    Attributes:
        name: what is measured.
        gateway: "alone": the region has none; "sent": it has one; "grouped": one that groups transaction events.
        call: "put": one key at a time; "commit": in transactions of three; "put-all": in batches, while the gateway is
            paused, of which only the sending is measured then.
    """

    name: str
    gateway: str
    call: str

    @property
    def is_backlog(self) -> bool:
        return self.call == "put-all"


WORKS = (
    Work("put, without a gateway", "alone", "put"),
    Work("put", "sent", "put"),
    Work("put, in transactions of 3", "sent", "commit"),
    Work("put, in transactions of 3, grouped", "grouped", "commit"),
    Work("a backlog is sent", "sent", "put-all"),
)


@attrs.frozen
class Cost:
    """What a work took.

    Attributes:
        rate: puts or events a second.
        here, there: microseconds of CPU of the servers for each.
    """

    rate: float
    here: float
    there: float

    @property
    def cpu(self) -> float:
        return self.here + self.there


class Sites(Protocol):
    """Two servers, and a client of the first one."""

    here: psutil.Process
    there: psutil.Process

    def begin(self, gateway: str) -> None:
        """Empty the region with this gateway, which is used from now on."""

    def put(self, call: str, count: int) -> float:
        """Put so many new keys, in this way; the seconds that it took."""

    def pause(self) -> None:
        """Have the gateway send nothing more."""

    def resume(self) -> None:
        """Have it send again."""

    def arrive(self, count: int) -> None:
        """Wait until the other site has so many keys."""

    def arrived(self) -> int:
        """Return how many keys the other site has."""


def measured(
    sites: Mapping[str, Sites], puts: int, backlog: int, warm_up: int, turns: int, say: Callable[[str], None]
) -> dict[str, list[list[Cost]]]:
    """What each work costs the sites, turn by turn.

    Args:
        sites: by their names.
        puts: of each work, but for the backlog.
        backlog: events that wait.
        warm_up: turns that are not measured.
        turns: turns that are.
        say: told what happens.

    Raises:
        Failed: not all has arrived, or something has while the gateway was paused.
    """
    found: dict[str, list[list[Cost]]] = {name: [[] for _ in WORKS] for name in sites}
    for turn in range(1 - warm_up, turns + 1):
        for number, work in enumerate(WORKS):
            for name, each in sites.items():
                say(f"{name}: {work.name}, {f'turn {turn} of {turns}' if turn > 0 else 'to warm up'}")
                cost = _done(each, work, backlog if work.is_backlog else puts)
                if turn > 0:
                    found[name][number].append(cost)
    return found


def _done(sites: Sites, work: Work, count: int) -> Cost:
    sites.begin(work.gateway)
    if work.is_backlog:
        sites.pause()
        sites.put(work.call, count)
        if early := sites.arrived():
            raise Failed(f"{early} of {count} events were sent while the gateway was paused")
    before = [cpu_of([each]) for each in (sites.here, sites.there)]
    started = time.perf_counter()
    if work.is_backlog:
        sites.resume()
        sites.arrive(count)
        seconds = time.perf_counter() - started
    else:
        seconds = sites.put(work.call, count)
        if work.gateway != "alone":
            sites.arrive(count)
    pairs = zip((sites.here, sites.there), before, strict=True)
    here, there = ((cpu_of([each]) - earlier) / count * 1e6 for each, earlier in pairs)
    if work.gateway != "alone" and (arrived := sites.arrived()) != count:
        raise Failed(f"{arrived} of {count} keys have arrived")
    return Cost(count / seconds, here, there)


def compared(found: Mapping[str, Sequence[Sequence[Cost]]], puts: int, backlog: int) -> Iterator[Figure]:
    """What the first sites have measured beside each of the others, work by work.

    Args:
        found: what :func:`measured` returns.
        puts, backlog: how many there were.
    """
    (_, first), *others = found.items()
    for number, work in enumerate(WORKS):
        ours = first[number]
        count, unit = (backlog, "events/s") if work.is_backlog else (puts, "puts/s")
        for name, costs in others:
            theirs = costs[number]
            yield Figure(
                name=work.name,
                value=_median(ours, "rate"),
                unit=unit,
                yardstick=f"{name}: {_median(theirs, 'rate'):,.0f}",
                ratio=_ratio(ours, theirs, "rate"),
                goal=None if work.gateway == "alone" else "at least 1",
                body_bytes=_BYTES,
                producers=int(not work.is_backlog),
                note=f"{count:,}; medians of {len(ours)}",
            )
            yield Figure(
                name=f"{work.name}: CPU of both servers each",
                value=_median(ours, "cpu"),
                unit="us",
                yardstick=f"{name}: {_median(theirs, 'cpu'):,.0f}",
                ratio=_ratio(ours, theirs, "cpu"),
                body_bytes=_BYTES,
                producers=int(not work.is_backlog),
                note=f"here and there {_both(ours)}; Geode {_both(theirs)}",
            )


def _median(costs: Sequence[Cost], what: str) -> float:
    return statistics.median(getattr(each, what) for each in costs)


def _ratio(ours: Sequence[Cost], theirs: Sequence[Cost], what: str) -> float:
    return statistics.median(getattr(our, what) / getattr(their, what) for our, their in zip(ours, theirs, strict=True))


def _both(costs: Sequence[Cost]) -> str:
    return f"{_median(costs, 'here'):.0f} + {_median(costs, 'there'):.0f}"


class _GeodeSites:
    """Members of Geode, each with a locator."""

    def __init__(self, site: Program, other: Program, client: Program) -> None:
        self.here, self.there = site.process, other.process
        self._site, self._other, self._client = site, other, client
        self._region = ""

    def begin(self, gateway: str) -> None:
        self._region = gateway
        for each in (self._site, self._other):
            each.ask("clear")

    def put(self, call: str, count: int) -> float:
        each = {"put": [], "commit": [TRANSACTION], "put-all": [BATCH]}[call]
        return float(self._client.ask(call, self._region, count, _BYTES, *each)[0])

    def pause(self) -> None:
        self._site.ask("pause", self._region)

    def resume(self) -> None:
        self._site.ask("resume", self._region)

    def arrive(self, count: int) -> None:
        self._other.ask("await", self._region, count)

    def arrived(self) -> int:
        return int(self._other.ask("count", self._region)[0])


class _HoldfastSites:
    """Our servers, of which each work has a new region."""

    def __init__(self, site: Site, other: Site) -> None:
        self.here, self.there = site.process, other.process
        self._site, self._other = site, other
        self._region = ""
        self._regions = 0
        self._has_gateway = False

    def begin(self, gateway: str) -> None:
        if self._has_gateway:
            self._site.ask("destroy_gateway", name="bench")
        self._regions += 1
        self._region = f"{gateway} {self._regions}"
        for each in (self._site, self._other):
            each.ask("create_region", region=self._region)
        self._has_gateway = gateway != "alone"
        if self._has_gateway:
            options = {"group_transaction_events": True} if gateway == "grouped" else {}
            self._site.gateway(self._other.url, f"region:{self._region}", "running", **options)

    def put(self, call: str, count: int) -> float:
        value = bytes(_BYTES)
        mode = AcknowledgeMode.TRANSACTED if call == "commit" else AcknowledgeMode.AUTO
        with ConnectionFactory(self._site.url).create_connection() as connection:
            session = connection.create_session(mode)
            region = session.create_region(self._region)
            started = time.perf_counter()
            if call == "put-all":
                for first in range(0, count, BATCH):
                    region.put_all({f"key {number}": value for number in range(first, min(first + BATCH, count))})
            else:
                for number in range(count):
                    region.put(f"key {number}", value)
                    if call == "commit" and (number % TRANSACTION == TRANSACTION - 1 or number == count - 1):
                        session.commit()
            return time.perf_counter() - started

    def pause(self) -> None:
        self._site.ask("change_gateway", name="bench", state="paused")

    def resume(self) -> None:
        self._site.ask("change_gateway", name="bench", state="running")

    def arrive(self, count: int) -> None:
        self._site.wait_until_sent()

    def arrived(self) -> int:
        return len(self._other.connection.create_session().create_region(self._region).keys())


@contextmanager
def geode_sites(start: Start, directory: Path, *, on_disk: bool) -> Iterator[Sites]:
    """Geode's.

    Args:
        start: starts its programs.
        directory: for their files.
        on_disk: whether they store regions and queues there, each write synced.
    """
    ports = _free_ports(2)
    properties = ("gemfire.syncWrites=true", "gemfire.ALLOW_PERSISTENT_TRANSACTIONS=true") if on_disk else ()
    started = []
    for number, (port, other) in enumerate((ports, ports[::-1]), start=1):
        place = directory / f"site-{number}"
        place.mkdir(parents=True)
        arguments = number, port, other, "disk" if on_disk else "memory"
        started.append(start("GeodeSite", *arguments, properties=properties, directory=place))
    (here, (port_of_server, _)), (there, _) = started
    client, _ = start("GeodePutter", port_of_server)
    yield _GeodeSites(here, there, client)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def holdfast_sites(directory: Path) -> Iterator[Sites]:
    """Ours.

    Args:
        directory: for their stores.
    """
    with (
        ServerProcess(directory / "one", "--site", "1", new=True) as one,
        ServerProcess(directory / "two", "--site", "2", new=True) as two,
    ):
        here, there = Site(one), Site(two)
        yield _HoldfastSites(here, there)
        for site in (here, there):
            site.connection.close()
