"""Three sites with gateways in a ring and a chord, and faults at random: transactions stay whole, all ends equal.

At each site an application commits transactions: it puts their number under three keys of its own in one region and
under one in another, sends it to a queue, and changes keys that all sites change.  Beside it a reader looks all the
time, and never sees a part of a transaction of any site.  At the end all sites have the same keys and values, and the
messages of all commits, each once and in the order of its site.

``make soak-sites`` (ten minutes), or ``python -m tests.faults.soak_sites --seconds 60 --seed 7``.  Exit status 1 where
a promise was broken; what is printed then names the seed.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSException, Session, TransactionRolledBackException
from tests.faults.faults import OPTIONS, Faults
from tests.faults.proxy import Proxy
from tests.faults.sites import Site, url_of

#: From which site to which; 1 → 3 is the chord.
WAYS = ((1, 2), (2, 3), (3, 1), (1, 3))
QUEUE, WHOLE, OTHER, SHARED = "orders", "whole", "other", "shared"
DESTINATIONS = (f"queue:{QUEUE}", f"region:{WHOLE}", f"region:{OTHER}", f"region:{SHARED}")
#: Keys that one transaction puts in the first region.
PARTS = ("a", "b", "c")
#: Names of the keys that all sites change.
KEYS = [f"key {number}" for number in range(30)]
#: Mean time between two faults, and between two transactions of a site, in seconds.
PAUSE = 1.0
WORK = 0.02
#: Messages of a batch: fewer than those of two transactions.
BATCH = 7
BATCH_BYTES = 500
#: Longest wait for the sites to be equal, in seconds.
SETTLING = 180.0
console = Console() if sys.stdout.isatty() else Console(width=140)


class Application:
    """What works at one site, until it is told to stop.

    Attributes:
        committed: the last transaction that is done.
        looks: of the reader.
        broken: promises that were broken.
    """

    def __init__(self, site: Site, number: int, chance: random.Random) -> None:
        self.committed = self.looks = 0
        self.broken: list[str] = []
        self._number = number
        self._chance = chance
        self._url = site.server.url + OPTIONS
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._guard, args=(each,)) for each in (self._write, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(SETTLING)
            if thread.is_alive():
                self.broken.append(f"site {self._number}: {thread.name} hangs")

    def _guard(self, work: Callable[[Connection], None]) -> None:
        try:
            with ConnectionFactory(self._url).create_connection() as connection:
                connection.start()
                work(connection)
        except Exception as error:
            self.broken.append(f"site {self._number}: {work.__name__} ended: {error!r}")

    def _write(self, connection: Connection) -> None:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        while not self._ends.wait(self._chance.expovariate(1 / WORK)):
            while True:
                with suppress(TransactionRolledBackException):
                    self._transaction(session, str(self.committed + 1))
                    break
            self.committed += 1

    def _transaction(self, session: Session, turn: str) -> None:
        """One transaction, in one of several orders."""
        try:
            steps = [self._put_parts, self._put_other, self._send, self._change_shared]
            self._chance.shuffle(steps)
            for step in steps:
                step(session, turn)
        except JMSException:
            session.rollback()
            raise TransactionRolledBackException("the connection was lost") from None
        session.commit()

    def _put_parts(self, session: Session, turn: str) -> None:
        region = session.create_region(WHOLE)
        for part in PARTS:
            region.put(f"{self._number} {part}", turn)

    def _put_other(self, session: Session, turn: str) -> None:
        session.create_region(OTHER).put(str(self._number), turn)

    def _send(self, session: Session, turn: str) -> None:
        with session.create_producer(session.create_queue(QUEUE)) as producer:
            producer.send(f"{self._number} {turn}")

    def _change_shared(self, session: Session, turn: str) -> None:
        key = self._chance.choice(KEYS)
        region = session.create_region(SHARED)
        if self._chance.random() < 0.3:
            region.destroy(key)
        else:
            region.put(key, f"{self._number} {turn}")

    def _read(self, connection: Connection) -> None:
        session = connection.create_session()
        whole, other = session.create_region(WHOLE), session.create_region(OTHER)
        while not self._ends.wait(0.005):
            try:
                before, found, after = other.get_all(), whole.get_all(), other.get_all()
            except JMSException:  # the server is away
                continue
            self.looks += 1
            for number in {key.partition(" ")[0] for key in found}:
                turns = [int(found.get(f"{number} {part}", 0)) for part in PARTS]
                if not int(before.get(number, 0)) <= min(turns) == max(turns) <= int(after.get(number, 0)):
                    self.broken.append(
                        f"site {self._number} saw a part of a transaction of site {number}: {turns} between"
                        f" {before.get(number)} and {after.get(number)}"
                    )
                    return


def problems(sites: dict[int, Site], applications: dict[int, Application]) -> list[str]:
    """What is not as it was promised, once nothing waits any more."""
    found = [each for application in applications.values() for each in application.broken]
    first = sites[1].session
    for number, site in sites.items():
        for name in (WHOLE, OTHER, SHARED):
            here, there = (session.create_region(name).get_all() for session in (site.session, first))
            if here != there:
                differ = [key for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
                found.append(f"region {name} of site {number} differs from that of site 1 in {differ[:5]}")
        bodies = [body.split() for body in site.bodies(QUEUE)]
        for of, application in applications.items():
            turns = [int(turn) for each, turn in bodies if each == str(of)]
            if turns != list(range(1, application.committed + 1)):
                twice = [each for each, count in Counter(turns).items() if count > 1]
                lacking = {*range(1, application.committed + 1)} - {*turns}
                found.append(
                    f"site {number} has {len(turns)} messages of the {application.committed} of site {of};"
                    f" twice: {twice[:5]}, lacking: {sorted(lacking)[:5]}"
                )
    return found


def waiting(sites: dict[int, Site]) -> int:
    """Messages that wait at any site for another one."""
    return sum(each["waiting"] for site in sites.values() for each in site.ask("gateways"))


def settle(sites: dict[int, Site]) -> str | None:
    """Wait until nothing waits, twice: what has arrived may have to go on; returns what is wrong, or None."""
    deadline, calm = time.monotonic() + SETTLING, 0
    while calm < 3:
        calm = calm + 1 if not waiting(sites) else 0
        if time.monotonic() > deadline:
            return f"{waiting(sites)} messages still wait after {SETTLING:.0f} s"
        time.sleep(0.2)
    return None


def run(seconds: float, seed: int) -> int:
    """One soak; returns the exit status."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ends:
        sites: dict[int, Site] = {}
        for number in (1, 2, 3):
            sites[number] = Site(number, Path(directory) / str(number), log=Path(directory) / "log")
            ends.callback(sites[number].close)
        faults = []
        for source, target in WAYS:
            proxy = ends.enter_context(Proxy(sites[target].server.port))
            faults.append(Faults(sites[target].server, proxy, chance))
            options = {"batch_messages": BATCH, "batch_bytes": BATCH_BYTES, "group_transaction_events": True}
            sites[source].gateway(f"to {target}", url_of(proxy), *DESTINATIONS, batch_ms=20, **options)
        for site in sites.values():
            for name in (WHOLE, OTHER, SHARED):
                site.session.create_region(name)
        applications = {
            number: Application(site, number, random.Random(f"{seed} {number}")) for number, site in sites.items()
        }
        for application in applications.values():
            application.start()
        start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            bar = bars.add_task("soaking", total=seconds)
            while (elapsed := time.monotonic() - start) < seconds:
                done = sum(each.counts.total() for each in faults)
                bars.update(bar, completed=elapsed, description=f"soaking: {done} faults")
                time.sleep(chance.expovariate(1 / PAUSE))
                chance.choice(faults).one()
            bars.update(bar, completed=seconds, description="settling")
            for application in applications.values():
                application.stop()
            late = settle(sites)
        wrong = [late] if late else []
        wrong += problems(sites, applications)
        counts = sum((each.counts for each in faults), Counter[str]())
        if any(each.found_dead for each in faults):
            wrong.append("a server ended by itself")
        log = (Path(directory) / "log").read_text()
        if "unexpected error" in log:
            wrong.append(f"a server met one: {log[log.index('unexpected error') :][:5000]}")
    console.print(
        f"{sum(each.committed for each in applications.values())} transactions,"
        f" {sum(each.looks for each in applications.values())} looks, {counts.total()} faults in {seconds:.0f} s: "
        + ", ".join(f"{name} {count}" for name, count in counts.most_common())
    )
    for each in wrong:
        console.print(f"[red]broken[/red]: {each} (seed {seed})")
    if not wrong:
        console.print("every promise was kept")
    return 1 if wrong else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="soak_sites", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    console.print(f"seed {options.seed}")
    logging.disable(logging.WARNING)
    return run(options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
