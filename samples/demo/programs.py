"""The two programs that only use the SDK, each in a process of its own; they reconnect by themselves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from samples.demo import departures
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    Message,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)

BATCH = 1000
_INTERRUPTIONS = (
    ConnectionLostException,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)


def reconnecting(url: str, work: Callable[[Connection], bool], interruptions: Any) -> None:
    """Do ``work`` with a connection, and again with a new one after each interruption, until it returns True."""
    gave_up_at = time.monotonic() + 120
    while True:
        try:
            with ConnectionFactory(url).create_connection() as connection:
                connection.exception_listener = lambda _error: None  # the calls below raise it too
                connection.start()
                if work(connection):
                    return
        except _INTERRUPTIONS:
            if time.monotonic() > gave_up_at:
                raise
            interruptions.value += 1
            time.sleep(0.2)


def produce(url: str, progress: Any, interruptions: Any) -> None:
    """Send every departure, a thousand to a transaction.

    A transaction that an interruption caught may have been committed or not; it is sent again, so a departure may be
    there twice.  Each has a number, by which whoever counts them tells them apart.
    """
    rows = departures.read().to_pylist()

    def work(connection: Connection) -> bool:
        with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
            producer = session.create_producer(session.create_queue("demo.departures"))
            while progress.value < len(rows):
                first = progress.value
                for number, row in enumerate(rows[first : first + BATCH], first):
                    producer.send(json.dumps({"number": number, **row}))
                session.commit()
                progress.value = min(first + BATCH, len(rows))
            return True

    reconnecting(url, work, interruptions)


def forward(url: str, total: int, progress: Any, duplicates: Any, interruptions: Any) -> None:
    """Take departures in CLIENT mode: the late ones go to one queue, the rest to another; then acknowledge.

    What was forwarded and not yet acknowledged when the connection was lost comes again, and is forwarded again.
    """
    seen: set[int] = set()

    def work(connection: Connection) -> bool:
        with connection.create_session(AcknowledgeMode.CLIENT) as session:
            consumer = session.create_consumer(session.create_queue("demo.departures"))
            late = session.create_producer(session.create_queue("demo.late"))
            rest = session.create_producer(session.create_queue("demo.rest"))
            while len(seen) < total:
                answers = _Answers()
                numbers = []
                message = consumer.receive(timeout=1.0)
                while message is not None:
                    departure = json.loads(message.body)
                    delay = departure["dep_delay"]
                    is_late = delay is not None and delay >= departures.LATE_MINUTES
                    (late if is_late else rest).send(message.body, on_completion=answers.expected())
                    numbers.append(departure["number"])
                    last = message
                    message = consumer.receive_nowait() if len(numbers) < BATCH else None
                if numbers:
                    answers.wait()
                    last.acknowledge()
                    duplicates.value += len(numbers) - len(set(numbers) - seen)
                    seen.update(numbers)
                    progress.value = len(seen)
            return True

    reconnecting(url, work, interruptions)


class _Answers:
    """Counts the confirmations of asynchronous sends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._missing = 0
        self._error: JMSException | None = None

    def expected(self) -> Callable[[Message, JMSException | None], None]:
        """One more is on its way; returns the callback for it."""
        with self._changed:
            self._missing += 1
        return self._answered

    def _answered(self, _message: Message, error: JMSException | None) -> None:
        with self._changed:
            self._missing -= 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when all are confirmed; raise what one of them failed with."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._missing == 0, 30):
                raise OperationTimedOutException("messages were not confirmed within 30 s")
            if self._error is not None:
                raise self._error
