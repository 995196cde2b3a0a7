"""The port between the SDK and whatever carries its messages.

Theory of operation
    A transport is one connection.  Every call may be made from any thread.  What blocks takes ``timeout`` in
    seconds (``None``: no limit) and keeps it, also while the network is away; past it the call raises
    ``OperationTimedOutException``.  Callbacks (sinks, ``on_settled``, the event listener) come from the
    transport's own threads, must return quickly, must not raise, and must not call back into the transport
    except for ``credit``, ``settle`` and ``send`` with ``on_settled``.

    Deliveries are *pushed*: a receiver has credit, the transport hands lists of deliveries to its sink and
    uses up one credit for each.  The sink only stores them; the SDK waits for them.

    The port holds no transaction state: a transacted session keeps its sends and hands them over with its
    settlements in one ``commit``.  So failover has nothing to untangle.

    Every delivery's tag carries the epoch of the connection.  A transport ignores settlements of another
    epoch than its own; whether that is an error is for the acknowledge modes to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from ack_modes import DeliveryTag, Settlement
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope
from broker_adapter.errors import JMSException


@attrs.frozen
class Credentials:
    """The user that connects.  ``client_id`` names the durable subscriptions; ``None``: the transport invents one."""

    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    client_id: str | None = None


#: Gives a user name and a password that are fresher than those which were refused.
Refresh = Callable[[], tuple[str | None, str | None]]


@attrs.frozen
class Server:
    """An address that a broker announces (``failover-server-list`` of its open frame)."""

    host: str
    port: int
    tls: bool | None = None  #: None: as here
    hostname: str | None = None  #: what to name in the open frame


@attrs.frozen
class Peer:
    """What is known of the other side once a transport is open."""

    product: str  #: ``Holdfast`` for our engine, else what the broker calls itself
    version: str
    client_id: str  #: the one in use, given or invented
    is_holdfast: bool  #: whether ``request`` works
    capabilities: frozenset[str] = frozenset()  #: AMQP capabilities that the broker offered
    rejects_duplicates: bool = False  #: whether a message that is sent again is never a second one
    has_transactions: bool = True  #: False: it is known to have none
    store: str | None = None  #: names the store of our engine: the same after a restart, another at another server
    run: str | None = None  #: names our engine until it is started again
    servers: tuple[Server, ...] = ()  #: where else the broker says that it can be reached
    redundancy: int = 0  #: how many further nodes of its group have what our server confirms
    is_group: bool = False  #: whether ``servers`` are the nodes of a group, which act as one server
    idle_seconds: float = 0.0  #: the idle time-out that the broker announces; 0: none


@attrs.frozen
class Subscription:
    """A subscription on a topic beside the plain one (Jakarta Messaging 3.1 section 8.3)."""

    name: str
    durable: bool
    shared: bool
    of_client: bool = True  #: known by the client id of its connection, if that has one; else by its name alone


@attrs.frozen
class SenderSpec:
    """A producer's link.  ``destination`` None: anonymous, each envelope names its own."""

    session: int
    destination: Destination | None

    def __str__(self) -> str:
        return f"a producer to {'any destination' if self.destination is None else repr(self.destination.name)}"


@attrs.frozen
class ReceiverSpec:
    """A consumer's or browser's link."""

    session: int
    destination: Destination
    selector: str | None = None
    no_local: bool = False
    subscription: Subscription | None = None
    browse: bool = False  #: copies of what waits, in order, taking nothing; ``drain`` tells the end
    presettled: bool = False  #: the broker forgets a message as it sends it (NO_ACK); implied by ``browse``
    exclusive: bool = False  #: of all exclusive consumers of a queue one gets everything, the others stand by
    keep_order: bool = False  #: nothing passes a message that it has failed on

    def __str__(self) -> str:
        return f"a {'browser' if self.browse else 'consumer'} of {self.destination.name!r}"


