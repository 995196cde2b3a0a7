"""How long a client is without messages when its server is killed and another one waits, or its network fails."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Figure
from sdk import ConnectionFactory, Restored
from tests.faults.proxy import Proxy
from tests.server_process import ServerProcess

#: Servers killed; connections cut.
ROUNDS = 30
#: Sessions of a connection that has many links, each with so many producers and as many consumers.
_SESSIONS, _EACH = 10, 10
_WAIT = 20.0


def figures(directory: Path, rounds: int = ROUNDS) -> Iterator[Figure]:
    """All of this part."""
    yield time_to_restore(directory, rounds)
    yield time_to_restore_links(directory, rounds)


def time_to_restore(directory: Path, rounds: int = ROUNDS) -> Figure:
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
    return Figure(
        name="failover: from the kill of the server to the first message of the other, p50",
        value=statistics.median(restored) * 1000,
        unit="ms",
        yardstick=f"a new connection to its first message {statistics.median(fresh) * 1000:.1f} ms",
        ratio=statistics.median(restored) / statistics.median(fresh),
        goal="under 100 ms",
        consumers=1,
        note=f"{rounds} kills; longest {max(restored) * 1000:.0f} ms",
    )


def time_to_restore_links(directory: Path, rounds: int = ROUNDS) -> Figure:
    """From the cut of a connection with many links until all are there again, against one with two."""
    with ServerProcess(directory / "links") as server:
        many = _restored(server, rounds, _SESSIONS, _EACH)
        few = _restored(server, rounds, 1, 1)
    links = 2 * _SESSIONS * _EACH
    return Figure(
        name=f"failover: a connection with {links} links cut, until all are there again, p50",
        value=many * 1000,
        unit="ms",
        yardstick=f"with two links {few * 1000:.1f} ms",
        ratio=many / few,
        consumers=_SESSIONS * _EACH,
        note=f"{rounds} cuts",
    )


def _restored(server: ServerProcess, rounds: int, sessions: int, each: int) -> float:
    """Median time to restore, in seconds."""
    seconds: list[float] = []
    with (
        Proxy(server.port) as proxy,
        ConnectionFactory(f"{proxy.url}?stable_seconds=0").create_connection() as connection,
    ):
        restored = threading.Semaphore(0)

        def told(event: object) -> None:
            if isinstance(event, Restored):
                seconds.append(event.seconds)
                restored.release()

        connection.event_listener = told
        connection.exception_listener = lambda _error: None
        connection.start()
        for number in range(sessions):
            session = connection.create_session()
            for index in range(each):
                queue = session.create_queue(f"{number}.{index}")
                session.create_producer(queue)
                session.create_consumer(queue)
        for _ in range(rounds):
            proxy.cut()
            if not restored.acquire(timeout=_WAIT):
                raise AssertionError("the connection was not restored")
    return statistics.median(seconds)


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
