"""The same messages through two brokers and two clients: Artemis and our server, Qpid JMS and the SDK, in four pairs.

``make bench-peers``, or ``python -m benchmarks.peers [--json] [--messages N] [--warm-up N] [--turns N]``. Fetches
Artemis and Qpid JMS with Maven into ``.interop`` where they are not there. Needs Maven and a JDK, and says in one line
which of their programs is missing (exit status 1).

Theory of operation: a *pair* is a broker and a kind of client. It is three processes over loopback: a producer, the
broker, and a consumer. All pairs are started and do all works once to warm up, as Java compiles what runs often: after
20,000 messages of each work Artemis still took twice the CPU that it takes after 100,000. Then they take turns at each
work, several times, so that all have their part in what else the machine does meanwhile; what is shown of a pair's
turns is the middle one by its CPU time. CPU time is that of the processes, as the system counts it, from before a work
is told until all is acknowledged and the sessions are closed. Each time is a queue of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.jms_client import BATCH, BODY_BYTES
from benchmarks.programs import Failed, Program, cpu_of, exit_when_terminated, lacks_java
from tests.interop import install
from tests.interop.brokers.brokers import Broker, start_artemis, start_holdfast

_JAVA = Path(__file__).parent / "java" / "jms"
_WINDOW = 1000
#: What Artemis keeps in memory by its settings here, with room to spare: more would go to disk page by page.
_MOST_MESSAGES = 100_000
_HEADING = f"""\
{{messages:,}} messages each time, after {{warm_up:,}} to warm up; of {{turns}} turns the middle one by its CPU time.
Persistent, {BODY_BYTES:,} bytes and a string property; one producer, the broker and one consumer, over loopback.
Both clients send asynchronously with a completion listener, {_WINDOW:,} unanswered at most, and call receive() with a
prefetch of {_WINDOW:,}. They acknowledge without an answer: in AUTO both each message, in DUPS_OK Qpid JMS each message
and the SDK a batch. TRANSACTED: {BATCH} messages a commit, which both wait for; the SDK sends them then, Qpid JMS at
once, without waiting. The ratios are those to the first pair."""


@attrs.frozen
class Work:
    """What a producer, a consumer or both are told to do.

    Attributes:
        name: for the table.
        mode: how messages are acknowledged.
        does: ``send``, ``receive`` or both; what only one of them does alone is for the next one.
    """

    name: str
    mode: str
    does: tuple[str, ...]


WORKS = (
    Work("AUTO, end to end", "AUTO", ("receive", "send")),
    Work("AUTO, send alone", "AUTO", ("send",)),
    Work("AUTO, receive alone", "AUTO", ("receive",)),
    Work("DUPS_OK, end to end", "DUPS_OK", ("receive", "send")),
    Work("TRANSACTED, end to end", "TRANSACTED", ("receive", "send")),
)


@attrs.frozen
class Cost:
    """Messages a second, and microseconds of CPU a message of each process."""

    rate: float
    producer: float
    broker: float
    consumer: float

    @property
    def together(self) -> float:
        """Microseconds of all processes."""
        return self.producer + self.broker + self.consumer


class Client(Protocol):
    """A producer's or consumer's process, which answers each line that it is told (``Program``)."""

    process: psutil.Process

    def tell(self, *words: object) -> None:
        """Send a line."""

    def answer(self) -> list[str]:
        """When the work began and when it ended."""


@attrs.frozen
class Pair:
    """A broker and clients of one kind, which run."""

    clients: Mapping[str, Client]  #: who does ``send`` and who does ``receive``
    broker: Sequence[psutil.Process]


def measured(
    pairs: Mapping[str, Pair], messages: int, warm_up: int, turns: int, say: Callable[[str], None]
) -> dict[str, list[Cost]]:
    """What each work costs each pair, after they have done all works once to warm up.

    Args:
        pairs: that take turns.
        messages: of each work.
        warm_up: messages of each work before.
        turns: how often each work is measured.
        say: told what happens.

    Raises:
        Failed: a client has ended, because of a message that was lost, doubled or out of order, or of an error.
    """
    for name, pair in pairs.items():
        say(f"{name}: warms up")
        for work in WORKS:
            _done(pair, work, "warm-up", warm_up)
    found: dict[str, list[list[Cost]]] = {name: [[] for _ in WORKS] for name in pairs}
    for turn in range(turns):
        for number, work in enumerate(WORKS):
            for name, pair in pairs.items():
                say(f"{name}: {work.name}, turn {turn + 1} of {turns}")
                found[name][number].append(_done(pair, work, f"turn-{turn}", messages))
    return {name: [middle(costs) for costs in works] for name, works in found.items()}


def middle(costs: Sequence[Cost]) -> Cost:
    """The one in the middle by CPU time; of an even number the cheaper one."""
    return sorted(costs, key=lambda cost: cost.together)[(len(costs) - 1) // 2]


def _done(pair: Pair, work: Work, round_name: str, messages: int) -> Cost:
    """Have a work done."""
    alone = len(work.does) == 1
    queue = f"peers.{round_name}.{work.mode}{'.alone' if alone else ''}"
    clients = {what: pair.clients[what] for what in work.does}
    before, broker = {what: cpu_of([client.process]) for what, client in clients.items()}, cpu_of(pair.broker)
    for what, client in clients.items():
        client.tell(what, queue, messages, work.mode)
    # The producer is heard first: where it fails, that is why the consumer gets nothing.
    times = [[float(word) for word in client.answer()] for client in reversed(list(clients.values()))]
    each = {what: (cpu_of([client.process]) - before[what]) / messages * 1e6 for what, client in clients.items()}
    broker = (cpu_of(pair.broker) - broker) / messages * 1e6
    return Cost(messages / seconds_of(times), each.get("send", 0.0), broker, each.get("receive", 0.0))


def seconds_of(times: Sequence[Sequence[float]]) -> float:
    """From the start of the first of these clients, which is the producer where there is one, until all have ended."""
    return max(ended for _, ended in times) - times[0][0]


def rows(found: Mapping[str, Sequence[Cost]]) -> list[dict[str, str | float]]:
    """A row for each work and pair, with the ratios to the first pair.

    Args:
        found: what each pair has measured, in the order of the works.
    """
    first = next(iter(found.values()))
    return [
        {
            "what": work.name,
            "pair": pair,
            "messages/s": cost.rate,
            "ratio of messages/s": cost.rate / base.rate,
            "producer": cost.producer,
            "broker": cost.broker,
            "consumer": cost.consumer,
            "CPU": cost.together,
            "ratio of CPU": cost.together / base.together,
        }
        for work, base, costs in zip(WORKS, first, zip(*found.values(), strict=True), strict=True)
        for pair, cost in zip(found, costs, strict=True)
    ]


def heading(messages: int, warm_up: int, turns: int) -> str:
    """The conditions, and what both clients do."""
    return _HEADING.format(messages=messages, warm_up=warm_up, turns=turns)


def table(found: Sequence[Mapping[str, str | float]]) -> Table:
    """Those rows."""
    shown = Table()
    shown.add_column("what")
    shown.add_column("broker, client")
    for column in ("messages/s", "ratio", "µs of CPU a message", "ratio", "producer", "broker", "consumer"):
        shown.add_column(column, justify="right")
    last = None
    for row in found:
        if last not in (None, row["what"]):
            shown.add_section()
        shown.add_row(
            str(row["what"]) if row["what"] != last else "",
            str(row["pair"]),
            f"{row['messages/s']:,.0f}",
            f"{row['ratio of messages/s']:.2f}",
            f"{row['CPU']:.1f}",
            f"{row['ratio of CPU']:.2f}",
            *(f"{row[who]:.1f}" for who in ("producer", "broker", "consumer")),
        )
        last = row["what"]
    return shown


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def _pair(start: Callable[[Path], Broker], command: Callable[[Broker], list[str]]) -> Iterator[Pair]:
    """A broker with data of its own, a producer and a consumer."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        broker = start(Path(directory))
        stack.callback(broker.process.stop)
        clients = {}
        for what in ("send", "receive"):
            clients[what] = Program(f"the client that is to {what}", command(broker))
            stack.callback(clients[what].stop)
        for client in clients.values():
            client.answer()
        yield Pair(clients, _tree(broker.process.pid))