@attrs.frozen
class EventsSpec:
    """The link on which the connection's client gets the events of regions; of our own engine, one on a connection.

    With it the client is known to the engine, by the client id of the connection: requests register what it wants,
    say that it is ready and acknowledge its events (``broker_adapter.engine.operations.requests``).
    """

    session: int
    timeout_ms: int | None  #: how long the client may be away and keeps its queue; None: for ever; 0: it keeps none
    window: int  #: most events that were handed over and not acknowledged
    conflation: str = "server"  #: whether only the last of a key's updates is kept: "true", "false", or as the region

    def __str__(self) -> str:
        return "the link for events"


class RegionChange(NamedTuple):
    """What a commit does to a key of a region."""

    region: str
    key: str
    change: int  #: 0 (put), 1 (invalidate) or 2 (destroy)
    payload: bytes  #: the packed envelope that tells of it; of a put with the value


class _Carried:
    """What has a message that is decoded when it is first read (in the thread that reads it)."""

    __slots__ = ("_decode", "_envelope", "_payload")

    _decode: Callable[[Any], Envelope] | None
    _envelope: Envelope | None
    _payload: Any

    @property
    def payload(self) -> Any:
        """The message as it came; None once ``envelope`` was read."""
        return self._payload

    @property
    def envelope(self) -> Envelope:
        """The message, decoded when it is first read (in the thread that reads it).

        Raises:
            MessageFormatException: the payload cannot be decoded.
        """
        envelope = self._envelope
        if envelope is None:
            assert self._decode is not None
            envelope = self._envelope = self._decode(self._payload)
            self._payload = None
        return envelope


class Delivery(_Carried):
    """A message on its way to a consumer.

    Attributes:
        tag: names it in settlements.
        delivery_count: failed deliveries before this one; 0 for the first.
        position: its place in its queue, increasing and never reused; None where the broker has none.
        take_in_hand: to be called before the application gets it; returns whether it may, else it is settled by now.
            It blocks until the broker has stored that, and raises as a request does.  None: nothing is to be called.
    """

    __slots__ = ("delivery_count", "position", "tag", "take_in_hand")

    def __init__(
        self,
        tag: DeliveryTag,
        payload: Any,
        decode: Callable[[Any], Envelope],
        delivery_count: int = 0,
        position: int | None = None,
        take_in_hand: Callable[[], bool] | None = None,
    ) -> None:
        self.tag = tag
        self.delivery_count = delivery_count
        self.position = position
        self.take_in_hand = take_in_hand
        self._payload = payload
        self._decode = decode
        self._envelope = None

    def __repr__(self) -> str:
        return f"<Delivery {tuple(self.tag)} position={self.position} delivery_count={self.delivery_count}>"


class EventDelivery(_Carried):
    """An event of a region on its way to its client, or the marker: what came before it is history.

    ``envelope`` is the message of the event, with the value of a create or update; the marker has none.

    Attributes:
        position: its place among all events, increasing and never reused; the version of its key from then on.
        region: its name; None: this is the marker.
        operation: what has happened to the key: 0 (create), 1 (update), 2 (invalidate), 3 (destroy).
        key: to which it has happened.
        interests: (kind, text) of those of the client that match; see the operation ``register_interest``.
        queries: (name, operation) of those of the client's queries for which it is an event.
        is_history: whether it was queued before the client was ready.
    """

    __slots__ = ("interests", "is_history", "key", "operation", "position", "queries", "region")

    def __init__(
        self,
        position: int,
        region: str | None = None,
        operation: int = 0,
        key: str = "",
        interests: Sequence[tuple[int, str]] = (),
        queries: Sequence[tuple[str, int]] = (),
        is_history: bool = True,
        payload: Any = None,
        decode: Callable[[Any], Envelope] | None = None,
    ) -> None:
        self.position = position
        self.region = region
        self.operation = operation
        self.key = key
        self.interests = interests
        self.queries = queries
        self.is_history = is_history
        self._payload = payload
        self._decode = decode
        self._envelope = None

    def __repr__(self) -> str:
        if self.region is None:
            return f"<EventDelivery: marker behind {self.position}>"
        return f"<EventDelivery {self.position}: {self.operation} of {self.key!r} in {self.region!r}>"


