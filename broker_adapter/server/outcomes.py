"""How a delivery ended, by the state that the client gave it.  Pure."""

from __future__ import annotations

from ack_modes import Outcome
from broker_adapter.amqp.events import ACCEPTED, MODIFIED, REJECTED, State
from broker_adapter.amqp.wire import BACK_OFF


def outcome_of(state: State) -> Outcome:
    """The outcome for the engine that a state stands for."""
    code = state.code
    if code == ACCEPTED:
        return Outcome.ACCEPTED
    if code == REJECTED or (code == MODIFIED and state.undeliverable):
        return Outcome.REJECTED
    if code == MODIFIED and state.failed:
        return Outcome.FAILED if state.annotations and BACK_OFF in state.annotations else Outcome.MODIFIED
    return Outcome.RELEASED  # also where it was settled without a word
