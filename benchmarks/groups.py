"""A group of servers: what it costs the clients of one, and how long takeovers and restarts keep them waiting.

``make bench-group``, or ``python -m benchmarks.groups [--json] [--quick] [--only NAME]``.  Fetches what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from benchmarks import artemis_pair, copies, large_group, modes
from benchmarks.nodes import Group
from benchmarks.programs import cpu_of
from benchmarks.report import Figure, beside, show
from broker_adapter.settings import FailoverSettings
from sdk import ConnectionFactory

_TURNS: Final = 5
_WAIT: Final = 60.0
#: From one rolling restart to the next, in seconds: more than ``stable_seconds``.
_PAUSE: Final = 3.0


def _beside_a_server(directory: Path, messages: int) -> Iterator[Figure]:
    """AUTO end to end and synchronous sends, with one further node in sync, beside a single server."""
    rates: dict[str, list[float]] = {"single": [], "group": []}
    costs: dict[str, list[float]] = {"single": [], "group": [], "second": []}
    medians: dict[str, list[float]] = {"single": [], "group": []}
    with ExitStack() as stack:
        single, process = stack.enter_context(modes.server(directory / "single"))
        group = stack.enter_context(Group(directory / "group", 2))
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
        Group(directory, 3, lease) as group,
        ConnectionFactory(group.url).create_connection() as connection,
        connection.create_session() as session,
    ):
        connection.start()
        queue = session.create_queue("takeover")
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        for turn in range(rounds):
            primary = group.wait_for(3)["primary"]
            time.sleep(FailoverSettings().stable_seconds)  # else the client takes its connection for one that failed
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


def _takeovers(directory: Path, share: int) -> Iterator[Figure]:
    rounds = max(3, 30 // share)
    yield _takeover(directory / "kill", 2.0, signal.SIGKILL, "below 3 s", rounds)
    yield _takeover(directory / "short", 0.5, signal.SIGKILL, "below 1 s", rounds)
    yield _takeover(directory / "stop", 2.0, signal.SIGTERM, "below 0.3 s", rounds)


def _rolling(directory: Path, rounds: int) -> Iterator[Figure]:
    """Restarts of all three nodes, one after the other, under a load: those that follow, a hand-over, the last one."""
    pauses: dict[str, list[float]] = {"producer": [], "consumer": []}
    with Group(directory, 3) as group:
        load = artemis_pair.Load(group.url)
        for _ in range(rounds):
            time.sleep(_PAUSE)
            began = time.perf_counter()
            primary = group.wait_for(3)["primary"]
            others = [name for name in group.ports if name != primary]
            for name in others:
                group.restart(name)
            group.hand_over(others[0])
            group.restart(primary)
            ended = time.perf_counter()
            while not load.has_come_since(ended):
                time.sleep(0.01)
            pauses["producer"].append(longest_pause(list(load.seen.confirmed.values()), began, ended))
            pauses["consumer"].append(longest_pause([when for _, when in load.seen.arrived], began, ended))
        seen = load.finish()
    found = artemis_pair.judged(seen)
    for who, times in pauses.items():
        yield Figure(
            name=f"rolling restart, longest pause at a {who}, p50 of {rounds}",
            value=statistics.median(times),
            unit="s",
            goal="0 lost, 0 doubled",
            note=f"longest {max(times):.2f}; of {len(seen.confirmed)} confirmed {len(found.lost)} lost,"
            f" {len(found.doubled)} doubled; errors {seen.raised[:3]}",
        )


def longest_pause(times: Sequence[float], first: float, last: float) -> float:
    """The longest time between two neighbours in a rising sequence, of those that reach into a span."""
    pairs = itertools.pairwise(times)
    return max(later - earlier for earlier, later in pairs if later >= first and earlier <= last)


#: What ``--only`` takes; those beside Artemis and the large store take 20 minutes, and are run where they are named.
PARTS: Final[dict[str, Callable[[Path, int], Iterator[Figure]]]] = {
    "server": lambda directory, share: _beside_a_server(directory, 40_000 // share),
    "takeover": _takeovers,
    "restart": lambda directory, share: _rolling(directory / "restart", max(2, 20 // share)),
    "large": large_group.figures,
    "artemis": lambda directory, share: artemis_pair.rates(directory, 40_000 // share, 5),
    "artemis-kills": lambda directory, share: artemis_pair.kills(directory, max(3, 50 // share)),
}
_BY_DEFAULT: Final = ("server", "takeover", "restart")


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.groups", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a tenth of it: to see that it runs")
    parser.add_argument("--only", metavar="NAME", choices=PARTS, help=f"only this part: {', '.join(PARTS)}")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # servers are killed here
    found: list[Figure] = []
    for name in _BY_DEFAULT if options.only is None else (options.only,):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            found += PARTS[name](Path(directory), 10 if options.quick else 1)
    show(found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
