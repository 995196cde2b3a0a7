"""Our servers beside those of Apache Geode: puts that absent durable clients want, and gateways between two sites.

``make bench-geode``, or ``python -m benchmarks.geode [--json] [--only clients|gateways] ...``. Fetches Geode with Maven
into ``.interop`` where it is not there. Needs Maven and a JDK, and says in one line which of their programs is missing
(exit status 1). The gateways are in :mod:`benchmarks.geode_sites`.

Theory of operation of the clients: a *side* is a server in a process of its own and a program that is its client. Both
sides do the same, one after the other: warm up, put with no client away, with one durable client away, and with many,
and have the first client come back. CPU time is that of processes, as the system counts it. What is stored is in Geode
the heap after a collection, and here the records on disk. The puts change the same keys again and again, so that what a
put adds is what waits for the clients.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import lmdb
import psutil
from rich.console import Console

from benchmarks import geode_sites
from benchmarks.geode_java import java_programs
from benchmarks.modes import server
from benchmarks.programs import Failed, Program, cpu_of, exit_when_terminated, lacks_java
from benchmarks.report import Figure, show
from sdk import Connection, ConnectionFactory, Region, RegionEvent, RegionListener, ResultPolicy
from tests.interop import install

_WAIT = 600.0
_BATCH = 100
_KEYS = 1_000
_BYTES = 100
#: How long a client stays that was told everything, so that Geode's server learns of it.
_CALM_SECONDS = 2.0
#: A heap is not told more exactly: what grows by less has no ratio.
_EXACT_BYTES = 1 << 20


class Side(Protocol):
    """A server, and its clients of which one at a time is connected."""

    process: psutil.Process  #: the server's
    client: psutil.Process
    may_repeat: bool  #: whether events may be told once more that were told right before a client left

    def stored(self) -> int:
        """Bytes of what the server keeps."""

    def connect(self, client: str | None = None) -> None:
        """Connect a client that puts, or a durable one that wants all keys."""

    def put(self, count: int) -> None:
        """Put so many values."""

    def ready(self) -> int:
        """Have the durable client told what waits for it; how many events that was."""

    def leave(self, *, keep: bool = True) -> None:
        """Disconnect; what a durable client wants waits for it from then on, unless it is not kept."""


@attrs.frozen
class Puts:
    """What puts cost a server: of each put, the CPU time in microseconds and the bytes stored."""

    away: int
    count: int
    cpu: float
    stored: float


@attrs.frozen
class Return:
    """A durable client's return: seconds until it was told all events, and the CPU time that each cost both ends."""

    away: int
    count: int
    seconds: float
    cpu: float
    client_cpu: float


def compared(version: str, holdfast: Sequence[Puts | Return], geode: Sequence[Puts | Return]) -> Iterator[Figure]:
    """What both have measured, line by line.

    Args:
        version: of Geode.
        holdfast, geode: the same measurements, in the same order.
    """
    for ours, theirs in zip(holdfast, geode, strict=True):
        if isinstance(ours, Puts) and isinstance(theirs, Puts):
            name = f"put, {_away(ours.away)}"
            exact = _EXACT_BYTES / theirs.count
            yield _figure(version, f"{name}: server's CPU", "us", ours.cpu, theirs.cpu)
            yield _figure(version, f"{name}: stored", "bytes", ours.stored, theirs.stored, exact)
        elif isinstance(ours, Return) and isinstance(theirs, Return):
            name = f"return to {ours.count:,} events, {_away(ours.away)}"
            yield _figure(version, f"{name}: until told", "s", ours.seconds, theirs.seconds, told=1)
            yield _figure(version, f"{name}: server's CPU an event", "us", ours.cpu, theirs.cpu, told=1)
            yield _figure(version, f"{name}: client's CPU an event", "us", ours.client_cpu, theirs.client_cpu, told=1)
        else:
            raise TypeError(f"{ours} is compared with {theirs}")


def _away(clients: int) -> str:
    return {0: "no client away", 1: "1 client away"}.get(clients, f"{clients:,} clients away")


