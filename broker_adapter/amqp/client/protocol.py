"""The client's side of an AMQP connection as the transport port needs it: no sockets, threads or clock.

Theory of operation
    ``receive(data)`` takes bytes, ``pending_output()`` returns bytes; in between, the methods below ask for something
    and call back when it is there.  All calls must come from one thread.  A *done* callback is called exactly once,
    with a result or with an error, and returns whether a caller still waits for it: what came too late is undone.

    Each session number of the port has an AMQP session of its own, so that transactions and windows of one do not
    touch the others; one more carries temporary destinations, ``unsubscribe`` and requests.

    What the broker says about a link goes to the link (:mod:`links`), of which there are several kinds:
    :mod:`producers`, :mod:`consumers`, :mod:`commits`, :mod:`event_links`, :mod:`requests`.  What a broker does
    otherwise than another stands in :mod:`brokers`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import attrs

from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.batched_consumers import BatchedConsumers, RecordsLink
from broker_adapter.amqp.client.brokers import BrokerTraits, traits_of
from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.commits import Commit, Commits, Coordinator
from broker_adapter.amqp.client.consumers import ConsumerLink, Consumers, UnsubscribeLink
from broker_adapter.amqp.client.drains import Drains, LeavingLink
from broker_adapter.amqp.client.event_links import EventsLink, attach_events
from broker_adapter.amqp.client.links import ClosingLink, LinkTable
from broker_adapter.amqp.client.producers import ProducerLink, Producers
from broker_adapter.amqp.client.requests import RequestLink, Requests
from broker_adapter.amqp.client.sessions import OWN_SESSION, Sessions
from broker_adapter.amqp.client.settlements import Settlements
from broker_adapter.amqp.conditions import AmqpError, exception_for
from broker_adapter.amqp.events import (
    Dispositions,
    Dropped,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.messages.batches import MOST_BYTES
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import Login
from broker_adapter.amqp.wire import BATCHES_CAPABILITY, CONNECTION_TOKEN, envelope_capabilities
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import ENVELOPE_VERSION
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidURLException,
    JMSException,
    ProtocolException,
)
from broker_adapter.refusals import consumed, needs_holdfast, not_own
from broker_adapter.transport import EventSink, EventsSpec, Failed, ReceiverSpec, SenderSpec, Sink, TransportEvent
from broker_adapter.version import PRODUCT


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
    trust_broker: bool = False  #: whether an unknown broker is taken to apply what it confirms
    epoch: int = 0
    #: names the connection to our own server, so that its successor takes its place there; secret
    connection_token: str | None = None
    limits: PeerLimits = attrs.field(factory=PeerLimits)
    tls: bool = False  #: whether the connection is encrypted


class ClientProtocol:
    """One connection to a broker.  See the module's theory of operation."""

    def __init__(
        self,
        options: ClientOptions,
        login: Login | None,
        listener: Callable[[TransportEvent], None],
        on_sends_done: Callable[[int], None],
    ) -> None:
        """A protocol that has sent nothing yet.

        Args:
            options: how to open.
            login: the SASL exchange to go through first, if any.
            listener: told of LinkLost and Failed.
            on_sends_done: told how many sends got their answer, after their callbacks.
        """
        self._options = options
        self._login = login
        self._listener = listener
        self._on_sends_done = on_sends_done
        self._peer = peer = Peer(options.limits)
        self._phase = Phase.NEW
        self._opened: Done | None = None
        self._closed: Done | None = None
        self._unresolved = 0  # commits whose coordinator is gone, and of which it is not known whether they are done
        epoch, has_client_id = options.epoch, options.has_client_id
        self._sessions = sessions = Sessions(peer)
        self._links = links = LinkTable(peer, options.container_id, listener)
        self._drains = drains = Drains(peer, sessions)
        self._producers = producers = Producers(links, sessions, on_sends_done)
        self._batched = batched = BatchedConsumers(links, sessions, self.fail)
        self._consumers = Consumers(links, sessions, drains, batched, epoch=epoch, has_client_id=has_client_id)
        self._requests = requests = Requests(links, sessions, self.fail)
        self._settlements = settlements = Settlements(peer, drains, batched, epoch)
        self._commits = commits = Commits(
            links,
            sessions,
            producers,
            settlements,
            drains=drains,
            resolve=self._resolve_cut_off,
            prefix=options.commit_prefix,
            most_bytes=lambda: requests.most_bytes,
        )
        self._uses_batches = False
        self.traits = BrokerTraits()
        self.addresses = Addresses()
        # What only one part does is a method of that part, without a call in between.
        self.send_all = producers.send_all
        self.settle = settlements.settle
        self.commit = commits.commit
        self.withdraw = commits.withdraw
        self.commit_name = commits.session_name
        self.go_round = sessions.go_round

    def __repr__(self) -> str:
        return (
            f"<ClientProtocol {self._phase.name} senders={len(self._producers.open)} "
            f"receivers={len(self._links.of_kind(ConsumerLink))} failure={self._producers.failure!r}>"
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
                "it may be stopping or have too many logins at once, so try again, or its log says why"
                if self._options.tls or self._options.epoch  # of a connection that is restored: it worked before
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
        self._drains.now_ms = now_ms
        if self._login is not None or self._phase in (Phase.NEW, Phase.CLOSED):
            return None
        deadline = self._peer.tick(now_ms)
        self._drains.end_overdue()
        self._process()
        return deadline

    def _process(self) -> None:
        links, link_of = self._links.by_number, self._links.get
        event: Any
        for event in self._peer.events():
            if self._phase is Phase.CLOSED:
                return
            kind = type(event)
            if kind is Transfers:
                (links.get(event.link) or link_of(event.link)).on_transfers(event)
            elif kind is Dispositions:
                (links.get(event.link) or link_of(event.link)).on_dispositions(event)
            elif kind is LinkFlow:
                (links.get(event.link) or link_of(event.link)).on_flow(event)
            else:
                self._HANDLERS[kind](self, event)
        if self._links.maybe_drained:
            # Behind all events: the credit that proton tells is that behind all of the input.
            numbers, self._links.maybe_drained = self._links.maybe_drained, {}
            for number in numbers:
                if self._peer.remaining_credit(number) <= 0:
                    link_of(number).on_drained()
                    self._drains.over(number)
        producers = self._producers
        if producers.answered:
            count, producers.answered = producers.answered, 0
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
            desired += [*envelope_capabilities(ENVELOPE_VERSION), BATCHES_CAPABILITY]
        properties = {"product": PRODUCT, "version": self._options.version}
        if self._options.connection_token is not None:
            properties[CONNECTION_TOKEN] = self._options.connection_token
        self._peer.open(
            self._options.container_id,
            hostname=self._options.hostname,
            desired_capabilities=desired,
            properties=properties,
        )
        self._sessions.of(OWN_SESSION)

    def _on_open(self, event: RemoteOpen) -> None:
        if event.properties.get("amqp:connection-establishment-failed", False) is not False:
            return  # a close with the reason follows; Artemis says it with the text "true"
        if event.refusal is not None:
            self._peer.close(event.refusal)
            self.fail(exception_for(event.refusal, "the broker's open was refused"))
            return
        self.traits = traits = traits_of(event, envelope=self._options.envelope, trust=self._options.trust_broker)
        try:
            self.addresses = traits.addresses(self._options.queue_prefix, self._options.topic_prefix)
        except InvalidURLException as error:
            self._peer.close()
            self.fail(error)
            return
        self._settlements.states = traits.states
        self._commits.discharges_early = traits.refuses_discharges
        # Several messages go as one transfer, which is answered with a table of them in one frame.
        self._uses_batches = traits.takes_batches and self._options.limits.max_frame_bytes >= MOST_BYTES
        if self._uses_batches:
            self._producers.batch_bytes = MOST_BYTES
        if traits.loses_begins:
            self.go_round = self._producers.go_round
        self._phase = Phase.OPEN
        opened, self._opened = self._opened, None
        if opened is not None and not opened(traits.peer(self._options.container_id), None):
            self.close(ignore)

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
        self._close_once_resolved()

    def _close_once_resolved(self) -> None:
        """Close the connection, where that is wanted, once it is known what became of the commits."""
        if self._closed is not None and not self._unresolved and self._phase not in (Phase.CLOSING, Phase.CLOSED):
            self._phase = Phase.CLOSING
            self._peer.close()

    def _on_close(self, event: RemoteClose) -> None:
        if self._phase is Phase.CLOSING:
            self._finish(None)
            return
        self._peer.close()
        if _is_silence(event.error):  # the network's, on the way to the broker, and not for anything that was sent
            reason = "the broker has heard nothing of this client within its idle time-out"
            self.fail(ConnectionLostException(reason, error_code=event.error.condition if event.error else None))
            return
        reason = "the broker closed the connection"
        self.fail(exception_for(event.error, reason, ConnectionLostException))

    def _on_failed(self, event: TransportFailed) -> None:
        if self._phase is Phase.CLOSING:
            self._finish(None)
            return
        condition, description, _ = event.error
        if _is_silence(event.error):
            limit = self._options.limits.idle_timeout_ms / 1000
            self.fail(ConnectionLostException(f"the broker was silent for {limit:g} s", error_code=condition))
        elif "connection aborted" in (description or ""):
            self.fail(ConnectionLostException("the peer closed the network connection"))
        else:
            self.fail(ProtocolException(f"the connection broke: {description}", error_code=condition))

    def fail(self, error: JMSException) -> None:
        """The connection is gone: every call that waits gets ``error``, and so does the listener."""
        if self._phase is Phase.CLOSED:
            return
        self._finish(error)

    def release(self) -> None:
        """Free what the connection has in memory; the carrier of its bytes is gone.  Legal twice."""
        if self._phase is not Phase.CLOSED:
            self.fail(ConnectionLostException("the network connection has ended"))
        self._peer.release()

    def _finish(self, error: JMSException | None) -> None:
        was_open = self._phase is Phase.OPEN
        self._phase = Phase.CLOSED
        reason = error or IllegalStateException("the connection is closed")
        self._producers.failure = reason
        opened, self._opened = self._opened, None
        # Commits before their sends fail: that would look like a refusal by the broker.
        for link in sorted(self._links.take_all(), key=lambda each: not isinstance(each, Coordinator)):
            link.lost(reason)
        if opened is not None:
            opened(None, reason)
        self._sessions.lost(reason)
        self._drains.lost(reason)
        if self._producers.answered:
            count, self._producers.answered = self._producers.answered, 0
            self._on_sends_done(count)
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(None, None)
        if error is not None and was_open:
            self._listener(Failed(error))

    # Sessions.

    def end_session(self, number: int, done: Done) -> None:
        """End a session with its links; done when the broker has answered.

        A commit that is under way gets no answer any more.  What became of it is asked for once the session has
        ended: our own server has rolled it back by then, if it was still waiting for selectors.
        """
        session = self._sessions.take(number)
        if session is None:
            done(None, None)
            return
        commits = self._commits.end_session(number)
        self._unresolved += len(commits)
        closed = IllegalStateException("the session was closed")

        def ended(result: Any, error: JMSException | None) -> bool:
            for commit in commits:
                self._resolve(number, commit, closed, error)
            return done(result, error)

        links = self._links_of_session(number)
        drains = {link.number for link in links if self._drains.is_awaited(link.number)}
        for link in (*links, *self._links.of_session(number, ClosingLink)):
            link.session_ended(closed)
        self._batched.end_session(number)
        self._drains.end_session(session, drains, ended if commits else done)

    def _resolve_cut_off(self, session: int, commit: Commit, cause: JMSException) -> None:
        """Have a commit told what became of it, whose coordinator the broker has ended."""
        self._unresolved += 1
        self._resolve(session, commit, cause, None)

    def _resolve(self, session: int, commit: Commit, cause: JMSException, error: JMSException | None) -> None:
        """Have a commit whose coordinator is gone told what became of it, by the broker where there is no error."""

        def resolved(result: Any, error: JMSException | None) -> bool:
            waits = self._commits.resolved(commit, cause, result, error)
            self._unresolved -= 1
            self._close_once_resolved()
            return waits

        if error is not None:
            resolved(None, error)
        elif not self.traits.answers_requests:
            resolved(None, None)
        else:
            arguments = {"session": self.commit_name(session), "number": commit.number, "age_ms": 0}
            self.request("resolve_commit", arguments, resolved)

    def _links_of_session(
        self, number: int
    ) -> list[ProducerLink | ConsumerLink | EventsLink | LeavingLink | Coordinator]:
        """The links that the application uses in a session, in the order in which they are ended."""
        of_session = self._links.of_session
        return [
            *of_session(number, ProducerLink),
            *of_session(number, ConsumerLink),
            *of_session(number, EventsLink),
            *of_session(number, LeavingLink),
            *of_session(number, Coordinator),
        ]

    def _on_session_open(self, event: SessionRemoteOpen) -> None:
        if event.by_peer:
            self._peer.end_session(event.session, AmqpError("amqp:not-allowed", "a broker begins no session here"))

    def _on_session_close(self, event: SessionRemoteClose) -> None:
        done = self._sessions.answered(event.session) or self._drains.session_closed(event.session)
        if done is not None:
            if self.traits.loses_begins:
                self.go_round(done)
            else:
                done(None, None)
            return
        number = self._sessions.closed(event.session)
        if number is None:
            return
        error = exception_for(event.error, "the broker ended the session")
        self._batched.end_session(number)
        for kind in (UnsubscribeLink, RequestLink, ClosingLink, RecordsLink):
            for own in self._links.of_session(number, kind):
                own.session_ended(error)
        links = self._links_of_session(number)
        # The listener first: it knows then what the failure of a send means.
        for link in links:
            if isinstance(link, ProducerLink | ConsumerLink | EventsLink):
                link.tell_lost(error)
        for link in links:
            self._drains.stop_waiting(link.number)
        for link in links:
            link.session_ended(error)

    # Links.

    def attach_sender(self, spec: SenderSpec, done: Done) -> None:
        """Attach a producer's link; done with (link, greatest message in bytes or None)."""
        self._producers.attach(spec, self.addresses, done)

    def attach_receiver(self, spec: ReceiverSpec, sink: Sink, done: Done) -> None:
        """Attach a consumer's or browser's link; done with its number."""
        self._consumers.attach(spec, sink, self.traits, self.addresses, done, gets_batches=self._uses_batches)

    def attach_events(self, spec: EventsSpec, sink: EventSink, done: Done) -> None:
        """Attach a link for events; done with its number.

        Raises:
            MessageFormatException: what the spec asks for cannot be.
            UnsupportedOperationException: the broker has no regions.
        """
        attach_events(self._links, self._sessions, spec, sink, self.traits, done)

    def detach(self, link: int, done: Done) -> None:
        """Detach a link; done when the broker has answered.  A durable subscription stays."""
        self._links.get(link).detach(done)

    def _on_link_open(self, event: LinkRemoteOpen) -> None:
        if not event.by_peer:
            self._links.get(event.link).on_open(event)
        elif self._peer.has_link(event.link):  # its session may have ended in the same input
            self._peer.refuse_link(event.link, AmqpError("amqp:not-allowed", "a broker attaches no link here"))

    def _on_link_close(self, event: LinkRemoteClose) -> None:
        link = self._links.get(event.link)
        self._drains.link_closed(event.link)
        link.on_close(event)

    def _on_dropped(self, event: Dropped) -> None:
        self._links.get(event.link).on_dropped(event)

    def unsubscribe(self, name: str, done: Done) -> None:
        """Delete a durable subscription; done when the broker has answered."""
        self._consumers.unsubscribe(name, self.traits, done)

    def declare_temporary(self, kind: DestinationKind, done: Done, former_name: str | None = None) -> None:
        """Make a temporary destination of this connection; done with the destination.

        With ``former_name`` our own server gives it that name, which it had on a connection that was lost.
        """
        self._producers.declare_temporary(kind, former_name, done)

    def delete_temporary(self, destination: Destination, done: Done) -> None:
        """Delete a temporary destination of this connection."""
        link = self._producers.temporary.get(destination.name)
        if link is None:
            done(None, not_own(destination))
        elif any(each.spec.destination == destination for each in self._links.of_kind(ConsumerLink)):
            done(None, consumed(destination))
        else:
            link.detach(done)

    # Messages.

    def credit(self, link: int, messages: int) -> None:
        """Let the broker send this many more messages."""
        consumer = self._links.by_number.get(link)
        if isinstance(consumer, ConsumerLink):
            consumer.credit(messages)

    def drain(self, link: int, done: Done) -> None:
        """Done with True when the broker has sent what it can and the credit is gone.

        With False at once where the broker does not answer a drain.
        """
        consumer = self._links.get(link)
        if isinstance(consumer, ConsumerLink):
            consumer.drain(done)
        else:
            done(None, IllegalStateException(f"link {link} is closed"))

    # Requests to our own server.

    def request(self, operation: str, arguments: dict[str, Any], done: Done) -> None:
        """Ask our own server something; done with its answer."""
        traits = self.traits
        if not traits.answers_requests:
            done(None, needs_holdfast(repr(operation), traits.product))
            return
        self._requests.ask(operation, arguments, done)

    _HANDLERS: Final[dict[type, Any]] = {
        RemoteOpen: _on_open,
        RemoteClose: _on_close,
        SessionRemoteOpen: _on_session_open,
        SessionRemoteClose: _on_session_close,
        LinkRemoteOpen: _on_link_open,
        LinkRemoteClose: _on_link_close,
        Dropped: _on_dropped,
        TransportFailed: _on_failed,
    }


def _is_silence(error: AmqpError | None) -> bool:
    """Return whether a connection is closed because no frame has arrived in time, in proton's words for both sides."""
    return error is not None and error[:2] == ("amqp:resource-limit-exceeded", "local-idle-timeout expired")
