"""Requests to our own server beyond messaging, and their answers; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.amqp.events import ACCEPTED_STATE, Transfers
from broker_adapter.amqp.management import Request, error_from_fields, pack_request, unpack_answer
from broker_adapter.amqp.peer import Peer
from broker_adapter.amqp.wire import NEWS
from broker_adapter.errors import JMSException, MessageFormatException, ProtocolException, ResourceAllocationException

#: Most requests that may wait for their answer at once.
MAX_REQUESTS: Final = 1000


class Requests:
    """The links to our server's request and answer nodes, and who waits for an answer."""

    def __init__(self, peer: Peer, sender: int, receiver: int, on_news: Callable[[Any], None]) -> None:
        self._on_news = on_news
        self.links = (sender, receiver)
        self._peer = peer
        self._sender = sender
        self._credit = 0
        self._queue: deque[bytes] = deque()
        self._waiting: dict[int, Callable[[Any, JMSException | None], bool]] = {}
        self._next_number = 1
        peer.credit(receiver, MAX_REQUESTS)

    def ask(self, operation: str, arguments: dict[str, Any], done: Callable[[Any, JMSException | None], bool]) -> None:
        """Ask something; done with the answer."""
        if len(self._waiting) >= MAX_REQUESTS:
            reason = f"{MAX_REQUESTS} requests wait for their answers; that is the limit"
            done(None, ResourceAllocationException(reason))
            return
        number = self._next_number
        self._next_number = number + 1
        try:
            payload = pack_request(Request(number, operation, arguments))
        except MessageFormatException as error:
            done(None, error)
            return
        self._waiting[number] = done
        self._queue.append(payload)
        self._flush()

    def on_credit(self, credit: int) -> None:
        """The request node's credit changed."""
        self._credit = credit
        self._flush()

    def on_answers(self, event: Transfers) -> None:
        """Answers came in.

        Raises:
            ProtocolException: one of them cannot be decoded.
        """
        self._peer.settle(event.link, [each.number for each in event.deliveries], ACCEPTED_STATE)
        self._peer.credit(event.link, len(event.deliveries))
        for each in event.deliveries:
            try:
                answer = unpack_answer(each.payload)
            except MessageFormatException as error:
                raise ProtocolException(f"the broker's answer cannot be decoded: {error}") from error
            if answer.number == NEWS:
                self._on_news(answer.result)
                continue
            done = self._waiting.pop(answer.number, None)
            if done is None:
                continue
            if answer.error is not None:
                done(None, error_from_fields(answer.error))
            else:
                done(answer.result, None)

    def fail(self, error: JMSException) -> None:
        """The links or the connection are gone: everybody who waits gets ``error``."""
        waiting, self._waiting = self._waiting, {}
        self._queue.clear()
        for done in waiting.values():
            done(None, error)

    def _flush(self) -> None:
        if self._queue:
            self._peer.write_out()  # the broker is to carry it out after what was settled before
        while self._queue and self._credit > 0 and self._peer.has_link(self._sender):  # else we are about to hear of it
            self._credit -= 1
            self._peer.send(self._sender, self._queue.popleft(), settled=True)