def qpid_jms(classes: str, broker: Broker) -> list[str]:
    """The command that runs the client in Java."""
    url = f"{broker.url.partition('?')[0]}?jms.prefetchPolicy.all={_WINDOW}"
    return ["java", "-Xmx512m", "-cp", classes, "JmsClient", url, *_login(broker)]


def holdfast_sdk(broker: Broker) -> list[str]:
    """The command that runs the client with the SDK."""
    options = f"prefetch_messages={_WINDOW}&send_window_messages={_WINDOW}"
    url = f"{broker.url}{'&' if '?' in broker.url else '?'}{options}"
    return [sys.executable, "-m", "benchmarks.jms_client", url, *_login(broker)]


def _login(broker: Broker) -> list[str]:
    return [word for word in (broker.username, broker.password) if word is not None]


def _version_of_qpid_jms(classes: str) -> str:
    """Of the library in a class path."""
    libraries = Path(classes.rpartition(os.pathsep)[2]).parent
    found = sorted(libraries.glob("qpid-jms-client-*.jar"))
    return found[0].stem.rpartition("-")[2]


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--messages", type=int, default=40_000, metavar="N", help="messages each time (40,000)")
    parser.add_argument("--warm-up", type=int, default=100_000, metavar="N", help="the same before, once (100,000)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="how often each is measured (3)")
    options = parser.parse_args()
    for name in ("messages", "warm_up"):
        if not 1 <= getattr(options, name) <= _MOST_MESSAGES:
            parser.error(f"--{name.replace('_', '-')} is 1 to {_MOST_MESSAGES:,}")
    if options.turns < 1:
        parser.error("--turns is at least 1")
    if lacks_java():
        return 1
    exit_when_terminated()
    logging.disable(logging.WARNING)
    progress = Console(stderr=True)
    try:
        with progress.status("Artemis and Qpid JMS are fetched ...") as status, ExitStack() as stack:
            install.artemis()
            classes = install.java_programs(_JAVA, "jms", install.HERE / "java" / "pom.xml")
            brokers = {f"Artemis {install.ARTEMIS}": start_artemis, "Holdfast": start_holdfast}
            clients: dict[str, Callable[[Broker], list[str]]] = {
                f"Qpid JMS {_version_of_qpid_jms(classes)}": lambda broker: qpid_jms(classes, broker),
                "Holdfast SDK": holdfast_sdk,
            }
            (artemis, ours), (qpid, sdk) = brokers, clients
            pairs = {
                f"{broker}, {client}": stack.enter_context(_pair(brokers[broker], clients[client]))
                for broker, client in ((artemis, qpid), (ours, sdk), (ours, qpid), (artemis, sdk))
            }
            counts = (options.messages, options.warm_up, options.turns)
            found = measured(pairs, *counts, lambda what: status.update(f"{what} ..."))
    except (install.CannotInstall, Failed, RuntimeError, subprocess.SubprocessError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if options.json:
        print(json.dumps(rows(found), indent=1))
    else:
        print(heading(*counts))
        Console(width=150).print(table(rows(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
