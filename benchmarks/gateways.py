"""A gateway between two sites: what it costs those who send and put, and how fast it sends."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks import modes
from benchmarks.report import Figure
from sdk import AcknowledgeMode, Connection, ConnectionFactory
from tests.server_process import ServerProcess

_WAIT = 600.0
#: Times that each load runs, with a gateway and without in turn.
_TURNS = 5
_LOOK_SECONDS = 0.01
_MODE = AcknowledgeMode.DUPS_OK


class Site:
    """A server, and a connection to it."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
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

    def gateway(self, there: Site, destination: str, state: str, **options: object) -> None:
        self.ask("create_gateway", name="bench", url=there.url, destinations=[destination], state=state, **options)

    def wait_until_sent(self) -> None:
        deadline = time.monotonic() + _WAIT
        while self.ask("gateways", name="bench")[0]["waiting"]:  # type: ignore[index]
            if time.monotonic() > deadline:
                raise TimeoutError("the gateway does not send")
            time.sleep(_LOOK_SECONDS)


def _send(site: Site, name: str, messages: int) -> float:
    sent = modes.send(site.url, name, messages, AcknowledgeMode.AUTO)
    return messages / (sent["ended"] - sent["started"])


def _put(site: Site, name: str, keys: int) -> float:
    """Keys that were put a second, one at a time."""
    with ConnectionFactory(site.url).create_connection() as connection:
        region = connection.create_session().create_region(name)
        body = "x" * modes.BODY_BYTES
        started = time.perf_counter()
        for number in range(keys):
            region.put(f"key {number}", body)
        return keys / (time.perf_counter() - started)


def _beside(
    here: Site, there: Site, what: str, kind: str, act: Callable[[Site, str, int], float], count: int
) -> Iterator[Figure]:
    """A load with a gateway that is paused, with one that sends, and without."""
    found: dict[str, list[float]] = {"without a gateway": [], "which is paused": [], "which sends": []}
    costs: dict[str, list[float]] = {each: [] for each in found}
    for turn in range(_TURNS):
        for each, rates in found.items():
            name = f"{what} {each} {turn}"
            if each != "without a gateway":
                here.gateway(there, f"{kind}:{name}", "running" if each == "which sends" else "created")
            if kind == "region":
                for site in (here, there):
                    site.ask("create_region", region=name)
            before = here.cpu()
            rates.append(act(here, name, count))
            if each == "which sends":
                here.wait_until_sent()
            costs[each].append((here.cpu() - before) / count * 1e6)
            if each != "without a gateway":
                here.ask("destroy_gateway", name="bench")
            if kind == "queue":
                for site in (here, there):
                    if any(queue.name == name for queue in site.connection.statistics().queues):
                        site.ask("delete", destination=name)
    plain = statistics.median(found["without a gateway"])
    for each in ("which is paused", "which sends"):
        pairs = zip(found[each], found["without a gateway"], strict=True)
        ratio = statistics.median(with_one / without for with_one, without in pairs)
        yield Figure(
            name=f"{what}, to a {kind} of a gateway {each}",
            value=statistics.median(found[each]),
            unit=f"{'messages' if kind == 'queue' else 'keys'}/s",
            yardstick=f"without a gateway {plain:,.0f}",
            ratio=ratio,
            goal="at least 0.7" if each == "which sends" else None,
            body_bytes=modes.BODY_BYTES,
            producers=1,
            note=f"us CPU of this server each: {statistics.median(costs[each]):.0f}, without a gateway"
            f" {statistics.median(costs['without a gateway']):.0f}; medians of {_TURNS}",
        )


def _catch_up(here: Site, there: Site, messages: int) -> Figure:
    """What waited is sent, against an SDK consumer that receives the same at the other site."""
    here.gateway(there, "queue:backlog", "created")
    modes.send(here.url, "backlog", messages, AcknowledgeMode.AUTO)
    memory = [site.memory() for site in (here, there)]
    cpu = [site.cpu() for site in (here, there)]
    started = time.perf_counter()
    here.ask("change_gateway", name="bench", state="running")
    here.wait_until_sent()
    seconds = time.perf_counter() - started
    used = [(site.cpu() - before) / messages * 1e6 for site, before in zip((here, there), cpu, strict=True)]
    grown = [site.memory() - before for site, before in zip((here, there), memory, strict=True)]
    batches = here.ask("gateways", name="bench")[0]["batches"]  # type: ignore[index]
    here.ask("destroy_gateway", name="bench")
    received = modes.receive(there.url, "backlog", messages, _MODE)  # which checks their order
    yardstick = messages / (received["ended"] - received["started"])
    return Figure(
        name=f"{messages:,} messages that waited, until the other site has them",
        value=messages / seconds,
        unit="messages/s",
        yardstick=f"an SDK consumer receives {yardstick:,.0f}",
        ratio=messages / seconds / yardstick,
        goal="20,000/s, ratio at least 1",
        body_bytes=modes.BODY_BYTES,
        note=f"{batches} batches; us CPU each: here {used[0]:.0f}, there {used[1]:.0f}; memory of the servers grew by"
        f" {grown[0] / 2**20:.0f} and {grown[1] / 2**20:.0f} MiB; consumer {_MODE.name}",
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
        yield from _beside(here, there, "put", "region", _put, 2000 // share)
        yield _catch_up(here, there, 100_000 // share)
        for site in (here, there):
            site.connection.close()
