"""Random histories of a group: nodes, disks, a network and a coordinator, all of which fail, in simulated time.

A node's log stands for its store: a list of numbers, none of which is made twice, so two logs that have the same number
at a place are the same up to it.  A node that follows asks the primary for what is behind its own log; the answer is
written by one transaction, whatever it adds and takes back, and the next request acknowledges it.

What must hold (:class:`Violation`):

- one process confirms in a term;
- what was confirmed is on the disk of every node that the record says is in sync, at any moment;
- no primary of the present term lacks it;
- when everything is healed, all are in sync again, and something more is confirmed.

``python -m tests.broker_adapter.group.simulation`` runs many: ``make simulate``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from broker_adapter.errors import IllegalStateException
from broker_adapter.group.record import COPY, MEMBER, GroupRecord, NodeRecord
from broker_adapter.group.rules import Action, Follow, Lead, Node, Read, Release, Serve, Stopped, Swap

LEASE = 1.0
TIMEOUT = 1.5
#: How long faults go on, and how long a group may take afterwards.
FAULTS = 12.0
HEALING = 20.0
COORDINATOR = "coordinator"


class Violation(AssertionError):
    """Something is not as it must be."""


class Process:
    """A node that runs: its rules, and what carries out their actions."""

    def __init__(self, world: Simulation, machine: Machine, run: int) -> None:
        self.world = world
        self.machine = machine
        self.name = machine.name
        self.run = run
        self.rules = world.node_class(machine.name, machine.node, f"{machine.name}-{run}", machine.lsn, LEASE, TIMEOUT)
        self.leads = self.serves = False
        self.term = 0  # that it leads or follows
        self._primary = ""  # that is followed
        self._request = 0  # to the primary
        self._asked_at: float | None = None  # None: no answer is taken
        self._call = 0  # of the coordinator
        self._called_at: float | None = None
        self._writing: list[int] | None = None
        self._runs: dict[str, int] = {}  # of the nodes that ask
        self._waiting: dict[str, tuple[int, float]] = {}

    @property
    def now(self) -> float:
        machine = self.machine
        return machine.offset + machine.rate * self.world.time

    def tick(self) -> None:
        """Everything that waits for a time."""
        now = self.now
        self.world.after(LEASE / 6 * self.world.random(0.8, 1.2) / self.machine.rate, self.world.run, self, self.tick)
        if self._called_at is not None and now - self._called_at > LEASE / 2:
            self._called_at = None
            self.do(self.rules.no_answer(now))
        self.do(self.rules.tick(now))
        if self._primary and self.world.refuses(self.name, self._primary):
            self.do(self.rules.refused(self.term, self._primary, now))
        if self._primary and self._asked_at is not None and now - self._asked_at > LEASE / 2:
            self._ask()
        for name, (number, since) in [*self._waiting.items()]:
            if now - since > LEASE / 4:
                self._answer(name, number)

    def do(self, actions: list[Action]) -> None:
        """Carry out what the rules want."""
        for action in actions:
            if isinstance(action, Read | Swap):
                self._call += 1
                self._called_at = self.now
                self.world.send(self.name, COORDINATOR, self.world.coordinate, self.name, self.run, self._call, action)
            elif isinstance(action, Release):
                self.world.confirm(self, action.lsn)
            elif isinstance(action, Lead):
                self.leads, self.term, self._primary, self._asked_at = True, action.term, "", None
                if self._writing is not None and self.world.chance(0.5):
                    self._written(self._writing)
                self._writing = None
                self.world.check_primary(self)
                self.work()  # the start of its engine
            elif isinstance(action, Follow):
                if self.leads:
                    self._writing = None  # what it had decided
                self.leads = self.serves = False
                self._waiting.clear()
                self.term, self._primary, self._asked_at = action.term, action.primary, None
                self._ask()
            elif isinstance(action, Serve):
                self.serves = action.allowed
            elif isinstance(action, Stopped):
                for name in self.world.machines:
                    self.world.send(self.name, name, Process.left, self.name)
                self.world.crash(self.machine)
                return

    def left(self, name: str) -> None:
        """Be told that a node has stopped."""
        self.do(self.rules.gone(name, self.now))

    # The coordinator's answers.

    def called(self, run: int, call: int, answer: Any) -> None:
        """Take an answer, unless it comes too late."""
        if run != self.run or call != self._call or self._called_at is None:
            return
        self._called_at = None
        if answer is None:
            self.do(self.rules.no_answer(self.now))
        elif isinstance(answer, tuple):
            self.do(self.rules.record_read(*answer, self.now))
        else:
            self.do(self.rules.swap_won(answer, self.now))

    # The disk.

    def work(self) -> None:
        """As a primary, commit something."""
        if self._writing is None:
            self._write([*self.machine.log, next(self.world.numbers)])

    def _write(self, log: list[int]) -> None:
        self._writing = log
        self.world.after(self.world.disk_delay(), self.world.run, self, self._write_ends, log)

    def _write_ends(self, log: list[int]) -> None:
        if self._writing is log:
            self._writing = None
            self._written(log)
            if self.leads:
                for name, (number, _) in [*self._waiting.items()]:
                    self._answer(name, number)
            else:
                self._ask()

    def _written(self, log: list[int]) -> None:
        self.machine.write(log)
        self.world.check_in_sync()
        self.do(self.rules.committed(len(log), self.now))

    def torn(self) -> list[int] | None:
        """What was not synced as the process was killed."""
        return self._writing

    # Following.

    def _ask(self) -> None:
        if not self._primary or self._writing is not None:
            return
        self._request += 1
        self._asked_at = self.now
        machine, world = self.machine, self.world
        args = (self.run, self._request, self.term, machine.log, machine.lsn)
        world.send(self.name, self._primary, lambda other: other.asked(machine, *args))

    def asked(self, machine: Machine, run: int, number: int, term: int, log: list[int], lsn: int | None) -> None:
        """As a primary, take a request."""
        name = machine.name
        if run < self._runs.get(name, 0):
            return
        self._runs[name] = run
        common = common_length(self.machine.log, log)
        self.do(self.rules.asked(name, machine.node, term, lsn and min(lsn, common), self.now))
        if not self.leads or self.term != term:
            self.world.send(self.name, name, lambda other: other.do(other.rules.told(other.now)))
        elif lsn is None or common < max(len(log), len(self.machine.log)):
            self._answer(name, number)
        else:
            self._waiting[name] = (number, self.now)

    def _answer(self, name: str, number: int) -> None:
        self._waiting.pop(name, None)
        args = (self._runs[name], number, self.machine.log)
        self.world.send(self.name, name, lambda other: other.answered(*args))

    def answered(self, run: int, number: int, log: list[int]) -> None:
        """Take what the primary has sent."""
        if run != self.run or number != self._request or self._asked_at is None:
            return
        self._asked_at = None
        if log == self.machine.log and self.machine.lsn is not None:
            self._ask()
        else:
            self._write(log)


class Machine:
    """A node's disk and clock, and the process that runs there, if one does."""

    def __init__(self, name: str, node: NodeRecord) -> None:
        self.name = name
        self.node = node
        self.log: list[int] = []
        self.lsn: int | None = 0
        self.runs = 0
        self.process: Process | None = None
        self.stopped: list[tuple[Any, ...]] | None = None  # what is to be done when it goes on
        self.rate = 1.0
        self.offset = 0.0

    def write(self, log: list[int]) -> None:
        """Have this, as one transaction."""
        self.log, self.lsn = log, len(log)


