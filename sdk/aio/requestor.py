"""Requests and replies for an event loop: any number of requests are under way together."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from broker_adapter import (
    Destination,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    checked_destination,
    in_seconds,
)
from sdk.aio.consumer import MessageConsumer
from sdk.aio.loop_bridge import Closing, unwanted
from sdk.aio.producer import MessageProducer
from sdk.aio.session import Session
from sdk.checks import check_timeout
from sdk.messages.envelopes import wrapped
from sdk.messages.message import Message
from sdk.requestor import answer_to
from sdk.session_state import log

#: Replies that are kept while a request is being sent; beyond that the oldest is dropped, as one that came too late.
_MOST_EARLY: Final = 1000


class Requestor(Closing):
    """Sends requests to a destination and waits for the reply to each, on a temporary queue of its own.

    ::

        async with aio.Requestor(session, session.create_queue("adder")) as requestor:
            print(await requestor.request("2 + 2", timeout=5))

    For any number of tasks.  ``request`` acknowledges the replies, in every acknowledge mode, and nothing else.
    """

    def __init__(self, session: Session, destination: Destination) -> None:
        """A requestor, which makes its temporary queue with the first request.

        Args:
            session: not transacted: a request would not be sent before the commit.
            destination: where the requests go.

        Raises:
            IllegalStateException: the session is transacted.
            InvalidDestinationException: it is no destination.
        """
        if session.transacted:
            raise IllegalStateException("a request of a transacted session is not sent before commit(); use another")
        checked_destination(destination)
        self._session = session
        self._destination = destination
        self._opening = asyncio.Lock()
        self._queue: Destination | None = None
        self._consumer: MessageConsumer | None = None
        self._producer: MessageProducer | None = None
        self._replies: asyncio.Task[None] | None = None
        self._expected: dict[str | bytes, asyncio.Future[Message]] = {}
        self._sending: set[asyncio.Future[Message]] = set()  #: of requests whose message id is not known yet
        self._early: dict[str | bytes, Message] = {}  #: replies that came meanwhile, and that nobody expected
        self._is_closed = False

    async def request(
        self, message: Message | str | bytes | dict[str, Any] | list[Any], timeout: float | None = None
    ) -> Message:
        """Send a request and wait for its reply; see ``sdk.Requestor.request``.

        Args:
            message: its ``reply_to`` is set; its ``correlation_id`` is kept, and to be its own.
            timeout: longest wait in seconds; None: without limit for the reply.

        Returns:
            The reply: the message whose correlation id is the request's message id, or its correlation id.

        Raises:
            OperationTimedOutException: no reply in time; the request may have been sent.
            IllegalStateException: closed, perhaps while it waited.
            JMSException: see ``MessageProducer.send`` and ``MessageConsumer.receive``.
        """
        check_timeout(timeout)
        reply = self._session._turns.inbox.future()
        request = wrapped(message)
        names: list[str | bytes] = []
        try:
            async with asyncio.timeout(timeout):
                producer = await self._open()
                request.reply_to = self._queue
                if request.correlation_id is not None:
                    names.append(request.correlation_id)
                    self._expected[request.correlation_id] = reply
                self._sending.add(reply)
                try:
                    await producer.send(request)
                finally:
                    self._sending.discard(reply)
                    early = self._early.pop(request.message_id or "", None)
                    if not self._sending:
                        self._early.clear()
                if early is not None:
                    return early
                if request.message_id is not None:
                    names.append(request.message_id)
                    self._expected[request.message_id] = reply
                found: Message = await reply
                return found
        except OperationTimedOutException:  # of the send
            raise
        except TimeoutError:
            assert timeout is not None
            raise OperationTimedOutException(
                f"no reply to {request.message_id!r} within {in_seconds(timeout)}"
            ) from None
        finally:
            unwanted(reply)
            for name in names:
                if self._expected.get(name) is reply:
                    del self._expected[name]

    async def _open(self) -> MessageProducer:
        async with self._opening:
            if self._is_closed:
                raise IllegalStateException("the requestor is closed")
            session = self._session
            if self._queue is None:
                self._queue = await session.create_temporary_queue()
            if self._consumer is None:
                self._consumer = await session.create_consumer(self._queue)
            if self._producer is None:
                self._producer = await session.create_producer(self._destination)
            if self._replies is None or self._replies.done():
                self._replies = asyncio.create_task(self._take_replies(self._consumer))
            return self._producer

    async def _take_replies(self, consumer: MessageConsumer) -> None:
        """Give each reply to the task that waits for it; those that come too late are dropped."""
        error: JMSException = IllegalStateException("the requestor was closed while it waited for a reply")
        try:
            async for reply in consumer:
                await self._session._accept(reply)
                expected = self._expected.get(reply.correlation_id or "")
                if expected is not None:
                    if not expected.done():
                        expected.set_result(reply)
                elif self._sending:
                    if len(self._early) == _MOST_EARLY:
                        del self._early[next(iter(self._early))]
                    self._early[reply.correlation_id or ""] = reply
        except JMSException as raised:
            error = raised
        for each in (*self._expected.values(), *self._sending):
            if not each.done():
                each.set_exception(error)

    async def close(self) -> None:
        """Close; legal twice, and where the session is closed or the network away.  Its temporary queue ends."""
        async with self._opening:
            if self._is_closed:
                return
            for each in (self._producer, self._consumer):
                if each is not None:
                    await each.close()
            if self._replies is not None:
                await asyncio.wait([self._replies])
            if self._queue is not None:
                try:
                    await self._session.delete_temporary(self._queue)
                except JMSException as error:  # it has ended with the session, or ends with the connection
                    log.debug("! the queue for replies %r is left to the connection: %s", self._queue.name, error)
            self._is_closed = True


async def reply(session: Session, request: Message, body: Message | str | bytes | dict[str, Any] | list[Any]) -> None:
    """Answer a request; see ``sdk.reply``.

    Args:
        session: in a transacted one the reply is sent with the commit.
        request: what was received; it says where the reply is wanted.
        body: the reply; its ``correlation_id`` is set to the request's, or to the request's message id.

    Raises:
        InvalidDestinationException: the request wants no reply, or whoever sent it is gone.
        JMSException: see ``MessageProducer.send``.
    """
    answer, destination = answer_to(request, body)
    async with session.create_producer() as producer:
        await producer.send(answer, destination)
