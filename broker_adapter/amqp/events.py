"""What happens on an AMQP connection, in the words of :class:`broker_adapter.amqp.proton_engine.peer.Peer`.  Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker_adapter.amqp.conditions import AmqpError

# Delivery states (AMQP 1.0 sections 3.4 and 4.5).
RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34


class State(NamedTuple):
    """The state of a delivery: how it ended, or which transaction it belongs to."""

    code: int  #: one of the constants above; 0 where the peer settled without a state
    error: AmqpError | None = None  #: of REJECTED
    failed: bool = False  #: of MODIFIED: delivery-failed
    undeliverable: bool = False  #: of MODIFIED: undeliverable-here
    annotations: dict[Any, Any] | None = None  #: of MODIFIED
    txn_id: bytes | None = None  #: of DECLARED and TRANSACTIONAL
    outcome: State | None = None  #: of TRANSACTIONAL


NO_STATE: Final = State(0)
ACCEPTED_STATE: Final = State(ACCEPTED)
RELEASED_STATE: Final = State(RELEASED)
FAILED_STATE: Final = State(MODIFIED, failed=True)
PLAIN_STATES: Final = {0: NO_STATE, ACCEPTED: ACCEPTED_STATE, RELEASED: RELEASED_STATE}


class Terminus(NamedTuple):
    """A source or target of a link (AMQP 1.0 section 3.5).  ``coordinator``: a transaction coordinator's target."""

    address: str | None = None
    durable: int = 0  #: 0 none, 1 configuration, 2 unsettled-state
    expiry: str | None = None  #: link-detach, session-end, connection-close or never; None: the default, session-end
    timeout: int = 0  #: seconds
    dynamic: bool = False
    dynamic_properties: dict[Any, Any] | None = None
    copies: bool = False  #: distribution-mode ``copy``
    filters: dict[Any, Any] | None = None
    outcomes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    coordinator: bool = False


# What happened.


class RemoteOpen(NamedTuple):
    """The peer opened the connection."""

    container_id: str
    hostname: str | None
    offered_capabilities: frozenset[str]
    desired_capabilities: frozenset[str]
    properties: dict[Any, Any]
    idle_seconds: float = 0.0  #: the idle time-out that it announced; 0: none
    refusal: AmqpError | None = None  #: what it asks for and cannot have: close the connection with it


class RemoteClose(NamedTuple):
    """The peer closed the connection."""

    error: AmqpError | None


class SessionRemoteOpen(NamedTuple):
    """The peer began a session (``by_peer``), or answered ours."""

    session: int
    by_peer: bool


class SessionRemoteClose(NamedTuple):
    """The peer ended a session; it is answered and its links are gone."""

    session: int
    error: AmqpError | None
    unsent: dict[int, list[int]]  #: link → its messages that the peer has not got as a whole


class LinkRemoteOpen(NamedTuple):
    """The peer attached a link (``by_peer``: answer with ``accept_link`` or ``refuse_link``), or answered ours."""

    link: int
    session: int
    name: str
    by_peer: bool
    is_sender: bool  #: whether we send on it
    source: Terminus | None
    target: Terminus | None
    presettled: bool  #: snd-settle-mode ``settled``
    max_message_bytes: int | None
    properties: dict[Any, Any]
    excess: AmqpError | None = None  #: the limit that the peer's attach goes beyond: ``refuse_link`` with it
    is_second: bool = False  #: ``by_peer`` with rcv-settle-mode ``second``: the receiver settles once the sender has


class LinkRemoteClose(NamedTuple):
    """The peer detached a link, for good where ``closed``; answer with ``close_link``."""

    link: int
    closed: bool
    error: AmqpError | None


class LinkFlow(NamedTuple):
    """The credit of a link changed: what we may still send, or (a receiver's link) what the peer may."""

    link: int
    credit: int
    drain: bool


class Incoming(NamedTuple):
    """A complete message.  ``number`` 0: already settled by the sender."""

    number: int
    payload: bytes
    state: State | None  #: the transaction it was sent in


class Transfers(NamedTuple):
    """Messages that came in on a link, in order."""

    link: int
    deliveries: list[Incoming]


class Dropped(NamedTuple):
    """Messages that came in on a link are not handed out; they are settled, and have used up credit."""

    link: int
    messages: int
    txn_ids: set[bytes]  #: the transactions that they were to be part of
    error: AmqpError | None  #: why, where they are missed: a limit, or the link's end; None: their sender gave them up


class Dispositions(NamedTuple):
    """Deliveries that we sent ended, all alike; settle them with ``settle_second`` where the link ``is_second``."""

    link: int
    numbers: list[int]
    state: State


class TransportFailed(NamedTuple):
    """The peer broke the protocol, fell silent or went away: nothing more will come."""

    error: AmqpError


Event = (
    RemoteOpen
    | RemoteClose
    | SessionRemoteOpen
    | SessionRemoteClose
    | LinkRemoteOpen
    | LinkRemoteClose
    | LinkFlow
    | Transfers
    | Dropped
    | Dispositions
    | TransportFailed
)
