"""Which outcome a delivery's state stands for."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Failure, Outcome
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    MODIFIED,
    NO_STATE,
    REJECTED,
    RELEASED_STATE,
    State,
)
from broker_adapter.amqp.messages.jms_mapping import DELIVERY_DELAY, DELIVERY_TIME
from broker_adapter.amqp.messages.values import Described, Float, Int, Short, Symbol, Timestamp, UByte, UInt, encode
from broker_adapter.amqp.wire import BACK_OFF, COMMIT_ID, EXCEPTION, RETRY_DELAY
from broker_adapter.annotations import ANNOTATION_PREFIX, EXCEPTION_ANNOTATION, LEFT_OUT_ANNOTATION
from broker_adapter.engine.commands.messaging import LATEST_MS, Ending, Modified
from broker_adapter.server.links.outcomes import outcome_of

WHY = Symbol("x-opt-why")


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (ACCEPTED_STATE, Outcome.ACCEPTED),
        (State(REJECTED), Outcome.REJECTED),
        (State(REJECTED, error=AmqpError("a:b")), Outcome.REJECTED),
        (State(REJECTED, error=AmqpError("a:b", "why" * 500)), Failure(("why" * 500)[:1000], Outcome.REJECTED)),
        (FAILED_STATE, Outcome.FAILED),
        (State(MODIFIED, failed=True, annotations={BACK_OFF: False}), Outcome.MODIFIED),
        (State(MODIFIED, failed=True, annotations={BACK_OFF: True}), Outcome.FAILED),
        (State(MODIFIED, failed=True, annotations={BACK_OFF: True, COMMIT_ID: 1, 5: 6, "ä": 7}), Outcome.FAILED),
        (State(MODIFIED, failed=True, annotations={RETRY_DELAY: 5}), Modified(Outcome.FAILED, False, {}, None, 5)),
        (State(MODIFIED, failed=True, annotations={RETRY_DELAY: 0}), Outcome.FAILED),
        (State(MODIFIED), Outcome.RELEASED),
        (RELEASED_STATE, Outcome.RELEASED),
        (NO_STATE, Outcome.RELEASED),
        (State(MODIFIED, undeliverable=True), Modified(Outcome.RELEASED, True, {})),
        (State(MODIFIED, failed=True, undeliverable=True), Modified(Outcome.FAILED, True, {})),
        (
            State(MODIFIED, failed=True, annotations={BACK_OFF: True, EXCEPTION: "E: x"}),
            Modified(Outcome.FAILED, annotations={EXCEPTION_ANNOTATION: "E: x"}),
        ),
    ],
)
def test_a_state_stands_for_an_outcome(state: State, outcome: Ending) -> None:
    assert outcome_of(state) == outcome


def test_what_fails_in_a_transaction_is_undone_in_order() -> None:
    assert outcome_of(FAILED_STATE, in_transaction=True) is Outcome.MODIFIED
    by_itself = FAILED_STATE._replace(annotations={BACK_OFF: True})  # ``message.retry()``
    assert outcome_of(by_itself, in_transaction=True) is Outcome.FAILED


def modified(annotations: dict[Any, Any]) -> Modified:
    ending = outcome_of(State(MODIFIED, annotations=annotations))
    assert isinstance(ending, Modified)
    return ending


@pytest.mark.parametrize("value", ["text", True, 1.5, -5, 1 << 40])
def test_a_value_that_amqp_encodes_as_itself_is_kept_as_it_is(value: Any) -> None:
    assert modified({WHY: value}).annotations == {f"{ANNOTATION_PREFIX}x-opt-why": value}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        *((UInt(5), 5), (Int(-5), -5), (UByte(5), 5), (Short(5), 5), (Float(0.5), 0.5), (Symbol("s"), "s")),
        *((Timestamp(5), 5), (None, None), ([1, UInt(2)], None), ({Symbol("k"): "v"}, None), (b"x", None)),
        (Described(Symbol("d"), 1), None),
    ],
)
def test_another_value_is_kept_as_a_property_and_as_amqp_has_it(value: Any, plain: Any) -> None:
    ((found, encoded),) = (modified({WHY: value}).annotations or {}).values()
    assert (found, encoded) == (plain, encode(value))
    assert type(found) is type(plain)


def test_too_many_annotations_are_left_out_with_a_word_about_them() -> None:
    (name,) = modified({Symbol(f"k{number}"): "x" * 100 for number in range(100)}).annotations or {}
    assert name == LEFT_OUT_ANNOTATION


@pytest.mark.parametrize(
    ("annotations", "at_ms", "delay_ms"),
    [
        ({DELIVERY_DELAY: UInt(500)}, None, 500),
        ({DELIVERY_TIME: Timestamp(1_700_000_000_000)}, 1_700_000_000_000, 0),
        ({DELIVERY_TIME: 7, DELIVERY_DELAY: 8}, 7, 8),
        ({DELIVERY_DELAY: -1}, None, 0),
        ({DELIVERY_DELAY: 1 << 63}, None, LATEST_MS),
        ({DELIVERY_DELAY: "soon", DELIVERY_TIME: True}, None, 0),
    ],
)
def test_a_delay_is_read_from_the_annotations(annotations: dict[Any, Any], at_ms: int | None, delay_ms: int) -> None:
    ending = modified(annotations)
    assert (ending.deliver_at_ms, ending.delay_ms) == (at_ms, delay_ms)
