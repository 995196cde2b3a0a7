"""The law of the package over random histories: settled exactly once, never early, nothing left."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ack_modes import AcknowledgeMode, AckPolicy, BatchLimits, DeliveryTag, Failure, Outcome, Settlement


class SessionHistory(RuleBasedStateMachine):
    """A session with a broker that checks every settlement."""

    mode: AcknowledgeMode

    def __init__(self) -> None:
        super().__init__()
        self.policy: AckPolicy = self.mode.new_policy()
        self.now = 0.0
        self.epoch = 0
        self.number = 0
        self.in_hand: DeliveryTag | None = None
        self.open: set[DeliveryTag] = set()  # delivered in this epoch, not settled
        self.seen: list[DeliveryTag] = []
        self.lost: set[DeliveryTag] = set()

    @initialize(messages=st.integers(1, 4), delay=st.sampled_from([0.0, 1.0, 100.0]))
    def begin(self, messages: int, delay: float) -> None:
        self.policy = self.mode.new_policy(BatchLimits(messages, delay))

    def take(self, settlements: Iterable[Settlement]) -> list[Settlement]:
        taken = list(settlements)
        for tag, outcome in taken:
            assert not self.policy.presettled
            assert tag in self.open, "settled twice, or before it was delivered"
            assert isinstance(outcome, Failure) or outcome in (Outcome.ACCEPTED, Outcome.MODIFIED, Outcome.FAILED)
            self.open.remove(tag)
        return taken

    @precondition(lambda self: self.in_hand is None)
    @rule()
    def deliver(self) -> None:
        self.number += 1
        self.in_hand = DeliveryTag(self.epoch, 1, self.number)
        self.seen.append(self.in_hand)
        if not self.policy.presettled:
            self.open.add(self.in_hand)
        self.policy.delivered(self.in_hand)

    @precondition(lambda self: self.in_hand is not None)
    @rule()
    def consume(self) -> None:
        assert self.in_hand is not None
        self.take(self.policy.consumed(self.in_hand, self.now))
        self.in_hand = None

    @precondition(lambda self: self.in_hand is not None)
    @rule()
    def raise_in_listener(self) -> None:
        assert self.in_hand is not None
        settlements = self.take(self.policy.listener_raised(self.in_hand, self.now))
        assert all(outcome is Outcome.FAILED for _, outcome in settlements)
        self.in_hand = None

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(self.seen))
        ending = self.policy.acknowledge(tag)
        settlements = self.take(ending.settlements)
        assert not ending.dirty or self.lost
        assert ending.dirty == (ending.stale_count > 0)
        assert not ending.dirty or all(outcome is Outcome.MODIFIED for _, outcome in settlements)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(self.seen))
        ending = self.policy.settle(tag, Failure("no", Outcome.REJECTED))
        if ending is None:
            assert tag not in self.open or self.policy.presettled or tag != self.in_hand
        else:
            self.take(ending.settlements)
            assert not ending.dirty or self.lost

    @rule()
    def commit(self) -> None:
        ending = self.policy.commit()
        settlements = self.take(ending.settlements)
        assert not ending.dirty or all(outcome is Outcome.MODIFIED for _, outcome in settlements)
        assert self.policy.commit() == ((), False, 0)

    @rule()
    def send(self) -> None:
        self.policy.sent()

    @rule()
    def recover(self) -> None:
        self.take(self.policy.recover())

    @rule(seconds=st.sampled_from([0.5, 1.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        settlements = self.take(self.policy.due(self.now))
        assert all(outcome is Outcome.ACCEPTED for _, outcome in settlements)
        assert self.policy.due_at is None or self.policy.due_at > self.now

    @rule()
    def interrupt(self) -> None:
        self.epoch += 1
        self.lost |= self.open
        self.open.clear()
        self.policy.interrupted(self.epoch)

    @rule()
    def restore(self) -> None:
        if not self.open and self.in_hand is None:
            self.epoch += 1
        self.policy.restored(self.epoch)

    def teardown(self) -> None:
        self.recover()
        assert not self.open
        assert list(self.policy.recover()) == []
        assert list(self.policy.due(1e9)) == []
        if self.in_hand is not None:
            assert list(self.policy.consumed(self.in_hand, self.now)) == []


@pytest.mark.parametrize("mode", list(AcknowledgeMode))
def test_each_delivery_is_settled_exactly_once(mode: AcknowledgeMode) -> None:
    history = type(f"{mode.name}History", (SessionHistory,), {"mode": mode})
    history.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

    history.TestCase("runTest").runTest()
