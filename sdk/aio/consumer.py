"""Consumers and browsers for an event loop.

Theory of operation
    A message is taken out of the consumer's buffer, and acknowledged where the mode says so, in one step of the task
    that gets it: between that step and the return of ``receive`` the loop runs nothing else.  So a cancelled task has
    either got its message, or the message is still the first of the buffer, for whoever receives next.  What is waited
    for is only that something has come.

    What may wait for the broker, such as a drain, is done by the session's worker.

    Without prefetch a credit is there as long as a task receives.  The last one to leave, however it ends, gives it
    back, with what came for it: nobody would read that.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import sdk
from broker_adapter import Destination, IllegalStateException, JMSException
from sdk.aio.loop_bridge import Attribute, Closing
from sdk.aio.turns import Turns, idle
from sdk.checks import check_timeout
from sdk.messages.message import Message

#: The part of a timed receive that is kept for the drain, in seconds; as in ``sdk.receiving.consumer``.
_DRAIN_SECONDS: Final = 0.1
#: Receives in a row that find a message at once, until the loop has its turn.
_AT_ONCE: Final = 32
#: Messages that a browser reads with one job.
_BROWSED_AT_ONCE: Final = 50


class MessageConsumer(Closing):
    """Receives the messages of a destination or subscription.  Made by ``session.create_consumer`` and its like.

    For any number of tasks of its loop.
    """

    __slots__ = ("_at_once", "_receiving", "_sync", "_turns", "_worker")

    destination: Attribute[Destination] = Attribute(sdk.MessageConsumer, "")
    selector: Attribute[str | None] = Attribute(sdk.MessageConsumer, "")
    no_local: Attribute[bool] = Attribute(sdk.MessageConsumer, "")

    def __init__(self, consumer: sdk.MessageConsumer, turns: Turns) -> None:
        """Made by the session."""
        self._sync = consumer
        self._turns = turns
        self._worker = turns.worker
        self._at_once = 0
        self._receiving = 0  #: tasks that wait, or look whether there is something
        consumer._acknowledge = turns.acknowledge

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message.

        In AUTO it is acknowledged as it is returned, as in JMS.  A task that is cancelled leaves it to the next call.

        Args:
            timeout: how long to wait, in seconds; None: until one comes or the consumer is closed.

        Returns:
            The message, or None when the time is over or the consumer is closed.

        Raises:
            JMSException: see ``sdk.MessageConsumer.receive``.
        """
        if timeout is not None:
            check_timeout(timeout)
        found = self._take_now(None) or await self._receive(None, timeout)
        return found[0] if found else None

    async def receive_nowait(self) -> Message | None:
        """The next message if one waits in the buffer or at the broker, else None; takes one round trip at most.

        Raises:
            JMSException: see ``receive``.
        """
        return await self.receive(0)

    async def receive_many(self, limit: int, timeout: float | None = None) -> list[Message]:
        """The next messages: as many as are there, up to a limit, once there is one.

        Args:
            limit: most messages, at least 1.
            timeout: how long to wait for the first one, as for ``receive``.

        Returns:
            The messages, in order; none where ``receive`` would return None.

        Raises:
            ValueError: the limit or the time-out cannot be.
            JMSException: see ``sdk.MessageConsumer.receive_many``.
        """
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit={limit!r}: a whole number from 1 on, the most messages that are returned")
        check_timeout(timeout)
        prefetch = self._sync._prefetch
        if prefetch.falls_short(limit):
            timeout = await self._worker.run(functools.partial(self._sync._ask_for, limit, timeout))
        return self._take_now(limit) or await self._receive(limit, timeout)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, each acknowledged as by ``receive``, until the consumer is closed."""
        while (message := await self.receive()) is not None:
            yield message

    def _take_now(self, limit: int | None) -> list[Message]:
        """What is there at once, as it nearly always is in a backlog; none as well where the loop is to have a turn."""
        prefetch = self._sync._prefetch
        if self._worker.pending or not prefetch.buffer or prefetch.gives_back or self._at_once >= _AT_ONCE:
            return []
        self._at_once += 1
        return self._sync._receive_ready(limit, pulls=True)

    async def _receive(self, limit: int | None, timeout: float | None) -> list[Message]:
        consumer, prefetch, state, worker = self._sync, self._sync._prefetch, self._turns.state, self._worker
        consumer._require_usable()
        if self._at_once >= _AT_ONCE:
            await asyncio.sleep(0)
        self._at_once = 0
        prefetch.begin_wait()
        now = time.monotonic()
        # Asks the broker whether there is nothing: at once where nothing is to be waited for, else ahead of the end.
        is_poll = timeout == 0
        deadline = None if timeout is None else now + (timeout or state.settings.poll_timeout_seconds)
        asks_at = None if timeout is None else now if is_poll else now + timeout - min(timeout / 2, _DRAIN_SECONDS)
        is_over = False
        self._receiving += 1
        try:
            while True:
                is_so = idle
                if not worker.pending:
                    if consumer._ended():
                        return []
                    ended = consumer._filter.ended
                    try:
                        found = consumer._receive_ready(limit, pulls=asks_at is not None or timeout is None)
                    except IllegalStateException:
                        if consumer._ended():  # by another thread, meanwhile
                            return []
                        raise
                    now = time.monotonic()
                    if is_over and consumer._filter.ended != ended:  # others may wait behind what was not given out
                        is_over, asks_at = False, now
                    if found or is_over or (deadline is not None and now >= deadline):
                        return found
                    if not state.running and is_poll:
                        return []
                    if not prefetch.is_away and not prefetch.needs_reset:
                        left = max(0.0, (deadline or now + state.settings.request_timeout_seconds) - now)
                        if asks_at is not None and now >= asks_at and state.running:
                            asks_at = None
                            is_over = await worker.run(functools.partial(prefetch.drain_if_there, left)) and is_poll
                            if is_poll and not is_over:
                                asks_at = now
                            continue
                        if prefetch.undrained:  # so the credit may be gone
                            await worker.run(functools.partial(prefetch.drain_if_there, left))
                            continue
                    is_so = self._may_drain if timeout is None else self._may_pull if asks_at else consumer._something
                elif deadline is not None and now >= deadline:
                    return []
                later = asks_at if asks_at is not None and asks_at > now else deadline
                await self._turns.wait(is_so, later)
                now = time.monotonic()
        finally:
            self._receiving -= 1
            holds = not prefetch.size and (prefetch.has_credit or prefetch.buffer or worker.pending)
            if holds and not self._receiving and not prefetch.closing:
                worker.spare(self._give_back)
            self._turns.check()

    def _may_pull(self) -> bool:
        return self._sync._something() or self._sync._prefetch.needs_pull

    def _may_drain(self) -> bool:
        prefetch = self._sync._prefetch
        return self._may_pull() or (prefetch.undrained and not prefetch.is_away)

    def _give_back(self) -> None:
        prefetch = self._sync._prefetch
        if not self._receiving:  # else that task gets it
            prefetch.stop_flow(time.monotonic() + self._turns.state.settings.poll_timeout_seconds)
            prefetch.release_all()

    async def close(self) -> None:
        """Close; legal twice.  A receive that waits returns None.  See ``sdk.MessageConsumer.close``."""
        await asyncio.shield(self._worker.submit(self._sync.close))


class QueueBrowser(Closing):
    """Iterates over the messages of a queue in the order of their delivery.  Made by ``session.create_browser``.

    ``async for`` reads the queue from its head.
    """

    __slots__ = ("_sync", "_worker")

    destination: Attribute[Destination] = Attribute(sdk.QueueBrowser, "")
    selector: Attribute[str | None] = Attribute(sdk.QueueBrowser, "")

    def __init__(self, browser: sdk.QueueBrowser, turns: Turns) -> None:
        """Made by the session."""
        self._sync = browser
        self._worker = turns.worker

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Read the queue from its head.

        Raises:
            JMSException: see ``sdk.QueueBrowser``.
        """
        messages: Any = iter(self._sync)
        try:
            while True:
                found, error = await self._worker.run(functools.partial(_next_few, messages))
                for each in found:
                    yield each
                if error is not None:
                    raise error
                if not found:
                    return
        finally:
            self._worker.spare(messages.close)

    async def close(self) -> None:
        """Close; legal twice.  An iteration that is under way raises IllegalStateException at its next fetch."""
        await asyncio.shield(self._worker.submit(self._sync.close))


def _next_few(messages: Iterator[Message]) -> tuple[list[Message], JMSException | None]:
    """Some of what comes next, and what was raised behind it."""
    found: list[Message] = []
    try:
        for each in itertools.islice(messages, _BROWSED_AT_ONCE):
            found.append(each)  # noqa: PERF402  # what came before an error is shown
    except JMSException as error:
        return found, error
    return found, None
