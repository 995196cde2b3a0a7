"""One end of an AMQP 1.0 connection: bytes in, events out; no sockets, threads or clock.

Theory of operation
    ``receive(data)`` takes what came from the network, ``events()`` returns what it meant, ``pending_output()``
    returns what is to be sent.  All calls of one peer must come from one thread.  The same class serves both
    ends; the SASL layer stands in front of it on the byte stream.

    The AMQP work is done by proton's C engine.  Connections, sessions and links are made with proton's public
    Python classes.  What happens per message (transfers, dispositions, the event pump) calls the C functions
    below them, which costs a tenth (:mod:`broker_adapter.amqp.proton_engine.c_functions`).

    Sessions and links have numbers that are never reused within a peer, and so have the deliveries of each
    direction.  A delivery is named by its link and number; the C object behind it is held in its link's tables from
    the moment it is known until it is settled, and is never touched after that.

    The parts of a peer stand in :mod:`broker_adapter.amqp.proton_engine`: ``frame_input`` checks each frame before
    proton gets it, ``event_reader`` is the event pump, ``endpoints`` has the sessions and links, ``credit``,
    ``incoming`` and ``outgoing`` what happens on the links, ``frame_output`` the bytes to send.

    Incoming deliveries are taken out of proton's buffers at once.  A message that breaks a limit of its link is not
    handed out, and closes the link; ``Dropped`` tells of it.  Where a link ends before all that was sent on it is
    written, ``withdraw`` and ``SessionRemoteClose`` tell what the peer has not got as a whole.

    proton writes ``message-format`` 0 into every transfer and shows none that it reads.  So the payload names its
    format itself, by its first octet: see :func:`broker_adapter.amqp.messages.payloads.format_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.connection import PeerLimits, ProtonConnection
from broker_adapter.amqp.proton_engine.credit import Credit
from broker_adapter.amqp.proton_engine.endpoints import Endpoints, UnfinishedMessages
from broker_adapter.amqp.proton_engine.event_reader import EventReader
from broker_adapter.amqp.proton_engine.frame_input import FrameInput
from broker_adapter.amqp.proton_engine.frame_output import FrameOutput
from broker_adapter.amqp.proton_engine.incoming import IncomingTransfers
from broker_adapter.amqp.proton_engine.outgoing import OutgoingTransfers
from broker_adapter.errors import IllegalStateException

__all__ = ["Peer", "PeerLimits"]

#: Links beyond the limit that may be refused at a time; one more ends the connection.
_MAX_REFUSED: Final = 64
_HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


class Peer:
    """One end of an AMQP connection.  See the module's theory of operation.

    What only one part does is a method of that part, bound here once, so that it costs no call in between; each is
    described where it stands.  No part refers to the peer, so that it is freed without the garbage collector.
    """

    def __init__(self, limits: PeerLimits, *, server: bool = False) -> None:
        """A peer that has neither sent nor received anything.

        Args:
            limits: what is accepted from the other side.
            server: whether this end waits for the other's header.
        """
        self._connection = connection = ProtonConnection(limits, server=server)
        self._rules = rules = frames.FrameRules(
            max_sessions=limits.max_sessions, max_links=limits.max_links + limits.extra_links + _MAX_REFUSED
        )
        self._unfinished = unfinished = UnfinishedMessages()
        self._endpoints = endpoints = Endpoints(connection, rules, unfinished)
        self._incoming = incoming = IncomingTransfers(connection, endpoints, unfinished)
        credit = Credit(connection, endpoints, rules)
        self._outgoing = outgoing = OutgoingTransfers(connection, endpoints)
        self._events = events = EventReader(connection, endpoints, credit, incoming, outgoing)
        self._input = FrameInput(connection, rules, incoming, events)
        self._output = FrameOutput(connection, rules, outgoing, credit)
        # Bytes and events.
        self.receive = self._input.receive
        self.receive_end = self._input.receive_end
        self.go_on = self._input.go_on
        self.pending_output = self._output.pending_output
        self.write_out = self._output.write_out
        self.events = events.events
        self.close = connection.close
        # Sessions and links.
        self.end_session = endpoints.end_session
        self.outgoing_bytes = endpoints.outgoing_bytes
        self.attach_sender = endpoints.attach_sender
        self.attach_receiver = endpoints.attach_receiver
        self.accept_link = endpoints.accept_link
        self.refuse_link = endpoints.refuse_link
        self.close_link = endpoints.close_link
        self.has_link = endpoints.has_link
        self.credit = credit.credit
        self.remaining_credit = credit.remaining_credit
        self.drain = credit.drain
        self.drained = credit.drained
        # Messages.
        self.send = outgoing.send
        self.withdraw = outgoing.withdraw
        self.abandon = outgoing.abandon
        self.take_back = outgoing.take_back
        self.waiting_bytes = outgoing.waiting_bytes
        self.settle_second = outgoing.settle_second
        self.settle = incoming.settle
        self.has_unfinished = incoming.has_unfinished
        self.largest_unfinished_bytes = unfinished.largest_bytes
        self.is_unsettled = endpoints.is_unsettled
        self.unsettled = endpoints.unsettled

    def __repr__(self) -> str:
        endpoints = self._endpoints
        return (
            f"<Peer sessions={len(endpoints.sessions)} links={len(endpoints.links)} "
            f"failure={self._connection.failure!r}>"
        )

    @property
    def output_closed(self) -> bool:
        """Whether everything was sent that ever will be: close the socket."""
        return self._connection.output_closed

    @property
    def has_more(self) -> bool:
        """Whether ``go_on()`` and then ``events()`` are to be called in a later turn."""
        return self._events.has_more or self._input.settles_first

    @property
    def examined(self) -> int:
        """How many deliveries that the other side has given a state ``events()`` has examined so far."""
        return self._events.examined

    @property
    def unwritten_bytes(self) -> int:
        """What proton keeps, about, for the answers to messages that it has not written yet."""
        return self._connection.unwritten_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of messages of which only a part has come."""
        return self._unfinished.bytes

    def tick(self, now_ms: int, *, listens: bool = True) -> int | None:
        """Let time pass: sends keep-alives, notices a silent peer.

        Args:
            now_ms: a clock that never goes back, in milliseconds.
            listens: whether what the peer sends is read at present; otherwise its silence is ours.

        Returns:
            when to call again at the latest, on the same clock; None where nothing is waited for.
        """
        connection = self._connection
        if connection.released:
            return None
        if not listens and connection.opened and not connection.tail_closed and not self._rules.closed:
            connection.push(_HEARTBEAT, 0, len(_HEARTBEAT))
        deadline: int = connection.engine.pn_transport_tick(connection.c_transport, now_ms)
        return (min(deadline, now_ms + connection.tick_ms) if connection.tick_ms else deadline) or None

    def open(
        self,
        container_id: str,
        *,
        hostname: str | None = None,
        offered_capabilities: Iterable[str] = (),
        desired_capabilities: Iterable[str] = (),
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Open the connection, or answer the peer's open."""
        self._connection.open(container_id, hostname, offered_capabilities, desired_capabilities, properties)
        self._endpoints.open_unanswered()
        self._input.take_held()

    def begin_session(self) -> int:
        """Begin a session and return its number; links may be attached at once.

        Raises:
            IllegalStateException: there are as many as the limit, ours or the peer's.
        """
        if self._connection.released:
            raise IllegalStateException("the connection has ended")
        self._endpoints.check_room()
        # proton chooses the channel as it writes the begin, and does not tell: it is read from what is written.  What
        # was to be written before is taken out first, so that this ends and begins with a whole frame.
        self._output.write_out()
        number = self._endpoints.begin_session()
        self._output.note_begin()
        self._output.write_out()
        return number

    def refuse_largest_unfinished(self, error: AmqpError) -> None:
        """Reject the largest message of which only a part has come, if any, and close its link with this error.

        ``events()`` tells of it, as of any message that is dropped.
        """
        self._incoming.refuse_largest_unfinished(error, self._events.early)

    def release(self) -> None:
        """Free all memory, now and not when the garbage collector gets to it.  Legal twice.

        Nothing is sent or received any more, and nothing is told.
        """
        connection = self._connection
        if connection.released:
            return
        connection.released = connection.tail_closed = connection.output_closed = True
        self._endpoints.release()
        self._outgoing.release()
        self._incoming.payload = b""
        self._events.early.clear()
        self._input.release()
        self._output.release()
        connection.release()
