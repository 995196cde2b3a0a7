"""What has expired before it is stored: it is counted, and goes to the expiry queue as what expires later does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, message

PAST_MS = 1_000_000_000_000


def eventually(broker: Broker, name: str, count: int) -> None:
    deadline = time.monotonic() + WAIT
    while depth(broker, name) != count:
        assert time.monotonic() < deadline, depth(broker, name)
        time.sleep(0.01)


def expired(broker: Broker) -> int:
    return int(broker.call(c.Statistics(), WAIT).expired)


@pytest.mark.parametrize("consumed", [False, True])
@pytest.mark.parametrize("how", ["sent", "committed", "published to two subscriptions"])
@pytest.mark.parametrize("expiry_queue", [None, "late"])
def test_what_has_expired_on_arrival_is_counted_and_set_aside(
    tmp_path: Path, expiry_queue: str | None, how: str, consumed: bool
) -> None:
    broker = Broker(EngineSettings(expiry_queue=expiry_queue), str(tmp_path))
    client = connect(broker, "me")
    to = topic("t") if "subscriptions" in how else queue("q")
    copies = 2 if "subscriptions" in how else 1
    for name in ("one", "two") if copies == 2 else ():
        attach(broker, client, to, subscription=Subscription(name, durable=True, shared=False))
    inbox = None
    if consumed and copies == 1:
        _, inbox = attach(broker, client, "q", credit=10)
    late = message("late", expires_at_ms=PAST_MS)
    if how == "committed":
        broker.call(c.Commit(client, None, [(to, late)], []), WAIT)
    else:
        assert broker.call(c.Enqueue(client, to, [late]), WAIT) is None
    if expiry_queue is not None:
        eventually(broker, expiry_queue, copies)
    assert expired(broker) == (copies if expiry_queue is not None else 1)
    assert depth(broker, "q") == 0
    assert inbox is None or inbox.handouts == []
    assert depth(broker, "DLQ") == 0
    broker.close()


def test_what_expires_while_it_is_held_back_is_set_aside(tmp_path: Path) -> None:
    broker = Broker(
        EngineSettings(expiry_queue="late", max_queue_messages=1, blocked_send_timeout_seconds=WAIT), str(tmp_path)
    )
    client = connect(broker)
    broker.call(c.Enqueue(client, queue("q"), [message("first")]), WAIT)
    soon = time.time_ns() // 1_000_000 + 50
    replies: list[object] = []
    broker.submit(c.Enqueue(client, queue("q"), [message("soon over", expires_at_ms=soon)], replies.append))
    time.sleep(0.2)
    consumer, inbox = attach(broker, client, "q", credit=1)
    broker.call(c.Settle(consumer, [inbox.wait_for(1)[0].number], Outcome.ACCEPTED), WAIT)
    eventually(broker, "late", 1)
    assert replies == [None]
    assert expired(broker) == 1
    broker.close()


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.MODIFIED, Outcome.RELEASED, Outcome.FAILED])
def test_what_expires_in_a_consumers_hands_is_no_dead_letter(tmp_path: Path, outcome: Outcome) -> None:
    """A foreign client says of it: modified, undeliverable here, which counts as a rejection."""
    broker = Broker(EngineSettings(expiry_queue="late", max_deliveries=1), str(tmp_path))
    client = connect(broker)
    soon = time.time_ns() // 1_000_000 + 300
    broker.call(c.Enqueue(client, queue("q"), [message("soon over", expires_at_ms=soon)]), WAIT)
    consumer, inbox = attach(broker, client, "q", credit=1)
    got = inbox.wait_for(1)
    time.sleep(0.5)
    broker.call(c.Settle(consumer, [got[0].number], outcome), WAIT)
    eventually(broker, "late", 1)
    assert depth(broker, "DLQ") == 0
    assert expired(broker) == 1
    broker.close()
