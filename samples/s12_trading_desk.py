"""A region of quotes and two durable clients: one is killed and comes back, and both miss some quotes.

Run it: ``python -m samples.s12_trading_desk``.  It starts ``holdfast serve`` itself, in a directory of its own, and
each desk in a process of its own.  The desk in London asks for every quote; the one in Tokyo for the last one of each
key (``event_conflation=true``).
"""

import argparse
import re
import subprocess
import sys
import tempfile

from sdk import ConnectionFactory, Region, RegionEvent, RegionListener


class Blotter(RegionListener):
    """Prints what a desk is told."""

    def after_create(self, event: RegionEvent) -> None:
        self._print("new", event)

    def after_update(self, event: RegionEvent) -> None:
        self._print("now", event)

    def after_destroy(self, event: RegionEvent) -> None:
        self._print("gone", event)

    def after_region_live(self, region: str) -> None:
        print("-- live --", flush=True)

    def _print(self, word: str, event: RegionEvent) -> None:
        price = "" if event.value is None else f" {event.value['price']:.2f}"
        print(f"{'replayed ' if event.replayed else ''}{event.key} {word}{price}", flush=True)


def run_desk(url: str, name: str, conflation: str) -> None:
    """A desk: told what happens to all quotes, until a line comes on its standard input."""
    factory = ConnectionFactory(f"{url}?event_conflation={conflation}&event_acknowledge_seconds=0.01")
    connection = factory.create_connection(client_id=name, durable_timeout=3600)
    connection.start()
    quotes = connection.create_session().create_region("quotes")
    quotes.add_listener(Blotter())
    quotes.register_interest(all_keys=True, durable=True)
    print(f"{connection.pending_event_count()} waiting", flush=True)
    connection.ready_for_events()
    sys.stdin.readline()
    print(f"the cache has {sorted((key, value['price']) for key, value in quotes.get_all(quotes.keys()).items())}")
    connection.close(keep_alive=True)


class Desk:
    """A desk in a process of its own."""

    def __init__(self, url: str, name: str, conflation: str) -> None:
        command = [sys.executable, "-m", "samples.s12_trading_desk", url, name, conflation]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self, last: str) -> list[str]:
        """The lines up to one that ends so."""
        lines = []
        while not lines or not lines[-1].endswith(last):
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"the desk has ended, after {lines}")
            lines.append(line.rstrip("\n"))
        return lines

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def leave(self) -> list[str]:
        """Have it close, which keeps its queue; returns its last lines."""
        last, _ = self._process.communicate("\n")
        return last.splitlines()


def side_by_side(title: str, london: list[str], tokyo: list[str]) -> None:
    print(f"{title}\n  {'London (every quote)':48}Tokyo (conflated)")
    for number in range(max(len(london), len(tokyo))):
        left, right = ((lines[number] if number < len(lines) else "") for lines in (london, tokyo))
        print(f"  {left:48}{right}".rstrip())


def put(quotes: Region, *prices: tuple[str, float]) -> None:
    for key, price in prices:
        quotes.put(key, {"price": price})


def trade(url: str) -> None:
    with ConnectionFactory(url).create_connection() as feed:
        quotes = feed.create_session().create_region("quotes")
        put(quotes, ("IBM", 92.50), ("SAP", 120.00))
        desks = [Desk(url, "london", "false"), Desk(url, "tokyo", "true")]
        side_by_side("both desks start:", *[desk.read("-- live --") for desk in desks])

        put(quotes, ("IBM", 92.75))
        side_by_side("a quote:", *[desk.read("92.75") for desk in desks])

        desks[1].kill()
        put(quotes, ("SAP", 121.00), ("IBM", 93.00))
        side_by_side("Tokyo is killed; quotes go on:", desks[0].read("93.00"), [])

        last_lines = desks[0].leave()
        put(quotes, ("IBM", 93.10), ("IBM", 93.20), ("ABB", 45.00), ("IBM", 93.30), ("ABB", 45.50))
        quotes.destroy("SAP")
        side_by_side("London closes, and keeps its queue; quotes go on:", last_lines, [])

        desks = [Desk(url, "london", "false"), Desk(url, "tokyo", "true")]
        side_by_side("both come back:", *[desk.read("-- live --") for desk in desks])
        put(quotes, ("IBM", 94.00))
        side_by_side("a quote:", *[desk.read("94.00") for desk in desks])
        side_by_side("the end:", *[desk.leave() for desk in desks])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", directory]
        server = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            ready = server.stdout.readline()
            trade(re.search(r"(amqp://\S+)", ready)[1])
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="samples.s12_trading_desk", description=__doc__.partition("\n")[0])
    parser.add_argument("desk", nargs="*", metavar="URL NAME CONFLATION", help="of one desk; default: all of it")
    desk = parser.parse_args().desk
    if len(desk) not in (0, 3):
        parser.error("a desk has a URL, a name and a conflation")
    run_desk(*desk) if desk else main()
