"""The turns of the tasks that share one session.

Theory of operation
    One thread at a time uses the session of the SDK: that of its worker, or, while the worker has nothing to do, the
    loop's, for what waits for nothing.  So any number of tasks of the loop may share a session; their calls come one
    after the other, and a ``receive`` that waits for a message holds up none of them.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable

import sdk
from ack_modes import DeliveryTag, Failure
from broker_adapter import OperationTimedOutException, in_seconds
from sdk.aio.loop_bridge import DONE, Inbox, LoopWaiters, Worker, unowned
from sdk.finalizers import weakly


class Places:
    """The places of a connection's send window, for tasks: first come, first served.

    Attributes:
        free: how many there are; none is while a task waits.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait for a place, where none is free."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it has got the place meanwhile
                self.give_back()
            raise

    def give_back(self) -> None:
        """Give a place to the task that has waited longest, or to nobody."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self.free += 1


class Answers:
    """The answers that tasks wait for, each no longer than a limit, with one timer for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        """None yet; ``limit`` is in seconds."""
        self._loop = loop
        self._limit = limit
        self._expected: deque[tuple[float, asyncio.Future[None]]] = deque()  #: when each ends (monotonic seconds)
        self._has_timer = False

    def expect(self, future: asyncio.Future[None]) -> None:
        """Have a future fail where it has no answer in time."""
        expected = self._expected
        while expected and expected[0][1].done():
            expected.popleft()
        expected.append((time.monotonic() + self._limit, future))
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(self._limit, self._expire)

    def _expire(self) -> None:
        expected, now = self._expected, time.monotonic()
        while expected and (expected[0][1].done() or expected[0][0] <= now):
            future = expected.popleft()[1]
            if not future.done():
                future.set_exception(
                    OperationTimedOutException(
                        f"the send had no answer within {in_seconds(self._limit)} (option send_timeout_seconds);"
                        " it may have been sent"
                    )
                )
        self._has_timer = bool(expected)
        if expected:
            self._loop.call_later(expected[0][0] - now, self._expire)


class Turns:
    """A session of the SDK, and how its calls are made.  For the loop's thread.

    Attributes:
        session: the one of the SDK.
        state: its state.
        inbox: what other threads have for the loop.
        worker: does what may wait.
        answers: those to its sends.
        places: those of the send window that the connection has.
        waiters: threads and tasks that wait for something of the session.
        waits: the futures of the tasks that wait, by what they wait for; those of one kind in their order.
    """

    __slots__ = ("__weakref__", "answers", "inbox", "places", "session", "state", "waiters", "waits", "worker")

    def __init__(self, session: sdk.Session, inbox: Inbox, places: Places) -> None:
        """Nobody waits."""
        self.session = session
        self.state = state = session._state
        self.inbox = inbox
        self.places = places
        self.answers = Answers(inbox.loop, state.settings.send_timeout_seconds)
        self.worker = Worker(f"holdfast-aio-{state.number}", inbox)
        self.worker.on_idle = changed = unowned(self.check)
        self.waits: dict[Callable[[], bool], dict[asyncio.Future[bool], None]] = {}
        self.waiters = state.waiters = LoopWaiters(inbox, changed)
        state.in_background = weakly(self._in_background)

    def acknowledge(self, tag: DeliveryTag, failure: Failure | None = None) -> Awaitable[None]:
        """What ``message.acknowledge()`` does; with ``failure``, ``reject()`` or ``retry()``."""
        if self.worker.pending or self.state.confirms:
            return self.worker.submit(functools.partial(self.session._acknowledge, tag, failure))
        self.session._acknowledge(tag, failure)
        return DONE

    def _in_background(self, act: Callable[[], None]) -> None:
        """Do what waits for the broker, and let nothing of this session come ahead of it; returns at once."""
        if threading.get_ident() == self.inbox.thread:
            self.worker.spare(act)
        else:
            act()

    async def wait(self, is_so: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until something of the session is so, and its worker has nothing to do.

        Args:
            is_so: called in the loop; the same one, as of ``==``, for all tasks that wait for the same.
            deadline: in monotonic seconds; None: no limit.

        Returns:
            Whether it is so; False when the deadline passed first.  Of those that wait for the same one task goes on,
            which calls ``check`` when it has done what it waited for, or waits again.
        """
        future = self.inbox.future()
        self.waits.setdefault(is_so, {})[future] = None
        timer = None
        if deadline is not None:
            timer = self.inbox.loop.call_later(max(0.0, deadline - time.monotonic()), _expire, future)
        try:
            self.check()
            reached: bool = await future
            return reached
        finally:
            futures = self.waits.get(is_so)
            if futures is not None:
                futures.pop(future, None)
                if not futures:
                    del self.waits[is_so]
            if timer is not None:
                timer.cancel()

    def check(self) -> None:
        """Let one task go on of those that wait for each thing that is so; in the loop.

        One alone: a message is for one of them, and it costs much where a thousand look for it.
        """
        if self.worker.pending or not self.waits:
            return  # the worker calls this when it has nothing to do
        self.waiters.is_armed = True  # first: what changes from here on has this called again
        for is_so, futures in self.waits.items():
            if is_so():
                while futures:
                    future = next(iter(futures))
                    del futures[future]
                    if not future.done():  # else its time is over, or it was cancelled
                        future.set_result(True)
                        break


def idle() -> bool:
    """What a task waits for that goes on as soon as the worker has nothing to do."""
    return True


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
