"""Tasks of an event loop work with sessions, embedded and over AMQP; in none of this the loop's thread waits."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    QueryListener,
    RegionEvent,
    RegionListener,
    ResourceAllocationException,
    aio,
)
from sdk.aio.loop_bridge import Worker
from sdk.aio.producer import _answered
from sdk.aio.turns import Turns
from tests.sdk.aio.conftest import WAIT, Run


async def fill(url: str, name: str) -> None:
    """Send as much to a queue as it takes."""
    async with aio.connect(url) as connection, connection.create_session() as session:
        await (await session.create_producer(session.create_queue(name))).send_all(["x"] * 200)


def test_a_message_is_sent_and_received(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                await producer.send("hello", priority=7)
                message = await consumer.receive(timeout=WAIT)
                assert message is not None
                assert (message.body, message.priority) == ("hello", 7)
                assert await consumer.receive(timeout=0.01) is None
                assert await consumer.receive_nowait() is None

    run(main)


def test_sends_of_many_tasks_are_under_way_together_and_each_arrives_once(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            async with asyncio.TaskGroup() as group:
                for number in range(150):
                    group.create_task(producer.send(str(number)))
            assert [message.body for message in [await consumer.receive(WAIT) for _ in range(150)] if message] == [
                *map(str, range(150))
            ]

    run(main)


def test_more_sends_than_the_window_has_places_wait_in_the_loop(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with (
            aio.connect(f"{url}{'&' if '?' in url else '?'}send_window_messages=3") as connection,
            connection.create_session() as session,
            session.create_producer(session.create_queue(name)) as producer,
        ):
            sends = [asyncio.create_task(producer.send(str(number))) for number in range(30)]
            for each in sends[::4]:
                each.cancel()
            await asyncio.wait(sends)
            await producer.send("last")
            async with session.create_browser(session.create_queue(name)) as browser:
                found = [message.body async for message in browser]
        kept = [str(number) for number in range(30) if number % 4]
        assert [body for body in found if body in kept] == kept
        assert found[-1] == "last"

    run(main)


def test_a_receive_that_waits_holds_up_no_other_call_of_its_session(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
                await asyncio.sleep(0)
                for number in range(3):
                    await producer.send(str(number))
                    await (await session.create_consumer(session.create_queue(f"{name} other"))).close()
                assert [message.body for message in await asyncio.gather(*waiting) if message] == ["0", "1", "2"]
                await session.recover()
                assert [message.body for message in await consumer.receive_many(3, WAIT)][:1] == ["0"]

    run(main)


def test_a_full_queue_holds_up_its_senders_alone(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            consumer = await session.create_consumer(queue, prefetch=1)
            async with session.create_producer(queue) as producer:
                await producer.send_all([*map(str, range(200))])
                sends = [asyncio.create_task(producer.send(str(number))) for number in range(200, 230)]
                async with session.create_producer(session.create_queue(f"{name} other")) as other:
                    await other.send("goes on")
                assert not any(each.done() for each in sends)
                bodies = [message.body for message in [await consumer.receive(WAIT) for _ in range(230)] if message]
                assert bodies == [*map(str, range(230))]
                await asyncio.gather(*sends)

    run(main)


def test_a_send_to_a_full_queue_ends_with_its_time(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        await fill(url, name)
        async with (
            aio.connect(f"{url}{'&' if '?' in url else '?'}send_timeout_seconds=0.05") as connection,
            connection.create_session() as session,
            session.create_producer(session.create_queue(name)) as producer,
        ):
            answers = await asyncio.gather(*[producer.send("x") for _ in range(10)], return_exceptions=True)
            assert {type(each) for each in answers} <= {OperationTimedOutException, ResourceAllocationException}
            await connection.request("purge", {"destination": name})  # what is blocked has room

    run(main)


def test_a_backlog_leaves_the_loop_its_turns(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                await producer.send_all([*map(str, range(160))])
                turns = 0

                async def count() -> None:
                    nonlocal turns
                    while True:
                        turns += 1
                        await asyncio.sleep(0)

                counting = asyncio.create_task(count())
                for _ in range(160):
                    assert await consumer.receive(WAIT) is not None
                counting.cancel()
                assert turns >= 4

    run(main)


def test_what_a_time_out_interrupts_is_received_next(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await consumer.receive()
                receiving = asyncio.create_task(consumer.receive())
                await asyncio.sleep(0)
                await producer.send("hello")
                receiving.cancel()
                await asyncio.wait([receiving])
                message = await receiving if not receiving.cancelled() else await consumer.receive(WAIT)
                assert message is not None
                assert message.body == "hello"

    run(main)


def test_without_prefetch_a_cancelled_receive_leaves_the_message_to_others(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue, prefetch=0) as first:
                receiving = asyncio.create_task(first.receive())
                await asyncio.sleep(0.01)
                receiving.cancel()
                await asyncio.wait([receiving])
                await producer.send("hello")
                async with session.create_consumer(queue, prefetch=0) as second:
                    message = await second.receive(WAIT)
                    assert message is not None

    run(main)


def test_a_receive_that_begins_beside_another_call_looks_at_the_queue(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with (
            aio.connect(f"{url}{'&' if '?' in url else '?'}poll_timeout_seconds={WAIT}") as connection,
            connection.create_session() as session,
            connection.create_session() as sending,
        ):
            queue = session.create_queue(name)
            async with sending.create_producer(queue) as producer:
                await producer.send_all(["0", "1"])
            async with session.create_consumer(queue, prefetch=0) as consumer:
                for receive, expected in ((consumer.receive, "0"), (consumer.receive_nowait, "1")):
                    other = asyncio.create_task(session.create_temporary_queue())
                    await asyncio.sleep(0)
                    message = await receive()
                    assert message is not None
                    assert message.body == expected
                    await other
                other = asyncio.create_task(session.create_temporary_queue())
                await asyncio.sleep(0)
                assert await consumer.receive_nowait() is None
                await other

    run(main)


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_without_prefetch_a_task_asks_again_where_another_ends_with_nothing(
    run: Run, url: str, name: str, timeout: float
) -> None:
    async def main() -> None:
        async with (
            aio.connect(url) as connection,
            connection.create_session() as session,
            connection.create_session() as sending,
        ):
            queue = session.create_queue(name)
            async with (
                session.create_consumer(queue, prefetch=0) as consumer,
                sending.create_producer(queue) as producer,
            ):
                receiving = asyncio.create_task(consumer.receive())
                await asyncio.sleep(0)
                assert await consumer.receive(timeout) is None
                await producer.send("hello")
                message = await receiving
                assert message is not None

    run(main)


@pytest.mark.parametrize("ends", ["cancelled", "in time"])
def test_without_prefetch_a_consumer_that_no_task_reads_holds_no_message(
    run: Run, url: str, name: str, ends: str
) -> None:
    """Also where another consumer of the session is read, or another call is under way at the end of the time."""

    async def main() -> None:
        async with (
            aio.connect(url) as connection,
            connection.create_session() as session,
            connection.create_session() as apart,
        ):
            queue = session.create_queue(name)
            async with (
                session.create_consumer(session.create_queue(f"{name} other")) as other,
                session.create_consumer(queue, prefetch=0) as first,
                apart.create_consumer(queue, prefetch=0) as second,
                apart.create_producer(queue) as producer,
            ):
                beside = asyncio.create_task(other.receive())
                receiving = asyncio.create_task(first.receive(None if ends == "cancelled" else 0.01))
                await asyncio.sleep(0)
                assert first._sync._prefetch.has_credit
                go_on = threading.Event()
                under_way = session._worker.submit(lambda: go_on.wait(WAIT))
                if ends == "cancelled":
                    receiving.cancel()
                await asyncio.wait([receiving])
                go_on.set()
                await under_way
                await producer.send("hello")
                message = await second.receive(WAIT / 2)
                assert message is not None
                beside.cancel()

    run(main)


def test_a_message_wakes_one_of_the_tasks_that_wait(
    run: Run, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    wait = Turns.wait

    async def counted(self: Turns, is_so: Callable[[], bool], deadline: float | None) -> bool:
        nonlocal waits
        waits += 1
        return await wait(self, is_so, deadline)

    monkeypatch.setattr(Turns, "wait", counted)

    async def main() -> None:
        async with (
            aio.connect(url) as connection,
            connection.create_session() as session,
            connection.create_session() as sending,
        ):
            queue = session.create_queue(name)
            async with session.create_consumer(queue) as consumer, sending.create_producer(queue) as producer:
                tasks = {asyncio.create_task(consumer.receive()) for _ in range(100)}
                await asyncio.sleep(0)
                for _ in range(20):
                    await producer.send("one")
                    _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                assert len(tasks) == 80
                await producer.send_all(["one of many"] * 80)
                assert None not in await asyncio.gather(*tasks)
                assert waits < 200

    run(main)


def test_a_task_that_is_cancelled_as_it_is_woken_wakes_the_next(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with (
            aio.connect(url) as connection,
            connection.create_session() as session,
            connection.create_session() as sending,
        ):
            queue = session.create_queue(name)
            async with session.create_consumer(queue) as consumer, sending.create_producer(queue) as producer:
                first, second = [asyncio.create_task(consumer.receive()) for _ in range(2)]
                await asyncio.sleep(0)
                sent = sending._worker.submit(lambda: producer._sync.send("hello"))
                while not consumer._sync._prefetch.buffer:
                    time.sleep(0.001)  # noqa: ASYNC251  # the loop is to see it with the cancellation
                session._turns.check()
                first.cancel()
                message = await second
                assert message is not None
                assert first.cancelled()
                await sent

    run(main)


def test_a_receive_that_waits_ends_with_its_consumer_session_or_connection(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection:
            for what in ("consumer", "session", "connection"):
                session = connection.create_session()
                consumer = await session.create_consumer(session.create_queue(name))
                receiving = [asyncio.create_task(consumer.receive()) for _ in range(2)]
                many = asyncio.create_task(consumer.receive_many(5, WAIT))
                await asyncio.sleep(0.01)
                await {"consumer": consumer, "session": session, "connection": connection}[what].close()
                assert await asyncio.gather(*receiving, many) == [None, None, []]
                with pytest.raises(IllegalStateException):
                    await consumer.receive(0.01)
                await consumer.close()
                await session.close()
            with pytest.raises(IllegalStateException):
                connection.create_session()
            with pytest.raises(IllegalStateException):
                connection.events()

    run(main)


def test_a_session_is_closed_though_its_close_is_cancelled(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection:
            session = connection.create_session(AcknowledgeMode.CLIENT)
            queue = session.create_queue(name)
            producer, consumer = await session.create_producer(queue), await session.create_consumer(queue)
            await producer.send("hello")
            assert await consumer.receive(WAIT) is not None
            closing = asyncio.create_task(session.close())
            await asyncio.sleep(0)
            closing.cancel()
            async with connection.create_session() as other, other.create_consumer(queue) as second:
                message = await second.receive(WAIT)
                assert message is not None
                assert message.delivery_count == 2

    run(main)


def test_a_transaction_is_committed_or_rolled_back(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session(AcknowledgeMode.TRANSACTED) as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                await producer.send("dropped")
                await session.rollback()
                await producer.send("kept")
                await session.commit()
                message = await consumer.receive(WAIT)
                assert message is not None
                assert message.body == "kept"
                await session.commit()
                with pytest.raises(IllegalStateException, match="use rollback"):
                    await session.recover()

    run(main)


def test_messages_that_need_no_answer_are_handed_over(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                producer.delivery_mode = DeliveryMode.NON_PERSISTENT
                for number in range(20):
                    await producer.send(str(number))
                assert [message.body for message in [await consumer.receive(WAIT) for _ in range(20)] if message] == [
                    *map(str, range(20))
                ]

    run(main)


def test_mistakes_are_those_of_the_other_face(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                with pytest.raises(MessageFormatException):
                    await producer.send(object())  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="on_completion is for"):
                    await producer.send("x", on_completion=print)
                with pytest.raises(ValueError, match="not a number of seconds"):
                    await consumer.receive(-1)
                with pytest.raises(ValueError, match="a whole number from 1 on"):
                    await consumer.receive_many(0)
                with pytest.raises(InvalidDestinationException):
                    await session.delete_temporary(queue)
                with pytest.raises(AttributeError):
                    producer.priorities = 3  # type: ignore[attr-defined]
                for _ in range(5):  # no place of the window is lost
                    await producer.send("x")

    run(main)


def test_browsers_subscriptions_and_temporary_destinations_work(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url, client_id=name) as connection, connection.create_session() as session:
            topic, queue = session.create_topic(name), session.create_queue(name)
            durable = await session.create_durable_consumer(topic, "durable")
            shared = await session.create_shared_consumer(topic, "shared")
            async with session.create_producer() as producer:
                await producer.send_all([*map(str, range(120))], queue)
                await producer.send("news", topic)
                for consumer in (durable, shared):
                    message = await consumer.receive(WAIT)
                    assert message is not None
                    assert message.body == "news"
                async with session.create_browser(queue) as browser:
                    assert [message.body async for message in browser] == [*map(str, range(120))]
                    async for _ in browser:
                        break
                replies = await session.create_temporary_queue()
                await producer.send("reply", replies)
                async with session.create_consumer(replies) as own:
                    assert await own.receive(WAIT) is not None
                await session.delete_temporary(replies)
            await durable.close()
            await session.unsubscribe("durable")
            assert any(each.name == name for each in (await connection.statistics()).queues)

    run(main)


def test_a_temporary_queue_whose_task_is_cancelled_is_deleted(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Worker._finished

    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            own = await session.create_temporary_queue()

            async def others() -> list[str]:
                kinds = [each.name for each in (await connection.statistics()).queues]
                assert own.name in kinds
                return [each for each in kinds if each != own.name]

            before = await others()

            def and_cancelled(self: Worker, *arguments: Any) -> None:
                finished(self, *arguments)
                making.cancel()

            monkeypatch.setattr(Worker, "_finished", and_cancelled)
            making = asyncio.create_task(session.create_temporary_queue())
            await asyncio.wait([making])
            assert making.cancelled()
            await session.delete_temporary(await session.create_temporary_queue())  # behind what undoes the other
            assert await others() == before

    run(main)


def test_the_answer_to_a_send_whose_task_is_cancelled_is_no_error_of_the_loop(
    run: Run, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def refused(self: aio.MessageProducer, on_sent: Any, *_: Any) -> bool:
        self._turns.inbox.put(began.set)
        go_on.wait(WAIT)
        self._turns.inbox.put(_answered, *on_sent.args, JMSException("refused"))
        return True

    began: asyncio.Event

    async def main() -> None:
        nonlocal began
        began = asyncio.Event()
        async with aio.connect(url) as connection, connection.create_session() as session:
            async with session.create_producer(session.create_queue(name)) as producer:
                monkeypatch.setattr(aio.MessageProducer, "_hand_over", refused)
                other = asyncio.create_task(session.create_temporary_queue())
                await asyncio.sleep(0)
                sending = asyncio.create_task(producer.send("x"))
                await began.wait()
                sending.cancel()
                await asyncio.wait([sending])
                go_on.set()
                await other
            assert sending.cancelled()
            del sending
            gc.collect()

    run(main)


def test_requests_of_many_tasks_are_under_way_together(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session(AcknowledgeMode.CLIENT) as session:
            queue = session.create_queue(name)

            async def answer(server: aio.Session, consumer: aio.MessageConsumer) -> None:
                held: list[Any] = []
                async for request in consumer:  # in the other order
                    held.append(request)
                    if len(held) == 10:
                        while held:
                            await aio.reply(server, held[-1], f"re {held.pop().body}")

            async with (
                connection.create_session() as server,
                server.create_consumer(queue) as consumer,
                aio.Requestor(session, queue) as requestor,
            ):
                answering = asyncio.create_task(answer(server, consumer))
                replies = await asyncio.gather(*[requestor.request(str(number), WAIT) for number in range(10)])
                assert [reply.body for reply in replies] == [f"re {number}" for number in range(10)]
                with pytest.raises(OperationTimedOutException, match="no reply to"):
                    await requestor.request("alone", 0.05)
                waiting = asyncio.create_task(requestor.request("for ever"))
                await asyncio.sleep(0.05)
                await requestor.close()
                with pytest.raises(IllegalStateException, match="closed while it waited"):
                    await waiting
                with pytest.raises(IllegalStateException, match="the requestor is closed"):
                    await requestor.request("late")
                answering.cancel()

    run(main)


def test_a_reply_may_come_before_the_answer_to_its_request(
    run: Run, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            send = aio.MessageProducer.send

            async def late(self: aio.MessageProducer, *arguments: Any, **options: Any) -> None:
                await send(self, *arguments, **options)
                if self.destination == queue:
                    await answered.wait()

            answered = asyncio.Event()
            monkeypatch.setattr(aio.MessageProducer, "send", late)
            async with session.create_consumer(queue) as consumer, aio.Requestor(session, queue) as requestor:
                requests = [asyncio.create_task(requestor.request(str(number), WAIT)) for number in range(3)]
                for _ in range(3):
                    request = await consumer.receive(WAIT)
                    assert request is not None
                    await aio.reply(session, request, f"re {request.body}")
                while len(requestor._early) < 3:  # noqa: ASYNC110  # the test looks on
                    await asyncio.sleep(0.001)
                answered.set()
                replies = await asyncio.gather(*requests)
                assert [reply.body for reply in replies] == ["re 0", "re 1", "re 2"]
                assert requestor._early == {}

    run(main)


def test_a_request_ends_where_the_replies_end_while_it_is_sent(
    run: Run, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            send = aio.MessageProducer.send
            sent, ended = asyncio.Event(), asyncio.Event()

            async def late(self: aio.MessageProducer, *arguments: Any, **options: Any) -> None:
                await send(self, *arguments, **options)
                sent.set()
                await ended.wait()

            monkeypatch.setattr(aio.MessageProducer, "send", late)
            async with aio.Requestor(session, session.create_queue(name)) as requestor:
                requesting = asyncio.create_task(requestor.request("x"))
                await sent.wait()
                assert requestor._consumer is not None
                assert requestor._replies is not None
                await requestor._consumer.close()
                await asyncio.wait([requestor._replies])
                ended.set()
                with pytest.raises(IllegalStateException, match="closed while it waited"):
                    await requesting

    run(main)


def test_a_request_that_cannot_be_sent_says_so(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        await fill(url, name)
        async with (
            aio.connect(f"{url}{'&' if '?' in url else '?'}send_timeout_seconds=0.05") as connection,
            connection.create_session() as session,
            aio.Requestor(session, session.create_queue(name)) as requestor,
        ):
            with pytest.raises((OperationTimedOutException, ResourceAllocationException), match=r"send|full"):
                await requestor.request("x")
            await connection.request("purge", {"destination": name})  # what is blocked has room

    run(main)


def test_the_listeners_of_regions_are_called_in_the_loop(run: Run, url: str, name: str) -> None:
    told: list[tuple[str, Any, bool]] = []
    own = threading.get_ident()

    class Listener(RegionListener, QueryListener):
        def __init__(self, enough: asyncio.Event) -> None:
            self._enough = enough

        def after_create(self, event: RegionEvent) -> None:
            told.append((event.key, event.value, threading.get_ident() == own))
            if len(told) == 2:
                self._enough.set()

        def on_event(self, event: RegionEvent) -> None:
            told.append((f"query {event.key}", event.value, threading.get_ident() == own))
            if len(told) == 2:
                self._enough.set()

    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            region = await session.create_region(name)
            enough = asyncio.Event()
            listener = Listener(enough)
            await region.add_listener(listener)
            await region.register_interest("IBM")
            query = await region.create_query("high", "price > 90")
            await query.add_listener(listener)
            await query.execute()
            await region.put("IBM", {"price": 92.5})
            await enough.wait()
            assert sorted(told) == [("IBM", {"price": 92.5}, True), ("query IBM", {"price": 92.5}, True)]
            assert await region.get("IBM") == {"price": 92.5}
            assert await region.keys() == ["IBM"]
            assert len(await region.interests()) == 1
            assert [each.name for each in await region.queries()] == ["high"]
            await region.remove_listener(listener)
            await region.remove_listener(listener)
            await query.close()
            with pytest.raises(TypeError, match="not a RegionListener"):
                await region.add_listener(print)  # type: ignore[arg-type]

    run(main)


def test_changes_of_regions_belong_to_the_transaction_of_their_session(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session(AcknowledgeMode.TRANSACTED) as session:
            region = await session.create_region(name)
            async with connection.create_session() as other:
                seen = await other.create_region(name)
                assert await region.put("a", "1") == 0
                await region.put_all({"b": "1", "c": "1"})
                assert [await region.destroy("a"), await region.destroy("none")] == [True, False]
                assert (await region.get_all(), await region.keys()) == ({"b": "1", "c": "1"}, ["b", "c"])
                assert (await region.get("b"), await region.get("a")) == ("1", None)
                assert await seen.keys() == []
                await session.rollback()
                assert await region.keys() == []
                await region.put("a", "2")
                await session.commit()
                assert await region.get_all() == await seen.get_all() == {"a": "2"}

    run(main)


def test_a_durable_client_finds_what_came_while_it_was_away(run: Run, url: str, name: str) -> None:
    told: list[Any] = []
    live: asyncio.Event

    class Listener(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            told.append((event.key, event.replayed))

        def after_region_live(self, region: str) -> None:
            told.append(region)
            live.set()

    async def main() -> None:
        nonlocal live
        for number in range(2):
            live = asyncio.Event()
            async with aio.connect(url, client_id=name) as connection, connection.create_session() as session:
                assert await connection.pending_event_count() == (1 if number else -2)
                region = await session.create_region(name)
                await region.add_listener(Listener())
                await region.register_interest("a", durable=True)
                await connection.ready_for_events()
                await live.wait()
                await connection.close(keep_alive=True)
            if not number:
                told.clear()
                async with aio.connect(url) as other, other.create_session() as session:
                    await (await session.create_region(name)).put("a", "1")
        assert told == [("a", True), name]

    run(main)


def test_events_tell_what_no_call_raises_and_end_with_the_connection(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            consumer = await session.create_consumer(queue)
            events, others = connection.events(), connection.events()
            await connection.request("delete", {"destination": name, "force": True})
            first = await anext(events)
            assert isinstance(first, JMSException) or first is not None
            waiting = asyncio.create_task(anext(others))
            await waiting
            with pytest.raises(JMSException):
                await consumer.receive(WAIT)
        rest = [event async for event in events]
        assert len(rest) < 10
        with pytest.raises(IllegalStateException):
            connection.events()

    run(main)


def test_events_are_for_one_task_at_a_time_and_a_cancelled_one_loses_none(run: Run, url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection:
            events = connection.events()
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            with pytest.raises(IllegalStateException, match="one task at a time"):
                await anext(events)
            waiting.cancel()
            await asyncio.wait([waiting])
            events._put(JMSException("told"))
            assert str(await anext(events)) == "told"

    run(main)


def test_two_loops_in_two_threads_have_connections_of_their_own(url: str, name: str) -> None:
    received: list[Any] = []

    def work(own: str) -> None:
        async def main() -> None:
            async with aio.connect(url) as connection, connection.create_session() as session:
                queue = session.create_queue(f"{name} {own}")
                async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                    for number in range(50):
                        await asyncio.gather(*[producer.send(f"{own} {number}") for _ in range(2)])
                        received.extend(await consumer.receive_many(2, WAIT))

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(own,)) for own in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert len(received) >= 100


def test_a_connection_is_for_its_loop(url: str, name: str) -> None:
    async def make() -> tuple[aio.Connection, aio.MessageProducer]:
        connection = await aio.connect(url)
        session = connection.create_session()
        return connection, await session.create_producer(session.create_queue(name))

    connection, producer = asyncio.run(make())

    async def use() -> None:
        with pytest.raises(IllegalStateException, match="another event loop"):
            await producer.send("x")
        with pytest.raises(IllegalStateException, match="another event loop"):
            connection.create_session()

    asyncio.run(use())
    connection._sync.close()


def test_a_program_that_cannot_connect_is_told(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(JMSException):
            await aio.connect("amqp://127.0.0.1:1?connect_timeout_seconds=1")

    run(main)


def test_what_is_dropped_without_being_closed_is_closed(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer:
                await producer.send("hello")

            async def drop() -> None:
                other = connection.create_session(AcknowledgeMode.CLIENT)
                consumer = await other.create_consumer(queue)
                assert await consumer.receive(WAIT) is not None

            await drop()
            gc.collect()
            async with session.create_consumer(queue) as consumer:
                message = await consumer.receive(WAIT)
                assert message is not None
                assert message.delivery_count == 2

    run(main)


def test_the_connection_can_be_stopped_and_started(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as connection, connection.create_session() as session:
            queue = session.create_queue(name)
            async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                await connection.stop()
                await producer.send("hello")
                assert await consumer.receive(0.05) is None
                assert await consumer.receive_nowait() is None
                receiving = asyncio.create_task(consumer.receive())
                await connection.start()
                message = await receiving
                assert message is not None

    run(main)


def test_confirmed_acknowledgements_wait_for_the_broker_and_not_the_loop(run: Run, url: str, name: str) -> None:
    async def main() -> None:
        query = f"{url}{'&' if '?' in url else '?'}synchronous_acknowledge=true"
        for mode in (AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT):
            async with aio.connect(query) as connection, connection.create_session(mode) as session:
                queue = session.create_queue(name)
                async with session.create_producer(queue) as producer, session.create_consumer(queue) as consumer:
                    await producer.send_all(["0", "1", "2"])
                    for number in range(3):
                        message = await consumer.receive(WAIT)
                        assert message is not None
                        assert message.body == str(number)
                        await message.acknowledge()
        async with (
            aio.connect(url) as connection,
            connection.create_session() as session,
            session.create_browser(session.create_queue(name)) as browser,
        ):
            assert [message async for message in browser] == []

    run(main)


def test_the_loops_of_the_sdk_are_those_of_asyncio_whatever_the_application_has_set(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``uvloop.install()`` does."""

    def refuse() -> asyncio.AbstractEventLoop:
        raise AssertionError("the loop of the application")

    monkeypatch.setattr(asyncio.get_event_loop_policy(), "new_event_loop", refuse)
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue(name)).send("hello")
