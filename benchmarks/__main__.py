"""All benchmarks in one run: ``make bench``, or ``python -m benchmarks [--json] [--quick] [--only NAME]``.

Exit status 1 where a message was lost, doubled or came out of order; a slow figure is no failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks import (
    aio,
    codec,
    copies,
    engine,
    failover,
    gateways,
    interpreter,
    modes,
    region_clients,
    regions,
    scale,
    selectors,
    spark,
    workers,
)
from benchmarks.report import Figure, show


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages: to see that it runs")
    parser.add_argument("--only", metavar="NAME", help="only the part of this name")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    messages = 50_000 // share

    def embedded(directory: Path) -> Iterator[Figure]:
        yield from modes.every_mode(f"embedded:{directory / 'embedded'}", "embedded", messages, None)

    def amqp(directory: Path) -> Iterator[Figure]:
        with modes.server(directory / "amqp") as (url, process):
            yield from modes.every_mode(url, "AMQP loopback", messages, process)

    parts: dict[str, Callable[[Path], Iterator[Figure]]] = {
        "engine": lambda directory: iter([engine.enqueue_and_acknowledge(directory)]),
        "send": lambda directory: iter([engine.synchronous_send(directory)]),
        "restart": lambda directory: iter([engine.restart(directory, 1_000_000 // share)]),
        "codec": lambda directory: codec.figures(),
        "selector": lambda directory: selectors.applied(),
        "search": lambda directory: iter([selectors.searched(directory, 1_000_000 // share)]),
        "embedded": embedded,
        "amqp": amqp,
        "aio": lambda directory: aio.figures(directory, 10_000 // share),
        "failover": lambda directory: failover.figures(directory, failover.ROUNDS // (3 if share > 1 else 1)),
        "memory": lambda directory: iter([modes.server_memory(directory, 1_000_000 // share)]),
        "scale": lambda directory: scale.figures(directory, share),
        "workers": lambda directory: workers.figures(directory, share),
        "regions": lambda directory: regions.figures(directory, share),
        "gateways": lambda directory: gateways.figures(directory, share),
        "copies": lambda directory: copies.figures(directory, share),
        "region-clients": lambda directory: region_clients.figures(directory, share),
        "spark": lambda directory: spark.rows(directory, 200_000 // share),
    }
    if options.only is not None and options.only not in parts:
        parser.error(f"--only {options.only}: there is no such part; these are: {', '.join(parts)}")
    logging.disable(logging.ERROR)  # servers are killed here, networks cut, and listeners fail
    figures: list[Figure] = []
    progress = Console(stderr=True)
    progress.print(f"{interpreter.description()}; byte code: {interpreter.byte_code_ns():.0f} ns a turn")
    try:
        for name, part in parts.items():
            if options.only not in (None, name):
                continue
            with tempfile.TemporaryDirectory() as directory, progress.status(f"{name} ..."):
                figures += part(Path(directory))
    except (modes.OrderError, AssertionError) as error:
        show(figures, options.json)
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    show(figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
