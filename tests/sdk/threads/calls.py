"""Sends, and calls in threads of their own, for the tests of sessions and their threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from sdk import Connection, Message, Session

WAIT = 120.0


def send(connection: Connection, *bodies: str) -> None:
    with connection.create_session() as session, session.create_producer(session.create_queue("q")) as producer:
        for body in bodies:
            producer.send(body)


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, queue.SimpleQueue[Any]]:
    """Run it in another thread; the queue gets its result or its error."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(act())
        except Exception as error:
            results.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def receiving(session: Session) -> None:
    """Return when another thread waits in this session's receive."""
    state = session._state
    assert state.wait_until(lambda: True, None)
    while not state.waiters:
        threading.Event().wait(0.001)


class Hanging:
    """A listener that hangs on its first message until it is released, and counts."""

    def __init__(self, session: Session, name: str) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.seen = 0
        self.consumer = session.create_consumer(session.create_queue(name))
        self.consumer.listener = self._listen

    def _listen(self, _message: Message) -> None:
        self.seen += 1
        self.entered.set()
        self.leave.wait(WAIT)


def send_to(connection: Connection, name: str, count: int) -> None:
    with connection.create_session() as session, session.create_producer(session.create_queue(name)) as producer:
        for number in range(count):
            producer.send(str(number))
