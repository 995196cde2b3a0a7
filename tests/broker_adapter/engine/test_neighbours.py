"""What happens beside the usual: a part of a command fails, names do not fit into memory, others settle or delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import identities
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.requests import steps_of
from broker_adapter.engine.queues.search import LaneSearch, Search
from broker_adapter.engine.store.room import Room
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.selectors.language import parse_selector
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, message, send, settle


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Any]:
    made: list[Broker] = []

    def make(*, durable: bool = True, **settings: Any) -> Broker:
        made.append(Broker(EngineSettings(**settings), str(tmp_path / str(len(made))) if durable else None))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def names(broker: Broker) -> set[str]:
    return {each.name for each in broker.call(c.Statistics(), WAIT).queues}


def test_a_commit_is_not_repeated_where_more_names_come_at_once_than_are_kept_in_memory(
    brokers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "CACHED_NAMES", 5)
    broker = brokers()
    client = connect(broker)
    mine = c.Commit(client, c.CommitId("mine", 1), [(queue("q"), message("x"))], [])
    broker.call(mine, WAIT)
    for number in range(4):
        broker.call(c.Commit(client, c.CommitId(f"other {number}", 1), [], []), WAIT)
    with broker._runner:  # what comes now is one cycle
        broker.submit_all([mine, *[c.Commit(client, c.CommitId(f"new {n}", 1), [], []) for n in range(20)]])
    assert depth(broker, "q") == 1
    assert len(broker._state.commits) <= 5


def test_a_transaction_for_durable_and_other_subscriptions_waits_for_room_like_a_send(brokers: Any) -> None:
    broker = brokers(blocked_send_timeout_seconds=0.1)
    client = connect(broker, "me")
    attach(broker, client, topic("t"), subscription=Subscription("s", durable=True, shared=False))
    attach(broker, client, topic("t"))
    broker._stores.disk.room = lambda: Room(0, 0, 4096, "the store is full")
    broker._room_checks.checked_ms = 0
    (error,) = send(broker, client, topic("t"), "x")
    assert isinstance(error, ResourceAllocationException)
    with pytest.raises(TransactionRolledBackException, match="the store is full"):
        broker.call(c.Commit(client, None, [(topic("t"), message("x"))], []), WAIT)
    assert depth(broker, "s") == 0


def test_the_cache_drops_the_oldest_without_passing_over_numbers_that_are_gone(brokers: Any) -> None:
    broker = brokers(message_cache_bytes=100_000)
    client = connect(broker)
    broker._state.intake.next_message = 1 << 40  # as after so many messages that were consumed
    consumer, inbox = attach(broker, client, "busy", credit=1_000_000)
    for _ in range(300):
        send(broker, client, "busy", *["x" * 1000] * 50)
        settle(broker, consumer, inbox.handouts)
        inbox.handouts.clear()
    send(broker, client, "q", *["x" * 1000] * 300)
    assert broker._stores._cache_bytes <= 100_000
    assert len(broker._stores._cached) < 25_000


def test_the_cache_counts_what_messages_without_a_body_take_in_memory(brokers: Any) -> None:
    broker = brokers(message_cache_bytes=100_000)
    client = connect(broker)
    for _ in range(20):
        send(broker, client, "q", *[""] * 50)
    assert 100 < len(broker._stores._cache) < 400
    consumer, inbox = attach(broker, client, "q", credit=1000)
    settle(broker, consumer, inbox.handouts)
    assert len(inbox.handouts) == 1000
    assert broker._stores._cache_bytes == len(broker._stores._cache) == 0


def test_consumers_that_were_limited_go_on_when_others_have_settled(brokers: Any) -> None:
    broker = brokers(durable=False, max_in_hand_messages=1000)
    client = connect(broker)
    for name in "ab":
        send(broker, client, name, *["x"] * 1500)
    holding, held = attach(broker, client, "b", credit=1100)
    assert len(held.handouts) >= 1000
    _, waiting = attach(broker, client, "a", credit=100)
    assert len(waiting.handouts) == 16
    settle(broker, holding, held.handouts)
    assert len(waiting.handouts) == 100


def test_a_send_to_very_many_subscriptions_is_carried_out_in_any_number_of_parts(
    brokers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers(durable=False)
    monkeypatch.setattr(broker._state.directory, "fan_out", lambda _destination: 20_000)
    results: list[Any] = []
    messages = [message("x")] * 3000
    broker.submit(c.Enqueue(connect(broker), queue("q"), messages, results.append))
    deadline = time.monotonic() + WAIT
    while not results and time.monotonic() < deadline:
        broker.call(c.Due(()), WAIT)
    assert results == [None]
    assert depth(broker, "q") == 3000


def test_parts_of_a_send_that_fail_are_reported_one_by_one(brokers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = brokers(durable=False, max_message_bytes=10)
    monkeypatch.setattr(broker._state.directory, "fan_out", lambda _destination: 20_000)
    bodies = ["x", "x" * 20, "y", "z" * 20]
    errors = send(broker, connect(broker), "q", *bodies)
    assert [error is None for error in errors] == [True, False, True, False]
    assert depth(broker, "q") == 2


def test_a_refused_commit_leaves_no_queues_behind(brokers: Any) -> None:
    broker = brokers(max_destinations=3)
    client = connect(broker)
    sends = [(queue(name), message("x")) for name in "abcde"]
    with pytest.raises(JMSException, match="max_destinations"):
        broker.call(c.Commit(client, None, sends, []), WAIT)
    assert names(broker) == {"DLQ"}
    broker.call(c.Commit(client, None, sends[:3], []), WAIT)
    assert names(broker) == {"DLQ", "a", "b", "c"}


def test_a_refused_publication_leaves_no_queues_behind(brokers: Any) -> None:
    broker = brokers(max_destinations=4)
    for name in "ab":
        broker.call(c.Stage(name, queue(f"to {name}"), 0, [message("x")]), WAIT)
    broker.call(c.Declare(queue("other")), WAIT)
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        broker.call(c.Publish("g", 1, ["a", "b"]), WAIT)
    assert names(broker) == {"DLQ", "other", "a", "b"}


def test_a_queue_that_was_made_again_is_not_deleted_for_the_old_one(brokers: Any) -> None:
    broker = brokers()
    client = connect(broker)
    send(broker, client, "q", "x")
    incarnation = broker.request("bounds", {"destination": "q"}, WAIT)["incarnation"]
    steps = steps_of("delete", {"destination": "q", "incarnation": incarnation})
    with broker.reading() as reader:
        found = steps.send(None)(reader)  # type: ignore[operator]
    broker.request("delete", {"destination": "q"}, WAIT)
    send(broker, client, "q", "y", "z")
    with pytest.raises(InvalidDestinationException, match="made again meanwhile"):
        broker.call(steps.send(found), WAIT)
    assert depth(broker, "q") == 2


def test_a_delayed_message_that_falls_due_in_the_middle_of_a_purge_is_purged(brokers: Any) -> None:
    broker = brokers()
    client = connect(broker)
    due_ms = time.time_ns() // 1_000_000 + 500
    broker.call(c.Enqueue(client, queue("q"), [message("x"), message("y", deliver_at_ms=due_ms)]), WAIT)
    steps = steps_of("purge", {"destination": "q"})
    with broker.reading() as reader:
        command = steps.send(steps.send(None)(reader))  # type: ignore[operator]
    result = broker.call(command, WAIT)
    while time.time_ns() // 1_000_000 <= due_ms:
        time.sleep(0.01)
    broker.call(c.Due(()), WAIT)
    step = next_step(steps, result)
    while step is not None:
        step = next_step(steps, broker.call(step, WAIT))
    assert depth(broker, "q") == 0


def next_step(steps: Any, result: Any) -> Any:
    """The next step of an operation; None behind the last one."""
    try:
        return steps.send(result)
    except StopIteration:
        return None


def test_what_a_scan_has_seen_does_not_count_where_the_search_was_restarted_meanwhile() -> None:
    search = Search(parse_selector("n > 5"))
    lane = search.lane(5)
    lane.scanned(1000, complete=False)
    lane.scanning = True
    search.restart()
    lane.scanned(1500, complete=True)
    assert not lane.has_passed(10)
    assert not lane.scanning
    lane.scanning = True
    lane.scanned(1500, complete=True)
    assert lane.has_passed(10)


def test_a_search_that_is_restarted_without_a_scan_takes_the_next_one() -> None:
    lane = LaneSearch()
    lane.restart()
    lane.scanned(7, complete=True)
    assert (lane.through, lane.complete) == (7, True)


def test_credit_beside_an_exclusive_consumer_is_not_noted_again_and_again(brokers: Any) -> None:
    broker = brokers(durable=False)
    client = connect(broker)
    first, _ = attach(broker, client, "q", credit=1)
    attach(broker, client, "q", credit=50)
    broker.call(c.Enqueue(client, queue("q"), [message("x", group=5)] * 20), WAIT)
    attach(broker, client, "q", exclusive=True)
    for _ in range(1000):
        broker.call(c.Credit(first, 1), WAIT)
    assert len(broker._state.directory.by_destination[Destination("q")].owed) <= 2
