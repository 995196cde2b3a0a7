"""The long run of the engine's random histories: ``make torture``.

Each history is made from a seed, and with an odd one commits are released late, by other threads.  One that fails
prints its seed, and can be run again alone::

    python -m tests.torture --seed 4711 --histories 1
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from contextlib import nullcontext
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.broker_adapter.engine.administered import History
from tests.broker_adapter.engine.releasing import released_late
from tests.broker_adapter.engine.secondaries import followed
from tests.broker_adapter.engine.shifts import Shift

#: Of ten histories, so many are in memory only.
_IN_MEMORY = 4


def run(seed: int) -> tuple[int, int, int, str]:
    """One history of administrators, and one of workers: seed, steps, how often groups have moved, what went wrong."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        try:
            return seed, *_steps_and_moves(seed, Path(directory)), ""
        except Exception:
            return seed, 0, 0, traceback.format_exc()


def _steps_and_moves(seed: int, directory: Path) -> tuple[int, int]:
    with followed(), released_late() if seed % 2 else nullcontext():
        history, shift = History(seed, None if seed % 10 < _IN_MEMORY else directory), Shift(seed)
        history.run(steps=40 + seed % 100)
        shift.run(steps=300)
    return len(history.log) + shift.steps, shift.moves


def main() -> int:
    """Run them on all cores; exit status 1 where one failed."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first one; default: the time")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.histories)
    failed = steps = moves = 0
    started = time.monotonic()
    columns = (TextColumn("histories"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    with Progress(*columns) as progress, context.Pool(options.processes) as pool:
        task = progress.add_task("", total=len(seeds))
        for seed, length, moved, error in pool.imap_unordered(run, seeds, chunksize=10):
            progress.advance(task)
            steps += length
            moves += moved
            if error:
                failed += 1
                progress.console.print(f"seed {seed}:\n{error}", markup=False, highlight=False)
    seconds = time.monotonic() - started
    print(
        f"{len(seeds)} histories from seed {options.seed} on, {steps} steps and {moves} moves of groups "
        f"in {seconds:.0f} s: " + (f"{failed} failed" if failed else "every one is as it must be")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
