"""The SDK as producer or consumer of ``benchmarks/peers.py``: what ``java/jms/JmsClient.java`` is for Qpid JMS.

``python -m benchmarks.jms_client URL [USER PASSWORD]``. The lines of its input are

- ``send QUEUE COUNT MODE``: sends so many numbered messages,
- ``receive QUEUE COUNT MODE``: receives them, and checks that each comes once and in order.

Each is answered with ``done``, when it began, which for a consumer is its first message, and when it ended, in seconds
since 1970. It ends with its input.
"""

from __future__ import annotations

import sys
import threading
import time

from sdk import AcknowledgeMode, BytesMessage, Connection, ConnectionFactory, JMSException, Message

#: Messages of a transaction.
BATCH = 100
BODY_BYTES = 1024
_PADDING = bytes(BODY_BYTES - 8)
_PROPERTY, _VALUE = "colour", "red"
_WAIT = 60.0


class OrderError(Exception):
    """A message was lost, doubled or came out of order."""


def send(connection: Connection, queue: str, count: int, mode: AcknowledgeMode) -> tuple[float, float]:
    """Send, asynchronously or in transactions; when it began and when all were confirmed."""
    with connection.create_session(mode) as session:
        producer = session.create_producer(session.create_queue(queue))
        started = time.time()
        if mode is AcknowledgeMode.TRANSACTED:
            for number in range(count):
                producer.send(_message(number))
                if number % BATCH == BATCH - 1:
                    session.commit()
            session.commit()
            return started, time.time()
        sent = _Sent(count)
        for number in range(count):
            producer.send(_message(number), on_completion=sent)
        sent.wait()
        return started, time.time()


class _Sent:
    """Told of each message that is confirmed."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._error: Exception | None = None
        self._over = threading.Event()

    def __call__(self, _message: Message, error: JMSException | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if self._error is not None or self._left == 0:
            self._over.set()

    def wait(self) -> None:
        if not self._over.wait(_WAIT):
            raise TimeoutError("the sends were not confirmed")
        if self._error is not None:
            raise self._error


def receive(connection: Connection, queue: str, count: int, mode: AcknowledgeMode) -> tuple[float, float]:
    """Receive; when the first message came and when the last one was acknowledged."""
    with connection.create_session(mode) as session:
        consumer = session.create_consumer(session.create_queue(queue))
        started = 0.0
        for number in range(count):
            message = consumer.receive(timeout=_WAIT)
            if number == 0:
                started = time.time()
            if message is None or not _is(message, number):
                raise OrderError(f"expected message {number}, got {message and message.body[:8]!r}")
            if mode is AcknowledgeMode.TRANSACTED and number % BATCH == BATCH - 1:
                session.commit()
        if mode is AcknowledgeMode.TRANSACTED:
            session.commit()
        return started, time.time()


def _message(number: int) -> BytesMessage:
    message = BytesMessage(number.to_bytes(8, "big") + _PADDING)
    message.properties[_PROPERTY] = _VALUE
    return message


def _is(message: Message, number: int) -> bool:
    body = message.body
    return (
        len(body) == BODY_BYTES
        and int.from_bytes(body[:8], "big") == number
        and message.properties[_PROPERTY] == _VALUE
    )


def main(url: str, *login: str) -> None:
    """Do what the input says."""
    with ConnectionFactory(url).create_connection(*login) as connection:
        connection.start()
        print("done", flush=True)
        for line in sys.stdin:
            what, queue, count, mode = line.split()
            work = {"send": send, "receive": receive}[what]
            started, ended = work(connection, queue, int(count), AcknowledgeMode[mode])
            print(f"done {started:.6f} {ended:.6f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
