"""The client's side of an AMQP connection as the transport port needs it: no sockets, threads or clock.

Theory of operation
    ``receive(data)`` takes bytes, ``pending_output()`` returns bytes; in between, the methods below ask for something
    and call back when it is there.  All calls must come from one thread.  A *done* callback is called exactly once,
    with a result or with an error, and answers whether anybody still waits: what came too late is undone.

    Each session number of the port has an AMQP session of its own, so that transactions and windows of one do not
    touch the others; one more carries temporary destinations, ``unsubscribe`` and requests.

    Sends wait in their link's queue for credit.  Their answers may come in any order; they are passed on in the order
    of the sends.

    Commits and requests have files of their own, :mod:`commits` and :mod:`requests`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

import attrs

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.brokers import BrokerTraits, servers_of, traits_of
from broker_adapter.amqp.client.commits import Commit, Coordinator, settle_runs
from broker_adapter.amqp.client.requests import Requests
from broker_adapter.amqp.conditions import AmqpError, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    Dropped,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    State,
    Terminus,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.payloads import decode_received, received
from broker_adapter.amqp.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import Login
from broker_adapter.amqp.values import Described, Symbol, ULong
from broker_adapter.amqp.wire import (
    CONNECTION_TOKEN,
    DELETE_ON_CLOSE_CODE,
    DESTINATION_CAPABILITIES,
    EXCLUSIVE_CAPABILITY,
    FORMER_NAME,
    MANAGEMENT_ADDRESS,
    NO_LOCAL_CODE,
    OUTCOMES,
    SELECTOR_CODE,
    envelope_capabilities,
)
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import ENVELOPE_VERSION, Envelope
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    ProtocolException,
    TransactionRolledBackException,
)
from broker_adapter.transport import (
    Delivery,
    Failed,
    LinkLost,
    OnSettled,
    ReceiverSpec,
    SenderSpec,
    ServersAnnounced,
    Sink,
    TransportEvent,
)
from broker_adapter.version import PRODUCT

#: Subscriptions of a connection whose sources are remembered, so that they can be deleted; the oldest is forgotten.
MAX_SOURCES: Final = 1000

Done = Callable[[Any, JMSException | None], bool]

#: How long another broker may take to answer a drain before its link or session is ended all the same.
_DRAIN_PATIENCE_MS: Final = 2000
_UNDECODABLE: Final = State(REJECTED, error=AmqpError("amqp:decode-error", "the message cannot be decoded"))
#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__


class Phase(Enum):
    """Where a connection stands."""

    NEW = "new"
    LOGIN = "login"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


@attrs.frozen(kw_only=True)
class ClientOptions:
    """How a client opens its connection."""

    container_id: str
    hostname: str | None
    version: str
    has_client_id: bool  #: whether the application chose the container id
    commit_prefix: str  #: unique for ever; with a session number it names the session in commit ids
    envelope: bool = True  #: whether our own format is used where the peer offers it
    queue_prefix: str | None = None  #: None: what the broker asks for
    topic_prefix: str | None = None
    epoch: int = 0
    #: names the connection to our own server, so that its successor takes its place there; secret
    connection_token: str | None = None
    limits: PeerLimits = attrs.field(factory=PeerLimits)
    tls: bool = False  #: whether the connection is encrypted


@attrs.define(eq=False)
class _Send:
    """A message on its way, until it is on the wire."""

    payload: bytes
    done: OnSettled
    state: State | None = None  #: the transaction that it belongs to
    transmitted: Callable[[], None] | None = None  #: told when it is ahead of all that is sent then


@attrs.define(eq=False)
class _Sender:
    """A link that we send on."""

    link: int
    session: int  #: of the port
    spec: SenderSpec | None
    attached: Done | None
    queue: deque[_Send] = attrs.field(factory=deque)
    credit: int = 0
    waiting: deque[tuple[int, OnSettled]] = attrs.field(factory=deque)
    results: dict[int, JMSException | None] = attrs.field(factory=dict)
    max_message_bytes: int | None = None
    temporary: DestinationKind | None = None
    error: JMSException | None = None  #: why it was refused, once known to be


@attrs.define(eq=False)
class _Receiver:
    """A link that we receive on."""

    link: int
    session: int
    spec: ReceiverSpec
    sink: Sink
    attached: Done | None
    filters: dict[Any, Any]
    decode: Any = None
    drains: list[Done] = attrs.field(factory=list)
    detached: Done | None = None  #: told when it has left
    error: JMSException | None = None


class ClientProtocol:
    """One connection to a broker.  See the module's theory of operation."""

    def __init__(
        self,
        options: ClientOptions,
        login: Login | None,
        listener: Callable[[TransportEvent], None],
        on_sends_done: Callable[[int], None],
        *,
        public_classes: bool = False,
    ) -> None:
        """A protocol that has sent nothing yet.

        Args:
            options: how to open.
            login: the SASL exchange to go through first, if any.
            listener: told of LinkLost and Failed.
            on_sends_done: told how many sends got their answer, after their callbacks.
            public_classes: whether the peer uses proton's public classes only.
        """
        self._options = options
        self._login = login
        self._listener = listener
        self._on_sends_done = on_sends_done
        self._peer = Peer(options.limits, public_classes=public_classes)
        self._phase = Phase.NEW
        self._opened: Done | None = None
        self._closed: Done | None = None
        self._failure: JMSException | None = None
        self.traits = BrokerTraits()
        self._sessions: dict[int, int] = {}  # the port's number → the peer's; -1 is our own
        self._ended: dict[int, Done] = {}
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._coordinators: dict[int, Coordinator] = {}  # by session of the port
        self._committed: dict[int, int] = {}  # the last commit of each session of the port that was done
        self._requests: Requests | None = None
        self._unsubscribing: dict[int, Done] = {}
        self._closing_links: dict[int, tuple[Done, bool]] = {}  # with whether an error in the answer counts
        self._leaving: dict[int, _Receiver] = {}  # detached by the SDK, and not yet at the broker
        self._draining: dict[int, int] = {}  # link of another broker → when it was asked for a drain, until it answers
        self._late_ends: dict[int, tuple[set[int], Done]] = {}  # the peer's session → drains that it waits for
        self._maybe_drained: dict[int, None] = {}  # links whose credit an event of this input may have used up
        self._now_ms = 0  # at the last tick
        self._sources: dict[str, Terminus] = {}  # subscription name → where it was last consumed from
        self._temporary: dict[str, _Sender] = {}
        self._subscribers: dict[str, list[int]] = {}  # subscription name → the links of its consumers
        self._subscription_links: dict[str, int] = {}  # subscription name → how many links it had since it had none
        self._next_name = 1
        self._sends_done = 0
        self.addresses = Addresses(options.queue_prefix or "", options.topic_prefix or "")

    def __repr__(self) -> str:
        return (
            f"<ClientProtocol {self._phase.name} senders={len(self._senders)} receivers={len(self._receivers)} "
            f"failure={self._failure!r}>"
        )

    @property
    def phase(self) -> Phase:
        """Where the connection stands."""
        return self._phase

    @property
    def envelope_version(self) -> int:
        """The version of our own format in which messages are sent; 0: standard AMQP; meaningful once open."""
        return self.traits.envelope_version

    # Bytes.

    def receive(self, data: bytes) -> None:
        """Take bytes from the network; callbacks tell what they meant."""
        login = self._login
        if login is not None:
            login.receive(data)
            if login.error is not None:
                self.fail(login.error)
                return
            if not login.done:
                return
            self._login = None
            data = login.leftover()
            self._begin_amqp()
        if data:
            self._peer.receive(data)
            self._process()

    def receive_end(self) -> None:
        """The network will bring no more bytes."""
        if self._phase is Phase.CLOSING:
            self._finish(None)
        elif self._login is not None:
            remedy = (
                "it may have too many logins at once, so try again, or its log says why"
                if self._options.tls
                else "if it wants TLS, connect with amqps://"
            )
            self.fail(ConnectionLostException(f"the peer closed the connection during the login; {remedy}"))
        else:
            self._peer.receive_end()
            self._process()
            self.fail(ConnectionLostException("the peer closed the network connection"))

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now."""
        if self._login is not None:
            return self._login.pending_output()
        if self._phase is Phase.NEW:
            return b""
        return self._peer.pending_output(limit_bytes)

    @property
    def output_closed(self) -> bool:
        """Whether nothing more will be sent."""
        return self._phase is Phase.CLOSED or self._peer.output_closed

    def tick(self, now_ms: int) -> int | None:
        """Let time pass; see :meth:`Peer.tick`."""
        self._now_ms = now_ms
        if self._login is not None or self._phase in (Phase.NEW, Phase.CLOSED):
            return None
        deadline = self._peer.tick(now_ms)
        for link in [link for link, asked_ms in self._draining.items() if now_ms - asked_ms >= _DRAIN_PATIENCE_MS]:
            self._wait_no_more(link)
        self._process()
        return deadline

    def _process(self) -> None:
        for event in self._peer.events():
            if self._phase is Phase.CLOSED:
                return
            self._HANDLERS[type(event)](self, event)
        if self._maybe_drained:
            # Behind all events: the credit that proton tells is that behind all of the input.
            links, self._maybe_drained = self._maybe_drained, {}
            for link in links:
                if self._peer.remaining_credit(link) <= 0:
                    self._on_drained(link)
        if self._sends_done:
            count = self._sends_done
            self._sends_done = 0
            self._on_sends_done(count)

    # The connection.

    def open(self, done: Done) -> None:
        """Log in and open; done with what is known of the broker."""
        assert self._phase is Phase.NEW
        self._opened = done
        self._phase = Phase.LOGIN
        if self._login is None:
            self._begin_amqp()

    def _begin_amqp(self) -> None:
        self._phase = Phase.OPENING
        desired = ["ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS"]
        if self._options.has_client_id:
            desired.insert(0, "sole-connection-for-container")
        if self._options.envelope:
            desired += envelope_capabilities(ENVELOPE_VERSION)
        properties = {"product": PRODUCT, "version": self._options.version}
        if self._options.connection_token is not None:
            properties[CONNECTION_TOKEN] = self._options.connection_token
        self._peer.open(
            self._options.container_id,
            hostname=self._options.hostname,
            desired_capabilities=desired,
            properties=properties,
        )
        self._session(-1)

    def _on_open(self, event: RemoteOpen) -> None:
        if event.properties.get("amqp:connection-establishment-failed", False) is not False:
            return  # a close with the reason follows; Artemis says it with the text "true"
        self.traits = traits = traits_of(event, envelope=self._options.envelope)
        self.addresses = Addresses(
            _prefix(self._options.queue_prefix, traits.queue_prefix),
            _prefix(self._options.topic_prefix, traits.topic_prefix),
        )
        self._phase = Phase.OPEN
        opened, self._opened = self._opened, None
        if opened is not None and not opened(traits.peer(self._options.container_id), None):
            self.close(lambda _result, _error: True)

    def close(self, done: Done) -> None:
        """Close the connection; done when the broker has answered, or the network is gone."""
        if self._phase in (Phase.CLOSED, Phase.NEW):
            self._phase = Phase.CLOSED
            done(None, None)
            return
        if self._phase is Phase.LOGIN:
            self._closed = done
            self._finish(None)
            return
        self._closed = done
        if self._phase is not Phase.CLOSING:
            self._phase = Phase.CLOSING
            self._peer.close()

    def _on_close(self, event: RemoteClose) -> None:
        if self._phase is Phase.CLOSING:
            self._finish(None)
            return
        self._peer.close()
        reason = "the broker closed the connection"
        self.fail(exception_for(event.error, reason, ConnectionLostException))

    def _on_failed(self, event: TransportFailed) -> None:
        if self._phase is Phase.CLOSING:
            self._finish(None)
            return
        condition, description, _ = event.error
        if condition == "amqp:resource-limit-exceeded" and description == "local-idle-timeout expired":
            limit = self._options.limits.idle_timeout_ms / 1000
            self.fail(ConnectionLostException(f"the broker was silent for {limit:g} s", error_code=condition))
        elif "connection aborted" in (description or ""):
            self.fail(ConnectionLostException("the peer closed the network connection"))
        else:
            self.fail(ProtocolException(f"the connection broke: {description}", error_code=condition))

    def fail(self, error: JMSException) -> None:
        """The connection is gone: every waiting call gets ``error``, and so does the listener."""
        if self._phase is Phase.CLOSED:
            return
        self._finish(error)

    def release(self) -> None:
        """Free what the connection has in memory; the carrier of its bytes is gone.  Legal twice."""
        if self._phase is not Phase.CLOSED:
            self.fail(ConnectionLostException("the network connection is gone"))
        self._peer.release()

    def _finish(self, error: JMSException | None) -> None:
        was_open = self._phase is Phase.OPEN
        self._phase = Phase.CLOSED
        reason = error or IllegalStateException("the connection is closed")
        self._failure = reason
        opened, self._opened = self._opened, None
        calls: list[Done] = [] if opened is None else [opened]
        calls.extend(self._ended.values())
        calls.extend(self._unsubscribing.values())
        calls.extend(done for done, _ in self._closing_links.values())
        calls.extend(done for _, done in self._late_ends.values())
        calls.extend(receiver.detached for receiver in self._leaving.values() if receiver.detached is not None)
        # Before its sends fail: that would look like a refusal by the broker.
        for coordinator in self._coordinators.values():
            coordinator.lose(reason)
        for sender in self._senders.values():
            if sender.attached is not None:
                calls.append(sender.attached)
            self._fail_sends(sender, reason)
        for receiver in self._receivers.values():
            calls.extend(call for call in (receiver.attached, *receiver.drains) if call is not None)
        if self._requests is not None:
            self._requests.fail(reason)
        for table in (
            self._ended,
            self._unsubscribing,
            self._closing_links,
            self._senders,
            self._receivers,
            self._coordinators,
            self._leaving,
            self._draining,
            self._late_ends,
            self._temporary,
            self._sessions,
        ):
            table.clear()
        self._requests = None
        for call in calls:
            call(None, reason)
        if self._sends_done:
            count, self._sends_done = self._sends_done, 0
            self._on_sends_done(count)
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(None, None)
        if error is not None and was_open:
            self._listener(Failed(error))

    # Sessions.

    def _session(self, number: int) -> int:
        session = self._sessions.get(number)
        if session is None:
            session = self._sessions[number] = self._peer.begin_session()
        return session

    def end_session(self, number: int, done: Done) -> None:
        """End a session with its links; done when the broker has answered."""
        session = self._sessions.pop(number, None)
        if session is None:
            done(None, None)
            return
        receivers = (*self._receivers.values(), *self._leaving.values())
        drains = {each.link for each in receivers if each.session == number and each.link in self._draining}
        closed = IllegalStateException("the session is closed")
        for sender in [each for each in self._senders.values() if each.session == number]:
            self._forget_sender(sender, closed)
        for receiver in [each for each in self._receivers.values() if each.session == number]:
            self._forget_receiver(receiver, closed)
        self._forget_leaving(number)
        self._drop_coordinator(number, closed)
        self._committed.pop(number, None)  # our own server remembers
        if drains:
            self._late_ends[session] = drains, done
        else:
            self._end(session, done)

    def go_round(self, done: Done) -> None:
        """Done when the broker has read all that was sent before: a session of its own has begun and ended."""
        self._end(self._peer.begin_session(), done)

    def _end(self, session: int, done: Done) -> None:
        self._ended[session] = done
        self._peer.end_session(session)

    def _on_session_open(self, event: SessionRemoteOpen) -> None:
        if event.by_peer:
            self._peer.end_session(event.session, AmqpError("amqp:not-allowed", "a broker begins no session here"))

    def _on_session_close(self, event: SessionRemoteClose) -> None:
        done = self._ended.pop(event.session, None)
        if event.session in self._late_ends:
            drains, done = self._late_ends.pop(event.session)
            for link in drains:
                self._draining.pop(link, None)
        if done is not None:
            done(None, None)
            return
        number = next((each for each, session in self._sessions.items() if session == event.session), None)
        if number is None:
            return
        del self._sessions[number]
        error = exception_for(event.error, "the broker ended the session")
        if number == -1:
            for waiting in self._unsubscribing.values():
                waiting(None, error)
            self._unsubscribing.clear()
            self._drop_requests(error)
        senders = [each for each in self._senders.values() if each.session == number]
        receivers = [each for each in self._receivers.values() if each.session == number]
        # The listener first: it knows then what the failure of a send means.
        links = [each.link for each in senders if each.attached is None]
        links += [each.link for each in receivers if each.attached is None]
        for link in links:
            self._listener(LinkLost(link, error))
        for receiver in (*receivers, *self._leaving.values()):
            if receiver.session == number:
                self._draining.pop(receiver.link, None)
        for sender in senders:
            self._forget_sender(sender, error)
        for receiver in receivers:
            attached, receiver.attached = receiver.attached, None
            self._forget_receiver(receiver, error)
            if attached is not None:
                attached(None, error)
        self._forget_leaving(number)
        self._drop_coordinator(number, error)

    # Links.

    def attach_sender(self, spec: SenderSpec, done: Done) -> None:
        """Attach a producer's link; done with (link, greatest message in bytes or None)."""
        name = self._name("sender", spec.destination)
        target = Terminus()
        if spec.destination is not None:
            address = self.addresses.of(spec.destination)
            target = Terminus(address, capabilities=(DESTINATION_CAPABILITIES[spec.destination.kind],))
        link = self._peer.attach_sender(self._session(spec.session), name, Terminus(name, outcomes=OUTCOMES), target)
        self._senders[link] = _Sender(link, spec.session, spec, done)

    def attach_receiver(self, spec: ReceiverSpec, sink: Sink, done: Done) -> None:
        """Attach a consumer's or browser's link; done with its number."""
        refusal = _unusable(spec) or self.traits.refusal_of(spec)
        if refusal is not None:
            done(None, refusal)
            return
        kind = spec.destination.kind
        capabilities = [DESTINATION_CAPABILITIES[kind]]
        name = self._name("receiver", spec.destination)
        subscription = spec.subscription
        durable = subscription is not None and subscription.durable
        if subscription is not None:
            if not subscription.shared and subscription.name in self._subscribers:
                # A second link of the same name would end the connection, or take the first one's place.
                reason = f"subscription {subscription.name!r} is in use by another consumer"
                done(None, IllegalStateException(reason))
                return
            if subscription.shared:
                capabilities.append("shared")
                if not self._options.has_client_id:
                    capabilities.append("global")
            name = self._subscription_link(subscription.name, durable=durable, shared=subscription.shared)
        filters: dict[Any, Any] = {}
        if spec.selector is not None:
            filters[Symbol("jms-selector")] = Described(ULong(SELECTOR_CODE), spec.selector)
        if spec.no_local:
            filters[Symbol("no-local")] = Described(ULong(NO_LOCAL_CODE), "NoLocalFilter{}")
        if spec.exclusive:
            capabilities.append(EXCLUSIVE_CAPABILITY)
        source = Terminus(
            self.addresses.of(spec.destination),
            durable=2 if durable else 0,
            expiry="never" if durable else "link-detach",
            copies=durable or spec.browse,
            filters=filters or None,
            outcomes=OUTCOMES,
            capabilities=tuple(capabilities),
        )
        link = self._peer.attach_receiver(
            self._session(spec.session), name, source, Terminus(), presettled=spec.presettled or spec.browse
        )
        receiver = _Receiver(link, spec.session, spec, sink, done, filters)
        receiver.decode = self._decoder(spec.destination)
        self._receivers[link] = receiver
        if subscription is not None:
            self._subscribers.setdefault(subscription.name, []).append(link)
            if subscription.durable:
                self._remember_source(subscription.name, source)

    def _decoder(self, destination: Destination) -> Callable[[bytes], Envelope]:
        addresses = self.addresses
        if not addresses:
            return partial(decode_received, destination=destination)
        address = destination._replace(name=addresses.of(destination))
        return lambda payload: addresses.inward(decode_received(payload, address))

    def _remember_source(self, name: str, source: Terminus) -> None:
        self._sources.pop(name, None)
        self._sources[name] = source
        if len(self._sources) > MAX_SOURCES:
            del self._sources[next(iter(self._sources))]

    def _name(self, role: str, destination: Destination | None) -> str:
        number = self._next_name
        self._next_name += 1
        address = None if destination is None else destination.name
        return f"holdfast:{role}:{self._options.container_id}:{number}:{address}"

    def _subscription_link(self, name: str, *, durable: bool, shared: bool) -> str:
        """The link's name, by which brokers know a subscription (the convention of the reference client)."""
        # Numbers are used again only when no link is left: the others still have their names.
        number = self._subscription_links.get(name, 0) + 1
        self._subscription_links[name] = number
        if not shared:
            return name
        suffix = "" if self._options.has_client_id else "global"
        if not durable:
            suffix = f"{suffix}-volatile{number}" if suffix else f"volatile{number}"
        elif number > 1:
            suffix = f"{suffix}{number}"
        return f"{name}|{suffix}" if suffix else name

    def _on_link_open(self, event: LinkRemoteOpen) -> None:
        link = event.link
        if event.by_peer:
            if self._peer.has_link(link):  # its session may have ended in the same input
                self._peer.refuse_link(link, AmqpError("amqp:not-allowed", "a broker attaches no link here"))
        elif link in self._senders:
            self._on_sender_open(self._senders[link], event)
        elif link in self._receivers:
            self._on_receiver_open(self._receivers[link], event)
        elif link in self._unsubscribing and event.source is not None:
            self._closing_links[link] = (self._unsubscribing.pop(link), True)
            self._peer.close_link(link)

    def _on_sender_open(self, sender: _Sender, event: LinkRemoteOpen) -> None:
        if event.target is None or sender.attached is None:
            return  # refused: a detach with the reason follows
        sender.max_message_bytes = event.max_message_bytes
        attached, sender.attached = sender.attached, None
        if sender.temporary is None:
            wanted = attached((sender.link, event.max_message_bytes), None)
        elif not event.target.address:
            sender.attached = attached
            sender.error = JMSException("the broker gave the temporary destination no address")
            self._peer.close_link(sender.link)
            return
        else:
            destination = Destination(event.target.address, sender.temporary)
            self._temporary[destination.name] = sender
            wanted = attached(destination, None)
        if not wanted:
            self.detach(sender.link, lambda _result, _error: True)

    def _on_receiver_open(self, receiver: _Receiver, event: LinkRemoteOpen) -> None:
        if event.source is None or receiver.attached is None:
            return
        if receiver.spec.browse and not event.source.copies:
            receiver.error = JMSException("the broker would hand messages out for good, instead of showing them")
            self._peer.close_link(receiver.link)
            return
        offered = event.source.filters or {}
        for key, filter_ in receiver.filters.items():
            echoed = offered.get(key)
            if not isinstance(echoed, Described) or echoed.value != filter_.value:
                # Never consume unfiltered what was to be filtered.
                what = f"selector {receiver.spec.selector!r}" if key == "jms-selector" else "no-local filter"
                receiver.error = InvalidSelectorException(f"the broker does not apply the {what}")
                self._peer.close_link(receiver.link)
                return
        attached, receiver.attached = receiver.attached, None
        if not attached(receiver.link, None):
            self.detach(receiver.link, lambda _result, _error: True)

    def detach(self, link: int, done: Done) -> None:
        """Detach a link; done when the broker has answered.  A durable subscription stays."""
        sender, receiver = self._senders.get(link), self._receivers.get(link)
        if sender is not None:
            self._forget_sender(sender, IllegalStateException("the producer is closed"))
            self._close_link(link, done, heeds=sender.temporary is not None)
        elif receiver is not None:
            closed = IllegalStateException("the consumer is closed")
            if not self.traits.ends_links_at_once and self._peer.unsettled(link):
                self._leave_later(receiver, closed)
                done(None, None)
            elif link in self._draining:
                self._leave_later(receiver, closed)
                receiver.detached = done
            else:
                self._forget_receiver(receiver, closed)
                self._close_link(link, done, closed=not _is_durable(receiver))
        else:
            done(None, None)

    def _leave_later(self, receiver: _Receiver, closed: JMSException) -> None:
        """Detach once everything is settled and the drain is answered.

        To a broker that is not ours, what comes later means nothing, or harm: Artemis answers a drain whose link has
        ended on a channel that there is not, which ends the connection.
        """
        self._forget_receiver(receiver, closed, keep_subscription=True)
        self._leaving[receiver.link] = receiver
        if self.traits.answers_drains:
            self._ask_for_drain(receiver.link)  # what still comes is released

    def _leave(self) -> None:
        """Detach the links that waited for their last settlement, or for the answer to their drain."""
        for link, receiver in list(self._leaving.items()):
            if link not in self._draining and not self._peer.unsettled(link):
                del self._leaving[link]
                self._forget_subscriber(receiver)
                done = receiver.detached or (lambda _result, _error: True)
                self._close_link(link, done, closed=not _is_durable(receiver))

    def _forget_leaving(self, session: int) -> None:
        for receiver in [each for each in self._leaving.values() if each.session == session]:
            del self._leaving[receiver.link]
            self._has_left(receiver)

    def _has_left(self, receiver: _Receiver) -> None:
        self._forget_subscriber(receiver)
        if receiver.detached is not None:
            receiver.detached(None, None)

    def _close_link(self, link: int, done: Done, *, closed: bool = True, heeds: bool = False) -> None:
        self._closing_links[link] = (done, heeds)
        self._peer.close_link(link, closed=closed)

    def _on_link_close(self, event: LinkRemoteClose) -> None:
        link = event.link
        left = self._leaving.pop(link, None)
        self._wait_no_more(link)  # it will not be answered any more
        closing = self._closing_links.pop(link, None)
        if closing is not None:
            done, heeds = closing
            if heeds and event.error is not None:
                done(None, exception_for(event.error, "the broker closed the link"))
            else:
                # The broker closed it at the same time: it is closed, which is what was wanted.
                done(None, None)
            return
        self._peer.close_link(link, closed=event.closed)
        if left is not None:
            self._has_left(left)
        sender, receiver = self._senders.get(link), self._receivers.get(link)
        if sender is not None:
            error = sender.error or _refusal(event.error, sender.attached is not None)
            attached, sender.attached = sender.attached, None
            self._tell_lost(link, attached, error)  # first: it is known then what the failure of a send means
            self._forget_sender(sender, error)
        elif receiver is not None:
            error = receiver.error or _refusal(event.error, receiver.attached is not None)
            attached, receiver.attached = receiver.attached, None
            self._tell_lost(link, attached, error)
            self._forget_receiver(receiver, error)
        elif link in self._unsubscribing:
            self._unsubscribing.pop(link)(None, _refusal(event.error, refused=True))
        elif self._requests is not None and link in self._requests.links:
            self._drop_requests(_refusal(event.error, refused=False))
        else:
            for session, coordinator in list(self._coordinators.items()):
                if coordinator.link == link:
                    self._drop_coordinator(session, _refusal(event.error, refused=False))

    def _tell_lost(self, link: int, attached: Done | None, error: JMSException) -> None:
        if attached is not None:
            attached(None, error)
        else:
            self._listener(LinkLost(link, error))

    def _forget_sender(self, sender: _Sender, error: JMSException) -> None:
        del self._senders[sender.link]
        for name, each in list(self._temporary.items()):
            if each is sender:
                del self._temporary[name]
        if sender.attached is not None:
            sender.attached(None, error)
        self._fail_sends(sender, error)

    def _fail_sends(self, sender: _Sender, error: JMSException) -> None:
        for number, done in sender.waiting:
            done(sender.results.get(number, error))
        for send in sender.queue:
            send.done(error)
        self._sends_done += len(sender.waiting) + len(sender.queue)
        sender.waiting.clear()
        sender.queue.clear()

    def _forget_receiver(self, receiver: _Receiver, error: JMSException, *, keep_subscription: bool = False) -> None:
        del self._receivers[receiver.link]
        if not keep_subscription:
            self._forget_subscriber(receiver)
        for call in (receiver.attached, *receiver.drains):
            if call is not None:
                call(None, error)
        receiver.drains.clear()

    def _forget_subscriber(self, receiver: _Receiver) -> None:
        subscription = receiver.spec.subscription
        if subscription is not None:
            links = self._subscribers.get(subscription.name, [])
            if receiver.link in links:
                links.remove(receiver.link)
            if not links:
                self._subscribers.pop(subscription.name, None)
                self._subscription_links.pop(subscription.name, None)

    def unsubscribe(self, name: str, done: Done) -> None:
        """Delete a durable subscription: an attach that finds it by its link's name, then a detach for good."""
        if name in self._subscribers:
            done(None, IllegalStateException(f"subscription {name!r} is in use by a consumer of this connection"))
            return
        link_name = name if self._options.has_client_id else f"{name}|global"
        # The reference client says with the attach's desired capabilities that the subscription is a shared one of
        # no client.  Our engine of AMQP cannot; where the source is known it says the same.
        source = None
        if not self._options.has_client_id and not self.traits.finds_subscriptions:
            source = self._sources.get(name)
        link = self._peer.attach_receiver(self._session(-1), link_name, source, Terminus())
        self._unsubscribing[link] = done
        self._sources.pop(name, None)

    def declare_temporary(self, kind: DestinationKind, done: Done, former_name: str | None = None) -> None:
        """Make a temporary destination that lives as long as the link made here; done with the destination.

        With ``former_name`` our own server gives it that name, which it had on a connection that was lost.
        """
        name = self._name("temporary", None)
        target = Terminus(
            dynamic=True,
            expiry="link-detach",
            dynamic_properties={
                "lifetime-policy": Described(ULong(DELETE_ON_CLOSE_CODE), []),
                **({} if former_name is None else {FORMER_NAME: former_name}),
            },
            capabilities=(DESTINATION_CAPABILITIES[kind],),
        )
        link = self._peer.attach_sender(self._session(-1), name, Terminus(name, outcomes=OUTCOMES), target)
        self._senders[link] = _Sender(link, -1, None, done, temporary=kind)

    def delete_temporary(self, destination: Destination, done: Done) -> None:
        """Delete a temporary destination of this connection."""
        sender = self._temporary.get(destination.name)
        if sender is None:
            done(
                None,
                InvalidDestinationException(f"{destination.name!r} is no temporary destination of this connection"),
            )
            return
        if any(each.spec.destination == destination for each in self._receivers.values()):
            done(None, IllegalStateException(f"temporary destination {destination.name!r} has a consumer"))
            return
        self.detach(sender.link, done)

    # Messages that come in.

    def credit(self, link: int, messages: int) -> None:
        """Let the broker send this many more messages."""
        if link in self._receivers:
            self._peer.credit(link, messages)

    def drain(self, link: int, done: Done) -> None:
        """Done with True when the broker has sent what it can and the credit is gone.

        With False at once where it does not answer: RabbitMQ 3 answers a drain with the end of the session.
        """
        receiver = self._receivers.get(link)
        if receiver is None:
            done(None, IllegalStateException(f"link {link} is closed"))
        elif not self.traits.answers_drains:
            done(False, None)
        elif receiver.drains or self._ask_for_drain(link):
            receiver.drains.append(done)
        else:
            done(True, None)

    def _ask_for_drain(self, link: int) -> bool:
        """Drain; returns whether there is an answer to wait for."""
        asked = self._peer.drain(link)
        if asked and not self.traits.ends_links_at_once:
            self._draining.setdefault(link, self._now_ms)
        return asked

    def _on_drained(self, link: int) -> None:
        """No credit is left on a link: that is the answer to a drain, where there was one."""
        receiver = self._receivers.get(link)
        if receiver is not None:
            drains, receiver.drains = receiver.drains, []
            for done in drains:
                done(True, None)
        self._wait_no_more(link)

    def _wait_no_more(self, link: int) -> None:
        """A drain was answered, or never will be: what was to end after it ends."""
        if self._draining.pop(link, None) is None:
            return
        self._leave()
        for session, (drains, done) in list(self._late_ends.items()):
            drains.discard(link)
            if not drains:
                del self._late_ends[session]
                self._end(session, done)

    def _on_flow(self, event: LinkFlow) -> None:
        link = event.link
        sender = self._senders.get(link)
        if sender is not None:
            sender.credit = event.credit
            if sender.queue:
                self._flush(sender)
            if event.drain:
                self._peer.drained(link)
                sender.credit = self._peer.remaining_credit(link)
            return
        self._maybe_drained[link] = None
        if link in self._receivers:
            return
        if self._requests is not None and link in self._requests.links:
            self._requests.on_credit(event.credit)
            return
        coordinator = self._coordinator_of(link)
        if coordinator is not None:
            coordinator.on_credit(event.credit)

    def _on_transfers(self, event: Transfers) -> None:
        link = event.link
        receiver = self._receivers.get(link)
        if receiver is None:
            if self._requests is not None and link in self._requests.links:
                try:
                    self._requests.on_answers(event)
                except ProtocolException as error:
                    self.fail(error)
            else:
                # A link on its way out: nobody will look at these.
                self._peer.settle(link, [each.number for each in event.deliveries], RELEASED_STATE)
                self._maybe_drained[link] = None
            return
        epoch, decode = self._options.epoch, receiver.decode
        deliveries = []
        for number, payload, _ in event.deliveries:
            try:
                position, count = received(payload)
            except MessageFormatException:
                self._peer.settle(link, (number,), _UNDECODABLE)
                if not receiver.drains:
                    self._peer.credit(link, 1)
                continue
            tag = _new(DeliveryTag, (epoch, link, number))
            deliveries.append(Delivery(tag, payload, decode, count, position))
        if deliveries:
            receiver.sink(deliveries)
        if receiver.drains:
            self._maybe_drained[link] = None

    def _on_dropped(self, event: Dropped) -> None:
        """Messages came that are not handed out: too large, more than was asked for, or given up by the broker."""
        link = event.link
        receiver = self._receivers.get(link)
        requests = self._requests if self._requests is not None and link in self._requests.links else None
        if event.error is not None:
            # The peer has closed the link; what came on it before may still be settled.
            error = exception_for(event.error, "the link was closed")
            if receiver is not None:
                attached, receiver.attached = receiver.attached, None
                self._tell_lost(link, attached, error)
                self._forget_receiver(receiver, error)
            elif requests is not None:
                self._drop_requests(error)
        elif receiver is not None and receiver.drains:
            self._maybe_drained[link] = None
        elif receiver is not None or requests is not None:
            self._peer.credit(link, event.messages)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle deliveries, in order; those of another epoch are ignored."""
        epoch = self._options.epoch
        ours = [each for each in settlements if each.tag.epoch == epoch]
        settle_runs(self._peer, ours, self.traits.states)
        if any(outcome is not Outcome.ACCEPTED for _, outcome in ours):
            self._peer.write_out()  # proton writes credit ahead of it, and what is later would come before it
        if self._leaving:
            self._leave()

    # Messages that go out.

    def send(self, link: int, payload: bytes, done: OnSettled) -> None:
        """Send when there is credit; done when the broker has answered, in the order of the sends on the link."""
        sender = self._senders.get(link)
        if sender is None:
            done(self._failure or IllegalStateException(f"link {link} is closed"))
            self._on_sends_done(1)
            return
        if sender.credit > 0 and not sender.queue:
            try:
                number = self._peer.send(link, payload)
            except IllegalStateException:
                pass  # its session has ended, which we are about to hear
            else:
                sender.credit -= 1
                sender.waiting.append((number, done))
                return
        sender.queue.append(_Send(payload, done))

    def _flush(self, sender: _Sender) -> None:
        queue, peer, link = sender.queue, self._peer, sender.link
        if not peer.has_link(link):
            return  # its session has ended, which we are about to hear: what waits fails then
        while queue and sender.credit > 0:
            send = queue.popleft()
            sender.credit -= 1
            number = peer.send(link, send.payload, state=send.state, on_given=send.transmitted)
            sender.waiting.append((number, send.done))

    def _on_dispositions(self, event: Dispositions) -> None:
        link = event.link
        sender = self._senders.get(link)
        if sender is not None:
            state = event.state
            error = None if state.code == ACCEPTED else _send_failure(state)
            waiting, results = sender.waiting, sender.results
            ended = 0
            for number in event.numbers:
                if waiting and waiting[0][0] == number:
                    waiting.popleft()[1](error)
                    ended += 1
                else:
                    results[number] = error
            while results and waiting and waiting[0][0] in results:
                number, done = waiting.popleft()
                done(results.pop(number))
                ended += 1
            self._sends_done += ended
            return
        coordinator = self._coordinator_of(link)
        if coordinator is not None:
            coordinator.on_answers(event.numbers, event.state)

    # Transactions.

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, bytes]],
        settlements: Sequence[Settlement],
        done: Done,
    ) -> None:
        """Do all of it or nothing; ``sends`` are (link, payload)."""
        if commit_number <= self._committed.get(session, -1):
            done(None, None)  # repeated: it was done, so its deliveries are settled
            return

        def ended(result: Any, error: JMSException | None) -> bool:
            if error is None:
                self._committed[session] = commit_number
                self._leave()
            elif isinstance(error, TransactionRolledBackException):
                # Those that the broker has taken back already are not known any more, and are left alone.
                self.settle([Settlement(tag, Outcome.MODIFIED) for tag, _ in settlements])
            return done(result, error)

        commit = Commit(commit_number, sends, settlements, ended)
        refusal = self._commit_refusal(commit)
        if refusal is not None:
            ended(None, refusal)
            return
        coordinator = self._coordinators.get(session)
        if coordinator is None:
            coordinator = self._coordinators[session] = self._attach_coordinator(session)
        coordinator.commit(commit)

    def withdraw(self, session: int, commit_number: int, done: Done) -> None:
        """Nobody waits for a commit any more; done with whether it is done (True), never will be (False), or neither.

        The last is None: it was sent, and has no answer.
        """
        coordinator = self._coordinators.get(session)
        if self._committed.get(session, -1) >= commit_number:
            done(True, None)
        else:
            done(False if coordinator is not None and coordinator.withdraw(commit_number) else None, None)

    def _commit_refusal(self, commit: Commit) -> JMSException | None:
        """Why nothing of a commit can be done, where that is clear before anything is sent."""
        for link, _ in commit.sends:
            if link not in self._senders:
                return TransactionRolledBackException(f"nothing was committed: link {link} is closed")
        for tag, _ in commit.settlements:
            if tag.epoch != self._options.epoch or not self._peer.is_unsettled(tag.link, tag.number):
                return TransactionRolledBackException(f"nothing was committed: delivery {tuple(tag)} is stale")
        return None

    def _attach_coordinator(self, session: int) -> Coordinator:
        name = self._name("coordinator", None)
        target = Terminus(capabilities=("amqp:local-transactions",), coordinator=True)
        link = self._peer.attach_sender(self._session(session), name, Terminus(name, outcomes=OUTCOMES), target)
        return Coordinator(
            self._peer,
            link,
            self.commit_name(session),
            self._send_in_transaction,
            self._commit_refusal,
            discharges_early=self.traits.refuses_discharges,
        )

    def _send_in_transaction(
        self, link: int, payload: bytes, state: State, transmitted: Callable[[], None], done: OnSettled
    ) -> None:
        def answered(error: JMSException | None) -> None:
            self._sends_done -= 1  # these do not count for the send window
            done(error)

        sender = self._senders.get(link)
        if sender is None:  # lost while the messages before this one were queued
            done(self._failure or IllegalStateException(f"link {link} is closed"))
            return
        sender.queue.append(_Send(payload, answered, state, transmitted))
        self._flush(sender)

    def _coordinator_of(self, link: int) -> Coordinator | None:
        return next((each for each in self._coordinators.values() if each.link == link), None)

    def commit_name(self, session: int) -> str:
        """What our own server knows the commits of a session by."""
        return f"{self._options.commit_prefix}:{session}"

    def _drop_coordinator(self, session: int, error: JMSException) -> None:
        coordinator = self._coordinators.pop(session, None)
        if coordinator is not None:
            coordinator.refuse(error)

    # Requests to our own server.

    def request(self, operation: str, arguments: dict[str, Any], done: Done) -> None:
        """Ask our own server something; done with its answer."""
        traits = self.traits
        if not traits.answers_requests:
            done(None, JMSException(f"{operation!r} needs a Holdfast server; this broker is {traits.product!r}"))
            return
        if self._requests is None:
            self._requests = self._attach_requests()
        self._requests.ask(operation, arguments, done)

    def _attach_requests(self) -> Requests:
        session = self._session(-1)
        name = self._name("management", None)
        node = Terminus(MANAGEMENT_ADDRESS)
        sender = self._peer.attach_sender(session, f"{name}:requests", Terminus(name), node)
        receiver = self._peer.attach_receiver(session, f"{name}:answers", node, Terminus(name))
        return Requests(self._peer, sender, receiver, self._on_news)

    def _on_news(self, servers: Any) -> None:
        self._listener(ServersAnnounced(servers_of(servers)))

    def _drop_requests(self, error: JMSException) -> None:
        requests, self._requests = self._requests, None
        if requests is not None:
            for link in requests.links:
                self._peer.close_link(link)
            requests.fail(error)

    _HANDLERS: Final[dict[type, Any]] = {
        RemoteOpen: _on_open,
        RemoteClose: _on_close,
        SessionRemoteOpen: _on_session_open,
        SessionRemoteClose: _on_session_close,
        LinkRemoteOpen: _on_link_open,
        LinkRemoteClose: _on_link_close,
        LinkFlow: _on_flow,
        Transfers: _on_transfers,
        Dropped: _on_dropped,
        Dispositions: _on_dispositions,
        TransportFailed: _on_failed,
    }


def _unusable(spec: ReceiverSpec) -> JMSException | None:
    """Why a receiver cannot be: what another broker might take for something else."""
    destination, subscription = spec.destination, spec.subscription
    if spec.browse and destination.is_topic:
        return InvalidDestinationException(f"cannot browse {destination.name!r}: it is a topic")
    if subscription is None:
        return None
    if not destination.is_topic:
        return InvalidDestinationException(f"cannot subscribe to the queue {destination.name!r}")
    if destination.is_temporary and subscription.durable:
        return InvalidDestinationException(
            f"temporary topic {destination.name!r} cannot have a durable subscription: it ends with its connection"
        )
    if "|" in subscription.name:
        return InvalidDestinationException(f"subscription name {subscription.name!r} has a '|'")
    return None


def _is_durable(receiver: _Receiver) -> bool:
    subscription = receiver.spec.subscription
    return subscription is not None and subscription.durable


def _prefix(wanted: str | None, offered: str | None) -> str:
    """A prefix of addresses: what the user wants, else what the broker asks for."""
    return wanted if wanted is not None else offered or ""


def _refusal(error: AmqpError | None, refused: bool) -> JMSException:
    if refused:
        return exception_for(error, "the broker refused the link", InvalidDestinationException)
    return exception_for(error, "the broker closed the link")


def _send_failure(state: State) -> JMSException | None:
    """Why a send failed, by how the broker ended it; None where it did not."""
    if state.code == TRANSACTIONAL:
        outcome = state.outcome
        return None if outcome is None or outcome.code == ACCEPTED else _send_failure(outcome)
    if state.code == ACCEPTED:
        return None
    if state.code == REJECTED:
        return exception_for(state.error, "the broker rejected the message")
    if state.code == 0:
        return JMSException("the broker settled the message without saying how")
    return JMSException("the broker gave the message back")
