"""The sessions and links of a peer: what is known of each, and how they begin and end.

A link's numbers, and a session's, are never reused within a peer.  The C object behind a delivery is held in its link's
tables from the moment it is known until it is settled, and is never touched after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import proton
from cproton_ffi import lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import Event, LinkRemoteOpen, SessionRemoteOpen, State, Terminus
from broker_adapter.amqp.messages.consumer_records import RECORDS_ADDRESS
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.c_functions import wrap_link, wrap_session
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.memory import (
    c_text,
    read_mapping,
    read_terminus,
    text_at,
    text_bytes,
    words_of,
    write_condition,
    write_mapping,
    write_terminus,
)
from broker_adapter.amqp.wire import MANAGEMENT_ADDRESS
from broker_adapter.errors import IllegalStateException, MessageFormatException, ResourceAllocationException
from broker_adapter.settings import MIB

#: Bytes of the attaches of all links of a connection, which are kept as long as the links.  Further links are refused,
#: and twice this size ends the connection.
_MAX_ATTACH_BYTES: Final = 8 * MIB
#: What our attach has beside its names, filters and properties, in bytes, at most.
_ATTACH_REST_BYTES: Final = 512
#: What an answer to an attach may say beyond it, in bytes.
_ANSWER_MORE_BYTES: Final = 64


@attrs.define(eq=False)
class SessionEndpoint:
    """A session at this end."""

    number: int
    endpoint: Any
    links: dict[int, LinkEndpoint] = attrs.field(factory=dict)
    remote_opened: bool = False
    closed: bool = False  #: by us
    has_output: bool = False  #: whether it may have bytes to send
    later_bytes: int = 0  #: of messages that proton has not got yet
    later_links: dict[int, LinkEndpoint] = attrs.field(factory=dict)  #: those of them, the one whose turn it is first

    @property
    def outgoing_bytes(self) -> int:
        """Bytes of messages that wait for the peer's window, or for the socket."""
        size: int = lib.pn_session_outgoing_bytes(self.endpoint._impl)
        return size + self.later_bytes


@attrs.define(eq=False)
class LinkEndpoint:
    """A link at this end."""

    number: int
    session: SessionEndpoint
    endpoint: proton.Link
    pointer: Any
    name: str
    is_sender: bool
    by_peer: bool
    credit: int = 0  #: of a sender, as last reported, less what was sent since
    drain: bool = False
    opened: bool = False  #: by us
    closed: bool = False  #: by us
    remote_opened: bool = False
    remote_closed: bool = False
    incoming: dict[int, Any] = attrs.field(factory=dict)  #: number → the C delivery, unsettled
    outgoing: dict[Any, int] = attrs.field(factory=dict)  #: the C delivery → number, unsettled
    violation: AmqpError | None = None  #: the limit that the peer broke on it: what still comes is not handed out
    partial: list[bytes | bytearray] | None = None  #: the parts of an unfinished message
    partial_bytes: int = 0
    unfinished: Any = None  #: its C delivery
    later: deque[LaterMessage] = attrs.field(
        factory=deque
    )  #: messages that proton has not got as a whole, from a large one on
    is_second: bool = False  #: the receiver settles after the sender has: the peer asked for rcv-settle-mode ``second``
    settling: dict[Any, Any] = attrs.field(
        factory=dict
    )  #: where ``is_second``, deliveries with an outcome: (a sender's) number → C delivery, else C delivery → None
    attach_bytes: int = 0  #: of the peer's attach
    peer_handle: tuple[int, int] = (-1, -1)  #: the peer's channel and handle; not before its attach
    is_extra: bool = False  #: whether it is one of ``PeerLimits.extra_links``

    def drop_later(self) -> None:
        """What proton has not got of the link's messages is not sent any more."""
        for message in self.later:
            self.session.later_bytes -= len(message.payload) - message.given
            if message.delivery is not None:
                self.outgoing.pop(message.delivery, None)
                lib.pn_delivery_abort(message.delivery)
        self.later.clear()
        self.session.later_links.pop(self.number, None)


