"""Random histories of a queue against a plain model: nothing lost, nothing doubled, order kept, over restarts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies, policy
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, Inbox, come_to_rest, connect, depth, drained, message, payloads

MAX_DELIVERIES = 4
LIMITS = EngineSettings(window_messages=10, max_deliveries=MAX_DELIVERIES, redelivery_delay_seconds=0)

_steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 25), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("attach"), st.integers(1, 20)),
    st.tuples(st.just("credit"), st.integers(0, 1), st.integers(1, 20)),
    st.tuples(st.just("settle"), st.integers(0, 1), st.sampled_from(list(Outcome)), st.integers(1, 10)),
    st.tuples(st.just("detach"), st.integers(0, 1)),
    st.tuples(st.just("reconnect")),
    st.tuples(st.just("commit"), st.integers(0, 1), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("policy"), st.sampled_from([2, MAX_DELIVERIES, 6]), st.sampled_from(["DLQ", "q.dead", "q"])),
)


class Model:
    """What must be true of one queue, told in sets and dictionaries."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, tuple[int, bool]] = {}  #: body → (lane, persistent); in the order of their sends
        self.failures: dict[bytes, int] = {}  #: at least so often a delivery of it has failed
        self.dead: set[bytes] = set()
        self.most: int | None = MAX_DELIVERIES  #: failures until it is dead
        self.next = 0

    def new(self, count: int, priority: int, persistent: bool) -> list[c.NewMessage]:
        messages = []
        for _ in range(count):
            body = b"%06d" % self.next
            self.next += 1
            self.waiting[body] = (9 - priority, persistent)
            messages.append(message(body, priority=priority, persistent=persistent))
        return messages

    def ended(self, body: bytes, outcome: Outcome) -> None:
        if outcome is Outcome.ACCEPTED:
            del self.waiting[body]
        elif outcome is Outcome.REJECTED and self.most is not None:
            self.dead.add(body)
            del self.waiting[body]
        elif outcome is not Outcome.RELEASED:
            self.failed(body)

    def failed(self, body: bytes) -> None:
        self.failures[body] = self.failures.get(body, 0) + 1
        if self.most is not None and self.failures[body] >= self.most:
            self.dead.add(body)
            del self.waiting[body]

    def crash(self) -> None:
        """Only what is persistent survives."""
        self.waiting = {body: fields for body, fields in self.waiting.items() if fields[1]}
        self.dead.clear()  # dead letters of non-persistent messages are gone too; they are counted no more

    def in_order(self) -> list[bytes]:
        return sorted(self.waiting, key=lambda body: (self.waiting[body][0], body))


