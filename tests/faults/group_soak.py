"""A group of three servers under fire: kills, stops, hand-overs and partitions at random, with a load of every mode.

By hand ``python -m tests.faults.group_soak --rounds 200 --seed 7``; exit status 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
from rich.console import Console

from sdk import (
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    QueueStatistics,
    Restored,
)
from tests import fork_server
from tests.faults.group_lanes import lanes
from tests.faults.group_servers import BOTH, LEASE, NAMES, GroupServers
from tests.faults.lanes import SETTLING, Course, Faced
from tests.faults.proxy import Direction
from tests.faults.scenarios import wait_for
from tests.faults.sites import Site

console = Console(width=1000, highlight=False, markup=False)
#: Of a URL: whoever uses it notices a loss soon, and comes back soon.
OPTIONS = (
    "?reconnect_delay_seconds=0.02&max_reconnect_delay_seconds=0.5&stable_seconds=0.2&idle_timeout_seconds=1"
    "&poll_timeout_seconds=0.1&startup_max_reconnect_attempts=1000"
)
ONE_WAY = ((Direction.TO_SERVER,), (Direction.TO_CLIENT,))


class Load:
    """All lanes at work, over one connection for producers and one for consumers.

    Attributes:
        lanes: with what they saw.
        losses: how often a connection was lost.
        restores: how long each was away, in seconds.
    """

    def __init__(self, group: GroupServers, site: Site) -> None:
        self.lanes = lanes(group.record.min_in_sync, group.url, site, site.server.url)
        self.losses = 0
        self.restores: list[float] = []
        self._url = group.url + OPTIONS
        self._course = Course()
        self._connections = [self._connected(name) for name in ("producing", "consuming")]
        producing, consuming = self._connections
        for lane in self.lanes:
            lane.prepare(consuming)
        self._producers = [self._course.working(lane, lane.produce, producing) for lane in self.lanes]
        self._consumers = [self._course.working(lane, lane.consume, consuming) for lane in self.lanes]

    def _connected(self, client_id: str) -> Connection:
        connection = ConnectionFactory(self._url).create_connection(client_id=client_id)
        connection.exception_listener = self._told
        connection.event_listener = self._happened
        connection.start()
        return connection

    def _told(self, error: JMSException) -> None:
        self.losses += isinstance(error, ConnectionLostException) and "could not be acknowledged" not in error.reason

    def _happened(self, event: object) -> None:
        if isinstance(event, Restored):
            self.restores.append(event.seconds)

    @property
    def confirmed(self) -> int:
        """Sends that were confirmed."""
        return sum(len(lane.confirmed) for lane in self.lanes)

    def goes_on(self, seconds: float = SETTLING) -> bool:
        """Whether each lane sends and receives something new in this time."""
        before = [(len(lane.confirmed), lane.next) for lane in self.lanes]
        return wait_for(
            lambda: all(
                len(lane.confirmed) > sent and lane.next > got
                for lane, (sent, got) in zip(self.lanes, before, strict=True)
            ),
            seconds,
        )

    def finish(self) -> list[str]:
        """Stop sending, wait until all has arrived, and end; returns the promises that were broken."""
        self._course.sending = False
        self._join(self._producers)
        wait_for(lambda: all(lane.has_all() for lane in self.lanes), SETTLING)
        wait_for(lambda: not any(lane.record(self._queues()).messages for lane in self.lanes), SETTLING)
        self._course.receiving = False
        self._join(self._consumers)
        queues, faced = self._queues(), Faced(self.losses, 0)
        for connection in self._connections:
            connection.close()
        return [f"{lane.name}: {each}" for lane in self.lanes for each in lane.problems(queues, faced)]

    def _queues(self) -> dict[str, QueueStatistics]:
        return {each.name: each for each in self._connections[0].statistics().queues}

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        deadline = time.monotonic() + SETTLING
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.lanes[0].broken.append(f"{thread.name} hangs")


class Fire:
    """What happens to a group.

    Args:
        group: it happens to.
        chance: decides.
    """

    def __init__(self, group: GroupServers, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._group = group
        self.chance = chance
        self.kinds: dict[str, Callable[[], None]] = {
            "primary killed": lambda: self._kill(self._primary),
            "primary killed at a commit, and back at once": lambda: self._kill(self._primary, 0.0),
            "secondary killed": lambda: self._kill(self._secondary),
            "primary and secondary killed": lambda: self._kill(self._primary, 0.5, self._secondary),
            "all killed": self._kill_all,
            "primary stopped in good order": lambda: self._stop(self._primary),
            "secondary stopped in good order": lambda: self._stop(self._secondary),
            "handed over": self._hand_over,
            "primary frozen": lambda: self._freeze(self._primary),
            "secondary frozen": lambda: self._freeze(self._secondary),
            "primary without coordinator": lambda: self._without_coordinator(self._primary, BOTH),
            "primary without answers of the coordinator": lambda: self._without_coordinator(
                self._primary, (Direction.TO_CLIENT,)
            ),
            "no coordinator": self._no_coordinator,
            "primary apart from the others": lambda: self._apart(self._primary, self._others, BOTH),
            "primary apart from the others, and killed": self._kill_apart,
            "primary apart from one": lambda: self._apart(self._primary, [self._secondary], BOTH),
            "one way between primary and others": lambda: self._apart(
                self._primary, self._others, self.chance.choice(ONE_WAY)
            ),
            "primary apart from others and coordinator": self._alone,
            "primary apart from clients": lambda: self._apart(self._primary, [""], BOTH),
        }

    @property
    def _primary(self) -> str:
        return self._group.primary

    @property
    def _others(self) -> list[str]:
        return self._group.others

    @property
    def _secondary(self) -> str:
        return self.chance.choice(self._others)

    def one(self, kind: str) -> None:
        """Do one, and undo it."""
        self.counts[kind] += 1
        self.kinds[kind]()

    def _past_the_lease(self) -> None:
        time.sleep(LEASE * self.chance.uniform(0.5, 3))

    def _kill(self, name: str, pause: float = 0.5, *more: str) -> None:
        self._group.kill(name, *more)
        time.sleep(pause * self.chance.random() * 3 * LEASE)
        for each in (name, *more):
            self._group.start(each)

    def _kill_apart(self) -> None:
        primary = self._primary
        with self._group.apart(primary, *self._others):
            time.sleep(0.5 * LEASE * self.chance.random())  # less than what passes over the others
            self._group.kill(primary)
            time.sleep(2 * LEASE * self.chance.random())
        self._group.start(primary)

    def _kill_all(self) -> None:
        self._group.kill(*NAMES)
        for name in self.chance.sample(NAMES, 3):
            self._group.start(name)
            time.sleep(self.chance.choice([0.0, LEASE]))

    def _stop(self, name: str) -> None:
        status = self._group.stop(name)
        # One that starts at that moment has not said yet what it does at the signal.
        assert status in (0, -signal.SIGTERM), f"{name} ended with status {status}"
        time.sleep(LEASE * self.chance.random())
        self._group.start(name)

    def _hand_over(self) -> None:
        url = self._group.url + OPTIONS
        with contextlib.suppress(JMSException), ConnectionFactory(url).create_connection() as connection:
            connection._transport.request("hand_over", {"node": self._secondary}, 10.0)  # it may not be in sync now
        time.sleep(LEASE * self.chance.random())

    def _freeze(self, name: str) -> None:
        with self._group.frozen(name):
            self._past_the_lease()

    def _without_coordinator(self, name: str, directions: tuple[Direction, ...]) -> None:
        with self._group.without_coordinator(name, directions=directions):
            self._past_the_lease()

    def _no_coordinator(self) -> None:
        with self._group.without_coordinator(*NAMES):
            self._past_the_lease()

    def _apart(self, name: str, others: Sequence[str], directions: tuple[Direction, ...]) -> None:
        with self._group.apart(name, *others, directions=directions):
            self._past_the_lease()

    def _alone(self) -> None:
        primary = self._primary
        with self._group.without_coordinator(primary), self._group.apart(primary, *self._others):
            self._past_the_lease()


@attrs.frozen
class Result:
    """What came of it."""

    problems: list[str]
    load: Load
    fire: Fire


def run(group: GroupServers, rounds: int, seed: int, kinds: Sequence[str] = ()) -> Result:
    """Do so many things to a group under a load.

    Args:
        group: to which.
        rounds: how many.
        seed: of what is chosen.
        kinds: what may happen; none: everything.
    """
    with contextlib.closing(Site(2, group.path / "site")) as site:
        load, fire = Load(group, site), Fire(group, random.Random(seed))
        problems = [*_burn(group, load, fire, rounds, kinds), *load.finish()]
    problems += [f"stores differ: {each}" for each in group.differences()]
    problems += [f"{name}: {line}" for name in NAMES for line in group.log(name).splitlines() if "unexpected" in line]
    return Result(problems, load, fire)


def _burn(group: GroupServers, load: Load, fire: Fire, rounds: int, kinds: Sequence[str]) -> Iterator[str]:
    """Have so many things happen, and see that all goes on then; yields what is wrong."""
    chance = fire.chance
    order = list(itertools.islice(itertools.cycle(list(kinds) or list(fire.kinds)), rounds))
    chance.shuffle(order)
    for number, kind in enumerate(order):
        time.sleep(0.3 * chance.random())
        console.print(f"{number} {kind} {group.primary}: ", end="")
        fire.one(kind)
        if chance.random() < 0.7 and not _has_healed(group):
            yield f"round {number}, {kind}: not in sync again: {group.record}"
            break
        console.print(f"term {group.record.term}, {load.confirmed} confirmed, {load.losses} losses")
    if not _has_healed(group):
        yield f"not in sync at the end: {group.record}"
    elif not load.goes_on():
        yield "it does not go on"


def _has_healed(group: GroupServers) -> bool:
    return wait_for(lambda: group.record.in_sync == {*NAMES}, SETTLING)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="group_soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--min-in-sync", type=int, default=1)
    parser.add_argument("--unreleased", action="store_true", help="with primaries that wait for nobody")
    parser.add_argument("--only", action="append", default=[], help="what may happen, several times")
    parser.add_argument("--keep", help="a directory for stores and logs")
    options = parser.parse_args()
    console.print(f"seed {options.seed}")
    logging.disable(logging.WARNING)
    module = "tests.faults.unreleased" if options.unreleased else fork_server.COMMAND
    with contextlib.ExitStack() as stack:
        directory = options.keep or stack.enter_context(tempfile.TemporaryDirectory())
        group = stack.enter_context(
            GroupServers(
                Path(directory),
                "--option",
                "blocked_send_timeout_seconds=0.5",
                min_in_sync=options.min_in_sync,
                module=module,
            )
        )
        result = run(group, options.rounds, options.seed, options.only)
    load = result.load
    for lane in load.lanes:
        console.print(f"{lane.name}: {len(lane.confirmed)} confirmed, {lane.duplicates} again, {dict(lane.raised)}")
    if load.restores:
        p50, worst = statistics.median(load.restores), max(load.restores)
        console.print(f"{len(load.restores)} restores: p50 {p50:.2f} s, worst {worst:.2f} s; {load.losses} losses")
    console.print(dict(result.fire.counts))
    for problem in result.problems:
        console.print(f"broken: {problem} (seed {options.seed})")
    return 1 if result.problems else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    sys.exit(main())
