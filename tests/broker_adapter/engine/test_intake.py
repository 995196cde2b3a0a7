"""Messages that come in once, with one stored copy."""

from __future__ import annotations

from broker_adapter.destination import queue, topic
from broker_adapter.engine import commands as c
from broker_adapter.engine.records import (
    stream_key,
)
from broker_adapter.envelope import Identity
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.rules import Q, Rules


def test_an_identity_is_taken_once_for_each_destination() -> None:
    rules = Rules()
    client = rules.connect()
    for sequence in (1, 2, 1, 2, 3):
        assert rules.send(client, Q, b"x", identity=Identity("p", 1, sequence)) is None
    rules.send(client, queue("other"), b"x", identity=Identity("p", 1, 1))
    rules.send(client, Q, b"x", identity=Identity("p", 2, 1))
    assert (rules.depth("q"), rules.depth("other")) == (4, 1)
    assert rules.do(c.Statistics()).duplicates_rejected == 2


def test_messages_that_arrive_out_of_their_producers_order_are_all_taken_once() -> None:
    rules = Rules()
    client = rules.connect()
    for sequence in (5, 2, 7, 2, 3, 5, 1, 7, 6, 4, 4):
        rules.send(client, Q, b"%d" % sequence, identity=Identity("p", 1, sequence))
    rules.do(
        c.Commit(
            client, None, [(Q, c.NewMessage(0, b"", identity=Identity("p", 1, number))) for number in (9, 8, 9)], []
        )
    )
    assert rules.depth("q") == 9
    assert rules.do(c.Statistics()).duplicates_rejected == 5


def test_a_producer_with_a_long_name_is_known() -> None:
    rules = Rules()
    client = rules.connect()
    for name in ("x" * 5000, "x" * 5001, "x" * 5000, "\N{SNOWMAN}" * 60, "\ud800"):
        rules.send(client, queue("n" * 400), b"", identity=Identity(name, 1, 1))
    assert rules.depth("n" * 400) == 4
    assert all(len(stream_key(*stream)) <= 511 for stream in rules.state.intake.streams)


def test_the_producer_that_was_silent_longest_is_forgotten_at_the_limit() -> None:
    rules = Rules(max_producers=2)
    client = rules.connect()
    for producer in ("a", "b", "c"):
        rules.send(client, Q, b"x", identity=Identity(producer, 1, 5))
    assert len(rules.state.intake.streams) == 2
    rules.send(client, Q, b"x", identity=Identity("c", 1, 5))
    rules.send(client, Q, b"x", identity=Identity("a", 1, 5))
    assert rules.depth("q") == 4


def test_a_topic_stores_one_copy_with_a_count_of_its_holders() -> None:
    rules = Rules()
    client = rules.connect("me")
    for name in "ab":
        rules.attach(client, topic("t"), subscription=Subscription(name, durable=True, shared=False))
    rules.attach(client, topic("t"))
    rules.send(client, topic("t"), b"x")
    effects = rules.effects
    assert (len(effects.durable.messages), len(effects.durable.entries)) == (1, 2)
    assert [count for _, count in effects.durable.references] == [2]
    assert (len(effects.volatile.messages), len(effects.volatile.entries), effects.volatile.references) == (1, 1, [])
