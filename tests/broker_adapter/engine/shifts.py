"""Random histories of workers that share a queue: listeners that fail, groups that move, workers that come and go.

The model knows which messages are left, in order, and who has which in hand.  What must be true:

- No message is in two hands, and what has ended never comes again.
- What is in hand of a message group is in one hand, and the first of what is left of the group.  Where consumers are
  exclusive, the same holds for the whole queue.
- A consumer that keeps order gets what it has failed on next; of what a session has undone, nothing later passes the
  first to the same consumer, but for what is kept of other groups.
- A message that failed twice or more and waits alone does not come before its delay is over.
- In the end all have been processed, each once, those of a group in order; and dead letters are those on which every
  listener fails, and no others: not because a worker, or all of them, failed for a while.

A history is made from a seed, so that it can be run again::

    python -m tests.torture --seed 4711 --histories 1
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ack_modes import Outcome
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.backoff import redelivery_delay_ms
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.decisions import Q, Rules

#: For so long listeners fail in all, beyond single ones: far from as long as a message is tried.
OUTAGES_MS = 6000
#: A single listener fails on, or a session undoes, a message at most so often.
SINGLE_FAILURES = 3
#: Messages that wait at most: all are in memory, since these rules are driven without a store.
MOST = 400

_BODY = pack(Envelope(Q))


class Held(NamedTuple):
    """A delivery."""

    position: int
    number: int


class Worker:
    """A consumer that processes what it holds in order."""

    def __init__(self, client: int, consumer: int, *, undoes: bool, keeps_order: bool) -> None:
        self.client = client
        self.consumer = consumer
        self.undoes = undoes  #: whether it acknowledges several messages at once, or undoes them
        self.keeps_order = keeps_order
        self.held: list[Held] = []
        self.seen = 0  #: of what it holds, what it has processed and not acknowledged
        self.read = 0
        self.fails_until_ms = 0
        self.next: int | None = None  #: the position that it must get next, or an earlier one


class Shift:
    """Carries out steps on the rules of the engine and on the model."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.exclusive = seed % 5 == 0
        self.kills = seed % 2 == 0  #: whether deliveries are lost with their consumers, which counts as a failure
        self.rules = Rules(max_deliveries=None if self.kills else 10)
        self.settings = EngineSettings()
        self.searches = seed % 3 == 1  #: whether some workers have a selector; groups are then of no use
        self.prefetch = self.chance.choice((1, 3, 10))
        self.workers: list[Worker] = []
        self.group_of = [0]  #: by position; 0: none
        self.left: dict[int, list[int]] = {}  #: group → positions; of group 0 those that are in none
        self.poison: set[int] = set()
        self.buried: set[int] = set()
        self.failures: dict[int, int] = {}  #: position → how often a listener has failed on it, or a session undone it
        self.alone_until_ms: dict[int, int] = {}
        self.owner: dict[int, Worker] = {}
        self.moves = 0
        self.outage_ms = 0
        self.fails_until_ms = 0
        self.steps = 0
        self.client = self.rules.connect()

    # What happens.

    def send(self) -> None:
        if sum(map(len, self.left.values())) > MOST:
            return
        some = (0,) if self.searches else (0, 0, *range(1, 9))
        groups = [self.chance.choice(some) for _ in range(self.chance.randrange(1, 15))]
        for position in range(len(self.group_of), len(self.group_of) + len(groups)):
            if not self.kills and len(self.poison) < 4 and self.chance.random() < 0.02:
                self.poison.add(position)
        self._send(groups)

    def _send(self, groups: list[int]) -> None:
        for group in groups:
            self.left.setdefault(group, []).append(len(self.group_of))
            self.group_of.append(group)
        self.rules.do(
            c.Enqueue(self.client, Q, [c.NewMessage(ENVELOPE_FORMAT, _BODY, group=group) for group in groups])
        )

    def join(self) -> None:
        if len(self.workers) >= 5:
            return
        client = self.rules.connect()
        undoes, keeps_order = self.chance.random() < 0.3, self.chance.random() < 0.3
        selector = "JMSPriority >= 0" if self.searches and self.chance.random() < 0.5 else None
        consumer = self.rules.attach(
            client, Q, self.prefetch, exclusive=self.exclusive, keep_order=keeps_order, selector=selector
        )
        self.workers.append(Worker(client, consumer, undoes=undoes, keeps_order=keeps_order or self.exclusive))

    def leave(self) -> None:
        """A consumer is closed, or killed: by now nobody knows what it has seen."""
        if len(self.workers) < 2:
            return
        worker = self.workers.pop(self.chance.randrange(len(self.workers)))
        failed = self.kills and self.chance.random() < 0.7
        if self.chance.random() < 0.5:
            self.rules.do(c.Detach(worker.consumer, give_back=True, failed=failed))
        else:
            self.rules.do(c.Disconnect(worker.client, failed=failed))

    def fail_for_a_while(self) -> None:
        """All listeners fail, as where a database is away, or those of one worker."""
        ms = self.chance.choice((200, 1000, 3000))
        if self.outage_ms + ms > OUTAGES_MS or not self.workers:
            return
        self.outage_ms += ms
        until_ms = self.rules.now_ms + ms
        if self.chance.random() < 0.5:
            self.fails_until_ms = max(self.fails_until_ms, until_ms)
        else:
            self.chance.choice(self.workers).fails_until_ms = until_ms

    def pass_time(self) -> None:
        self.rules.pass_time(self.chance.choice((1, 10, 100, 300)))

    def work(self) -> None:
        if self.workers:
            self._work(self.chance.choice(self.workers), self.chance.random() < 0.03)

    def _work(self, worker: Worker, fails_once: bool) -> None:
        """Process the next message, and acknowledge it or what has come with it."""
        if worker.seen == len(worker.held):
            self._acknowledge(worker)
            return
        position = worker.held[worker.seen].position
        fails = position in self.poison or self.rules.now_ms < max(self.fails_until_ms, worker.fails_until_ms)
        if fails and worker.seen:
            self._acknowledge(worker)  # else the good ones would be tried as often
            self.look()
        worker.seen += 1
        tries = [self.failures.get(each.position, 0) for each in worker.held[: worker.seen]]
        if fails or (fails_once and max(tries) < SINGLE_FAILURES):
            self._fail(worker)
        elif not worker.undoes or worker.seen == 3:
            self._acknowledge(worker)

    def _acknowledge(self, worker: Worker) -> None:
        ended, worker.held, worker.seen = worker.held[: worker.seen], worker.held[worker.seen :], 0
        for position, _ in ended:
            group = self.group_of[position]
            assert position not in self.poison
            if group or self.exclusive:
                assert self._left_of(position)[0] == position, "out of order"
            self.left[group].remove(position)
            if group:
                self.moves += self.owner.setdefault(group, worker) is not worker
                self.owner[group] = worker
        self._settle(worker, ended, Outcome.ACCEPTED)

    def _fail(self, worker: Worker) -> None:
        """As the SDK does: what was prefetched behind goes back."""
        failed, rest, worker.held, worker.seen = worker.held[: worker.seen], worker.held[worker.seen :], [], 0
        first = failed[0].position
        for position, _ in failed:
            for other in self.workers:
                other.next = None if other.next == position else other.next  # it waits for this one now
            failures = self.failures[position] = self.failures.get(position, 0) + 1
            if not (worker.undoes or worker.keeps_order or self.group_of[position]):
                delay_ms = redelivery_delay_ms(min(failures, 2), self.settings)
                self.alone_until_ms[position] = self.rules.now_ms + delay_ms
            else:
                self.alone_until_ms.pop(position, None)
        worker.next = first if worker.undoes or worker.keeps_order else None
        credit = c.Credit(worker.consumer, len(failed) + len(rest))
        self.rules.do(
            c.Settle(worker.consumer, [each.number for each in failed], self._outcome(worker)),
            c.Settle(worker.consumer, [each.number for each in rest], Outcome.RELEASED),
        )
        self.rules.do(credit)

    @staticmethod
    def _outcome(worker: Worker) -> Outcome:
        return Outcome.MODIFIED if worker.undoes else Outcome.FAILED

    def _settle(self, worker: Worker, held: list[Held], outcome: Outcome) -> None:
        if held:
            numbers = [each.number for each in held]
            self.rules.do(c.Settle(worker.consumer, numbers, outcome), c.Credit(worker.consumer, len(held)))

    # What must be true.

    def _left_of(self, position: int) -> list[int]:
        """What is left of those that depend on each other, in order."""
        if self.exclusive:
            return sorted(each for group in self.left.values() for each in group)
        return self.left[self.group_of[position]]

    def look(self) -> None:
        arrived = []
        for worker in self.workers:
            placed = self.rules.placed.get(worker.consumer, [])
            arrived += [(worker, Held(*place)) for place in placed[worker.read :]]
            worker.read = len(placed)
        for worker, held in arrived:
            worker.held.append(held)
        self._bury()
        for worker, held in arrived:
            self._check_delivered(worker, held.position)
        hands: dict[int, Worker] = {}
        in_hand: dict[int, list[int]] = {}
        for worker in self.workers:
            for position, _ in worker.held:
                assert position not in hands, "in two hands"
                hands[position] = worker
                in_hand.setdefault(self.group_of[position] if not self.exclusive else 0, []).append(position)
        for group, positions in in_hand.items():
            if group or self.exclusive:
                assert len({hands[position].consumer for position in positions}) == 1, "a group in two hands"
                assert positions == self._left_of(positions[0])[: len(positions)], "a later one first"

    def _check_delivered(self, worker: Worker, position: int) -> None:
        assert position in self.left[self.group_of[position]], "it has ended"
        assert self.rules.now_ms >= self.alone_until_ms.pop(position, 0), "it still waits"
        if worker.next is not None:
            elsewhere = [each.position for other in self.workers if other is not worker for each in other.held]
            group = self.group_of[worker.next]
            is_other = worker.undoes and self.group_of[position] != group
            if worker.next in self.left[group] and worker.next not in elsewhere and not is_other:
                # A group may be another one's by now.
                assert position <= worker.next or group > 0, "passed what failed before"
            worker.next = None

    def _bury(self) -> None:
        """What has been tried as often as may be is a dead letter."""
        limit = None if self.kills else 10
        for position in [each for each in self.poison if limit is not None and self.failures.get(each, 0) >= limit]:
            if not self._is_there(position):
                self.left[self.group_of[position]].remove(position)
                self.poison.discard(position)
                self.buried.add(position)

    def _is_there(self, position: int) -> bool:
        queue = self.rules.state.directory.by_destination[Q]
        return bool(queue.all_in_memory([position]))

    STEPS = (*("work",) * 30, *("send",) * 4, "join", "leave", *("pass_time",) * 4, "fail_for_a_while")

    def run(self, steps: int = 300) -> None:
        """Go through it; raises AssertionError where something that must be true is not."""
        for name in ("join", "join", *self.chance.choices(self.STEPS, k=steps)):
            self.steps += 1
            getattr(self, name)()
            self.look()
        self._finish()

    def _finish(self) -> None:
        self.fails_until_ms = 0
        for _ in range(3000):
            if not self.rules.depth("q"):
                break
            for worker in self.workers:
                for _ in range(self.prefetch + 1):
                    self._work(worker, fails_once=False)
                    self.look()
            if self.poison and self.poison.issuperset(each for positions in self.left.values() for each in positions):
                # Else those on which all have failed are tried for ever.
                self._send([0] * len(self.workers) * self.prefetch)
            self.rules.pass_time(1000)
            self.look()
        left = [position for positions in self.left.values() for position in positions]
        assert left == [], "never came"
        assert self.rules.depth("DLQ") == len(self.buried)
