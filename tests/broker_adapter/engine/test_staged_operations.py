"""Staged transactions, as clients ask for them."""

from __future__ import annotations

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import ENVELOPE_FORMAT, unpack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
)
from tests.broker_adapter.engine.asking import (
    ask,
    envelope,
)
from tests.broker_adapter.engine.driving import connect, depth, drained, payloads


def test_staged_messages_are_seen_only_when_they_are_published(broker: Broker) -> None:
    ask(broker, "stage", transaction="t1", queue="target", first=0, messages=[envelope("a"), envelope("b", priority=7)])
    ask(broker, "stage", transaction="t2", queue="target", first=0, messages=[envelope("c")])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=0, transactions=["t1", "t2"]) is True
    handouts = drained(broker, connect(broker), "target")
    assert [unpack(payload).body for payload in payloads(handouts)] == ["b", "a", "c"]
    assert all(handout.format == ENVELOPE_FORMAT for handout in handouts)
    assert not [each for each in ask(broker, "statistics")["queues"] if each["kind"] == "staged"]


def test_a_chunk_that_is_staged_again_is_not_staged_twice(broker: Broker) -> None:
    first, second = [envelope("a"), envelope("b")], [envelope("c"), envelope("d")]
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=2, messages=second)
    ask(broker, "stage", transaction="t", queue="target", first=1, messages=[*first[1:], *second])
    with pytest.raises(IllegalStateException, match="has 4 messages"):
        ask(broker, "stage", transaction="t", queue="target", first=5, messages=second)
    ask(broker, "publish", group="g", number=1, transactions=["t"])
    assert depth(broker, "target") == 4


def test_a_number_of_a_group_is_published_once(broker: Broker) -> None:
    for attempt in ("first", "again"):
        ask(broker, "stage", transaction=attempt, queue="target", first=0, messages=[envelope(attempt)])
        assert ask(broker, "publish", group="g", number=3, transactions=[attempt]) is (attempt == "first")
    assert ask(broker, "publish", group="g", number=2, transactions=[]) is False
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["first"]
    assert not broker._state.directory.staged


def test_publishing_what_was_never_staged_publishes_nothing(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    with pytest.raises(InvalidDestinationException, match="'missing' does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t", "missing"])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True


def test_discarded_transactions_are_gone(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "discard", transactions=["t", "unknown"]) == 1
    with pytest.raises(JMSException, match="does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t"])
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("b")])
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["b"]