@attrs.define(eq=False)
class LaterMessage:
    """A message that is given to proton in parts, or waits behind such a one."""

    number: int
    payload: bytes
    settled: bool
    state: State | None
    on_given: Callable[[], None] | None  #: told once proton has got all of it
    delivery: Any = None  #: the C delivery, once its first part was given
    given: int = 0  #: bytes


class UnfinishedMessages:
    """The messages of which only a part has come.

    Attributes:
        bytes: of all of them together.
        links: where they come in.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.links: dict[LinkEndpoint, None] = {}

    def begin(self, link: LinkEndpoint, delivery: Any) -> list[bytes | bytearray]:
        """The first part of a message has come; returns where its parts are to be put."""
        link.partial = []
        link.unfinished = delivery
        self.links[link] = None
        return link.partial

    def remove(self, link: LinkEndpoint) -> None:
        """The message of a link, if any, is complete, or the rest of it will not come."""
        self.bytes -= link.partial_bytes
        self.links.pop(link, None)
        link.partial = link.unfinished = None
        link.partial_bytes = 0

    def largest_bytes(self) -> int:
        """Return how much has come of the largest one; 0: there is none."""
        return max((link.partial_bytes for link in self.links), default=0)


class Endpoints:
    """The sessions and links of a peer.

    Attributes:
        sessions: by number.
        sessions_by_pointer: by C object.
        links: by number.
        links_by_pointer: by C object.
        settling: how many deliveries of all links have an outcome and are not settled.
    """

    def __init__(self, connection: ProtonConnection, rules: frames.FrameRules, unfinished: UnfinishedMessages) -> None:
        """No sessions and links.

        Args:
            connection: proton's objects.
            rules: which frames may come.
            unfinished: the messages of which only a part has come.
        """
        self.sessions: dict[int, SessionEndpoint] = {}
        self.sessions_by_pointer: dict[Any, SessionEndpoint] = {}
        self.links: dict[int, LinkEndpoint] = {}
        self.links_by_pointer: dict[Any, LinkEndpoint] = {}
        self.settling = 0
        self._connection = connection
        self._rules = rules
        self._unfinished = unfinished
        self._attach_bytes = 0  # of all links
        self._extra = 0  # links that are extra
        self._unanswered: list[SessionEndpoint] = []  # begun by the peer ahead of our open
        self._next_number = 1

    # Sessions.

    def check_room(self) -> None:
        """Check whether there may be one more session.

        Raises:
            IllegalStateException: there are as many as the limit, ours or the peer's.
        """
        most = min(self._connection.limits.max_sessions, self._connection.transport.channel_max + 1)
        if len(self.sessions) >= most:
            raise IllegalStateException(f"{most} sessions are the limit of a connection")

    def begin_session(self) -> int:
        """Begin a session and return its number; links may be attached at once."""
        session = self._add_session(self._connection.connection.session())
        session.endpoint.open()
        return session.number

    def open_unanswered(self) -> None:
        """Answer the sessions that the peer began ahead of our open."""
        for session in self._unanswered:
            if session.number in self.sessions:
                session.endpoint.open()
        self._unanswered.clear()

    def end_session(self, session: int, error: AmqpError | None = None) -> None:
        """End a session with all its links.  Unknown numbers are ignored."""
        found = self.sessions.get(session)
        if found is not None and not found.closed:
            found.closed = True
            if error is not None:
                write_condition(lib.pn_session_condition(found.endpoint._impl), error)
            if found.remote_opened:  # else proton would not know the session any more when its begin is answered
                lib.pn_session_close(found.endpoint._impl)

    def outgoing_bytes(self, session: int) -> int:
        """Bytes of messages of this session that wait for the peer's window, or for the socket."""
        found = self.sessions.get(session)
        return 0 if found is None else found.outgoing_bytes

    def on_session_remote_open(self, pointer: Any, happened: list[Event]) -> None:
        """The peer began a session, or answered ours."""
        session = self.sessions_by_pointer.get(pointer)
        by_peer = session is None
        if session is None:
            session = self._add_session(wrap_session(pointer))
            if self._connection.opened:
                session.endpoint.open()
            else:  # proton would not answer a session that came ahead of our own open
                self._unanswered.append(session)
        session.remote_opened = True
        if session.closed:
            lib.pn_session_close(pointer)
        happened.append(SessionRemoteOpen(session.number, by_peer))

    def _add_session(self, endpoint: proton.Session) -> SessionEndpoint:
        session = SessionEndpoint(self._number(), endpoint)
        self.sessions[session.number] = session
        self.sessions_by_pointer[endpoint._impl] = session
        return session

    def free_session(self, session: SessionEndpoint) -> None:
        """Free a session that the peer has ended, with its links."""
        for link in list(session.links.values()):
            self._remove_link(link)
        del self.sessions[session.number]
        del self.sessions_by_pointer[session.endpoint._impl]
        lib.pn_session_close(session.endpoint._impl)
        session.endpoint.free()

    # Links.

    def attach_sender(
        self, session: int, name: str, source: Terminus | None, target: Terminus | None, *, presettled: bool = False
    ) -> int:
        """Attach a link that we send on; returns its number.  Send when ``LinkFlow`` has told of credit."""
        return self._attach(session, name, source, target, presettled, is_sender=True, properties=None)

    def attach_receiver(
        self,
        session: int,
        name: str,
        source: Terminus | None,
        target: Terminus | None,
        *,
        presettled: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> int:
        """Attach a link that we receive on; returns its number.  It has no credit yet."""
        return self._attach(session, name, source, target, presettled, is_sender=False, properties=properties)

    def _attach(
        self,
        session: int,
        name: str,
        source: Terminus | None,
        target: Terminus | None,
        presettled: bool,
        *,
        is_sender: bool,
        properties: dict[str, Any] | None,
    ) -> int:
        found = self.sessions.get(session)
        if found is None or found.closed:
            raise IllegalStateException(f"session {session} has ended")
        try:
            c_text(name)
        except ValueError as error:
            raise MessageFormatException(f"the link cannot be attached: {error}") from error
        size = text_bytes((name, *words_of(source), *words_of(target), properties))
        frame_bytes = self._connection.frame_bytes
        most = frame_bytes - min(_ATTACH_REST_BYTES, frame_bytes // 2)
        if size > most:
            raise ResourceAllocationException(
                f"the link cannot be attached: its names, selector and properties have {size} bytes, and at most "
                f"{most} fit into a frame to this broker and back"
            )
        endpoint = found.endpoint.sender(name) if is_sender else found.endpoint.receiver(name)
        link = self._add_link(found, endpoint, name, by_peer=False)
        try:
            self._open_link(link, source, target, presettled, properties)
        except ValueError as error:
            self._remove_link(link)
            endpoint.free()
            raise MessageFormatException(f"the link cannot be attached: {error}") from error
        return link.number

    def accept_link(
        self,
        link: int,
        source: Terminus | None,
        target: Terminus | None,
        *,
        max_message_bytes: int | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Answer the peer's attach.  The settle modes are the peer's."""
        found = self._link(link)
        if max_message_bytes is not None:
            found.endpoint.max_message_size = max_message_bytes
        try:
            self._open_link(found, source, target, properties=properties)
        except ValueError as error:
            # What is echoed came from the peer: a map with keys that are no symbols, for example.
            self._connection.fail(AmqpError("amqp:invalid-field", str(error)))

    def refuse_link(self, link: int, error: AmqpError) -> None:
        """Refuse the peer's attach: an attach without its terminus, then a detach with the error."""
        found = self._link(link)
        self._open_link(found, None, None)
        self.close_link(link, error)

    def close_link(self, link: int, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """Detach a link, or answer the peer's detach; ``closed`` False keeps a durable subscription.

        Deliveries that are not settled may still be settled, on both sides.  Unknown numbers are ignored.
        """
        found = self.links.get(link)
        if found is None or found.closed:
            return
        found.closed = True
        found.drop_later()
        pointer = found.endpoint._impl
        if error is not None:
            write_condition(lib.pn_link_condition(pointer), error)
        if closed:
            lib.pn_link_close(pointer)
        else:
            lib.pn_link_detach(pointer)
        if found.remote_closed:
            self.free_link(found)

    def has_link(self, link: int) -> bool:
        """Return whether there is a link of this number that we have not closed."""
        found = self.links.get(link)
        return found is not None and not found.closed

    def is_unsettled(self, link: int, number: int) -> bool:
        """Return whether an incoming delivery is known and not settled."""
        found = self.links.get(link)
        return found is not None and number in found.incoming

    def unsettled(self, link: int) -> Sequence[int]:
        """The numbers of a link's deliveries that are not settled, in order."""
        found = self.links.get(link)
        if found is None:
            return ()
        return list(found.outgoing.values()) if found.is_sender else list(found.incoming)

    def on_link_remote_open(self, pointer: Any, happened: list[Event]) -> None:
        """The peer attached a link, or answered ours."""
        size, peer_handle = self._rules.attaches.popleft()
        link = self.links_by_pointer.get(pointer)
        if link is None:
            session = self.sessions_by_pointer.get(lib.pn_link_session(pointer))
            if session is None:
                return
            name = text_at(lib.pn_link_name(pointer)) or ""
            link = self._add_link(session, wrap_link(pointer), name, by_peer=True)
        if link.remote_opened:
            return
        link.remote_opened = True
        link.attach_bytes = size
        link.peer_handle = peer_handle
        self._attach_bytes += size
        if self._attach_bytes > 2 * _MAX_ATTACH_BYTES:
            reason = f"the attaches of all links are far larger than the limit of {_MAX_ATTACH_BYTES} bytes"
            self._connection.fail(AmqpError("amqp:resource-limit-exceeded", reason))
            return
        if link.by_peer and len(link.name.encode()) > self._connection.frame_bytes - _ANSWER_MORE_BYTES:
            # Also a refusal has to repeat the name.
            reason = "the name of a link does not fit into a frame"
            self._connection.fail(AmqpError("amqp:resource-limit-exceeded", reason))
            return
        source = read_terminus(lib.pn_link_remote_source(pointer))
        target = read_terminus(lib.pn_link_remote_target(pointer))
        if self._extra < self._connection.limits.extra_links and _is_extra(source, target):
            link.is_extra = True
            self._extra += 1
        limit = lib.pn_link_remote_max_message_size(pointer)
        happened.append(
            LinkRemoteOpen(
                link.number,
                link.session.number,
                link.name,
                link.by_peer,
                link.is_sender,
                source,
                target,
                lib.pn_link_remote_snd_settle_mode(pointer) == lib.PN_SND_SETTLED,
                limit or None,
                read_mapping(lib.pn_link_remote_properties(pointer)),
                self._excess(size) if link.by_peer else None,
                link.by_peer and lib.pn_link_remote_rcv_settle_mode(pointer) == lib.PN_RCV_SECOND,
            )
        )

    def _excess(self, size: int) -> AmqpError | None:
        """The limit that the link attached last goes beyond, with an attach of so many bytes."""
        most, frame_bytes = self._connection.limits.max_links, self._connection.frame_bytes
        if len(self.links) - self._extra > most:
            reason = f"more links than the limit of {most} of a connection; close some, or use another connection"
        elif self._attach_bytes > _MAX_ATTACH_BYTES:
            reason = f"the attaches of all links are larger than the limit of {_MAX_ATTACH_BYTES} bytes"
        elif size > frame_bytes - _ANSWER_MORE_BYTES:
            reason = f"the answer to an attach of {size} bytes does not fit into a frame of {frame_bytes} bytes"
        else:
            return None
        return AmqpError("amqp:resource-limit-exceeded", reason)

    def _link(self, number: int) -> LinkEndpoint:
        link = self.links.get(number)
        if link is None or link.closed:
            raise IllegalStateException(f"link {number} is closed")
        return link

    def _add_link(self, session: SessionEndpoint, endpoint: proton.Link, name: str, *, by_peer: bool) -> LinkEndpoint:
        pointer = endpoint._impl
        link = LinkEndpoint(self._number(), session, endpoint, pointer, name, bool(endpoint.is_sender), by_peer)
        session.links[link.number] = link
        self.links[link.number] = link
        self.links_by_pointer[pointer] = link
        if not by_peer:
            self._rules.attached(len(self.links))
        return link

    @staticmethod
    def _open_link(
        link: LinkEndpoint,
        source: Terminus | None,
        target: Terminus | None,
        presettled: bool = False,
        properties: dict[str, Any] | None = None,
    ) -> None:
        if link.opened:
            raise IllegalStateException(f"link {link.number} is attached already")
        link.opened = True
        pointer = link.endpoint._impl
        write_terminus(lib.pn_link_source(pointer), source, lib.PN_SOURCE)
        write_terminus(lib.pn_link_target(pointer), target, lib.PN_TARGET)
        if link.by_peer:
            # AMQP 1.0 section 2.7.3: the answer names the modes in use; clients refuse others than they asked for.
            lib.pn_link_set_snd_settle_mode(pointer, lib.pn_link_remote_snd_settle_mode(pointer))
            receiver_mode = lib.pn_link_remote_rcv_settle_mode(pointer)
            lib.pn_link_set_rcv_settle_mode(pointer, receiver_mode)
            link.is_second = receiver_mode == lib.PN_RCV_SECOND
        else:
            lib.pn_link_set_snd_settle_mode(pointer, lib.PN_SND_SETTLED if presettled else lib.PN_SND_UNSETTLED)
        write_mapping(lib.pn_link_properties(pointer), properties)
        lib.pn_link_open(pointer)

    def free_link(self, link: LinkEndpoint) -> None:
        """Free a link that both sides have detached, unless a delivery of it is not settled yet."""
        if link.incoming or link.outgoing:
            return
        self._remove_link(link)
        link.endpoint.free()

    def _remove_link(self, link: LinkEndpoint) -> None:
        self.links.pop(link.number, None)
        self.links_by_pointer.pop(link.pointer, None)
        link.session.links.pop(link.number, None)
        link.incoming.clear()
        link.outgoing.clear()
        self.settling -= len(link.settling)
        link.settling.clear()
        self._unfinished.remove(link)
        link.drop_later()
        self._attach_bytes -= link.attach_bytes
        link.attach_bytes = 0
        self._extra -= link.is_extra
        link.is_extra = False
        link.closed = link.remote_closed = True

    def _number(self) -> int:
        number = self._next_number
        self._next_number = number + 1
        return number

    def release(self) -> None:
        """Remove all sessions and links: the connection is released."""
        for link in list(self.links.values()):
            self._remove_link(link)
        for session in self.sessions.values():
            session.endpoint = None
        for table in (self.sessions, self.sessions_by_pointer, self.links, self.links_by_pointer, self._unanswered):
            table.clear()


def _is_extra(source: Terminus | None, target: Terminus | None) -> bool:
    """Return whether a link is for requests, records or transactions, which an application does not ask for."""
    if target is not None and (target.coordinator or target.address in (MANAGEMENT_ADDRESS, RECORDS_ADDRESS)):
        return True
    return source is not None and source.address == MANAGEMENT_ADDRESS
