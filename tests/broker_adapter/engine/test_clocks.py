"""Somebody sets the clock of the machine while the engine runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import topic
from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import Q, Rules
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, message, send

HOUR_MS = 3_600_000


def test_a_blocked_send_times_out_by_the_monotonic_clock() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=5)
    client = rules.connect()
    rules.send(client, Q, b"1")
    answers: list[Any] = []
    rules.state.decide([c.Enqueue(client, Q, [c.NewMessage(0, b"2")], answers.append)], rules.now_ms, 1_000)
    assert rules.state.next_deadline_ms() == 6_000
    assert not rules.state.decide([], rules.now_ms + HOUR_MS, 5_999).replies, "set forward, it is not over yet"
    ((_, result),) = rules.state.decide([], rules.now_ms - HOUR_MS, 6_000).replies
    assert "held back for 5.0 s" in str(result[0])


def test_a_delayed_redelivery_is_due_by_the_monotonic_clock() -> None:
    rules = Rules(redelivery_delay_seconds=1, max_deliveries=None)
    client = rules.connect()
    rules.send(client, Q, b"1")
    consumer = rules.attach(client, Q, credit=10)
    elapsed_ms = 50_000
    ((number, _),) = rules.delivered[consumer]
    for _ in range(2):
        effects = rules.state.decide([c.Settle(consumer, [number], Outcome.FAILED)], rules.now_ms, elapsed_ms)
        for _, (handout,) in effects.deliveries:
            number = handout.number
    assert effects.deliveries == []
    assert rules.state.decide([], rules.now_ms + HOUR_MS, elapsed_ms + 999).deliveries == []
    assert len(rules.state.decide([], rules.now_ms - HOUR_MS, elapsed_ms + 1000).deliveries) == 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(EngineSettings(max_queue_messages=1, blocked_send_timeout_seconds=0.3), str(tmp_path))
    yield made
    made.close()


def set_clock(monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    monkeypatch.setattr(broker_module, "_now_ms", lambda: time.time_ns() // 1_000_000 + by_ms)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_producer_is_held_no_longer_than_it_was_to_be(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, by_ms: int
) -> None:
    client = connect(broker)
    send(broker, client, "q", "1")
    answered = threading.Event()
    results: list[Any] = []

    def reply(result: Any) -> None:
        results.append(result)
        answered.set()

    broker.submit(c.Enqueue(client, Q, [message("2")], reply))
    broker.call(c.Statistics(), WAIT)
    set_clock(monkeypatch, by_ms)
    assert answered.wait(WAIT)
    assert isinstance(results[0][0], ResourceAllocationException)


@pytest.mark.parametrize("days", [-8000, -8, 8, 401, 8000])
@pytest.mark.parametrize("closed", [True, False])
def test_what_was_done_a_moment_ago_is_remembered_however_far_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, closed: bool
) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path))
    if days < 0:
        set_clock(monkeypatch, days * 24 * HOUR_MS)  # and it is right again afterwards
        broker.close()
        broker = Broker(settings, str(tmp_path))
    commit_id = c.CommitId("session", 1)
    assert broker.call(c.Commit(connect(broker), commit_id, [(Q, message("x"))], []), WAIT) is None
    assert broker.call(c.Publish("g", 5, ()), WAIT)
    set_clock(monkeypatch, max(0, days) * 24 * HOUR_MS)
    if closed:
        broker.close()
        broker = Broker(settings, str(tmp_path))
    with broker.reading():
        broker._background._sweep_ms = 0  # the next cycle forgets what is old
        for names in (broker._state.commits, broker._state.published):
            names._names.clear()  # the store is asked
    broker.call(c.Statistics(), WAIT)
    broker.call(c.Statistics(), WAIT)
    assert broker.call(c.ResolveCommit(commit_id, 1000), WAIT) is True
    assert broker.call(c.ResolveCommit(c.CommitId("other", 1), 1000), WAIT) is False
    assert broker.call(c.ResolveCommit(c.CommitId("other", 1), 8 * 24 * HOUR_MS), WAIT) is None
    assert broker.call(c.Publish("g", 5, ()), WAIT) is False
    broker.close()


@pytest.mark.parametrize("closed", [True, False])
def test_what_was_staged_a_moment_ago_can_be_published_however_far_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path))
    assert broker.call(c.Stage("g/5/t", Q, 0, [message("x")]), WAIT)
    set_clock(monkeypatch, 2 * HOUR_MS)
    if closed:
        broker.close()
        broker = Broker(settings, str(tmp_path))
    with broker.reading():
        broker._background._staged_check_ms = 0  # the next cycle drops what is overdue
    broker.call(c.Statistics(), WAIT)
    broker.call(c.Statistics(), WAIT)
    assert broker.call(c.Publish("g", 5, ("g/5/t",)), WAIT)
    broker.close()


def test_what_is_delayed_comes_by_the_time_of_the_day(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect(broker)
    send(broker, client, "q", "later", deliver_at_ms=time.time_ns() // 1_000_000 + HOUR_MS)
    consumer, inbox = attach(broker, client, "q", credit=1)
    assert inbox.wait_for(0) == []
    set_clock(monkeypatch, HOUR_MS)
    broker.call(c.Credit(consumer, 1), WAIT)
    assert len(inbox.wait_for(1)) == 1


def test_a_disk_that_has_room_again_is_seen_after_the_clock_was_set_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(broker)
    assert send(broker, client, "q", "1") is None
    set_clock(monkeypatch, -HOUR_MS)
    broker._state.admission.blocked_because = "the disk is full"
    time.sleep(0.3)  # the next check of the disk is due
    assert send(broker, client, "elsewhere", "2") is None
    assert depth(broker, "elsewhere") == 1


def test_a_queue_or_subscription_is_idle_by_the_monotonic_clock() -> None:
    rules = Rules(delete_idle_subscriptions_seconds=3600, delete_idle_queues_seconds=3600)
    client = rules.connect("me")
    subscription = Subscription("s", durable=True, shared=False)
    rules.do(c.Detach(rules.attach(client, topic("news"), subscription=subscription)))
    rules.do(c.Declare(Q))
    elapsed_ms = rules.now_ms  # so far both are the same

    def deleted(now_ms: int, elapsed_ms: int) -> list[Any]:
        replies = rules.state.decide([c.DeleteIdle(print)], now_ms, elapsed_ms).replies
        found: list[Any] = replies[-1][1]
        return [name for _, name, *_ in found]

    assert deleted(rules.now_ms + 2 * HOUR_MS, elapsed_ms + 1000) == [], "the clock was set"
    assert deleted(rules.now_ms - HOUR_MS, elapsed_ms + HOUR_MS + 1000) == ["'s' of client id 'me' on 'news'", "'q'"]


def test_a_request_notes_the_use_of_its_queue_by_the_monotonic_clock(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, -HOUR_MS)
    broker.request("bounds", {"destination": "q", "make": True}, WAIT)
    used = broker._state.directory.by_destination[Q]
    used.used_ms = used.left_ms = 0
    broker.request("bounds", {"destination": "q"}, WAIT)
    assert 0 < used.used_ms <= broker_module._elapsed_ms()
    assert used.left_ms == used.used_ms
