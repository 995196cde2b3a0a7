"""Losses of a connection behind a proxy, and what is done meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sdk import Connection, JMSException, Restored
from tests.faults.conftest import Client
from tests.faults.proxy import Proxy

#: Seconds in which is done what does not wait for the network, also where the machine is busy.
SOON = 60.0
#: Time-outs for what would wait for the network, and is not to.
PATIENT = "&close_timeout_seconds=1000&request_timeout_seconds=1000&poll_timeout_seconds=1000&send_timeout_seconds=1000"


def fill(direct: Connection, name: str, count: int) -> None:
    with direct.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(str(number))


def messages_in(direct: Connection, name: str) -> int:
    return next((each.messages for each in direct.statistics().queues if each.name == name), 0)


def stored_in(direct: Connection, name: str) -> int:
    """How many messages a queue ever had."""
    return next((each.next_position - 1 for each in direct.statistics().queues if each.name == name), 0)


def seconds(act: Callable[[], object]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


def lose(client: Client, proxy: Proxy) -> None:
    """Cut, and keep the network away."""
    proxy.refuse()
    assert proxy.cut()
    client.wait_for_loss()


def cut(client: Client, proxy: Proxy) -> None:
    """Cut, and wait until the connection is there again."""
    before = client.count(Restored)
    assert proxy.cut()
    client.wait_for_restore(before + 1)


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(act())
        except JMSException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results
