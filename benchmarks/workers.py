"""Workers that share a queue: orders that always fail, malformed requests, and workers that join, also with groups.

A task sleeps, so that several workers of one process are no slower than those of several machines.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from benchmarks import scale
from benchmarks.modes import OrderError, server
from benchmarks.report import Figure
from sdk import Connection, ConnectionFactory, Message, Requestor, reply

_WAIT = 120.0
_TURNS = 3
_ORDER_SECONDS = 0.01
#: One order in so many fails each time.
_POISON = 25
_TASK_SECONDS = 0.1
_WORKERS = 4
_GROUPS = 12
_GROUPED_SECONDS = 0.002


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """Embedded, over AMQP to a server of its own, and the engine alone; with a share of the messages."""
    yield from _programs(f"embedded:{directory / 'workers'}", "embedded", share)
    with server(directory / "server") as (url, _):
        yield from _programs(url, "AMQP loopback", share)
    yield from scale.set_aside(directory, 100_000 // share)
    yield from scale.joins(directory, 1000, 100, 1000 // share)


def _programs(url: str, where: str, share: int) -> Iterator[Figure]:
    tasks = 100 // min(share, 2)
    with ConnectionFactory(url).create_connection() as connection:  # an embedded engine ends with its last one
        connection.start()
        yield _orders(url, where, connection, 400 // share)
        yield _requests(url, where, connection, 1000 // share)
        yield _tasks(url, where, connection, tasks)
        yield _joiners(url, where, connection, tasks)
        yield _groups(url, where, connection, 1200 // share)


class _Done(NamedTuple):
    """A message that a worker has processed, and when."""

    worker: int
    body: str
    began: float
    ended: float


class _Crew:
    """Workers, each with a connection of its own, whose listeners take so many seconds, or fail at once."""

    def __init__(self, url: str, queue: str, seconds: float) -> None:
        self.done: list[_Done] = []
        self.joined: list[float] = []  #: when each was ready
        self._url = url
        self._queue = queue
        self._seconds = seconds
        self._connections: list[Connection] = []
        self._finished = threading.Semaphore(0)

    def __enter__(self) -> _Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in self._connections:
            each.close()

    def join(self) -> None:
        """Start one more worker."""
        worker = len(self._connections)
        connection = ConnectionFactory(self._url).create_connection()
        self._connections.append(connection)
        session = connection.create_session()
        session.create_consumer(session.create_queue(self._queue)).listener = lambda each: self._work(worker, each)
        connection.start()
        self.joined.append(time.perf_counter())

    def _work(self, worker: int, message: Message) -> None:
        began = time.perf_counter()
        if message.body == "poison":
            raise ValueError("as each time")
        time.sleep(self._seconds)
        self.done.append(_Done(worker, message.body, began, time.perf_counter()))
        self._finished.release()

    def wait(self, count: int) -> None:
        """Wait until so many more messages have been processed."""
        for _ in range(count):
            if not self._finished.acquire(timeout=_WAIT):
                raise OrderError("a message is missing")

    def check(self, bodies: Sequence[str]) -> None:
        """Raise OrderError where a message was not processed, or twice."""
        if sorted(each.body for each in self.done) != sorted(bodies):
            raise OrderError(f"processed {len(self.done)} messages, not {len(bodies)}")

    @property
    def shares(self) -> str:
        """How many messages each has processed."""
        workers = [each.worker for each in self.done]
        return ", ".join(str(workers.count(number)) for number in range(len(self.joined)))


def _fill(connection: Connection, queue: str, bodies: Sequence[str], groups: int = 0) -> None:
    with connection.create_session() as session:
        messages = [session.create_text_message(body) for body in bodies]
        for number, message in enumerate(messages):
            message.group_id = str(number % groups) if groups else None
        session.create_producer(session.create_queue(queue)).send_all(messages)


def _orders(url: str, where: str, connection: Connection, orders: int) -> Figure:
    good = [str(number) for number in range(orders) if number % _POISON]

    def seconds(queue: str, bodies: Sequence[str]) -> float:
        _fill(connection, queue, bodies)
        with _Crew(url, queue, _ORDER_SECONDS) as crew:
            began = time.perf_counter()
            for _ in range(2):
                crew.join()
            crew.wait(len(good))
            crew.check(good)
            return crew.done[-1].ended - began

    mixed = [str(number) if number % _POISON else "poison" for number in range(orders)]
    turns = [(seconds(f"good {turn}", good), seconds(f"mixed {turn}", mixed)) for turn in range(_TURNS)]
    alone, beside = (statistics.median(each) for each in zip(*turns, strict=True))
    return Figure(
        name=f"workers: {len(good)} orders, beside one in {_POISON} that always fails, {where}",
        value=beside,
        unit="s",
        yardstick=f"without: {alone:.2f} s",
        ratio=statistics.median(with_bad / without for without, with_bad in turns),
        goal="at most 1.2",
        producers=1,
        consumers=2,
        note=f"an order takes {_ORDER_SECONDS * 1000:.0f} ms; {_TURNS} turns",
    )


def _requests(url: str, where: str, connection: Connection, requests: int) -> Figure:
    with (
        ConnectionFactory(url).create_connection() as serving,
        serving.create_session() as service,
        connection.create_session() as session,
    ):
        queue = session.create_queue("sums")

        def answer(request: Message) -> None:
            reply(service, request, {"sum": request.body["a"] + request.body["b"]})

        service.create_consumer(queue).listener = answer
        serving.start()
        with Requestor(session, queue) as requestor:

            def ask(number: int) -> float:
                began = time.perf_counter()
                if requestor.request({"a": number, "b": 1}, timeout=_WAIT).body["sum"] != number + 1:
                    raise OrderError("the reply to another request")
                return time.perf_counter() - began

            for number in range(requests // 10):
                ask(number)
            alone = [ask(number) for number in range(requests)]
            session.create_producer(queue).send({"a": 1})
            beside = [ask(number) for number in range(requests)]
    return Figure(
        name=f"workers: {requests:,} requests, one by one, beside a malformed one, {where}",
        value=sum(beside) / requests * 1e6,
        unit="us",
        yardstick=f"without: {sum(alone) / requests * 1e6:.0f} us",
        ratio=sum(beside) / sum(alone),
        goal="at most 1.2",
        producers=1,
        consumers=1,
        note=f"longest {max(beside) * 1000:.1f} ms, without {max(alone) * 1000:.1f} ms;"
        f" the first one {beside[0] * 1000:.1f} ms",
    )


def _tasks(url: str, where: str, connection: Connection, tasks: int) -> Figure:
    bodies = [str(number) for number in range(tasks)]
    _fill(connection, "tasks", bodies)
    with _Crew(url, "tasks", _TASK_SECONDS) as crew:
        began = time.perf_counter()
        for _ in range(_WORKERS):
            crew.join()
        crew.wait(tasks)
        crew.check(bodies)
        seconds = crew.done[-1].ended - began
    fair = tasks * _TASK_SECONDS / _WORKERS
    return Figure(
        name=f"workers: {tasks} tasks of {_TASK_SECONDS * 1000:.0f} ms for {_WORKERS} workers, {where}",
        value=seconds,
        unit="s",
        yardstick=f"shared fairly: {fair:.2f} s",
        ratio=seconds / fair,
        goal=f"{tasks // _WORKERS} each, within one",
        producers=1,
        consumers=_WORKERS,
        note=f"each has done {crew.shares}",
    )


def _joiners(url: str, where: str, connection: Connection, tasks: int) -> Figure:
    bodies = [str(number) for number in range(tasks)]
    _fill(connection, "joiners", bodies)
    with _Crew(url, "joiners", _TASK_SECONDS) as crew:
        crew.join()
        crew.wait(tasks // 5)
        for _ in range(_WORKERS - 1):
            crew.join()
        crew.wait(tasks - tasks // 5)
        crew.check(bodies)
    return Figure(
        name=f"workers: {_WORKERS - 1} join one with {tasks} tasks, until each has one, {where}",
        value=max(_idle_seconds(crew)) * 1000,
        unit="ms",
        goal="under 1000",
        producers=1,
        consumers=_WORKERS,
        note=f"each has done {crew.shares}",
    )


def _idle_seconds(crew: _Crew) -> list[float]:
    """How long each worker but the first one was without a message after it had joined."""
    first = {each.worker: each.began for each in reversed(crew.done)}
    return [first.get(worker, float("inf")) - crew.joined[worker] for worker in range(1, len(crew.joined))]


def _groups(url: str, where: str, connection: Connection, messages: int) -> Figure:
    bodies = [f"{number % _GROUPS} {number}" for number in range(messages)]
    _fill(connection, "groups", bodies, _GROUPS)
    part = messages // (2 * _WORKERS)
    with _Crew(url, "groups", _GROUPED_SECONDS) as crew:
        for _ in range(_WORKERS):
            crew.join()
            crew.wait(part)
        before = len(crew.done)
        crew.wait(messages - _WORKERS * part)
        crew.check(bodies)
    for group in range(_GROUPS):
        if [each.body for each in crew.done if each.body.startswith(f"{group} ")] != bodies[group::_GROUPS]:
            raise OrderError(f"group {group} was out of order")
    groups = [{each.body.split()[0] for each in crew.done[before:] if each.worker == n} for n in range(_WORKERS)]
    return Figure(
        name=f"workers: {_GROUPS} groups for {_WORKERS} workers that join one by one, at the fewest, {where}",
        value=min(map(len, groups)),
        unit="groups",
        goal=f"{_GROUPS // _WORKERS}",
        producers=1,
        consumers=_WORKERS,
        note=f"each has then served {', '.join(str(len(each)) for each in groups)} groups, in all {crew.shares}"
        f" messages; until its first one at most {max(_idle_seconds(crew)) * 1000:.0f} ms",
    )
