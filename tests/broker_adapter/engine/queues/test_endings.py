"""Dead letters, expiry, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import (
    decode_annotations,
)
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules, positions


def test_a_message_that_expires_is_not_handed_out() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"at once", expires_at_ms=rules.now_ms)
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    rules.pass_time(10)
    consumer = rules.attach(client, Q, 10)
    assert consumer not in rules.delivered
    assert rules.do(c.Statistics()).expired == 2
    assert rules.depth("q") == 0


def dead_letter(rules: Rules) -> dict[str, Any]:
    for batch in (rules.effects.durable, rules.effects.volatile):
        for key, value in batch.tables.get("annotations", {}).items():
            if value is not None:
                return decode_annotations(key, value)
    raise AssertionError("no dead letter")


def test_a_message_that_fails_too_often_is_a_dead_letter_with_its_reason() -> None:
    rules = Rules(max_deliveries=2)
    client = rules.connect()
    rules.send(client, Q, b"x")
    consumer = rules.attach(client, Q, 10)
    rules.do(c.Settle(consumer, [1], Outcome.MODIFIED))
    assert rules.delivered[consumer] == [(1, 0), (2, 1)]
    rules.do(c.Settle(consumer, [2], Outcome.MODIFIED))
    assert dead_letter(rules) == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "delivered 2 times without success (option max_deliveries)",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 2,
    }
    assert (rules.depth("q"), rules.depth("DLQ")) == (0, 1)


def test_a_dead_letter_of_a_temporary_queue_stays_in_memory() -> None:
    rules = Rules()
    client = rules.connect()
    temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
    consumer = rules.attach(client, temporary, 1)
    rules.send(client, temporary, b"x")
    rules.do(c.Settle(consumer, [1], Outcome.REJECTED))
    assert not rules.effects.durable.entries
    assert rules.depth("DLQ") == 1


def test_what_fails_in_the_dead_letter_queue_stays_there() -> None:
    rules = Rules(max_deliveries=1)
    client = rules.connect()
    dead = queue("DLQ")
    rules.send(client, dead, b"x")
    consumer = rules.attach(client, dead, 10)
    for number, outcome in ((1, Outcome.MODIFIED), (2, Outcome.REJECTED), (3, Outcome.MODIFIED)):
        rules.do(c.Settle(consumer, [number], outcome))
    assert rules.depth("DLQ") == 1


def test_what_comes_back_by_a_recover_or_a_loss_comes_in_order_however_often() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"a", b"b", b"c")
    consumer = rules.attach(client, Q, 3)
    for first in range(1, 16, 3):
        rules.do(c.Settle(consumer, [first, first + 1, first + 2], Outcome.MODIFIED), c.Credit(consumer, 3))
        rules.pass_time(9_000)
    assert positions(rules, consumer) == [1, 2, 3] * 6
    rules.do(c.Disconnect(client, failed=True))
    consumer = rules.attach(rules.connect(), Q, 3)
    assert positions(rules, consumer) == [1, 2, 3]


def test_what_expires_goes_to_the_expiry_queue_where_it_stays() -> None:
    rules = Rules(expiry_queue="expired")
    client = rules.connect()
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    consumer = rules.attach(client, Q)
    rules.now_ms += 20
    rules.do(c.Credit(consumer, 1))
    assert not rules.delivered.get(consumer)
    assert dead_letter(rules) == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "expired",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 0,
    }
    (entry,) = [entry for entry in rules.effects.durable.entries.values() if entry is not None]
    assert entry.expires_at_ms == 0
    assert (rules.depth("q"), rules.depth("expired")) == (0, 1)
    assert rules.do(c.Statistics()).expired == 1


@pytest.mark.parametrize(
    ("outcome", "failures"),
    [(Outcome.RELEASED, 0), (Outcome.MODIFIED, 1), (Outcome.FAILED, 1), (Outcome.REJECTED, 1)],
)
def test_what_expires_in_hand_has_its_failed_delivery_counted(outcome: Outcome, failures: int) -> None:
    rules = Rules(expiry_queue="expired")
    client = rules.connect()
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    consumer = rules.attach(client, Q, 1)
    rules.now_ms += 20
    rules.do(c.Settle(consumer, [1], outcome))
    assert dead_letter(rules) == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "expired",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": failures,
    }
    (entry,) = [entry for entry in rules.effects.durable.entries.values() if entry is not None]
    assert entry.delivery_count == 0, "there, none has failed"
    assert (rules.depth("q"), rules.depth("expired")) == (0, 1)


def test_what_expires_in_the_expiry_queue_is_dropped() -> None:
    rules = Rules(expiry_queue="q")
    client = rules.connect()
    rules.send(client, Q, b"soon", expires_at_ms=rules.now_ms + 10)
    rules.now_ms += 20
    rules.attach(client, Q, 1)
    assert rules.depth("q") == 0


def test_each_dead_letter_is_a_warning_of_its_queue_with_the_reason() -> None:
    rules = Rules(max_deliveries=1)
    client = rules.connect("me")
    news = Destination("news", DestinationKind.TOPIC)
    readers = [rules.attach(client, Q, 10), rules.attach(client, news, 10, subscription=DURABLE)]
    for to in (Q, news):
        rules.send(client, to, b"1", b"2")
    warnings = []
    for consumer in readers:
        rules.do(c.Settle(consumer, [1], Outcome.MODIFIED), c.Settle(consumer, [2], Outcome.REJECTED))
        warnings += rules.effects.warnings
    reasons = ["delivered 1 times without success (option max_deliveries)", "rejected by a consumer"]
    assert [each.text % each.arguments for each in warnings] == [
        f"! a message of {name} went to the dead-letter queue 'DLQ': {reason}"
        for name in ("queue 'q'", "subscription 's' of client id 'me' on 'news'")
        for reason in reasons
    ]
    assert len({each.kind for each in warnings}) == 2


def test_a_message_that_expires_is_no_warning() -> None:
    rules = Rules(expiry_queue="old")
    rules.send(rules.connect(), Q, b"soon", expires_at_ms=rules.now_ms + 10)
    rules.pass_time(10)
    assert rules.effects.warnings == []
