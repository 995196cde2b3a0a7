"""What stands between threads and an event loop: without a broker, without sockets."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from broker_adapter import IllegalStateException, ResourceAllocationException
from sdk.aio import loop_bridge
from sdk.aio.loop_bridge import Inbox, LoopWaiters, Opening, Worker, apart, unowned
from tests.threads import no_new_threads

WAIT = 60.0
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run() -> Run:
    """Runs a coroutine function in a loop, for a minute at most."""

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(WAIT):
                await main()

        asyncio.run(limited())

    return run


def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


# What the loop is told.


def test_a_burst_wakes_the_loop_once_and_comes_in_order(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        inbox, seen = Inbox(), list[int]()
        wakes: list[Any] = []
        wake = inbox.loop.call_soon_threadsafe
        monkeypatch.setattr(inbox.loop, "call_soon_threadsafe", lambda call: (wakes.append(call), wake(call)))
        in_thread(lambda: [inbox.put(seen.append, number) for number in range(60)]).join(WAIT)  # the loop waits here
        assert (seen, len(wakes)) == ([], 1)
        await asyncio.sleep(0)
        assert seen == list(range(60))
        inbox.put(seen.append, 60)
        await asyncio.sleep(0)
        assert (seen[-1], len(wakes)) == (60, 2)

    run(main)


def test_one_turn_of_the_loop_takes_a_limited_part_of_what_has_come(run: Run) -> None:
    async def main() -> None:
        inbox, seen = Inbox(), list[int]()
        for number in range(loop_bridge._TURN_CALLS + 1):
            inbox.put(seen.append, number)
        await asyncio.sleep(0)
        assert len(seen) == loop_bridge._TURN_CALLS
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(seen) == loop_bridge._TURN_CALLS + 1

    run(main)


def test_what_comes_for_a_closed_loop_is_dropped_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bridge, "_CLOSED_LOOP_SECONDS", 0.01)

    async def main() -> Inbox:
        return Inbox()

    inbox = asyncio.run(main())
    inbox.put(print)
    inbox.put_and_wait(print)


def test_a_thread_that_waits_for_the_loop_is_not_ahead_of_it(run: Run) -> None:
    async def main() -> None:
        inbox, seen = Inbox(), list[int]()
        ahead: list[int] = []

        def tell() -> None:
            for number in range(20):
                inbox.put_and_wait(seen.append, number)
                ahead.append(number - len(seen))

        await asyncio.to_thread(tell)
        assert (seen, max(ahead)) == (list(range(20)), -1)

    run(main)


# Calls that may wait.


def test_jobs_are_done_one_after_the_other_in_one_thread(run: Run) -> None:
    async def main() -> None:
        worker = Worker("worker", Inbox())
        seen: list[tuple[int, str]] = []
        jobs = [worker.submit(lambda n=n: seen.append((n, threading.current_thread().name))) for n in range(50)]  # type: ignore[misc]
        assert worker.pending == 50
        await asyncio.gather(*jobs)
        assert seen == [(number, "worker") for number in range(50)]
        assert worker.pending == 0

    run(main)


def test_what_a_job_raises_is_raised_where_it_is_awaited(run: Run) -> None:
    async def main() -> None:
        worker = Worker("worker", Inbox())
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 // 0)
        assert await worker.run(lambda: 7) == 7

    run(main)


def test_a_job_that_is_cancelled_before_it_begins_is_not_done(run: Run) -> None:
    async def main() -> None:
        worker, go_on, done = Worker("worker", Inbox()), threading.Event(), list[int]()
        first = worker.submit(lambda: go_on.wait(WAIT))
        second = asyncio.create_task(worker.run(lambda: done.append(2)))
        third = worker.submit(lambda: done.append(3))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        go_on.set()
        await asyncio.gather(first, third)
        assert (second.cancelled(), done) == (True, [3])

    run(main)


def test_what_a_cancelled_job_has_made_is_undone_ahead_of_what_is_asked_for_next(run: Run) -> None:
    async def main() -> None:
        worker, began, go_on, seen = Worker("worker", Inbox()), threading.Event(), threading.Event(), list[str]()

        def make() -> str:
            began.set()
            go_on.wait(WAIT)
            return "made"

        task = asyncio.create_task(worker.run(make, undo=seen.append))
        await asyncio.to_thread(began.wait, WAIT)
        task.cancel()
        await asyncio.wait([task])
        go_on.set()
        idle = asyncio.Event()
        worker.on_idle = idle.set
        await idle.wait()
        assert (task.cancelled(), seen) == (True, ["made"])

    run(main)


def test_what_is_made_in_the_turn_in_which_its_task_is_cancelled_is_undone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Worker._finished

    async def main() -> None:
        worker, seen = Worker("worker", Inbox()), list[str]()

        def and_cancelled(self: Worker, *arguments: Any) -> None:
            finished(self, *arguments)
            for each in tasks:
                each.cancel()

        monkeypatch.setattr(Worker, "_finished", and_cancelled)
        tasks = {asyncio.create_task(worker.run(lambda: "made", undo=lambda made: (seen.append(made), 1 // 0)))}
        await asyncio.wait(tasks)
        assert tasks.pop().cancelled()
        await worker.run(int)  # behind what undoes it
        assert seen == ["made"]
        tasks = {asyncio.create_task(worker.run(lambda: 1 // 0))}
        await asyncio.wait(tasks)
        assert tasks.pop().cancelled()
        gc.collect()

    run(main)


def test_the_error_of_a_job_that_nobody_waits_for_is_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        worker, began, go_on = Worker("worker", Inbox()), threading.Event(), threading.Event()

        def fail() -> None:
            began.set()
            go_on.wait(WAIT)
            raise IllegalStateException("too late")

        job = worker.submit(fail)
        await asyncio.to_thread(began.wait, WAIT)
        job.cancel()
        go_on.set()
        await worker.run(int)

    with caplog.at_level(logging.WARNING, "holdfast.sdk"):
        run(main)
    assert "cancelled has failed: IllegalStateException: too late" in caplog.text


def test_a_worker_tells_when_it_has_nothing_to_do(run: Run) -> None:
    async def main() -> None:
        worker, idle = Worker("worker", Inbox()), list[int]()
        worker.on_idle = lambda: idle.append(worker.pending)
        await asyncio.gather(*[worker.submit(int) for _ in range(5)])
        assert idle == [0]

    run(main)


def test_the_thread_ends_where_it_has_nothing_to_do_and_comes_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bridge, "_LINGER_SECONDS", 0.01)

    async def main() -> None:
        worker = Worker("worker", Inbox())
        for _ in range(3):
            thread = await worker.run(threading.current_thread)
            await asyncio.to_thread(thread.join, WAIT)
            assert not thread.is_alive()
        for _ in range(300):  # also where it is just about to end
            await worker.run(int)

    run(main)


def test_a_worker_keeps_nothing_of_what_it_has_done(run: Run) -> None:
    class Thing:
        pass

    async def main() -> None:
        worker = Worker("worker", Inbox())
        thing = await worker.run(Thing)
        reference = weakref.ref(thing)
        await worker.run(int)
        del thing
        gc.collect()
        assert reference() is None

    run(main)


def test_no_thread_is_an_error_of_the_call(run: Run) -> None:
    async def main() -> None:
        worker = Worker("worker", Inbox())
        with no_new_threads(), pytest.raises(ResourceAllocationException, match="worker needs a thread"):
            await worker.run(int)
        assert worker.pending == 0
        assert await worker.run(lambda: 1) == 1

    run(main)


def test_another_loop_is_refused() -> None:
    async def make() -> Worker:
        return Worker("worker", Inbox())

    async def use(worker: Worker) -> None:
        await worker.run(int)

    worker = asyncio.run(make())
    with pytest.raises(IllegalStateException, match="another event loop"):
        asyncio.run(use(worker))


def test_what_is_done_apart_waits_for_no_worker_and_is_done_though_it_is_cancelled(run: Run) -> None:
    async def main() -> None:
        inbox, go_on, done = Inbox(), threading.Event(), threading.Event()
        blocked = Worker("worker", inbox).submit(lambda: go_on.wait(WAIT))
        task = asyncio.create_task(apart("apart", inbox, lambda: (go_on.wait(WAIT), done.set())))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await apart("apart", inbox, go_on.set)
        assert await asyncio.to_thread(done.wait, WAIT)
        await blocked

    run(main)


# Waiting.


def test_waiters_wake_the_loop_once_where_a_task_waits_and_threads_always(run: Run) -> None:
    async def main() -> None:
        inbox, woken = Inbox(), list[int]()
        waiters = LoopWaiters(inbox, lambda: woken.append(1))
        assert not waiters
        waiters.wake()
        waiters.is_armed = True
        assert waiters
        for _ in range(5):
            waiters.wake()
        await asyncio.sleep(0)
        assert woken == [1]
        so = threading.Event()
        thread = in_thread(lambda: waiters.wait(so.is_set, None))
        await asyncio.to_thread(eventually, waiters.__bool__)
        so.set()
        waiters.wake_threads()
        await asyncio.to_thread(thread.join, WAIT)
        assert woken == [1]

    run(main)


def test_a_method_is_called_as_long_as_its_object_is_there() -> None:
    seen: list[int] = []

    class Thing:
        def method(self) -> None:
            seen.append(1)

    thing = Thing()
    call = unowned(thing.method)
    call()
    del thing
    gc.collect()
    call()
    assert seen == [1]


def test_what_is_opened_is_awaited_or_a_block_that_closes_it(run: Run) -> None:
    closed: list[object] = []

    class Thing:
        async def __aexit__(self, kind: object, error: object, trace: object) -> None:
            closed.append(kind)

    async def make() -> Thing:
        return Thing()

    async def main() -> None:
        assert isinstance(await Opening(make), Thing)
        assert closed == []
        with suppress(ZeroDivisionError):
            async with Opening(make) as thing:
                assert isinstance(thing, Thing)
                _ = 1 // 0
        assert closed == [ZeroDivisionError]

    run(main)


@pytest.fixture(autouse=True)
def no_unretrieved(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "never retrieved" not in caplog.text
