"""The face for asyncio over a network that fails: the contract of failover holds, and the loop's thread never waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    Failed,
    Interrupted,
    JMSException,
    OperationTimedOutException,
    Restored,
    StaleAcknowledgementException,
    TransactionRolledBackException,
    aio,
)
from tests.aio_face import Faces
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import Seen, check, play
from tests.faults.test_sweep import COUNT, MODES, check_record
from tests.sdk.aio.conftest import Run, run, waits  # noqa: F401  # fixtures
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash
WAIT = 60.0
OPTIONS = "reconnect_delay_seconds=0.01&close_timeout_seconds=2&stable_seconds=0"


@pytest.fixture
def url(proxy: Proxy) -> str:
    return f"{proxy.url}?{OPTIONS}"


@pytest.fixture
def faces() -> Iterator[Faces]:
    made = Faces()
    yield made
    made.close()


@pytest.fixture(scope="module")
def record(server: ServerProcess) -> Iterator[Connection]:
    """A connection around the proxy, to ask the engine what it has."""
    with ConnectionFactory(server.url).create_connection() as connection:
        yield connection


async def until(events: aio.Events, kind: type) -> None:
    async for event in events:
        if isinstance(event, kind):
            return
    raise AssertionError(f"the connection ended without {kind}")


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
@pytest.mark.parametrize("mode", MODES, ids=lambda each: each.name)
def test_the_contract_holds_wherever_the_connection_is_cut(
    mode: AcknowledgeMode, direction: Direction, proxy: Proxy, record: Connection, faces: Faces
) -> None:
    """As the sweep of the other face, at every fifth frame."""
    name = f"aio {mode.name} {direction.name}"

    def played(queue: str) -> Seen:
        return play(mode, proxy.url, queue, COUNT, faces=faces)

    check(mode, played(name), COUNT, cuts=0)
    for after in range(0, proxy.frames[direction], 5):
        cuts = proxy.cuts
        queue = f"{name} {after}"
        proxy.plan(Cut(direction, frames=after, into_next=5 if after % 2 else 0))
        seen = played(queue)
        proxy.plan(None)
        try:
            check(mode, seen, COUNT, proxy.cuts - cuts)
            check_record(record, queue, mode)
        except AssertionError as error:
            raise AssertionError(f"cut after {after} frames {direction.value}: {seen}") from error


def test_calls_wait_for_the_network_and_the_loop_does_not(run: Run, url: str, proxy: Proxy, name: str) -> None:  # noqa: F811
    async def main() -> None:
        async with aio.connect(url) as connection:
            events = connection.events()
            session, transacted = connection.create_session(), connection.create_session(AcknowledgeMode.TRANSACTED)
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            await producer.send("first")
            message = await consumer.receive(WAIT)
            assert message is not None
            proxy.refuse(True)
            proxy.cut()
            await until(events, Interrupted)
            calls = [
                asyncio.create_task(each)
                for each in (
                    *[producer.send(f"{number}") for number in range(50)],
                    transacted.create_temporary_queue(),
                    connection.statistics(),
                )
            ]
            receiving = asyncio.create_task(consumer.receive())
            assert await consumer.receive(0.05) is None
            assert await consumer.receive_nowait() is None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await consumer.receive()
            cancelled = asyncio.create_task(producer.send("cancelled"))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            assert not any(each.done() for each in calls)
            proxy.refuse(False)
            await until(events, Restored)
            await asyncio.gather(*calls)
            found = [await receiving, *[await consumer.receive(WAIT) for _ in range(49)]]
            assert [message.body for message in found if message] == [*map(str, range(50))]

    run(main)


def test_work_that_a_loss_makes_stale_is_told_once(run: Run, url: str, proxy: Proxy, name: str) -> None:  # noqa: F811
    async def main() -> None:
        async with aio.connect(url) as connection:
            events = connection.events()
            client = connection.create_session(AcknowledgeMode.CLIENT)
            transacted = connection.create_session(AcknowledgeMode.TRANSACTED)
            queue, other = client.create_queue(name), client.create_queue(f"{name} other")
            async with connection.create_session() as session, session.create_producer() as producer:
                await producer.send_all(["0", "1"], queue)
                await producer.send("2", other)
            consumer, second = await client.create_consumer(queue), await transacted.create_consumer(other)
            message = await consumer.receive(WAIT)
            assert message is not None
            assert await second.receive(WAIT) is not None
            proxy.cut()
            await until(events, Restored)
            with pytest.raises(StaleAcknowledgementException):
                await message.acknowledge()
            with pytest.raises(TransactionRolledBackException):
                await transacted.commit()
            for receiver, body in ((consumer, "0"), (consumer, "1"), (second, "2")):
                again = await receiver.receive(WAIT)
                assert again is not None
                assert again.body == body
            await client.acknowledge()
            await transacted.commit()

    run(main)


@pytest.mark.parametrize("what", ["session", "connection"])
def test_a_close_ends_what_waits_for_the_network(
    run: Run,  # noqa: F811
    url: str,
    proxy: Proxy,
    name: str,
    what: str,
) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection:
            events = connection.events()
            session = connection.create_session()
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            proxy.refuse(True)
            proxy.cut()
            await until(events, Interrupted)
            sends = [asyncio.create_task(producer.send("x")) for _ in range(5)]
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.05)
            began = time.monotonic()
            await {"session": session, "connection": connection}[what].close()
            assert time.monotonic() - began < WAIT
            ended = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(each, JMSException) for each in ended), ended
            assert await receiving is None
        proxy.refuse(False)

    run(main)


def test_a_send_during_an_outage_ends_with_its_time(run: Run, url: str, proxy: Proxy, name: str) -> None:  # noqa: F811
    async def main() -> None:
        async with aio.connect(f"{url}&send_timeout_seconds=0.1") as connection:
            events = connection.events()
            session = connection.create_session()
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            proxy.refuse(True)
            proxy.cut()
            await until(events, Interrupted)
            with pytest.raises(OperationTimedOutException):
                await producer.send("x")
            proxy.refuse(False)
            await until(events, Restored)
            async with aio.connect(url) as other, other.create_session() as sending:
                await (await sending.create_producer(queue)).send("y")
            message = await consumer.receive(WAIT)
            assert message is not None
            assert message.body == "y"

    run(main)


def test_an_unanswered_send_ends_with_its_time(run: Run, url: str, proxy: Proxy, name: str) -> None:  # noqa: F811
    async def main() -> None:
        async with aio.connect(f"{url}&send_timeout_seconds=0.2&idle_timeout_seconds=60") as connection:
            session = connection.create_session()
            producer = await session.create_producer(session.create_queue(name))
            proxy.hold(Direction.TO_CLIENT)
            with pytest.raises(OperationTimedOutException, match="it may have been sent"):
                await producer.send("x")
            proxy.hold()

    run(main)


def test_without_failover_a_loss_is_the_end_of_all_that_waits(run: Run, url: str, proxy: Proxy, name: str) -> None:  # noqa: F811
    async def main() -> None:
        async with aio.connect(f"{url}&failover=nofailover") as connection:
            events = connection.events()
            session = connection.create_session()
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            proxy.cut()
            await until(events, Failed)
            with pytest.raises(JMSException):
                await receiving
            with pytest.raises(JMSException):
                await producer.send("x")

    run(main)
