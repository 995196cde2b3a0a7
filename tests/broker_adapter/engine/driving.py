"""Short words for driving a broker in tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker

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
    return c.NewMessage(0x484F4601, payload, **fields)


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
