"""Requests to our own server beyond messaging, and their answers; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.amqp.client.brokers import announced_by
from broker_adapter.amqp.client.callbacks import Done
from broker_adapter.amqp.client.links import Link, LinkTable, refusal
from broker_adapter.amqp.client.sessions import OWN_SESSION, Sessions
from broker_adapter.amqp.conditions import exception_for
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    Dropped,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.management import ManagementRequest, error_from_fields, pack_request, unpack_answer
from broker_adapter.amqp.wire import ANNOUNCED, MANAGEMENT_ADDRESS
from broker_adapter.errors import JMSException, MessageFormatException, ProtocolException, ResourceAllocationException

#: Most requests that may wait for their answer at once.
MAX_REQUESTS: Final = 1000


class Requests:
    """The links to our server's request and answer nodes, and the requests that wait for an answer.

    Attributes:
        most_bytes: of a message to our server, as it has said; None: it has not.
    """

    def __init__(self, table: LinkTable, sessions: Sessions, on_broken: Callable[[JMSException], None]) -> None:
        """No requests; the links are attached with the first one.

        Args:
            table: of all links.
            sessions: of the connection.
            on_broken: told where an answer cannot be decoded, which ends the connection.
        """
        self._table = table
        self._peer = table.peer
        self._sessions = sessions
        self._on_broken = on_broken
        self._links: tuple[RequestLink, AnswerLink] | None = None
        self._credit = 0
        self._uncredited = 0  # answers that came since the server got credit for more
        self.most_bytes: int | None = None
        self._queue: deque[tuple[int, bytes]] = deque()
        self._waiting: dict[int, Done] = {}
        self._next_number = 1

    def ask(self, operation: str, arguments: dict[str, Any], done: Done) -> None:
        """Ask something; done with the answer."""
        if self._links is None:
            self._links = self._attach()
        if len(self._waiting) >= MAX_REQUESTS:
            reason = f"{MAX_REQUESTS} requests wait for their answers; that is the limit"
            done(None, ResourceAllocationException(reason))
            return
        number = self._next_number
        self._next_number = number + 1
        try:
            payload = pack_request(ManagementRequest(number, operation, arguments))
        except MessageFormatException as error:
            done(None, error)
            return
        self._waiting[number] = done
        self._queue.append((number, payload))
        self._flush()

    def on_open(self, most_bytes: int | None) -> None:
        """Note the size of the largest request that the broker takes."""
        self.most_bytes = most_bytes

    def on_credit(self, credit: int) -> None:
        """The request node's credit changed."""
        self._credit = credit
        self._flush()

    def on_answers(self, event: Transfers) -> None:
        """Answers came in; one that cannot be decoded ends the connection."""
        self._peer.settle(event.link, [each.number for each in event.deliveries], ACCEPTED_STATE)
        self._uncredited += len(event.deliveries)
        if self._uncredited >= MAX_REQUESTS:
            self._peer.credit(event.link, self._uncredited)
            self._uncredited = 0
        for each in event.deliveries:
            try:
                answer = unpack_answer(each.payload)
            except MessageFormatException as error:
                broken = ProtocolException(f"the broker's answer cannot be decoded: {error}")
                broken.__cause__ = error
                self._on_broken(broken)
                return
            if answer.number == ANNOUNCED:
                self._table.listener(announced_by(answer.result))
                continue
            done = self._waiting.pop(answer.number, None)
            if done is None:
                continue
            if answer.error is not None:
                done(None, error_from_fields(answer.error))
            else:
                done(answer.result, None)

    def drop(self, error: JMSException) -> None:
        """Close the links: what waits gets ``error``, and the next request attaches others."""
        for link in self._links or ():
            self._table.by_number.pop(link.number, None)
            self._peer.close_link(link.number)
        self.fail(error)

    def fail(self, error: JMSException) -> None:
        """The links or the connection are gone: what waits gets ``error``."""
        waiting, self._waiting = self._waiting, {}
        self._queue.clear()
        self._links = None
        self._credit = self._uncredited = 0
        self._next_number = 1
        for done in waiting.values():
            done(None, error)

    def _attach(self) -> tuple[RequestLink, AnswerLink]:
        table, peer, session = self._table, self._peer, self._sessions.of(OWN_SESSION)
        name = table.new_name("management", None)
        node = Terminus(MANAGEMENT_ADDRESS)
        sender = peer.attach_sender(session, f"{name}:requests", Terminus(name), node)
        receiver = peer.attach_receiver(session, f"{name}:answers", node, Terminus(name))
        links = RequestLink(table, sender, self), AnswerLink(table, receiver, self)
        peer.credit(receiver, 2 * MAX_REQUESTS)  # for what is uncredited, too
        return links

    def _flush(self) -> None:
        if self._queue:
            self._peer.write_out()  # the broker is to carry it out after what was settled before
        if self._links is None:
            return
        link = self._links[0].number
        while self._queue and self._credit > 0 and self._peer.has_link(link):  # else its loss is about to be reported
            number, payload = self._queue.popleft()
            if self.most_bytes is not None and len(payload) > self.most_bytes:
                # Alone: the broker would detach the link, and every request that waits would fail.
                self._waiting.pop(number)(None, _too_large(len(payload), self.most_bytes))
                continue
            self._credit -= 1
            self._peer.send(link, payload, settled=True)


class RequestLink(Link):
    """The link on which we send requests."""

    def __init__(self, table: LinkTable, number: int, requests: Requests) -> None:
        super().__init__(table, number, OWN_SESSION)
        table.by_number[number] = self
        self._requests = requests

    def on_open(self, event: LinkRemoteOpen) -> None:
        self._requests.on_open(event.max_message_bytes)

    def on_flow(self, event: LinkFlow) -> None:
        self._requests.on_credit(event.credit)

    def on_close(self, event: LinkRemoteClose) -> None:
        self._peer.close_link(self.number, closed=event.closed)
        self._requests.drop(refusal(event.error, refused=False))

    def session_ended(self, error: JMSException) -> None:
        if self.number in self._table.by_number:  # else the other link of the two has dropped both
            self._requests.drop(error)

    def lost(self, error: JMSException) -> None:
        self._requests.fail(error)


class AnswerLink(RequestLink):
    """The link on which answers come in."""

    def on_open(self, event: LinkRemoteOpen) -> None:
        """The limit of what we send is that of the other link."""

    def on_flow(self, event: LinkFlow) -> None:
        """What the server may send is its own business."""

    def on_transfers(self, event: Transfers) -> None:
        self._requests.on_answers(event)

    def on_dropped(self, event: Dropped) -> None:
        if event.error is not None:
            self._requests.drop(exception_for(event.error, "the link was closed"))
        else:
            self._peer.credit(self.number, event.messages)


def _too_large(size: int, most_bytes: int) -> MessageFormatException:
    return MessageFormatException(
        f"request of {size} bytes is larger than the limit of {most_bytes} bytes (option max_message_bytes)",
        error_code="amqp:link:message-size-exceeded",
    )
