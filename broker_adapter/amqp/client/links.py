"""The links of a client's connection: one table, and what all kinds of links have in common; no I/O.

Each link is an object that answers what the broker says about it: ``on_open``, ``on_close``, ``on_flow``,
``on_transfers``, ``on_dropped``, ``on_dispositions``, ``on_drained``, ``session_ended``, ``lost``.  A link that changes
its kind, for example from a consumer's to one that is being closed, is replaced in the table under its number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker_adapter.amqp.client.callbacks import Done
from broker_adapter.amqp.conditions import AmqpError, exception_for
from broker_adapter.amqp.events import (
    RELEASED_STATE,
    Dispositions,
    Dropped,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    Transfers,
)
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.destination import Destination
from broker_adapter.errors import InvalidDestinationException, JMSException
from broker_adapter.transport import LinkLost, TransportEvent

L = TypeVar("L", bound="Link")


class LinkTable:
    """The links of a connection.

    Attributes:
        peer: the connection's.
        listener: told of links that are lost.
        by_number: the links that something is done with.
        maybe_drained: the numbers of links whose credit the input under way may have used up.
    """

    def __init__(self, peer: Peer, container_id: str, listener: Callable[[TransportEvent], None]) -> None:
        self.peer = peer
        self.listener = listener
        self.by_number: dict[int, Link] = {}
        self.maybe_drained: dict[int, None] = {}
        self._container_id = container_id
        self._next_name = 1

    def get(self, number: int) -> Link:
        """The link of this number; one that nothing is done with any more where the table has none."""
        return self.by_number.get(number) or Link(self, number, 0)

    def of_session(self, session: int, kind: type[L]) -> list[L]:
        """The links of this kind that belong to a session of the port."""
        return [each for each in self.by_number.values() if each.session == session and isinstance(each, kind)]

    def of_kind(self, kind: type[L]) -> list[L]:
        """All links of this kind."""
        return [each for each in self.by_number.values() if isinstance(each, kind)]

    def close(self, link: Link, done: Done, *, closed: bool = True, reports_errors: bool = False) -> None:
        """Close a link.

        Args:
            link: the link; the table has :class:`ClosingLink` in its place from now on.
            done: called when the broker has answered.
            closed: for good; False keeps a durable subscription.
            reports_errors: whether an error in the broker's answer is one for ``done``.
        """
        self.by_number[link.number] = ClosingLink(self, link.number, link.session, done, reports_errors)
        self.peer.close_link(link.number, closed=closed)

    def take_all(self) -> list[Link]:
        """All links, in the order in which they were attached; the table is empty then."""
        links = list(self.by_number.values())
        self.by_number.clear()
        return links

    def new_name(self, role: str, destination: Destination | None) -> str:
        """A name for a link, unlike all others of this connection."""
        number = self._next_name
        self._next_name += 1
        address = None if destination is None else destination.name
        return f"holdfast:{role}:{self._container_id}:{number}:{address}"


class Link:
    """A link that nothing is done with any more; what other kinds do otherwise they override."""

    def __init__(self, table: LinkTable, number: int, session: int) -> None:
        """A link.

        Args:
            table: the connection's; it has the link once it is put there.
            number: the peer's number of the link.
            session: the number of its session, of the port.
        """
        self.number = number
        self.session = session
        self._table = table
        self._peer = table.peer

    def on_open(self, event: LinkRemoteOpen) -> None:
        """The broker has answered our attach."""

    def on_close(self, event: LinkRemoteClose) -> None:
        """The broker has detached the link, or answered our detach."""
        self._peer.close_link(self.number, closed=event.closed)

    def on_flow(self, event: LinkFlow) -> None:
        """The credit has changed."""
        self._table.maybe_drained[self.number] = None

    def on_transfers(self, event: Transfers) -> None:
        """Messages have come in; here they are given back."""
        self._peer.settle(self.number, [each.number for each in event.deliveries], RELEASED_STATE)
        self._table.maybe_drained[self.number] = None

    def on_dropped(self, event: Dropped) -> None:
        """Messages have come in that are not handed out: too large, beyond the credit, or given up by the broker."""

    def on_dispositions(self, event: Dispositions) -> None:
        """The broker has answered messages that were sent on the link."""

    def on_drained(self) -> None:
        """No credit is left: that is the answer to a drain, where one was asked for."""

    def detach(self, done: Done) -> None:
        """Detach the link; done when the broker has answered.  A durable subscription stays."""
        done(None, None)

    def session_ended(self, error: JMSException) -> None:
        """The session of the link has ended, and the link with it."""

    def lost(self, error: JMSException) -> None:
        """The connection is gone; the link is not in the table any more."""

    def _leave_table(self) -> None:
        self._table.by_number.pop(self.number, None)


class ClosingLink(Link):
    """A link that we have closed, until the broker answers."""

    def __init__(self, table: LinkTable, number: int, session: int, done: Done, reports_errors: bool) -> None:
        super().__init__(table, number, session)
        self._done = done
        self._reports_errors = reports_errors

    def on_close(self, event: LinkRemoteClose) -> None:
        self._leave_table()
        if self._reports_errors and event.error is not None:
            self._done(None, exception_for(event.error, "the broker closed the link"))
        else:
            # The broker closed it at the same time: it is closed, which is what was wanted.
            self._done(None, None)

    def session_ended(self, error: JMSException) -> None:
        self._leave_table()  # no answer comes any more, and it is closed with its session
        self._done(None, error if self._reports_errors else None)

    def lost(self, error: JMSException) -> None:
        self._done(None, error)


class RequestedLink(Link):
    """A link that the application has asked for.

    Attributes:
        attached: told when the broker has answered the attach; None once it was told.
        error: why we have refused the broker's answer; None where we have not.
    """

    def __init__(self, table: LinkTable, number: int, session: int, attached: Done) -> None:
        super().__init__(table, number, session)
        table.by_number[number] = self
        self.attached: Done | None = attached
        self.error: JMSException | None = None

    def on_close(self, event: LinkRemoteClose) -> None:
        self._peer.close_link(self.number, closed=event.closed)
        self._lost_alone(self.error or refusal(event.error, refused=self.attached is not None))

    def session_ended(self, error: JMSException) -> None:
        self.end(error)

    def end(self, error: JMSException) -> None:
        """Take the link out of the table; what waits for it gets the error."""
        self._leave_table()
        if self.attached is not None:
            self.attached(None, error)

    def tell_lost(self, error: JMSException) -> None:
        """Tell the listener that the link is lost, where it was attached."""
        if self.attached is None:
            self._table.listener(LinkLost(self.number, error, self.number))

    def _lost_alone(self, error: JMSException) -> None:
        """The link is gone, and not its session."""
        self.tell_lost(error)  # first: the listener knows then what the failure of a send means
        self.end(error)

    def _refuse_answer(self, error: JMSException) -> None:
        """The broker's answer to the attach is not what was asked for: close the link."""
        self.error = error
        self._peer.close_link(self.number)


def refusal(error: AmqpError | None, *, refused: bool) -> JMSException:
    """Why there is no link any more.

    Args:
        error: what the broker said, if anything.
        refused: whether the broker has refused our attach, and not closed a link that was attached.
    """
    if refused:
        return exception_for(error, "the broker refused the link", InvalidDestinationException)
    return exception_for(error, "the broker closed the link")