@attrs.frozen
class Interrupted:
    """The connection was lost and is being restored; all deliveries so far are stale."""

    error: JMSException  #: why


@attrs.frozen
class Restoring:
    """The connection to this broker is there, and nothing that hung on it yet; the listener may make requests now.

    Attributes:
        peer: the broker.
        request: asks it something beyond messaging; its arguments are those of ``Transport.request``.
        token: what our own broker knows the lost connection by.
    """

    peer: Peer
    request: Callable[[str, Mapping[str, Any], float | None], Any]
    token: str = attrs.field(default="", repr=False)


@attrs.frozen
class Restored:
    """The connection works again; deliveries carry ``epoch`` from now on, and no receiver has credit."""

    epoch: int  #: which connection it is, counted from 0
    peer: Peer | None = None  #: what is known of its broker
    address: str = ""  #: which broker it is now
    attempts: int = 1  #: how many it took
    seconds: float = 0.0  #: how long it was away


@attrs.frozen
class LinkLost:
    """The broker closed one link (a consumer's or producer's) while the connection lives; it stays closed."""

    link: int  #: its number
    error: JMSException  #: why
    tag_link: int | None = None  #: the link in the tags of its deliveries, which are stale; None: there are none


@attrs.frozen
class LinkInterrupted:
    """The broker closed one link while the connection lives, and it is being attached again."""

    link: int  #: its number
    error: JMSException  #: why
    tag_link: int | None  #: as in ``LinkLost``


@attrs.frozen
class LinkRestored:
    """A link is attached again; a receiver has no credit."""

    link: int  #: its number


@attrs.frozen
class BrokerAnnounced:
    """What the broker announces of itself, as the connection is there and whenever it has changed.

    It is told where the options of the client ask for it.
    """

    servers: tuple[Server, ...]  #: as in ``Peer``
    redundancy: int = 0  #: as in ``Peer``


@attrs.frozen
class Failed:
    """The connection is gone for good; every later call raises ``error``."""

    error: JMSException  #: why


TransportEvent = (
    Interrupted | Restoring | Restored | LinkLost | LinkInterrupted | LinkRestored | BrokerAnnounced | Failed
)
Sink = Callable[[Sequence[Delivery]], None]
EventSink = Callable[[Sequence[EventDelivery]], None]
#: What a link is for, and the sink that goes with it: None of a producer's.
LinkSpec = SenderSpec | ReceiverSpec | EventsSpec
LinkSink = Sink | EventSink | None
OnSettled = Callable[[JMSException | None], None]


