"""Messages that come in once, with one stored copy."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import (
    NEXT_MESSAGE,
    decode_meta,
    decode_sequences,
    stream_key,
)
from broker_adapter.engine.rules.intake import NUMBER_RESERVE
from broker_adapter.envelope import Identity
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Q, Rules


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


class Restarted:
    """What an engine remembers of producers, over its restarts, and by a clock that is set at will."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.clock_ms = 1_000_000
        self.start(3)

    def start(self, max_producers: int) -> None:
        self.rules = Rules(max_producers=max_producers)
        found = [(key, decode_sequences(key, value)) for key, value in sorted(self.stored.items())]
        self.rules.state.intake.restore(sorted(found, key=lambda each: each[1].used_ms), 1)
        self._client = self.rules.connect()

    def send(self, *producers: str) -> None:
        for producer in producers:
            self.rules.now_ms = self.clock_ms
            self.rules.send(self._client, Q, b"x", identity=Identity(producer, 1, 1))
            for key, value in self.rules.effects.durable.tables.get("producers", {}).items():
                self.stored[key] = value or b""
            self.stored = {key: value for key, value in self.stored.items() if value}

    def known(self) -> list[Any]:
        """The producers, the one that was silent longest first."""
        return [producer for *_, producer, _ in self.rules.state.intake.streams]


@pytest.mark.parametrize("back_ms", [0, 1, 3_600_000])
def test_the_producer_that_was_silent_longest_is_forgotten_also_where_the_clock_was_set_back(back_ms: int) -> None:
    engine = Restarted()
    engine.send("c", "a", "d")
    engine.clock_ms -= back_ms
    engine.start(3)
    engine.send("b")
    engine.start(3)
    assert engine.known() == ["a", "d", "b"]
    engine.send("e", "b")
    engine.start(3)
    assert engine.known() == ["d", "e", "b"]


def test_producers_beyond_a_limit_that_was_lowered_are_forgotten_little_by_little() -> None:
    engine = Restarted()
    engine.start(9)
    engine.send(*"gfedcba")
    engine.start(2)
    assert len(engine.known()) == 7
    for number, left in enumerate((6, 5, 4, 3, 2, 2)):
        engine.send(f"new {number}")
        assert len(engine.known()) == len(engine.stored) == left
    assert engine.known() == ["new 4", "new 5"]


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


def noted(rules: Rules) -> int | None:
    """The number that the last decision notes: those below it count as given."""
    value = rules.effects.durable.tables.get("meta", {}).get(NEXT_MESSAGE)
    return None if value is None else decode_meta(NEXT_MESSAGE, value)


@pytest.mark.parametrize("persistent", [False, True])
def test_numbers_are_noted_as_given_before_they_are_and_seldom(persistent: bool) -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"x", persistent=persistent)
    assert noted(rules) == NUMBER_RESERVE
    for count in (1, NUMBER_RESERVE - 3):
        rules.send(client, Q, *[b"x"] * count, persistent=persistent)
        assert noted(rules) is None
    assert rules.state.intake.next_message == NUMBER_RESERVE
    rules.send(client, Q, b"x", b"y", b"z", persistent=persistent)
    assert noted(rules) == 2 * NUMBER_RESERVE


def test_a_message_that_no_store_keeps_takes_no_number_that_is_not_noted() -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, topic("t"))
    rules.attach(client, topic("t"))
    for expected in (NUMBER_RESERVE, None):
        rules.send(client, topic("t"), b"x")
        assert not rules.effects.durable.messages
        assert noted(rules) == expected


def test_an_engine_in_memory_notes_no_numbers() -> None:
    rules = Rules(durable=False)
    client = rules.connect()
    for persistent in (False, True):
        rules.send(client, Q, b"x", b"y", persistent=persistent)
        assert not rules.effects.durable


def test_a_restart_begins_behind_the_number_that_is_noted() -> None:
    rules = Rules()
    rules.state.intake.restore([], NUMBER_RESERVE)
    rules.send(rules.connect(), Q, b"x", persistent=False)
    assert list(rules.effects.volatile.messages) == [NUMBER_RESERVE]
    assert noted(rules) == 2 * NUMBER_RESERVE
