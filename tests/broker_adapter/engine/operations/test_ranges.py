"""Ranges of positions: bounds, reading, settling, and what is damaged in one."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import attrs
import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.steps import QUEUES_AT_ONCE
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.store.maintenance import check_store, quarantined
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    StoreCorruptException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.asking import (
    ask,
    bodies,
    damage_body,
    damage_entries,
    wrong,
)
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, send


def test_bounds_of_an_empty_queue_meet(broker: Broker) -> None:
    bounds = ask(broker, "bounds", destination="q", make=True)
    assert bounds["first"] == bounds["next"]


def test_bounds_move_with_what_comes_and_goes(broker: Broker) -> None:
    client = connect(broker)
    before = ask(broker, "bounds", destination="q", make=True)
    send(broker, client, "q", "a", "b", "c")
    after = ask(broker, "bounds", destination="q")
    assert (after["first"], after["next"]) == (before["next"], before["next"] + 3)
    ask(broker, "settle_through", destination="q", position=after["first"], incarnation=after["incarnation"])
    assert ask(broker, "bounds", destination="q")["first"] == after["first"] + 1


def test_bounds_include_what_a_consumer_holds(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a", "b")
    first = ask(broker, "bounds", destination="q")["first"]
    attach(broker, client, "q", credit=1)[1].wait_for(1)
    assert ask(broker, "bounds", destination="q")["first"] == first


def test_a_range_reads_the_same_until_it_is_settled_by_position_over_priorities(broker: Broker) -> None:
    client = connect(broker)
    for number in range(10):
        send(broker, client, "q", number, priority=number, persistent=number % 2 == 0)
    bounds = ask(broker, "bounds", destination="q")
    first, last = bounds["first"], bounds["next"] - 1
    for _ in range(2):
        answer = ask(broker, "read_range", destination="q", first=first, last=last, incarnation=bounds["incarnation"])
        assert bodies(answer) == [str(number).encode() for number in range(10)]
        assert answer["next"] == last + 1
    part = ask(broker, "read_range", destination="q", first=first + 2, last=first + 4)
    assert bodies(part) == [b"2", b"3", b"4"]
    assert ask(broker, "settle_through", destination="q", position=first + 2) == 3
    rest = ask(broker, "read_range", destination="q", first=first, last=last)
    assert bodies(rest) == [str(number).encode() for number in range(3, 10)]


def test_a_large_range_comes_in_chunks_that_miss_nothing(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *(b"%06d" % number + b"x" * 100 for number in range(6000)))
    bounds = ask(broker, "bounds", destination="q")
    position, found, rounds = bounds["first"], [], 0
    while position < bounds["next"]:
        answer = ask(broker, "read_range", destination="q", first=position, last=bounds["next"] - 1, max_bytes=100_000)
        assert sum(map(len, bodies(answer))) <= 100_000
        found += bodies(answer)
        position = answer["next"]
        rounds += 1
    assert [int(body[:6]) for body in found] == list(range(6000))
    assert rounds >= 6


def test_a_message_larger_than_the_chunk_comes_alone(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", b"x" * 5000, b"y" * 5000)
    bounds = ask(broker, "bounds", destination="q")
    answer = ask(broker, "read_range", destination="q", first=bounds["first"], last=bounds["next"] - 1, max_bytes=100)
    assert bodies(answer) == [b"x" * 5000]
    assert answer["next"] == bounds["first"] + 1


def test_a_range_of_another_incarnation_is_refused(broker: Broker) -> None:
    ask(broker, "bounds", destination="q", make=True)
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "read_range", destination="q", first=1, last=2, incarnation="other-1")
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "settle_through", destination="q", position=1, incarnation="other-1")


def test_a_range_is_not_settled_under_a_consumer(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a")
    consumer, _ = attach(broker, client, "q")
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        ask(broker, "settle_through", destination="q", position=1)
    broker.call(c.Detach(consumer), WAIT)
    assert ask(broker, "settle_through", destination="q", position=1) == 1


def test_a_range_is_not_settled_while_a_session_holds_messages_of_a_closed_consumer(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    consumer, inbox = attach(broker, client, "q", credit=2)
    inbox.wait_for(2)
    broker.call(c.Detach(consumer), WAIT)
    with pytest.raises(IllegalStateException, match="sessions hold 2 messages of it"):
        ask(broker, "settle_through", destination="q", position=5)
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["next"], bounds["settled"]) == (1, 6, 0)
    broker.call(c.Disconnect(client), WAIT)
    assert ask(broker, "settle_through", destination="q", position=5) == 5
    assert ask(broker, "bounds", destination="q")["settled"] == 5


def test_what_a_consumer_took_while_a_range_was_settled_is_not_below_the_settled_mark(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    steps = itertools.count()

    def before_each_step() -> bool:
        if next(steps) == 1:
            attach(broker, client, "q", credit=2)[1].wait_for(2)
        return False

    with pytest.raises(IllegalStateException, match=r"1 consumer is attached.*; 3 messages were settled before"):
        broker.request("settle_through", {"destination": "q", "position": 5}, WAIT, before_each_step)
    broker.call(c.Disconnect(client), WAIT)
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["settled"]) == (1, 0)
    assert ask(broker, "settle_through", destination="q", position=5) == 2


def test_a_subscription_is_read_and_settled_like_a_queue(broker: Broker) -> None:
    client = connect(broker)
    consumer, _ = attach(broker, client, topic("t"), subscription=Subscription("s", durable=True, shared=True))
    broker.call(c.Detach(consumer), WAIT)
    if not broker.is_durable:
        consumer, _ = attach(broker, client, topic("t"), subscription=Subscription("s", durable=True, shared=True))
    send(broker, client, topic("t"), "a", "b")
    bounds = ask(broker, "bounds", destination="t", kind="topic", subscription="s")
    answer = ask(
        broker, "read_range", destination="t", kind="topic", subscription="s", first=0, last=bounds["next"] - 1
    )
    assert bodies(answer) == [b"a", b"b"]


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_queue_made_again_after_a_restart_is_another_one_of_which_nothing_is_settled(
    tmp_path: Path, restarts: int
) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(10))
    before = ask(broker, "bounds", destination="q")
    old = {"destination": "q", "incarnation": before["incarnation"]}
    assert ask(broker, "settle_through", **old, position=10) == 10
    ask(broker, "delete", destination="q")
    assert ask(broker, "published", group=f"settled/{before['incarnation']}") is None
    for _ in range(restarts):
        broker.close()
        broker = Broker(EngineSettings(), str(tmp_path))
    assert ask(broker, "published", group=f"settled/{before['incarnation']}") is None
    send(broker, connect(broker), "q", *range(5))
    after = ask(broker, "bounds", destination="q")
    assert after["incarnation"] != before["incarnation"]
    assert after["settled"] == 0
    with pytest.raises(InvalidDestinationException, match="deleted and made again"):
        ask(broker, "settle_through", **old, position=5)
    assert depth(broker, "q") == 5
    broker.close()
    assert check_store(tmp_path, EngineSettings()).is_sound


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_is_read_by_ranges_is_not_idle(broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker._state.directory
    directory.settings = attrs.evolve(directory.settings, delete_idle_subscriptions_seconds=60.0)
    directory.policies = Policies(EngineSettings(delete_idle_queues_seconds=60.0))
    broker._background._idle_check_ms = 1 << 62  # only this test deletes them
    now = time.monotonic_ns() // 1_000_000
    monkeypatch.setattr("broker_adapter.engine.broker._elapsed_ms", lambda: now)
    client = connect(broker)
    destination = topic("q") if kind == "topic" else queue("q")
    shared = Subscription("s", durable=True, shared=True) if kind == "topic" else None
    consumer, _ = attach(broker, client, destination, subscription=shared)
    broker.call(c.Detach(consumer), WAIT)
    names = {"destination": "q", "kind": kind, "subscription": "s" if shared else None}
    incarnation = ask(broker, "bounds", **names)["incarnation"]
    for operation, more in (
        ("bounds", {}),
        ("read_range", {"first": 1, "last": 5, "incarnation": incarnation}),
        ("settle_through", {"position": 0, "incarnation": incarnation}),
    ):
        for _ in range(2):
            now += 40_000
            ask(broker, operation, **names, **more)
            assert broker.call(c.DeleteIdle(), WAIT) == [], operation
    now += 60_000
    assert len(broker.call(c.DeleteIdle(), WAIT)) == 1


@pytest.mark.damages
def test_a_damaged_message_in_a_range_is_an_error_until_it_is_left_out_and_kept_aside(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", "first", "second", "third")
    bounds = ask(broker, "bounds", destination="q")
    damage_body(broker, b"second")
    read = {"destination": "q", "first": bounds["first"], "last": bounds["next"] - 1}
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match="position 2 of queue 'q' cannot be trusted"):
            ask(broker, "read_range", **read)
    answer = ask(broker, "read_range", **read, skip_damaged=True)
    assert bodies(answer) == [b"first", b"third"]
    assert answer["damaged"] == [2]
    assert depth(broker, "q") == 2
    assert ask(broker, "read_range", **read)["damaged"] == []
    assert ask(broker, "settle_through", destination="q", position=3) == 2
    assert {each.table for each in quarantined(broker.store)} == {"messages", "entries"}
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    broker.close()
    assert check_store(tmp_path, EngineSettings()).is_sound


@pytest.mark.damages
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_damaged_entry_in_a_range_is_an_error_until_it_is_left_out_and_kept_aside(tmp_path: Path, at: int) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(1, 6))
    broker.close()
    damage_entries(tmp_path, at)
    broker = Broker(EngineSettings(), str(tmp_path))
    bounds = ask(broker, "bounds", destination="q")
    assert (bounds["first"], bounds["next"]) == (1, 6)
    read = {"destination": "q", "first": bounds["first"], "last": bounds["next"] - 1}
    for _ in range(2):
        with pytest.raises(StoreCorruptException, match=f"position {at} of queue 'q' cannot be trusted"):
            ask(broker, "read_range", **read)
    answer = ask(broker, "read_range", **read, skip_damaged=True)
    assert bodies(answer) == [b"%d" % number for number in range(1, 6) if number != at]
    assert (answer["damaged"], answer["next"]) == ([at], 6)
    assert wrong(broker) == []
    assert depth(broker, "q") == 4
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    assert ask(broker, "read_range", **read)["damaged"] == []
    assert {each.table for each in quarantined(broker.store)} == {"entries"}
    assert ask(broker, "settle_through", destination="q", position=5) == 4
    broker.close()
    assert check_store(tmp_path, EngineSettings(), repair=True).summary.problems == {"message without an entry": 1}


@pytest.mark.damages
def test_a_damaged_entry_is_reported_in_the_part_of_the_range_that_it_belongs_to(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *(bytes([number]) * 1000 for number in range(1, 7)))
    broker.close()
    damage_entries(tmp_path, 2, 5)
    broker = Broker(EngineSettings(), str(tmp_path))
    read = {"destination": "q", "last": 6, "max_bytes": 2500}
    with pytest.raises(StoreCorruptException, match="position 2 "):
        ask(broker, "read_range", **read, first=1)
    found = []
    position = 1
    while position <= 6:
        answer = ask(broker, "read_range", **read, first=position, skip_damaged=True)
        found.append(([message[0] for message in answer["messages"]], answer["damaged"]))
        position = answer["next"]
    assert found == [([1, 3], [2]), ([4, 6], [5])]
    assert wrong(broker) == []
    broker.close()


def test_the_bounds_of_several_queues_are_those_of_each(broker: Broker) -> None:
    client = connect(broker)
    names = [f"q{number}" for number in range(2 * QUEUES_AT_ONCE + 1)]
    for number, name in enumerate(names):
        broker.call(c.Declare(queue(name)), WAIT)
        send(broker, client, name, *map(str, range(number % 3)))
    run = ask(broker, "bounds", destination="q1")["run"]
    runs = ["" if number % 2 else run for number in range(len(names))]
    expected = [
        ask(broker, "bounds", destination=name, run=asked or None) for name, asked in zip(names, runs, strict=True)
    ]
    assert ask(broker, "bounds_of_queues", destinations=names, runs=runs) == expected
    assert ask(broker, "bounds_of_queues", destinations=[], runs=[]) == []


def test_of_several_queues_those_that_are_missing_are_none_or_are_made(broker: Broker) -> None:
    broker.call(c.Declare(queue("a")), WAIT)
    names, runs = ["b", "a", "c"], [""] * 3
    first, second, third = ask(broker, "bounds_of_queues", destinations=names, runs=runs)
    assert (first, second["next"], third) == (None, 1, None)
    made = ask(broker, "bounds_of_queues", destinations=names, runs=runs, make=True)
    assert [each["next"] for each in made] == [1, 1, 1]
    with pytest.raises(MessageFormatException, match="'bounds_of_queues' has 3 queues and 2 runs"):
        ask(broker, "bounds_of_queues", destinations=names, runs=runs[:2])
