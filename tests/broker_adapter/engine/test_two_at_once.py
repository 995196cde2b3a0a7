"""Two administrators at once, and administrators beside traffic: what is confirmed stays, and nothing else ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, drained, message, payloads, send, settle

LONG = 120.0


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path) if request.param == "disk" else None)
    yield broker
    broker.close()


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, arguments, LONG)


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Call all of them from threads that start together; returns their results in order."""
    results: list[Any] = [None] * len(acts)
    together = threading.Barrier(len(acts))

    def run(index: int) -> None:
        together.wait(WAIT)
        results[index] = acts[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
        assert not thread.is_alive()
    return results


def fill(broker: Broker, client: int, to: Any, first: int, count: int) -> None:
    for start in range(first, first + count, 2000):
        assert send(broker, client, to, *range(start, min(start + 2000, first + count))) is None


def numbers(broker: Broker, client: int, to: Any, **fields: Any) -> list[int]:
    return [int(body) for body in payloads(drained(broker, client, to, **fields))]


def test_two_purges_at_once_leave_room_for_what_comes_after_them(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client, "q", 0, 40_000)
    dropped = at_once(*[lambda: ask(broker, "purge", destination="q")] * 2)
    assert sum(dropped) == 40_000
    assert depth(broker, "q") == 0
    fill(broker, client, "q", 40_000, 40_000)
    assert depth(broker, "q") == 40_000
    assert numbers(broker, client, "q", presettled=True) == list(range(40_000, 80_000))
    assert depth(broker, "q") == 0


def test_two_redrives_at_once_move_each_message_once(broker: Broker) -> None:
    client = connect(broker)
    fill(broker, client, "q", 0, 20_000)
    consumer, inbox = attach(broker, client, "q", credit=20_000)
    settle(broker, consumer, inbox.wait_for(20_000), Outcome.REJECTED)
    assert depth(broker, "DLQ") == 20_000
    broker.call(c.Detach(consumer), WAIT)
    answers = at_once(*[lambda: ask(broker, "redrive")] * 2)
    assert sum(answer["moved"] for answer in answers) == 20_000
    assert depth(broker, "DLQ") == 0
    assert sorted(numbers(broker, client, "q", presettled=True)) == list(range(20_000))


def subscribe(broker: Broker, client: int, name: str, durable: bool) -> int:
    consumer, _ = attach(broker, client, topic("t"), subscription=Subscription(name, durable=durable, shared=True))
    return consumer


def test_two_purges_of_a_subscription_at_once_take_nothing_from_another(broker: Broker) -> None:
    client = connect(broker, "me")
    for name in ("mine", "yours"):
        subscribe(broker, client, name, broker.is_durable)
    fill(broker, client, topic("t"), 0, 30_000)
    mine = {"destination": "t", "kind": "topic", "subscription": "mine", "client_id": "me"}
    dropped = at_once(*[lambda: ask(broker, "purge", **mine)] * 2)
    assert sum(dropped) == 30_000
    assert (depth(broker, "t:mine"), depth(broker, "t:yours")) == (0, 30_000)
    shared = Subscription("yours", durable=broker.is_durable, shared=True)
    assert numbers(broker, client, topic("t"), subscription=shared, presettled=True) == list(range(30_000))


def test_two_settlements_of_a_subscriptions_range_at_once_take_nothing_from_another(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    client = connect(broker, "me")
    for name in ("mine", "yours"):
        broker.call(c.Detach(subscribe(broker, client, name, durable=True)), WAIT)
    fill(broker, client, topic("t"), 0, 30_000)
    mine = {"destination": "t", "kind": "topic", "subscription": "mine", "client_id": "me", "position": 30_000}
    dropped = at_once(*[lambda: ask(broker, "settle_through", **mine)] * 2)
    assert sum(dropped) == 30_000
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path))
    assert (depth(broker, "t:mine"), depth(broker, "t:yours")) == (0, 30_000)
    shared = Subscription("yours", durable=True, shared=True)
    client = connect(broker, "me")
    assert numbers(broker, client, topic("t"), subscription=shared, presettled=True) == list(range(30_000))
    broker.close()


def test_purges_at_once_beside_expiry_count_nothing_twice(broker: Broker) -> None:
    client = connect(broker)
    now_ms = time.time_ns() // 1_000_000
    for start in range(0, 20_000, 2000):
        messages = [message(n, expires_at_ms=now_ms + 500 + n % 500) for n in range(start, start + 2000)]
        broker.call(c.Enqueue(client, queue("q"), messages), WAIT)
    at_once(*[lambda: ask(broker, "purge", destination="q")] * 2)
    assert depth(broker, "q") == 0
    fill(broker, client, "q", 0, 5000)
    assert numbers(broker, client, "q", presettled=True) == list(range(5000))
    assert depth(broker, "q") == 0
