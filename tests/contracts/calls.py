"""Calls in threads of their own, their answers, and what the engine says of a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from broker_adapter.destination import DestinationKind, queue
from broker_adapter.errors import JMSException
from tests.contracts.transports import WAIT, Client

Q = queue("q")
TEMPORARY = DestinationKind.TEMPORARY_QUEUE


def texts(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


class Answers:
    """What sends are told; can be waited for."""

    def __init__(self) -> None:
        self.errors: list[JMSException | None] = []
        self._arrived = threading.Condition()

    def __call__(self, error: JMSException | None) -> None:
        with self._arrived:
            self.errors.append(error)
            self._arrived.notify_all()

    def wait_for(self, count: int) -> list[JMSException | None]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.errors) >= count, WAIT), self.errors
            return list(self.errors)


class Caller:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: JMSException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except JMSException as error:
            self.error = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def ended(self) -> Caller:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self


def blocked_sends(client: Client, name: str) -> int:
    """How many sends wait for room in a queue."""
    queues = client.transport.request("statistics", {}, WAIT)["queues"]
    return sum(each["blocked_sends"] for each in queues if each["name"] == name)


def depth(client: Client, name: str) -> int:
    queues = client.transport.request("statistics", {}, WAIT)["queues"]
    return sum(each["messages"] for each in queues if each["name"] == name)
