"""The event pump of a peer: what proton has to tell, as the events of :mod:`broker_adapter.amqp.events`."""

from __future__ import annotations

import sys
from typing import Any, Final

from cproton_ffi import lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import Event, LinkRemoteClose, RemoteClose, SessionRemoteClose, TransportFailed
from broker_adapter.amqp.proton_engine.connection import ProtonConnection, UndecodableError
from broker_adapter.amqp.proton_engine.credit import Credit
from broker_adapter.amqp.proton_engine.endpoints import Endpoints
from broker_adapter.amqp.proton_engine.incoming import IncomingTransfers
from broker_adapter.amqp.proton_engine.memory import read_condition
from broker_adapter.amqp.proton_engine.outgoing import OutgoingTransfers

_DELIVERY: Final = lib.PN_DELIVERY
_TOLD: Final = frozenset(
    (
        lib.PN_LINK_FLOW,
        lib.PN_LINK_REMOTE_OPEN,
        lib.PN_LINK_REMOTE_CLOSE,
        lib.PN_LINK_REMOTE_DETACH,
        lib.PN_SESSION_REMOTE_OPEN,
        lib.PN_SESSION_REMOTE_CLOSE,
        lib.PN_CONNECTION_REMOTE_OPEN,
        lib.PN_CONNECTION_REMOTE_CLOSE,
        lib.PN_TRANSPORT_ERROR,
    )
)


class EventReader:
    """What happened and was not asked for yet.

    What the peer has sent behind something that cannot be decoded is not told: a discharge, for example, does not
    commit the rest of a transaction whose message was lost so.

    Attributes:
        early: the events.
        disposed: (channel, role) → the last delivery of dispositions that proton has not told of.
        has_more: whether the states of some deliveries were not told yet, because there were too many at once.
        examined: how many deliveries with a new state this has examined so far; each may be counted again.
    """

    def __init__(
        self,
        connection: ProtonConnection,
        endpoints: Endpoints,
        credit: Credit,
        incoming: IncomingTransfers,
        outgoing: OutgoingTransfers,
    ) -> None:
        """Nothing has happened.

        Args:
            connection: proton's objects.
            endpoints: the sessions and links.
            credit: of the links.
            incoming: takes what comes in.
            outgoing: takes what was answered.
        """
        self.early: list[Event] = []
        self.disposed: dict[tuple[bytes, bool], int] = {}
        self._connection = connection
        self._engine = connection.engine
        self._endpoints = endpoints
        self._links_by_pointer = endpoints.links_by_pointer
        self._credit = credit
        self._incoming = incoming
        self._outgoing = outgoing
        self.has_more = False
        self.examined = 0
        self._most = connection.limits.settled_at_once or sys.maxsize
        self._failure_told = False
        self._is_over = False  #: whether something that cannot be decoded came: the rest is not told

    def events(self) -> list[Event]:
        """Return what happened since the last call, in order; transfers or dispositions of one link in a row are one
        event.

        The rest of what is too much at once (``PeerLimits.settled_at_once``) is told by the next call: see
        ``has_more``.
        """
        connection = self._connection
        if connection.released:
            return []
        self.take_events(self._most)
        happened, self.early = self.early, []
        if connection.failure is not None and not self._failure_told and not self.has_more:
            self._failure_told = True
            happened.append(TransportFailed(connection.failure))
        return happened

    def take_events(self, most: int = sys.maxsize) -> None:
        """Take what proton has to tell.

        Args:
            most: of how many deliveries that have got a state, about.
        """
        try:
            if not self._is_over:
                self.has_more = self._take_events(most)
        except UndecodableError:
            self._is_over = True
            self.has_more = False
        if not self.has_more:
            self.disposed.clear()
            self._connection.kept_annotations.clear()

    def _take_events(self, most: int) -> bool:
        """Take what proton has to tell; returns whether there is more.  Raises UndecodableError."""
        engine, collector = self._engine, self._connection.c_collector
        peek, pop, type_of, delivery_of = (
            engine.pn_collector_peek,
            engine.pn_collector_pop,
            engine.pn_event_type,
            engine.pn_event_delivery,
        )
        link_of, readable = engine.pn_delivery_link, engine.pn_delivery_readable
        on_disposition, on_transfer = self._outgoing.on_disposition, self._incoming.on_transfer
        links = self._links_by_pointer
        happened = self.early
        left = most
        while True:
            event = peek(collector)
            if not event:
                self.examined += most - left
                return False
            kind = type_of(event)
            if kind == _DELIVERY:
                delivery = delivery_of(event)
                link = links.get(link_of(delivery))
                if link is None:
                    pass  # freed meanwhile; its deliveries went with it
                elif link.is_sender:
                    left -= on_disposition(link, delivery, happened)
                elif readable(delivery):
                    on_transfer(link, delivery, happened)
                elif link.settling:
                    self._incoming.on_settled(link, delivery)
            elif kind in _TOLD:
                try:
                    self._on_event(kind, event, happened)
                except ValueError as error:
                    self._connection.fail(AmqpError("amqp:decode-error", str(error)))
                    raise UndecodableError(str(error)) from error
            pop(collector)
            if left <= 0:
                self.examined += most - left
                return bool(peek(collector))

    def _on_event(self, kind: int, event: Any, happened: list[Event]) -> None:
        engine, endpoints = self._engine, self._endpoints
        if kind == lib.PN_LINK_FLOW:
            link = self._links_by_pointer.get(engine.pn_event_link(event))
            if link is not None:
                self._credit.on_flow(link, happened)
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            endpoints.on_link_remote_open(engine.pn_event_link(event), happened)
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            link = self._links_by_pointer.get(engine.pn_event_link(event))
            if link is not None and not link.remote_closed:
                link.remote_closed = True
                self._incoming.cut_short(link, happened)
                error = read_condition(lib.pn_link_remote_condition(link.endpoint._impl))
                happened.append(LinkRemoteClose(link.number, kind == lib.PN_LINK_REMOTE_CLOSE, error))
                if link.closed:
                    endpoints.free_link(link)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            endpoints.on_session_remote_open(engine.pn_event_session(event), happened)
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            session = endpoints.sessions_by_pointer.get(engine.pn_event_session(event))
            if session is not None:
                error = read_condition(lib.pn_session_remote_condition(session.endpoint._impl))
                for link in session.links.values():
                    self._incoming.cut_short(link, happened)
                unsent = {number: self._outgoing.withdraw(number) for number in session.links}
                happened.append(SessionRemoteClose(session.number, error, unsent))
                self._outgoing.session_ended(session)
                endpoints.free_session(session)
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            happened.append(self._connection.read_open())
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            happened.append(RemoteClose(self._connection.read_close()))
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._connection.note_failure()
