"""How a delivery ended, by the state that the client gave it.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ack_modes import Failure, Outcome, shortened_reason
from broker_adapter.amqp.events import ACCEPTED, MODIFIED, REJECTED, State
from broker_adapter.amqp.messages.jms_mapping import DELIVERY_DELAY, DELIVERY_TIME
from broker_adapter.amqp.messages.values import encode
from broker_adapter.amqp.wire import BACK_OFF, EXCEPTION, RETRY_DELAY
from broker_adapter.annotations import ANNOTATION_PREFIX, with_annotations
from broker_adapter.engine.commands.messaging import LATEST_MS, Ending, Modified

#: Begins the names of annotations that mean something to our own ends only: a client cannot set them.
_OWN: Final = "x-opt-holdfast-"
_PLAIN: Final = (str, bool, float, int)


def outcome_of(state: State, *, in_transaction: bool = False) -> Ending:
    """The outcome for the engine that a state stands for; what fails in a transaction is undone in order."""
    code = state.code
    if code == ACCEPTED:
        return Outcome.ACCEPTED
    if code == REJECTED:
        reason = state.error.description if state.error is not None else None
        return Failure(shortened_reason(reason), Outcome.REJECTED) if reason else Outcome.REJECTED
    if code != MODIFIED:
        return Outcome.RELEASED  # also where it was settled without a word
    annotations = state.annotations or {}
    # Other clients settle their messages one by one, so that each is a task of its own.
    failed = Outcome.MODIFIED if annotations.get(BACK_OFF, not in_transaction) is False else Outcome.FAILED
    outcome = failed if state.failed else Outcome.RELEASED
    added = _added(annotations)
    delay_ms = _instant(annotations.get(RETRY_DELAY))
    if not (added or state.undeliverable or delay_ms):
        return outcome
    deliver_at_ms = _instant(annotations.get(DELIVERY_TIME))
    if delay_ms is None:
        delay_ms = _instant(annotations.get(DELIVERY_DELAY))
    return Modified(outcome, state.undeliverable, added, deliver_at_ms, delay_ms or 0)


def _added(annotations: Mapping[Any, Any]) -> dict[str, Any]:
    """The annotations that a client adds to a message (AMQP 1.0 section 3.4.5), as the engine keeps them."""
    return with_annotations(
        {},
        {
            ANNOTATION_PREFIX + str(name): _kept(value)
            for name, value in annotations.items()
            if isinstance(name, str) and name.isascii() and (name == EXCEPTION or not name.startswith(_OWN))
        },
    )


def _kept(value: Any) -> Any:
    """A value as it is where AMQP encodes it as itself; else a list of what it is as a property, and as AMQP has it."""
    if type(value) in _PLAIN:
        return value
    plain = next((kind(value) for kind in _PLAIN if isinstance(value, kind)), None)
    return [plain, encode(value)]


def _instant(value: Any) -> int | None:
    """A number of milliseconds; None: it is none."""
    return min(max(int(value), 0), LATEST_MS) if isinstance(value, int) and type(value) is not bool else None
