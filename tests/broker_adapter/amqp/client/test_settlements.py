"""Settlements of a client as a scripted broker sees them."""

from __future__ import annotations

import pytest

from ack_modes import Failure, Outcome, Settlement
from broker_adapter.amqp.client.brokers import STATES
from broker_adapter.amqp.client.settlements import state_of
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    State,
)
from broker_adapter.amqp.wire import BACK_OFF, EXCEPTION, RETRY_DELAY
from broker_adapter.transport import Delivery
from tests.broker_adapter.amqp.client.conversations import MESSAGE, deliver, receiver
from tests.broker_adapter.amqp.client.scripted_broker import Wired


def test_settlements_reach_the_broker_in_order_and_ranges(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 10)
    wired.pump()
    deliver(wired, *[MESSAGE] * 5)
    outcomes = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.MODIFIED, Outcome.RELEASED, Outcome.REJECTED]
    wired.client.settle([Settlement(each.tag, outcome) for each, outcome in zip(got, outcomes, strict=True)])
    wired.client.settle([Settlement(got[0].tag, Outcome.ACCEPTED)])
    wired.client.settle([Settlement(got[0].tag._replace(epoch=7, number=1), Outcome.ACCEPTED)])
    wired.pump()

    states = {number: event.state for event in wired.broker.of(Dispositions) for number in event.numbers}
    numbers = sorted(states)
    assert [states[number] for number in numbers] == [
        ACCEPTED_STATE,
        ACCEPTED_STATE,
        FAILED_STATE._replace(annotations={BACK_OFF: False}),
        RELEASED_STATE,
        State(REJECTED),
    ]


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.MODIFIED, Outcome.FAILED])
def test_credit_comes_after_what_was_given_back_before_it(wired: Wired, outcome: Outcome) -> None:
    """proton writes flows ahead of dispositions: the broker would send what is later before what comes back."""
    wired.broker.accepts = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 3)
    wired.pump()
    for _ in range(3):
        wired.broker.peer.send(wired.broker.by_address["q"], MESSAGE)
    wired.pump()
    before = len(wired.broker.log)
    wired.client.settle([Settlement(delivery.tag, outcome) for delivery in got])
    wired.client.credit(link, 3)
    wired.pump()

    happened = [event for event in wired.broker.log[before:] if isinstance(event, Dispositions | LinkFlow)]
    assert [type(event) for event in happened] == [Dispositions, LinkFlow]


def test_only_our_own_broker_is_told_what_a_listener_has_raised() -> None:
    own = {**STATES, Outcome.FAILED: FAILED_STATE._replace(annotations={BACK_OFF: True})}
    assert state_of(Failure("E: x"), STATES) == FAILED_STATE
    assert state_of(Failure("E: x"), own).annotations == {BACK_OFF: True, EXCEPTION: "E: x"}
    assert state_of(Failure("", Outcome.FAILED), own).annotations == {BACK_OFF: True}
    assert state_of(Failure("", Outcome.FAILED, 5), own).annotations == {BACK_OFF: True, RETRY_DELAY: 5}
    assert state_of(Outcome.FAILED, own).annotations == {BACK_OFF: True}


def test_each_broker_is_told_why_a_message_is_rejected_and_when_it_is_to_come_again() -> None:
    rejected = State(REJECTED, error=AmqpError("holdfast:rejected", "why"))
    delayed = FAILED_STATE._replace(annotations={RETRY_DELAY: 5})
    in_transaction = State(TRANSACTIONAL, txn_id=b"t")
    transacted = {outcome: in_transaction._replace(outcome=state) for outcome, state in STATES.items()}

    assert state_of(Failure("why", Outcome.REJECTED), STATES) == rejected
    assert state_of(Failure("", Outcome.FAILED, 5), STATES) == delayed
    assert state_of(Failure("", Outcome.FAILED), STATES) == FAILED_STATE
    assert state_of(Failure("why", Outcome.REJECTED), transacted) == in_transaction._replace(outcome=rejected)
    assert state_of(Failure("", Outcome.FAILED, 5), transacted) == in_transaction._replace(outcome=delayed)
