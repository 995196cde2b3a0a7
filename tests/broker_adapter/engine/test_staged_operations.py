"""Staged transactions, as clients ask for them."""

from __future__ import annotations

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import ENVELOPE_FORMAT, unpack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.settings import EngineSettings
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


def test_a_number_of_messages_that_does_not_belong_to_each_transaction_is_refused(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    with pytest.raises(MessageFormatException, match="'counts' is not a number for each transaction"):
        ask(broker, "publish", group="g", number=0, transactions=["t"], counts=[1, 1])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=0, transactions=["t"], counts=[1]) is True
    assert depth(broker, "target") == 1


def test_the_last_published_number_of_a_group_is_told(broker: Broker) -> None:
    assert ask(broker, "published", group="g") is None
    ask(broker, "publish", group="g", number=4, transactions=[])
    assert ask(broker, "published", group="g") == 4
    assert ask(broker, "published", group="other") is None


def test_what_is_staged_for_a_batch_is_renewed_while_it_is_not_published(broker: Broker) -> None:
    ask(broker, "stage", transaction="g/5/a", queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "renew", group="g", number=5) == EngineSettings().staged_timeout_seconds
    assert ask(broker, "publish", group="g", number=5, transactions=["g/5/a"]) is True
    assert depth(broker, "target") == 1


def test_transactions_are_discarded_by_name_and_by_prefix_but_for_those_to_keep(broker: Broker) -> None:
    for name in ("a", "b", "g/1/x", "g/1/y", "g/2/x", "h/1/x"):
        ask(broker, "stage", transaction=name, queue="target", first=0, messages=[envelope(name)])
    ask(broker, "discard", transactions=["a"], prefixes=["g/", "h/"], keep=["g/2/"])
    left = [each["name"] for each in ask(broker, "statistics")["queues"] if each["kind"] == "staged"]
    assert sorted(left) == ["b", "g/2/x"]
    ask(broker, "publish", group="g", number=2, transactions=["g/2/x", "b"])
    assert sorted(unpack(each.payload).body for each in drained(broker, connect(broker), "target")) == ["b", "g/2/x"]