class Simulation:
    """One history.

    Args:
        seed: that makes it.
        node_class: the rules.
    """

    def __init__(self, seed: int, node_class: type[Node] = Node) -> None:
        self._random = Random(seed)
        self.node_class = node_class
        self.time = 0.0
        self.numbers = count(1)
        self.confirmed = 0  #: how many releases there were
        self.terms: dict[int, tuple[str, int]] = {}  #: who has confirmed something in each
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._log: list[int] = []  # that was confirmed
        self._cut: set[tuple[str, str]] = set()
        self._is_healthy = False
        self._loss, self._twice, self._late = (self.chance(0.7) and self.random(0, each) for each in (0.1, 0.1, 0.08))
        names = [f"n{place}" for place in range(1, 1 + self._random.choice((3, 3, 5)))]
        roles = {name: COPY if name == "n5" and self.chance(0.3) else MEMBER for name in names}
        self.machines = {name: Machine(name, NodeRecord(name, 1, role)) for name, role in roles.items()}
        self.members = {name for name, role in roles.items() if role == MEMBER}
        first = {name: machine.node for name, machine in self.machines.items() if self.chance(0.9) or name == "n1"}
        creator = self._random.choice(sorted(first.keys() & self.members))
        self.record = GroupRecord("store", 1, creator, frozenset({creator}), first, 1, "", 1, 1)
        self._token = 1
        for name, machine in self.machines.items():
            machine.rate = self.random(0.6, 1.6) if self.chance(0.5) else 1.0
            machine.offset = self.random(0, 1000)
            if name not in self.record.in_sync:
                machine.lsn = None
            self.start(machine)

    # Time and chance.

    def random(self, least: float, most: float) -> float:
        return least + (most - least) * self._random.random()

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        heappush(self._events, (self.time + delay, next(self._order), call, args))

    def run(self, process: Process, call: Callable[..., None], *args: Any) -> None:
        """Do something in a process, if it is there; later, where it is stopped."""
        machine = process.machine
        if machine.process is process:
            if machine.stopped is None:
                call(*args)
            else:
                machine.stopped.append((process, call, *args))

    def disk_delay(self) -> float:
        return self.random(0.001, 0.02) if self.chance(0.95) or self._is_healthy else self.random(0, LEASE)

    def until(self, end: float) -> None:
        """Let everything happen up to a time."""
        events = self._events
        while events and events[0][0] <= end:
            self.time, _, call, args = heappop(events)
            call(*args)
        self.time = end

    # The network and the coordinator.

    def send(self, source: str, target: str, call: Callable[..., None], *args: Any) -> None:
        """Send something to a node (a call with its process first) or to the coordinator."""
        if (source, target) in self._cut or self.chance(self._loss):
            return
        for _ in range(2 if self.chance(self._twice) else 1):
            delay = self.random(0, 1.5 * LEASE) if self.chance(self._late) else self.random(0.001, 0.02)
            if target == COORDINATOR:
                self.after(delay, call, *args)
            else:
                self.after(delay, self._arrive, self.machines[target], call, args)

    def refuses(self, source: str, target: str) -> bool:
        """Whether a node finds that nothing listens at another one; now and then something between says so."""
        if (source, target) in self._cut:
            return False
        return self.machines[target].process is None or (not self._is_healthy and self.chance(0.005))

    def _arrive(self, machine: Machine, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if machine.process:
            self.run(machine.process, call, machine.process, *args)

    def coordinate(self, name: str, run: int, number: int, request: Read | Swap) -> None:
        """As the coordinator, carry out a request."""
        answer: Any = (self.record, self._token)
        if isinstance(request, Swap):
            answer = None
            if request.token == self._token:
                self._token = answer = self._token + 1
                self.record = request.record
                self.check_in_sync()
        self.send(COORDINATOR, name, Process.called, run, number, answer)

    # What must hold.

    def confirm(self, process: Process, lsn: int) -> None:
        """Note that effects leave up to a lsn."""
        if lsn <= 0:
            return
        who = (process.name, process.run)
        if self.terms.setdefault(process.term, who) != who:
            raise Violation(f"{who} confirms in term {process.term}, and {self.terms[process.term]} did")
        self.confirmed += 1
        log = process.machine.log
        self._check_has(process.name, log[:lsn], min(lsn, len(self._log)), "confirms another history")
        if lsn > len(self._log):
            self._log = log[:lsn]
        self.check_in_sync()

    def check_in_sync(self) -> None:
        """Everyone that the record says is in sync has what was confirmed."""
        for name in self.record.in_sync:
            if self.machines[name].lsn is not None:  # else it was replaced
                self._check_has(name, self.machines[name].log, len(self._log), "is in sync")

    def check_primary(self, process: Process) -> None:
        """A new primary has what was confirmed; one that was deposed before it noticed confirms nothing."""
        if process.term == self.record.term:
            self._check_has(process.name, process.machine.log, len(self._log), "is primary")

    def _check_has(self, name: str, log: list[int], length: int, what: str) -> None:
        if length and (len(log) < length or log[length - 1] != self._log[length - 1]):
            raise Violation(f"{name} {what}, and lacks what was confirmed up to {length}: it has {len(log)}")

    # Faults.

    def start(self, machine: Machine) -> None:
        """Start a node, unless it runs."""
        if machine.process is None:
            machine.runs += 1
            machine.process = process = Process(self, machine, machine.runs)
            self.after(self.random(0, 0.05), self.run, process, process.tick)

    def crash(self, machine: Machine) -> None:
        """Kill a node; what it has not synced may be on its disk, or not."""
        process, machine.process, machine.stopped = machine.process, None, None
        torn = process and process.torn()
        if torn and self.chance(0.5):
            machine.write(torn)
        self.after(self.random(0.01, 2.5 * LEASE), self.start, machine)

    def go_on(self, machine: Machine) -> None:
        """Let a stopped node go on."""
        waiting, machine.stopped = machine.stopped, None
        for process, *call in waiting or ():
            self.run(process, *call)

    def fault(self) -> None:
        """Let something go wrong, and the next one later."""
        if self._is_healthy:
            return
        self.after(self.random(0.05, 1.6), self.fault)
        machine = self._random.choice([*self.machines.values()])
        process = machine.process
        match self._random.choice(
            ("crash", "replace", "stop", "cut", "cut", "coordinator", "clock", "hand over", "end")
        ):
            case "crash":
                if self.chance(0.1):
                    for each in self.machines.values():
                        self.crash(each)
                else:
                    self.crash(machine)
            case "replace" if self._is_spared(machine):
                self.crash(machine)
                machine.log, machine.lsn = [], None
                for each in self.machines.values():
                    if each.process:
                        self.run(each.process, each.process.left, machine.name)
            case "stop" if machine.stopped is None:
                machine.stopped = []
                self.after(self.random(0.05, 3 * LEASE), self.go_on, machine)
            case "cut":
                every = {*self.machines, COORDINATOR}
                side = set(self._random.sample(sorted(every), self._random.choice((1, 1, 2))))
                ways = {(one, two) for one in side for two in every - side}
                self._cut_off(ways if self.chance(0.3) else {*ways, *((two, one) for one, two in ways)})
            case "coordinator":
                others = [*self.machines] if self.chance(0.5) else [machine.name]
                pairs = {(COORDINATOR, each) for each in others}
                self._cut_off(pairs if self.chance(0.4) else {*pairs, *((two, one) for one, two in pairs)})
            case "clock":
                machine.offset += self.random(0, 3 * LEASE)
            case "hand over" | "end" as what:
                leader = next(
                    (each.process for each in self.machines.values() if each.process and each.process.leads), None
                )
                process = leader if self.chance(0.7) else process
                if process and process.machine.stopped is None:
                    try:
                        process.do(
                            process.rules.stop(process.now, failed=self.chance(0.2))
                            if what == "end"
                            else process.rules.hand_over(machine.name, process.now)
                        )
                    except IllegalStateException:
                        pass

    def _is_spared(self, machine: Machine) -> bool:
        """Whether all that was confirmed is elsewhere too, whatever swaps are under way."""
        requests = [args[3] for _, _, call, args in self._events if call == self.coordinate]
        records = [self.record, *(each.record for each in requests if isinstance(each, Swap))]
        others = {each.name for each in self.machines.values() if each.lsn is not None and each is not machine}
        leads = [each.process for each in self.machines.values() if each.process and each.process.leads]
        return (
            all(record.in_sync & others for record in records)
            and all(each.serves and each.machine is not machine for each in leads)
            and machine.name not in {each.primary for each in records}
        )

    def _cut_off(self, ways: set[tuple[str, str]]) -> None:
        self._cut |= ways
        self.after(self.random(0.05, 3 * LEASE), self._cut.difference_update, ways)

    def work(self) -> None:
        """Clients send something to whoever serves, and more later."""
        self.after(self.random(0.02, 0.4), self.work)
        for machine in self.machines.values():
            process = machine.process
            if process and process.leads and process.serves and machine.stopped is None:
                process.work()

    def heal(self) -> None:
        """End all faults."""
        self._is_healthy = True
        self._loss = self._twice = self._late = 0.0
        self._cut.clear()
        for machine in self.machines.values():
            machine.offset += (machine.rate - 1.0) * self.time
            machine.rate = 1.0
            self.go_on(machine)

    def whole(self) -> None:
        """Run it."""
        self.work()
        self.fault()
        self.until(FAULTS)
        self.heal()
        healed, confirmed = 0.0, 0
        while self.time < FAULTS + HEALING:
            self.until(self.time + LEASE)
            if self.record.in_sync != self.members:
                healed, confirmed = 0.0, self.confirmed
            elif not healed:
                healed, confirmed = self.time, self.confirmed
            elif self.confirmed > confirmed:
                return
        raise Violation(f"healed, and not as before: {self.record}")


def common_length(one: list[int], other: list[int]) -> int:
    """Up to where two logs are the same."""
    low, high = 0, min(len(one), len(other))
    if high and one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if one[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


def failure(seed: int, node_class: type[Node] = Node) -> tuple[int, int, str]:
    """Run a history; returns its seed, how often something was confirmed, and what went wrong."""
    history = Simulation(seed, node_class)
    try:
        history.whole()
    except Violation as error:
        return seed, history.confirmed, f"{error}"
    except Exception:
        return seed, history.confirmed, traceback.format_exc()
    return seed, history.confirmed, ""


def main() -> int:
    """Run many on all cores; exit status 1 where one failed."""
    parser = argparse.ArgumentParser(prog="simulation", description="random histories of groups")
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first one; default: the time")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.histories)
    failed = confirmed = 0
    started = time.monotonic()
    columns = (TextColumn("histories"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    with Progress(*columns) as progress, context.Pool(options.processes) as pool:
        task = progress.add_task("", total=len(seeds))
        for seed, releases, error in pool.imap_unordered(failure, seeds, chunksize=20):
            progress.advance(task)
            confirmed += releases
            if error:
                failed += 1
                progress.console.print(f"seed {seed}: {error}", markup=False, highlight=False)
    seconds = time.monotonic() - started
    print(
        f"{len(seeds)} histories from seed {options.seed} on, {confirmed} releases in {seconds:.0f} s: "
        + (f"{failed} failed" if failed else "every one is as it must be")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
