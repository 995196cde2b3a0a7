"""Random histories of a queue whose consumers have selectors, against a plain model, over windows and restarts.

What must be true after each step: no consumer holds what it did not ask for or what another one holds; and one that may
have more has everything that is there for it.  What a consumer's listener failed to process waits for that consumer,
while it is there; of all consumers together as many messages as a window has.  Where it asks for nothing, another one
that has nothing else to do may get all of that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack, unpack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, Inbox, come_to_rest, connect, depth, drained

WINDOW = 10
COLOURS = ("red", "blue", "green")
SELECTORS = (None, "colour = 'red'", "colour = 'blue'", "colour = 'green'")

_steps = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 25), st.sampled_from(COLOURS), st.integers(3, 5), st.booleans()),
    st.tuples(st.just("attach"), st.sampled_from(SELECTORS), st.integers(0, 20)),
    st.tuples(st.just("credit"), st.integers(0, 2), st.integers(1, 20)),
    st.tuples(st.just("settle"), st.integers(0, 2), st.sampled_from(list(Outcome)), st.integers(1, 10)),
    st.tuples(st.just("detach"), st.integers(0, 2)),
    st.tuples(st.just("browse"), st.sampled_from(SELECTORS)),
    st.tuples(st.just("purge_red")),
    st.tuples(st.just("restart")),
)


class Taker:
    """A consumer as the model sees it."""

    def __init__(self, number: int, inbox: Inbox, selector: str | None, credit: int) -> None:
        self.number = number
        self.inbox = inbox
        self.selector = selector
        self.credit = credit
        self.held: list[c.Handout] = []

    def wants(self, colour: str) -> bool:
        return self.selector is None or f"'{colour}'" in self.selector


class History:
    """Carries out steps on a broker and on the model."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.waiting: dict[str, tuple[int, str, bool]] = {}  #: body → (lane, colour, persistent)
        self.failures: dict[str, int] = {}
        self.failed_by: dict[str, Taker] = {}  #: body → whose listener raised, and gets it again
        self.takers: list[Taker] = []
        self.next = 0
        self._start()

    def _start(self) -> None:
        limits = EngineSettings(window_messages=WINDOW, max_deliveries=None, redelivery_delay_seconds=0)
        self.broker = Broker(limits, self.path)
        self.broker._state.directory.memory.cycle_handouts = 3
        self.client = connect(self.broker)

    def _collect(self) -> None:
        come_to_rest(self.broker)  # scans of the backlog take a cycle each
        in_hands: set[str] = set()
        for taker in self.takers:
            arrived, taker.inbox.handouts[:] = list(taker.inbox.handouts), []
            taker.credit -= len(arrived)
            taker.held += arrived
            for handout in arrived:
                body = unpack(handout.payload).body
                assert body in self.waiting, "delivered what is not there"
                assert taker.wants(self.waiting[body][1]), "delivered what was not asked for"
                assert handout.delivery_count >= self.failures.get(body, 0)
                self._may_have(body, taker)
                self.failures[body] = handout.delivery_count
            for handout in taker.held:
                body = unpack(handout.payload).body
                assert body not in in_hands, "delivered to two at once"
                in_hands.add(body)
        for taker in self.takers:
            assert taker.credit >= 0
            if taker.credit:
                left = [
                    body
                    for body, (_, colour, _) in self.waiting.items()
                    if taker.wants(colour) and self.failed_by.get(body, taker) is taker
                ]
                assert set(left) <= in_hands, f"{taker.selector} could have more"

    def _may_have(self, body: str, taker: Taker) -> None:
        failed = self.failed_by.pop(body, taker)
        if failed is not taker:
            assert not failed.credit
            self.failed_by = {body: by for body, by in self.failed_by.items() if by is not failed}

    def send(self, count: int, colour: str, priority: int, persistent: bool) -> None:
        messages = []
        for _ in range(count):
            body = f"{self.next:06d}"
            self.next += 1
            self.waiting[body] = (9 - priority, colour, persistent)
            envelope = Envelope(Destination("q"), BodyKind.TEXT, body, {"colour": colour})
            messages.append(c.NewMessage(ENVELOPE_FORMAT, pack(envelope), priority, persistent))
        assert self.broker.call(c.Enqueue(self.client, queue("q"), messages), WAIT) is None

    def attach(self, selector: str | None, credit: int) -> None:
        if len(self.takers) == 3:
            return
        inbox = Inbox()
        number = self.broker.call(c.Attach(self.client, queue("q"), inbox, selector=selector), WAIT)
        self.takers.append(Taker(number, inbox, selector, credit))
        self.broker.call(c.Credit(number, credit), WAIT)

    def credit(self, index: int, credit: int) -> None:
        if index < len(self.takers):
            self.takers[index].credit += credit
            self.broker.call(c.Credit(self.takers[index].number, credit), WAIT)

    def settle(self, index: int, outcome: Outcome, count: int) -> None:
        if index >= len(self.takers) or outcome is Outcome.REJECTED:
            return
        taker = self.takers[index]
        ending, taker.held = taker.held[:count], taker.held[count:]
        self.broker.call(c.Settle(taker.number, [each.number for each in ending], outcome), WAIT)
        for handout in ending:
            body = unpack(handout.payload).body
            if outcome is Outcome.ACCEPTED:
                del self.waiting[body]
            elif outcome is not Outcome.RELEASED:
                self.failures[body] += 1
            if outcome in (Outcome.FAILED, Outcome.UNDELIVERABLE) and len(self.failed_by) < WINDOW:
                self.failed_by[body] = taker
        if ending and outcome is Outcome.MODIFIED:  # what was undone is for all, with what is kept for its consumer
            self.failed_by = {body: by for body, by in self.failed_by.items() if by is not taker}

    def detach(self, index: int) -> None:
        if index < len(self.takers):
            taker = self.takers.pop(index)
            self.broker.call(c.Detach(taker.number, give_back=True), WAIT)
            self.failed_by = {body: by for body, by in self.failed_by.items() if by is not taker}
            for handout in taker.held:
                self.failures[unpack(handout.payload).body] += 1

    def browse(self, selector: str | None) -> None:
        held = {unpack(each.payload).body for taker in self.takers for each in taker.held}
        seen = drained(self.broker, self.client, "q", browse=True, presettled=True, selector=selector)
        wanted = Taker(0, Inbox(), selector, 0).wants
        expected = [body for body in self._in_order() if wanted(self.waiting[body][1]) and body not in held]
        assert [unpack(each.payload).body for each in seen] == expected

    def purge_red(self) -> None:
        """What a selective consumer has found may be gone when its turn comes."""
        if any(taker.held for taker in self.takers):
            return
        taken = drained(self.broker, self.client, "q", presettled=True, selector="colour = 'red'")
        for handout in taken:
            del self.waiting[unpack(handout.payload).body]

    def restart(self) -> None:
        if self.path is None:
            return
        self.broker.close()
        self.takers.clear()
        self.failed_by.clear()
        self.waiting = {body: fields for body, fields in self.waiting.items() if fields[2]}
        self._start()

    def _in_order(self) -> list[str]:
        return sorted(self.waiting, key=lambda body: (self.waiting[body][0], body))

    def run(self, steps: Sequence[Any]) -> None:
        try:
            for name, *arguments in (("send", 12, "blue", 4, True), ("send", 12, "red", 4, True), *steps):
                getattr(self, name)(*arguments)
                self._collect()
            self._finish()
        finally:
            self.broker.close()

    def _finish(self) -> None:
        while self.takers:
            self.detach(0)
        waiting = self._in_order()
        assert depth(self.broker, "q") == len(waiting)
        for colour in COLOURS:
            wanted = [body for body in waiting if self.waiting[body][1] == colour]
            found = drained(self.broker, self.client, "q", presettled=True, selector=f"colour = '{colour}'")
            assert [unpack(each.payload).body for each in found] == wanted
        assert depth(self.broker, "q") == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(_steps, min_size=5, max_size=40))
def test_a_history_in_memory_goes_as_the_model_says(steps: list[Any]) -> None:
    History(None).run(steps)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(_steps, min_size=5, max_size=40))
def test_a_history_on_disk_goes_as_the_model_says_over_restarts(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        History(str(Path(directory) / "data")).run(steps)
