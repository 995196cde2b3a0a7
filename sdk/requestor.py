"""Requests and replies (Jakarta Messaging 3.1 section 2.16): the requestor waits for the reply to its request."""

from __future__ import annotations

import time
from typing import Any

from broker_adapter import (
    Destination,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
    checked_destination,
    in_seconds,
)
from sdk.checks import check_timeout
from sdk.messages.envelopes import wrapped
from sdk.messages.message import Message
from sdk.producer import MessageProducer
from sdk.receiving.consumer import MessageConsumer
from sdk.session import Session
from sdk.session_state import log


class Requestor:
    """Sends requests to a destination and waits for the reply to each, on a temporary queue of its own.

    ::

        with Requestor(session, session.create_queue("adder")) as requestor:
            print(requestor.request("2 + 2", timeout=5))

    The connection must be started.  For one thread at a time, as its session.

    ``request`` acknowledges the replies that it takes, in every acknowledge mode, and nothing else: what other
    consumers of a session in CLIENT mode have received stays unacknowledged, and no reply is redelivered after
    ``recover()``.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_closed",
        "_consumer",
        "_producer",
        "_replies",
        "_session",
    )

    def __init__(self, session: Session, destination: Destination) -> None:
        """A requestor; it makes its temporary queue at once.

        Args:
            session: not transacted: a request would not be sent before the commit.  JMS allows the modes AUTO and
                DUPS_OK here; every mode that is not transacted does.
            destination: where the requests go.

        Raises:
            IllegalStateException: the session is transacted.
            InvalidDestinationException: it is no destination.
            JMSException: see ``Session.create_temporary_queue``.
        """
        if session.transacted:
            raise IllegalStateException("a request of a transacted session is not sent before commit(); use another")
        checked_destination(destination)
        self._session = session
        self._closed = False
        self._consumer: MessageConsumer | None = None
        self._producer: MessageProducer | None = None
        self._replies = session.create_temporary_queue()
        try:
            self._consumer = session.create_consumer(self._replies)
            self._producer = session.create_producer(destination)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Requestor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self, message: Message | str | bytes | dict[str, Any] | list[Any], timeout: float | None = None
    ) -> Message:
        """Send a request and wait for its reply.

        Replies to earlier requests, which came too late, are dropped.

        Args:
            message: its ``reply_to`` is set; its ``correlation_id`` is kept.
            timeout: longest wait in seconds, for the send (which waits ``send_timeout_seconds`` at most) and the reply
                together; None: without limit for the reply.

        Returns:
            The reply: the message whose correlation id is the request's message id, or its correlation id.

        Raises:
            OperationTimedOutException: no reply in time; the request may have been sent.
            IllegalStateException: closed while it waited.
            JMSException: see ``MessageProducer.send`` and ``MessageConsumer.receive``.
        """
        check_timeout(timeout)
        request = wrapped(message)
        request.reply_to = self._replies
        deadline = None if timeout is None else time.monotonic() + timeout
        producer, consumer = self._producer, self._consumer
        assert producer is not None
        assert consumer is not None
        self._send(producer, request, timeout)
        expected = {request.message_id, request.correlation_id} - {None}
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            reply = consumer.receive(left)
            if reply is None:
                if timeout is not None and deadline is not None and time.monotonic() >= deadline:
                    raise OperationTimedOutException(f"no reply to {request.message_id!r} within {in_seconds(timeout)}")
                raise IllegalStateException("the requestor was closed while it waited for a reply")
            self._session._accept(reply)
            if reply.correlation_id in expected:
                return reply

    def _send(self, producer: MessageProducer, request: Message, timeout: float | None) -> None:
        """Send a request within its own time-out, where that is the shorter one."""
        if timeout is None or timeout >= self._session._state.settings.send_timeout_seconds:
            producer.send(request)
            return
        producer._time_limit = timeout
        try:
            producer.send(request)
        except OperationTimedOutException as error:
            raise OperationTimedOutException(f"no reply within {in_seconds(timeout)}: {error.reason}") from error
        finally:
            producer._time_limit = None

    def close(self) -> None:
        """Close; legal twice, and where the session is closed or the network away.

        The temporary queue ends, and with it replies that come too late.
        """
        if self._closed:
            return
        for each in (self._producer, self._consumer):
            if each is not None:
                each.close()
        try:
            self._session.delete_temporary(self._replies)
        except JMSException as error:  # it has ended with the session, or ends with the connection
            log.debug("! the queue for replies %r is left to the connection: %s", self._replies.name, error)
        self._closed = True  # only now: a call that the handler of a signal has interrupted goes on


def reply(session: Session, request: Message, body: Message | str | bytes | dict[str, Any] | list[Any]) -> None:
    """Answer a request.

    Args:
        session: in a transacted one the reply is sent with the commit.
        request: what was received; it says where the reply is wanted.
        body: the reply; its ``correlation_id`` is set to the request's, or to the request's message id.

    Raises:
        InvalidDestinationException: the request wants no reply, or whoever sent it is gone.
        JMSException: see ``MessageProducer.send``.
    """
    answer, destination = answer_to(request, body)
    with session.create_producer() as producer:
        producer.send(answer, destination)


def answer_to(
    request: Message, body: Message | str | bytes | dict[str, Any] | list[Any]
) -> tuple[Message, Destination]:
    """Return the reply to a request, and where it goes; see ``reply``."""
    if request.reply_to is None:
        raise InvalidDestinationException(f"{request.message_id!r} wants no reply: it has no reply_to")
    answer = wrapped(body)
    answer.correlation_id = request.correlation_id or request.message_id
    return answer, request.reply_to
