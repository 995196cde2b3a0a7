"""Which outcome a delivery's state stands for."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    MODIFIED,
    NO_STATE,
    REJECTED,
    RELEASED_STATE,
    State,
)
from broker_adapter.amqp.wire import BACK_OFF
from broker_adapter.server.outcomes import outcome_of


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (ACCEPTED_STATE, Outcome.ACCEPTED),
        (State(REJECTED), Outcome.REJECTED),
        (State(MODIFIED, undeliverable=True), Outcome.REJECTED),
        (FAILED_STATE, Outcome.MODIFIED),
        (State(MODIFIED, failed=True, annotations={BACK_OFF: True}), Outcome.FAILED),
        (State(MODIFIED), Outcome.RELEASED),
        (RELEASED_STATE, Outcome.RELEASED),
        (NO_STATE, Outcome.RELEASED),
    ],
)
def test_a_state_stands_for_an_outcome(state: State, outcome: Outcome) -> None:
    assert outcome_of(state) is outcome
