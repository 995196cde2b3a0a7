"""A loop in a thread of its own: what runs in it, and how it ends."""

from __future__ import annotations

import asyncio
import threading

from broker_adapter.amqp.loop_thread import LoopThread

WAIT = 120.0  #: seconds; longer than anything takes, also where the machine is busy


def test_only_what_runs_in_the_loop_is_in_its_thread() -> None:
    thread = LoopThread("test-loop")
    found: list[bool] = []
    came = threading.Event()

    def look() -> None:
        found.append(thread.owns_current_thread())
        came.set()

    thread.loop.call_soon_threadsafe(look)
    assert came.wait(WAIT)
    assert found == [True]
    assert not thread.owns_current_thread()
    thread.stop()


def test_what_is_under_way_when_the_loop_stops_is_cancelled() -> None:
    thread = LoopThread("test-loop")
    began, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.sleep(WAIT)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    asyncio.run_coroutine_threadsafe(wait(), thread.loop)
    assert began.wait(WAIT)
    thread.stop()
    assert cancelled.is_set()
    assert thread.loop.is_closed()
