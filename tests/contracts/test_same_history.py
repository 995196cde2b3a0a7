"""Random histories go the same way over every transport."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ack_modes import Outcome, Settlement
from broker_adapter.destination import queue
from broker_adapter.errors import JMSException
from broker_adapter.transport import Delivery
from tests.contracts.transports import KINDS, WAIT, Client, Engine, message

_names = itertools.count(1)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """One of each kind."""
    # A pause before a redelivery would be over sooner for one than for another.
    options = "max_deliveries=3&max_queue_messages=8&blocked_send_timeout_seconds=0&redelivery_delay_seconds=0"
    made = [Engine(kind, tmp_path_factory.mktemp("engine") / "data", options) for kind in KINDS]
    yield made
    for each in made:
        each.close()


class History:
    """Does the same things with one transport, and writes down what is seen of them."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.seen: list[Any] = []
        self._engine = engine
        self._queue = queue(name)
        self._name = name
        self._bodies = itertools.count()
        self._commits = itertools.count(1)
        self._connect()

    def _connect(self) -> None:
        self._client: Client = self._engine.open()
        self._held: list[Delivery] = []
        self._sender = self._client.sender(self._queue)
        self._receiver = self._client.receiver(self._queue)

    def send(self, count: int, priority: int) -> None:
        for _ in range(count):
            body = str(next(self._bodies))
            try:
                self._client.transport.send(self._sender, message(self._queue, body, priority=priority), None, WAIT)
            except JMSException as error:
                self.seen.append((body, type(error).__name__))

    def receive(self, credit: int) -> None:
        before = len(self._receiver.deliveries)
        self._client.transport.credit(self._receiver.link, credit)
        self._client.transport.drain(self._receiver.link, WAIT)
        new = self._receiver.deliveries[before:]
        self._held += new
        self.seen.append([(each.envelope.body, each.delivery_count) for each in new])

    def settle(self, picks: list[int], outcome: Outcome) -> None:
        self._client.settle(self._take(picks), outcome)
        # Settlements do not wait for the broker, and what is sent next may come before them; this waits.
        self._client.transport.request("statistics", {}, WAIT)

    def _take(self, picks: list[int]) -> list[Delivery]:
        return [self._held.pop(pick % len(self._held)) for pick in picks if self._held]

    def commit(self, sends: int, picks: list[int], outcome: Outcome) -> None:
        taken = self._take(picks)
        messages = [(self._sender, message(self._queue, f"{next(self._bodies)}")) for _ in range(sends)]
        settlements = [Settlement(each.tag, outcome) for each in taken]
        try:
            self._client.transport.commit(1, next(self._commits), messages, settlements, WAIT)
        except JMSException as error:
            self.seen.append(type(error).__name__)

    def reattach(self) -> None:
        self._client.transport.detach(self._receiver.link, WAIT)
        self._receiver = self._client.receiver(self._queue)

    def end_session(self) -> None:
        self._client.transport.end_session(1, WAIT)
        self._held.clear()
        self._sender = self._client.sender(self._queue)
        self._receiver = self._client.receiver(self._queue)

    def reconnect(self) -> None:
        self._client.close()
        self._commits = itertools.count(1)
        self._connect()

    def browse(self) -> None:
        self.seen.append(self._client.bodies(self._name))

    def end(self) -> None:
        """What is left, here and among the dead letters."""
        self._client.close()
        self._connect()
        self.receive(100)
        self.settle([0] * 100, Outcome.ACCEPTED)
        dead = self._client.drained("DLQ")
        self.seen.append([(each.envelope.body, each.envelope.properties) for each in dead])
        self._client.settle(dead)
        self._client.close()


picks = st.lists(st.integers(0, 7), max_size=5)
outcomes = st.sampled_from(Outcome)
#: No mode fails a message in a transaction, and to plain AMQP that is a modified there, without its annotation.
in_commits = st.sampled_from([each for each in Outcome if each is not Outcome.FAILED])
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), st.sampled_from([1, 4, 4, 9])),
    st.tuples(st.just("receive"), st.integers(1, 6)),
    st.tuples(st.just("settle"), picks, outcomes),
    st.tuples(st.just("commit"), st.integers(0, 3), picks, in_commits),
    st.tuples(st.sampled_from(["reattach", "end_session", "reconnect", "browse"])),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(steps, min_size=3, max_size=15))
def test_a_history_goes_the_same_way_over_every_transport(engines: list[Engine], history: list[Any]) -> None:
    name = f"q{next(_names)}"
    transcripts = []
    for engine in engines:
        told = History(engine, name)
        for step, *arguments in history:
            getattr(told, step)(*arguments)
        told.end()
        transcripts.append(told.seen)

    for kind, transcript in zip(KINDS[1:], transcripts[1:], strict=True):
        assert transcript == transcripts[0], kind
