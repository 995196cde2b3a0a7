"""How deliveries end."""

from __future__ import annotations

from ack_modes import Outcome
from broker_adapter.destination import topic
from broker_adapter.engine import commands as c
from tests.broker_adapter.engine.rules import DURABLE, Q, Rules


def test_settling_twice_and_settling_what_is_unknown_is_ignored() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"x")
    rules.do(c.Settle(consumer, [1, 1, 7], Outcome.ACCEPTED))
    rules.do(c.Settle(99, [1], Outcome.ACCEPTED))
    assert rules.do(c.Statistics()).settled == 1


def test_a_closed_consumer_whose_last_message_is_damaged_is_forgotten() -> None:
    rules = Rules()
    client = rules.connect("me")
    news = topic("news")
    consumer = rules.attach(client, news, 1, subscription=DURABLE)
    rules.send(client, news, b"x")
    rules.do(c.Detach(consumer))
    rules.do(c.Quarantined(consumer, 1, False))
    rules.do(c.Unsubscribe(client, DURABLE.name))
