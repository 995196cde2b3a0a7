"""CPU that a message takes in memory, printed by a process of its own; it uses only what every version has.

``python -m benchmarks.in_memory`` prints microseconds of CPU a message: send and receive in the main thread, and the
same in another thread.  :mod:`benchmarks.walk` runs it with two versions in turn.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from sdk import AcknowledgeMode, ConnectionFactory

_MESSAGES: Final = 5_000
_BODY: Final = "x" * 100


def measure(messages: int) -> tuple[float, float]:
    """Send and receive some messages, one at a time; returns the CPU of each in microseconds a message."""
    with ConnectionFactory("embedded:").create_connection() as connection:
        connection.start()
        session = connection.create_session(AcknowledgeMode.AUTO)
        queue = session.create_queue("q")
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        started = time.process_time()
        for _ in range(messages):
            producer.send(_BODY)
        sent = time.process_time()
        for _ in range(messages):
            assert consumer.receive(timeout=10) is not None
        received = time.process_time()
    return (sent - started) / messages * 1e6, (received - sent) / messages * 1e6


def main() -> None:
    """Print the four figures."""
    found: list[float] = []
    measure(_MESSAGES // 10)
    found += measure(_MESSAGES)
    thread = threading.Thread(target=lambda: found.extend(measure(_MESSAGES)))
    thread.start()
    thread.join()
    print(*(f"{each:.2f}" for each in found))


if __name__ == "__main__":
    main()
