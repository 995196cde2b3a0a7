"""What the engine can be asked beyond messaging, over both stores."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.identities import CACHED_NAMES
from broker_adapter.engine.operations.steps import MAX_GIVEN
from broker_adapter.engine.records.layout import position_of
from broker_adapter.engine.store.maintenance import quarantined
from broker_adapter.envelope import Identity
from broker_adapter.errors import (
    ConnectionLostException,
    InvalidDestinationException,
    MessageFormatException,
    OperationTimedOutException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.asking import (
    ask,
    bodies,
    damage_body,
    damage_entries,
    envelope,
    named,
    sparse,
    wrong,
)
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, drained, payloads, send, settle


@pytest.mark.parametrize(("operation", "step"), [("purge", 3), ("redrive", 2)])
def test_what_is_deleted_meanwhile_is_neither_purged_nor_redriven_as_well(
    broker: Broker, operation: str, step: int
) -> None:
    client = connect(broker)
    for first in range(0, 12_000, 2_000):
        send(broker, client, "q", *range(first, first + 2_000))
    steps, deleted = itertools.count(), []

    def before_each_step() -> bool:
        if next(steps) == step:
            deleted.append(ask(broker, "delete", destination="q"))
        return False

    options = {"to": "other"} if operation == "redrive" else {}
    done = broker.request(operation, {"destination": "q", **options}, WAIT, before_each_step)
    if operation == "redrive":
        assert done["left"] == 0
        done = done["moved"]
    assert (done + deleted[0], depth(broker, "other")) == (12_000, done if operation == "redrive" else 0)
    assert 0 < done < 12_000


@pytest.mark.parametrize(
    ("operation", "further"),
    [("purge", {}), ("read_range", {"first": 0, "last": 1}), ("settle_through", {"position": 1})],
)
def test_an_unknown_queue_is_an_error(broker: Broker, operation: str, further: dict[str, Any]) -> None:
    with pytest.raises(InvalidDestinationException, match="there is no queue 'nowhere'"):
        ask(broker, operation, destination="nowhere", **further)


def test_an_unknown_subscription_is_an_error(broker: Broker) -> None:
    with pytest.raises(InvalidDestinationException, match="no subscription 's' without a client id on 't'; a durable"):
        ask(broker, "bounds", destination="t", kind="topic", subscription="s")
    with pytest.raises(InvalidDestinationException, match="name a subscription"):
        ask(broker, "bounds", destination="t", kind="topic")


def test_purge_drops_what_waits_also_what_is_not_due_and_leaves_what_is_held(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", *range(50))
    send(broker, client, "q", *range(50), persistent=False, priority=7)
    send(broker, client, "q", "later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000)
    attach(broker, client, "q", credit=3)[1].wait_for(3)
    assert ask(broker, "purge", destination="q") == 98
    assert depth(broker, "q") == 3


def test_statistics_are_plain_data(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a")
    statistics = ask(broker, "statistics")
    assert statistics["enqueued"] == 1
    (found,) = [each for each in statistics["queues"] if each["name"] == "q"]
    assert (found["messages"], found["bytes"], found["kind"]) == (1, 1, "queue")


def test_wrong_arguments_are_named(broker: Broker) -> None:
    with pytest.raises(
        MessageFormatException, match="unknown operation 'nothing'; the operations are acknowledge_events, "
    ):
        ask(broker, "nothing")
    with pytest.raises(MessageFormatException, match="needs the argument 'first' of type int"):
        ask(broker, "read_range", destination="q", last=1)
    with pytest.raises(MessageFormatException, match="'destination' of type str, not 5"):
        ask(broker, "bounds", destination=5)
    with pytest.raises(MessageFormatException, match="not a list of str"):
        ask(broker, "discard", transactions=[1])
    with pytest.raises(MessageFormatException, match="not a packed envelope"):
        ask(broker, "stage", transaction="t", queue="q", first=0, messages=[b"junk"])
    with pytest.raises(MessageFormatException, match="not a list of bytes"):
        ask(broker, "stage", transaction="t", queue="q", first=0, messages=["junk"])


def test_an_operation_keeps_its_deadline(broker: Broker) -> None:
    with pytest.raises(OperationTimedOutException):
        broker.request("statistics", {}, 0)


# Redriving.


def reject_all(broker: Broker, client: int, name: Any, **fields: Any) -> None:
    """Have everything that waits there set aside."""
    consumer, inbox = attach(broker, client, name, 1000, **fields)
    broker.call(c.Drain(consumer), WAIT)
    settle(broker, consumer, inbox.handouts, Outcome.REJECTED)
    broker.call(c.Detach(consumer), WAIT)


def test_dead_letters_go_back_to_the_queues_they_came_from(broker: Broker) -> None:
    client = connect(broker)
    for name in ("a", "b"):
        send(broker, client, name, f"{name} 1", f"{name} 2")
        reject_all(broker, client, name)
    assert depth(broker, "DLQ") == 4
    assert ask(broker, "redrive") == {"moved": 4, "left": 0}
    assert depth(broker, "DLQ") == 0
    found = drained(broker, client, "a")
    assert payloads(found) == [b"a 1", b"a 2"]
    assert [each.delivery_count for each in found] == [0, 0]
    assert found[0].annotations == {"JMS_HOLDFAST_REDRIVEN_FROM": "DLQ"}


def test_dead_letters_of_a_subscription_go_back_to_it_alone(broker: Broker) -> None:
    client = connect(broker, "me")
    subscription = Subscription("s", durable=True, shared=False)
    other = Subscription("other", durable=True, shared=False)
    for each in (subscription, other):
        number, _ = attach(broker, client, topic("t"), subscription=each)
        broker.call(c.Detach(number), WAIT)
    send(broker, client, topic("t"), "x")
    reject_all(broker, client, topic("t"), subscription=subscription)
    assert ask(broker, "redrive") == {"moved": 1, "left": 0}
    assert payloads(drained(broker, client, topic("t"), subscription=subscription)) == [b"x"]
    assert payloads(drained(broker, client, topic("t"), subscription=other)) == [b"x"]


def test_what_has_no_way_back_stays_and_can_be_sent_elsewhere(broker: Broker) -> None:
    client = connect(broker, "me")
    subscription = Subscription("s", durable=True, shared=False)
    number, _ = attach(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Detach(number), WAIT)
    send(broker, client, topic("t"), "x")
    reject_all(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Unsubscribe(client, "s"), WAIT)
    send(broker, client, "DLQ", "never a dead letter")
    assert ask(broker, "redrive") == {"moved": 0, "left": 2}
    assert depth(broker, "DLQ") == 2
    assert ask(broker, "redrive", to="elsewhere", limit=1) == {"moved": 1, "left": 0}
    assert ask(broker, "redrive", to="elsewhere") == {"moved": 1, "left": 0}
    assert payloads(drained(broker, client, "elsewhere")) == [b"x", b"never a dead letter"]


def test_redriving_stops_at_a_full_queue_and_keeps_what_consumers_hold(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_queue_messages=3), str(tmp_path))
    try:
        client = connect(broker)
        send(broker, client, "q", 1, 2, 3)
        reject_all(broker, client, "q")
        _, inbox = attach(broker, client, "DLQ", 1)
        inbox.wait_for(1)
        send(broker, client, "q", 4, 5)
        assert ask(broker, "redrive") == {"moved": 1, "left": 2}
        assert payloads(drained(broker, client, "q")) == [b"4", b"5", b"2"]
    finally:
        broker.close()


def test_the_messages_of_another_queue_can_be_redriven(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, "q", "a")
    assert ask(broker, "redrive", destination="q", to="r") == {"moved": 1, "left": 0}
    assert ask(broker, "redrive", destination="q", to="q") == {"moved": 0, "left": 0}
    with pytest.raises(InvalidDestinationException):
        ask(broker, "redrive", destination="nowhere")


# What no application saw.


# Whether a commit was done.


def test_a_commit_is_resolved_by_its_id(broker: Broker) -> None:
    client = connect(broker)
    broker.call(c.Commit(client, c.CommitId("s", 3), [(queue("q"), named(1))], []), WAIT)
    resolved = {number: ask(broker, "resolve_commit", session="s", number=number) for number in (2, 3, 4)}
    assert resolved == {2: True, 3: True, 4: False}
    assert ask(broker, "resolve_commit", session="other", number=1) is False


def test_a_commit_on_its_way_is_done_before_it_is_resolved(broker: Broker) -> None:
    client = connect(broker)
    broker.submit(c.Commit(client, c.CommitId("s", 1), [(queue("q"), named(1))], []))
    assert ask(broker, "resolve_commit", session="s", number=1) is True


def test_a_commit_that_is_held_back_when_its_connection_is_lost_is_not_done(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_queue_messages=1, blocked_send_timeout_seconds=60), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "fills it")
    broker.submit(c.Commit(client, c.CommitId("s", 1), [(queue("q"), named(1))], []))
    broker.submit(c.Disconnect(client))
    assert ask(broker, "resolve_commit", session="s", number=1) is False
    ask(broker, "purge", destination="q")
    assert ask(broker, "resolve_commit", session="s", number=1) is False
    assert depth(broker, "q") == 0
    broker.close()


def test_a_commit_is_resolved_after_a_restart(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    broker.call(c.Commit(connect(broker), c.CommitId("s", 5), [(queue("q"), named(1))], []), WAIT)
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    assert ask(broker, "resolve_commit", session="s", number=5) is True
    assert ask(broker, "resolve_commit", session="s", number=6) is False
    broker.close()


def test_commits_and_published_batches_are_not_forgotten_for_others(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_producers=3), str(tmp_path))
    client = connect(broker)
    broker.call(c.Commit(client, c.CommitId("mine", 7), [(queue("q"), named(1))], []), WAIT)
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("x")])
    assert ask(broker, "publish", group="mine", number=3, transactions=["t"]) is True
    commits = [c.Commit(client, c.CommitId(f"session {n}", 1), [], []) for n in range(CACHED_NAMES)]
    groups = [c.Publish(f"group {n}", 1, []) for n in range(CACHED_NAMES)]
    broker.submit_all([*commits, *groups])
    for number in range(10):
        send(broker, client, "q", "x", identity=Identity(f"producer {number}", 1, 1))
    assert ask(broker, "resolve_commit", session="mine", number=7) is True
    assert ask(broker, "resolve_commit", session="mine", number=8) is False
    assert ask(broker, "publish", group="mine", number=3, transactions=[]) is False
    broker.close()


def test_a_commit_is_known_however_many_empty_ones_are_made_in_the_same_cycle(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    mine = c.Commit(client, c.CommitId("mine", 7), [(queue("q"), c.NewMessage(0, b"x"))], [])
    broker.call(mine, WAIT)
    others = [c.Commit(client, c.CommitId(f"session {n}", 1), [], []) for n in range(CACHED_NAMES)]
    with broker._runner:  # so that they wait for one cycle
        broker.submit_all([mine, *others])
    assert broker.call(c.Due(()), WAIT) is None
    assert depth(broker, "q") == 1
    broker.close()


def test_a_commit_is_in_doubt_only_where_it_was_made_too_long_ago(broker: Broker) -> None:
    day = 86_400_000
    assert ask(broker, "resolve_commit", session="never seen", number=1) is False
    assert ask(broker, "resolve_commit", session="never seen", number=1, age_ms=6 * day) is False
    assert ask(broker, "resolve_commit", session="never seen", number=1, age_ms=8 * day) is None
    broker.call(c.Commit(connect(broker), c.CommitId("s", 5), [(queue("q"), named(1))], []), WAIT)
    assert ask(broker, "resolve_commit", session="s", number=5, age_ms=8 * day) is True
    assert ask(broker, "resolve_commit", session="s", number=6, age_ms=8 * day) is False


def test_names_that_were_not_used_for_long_are_swept_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(EngineSettings(commit_memory_seconds=60), str(tmp_path))
    broker.call(c.Commit(connect(broker), c.CommitId("old", 5), [(queue("q"), named(1))], []), WAIT)
    broker.close()
    broker = Broker(EngineSettings(commit_memory_seconds=60), str(tmp_path))
    broker.call(c.Statistics(), WAIT)
    later_ms = time.monotonic_ns() // 10**6 + 122_000
    monkeypatch.setattr("broker_adapter.engine.broker._elapsed_ms", lambda: later_ms)
    broker.call(c.Statistics(), WAIT)
    assert ask(broker, "resolve_commit", session="old", number=5, age_ms=61_000) is None
    broker.close()


# Queues that are deleted and made again.


# What reads without a consumer uses the queue.


# What cannot be trusted, and what must not be stored.


@pytest.mark.damages
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_damaged_message_that_a_browser_meets_is_counted_no_more(tmp_path: Path, in_memory: bool) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path))
    send(broker, connect(broker), "q", "first", "second", "third")
    damage_body(broker, b"second")
    if not in_memory:
        broker.close()
        broker = Broker(settings, str(tmp_path))
    client = connect(broker)
    for _ in range(2):
        assert payloads(drained(broker, client, "q", browse=True)) == [b"first", b"third"]
        assert depth(broker, "q") == 2
    statistics = broker.call(c.Statistics(), WAIT)
    assert (statistics.quarantined, broker.store.quarantined()) == (1, 2)
    assert [each for each in broker.check() if not each.harmless] == []
    assert broker.request("check", {}, WAIT)["sound"]
    assert payloads(drained(broker, client, "q")) == [b"first", b"third"]
    broker.close()


@pytest.mark.damages
@pytest.mark.parametrize("operation", ["purge", "redrive", "settle_through", "delete"])
def test_damaged_entries_are_counted_no_more_once_an_operation_has_found_them(tmp_path: Path, operation: str) -> None:
    """Also delayed ones; only ``purge`` and ``delete`` come to these."""
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", *range(1, 6))
    send(broker, client, "q", "six", "seven", deliver_at_ms=4_000_000_000_000)
    broker.close()
    delayed = operation in ("purge", "delete")
    damage_entries(tmp_path, 2, 3, *((7,) if delayed else ()))
    broker = Broker(EngineSettings(), str(tmp_path))
    more = {"settle_through": {"position": 4}, "redrive": {"to": "other"}}.get(operation, {})
    ask(broker, operation, destination="q", **more)
    while broker._jobs:
        broker.call(c.Due(()), WAIT)
    assert depth(broker, "q") == {"purge": 0, "delete": 0, "redrive": 2, "settle_through": 3}[operation]
    assert depth(broker, "other") == (3 if operation == "redrive" else 0)
    assert [text for text in wrong(broker) if "schedule" not in text] == []
    assert len(list(quarantined(broker.store))) == (3 if delayed else 2)
    broker.close()


@pytest.mark.damages
@pytest.mark.parametrize("in_hand", [False, True])
def test_an_entry_that_is_damaged_on_the_disk_only_is_written_again(tmp_path: Path, in_hand: bool) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", *range(1, 4))
    consumer, inbox = attach(broker, client, "q", credit=3 if in_hand else 0)
    inbox.wait_for(3 if in_hand else 0)
    store = broker.store
    with store.snapshot() as tables:
        key, value = next((key, value) for key, value in tables.items("entries") if position_of(key) == 2)
    store.apply([("entries", key, value[:-1] + bytes([value[-1] ^ 1]))])
    assert len(wrong(broker)) >= 1
    answer = ask(broker, "read_range", destination="q", first=1, last=3)
    assert bodies(answer) == [b"1", b"2", b"3"]
    assert [each.text for each in broker.check()] == []
    assert list(quarantined(store)) == []
    broker.call(c.Detach(consumer, give_back=True), WAIT)
    assert ask(broker, "settle_through", destination="q", position=3) == 3
    broker.close()


@pytest.mark.damages
def test_a_damaged_entry_that_a_selector_comes_to_is_counted_no_more(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    send(broker, connect(broker), "q", *range(1, 6))
    broker.close()
    damage_entries(tmp_path, 2)
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    consumer, _ = attach(broker, client, "q", credit=5, selector="a = 1")
    broker.call(c.Drain(consumer), WAIT)
    assert depth(broker, "q") == 4
    assert broker.call(c.Statistics(), WAIT).quarantined == 1
    broker.close()


def test_what_is_on_the_disk_is_not_put_into_a_temporary_queue(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "bad")
    consumer, inbox = attach(broker, client, "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    temporary = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
    assert ask(broker, "redrive", to=temporary.name) == {"moved": 0, "left": 1}
    assert depth(broker, "DLQ") == 1
    assert ask(broker, "redrive") == {"moved": 1, "left": 0}
    with pytest.raises(InvalidDestinationException, match="temporary"):
        ask(broker, "stage", transaction="t", queue=temporary.name, first=0, messages=[envelope("x")])
    broker.close()


def test_what_was_dead_in_a_durable_subscription_is_not_put_into_one_in_memory(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker, "me")
    durable = Subscription("s", durable=True, shared=True)
    consumer, inbox = attach(broker, client, topic("t"), credit=1, subscription=durable)
    send(broker, client, topic("t"), "bad")
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    broker.call(c.Detach(consumer), WAIT)
    broker.call(c.Unsubscribe(client, "s"), WAIT)
    attach(broker, client, topic("t"), subscription=Subscription("s", durable=False, shared=True))
    assert ask(broker, "redrive") == {"moved": 0, "left": 1}
    assert depth(broker, "DLQ") == 1
    broker.close()


def test_a_temporary_queue_is_known_by_its_name_whatever_kind_is_said(broker: Broker) -> None:
    client = connect(broker)
    temporary = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
    send(broker, client, queue(temporary.name), "reply")
    assert payloads(drained(broker, client, temporary)) == [b"reply"]
    with pytest.raises(InvalidDestinationException, match="does not exist any more"):
        send(broker, client, queue(temporary.name + "x"), "reply")


# What ends an operation before it is done.


@pytest.mark.parametrize("operation", ["settle_positions", "uncount"])
def test_a_cancelled_operation_ends_with_its_step(broker: Broker, operation: str) -> None:
    send(broker, connect(broker), "q", "a")
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 5

    with pytest.raises(ConnectionLostException, match="cancelled"):
        broker.request(operation, {"destination": "q", "given": sparse(1000)}, WAIT, is_cancelled)
    assert asked == 6


def test_a_cancelled_purge_leaves_what_it_had_not_come_to(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a", "b")
    with pytest.raises(ConnectionLostException, match="cancelled"):
        broker.request("purge", {"destination": "q"}, WAIT, lambda: True)
    assert depth(broker, "q") == 2
    assert broker.request("purge", {"destination": "q"}, WAIT, lambda: False) == 2


def test_the_deadline_holds_also_where_nothing_is_found(broker: Broker) -> None:
    send(broker, connect(broker), "q", "a")
    # Between two steps, or in one, where the machine is busy.
    with pytest.raises(OperationTimedOutException, match=r"the time is over|no answer to ResolveCommit within"):
        broker.request("settle_positions", {"destination": "q", "given": sparse(MAX_GIVEN)}, 0.02)
