"""The departures of a year at two sites that are far apart, with the line between them cut, and a picture of the lag.

One site has the departures from Newark, the other those from the city's two airports.  Each sends its own in
transactions, which also put what it knows of each carrier so far into a region; and a gateway each way carries both to
the other site.  A third of the way through the second site is killed, and stays away for a while: the first one works
on.  At the end both sites have all departures, each once, and the same figures, which must equal those of the file.

``make demo-sites``, or ``python -m samples.demo.sites --rows 20000``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from samples.demo import departures
from samples.demo.servers import Server, check, console
from sdk import AcknowledgeMode, ConnectionFactory, JMSException, TransactionRolledBackException

mpl.use("Agg")
from matplotlib import pyplot as plt

PICTURE = Path("build", "demo", "lag_of_two_sites.png")
#: Departures of a transaction.
BATCH = 500
#: Time between two looks at what waits, and that for which the second site is away, in seconds.
LOOK, AWAY = 0.1, 4.0
QUEUE, REGION = "departures", "delays"
AIRPORTS = (("EWR",), ("JFK", "LGA"))


class Site:
    """One of the two, with what is done there."""

    def __init__(self, number: int, directory: str, rows: list[dict[str, Any]]) -> None:
        self.server = Server(f"{directory}/{number}", "--site", str(number))
        self.server.start()
        self.rows = rows
        self.sent = 0
        self.lag: list[tuple[float, float]] = []  #: (seconds, messages that wait for the other site)
        self.thread = threading.Thread(target=self._work)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the server something; raises JMSException while it is away."""
        with ConnectionFactory(f"{self.server.url}?failover=nofailover").create_connection() as connection:
            return connection.request(operation, arguments)

    def connect_to(self, other: Site) -> None:
        """Have a gateway send to another site, each transaction whole."""
        self.ask("create_region", region=REGION)
        arguments = {"name": "other", "url": other.server.url, "destinations": [f"queue:{QUEUE}", f"region:{REGION}"]}
        self.ask("create_gateway", **arguments, state="running", batch_ms=100, group_transaction_events=True)

    def waiting(self) -> int:
        """Return how many messages wait for the other site."""
        (gateway,) = self.ask("gateways")
        return int(gateway["waiting"])

    def _work(self) -> None:
        """Send the departures; a transaction that the kill has caught is made again."""
        figures: dict[str, list[float]] = {}
        with (
            ConnectionFactory(self.server.url).create_connection() as connection,
            connection.create_session(AcknowledgeMode.TRANSACTED) as session,
            session.create_producer(session.create_queue(QUEUE)) as producer,
        ):
            region = session.create_region(REGION)
            while self.sent < len(self.rows):
                batch = self.rows[self.sent : self.sent + BATCH]
                changed = {key: list(value) for key, value in figures.items()}
                for row in batch:
                    if row["dep_delay"] is not None:
                        key = f"{row['origin']} {row['carrier']}"
                        total, count = changed.get(key, [0.0, 0])
                        changed[key] = [total + row["dep_delay"], count + 1]
                try:
                    producer.send_all([json.dumps(row) for row in batch])
                    region.put_all({key: json.dumps(value) for key, value in changed.items()})
                    session.commit()
                except TransactionRolledBackException:
                    continue
                figures = changed
                self.sent += len(batch)

    def found(self) -> tuple[Counter[int], dict[str, tuple[float, int]]]:
        """Return how often each departure is there, and the figures of each carrier."""
        with ConnectionFactory(self.server.url).create_connection() as connection:
            session = connection.create_session()
            bodies = (json.loads(message.body) for message in session.create_browser(session.create_queue(QUEUE)))
            numbers = Counter(row["number"] for row in bodies)
            delays: dict[str, tuple[float, int]] = {}
            for key, value in session.create_region(REGION).get_all().items():
                carrier = key.partition(" ")[2]
                total, count = json.loads(value)
                before, flights = delays.get(carrier, (0.0, 0))
                delays[carrier] = before + total, flights + count
            return numbers, delays


def run(sites: list[Site]) -> list[tuple[float, float]]:
    """Have both sites work, with the second one away for a while; returns from when until when it was."""
    began = time.monotonic()
    away: list[float] = []
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        shown = [bars.add_task(f"site {number} sends", total=len(site.rows)) for number, site in enumerate(sites, 1)]
        for site in sites:
            site.thread.start()
        while True:
            now = time.monotonic() - began
            for site, bar in zip(sites, shown, strict=True):
                bars.update(bar, completed=site.sent)
                try:
                    site.lag.append((now, site.waiting()))
                except JMSException:
                    site.lag.append((now, float("nan")))
            if not away and sites[0].sent * 3 >= len(sites[0].rows):
                sites[1].server.kill()
                console.print("[red]site 2 killed[/red], the first one works on")
                away = [time.monotonic() - began]
            if len(away) == 1 and now - away[0] >= AWAY:
                sites[1].server.start()
                console.print("site 2 is back")
                away.append(time.monotonic() - began)
            if len(away) == 2 and not any(site.thread.is_alive() or site.lag[-1][1] for site in sites):
                return [(away[0], away[1])]
            time.sleep(LOOK)


def draw(sites: list[Site], outages: list[tuple[float, float]]) -> None:
    """Draw what waited at each site over the time."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for number, (site, colour) in enumerate(zip(sites, ("#33658a", "#f26419"), strict=True), 1):
        axes.plot(*zip(*site.lag, strict=True), color=colour, label=f"waits at site {number} for the other one")
    for first, last in outages:
        axes.axvspan(first, last, color="#dddddd", label="site 2 is away")
    axes.set_xlabel("seconds")
    axes.set_ylabel("messages and changes of keys")
    axes.legend()
    figure.savefig(PICTURE, dpi=120)
    console.print(f"drawn in {PICTURE}")


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="samples.demo.sites", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, help="only the first departures, so many; else all")
    table = departures.read(parser.parse_args().rows)
    wanted = departures.expected(table)
    rows = [{"number": number, **row} for number, row in enumerate(table.to_pylist())]
    with tempfile.TemporaryDirectory() as directory:
        sites = [
            Site(number, directory, [row for row in rows if row["origin"] in airports])
            for number, airports in enumerate(AIRPORTS, 1)
        ]
        try:
            for site, other in zip(sites, reversed(sites), strict=True):
                site.connect_to(other)
            outages = run(sites)
            found = [site.found() for site in sites]
        finally:
            for site in sites:
                site.server.stop()
    draw(sites, outages)
    results = [check("both sites have the same figures", found[0][1], found[1][1])]
    for number, (numbers, delays) in enumerate(found, 1):
        results.append(check(f"site {number} has each departure once", numbers, Counter(range(wanted.rows))))
        results.append(check(f"sum and number of delays by carrier at site {number}", delays, wanted.delay_by_carrier))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
