"""Workers that share a queue with the default prefetch, at the pace of a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from uuid import uuid4

import pytest

from holdfast import aio
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    JMSException,
    MessageConsumer,
    OperationTimedOutException,
    Session,
)
from sdk.receiving.prefetch import Prefetch
from sdk.receiving.window import Window
from tests.contracts.transports import eventually
from tests.server_process import ServerProcess

WAIT = 120.0
#: What a task takes, by the test's clock: half a second has four of them.
TASK_SECONDS = 0.125


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    refill = Window.refill
    monkeypatch.setattr(Window, "refill", lambda window, used, _now: refill(window, used, clock.now))
    monkeypatch.setattr(Window, "waited", lambda window, seconds: None)
    return clock


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.fixture(params=["embedded", "amqp"])
def url(request: pytest.FixtureRequest) -> str:
    return f"embedded:?memory={uuid4()}" if request.param == "embedded" else request.getfixturevalue("server").url


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Connection]]:
    with contextlib.ExitStack() as connections:

        def connect() -> Connection:
            connection = connections.enter_context(ConnectionFactory(url).create_connection())
            connection.start()
            return connection

        yield connect


@pytest.fixture
def name() -> str:
    return f"tasks {uuid4()}"


def filled(session: Session, count: int, name: str) -> None:
    session.create_producer(session.create_queue(name)).send_all([str(number) for number in range(count)])


def worker_of(connection: Connection, name: str, prefetch: int | None = None) -> MessageConsumer:
    session = connection.create_session()
    return session.create_consumer(session.create_queue(name), prefetch=prefetch)


def test_four_workers_share_a_backlog_within_one_message_of_fair(
    connect: Callable[..., Connection], name: str, clock: Clock
) -> None:
    observer = connect()
    filled(observer.create_session(), 100, name)
    workers = [worker_of(connect(), name) for _ in range(4)]

    def has_come() -> bool:
        """Whether each worker has what it asked for, or nothing is left for it: the network takes none of the time."""
        (queue,) = [each for each in observer.statistics().queues if each.name == name]
        return queue.messages == queue.in_hand or not any(each._prefetch.has_credit for each in workers)

    done = [0] * 4
    at_work = set(range(4))
    while at_work:
        for number in sorted(at_work):
            if workers[number].receive_nowait() is None:
                at_work.remove(number)
            else:
                done[number] += 1
            eventually(has_come)
        clock.now += TASK_SECONDS
    assert sum(done) == 100
    assert max(done) <= 26
    assert min(done) >= 24


@pytest.mark.parametrize(("prefetch", "gets_work"), [(None, True), (500, False)])
def test_workers_that_join_get_work_at_once(
    connect: Callable[..., Connection], name: str, clock: Clock, prefetch: int | None, gets_work: bool
) -> None:
    filled(connect().create_session(), 60, name)
    first = worker_of(connect(), name, prefetch)
    for _ in range(30):
        assert first.receive(WAIT) is not None
        clock.now += TASK_SECONDS
    for _ in range(3):
        assert (worker_of(connect(), name, prefetch).receive_nowait() is not None) is gets_work


def test_a_message_that_has_come_and_waits_for_its_thread_is_work(
    connect: Callable[..., Connection], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a session with two listeners of which the other one is slow."""
    clock = Clock()
    monkeypatch.setattr("sdk.receiving.prefetch.time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock.now))
    session = connect().create_session()
    consumer = session.create_consumer(session.create_queue(name))
    for _ in range(12):
        assert consumer.receive_nowait() is None
        filled(session, 1, name)
        eventually(lambda: consumer._prefetch.buffer)
        clock.now += 5.0
        assert consumer.receive(WAIT) is not None
    assert consumer._prefetch.size == 1


def test_workers_that_join_get_their_part_of_twelve_groups_in_order(
    connect: Callable[..., Connection], name: str, clock: Clock
) -> None:
    with connect().create_session() as session:
        messages = [session.create_text_message(str(number)) for number in range(240)]
        for number, message in enumerate(messages):
            message.group_id = str(number % 12)
        session.create_producer(session.create_queue(name)).send_all(messages)
    workers = [worker_of(connect(), name)]
    done: list[tuple[int, str]] = []
    while len(done) < 240:
        for number, worker in enumerate(workers):
            message = worker.receive_nowait()
            if message is not None:
                done.append((number, str(message)))
        clock.now += TASK_SECONDS
        if len(done) == 36:
            workers += [worker_of(connect(), name) for _ in range(3)]
    for group in range(12):
        assert [int(body) for _, body in done if int(body) % 12 == group] == list(range(group, 240, 12))
    groups = [{int(body) % 12 for number, body in done[36:] if number == worker} for worker in range(4)]
    assert min(map(len, groups)) >= 2, groups


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_a_window_of_one_message_starves_no_mode(
    connect: Callable[..., Connection], name: str, clock: Clock, mode: AcknowledgeMode
) -> None:
    with connect().create_session(mode) as session:
        filled(session, 250, name)
        if mode is AcknowledgeMode.TRANSACTED:
            session.commit()
        consumer = session.create_consumer(session.create_queue(name))
        for number in range(250):
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            assert consumer._prefetch.size == 1
            clock.now += 1.0
        assert consumer.receive_nowait() is None


def test_a_call_asks_for_what_it_takes(connect: Callable[..., Connection], name: str, clock: Clock) -> None:
    connection = connect()
    filled(connection.create_session(), 250, name)
    consumer = worker_of(connection, name)
    assert len(consumer.receive_many(100, WAIT)) == 100
    assert len(consumer.receive_many(100, WAIT)) == 100
    clock.now += 60.0
    assert len(consumer.receive_many(100, 0)) == 50
    assert consumer.receive_many(100, 0) == []
    clock.now += 60.0
    filled(connection.create_session(), 3, name)
    assert consumer.receive(WAIT) is not None
    assert consumer._prefetch.size == 1
    other = worker_of(connection, name)
    assert other.receive_nowait() is not None, "what one call asked for, and is not there, is not asked for any more"


def test_a_call_of_a_task_asks_for_what_it_takes(url: str, name: str, clock: Clock) -> None:
    async def take() -> list[int]:
        async with aio.connect(url) as connection:
            session = connection.create_session()
            queue = session.create_queue(name)
            producer = await session.create_producer(queue)
            await producer.send_all([str(number) for number in range(250)])
            consumer = await session.create_consumer(queue)
            return [len(await consumer.receive_many(100, timeout)) for timeout in (WAIT, WAIT, 0, 0)]

    assert asyncio.run(take()) == [100, 100, 50, 0]


@pytest.mark.parametrize("is_task", [False, True], ids=["thread", "task"])
def test_what_is_rejected_here_does_not_hide_what_is_behind_it(
    connect: Callable[..., Connection], url: str, name: str, clock: Clock, is_task: bool
) -> None:
    with connect().create_session(AcknowledgeMode.CLIENT) as session:
        filled(session, 5, name)
        failing = session.create_consumer(session.create_queue(name))
        assert len([failing.receive(WAIT) for _ in range(4)]) == 4
        session.recover()
    rejecting = f"{url}{'&' if '?' in url else '?'}max_redeliveries=0"

    async def take() -> str:
        async with aio.connect(rejecting) as connection:
            session = connection.create_session()
            message = await (await session.create_consumer(session.create_queue(name))).receive(0)
            return str(message)

    if is_task:
        assert asyncio.run(take()) == "4"
    else:
        with ConnectionFactory(rejecting).create_connection() as connection:
            connection.start()
            assert str(worker_of(connection, name).receive(0)) == "4"


@pytest.mark.parametrize("prefetch", [0, None, 5])
@pytest.mark.parametrize("is_task", [False, True], ids=["thread", "task"])
def test_a_receive_whose_drain_was_answered_too_late_takes_nothing_from_the_next_one(
    connect: Callable[..., Connection],
    url: str,
    name: str,
    prefetch: int | None,
    is_task: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drain = Prefetch._end_flow

    def drain_late(self: Prefetch, seconds: float) -> bool:
        with contextlib.suppress(JMSException):
            drain(self, WAIT)
        self.undrained = True
        self._granted += 1  # as if the answer, which took the credit away, were still on its way
        raise OperationTimedOutException("no answer in time")

    async def take() -> str:
        async with aio.connect(url) as connection, connection.create_session() as session:
            consumer = await session.create_consumer(session.create_queue(name), prefetch=prefetch)
            with monkeypatch.context() as patched:
                patched.setattr(Prefetch, "_end_flow", drain_late)
                assert await consumer.receive(0.1) is None
            await (await session.create_producer(session.create_queue(name))).send("x")
            return str(await consumer.receive(WAIT))

    began = time.monotonic()
    if is_task:
        assert asyncio.run(take()) == "x"
    else:
        session = connect().create_session()
        consumer = session.create_consumer(session.create_queue(name), prefetch=prefetch)
        with monkeypatch.context() as patched:
            patched.setattr(Prefetch, "_end_flow", drain_late)
            assert consumer.receive(0.1) is None
        session.create_producer(session.create_queue(name)).send("x")
        assert str(consumer.receive(WAIT)) == "x"
    assert time.monotonic() - began < WAIT / 2
