"""The face for asyncio beside the synchronous one, in turns: sends, receives, the latency of a send, the loop's lag."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.modes import BATCH, BODY_BYTES, OrderError, server
from benchmarks.report import Figure
from sdk import AcknowledgeMode, Connection, ConnectionFactory, aio

_BODY = "x" * BODY_BYTES
_WAIT = 60.0
#: Tasks that send together.
TASKS = 500
#: Turns of each face, of which the median counts.
TURNS = 5
#: How often the loop's lag is measured, in seconds.
_TICK = 0.001
_Plain = Callable[[Connection, str, int], float]
_InLoop = Callable[[aio.Connection, str, int], Awaitable[float]]


def figures(directory: Path, messages: int) -> Iterator[Figure]:
    """Embedded, and over AMQP to a server of its own."""
    yield from _compared(f"embedded:{directory / 'aio'}", "embedded", messages)
    with server(directory / "aio-server") as (url, _):
        yield from _compared(url, "AMQP loopback", messages)


def _compared(url: str, where: str, messages: int) -> Iterator[Figure]:
    for name, (plain, in_loop) in _WORKS.items():
        is_latency = name == "one send"
        count = messages // 50 if is_latency else messages
        turns = [asyncio.run(_turn(url, plain, in_loop, f"{name} {turn}", count)) for turn in range(TURNS + 1)][1:]
        late = asyncio.run(_turn(url, plain, in_loop, f"{name}, watched", count, watches=True))
        ratios = [own.seconds / beside.seconds for beside, own in turns]
        own, beside = (_median([each[side] for each in turns]) for side in (1, 0))
        unit = "us" if is_latency else "messages/s"
        values = [each.seconds / count * 1e6 if is_latency else count / each.seconds for each in (own, beside)]
        yield Figure(
            name=f"asyncio, {name}, {where}",
            value=values[0],
            unit=unit,
            yardstick=f"threads: {values[1]:,.0f} {unit}",
            ratio=statistics.median(ratios) if is_latency else 1 / statistics.median(ratios),
            goal="at most 1.3" if is_latency else "at least 0.7",
            body_bytes=BODY_BYTES,
            producers=int("send" in name),
            consumers=int("receive" in name),
            note=(
                f"{own.cpu / count * 1e6:.0f} us CPU, threads {beside.cpu / count * 1e6:.0f}; "
                f"the loop was late by {late[1].lag * 1000:.0f} ms, beside threads by {late[0].lag * 1000:.0f} ms"
            ),
        )


class _Turn(NamedTuple):
    """What one face took: seconds, CPU seconds, and by how much a loop beside it was late at worst."""

    seconds: float
    cpu: float
    lag: float


def _median(turns: Sequence[_Turn]) -> _Turn:
    return _Turn(*map(statistics.median, zip(*turns, strict=True)))


async def _turn(
    url: str, plain: _Plain, in_loop: _InLoop, queue: str, count: int, *, watches: bool = False
) -> tuple[_Turn, _Turn]:
    """One turn of threads, and one of the loop; or of both with a look at the lag of a loop, which costs some time."""

    own_queue = f"{queue} asyncio"
    if "receive" in queue:
        with ConnectionFactory(url).create_connection() as filling, filling.create_session() as session:
            for each in (queue, own_queue):
                session.create_producer(session.create_queue(each)).send_all([_BODY] * count)

    def plainly() -> float:
        with ConnectionFactory(url).create_connection() as connection:
            connection.start()
            return plain(connection, queue, count)

    async def ours() -> float:
        async with aio.connect(url) as connection:
            return await in_loop(connection, own_queue, count)

    return await _timed(asyncio.to_thread(plainly), watches), await _timed(ours(), watches)


async def _timed(work: Awaitable[float], watches: bool) -> _Turn:
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while watches:
            due = time.perf_counter() + _TICK
            await asyncio.sleep(_TICK)
            worst = max(worst, time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    cpu = time.process_time()
    seconds = await work
    cpu = time.process_time() - cpu
    ticking.cancel()
    return _Turn(seconds, cpu, worst)


def _send(connection: Connection, queue: str, count: int) -> float:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(queue))
        done = threading.Event()
        answers = 0

        def answered(_message: object, error: Exception | None) -> None:
            nonlocal answers
            if error is not None:
                raise error
            answers += 1
            if answers == count:
                done.set()

        began = time.perf_counter()
        for _ in range(count):
            producer.send(_BODY, on_completion=answered)
        if not done.wait(_WAIT):
            raise TimeoutError("the sends were not confirmed")
        return time.perf_counter() - began


async def _send_in_loop(connection: aio.Connection, queue: str, count: int) -> float:
    async with connection.create_session() as session:
        producer = await session.create_producer(session.create_queue(queue))

        async def some() -> None:
            for _ in range(count // TASKS):
                await producer.send(_BODY)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(some())
        return time.perf_counter() - began


def _receive(connection: Connection, queue: str, count: int) -> float:
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(queue))
        began = time.perf_counter()
        for _ in range(count):
            if consumer.receive(_WAIT) is None:
                raise OrderError("a message is missing")
        return time.perf_counter() - began


async def _receive_in_loop(connection: aio.Connection, queue: str, count: int) -> float:
    async with connection.create_session() as session:
        consumer = await session.create_consumer(session.create_queue(queue))
        began = time.perf_counter()
        for _ in range(count):
            if await consumer.receive(_WAIT) is None:
                raise OrderError("a message is missing")
        return time.perf_counter() - began


def _receive_many(connection: Connection, queue: str, count: int) -> float:
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(queue))
        began, received = time.perf_counter(), 0
        while received < count:
            received += len(consumer.receive_many(BATCH, _WAIT))
            session.acknowledge()
        return time.perf_counter() - began


async def _receive_many_in_loop(connection: aio.Connection, queue: str, count: int) -> float:
    async with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = await session.create_consumer(session.create_queue(queue))
        began, received = time.perf_counter(), 0
        while received < count:
            received += len(await consumer.receive_many(BATCH, _WAIT))
            await session.acknowledge()
        return time.perf_counter() - began


def _one_send(connection: Connection, queue: str, count: int) -> float:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(queue))
        began = time.perf_counter()
        for _ in range(count):
            producer.send(_BODY)
        return time.perf_counter() - began


async def _one_send_in_loop(connection: aio.Connection, queue: str, count: int) -> float:
    async with connection.create_session() as session:
        producer = await session.create_producer(session.create_queue(queue))
        began = time.perf_counter()
        for _ in range(count):
            await producer.send(_BODY)
        return time.perf_counter() - began


#: What is measured: with threads, and in a loop.
_WORKS: dict[str, tuple[_Plain, _InLoop]] = {
    "send": (_send, _send_in_loop),
    "receive, AUTO": (_receive, _receive_in_loop),
    f"receive_many({BATCH}), CLIENT": (_receive_many, _receive_many_in_loop),
    "one send": (_one_send, _one_send_in_loop),
}
