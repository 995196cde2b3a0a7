"""The link on which the client of one connection gets the events of regions, as a durable client of the engine.

There is one on a connection.  With its attach the client is known to the engine by the connection's client id, and with
its end, or that of its session, the client leaves and its queue is kept.  Where it has left by a request, the link
stays, nothing more comes on it, and another one may be attached.

The engine hands out events as the window of the client allows, in events and in bytes.  What the client gives no credit
for, or its socket does not take, waits here as the engine has handed it out, and is packed as it is sent.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from broker_adapter.amqp.conditions import AmqpError, error_for
from broker_adapter.amqp.events import LinkFlow, LinkRemoteClose, LinkRemoteOpen
from broker_adapter.amqp.messages.region_events import encode_event, encode_marker, request_of
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.destination import Destination, topic
from broker_adapter.engine.commands import regions as e
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    ResourceAllocationException,
)
from broker_adapter.server.access import permissions
from broker_adapter.server.links.budget import Budget
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.links.links import Links
from broker_adapter.server.links.output import Output
from broker_adapter.settings import ServerSettings

#: Part of what a connection may keep that its events may take which the client has not acknowledged.
_SHARE: Final = 4
#: Events that are sent in one turn; other connections have theirs before the rest.
_SENT_AT_ONCE: Final = 500
#: What the server keeps for an event beside its message and its key, and for each interest that matches, in bytes.
_EVENT_BYTES: Final = 500
_INTEREST_BYTES: Final = 16


@attrs.define(eq=False)
class EventLink:
    """A link that the client receives events on."""

    link: int
    session: int
    max_message_bytes: int  #: of the largest transfer that the client takes
    is_attached: bool = False  #: whether the engine has taken the client, and the attach was answered
    is_over: bool = False  #: nothing comes on it any more
    leaving: Callable[[Any], None] | None = None  #: the client has detached it; called when the engine has answered
    dropped: JMSException | None = None  #: why the engine has dropped the client's queue; None: it has not
    waiting: deque[tuple[Any, int]] = attrs.field(factory=deque)  #: handouts that were not sent, and their bytes


class EventLinks:
    """The link for events of one connection, and another one that is being attached.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.
        links: which links are attached.
        output: says what waits for the client.
        budget: counts events that were not sent.
        settings: the server's limits.
        authorize: see :class:`broker_adapter.server.protocol.ServerProtocol`.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
        links: Links,
        output: Output,
        budget: Budget,
        settings: ServerSettings,
        authorize: Callable[[str, Destination | None], None],
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._client = client
        self._links = links
        self._output = output
        self._budget = budget
        self._most_output_bytes = settings.max_output_bytes
        self._window_bytes = settings.max_connection_bytes // _SHARE
        self._authorize = authorize
        self._current: EventLink | None = None  #: that of the client
        self._pending: EventLink | None = None  #: one of which the engine has not said yet whether it is the client's
        self._goes_on = False  #: whether a callback will send more

    def __repr__(self) -> str:
        return f"<EventLinks current={self._current is not None} waiting={self.waiting}>"

    @property
    def waiting(self) -> int:
        """How many events and markers wait to be sent."""
        return 0 if self._current is None else len(self._current.waiting)

    # The beginning of a link.

    def attach(self, event: LinkRemoteOpen) -> None:
        """The client attached a link for events.

        Args:
            event: the attach.

        Raises:
            IllegalStateException: another one is being attached.
            JMSSecurityException: the user may not.
            MessageFormatException: what the client asks for cannot be.
        """
        request = request_of(event.properties)
        client_id = self._client.container_id
        self._authorize(permissions.RECEIVE_EVENTS, topic(client_id))
        if not event.presettled:
            raise IllegalStateException(
                "the transfers on a link for events are settled (snd-settle-mode of its attach)"
            )
        if self._pending is not None:
            raise IllegalStateException("a connection has one link for events, and another one is being attached")
        link = EventLink(event.link, event.session, event.max_message_bytes or sys.maxsize)
        self._pending = link
        calls, output = self._calls, self._output

        def sink(handouts: Sequence[Any]) -> None:  # in the engine's thread
            if not handouts:
                return  # it could not read them
            sizes = [_size_of(each) for each in handouts]
            output.arrived_bytes += sum(sizes)
            calls.add_callback(self._take, link, handouts, sizes)

        calls.defer(
            e.ConnectDurable(
                *(calls.known_client, client_id, request.timeout_ms, request.window, sink),
                calls.reply(self._on_connected, event, link),
                conflation=request.conflation,
                window_bytes=self._window_bytes,
            )
        )

    def _on_connected(self, event: LinkRemoteOpen, link: EventLink, result: int | JMSException) -> None:
        """The engine has taken the client, or has refused it."""
        self._pending = None
        former = self._current
        is_refused = self._links.refused(event, result)
        if self._client.has_ended:
            return
        if isinstance(result, JMSException):
            self._end(link)
            if link.leaving is not None:
                link.leaving(None)
            if former is not None and former.leaving is not None:
                self._leave(former)
            return
        if former is not None:  # its client has left by a request
            self._end(former)
            if former.leaving is not None:
                former.leaving(None)
        self._current = link
        if is_refused:  # it is gone already
            self._leave(link)
            return
        if link.dropped is not None:
            self._end(link)
            self._peer.refuse_link(event.link, error_for(link.dropped))
            return
        self._peer.accept_link(event.link, event.source, event.target)
        link.is_attached = True
        self.send()

    # The end of a link.

    def on_link_close(self, event: LinkRemoteClose) -> bool:
        """The client detached a link.

        Returns:
            True where the answer waits for the engine, which is to let the client leave.
        """
        link = self._find(event.link)
        if link is None:
            return False
        peer, number, closed = self._peer, event.link, event.closed

        def left(_result: Any) -> None:
            peer.close_link(number, closed=closed)

        self._detached(link, left)
        return True

    def remove(self, link: int) -> None:
        """A link is gone with its session, whichever it was."""
        found = self._find(link)
        if found is not None:
            self._detached(found, lambda _result: None)

    def _find(self, link: int) -> EventLink | None:
        for each in (self._current, self._pending):
            if each is not None and each.link == link and each.leaving is None:
                return each
        return None

    def _detached(self, link: EventLink, left: Callable[[Any], None]) -> None:
        """The client has detached a link; where the engine has not said yet which one is the client's, that first."""
        link.leaving = left
        self._drop_waiting(link)
        if self._pending is None:
            self._leave(link)

    def _leave(self, link: EventLink) -> None:
        """The client leaves with its link."""
        left = link.leaving or (lambda _result: None)
        self._end(link)
        self._calls.defer(e.LeaveDurable(self._calls.known_client, True, self._calls.reply(left)))

    def _end(self, link: EventLink) -> None:
        """Nothing comes on a link any more."""
        link.is_over = True
        self._drop_waiting(link)
        if self._current is link:
            self._current = None

    def _drop_waiting(self, link: EventLink) -> None:
        self._budget.events -= sum([size for _, size in link.waiting])
        link.waiting.clear()

    def clear(self) -> None:
        """Drop everything."""
        for link in (self._current, self._pending):
            if link is not None:
                self._end(link)
        self._current = self._pending = None

    # Events.

    def _take(self, link: EventLink, handouts: Sequence[Any], sizes: Sequence[int]) -> None:
        """Events came from the engine."""
        self._output.taken_bytes += sum(sizes)
        if link.is_over or self._client.has_ended:
            return
        last = handouts[-1]
        if isinstance(last, e.QueueDroppedHandout):
            link.dropped = ResourceAllocationException(last.reason)
            if link.is_attached:  # else the attach is refused
                self._end(link)
                self._peer.close_link(link.link, error_for(link.dropped))
            return
        if link.leaving is None:
            link.waiting.extend(zip(handouts, sizes, strict=True))
            self._budget.events += sum(sizes)
            self.send()

    def on_flow(self, event: LinkFlow) -> bool:
        """The credit of a link changed; returns False where it is none for events."""
        link = self._find(event.link)
        if link is None:
            return False
        self.send()
        if event.drain and link.is_attached and not link.waiting:
            self._peer.drained(event.link)
        return True

    def send(self) -> None:
        """Send what there is credit and room for; what takes long goes on in the next turn."""
        link, output, peer = self._current, self._output, self._peer
        if link is None or not link.waiting or not link.is_attached or output.is_paused or self._goes_on:
            return
        if not peer.has_link(link.link):
            return  # its end is about to be told
        credit = peer.remaining_credit(link.link)
        room = self._most_output_bytes - output.waiting_bytes
        waiting, sent = link.waiting, 0
        while waiting and credit > 0 and room > 0:
            if sent == _SENT_AT_ONCE:
                self._goes_on = True
                self._calls.next_turn(self._go_on)
                return
            handout, size = waiting.popleft()
            self._budget.events -= size
            data = _packed(handout)
            if len(data) > link.max_message_bytes:
                self._end_before(link, len(data))
                return
            peer.send(link.link, data, settled=True)
            sent += 1
            credit -= 1
            room -= len(data)

    def _go_on(self) -> None:
        self._goes_on = False
        self.send()

    def _end_before(self, link: EventLink, size: int) -> None:
        """Close the link ahead of an event that is larger than its client takes."""
        number = link.link
        self._leave(link)
        reason = (
            f"an event of {size} bytes is larger than the {link.max_message_bytes} bytes that the receiver takes"
            " (max-message-size of its attach); attach with a larger limit"
        )
        self._peer.close_link(number, AmqpError("amqp:link:message-size-exceeded", reason))


def _packed(handout: Any) -> bytes:
    """Encode what is handed out as the payload of a transfer."""
    if isinstance(handout, e.MarkerHandout):
        return encode_marker(handout.position)
    position, region, operation, key, interests, queries, is_history, _, message = handout
    matched = [(int(each.kind), each.text) for each in interests]
    of_queries = [(name, int(each)) for name, each in queries]
    return encode_event(position, region, int(operation), key, matched, of_queries, is_history, message)


def _size_of(handout: Any) -> int:
    """Return what the server keeps for an event until it is sent, in bytes, about."""
    if not isinstance(handout, e.EventHandout):
        return _EVENT_BYTES
    return (
        len(handout.payload)
        + len(handout.key)
        + _EVENT_BYTES
        + _INTEREST_BYTES * (len(handout.interests) + len(handout.queries))
    )
