"""The two programs that only use the SDK, each in a process of its own.

The server is killed under them.  Nothing here connects again: the connection restores itself, and each session says,
in the way of its mode, what became of its work.
"""

from __future__ import annotations

import json
import threading
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
    StaleAcknowledgementException,
    TransactionRolledBackException,
)

BATCH = 1000


def connected(url: str, interruptions: Any) -> Connection:
    """A started connection that counts its losses."""

    def lost(error: JMSException) -> None:
        if isinstance(error, ConnectionLostException):
            interruptions.value += 1

    connection = ConnectionFactory(url).create_connection()
    connection.exception_listener = lost
    connection.start()
    return connection


def produce(url: str, total: int, progress: Any, interruptions: Any) -> None:
    """Send the first departures, so many, a thousand to a transaction.

    A transaction that the kill caught is rolled back, and is sent again, or its commit was done, and returns: the SDK
    asks the server which.  So every departure is sent once.
    """
    rows = departures.read(total).to_pylist()
    with (
        connected(url, interruptions) as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producer = session.create_producer(session.create_queue("demo.departures"))
        while progress.value < len(rows):
            first = progress.value
            for number, row in enumerate(rows[first : first + BATCH], first):
                producer.send(json.dumps({"number": number, **row}))
            try:
                session.commit()
            except TransactionRolledBackException:
                continue  # the same ones again
            progress.value = min(first + BATCH, len(rows))


def forward(url: str, total: int, progress: Any, duplicates: Any, interruptions: Any) -> None:
    """Take departures in CLIENT mode: the late ones go to one queue, the rest to another; then acknowledge.

    What was forwarded and not yet acknowledged when the connection was lost is redelivered, and forwarded again: CLIENT
    mode does not tie the two together (TRANSACTED would).  Each departure has a number, by which duplicates
    are counted.
    """
    seen: set[int] = set()
    with connected(url, interruptions) as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
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
            if not numbers:
                continue
            answers.wait()
            duplicates.value += len(numbers) - len(set(numbers) - seen)
            seen.update(numbers)
            progress.value = len(seen)
            try:
                last.acknowledge()
            except StaleAcknowledgementException:
                pass  # they are redelivered, and counted as duplicates


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
            if not self._changed.wait_for(lambda: self._missing == 0, 60):
                raise OperationTimedOutException("messages were not confirmed within 60 s")
            if self._error is not None:
                raise self._error
