"""A program that kills two sites between which a gateway sends, at each of some commits, and says whether all is well.

Both are in one process, which forks for each kill, so that it starts once.  It ends with 0 where no kill has lost or
doubled anything.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from broker_adapter.engine.store.lmdb_store import LmdbStore
from tests.broker_adapter.engine.sites import Site, apply, end, in_queue, pump, read

#: Commits that are counted begin when the sites have been made.
ROUNDS = 12


def sites_in(directory: Path) -> tuple[Site, Site]:
    return Site(1, directory / "near"), Site(2, directory / "far")


def begin(directory: Path) -> None:
    near, far = sites_in(directory)
    near.ask("create_region", region="quotes")
    far.ask("create_region", region="quotes")
    near.gateway("g", "queue:q", "region:quotes", group_transaction_events=True)
    for site in (near, far):
        site.ask("bounds", destination="q", make=True)
    near.broker.close()
    far.broker.close()


def traffic(directory: Path, kill_at: int) -> None:
    """Send and change, and hand over batches; the process is killed ahead of a commit."""
    near, far = sites_in(directory)
    made, commit = 0, LmdbStore.commit

    def counted(self: LmdbStore, *arguments: object) -> object:
        nonlocal made
        made += 1
        if made == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, *arguments)  # type: ignore[arg-type]

    LmdbStore.commit = counted  # type: ignore[method-assign, assignment]
    with (directory / "confirmed").open("a") as confirmed:
        for number in range(ROUNDS):
            near.commit([f"{number} a", f"{number} b"], {f"key {number % 3}": str(number)})
            confirmed.write(f"{number} a\n{number} b\n")
            confirmed.flush()
            found = read(near, "g", max_messages=2)
            end(near, "g", found, apply(near, far, found))
    os.kill(os.getpid(), signal.SIGKILL)


def check(directory: Path) -> None:
    """Start both sites again, send what waits, and compare them."""
    near, far = sites_in(directory)
    there = [int(body.split()[0]) for body in in_queue(far)]
    assert there == sorted([*range(len(there) // 2)] * 2), "no part of a transaction"
    values = far.values("quotes")
    assert values == {f"key {number % 3}": str(number) for number in there}
    pump(near, "g", far)
    confirmed = (directory / "confirmed").read_text().splitlines()
    sent = in_queue(near)
    assert sent[: len(confirmed)] == confirmed
    assert len(sent) == len(set(sent)) <= len(confirmed) + 2
    assert in_queue(far) == sent
    assert far.values("quotes") == near.values("quotes")
    found = near.gateways("g")
    assert (found["waiting"], found["lost"], found["refused"]) == (0, 0, 0)
    assert near.broker.check() == far.broker.check() == []


def forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own; returns the signal or the code with which it has ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(*kills: str) -> None:
    """Kill ahead of each of these commits, counted from 1 on."""
    for kill in map(int, kills):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            assert forked(partial(begin, directory)) == 0
            assert forked(partial(traffic, directory, kill)) == -signal.SIGKILL
            assert forked(partial(check, directory)) == 0, f"killed at {kill}"


if __name__ == "__main__":
    main(*sys.argv[1:])