class History:
    """Carries out steps on a broker and on the model."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.model = Model()
        self.held: list[tuple[int, Inbox, list[c.Handout]]] = []  #: consumer, its inbox, what it holds
        self.number = 0
        self.policies = Policies(LIMITS)
        self._start()

    def _start(self) -> None:
        self.broker = Broker(LIMITS, self.path, self.policies)
        self.broker._state.directory.memory.cycle_handouts = 3
        self.client = connect(self.broker)

    def _collect(self) -> None:
        come_to_rest(self.broker)  # a cycle hands out a few only
        in_hands: set[bytes] = set()
        for _, inbox, held in self.held:
            held += inbox.handouts
            for handout in inbox.handouts:
                assert handout.payload in self.model.waiting, "delivered what is not there"
                assert handout.delivery_count >= self.model.failures.get(handout.payload, 0)
                self.model.failures[handout.payload] = handout.delivery_count
            inbox.handouts.clear()
            for handout in held:
                assert handout.payload not in in_hands, "delivered to two at once"
                in_hands.add(handout.payload)

    def send(self, count: int, priority: int, persistent: bool) -> None:
        messages = self.model.new(count, priority, persistent)
        assert self.broker.call(c.Enqueue(self.client, queue("q"), messages), WAIT) is None

    def attach(self, credit: int) -> None:
        inbox = Inbox()
        consumer = self.broker.call(c.Attach(self.client, queue("q"), inbox), WAIT)
        self.held.append((consumer, inbox, []))
        self.broker.call(c.Credit(consumer, credit), WAIT)

    def credit(self, index: int, credit: int) -> None:
        if index < len(self.held):
            self.broker.call(c.Credit(self.held[index][0], credit), WAIT)

    def settle(self, index: int, outcome: Outcome, count: int) -> None:
        if index >= len(self.held):
            return
        consumer, _, held = self.held[index]
        ending, held[:] = held[:count], held[count:]
        self.broker.call(c.Settle(consumer, [each.number for each in ending], outcome), WAIT)
        for handout in ending:
            self.model.ended(handout.payload, outcome)

    def detach(self, index: int) -> None:
        if index < len(self.held):
            consumer, _, held = self.held.pop(index)
            self.broker.call(c.Detach(consumer, give_back=True), WAIT)
            for handout in held:
                self.model.failed(handout.payload)

    def reconnect(self) -> None:
        self.broker.call(c.Disconnect(self.client), WAIT)
        for _, _, held in self.held:
            for handout in held:
                self.model.failed(handout.payload)
        self.held.clear()
        self.client = connect(self.broker)

    def commit(self, index: int, sends: int, settlements: int) -> None:
        if index >= len(self.held):
            return
        consumer, _, held = self.held[index]
        ending, held[:] = held[:settlements], held[settlements:]
        self.number += 1
        commit = c.Commit(
            self.client,
            c.CommitId("s", self.number),
            [(queue("q"), each) for each in self.model.new(sends, 4, True)],
            [(consumer, each.number, Outcome.ACCEPTED) for each in ending],
        )
        self.broker.call(commit, WAIT)
        self.broker.call(commit, WAIT)  # once more is harmless
        for handout in ending:
            self.model.ended(handout.payload, Outcome.ACCEPTED)

    def policy(self, most: int, dead_letters: str) -> None:
        """Other settings for the queue, which may become a dead-letter queue, as it is its own: nothing leaves it."""
        given = {"max_deliveries": most, "dead_letter_queue": dead_letters}
        self.policies = Policies(LIMITS, [policy("q", given)])
        self.model.most = None if dead_letters == "q" else most
        self.broker.call(c.UsePolicies(self.policies), WAIT)

    def restart(self) -> None:
        if self.path is None:
            return
        self.broker.close()  # what is in hands then has failed, if it never has before: it is not known what was seen
        for _, _, held in self.held:
            for handout in held:
                if not handout.delivery_count:
                    self.model.failed(handout.payload)
        self.held.clear()
        self.model.crash()
        given = self.broker._state.intake.next_message
        self._start()
        assert self.broker._state.intake.next_message >= given, "numbers are given again"

    def run(self, steps: Sequence[Any]) -> None:
        try:
            for name, *arguments in (("send", 12, 4, True), ("attach", 6), *steps):
                getattr(self, name)(*arguments)
                self._collect()
            self._finish()
        finally:
            self.broker.close()

    def _finish(self) -> None:
        self.reconnect()
        waiting = self.model.in_order()
        assert depth(self.broker, "q") == len(waiting)
        assert payloads(drained(self.broker, self.client, "q")) == waiting
        dead = [each for name in ("DLQ", "q.dead") for each in payloads(drained(self.broker, self.client, name))]
        assert len(dead) == len(set(dead))
        assert self.model.dead <= set(dead)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(_steps, min_size=5, max_size=40))
def test_a_history_in_memory_goes_as_the_model_says(steps: list[Any]) -> None:
    History(None).run(steps)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(_steps, min_size=5, max_size=40))
def test_a_history_on_disk_goes_as_the_model_says_over_restarts(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        History(str(Path(directory) / "data")).run(steps)