def _figure(
    version: str, name: str, unit: str, ours: float, theirs: float, exact: float = 0.0, told: int = 0
) -> Figure:
    return Figure(
        name=name,
        value=ours,
        unit=unit,
        yardstick=f"Geode {version}: {_number(theirs)} {unit}",
        ratio=ours / theirs if theirs > exact else None,
        body_bytes=_BYTES,
        producers=1 - told,
        consumers=told,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def measured(side: Side, puts: int, clients: int, say: Callable[[str], None]) -> Iterator[Puts | Return]:
    """Put and come back, with more and more durable clients away.

    Args:
        side: whose server is measured.
        puts: how many, each time.
        clients: how many are away in the end.
        say: told what happens.

    Raises:
        Failed: a client that came back was told another number of events.
    """
    say("warms up")
    _warm_up(side, 2 * puts)
    gone = 0
    for away in sorted({0, 1, clients}):
        say(f"puts with {away} durable clients away")
        for number in range(gone, away):
            side.connect(f"client-{number}")
            side.leave()
        gone = away
        side.connect()
        stored = side.stored()
        cpu = cpu_of([side.process])
        side.put(puts)
        cpu = cpu_of([side.process]) - cpu
        stored = side.stored() - stored
        side.leave()
        yield Puts(away, puts, cpu / puts * 1e6, stored / puts)
        if away:
            yield _returned(side, puts, away)


def _warm_up(side: Side, puts: int) -> None:
    """All that is measured once, with a client that is not kept: Java compiles what runs often."""
    side.connect("first")
    side.leave()
    side.connect()
    side.put(puts)
    side.leave()
    side.connect("first")
    side.ready()
    side.leave(keep=False)


def _returned(side: Side, events: int, away: int) -> Return:
    """The first client comes back to so many events, and leaves again."""
    side.connect("client-0")
    cpu, client, started = cpu_of([side.process]), cpu_of([side.client]), time.perf_counter()
    told = side.ready()
    seconds = time.perf_counter() - started
    cpu, client = cpu_of([side.process]) - cpu, cpu_of([side.client]) - client
    time.sleep(_CALM_SECONDS)
    side.leave()
    if told < events or (told > events and not side.may_repeat):
        raise Failed(f"{told} of {events} events were told")
    return Return(away, events, seconds, cpu / told * 1e6, client / told * 1e6)


class _Geode:
    """Geode's server and client."""

    may_repeat = True

    def __init__(self, serving: Program, client: Program) -> None:
        self.process = serving.process
        self.client = client.process
        self._server = serving
        self._program = client

    def stored(self) -> int:
        return int(self._server.ask("heap")[0])

    def connect(self, client: str | None = None) -> None:
        self._program.ask("connect", *([] if client is None else [client]))

    def put(self, count: int) -> None:
        self._program.ask("put", count, _BATCH, _KEYS, _BYTES)

    def ready(self) -> int:
        return int(self._program.ask("ready")[0])

    def leave(self, *, keep: bool = True) -> None:
        self._program.ask("leave" if keep else "end")


class _Holdfast:
    """Our server and client."""

    may_repeat = False

    def __init__(self, url: str, process: psutil.Process, directory: Path) -> None:
        self.process = process
        self.client = psutil.Process()
        self._factory = ConnectionFactory(f"{url}?request_timeout_seconds={_WAIT:.0f}")
        self._directory = directory
        self._connection: Connection
        self._region: Region
        self._listener: _Counter

    def stored(self) -> int:
        """Nothing is put meanwhile; what no client wants any more is removed a little later."""
        before, size = -1, 0
        while size != before:
            before, size = size, _bytes_of(self._directory)
            time.sleep(0.5)
        return size

    def connect(self, client: str | None = None) -> None:
        self._connection = self._factory.create_connection(client_id=client)
        self._connection.start()
        self._region = self._connection.create_session().create_region("quotes")
        if client is not None:
            self._listener = _Counter()
            self._region.add_listener(self._listener)
            self._region.register_interest(all_keys=True, durable=True, result_policy=ResultPolicy.NONE)

    def put(self, count: int) -> None:
        value = bytes(_BYTES)
        for first in range(0, count, _BATCH):
            numbers = range(first, min(first + _BATCH, count))
            self._region.put_all({f"key {number % _KEYS}": value for number in numbers})

    def ready(self) -> int:
        self._connection.ready_for_events()
        if not self._listener.live.wait(_WAIT):
            raise Failed("not all events were told")
        return self._listener.events

    def leave(self, *, keep: bool = True) -> None:
        self._connection.close(keep_alive=keep and self._connection.client_id is not None)


class _Counter(RegionListener):
    """Counts the events of a client until all that waited have come."""

    def __init__(self) -> None:
        self.events = 0
        self.live = threading.Event()

    def after_create(self, event: RegionEvent) -> None:
        self.events += 1

    def after_update(self, event: RegionEvent) -> None:
        self.events += 1

    def after_region_live(self, region: str) -> None:
        self.live.set()


def _bytes_of(directory: Path) -> int:
    """What the records of a store take, which a server has open."""
    with lmdb.open(str(directory), readonly=True, max_dbs=100) as store, store.begin() as txn:
        with txn.cursor() as cursor:
            tables = [store.open_db(name, txn, create=False) for name in cursor.iternext(values=False)]
        return sum(len(key) + len(value) for table in tables for key, value in txn.cursor(table))


@contextmanager
def _geode() -> Iterator[tuple[_Geode, str]]:
    """Geode's side, and its version."""
    with java_programs() as start:
        serving, (port, version) = start("GeodeServer")
        client, _ = start("GeodeClient", port)
        yield _Geode(serving, client), version


def clients_compared(clients: int, puts: int, say: Callable[[str], None]) -> Iterator[Figure]:
    """Puts that durable clients want which are away, and their return.

    Args:
        clients: that are away in the end.
        puts: each time.
        say: told what happens.
    """
    say("Geode is fetched ...")
    with _geode() as (geode, version):
        theirs = list(measured(geode, puts, clients, lambda what: say(f"Geode {what} ...")))
    with tempfile.TemporaryDirectory() as directory, server(Path(directory) / "store") as (url, process):
        holdfast = _Holdfast(url, process, Path(directory) / "store")
        ours = list(measured(holdfast, puts, clients, lambda what: say(f"Holdfast {what} ...")))
    yield from compared(version, ours, theirs)


def sites_compared(puts: int, backlog: int, warm_up: int, turns: int, say: Callable[[str], None]) -> Iterator[Figure]:
    """Puts at a site with a gateway to another one, and what the gateway sends.

    Args:
        puts: of each work.
        backlog: events that wait.
        warm_up, turns: how often all is done before it is measured, and then.
        say: told what happens.
    """
    say("Geode is fetched ...")
    with tempfile.TemporaryDirectory() as directory, java_programs() as start:
        place = Path(directory)
        with (
            geode_sites.holdfast_sites(place) as ours,
            geode_sites.geode_sites(start, place / "memory", on_disk=False) as in_memory,
            geode_sites.geode_sites(start, place / "disk", on_disk=True) as on_disk,
        ):
            sites = {"Holdfast": ours, "Geode in memory": in_memory, "Geode on disk, synced": on_disk}
            found = geode_sites.measured(sites, puts, backlog, warm_up, turns, say)
    yield from geode_sites.compared(found, puts, backlog)


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.geode", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--only", choices=("clients", "gateways"), help="one part only")
    for name, default, what in (
        ("clients", 30, "durable clients away in the end"),
        ("puts", 20_000, "puts each time that durable clients want"),
        ("gateway-puts", 6_000, "puts each time at a site with a gateway"),
        ("backlog", 50_000, "events that wait for a gateway"),
        ("warm-up", 2, "turns of the gateways before they are measured"),
        ("turns", 5, "turns of the gateways that are measured"),
    ):
        parser.add_argument(f"--{name}", type=_count, default=default, metavar="N", help=f"{what} ({default:,})")
    options = parser.parse_args()
    if lacks_java():
        return 1
    exit_when_terminated()
    logging.disable(logging.WARNING)
    figures: list[Figure] = []
    try:
        with Console(stderr=True).status("...") as status:
            if options.only != "gateways":
                figures += clients_compared(options.clients, options.puts, status.update)
            if options.only != "clients":
                counts = options.gateway_puts, options.backlog, options.warm_up, options.turns
                figures += sites_compared(*counts, status.update)
    except (install.CannotInstall, Failed) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    show(figures, options.json)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
