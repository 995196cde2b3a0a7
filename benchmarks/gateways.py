"""A gateway between two sites: what it costs those who send and put, and how fast it sends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks import modes
from benchmarks.delayed_line import DelayedLine
from benchmarks.report import Figure, beside
from sdk import AcknowledgeMode, Connection, ConnectionFactory
from tests.server_process import ServerProcess

_WAIT = 600.0
#: Times that each load runs, with a gateway and without in turn.
_TURNS = 5
_LOOK_SECONDS = 0.01
#: Delay of a long line, each way, in seconds.
_DELAY = 0.05
_MODE = AcknowledgeMode.DUPS_OK


class Site:
    """A server, and a connection to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.url, self.port = server.url, server.port
        self.process = psutil.Process(server.pid)
        self.connection: Connection = ConnectionFactory(server.url).create_connection()

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Bytes in memory that are not pages of the store."""
        info = self.process.memory_info()
        return int(info.rss - info.shared)

    def ask(self, operation: str, **arguments: object) -> object:
        return self.connection.request(operation, arguments)

    def gateway(self, url: str, destination: str, state: str, **options: object) -> None:
        self.ask("create_gateway", name="bench", url=url, destinations=[destination], state=state, **options)

    def wait_until_sent(self, look: Callable[[int], None] = lambda waiting: None) -> None:
        """Wait until nothing waits; ``look`` is called with how much does meanwhile."""
        deadline = time.monotonic() + _WAIT
        while waiting := self.ask("gateways", name="bench")[0]["waiting"]:  # type: ignore[index]
            look(waiting)
            if time.monotonic() > deadline:
                raise TimeoutError("the gateway does not send")
            time.sleep(_LOOK_SECONDS)


def _send(site: Site, name: str, messages: int) -> float:
    sent = modes.send(site.url, name, messages, AcknowledgeMode.AUTO)
    return messages / (sent["ended"] - sent["started"])


def _commit(site: Site, name: str, keys: int) -> float:
    """Keys that were put a second, ten in a transaction."""
    with ConnectionFactory(site.url).create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        region = session.create_region(name)
        body = "x" * modes.BODY_BYTES
        started = time.perf_counter()
        for number in range(keys):
            region.put(f"key {number}", body)
            if number % 10 == 9:
                session.commit()
        session.commit()
        return keys / (time.perf_counter() - started)


def _put(site: Site, name: str, keys: int) -> float:
    """Keys that were put a second, one at a time."""
    with ConnectionFactory(site.url).create_connection() as connection:
        region = connection.create_session().create_region(name)
        body = "x" * modes.BODY_BYTES
        started = time.perf_counter()
        for number in range(keys):
            region.put(f"key {number}", body)
        return keys / (time.perf_counter() - started)


class _Variant(NamedTuple):
    """A gateway beside which the same is done as without one."""

    name: str
    state: str
    grouping: bool
    yardstick: str  #: the variant with which it is compared
    goal: str | None


_WITHOUT: Final = "without a gateway"
_VARIANTS: Final = (
    _Variant("of a gateway which is paused", "created", False, _WITHOUT, None),
    _Variant("of a gateway which sends", "running", False, _WITHOUT, "at least 0.7"),
    _Variant(
        "of a gateway which keeps transactions whole", "running", True, "of a gateway which sends", "at least 0.95"
    ),
)


def _beside(
    here: Site, there: Site, what: str, kind: str, act: Callable[[Site, str, int], float], count: int
) -> Iterator[Figure]:
    """A load without a gateway, and with each of the variants, in turn."""
    found: dict[str, list[float]] = {each: [] for each in (_WITHOUT, *(variant.name for variant in _VARIANTS))}
    costs: dict[str, list[float]] = {each: [] for each in found}
    variants = {each.name: each for each in _VARIANTS}
    for turn in range(_TURNS):
        for each, rates in found.items():
            name, variant = f"{what} {each} {turn}", variants.get(each)
            if kind == "region":
                for site in (here, there):
                    site.ask("create_region", region=name)
            if variant is not None:
                here.gateway(there.url, f"{kind}:{name}", variant.state, group_transaction_events=variant.grouping)
            before = here.cpu()
            rates.append(act(here, name, count))
            if variant is not None:
                if variant.state == "running":
                    here.wait_until_sent()
                here.ask("destroy_gateway", name="bench")
            costs[each].append((here.cpu() - before) / count * 1e6)
            if kind == "queue":
                for site in (here, there):
                    if any(queue.name == name for queue in site.connection.statistics().queues):
                        site.ask("delete", destination=name)
    for variant in _VARIANTS:
        yield beside(
            *(f"{what}, to a {kind} {variant.name}", found[variant.name], found[variant.yardstick]),
            *(f"{'messages' if kind == 'queue' else 'keys'}/s", variant.yardstick),
            f"us CPU of this server each: {statistics.median(costs[variant.name]):.0f}, {variant.yardstick}"
            f" {statistics.median(costs[variant.yardstick]):.0f}; ",
            goal=variant.goal,
            body_bytes=modes.BODY_BYTES,
            producers=1,
        )


class _CaughtUp(NamedTuple):
    """What it took to send what waited."""

    rate: float  #: messages a second, from the first answer on: what goes ahead of it is the login
    cpu: Sequence[float]  #: us a message of either server
    grown: Sequence[float]  #: MiB by which the memory of either server was larger at the most
    batches: int


def _catch_up(here: Site, there: Site, messages: int, url: str) -> _CaughtUp:
    """Send what waits in the queue ``backlog``; ``url``: the way to the other site."""
    here.gateway(url, "queue:backlog", "created")
    modes.send(here.url, "backlog", messages, AcknowledgeMode.AUTO)
    memory, cpu = [site.memory() for site in (here, there)], [site.cpu() for site in (here, there)]
    most = list(memory)
    times: list[tuple[float, int]] = []  # from the first answer on: when, and how many waited

    def look(waiting: int) -> None:
        most[:] = map(max, most, (site.memory() for site in (here, there)))
        if waiting < messages:
            times.append((time.perf_counter(), waiting))

    here.ask("change_gateway", name="bench", state="running")
    here.wait_until_sent(look)
    (first, waited), ended = times[0], time.perf_counter()
    used = [(site.cpu() - before) / messages * 1e6 for site, before in zip((here, there), cpu, strict=True)]
    batches = here.ask("gateways", name="bench")[0]["batches"]  # type: ignore[index]
    here.ask("destroy_gateway", name="bench")
    here.ask("delete", destination="backlog")
    grown = [(now - before) / 2**20 for now, before in zip(most, memory, strict=True)]
    return _CaughtUp(waited / (ended - first), used, grown, batches)


def _beside_a_consumer(here: Site, there: Site, messages: int) -> Figure:
    """What waited is sent, against an SDK consumer that receives the same at the other site."""
    found = _catch_up(here, there, messages, there.url)
    received = modes.receive(there.url, "backlog", messages, _MODE)  # which checks their order
    yardstick = messages / (received["ended"] - received["started"])
    return Figure(
        name=f"{messages:,} messages that waited, until the other site has them",
        value=found.rate,
        unit="messages/s",
        yardstick=f"an SDK consumer receives {yardstick:,.0f}",
        ratio=found.rate / yardstick,
        goal="20,000/s, ratio at least 1, 64 MiB",
        body_bytes=modes.BODY_BYTES,
        note=f"{found.batches} batches; us CPU each: here {found.cpu[0]:.0f}, there {found.cpu[1]:.0f}; memory of the"
        f" servers grew by {found.grown[0]:.0f} and {found.grown[1]:.0f} MiB at the most; consumer {_MODE.name}",
    )


def _far_away(here: Site, there: Site, messages: int) -> Figure:
    """What waited is sent over a line with a delay, against the same line without one."""
    rates: dict[float, list[float]] = {0.0: [], _DELAY: []}
    for _ in range(_TURNS):
        for seconds, found in rates.items():
            with DelayedLine(there.port, seconds) as line:
                found.append(_catch_up(here, there, messages, line.url).rate)
            there.ask("delete", destination="backlog")
    return beside(
        f"{messages:,} messages that waited, over a line with {_DELAY * 1000:.0f} ms each way",
        *(rates[_DELAY], rates[0.0], "messages/s", "without a delay"),
        goal="at least 0.8",
        body_bytes=modes.BODY_BYTES,
    )


def _to_a_topic(here: Site, messages: int) -> Figure:
    """Messages to a topic with two durable subscriptions, against those to a queue."""
    with here.connection.create_session() as session:
        for name in ("one", "two"):
            session.create_shared_durable_consumer(session.create_topic("news"), name).close()
    cpu: dict[str, list[float]] = {"queue": [], "topic": []}
    for _ in range(_TURNS):
        for kind, found in cpu.items():
            before = here.cpu()
            modes.send(here.url, "news", messages, AcknowledgeMode.AUTO, is_topic=kind == "topic")
            found.append((here.cpu() - before) / messages * 1e6)
    return beside(
        "CPU of the server for a message to a topic with two durable subscriptions",
        *(cpu["topic"], cpu["queue"], "us", "to a queue"),
        goal="at most 1.5",
        body_bytes=modes.BODY_BYTES,
        producers=1,
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    with (
        ServerProcess(directory / "one", "--site", "1", new=True) as one,
        ServerProcess(directory / "two", "--site", "2", new=True) as two,
    ):
        here, there = Site(one), Site(two)
        yield from _beside(here, there, "send", "queue", _send, 20_000 // share)
        yield from _beside(here, there, "commit 10 keys", "region", _commit, 5000 // share)
        yield from _beside(here, there, "put", "region", _put, 2000 // share)
        yield _to_a_topic(here, 20_000 // share)
        for messages in (100_000, 1_000_000):
            yield _beside_a_consumer(here, there, messages // share)
            there.ask("delete", destination="backlog")
        yield _far_away(here, there, 100_000 // share)
        for site in (here, there):
            site.connection.close()
