"""Short words for driving a broker in tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription

WAIT = 120.0  #: seconds; longer than anything takes, so that a hanging test ends


class Inbox:
    """A consumer's sink that can be waited for."""

    def __init__(self) -> None:
        self.handouts: list[c.Handout] = []
        self._arrived = threading.Condition()

    def __call__(self, handouts: Sequence[c.Handout]) -> None:
        with self._arrived:
            self.handouts.extend(handouts)
            self._arrived.notify_all()

    def wait_for(self, count: int) -> list[c.Handout]:
        """All deliveries so far, once there are this many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.handouts) >= count, WAIT), len(self.handouts)
            return list(self.handouts)


def message(body: object = b"", **fields: Any) -> c.NewMessage:
    payload = body if isinstance(body, bytes) else str(body).encode()
    return c.NewMessage(ENVELOPE_FORMAT, payload, **fields)


def connect(broker: Broker, client_id: str | None = None) -> int:
    client: int = broker.call(c.Connect(client_id), WAIT)
    return client


def send(broker: Broker, client: int, to: str | Destination, *bodies: object, **fields: Any) -> Any:
    """Enqueue, one message for each body; returns the reply."""
    destination = queue(to) if isinstance(to, str) else to
    return broker.call(c.Enqueue(client, destination, [message(body, **fields) for body in bodies]), WAIT)


def attach(broker: Broker, client: int, to: str | Destination, credit: int = 0, **fields: Any) -> tuple[int, Inbox]:
    inbox = Inbox()
    destination = queue(to) if isinstance(to, str) else to
    consumer: int = broker.call(c.Attach(client, destination, inbox, **fields), WAIT)
    if credit:
        broker.call(c.Credit(consumer, credit), WAIT)
    return consumer, inbox


def settle(broker: Broker, consumer: int, handouts: Sequence[c.Handout], outcome: Outcome = Outcome.ACCEPTED) -> None:
    broker.call(c.Settle(consumer, [each.number for each in handouts], outcome), WAIT)


def drained(broker: Broker, client: int, to: str | Destination, **fields: Any) -> list[c.Handout]:
    """All that a new consumer gets until nothing is left; it is detached again and settles nothing."""
    consumer, inbox = attach(broker, client, to, 1_000_000, **fields)
    broker.call(c.Drain(consumer), WAIT)
    broker.call(c.Detach(consumer), WAIT)
    return inbox.handouts


def payloads(handouts: Sequence[c.Handout]) -> list[bytes]:
    return [each.payload for each in handouts]


def depth(broker: Broker, name: str) -> int:
    statistics = broker.call(c.Statistics(), WAIT)
    found = [each.messages for each in statistics.queues if each.name == name]
    return found[0] if found else 0


def come_to_rest(broker: Broker) -> None:
    """Wait until the engine has nothing left to do by itself: all that can be handed out was handed out."""
    while True:
        broker.call(c.Statistics(), WAIT)
        with broker.reading():  # between two cycles
            if not broker._has_more:
                return


class Engines:
    """Brokers over one directory (or memory), one at a time, all closed at the end."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.broker: Broker | None = None

    def start(self, **settings: Any) -> Broker:
        """Start, or start again."""
        if self.broker is not None:
            self.broker.close()
        self.broker = Broker(EngineSettings(**settings), str(self.path) if self.path else None)
        return self.broker


def change(path: Path, table: str, key: bytes, change: Any) -> None:
    with lmdb.open(str(path), max_dbs=20, map_size=1 << 28) as env:
        handle = env.open_db(table.encode())
        with env.begin(write=True, db=handle) as txn:
            value = txn.get(key)
            assert value is not None
            txn.put(key, change(value))


def eventually(condition: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def day_ms() -> int:
    return time.time_ns() // 1_000_000


SELECTED = "third = TRUE"


def lettered(count: int) -> list[bytes]:
    """Packed messages; every third one has the property that :data:`SELECTED` selects."""
    return [
        pack(Envelope(queue("q"), BodyKind.TEXT, str(number), {"third": number % 3 == 0})) for number in range(count)
    ]


def full_up(store: LmdbStore) -> None:
    """Take every page that is left."""
    for size in (1_000_000, 100_000, 3_000, 100):
        for number in range(10_000):
            try:
                store.apply([("meta", b"%d %d" % (size, number), bytes(size))])
            except ResourceAllocationException:
                break


def subscribe(broker: Broker, client: int, name: str, *subscriptions: str) -> None:
    """Make durable subscriptions of a topic, without consumers."""
    for each in subscriptions:
        consumer, _ = attach(broker, client, topic(name), subscription=Subscription(each, durable=True, shared=False))
        broker.call(c.Detach(consumer), WAIT)
