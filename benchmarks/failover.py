"""How long a client is without messages when its server is killed and another one waits."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Figure
from sdk import ConnectionFactory
from tests.server_process import ServerProcess

#: Servers killed.
ROUNDS = 30
_WAIT = 20.0


def time_to_restore(directory: Path, rounds: int = ROUNDS) -> Iterator[Figure]:
    """From the kill to the first message of the other server, against a new connection that gets its first message."""
    restored, fresh = [], []
    with ServerProcess(directory / "one") as one, ServerProcess(directory / "two") as two:
        servers = [one, two]
        # The servers are killed one soon after the other, which is not to count against them.
        url = f"failover:({one.url},{two.url})?stable_seconds=0"
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            connection.exception_listener = lambda _error: None
            connection.start()
            consumer = session.create_consumer(session.create_queue("q"))
            for number in range(rounds):
                killed, waiting = servers[number % 2], servers[1 - number % 2]
                _send(waiting.url)
                start = time.perf_counter()
                killed.signal(signal.SIGKILL)
                if consumer.receive(_WAIT) is None:
                    raise AssertionError("nothing came after the kill")
                restored.append(time.perf_counter() - start)
                killed.kill()
                killed.start()
                fresh.append(_fresh(waiting.url))
    yield Figure(
        name="failover: from the kill of the server to the first message of the other, p50",
        value=statistics.median(restored) * 1000,
        unit="ms",
        yardstick=f"a new connection to its first message {statistics.median(fresh) * 1000:.1f} ms",
        ratio=statistics.median(restored) / statistics.median(fresh),
        goal="under 100 ms",
        consumers=1,
        note=f"{rounds} kills; longest {max(restored) * 1000:.0f} ms",
    )


def _send(url: str) -> None:
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")


def _fresh(url: str) -> float:
    """A new connection, up to its first message."""
    with ConnectionFactory(url).create_connection() as sender, sender.create_session() as session:
        session.create_producer(session.create_queue("fresh")).send("x")
        start = time.perf_counter()
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as receiving:
            connection.start()
            consumer = receiving.create_consumer(receiving.create_queue("fresh"))
            if consumer.receive(_WAIT) is None:
                raise AssertionError("a new connection got nothing")
            return time.perf_counter() - start