class Transport(Protocol):
    """One connection to a broker.  See the module's theory of operation for threads and time."""

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """Connect, log in and open.  Where this raises, the transport has to be closed all the same.

        Args:
            credentials: who connects.
            listener: gets the transport's events.
            timeout: longest wait in seconds; None: ``connect_timeout_seconds`` of the URL for each attempt.

        Raises:
            JMSSecurityException: the broker refused the login.
            InvalidClientIDException: the client id is in use.
            ConnectionLostException: no server answers there, or not in AMQP.
        """

    def close(self, timeout: float | None) -> None:
        """Close the connection and free what it holds; legal twice, never raises for a network that is away.

        What was delivered and is not settled goes back to its queue.  Temporary destinations end.
        """

    def end_session(self, session: int, timeout: float | None) -> bool:
        """Detach all links of this session number; unknown numbers are ignored.

        Returns:
            Whether the broker has answered, so that it has what was handed over before; False: the network is away, or
            was lost meanwhile.
        """

    def attach(self, spec: LinkSpec, sink: LinkSink, timeout: float | None) -> int:
        """Make a link and return its number.  A receiver needs a ``sink`` and starts with no credit.

        A link for events needs no credit: its window says how much is sent.  It is lost (``LinkLost``) where the
        engine has dropped the client's queue.

        Raises:
            InvalidClientIDException: a link for events, and another connection is this durable client.
            InvalidDestinationException: the broker has no such destination, or refuses it in this role.
            InvalidSelectorException: the selector is invalid, or the broker did not confirm it.
            JMSSecurityException: not allowed.
        """

    def detach(self, link: int, timeout: float | None) -> bool:
        """End a link; a durable subscription stays.  Deliveries not settled may still be settled (JMS keeps
        messages of a closed consumer until the session acknowledges them); those never passed on by the SDK
        are to be settled RELEASED by the caller.  Unknown numbers are ignored.

        Returns:
            As ``end_session``.
        """

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        """Delete the durable subscription of this name.

        Args:
            name: of the subscription.
            timeout: longest wait in seconds.
            session: the number of the session that asks, which waits for the network no longer than it lasts; None: no
                session asks.

        Raises:
            InvalidDestinationException: there is none.
            IllegalStateException: a consumer uses it.
        """

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        """A new temporary queue or topic that lives as long as this connection; ``session`` as in ``unsubscribe``."""

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        """Delete a temporary destination of this connection; raises IllegalStateException while it is consumed."""

    def credit(self, link: int, messages: int) -> None:
        """Let the broker send this many more messages on a receiver's link."""

    def drain(self, link: int, timeout: float | None) -> bool:
        """Return when the broker has sent on this link all that it can and its credit is gone.

        Returns:
            Whether that is so, and the deliveries have reached the sink; False: this broker answers no drain.

        Raises:
            ConnectionLostException: the network is away, or went meanwhile; this does not wait for its return.
            OperationTimedOutException: the time was over first; the link goes on.
            IllegalStateException: the link is closed.
        """

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        """Return when the broker has carried out what was settled before.

        Our own engine has it on disk then.  Of another broker it is known that it has taken note of it.  Where the
        connection is lost and restored meanwhile, what was lost with it has been sent again.

        Args:
            timeout: longest wait in seconds.
            session: as in ``unsubscribe``.
            link: of the consumer that asks, which waits no longer than its link is attached; None: no consumer asks.
            outlasts_loss: whether this waits for the network where it is away, or goes meanwhile.

        Raises:
            ConnectionLostException: the connection is lost for good; or the network is away, and this does not wait.
            OperationTimedOutException: no answer in time.
            IllegalStateException: the session has ended meanwhile; or the link has, before this or meanwhile.
        """

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        """Send on a sender's link.

        With ``on_settled`` None: returns when the broker has confirmed (a persistent message is then on disk).
        Otherwise: returns when the message is handed over, having waited at most ``timeout`` for a place in the
        send window; ``on_settled`` is then called exactly once, with None or with the reason of the refusal, in
        the order of the sends on this link.  What is raised below may then come to ``on_settled`` instead.

        Raises:
            IllegalStateException: the link is closed.
            InvalidDestinationException: the destination does not exist any more, or its name cannot be one.
            ResourceAllocationException: a limit of the broker, which held the sender back first.
            MessageFormatException: the envelope cannot be encoded, or is larger than the limit.
            OperationTimedOutException: no confirmation (or no place) in time.
        """

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Hand settlements over, in order.  Does not wait for the broker.

        Raises:
            ConnectionLostException: the network is away.
        """

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """Do all of this or nothing: (link, envelope) sends, settlements and changes of one transacted session.

        ``commit_number`` counts up within the session; with our engine it makes a repeated commit harmless.

        Raises:
            TransactionRolledBackException: nothing was done (a refused send or change, a limit, a stale delivery).  The
                deliveries of ``settlements`` have failed: they are redelivered with their count raised.
            TransactionInDoubtException: the connection was lost, and the broker cannot tell.
            OperationTimedOutException: no answer in time; it may yet be done.
        """

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """Ask our own engine something beyond messaging (``broker_adapter.engine.operations.requests`` lists the
        operations).

        Raises:
            JMSException: the peer is not a Holdfast server, or what the operation raises.
        """


class RemoteTransport(Transport, Protocol):
    """A connection over a network."""

    def begin_request(
        self, operation: str, arguments: Mapping[str, Any], done: Callable[[Any, JMSException | None], bool]
    ) -> None:
        """Ask as ``request`` does, without a wait.  Those of one kind are carried out in the order of these calls.

        ``done`` is called with the answer or the error, in the thread of the connection.
        """
