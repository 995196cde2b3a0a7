"""The transport port over AMQP 1.0: threads, deadlines and waiting around the client protocol.

Theory of operation
    Messages are packed in the thread that sends them and decoded in the thread that reads them; in between, all
    work is done by the loop's thread (:mod:`broker_adapter.amqp.client.io_loop`).  A call that waits blocks its own
    thread on a lock of its own, for as long as its deadline allows.  What is answered after the deadline is undone: a
    link that no caller waits for any more is detached.

    The connection is not restored here, but by :mod:`broker_adapter.failover`: once it is lost, every waiting and every
    later call raises, the callbacks of the sends under way get the error, and the listener gets ``Failed``.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import (
    Any,
    Protocol,
    cast,
)
from uuid import NAMESPACE_OID, uuid4, uuid5

from ack_modes import Settlement
from broker_adapter.amqp.client.anonymous_relay import AnonymousRelay
from broker_adapter.amqp.client.brokers import announced_by
from broker_adapter.amqp.client.callbacks import Done
from broker_adapter.amqp.client.io_loop import SocketConnection
from broker_adapter.amqp.client.io_loop import Work as LoopWork
from broker_adapter.amqp.client.login import tls_context
from broker_adapter.amqp.client.protocol import ClientOptions, ClientProtocol, Phase
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from broker_adapter.amqp.sasl import Login, Work
from broker_adapter.amqp.security.hashing import hash_elsewhere
from broker_adapter.amqp.wire import WATCH
from broker_adapter.answers import Answer, SendWindow, unanswered_send
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope, pack, without_reserved
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ProtocolException,
    TransactionInDoubtException,
    TransactionRolledBackException,
    copied,
)
from broker_adapter.transport import (
    Credentials,
    EventSink,
    EventsSpec,
    Failed,
    LinkLost,
    LinkSink,
    LinkSpec,
    OnSettled,
    Peer,
    RegionChange,
    SenderSpec,
    Sink,
    TransportEvent,
)
from broker_adapter.urls.url import AmqpURL
from broker_adapter.version import own_version
from broker_adapter.wording import in_seconds

_log = logging.getLogger(f"holdfast.{__name__}")


class Io(Protocol):
    """What carries the bytes of one connection, and runs its protocol in one thread."""

    def submit(self, work: LoopWork) -> None:
        """Hand work to that thread."""

    def connect(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        """Start to connect."""

    def abort(self) -> None:
        """Drop the connection at once."""

    def in_loop_thread(self) -> bool:
        """Return whether the caller is that thread, which must not wait."""


#: Longest wait for something that only the loop's own thread does, in seconds.
_OWN_THREAD_SECONDS = 5.0
#: A close waits so long at least where a commit is under way, which is to be told what became of it, in seconds.
_RESOLVE_SECONDS = 0.25
#: Waits for an answer, at most so many seconds (None: as long as requests may take); returns it, or raises.
_Wait = Callable[[float | None], Any]


class AmqpTransport:
    """One connection to an AMQP 1.0 broker, ours or another.  See the module's theory of operation."""

    def __init__(
        self,
        url: AmqpURL,
        *,
        epoch: int = 0,
        commit_prefix: str | None = None,
        connection_token: str | None = None,
        make_io: Callable[[ClientProtocol], Io] = SocketConnection,
        make_login: Callable[[AmqpURL, Credentials], Login | None] = lambda _url, _credentials: None,
    ) -> None:
        """A transport that is not open yet.

        Args:
            url: where to connect, and with which settings.
            epoch: what this connection's deliveries carry, for a transport that restores connections.
            commit_prefix: names the client in commit ids; the same for a connection that takes another's place.
            connection_token: the same for all connections that take one another's place, and secret.
            make_io: what carries the bytes; sockets by default.
            make_login: makes the SASL exchange that goes ahead of AMQP; None where there is to be none.
        """
        self._url = url
        self._epoch = epoch
        self._commit_prefix = commit_prefix or str(uuid4())
        self._connection_token = connection_token
        self._make_io = make_io
        self._make_login = make_login
        self._window = SendWindow(url.client.send_window_messages)
        self._io: Io | None = None
        self._protocol: ClientProtocol | None = None
        self._listener: Callable[[TransportEvent], None] | None = None
        self._error: JMSException | None = IllegalStateException("the connection is not open yet")
        self._encode: Callable[[Envelope], bytes] = encode_amqp
        self._may_delay = True
        self._relay: AnonymousRelay | None = None
        self._max_message_bytes: dict[int, int] = {}
        self._closing = threading.Lock()
        self._closed = False
        self._committing: list[int] = []  #: one for each commit that is under way, since its length changes in one step

    def __repr__(self) -> str:
        return f"<AmqpTransport {self._url.host}:{self._url.port} {self._protocol!r}>"

    # The connection.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """See :meth:`broker_adapter.transport.Transport.open`."""
        if self._protocol is not None or self._closed:
            raise IllegalStateException("the connection was opened before")
        url = self._url
        login = self._make_login(url, credentials)
        context = tls_context(url) if url.tls else None
        options = ClientOptions(
            container_id=credentials.client_id or _invented_client_id(self._commit_prefix),
            hostname=url.amqp.vhost if url.amqp.vhost is not None else url.host,
            version=own_version(),
            has_client_id=credentials.client_id is not None,
            commit_prefix=self._commit_prefix,
            connection_token=self._connection_token,
            envelope=url.amqp.envelope,
            epoch=self._epoch,
            queue_prefix=url.amqp.queue_prefix,
            trust_broker=url.amqp.trust_broker,
            topic_prefix=url.amqp.topic_prefix,
            limits=PeerLimits(
                max_frame_bytes=url.amqp.max_frame_bytes, idle_timeout_ms=int(url.amqp.idle_timeout_seconds * 1000)
            ),
            tls=url.tls,
        )
        self._listener = listener
        self._protocol = protocol = ClientProtocol(options, login, self._on_event, self._window.leave)
        self._io = io = self._make_io(protocol)
        if login is not None:
            login.carry_out = partial(_hash_elsewhere, io, protocol)
        call = Answer()
        io.submit(lambda: protocol.open(call))
        own = url.client.connect_timeout_seconds
        limit = own if timeout is None else min(own, timeout)
        io.connect(url.host, url.port, context, limit)
        where = f"{url.host}:{url.port}"
        try:
            peer: Peer = call.wait(limit, f"opening the connection to {where}")
        except OperationTimedOutException:
            self._give_up()
            if timeout is not None and timeout <= own:
                raise
            raise ConnectionLostException(f"{where} gave no answer within {in_seconds(own)}") from None
        except ProtocolException as error:
            self._give_up()
            raise ConnectionLostException(f"{where} does not answer in AMQP 1.0: {error.reason}") from error
        except JMSException:
            self._give_up()
            raise
        self._encode = self._encoder(protocol)
        self._may_delay = protocol.traits.delays_deliveries
        if not protocol.traits.relays_messages(protocol.addresses):
            self._relay = AnonymousRelay(self._attach_relayed, self._detach_relayed)
        self._error = None
        if protocol.phase is Phase.CLOSED:  # lost between its opening and this line
            self._lost(ConnectionLostException("the peer closed the network connection"))
        return peer

    @staticmethod
    def _encoder(protocol: ClientProtocol) -> Callable[[Envelope], bytes]:
        addresses = protocol.addresses
        if protocol.envelope_version and not protocol.traits.needs_duplicate_ids and not addresses:
            return pack
        # Our own server takes out by itself what only it may say, of an event that is sent on.
        encode = partial(encode_amqp, has_duplicate_id=protocol.traits.needs_duplicate_ids)
        if addresses:
            return lambda envelope: encode(addresses.outward(without_reserved(envelope)))
        return lambda envelope: encode(without_reserved(envelope))

    def _give_up(self) -> None:
        self._closed = True
        self._error = IllegalStateException("the connection could not be opened")
        if self._io is not None:
            self._io.abort()

    def _on_event(self, event: TransportEvent) -> None:
        if isinstance(event, Failed):
            self._lost(event.error)
        if isinstance(event, LinkLost) and self._relay is not None and self._relay.lost(event.link):
            return  # the send that it failed knows, and the next one makes another link
        if self._listener is not None and not self._closed:
            self._listener(event)

    def _lost(self, error: JMSException) -> None:
        self._error = error
        self._window.close(error)

    @property
    def is_lost(self) -> bool:
        """Whether the connection was open, and is so no more."""
        protocol = self._protocol
        return protocol is not None and protocol.phase is Phase.CLOSED

    def in_callback(self) -> bool:
        """Return whether the caller is a callback of the transport, which must not wait."""
        return self._io is not None and self._io.in_loop_thread()

    def close(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.close`."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        closed = IllegalStateException("the connection is closed")
        lost = self._error is not None
        self._error = closed
        self._window.close(closed)
        io, protocol = self._io, self._protocol
        if io is None or protocol is None:
            return
        own = self._url.client.close_timeout_seconds
        limit = own if timeout is None else min(own, timeout)
        if self._committing:
            limit = max(limit, _RESOLVE_SECONDS)
        call = Answer()
        try:
            if not lost:
                io.submit(lambda: protocol.close(call))
                if not io.in_loop_thread():
                    call.wait(limit, "closing the connection")
        except JMSException:
            pass  # a close succeeds also where the network is lost
        finally:
            io.abort()

    # What waits for an answer.

    def _ask(
        self,
        what: str,
        start: Callable[[ClientProtocol, Done], None],
        timeout: float | None,
        call: Answer | None = None,
    ) -> Any:
        return self._begin(what, start, call)(timeout)

    def _begin(self, what: str, start: Callable[[ClientProtocol, Done], None], call: Answer | None = None) -> _Wait:
        """Ask the broker for something; returns what waits for the answer, which comes into ``call``, if given."""
        answer = call or Answer()
        self._start(what, start, answer)

        def wait(timeout: float | None) -> Any:
            return answer.wait(self._limit(timeout), what)

        return wait

    def _start(self, what: str, start: Callable[[ClientProtocol, Done], None], done: Done) -> None:
        """Ask the broker for something; ``done`` gets the answer."""
        if self._error is not None:
            raise copied(self._error)
        io, protocol = self._io, self._protocol
        assert io is not None
        assert protocol is not None
        if io.in_loop_thread():
            raise IllegalStateException(f"{what} cannot be called from a callback of the transport")

        def run() -> None:
            if protocol.phase is not Phase.OPEN:
                done(None, self._error or ConnectionLostException("the connection is lost"))
                return
            try:
                start(protocol, done)
            except JMSException as error:
                done(None, error)

        io.submit(run)

    def _limit(self, timeout: float | None) -> float:
        return self._url.client.request_timeout_seconds if timeout is None else timeout

    def end_session(self, session: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.end_session`."""
        if self._relay is not None:
            self._relay.end_session(session)
        self._ask("ending the session", lambda protocol, done: protocol.end_session(session, done), timeout)
        return True

    def attach(self, spec: LinkSpec, sink: LinkSink, timeout: float | None) -> int:
        """See :meth:`broker_adapter.transport.Transport.attach`."""
        link: int = self._begin_attach(spec, sink)(timeout)
        return link

    def attach_all(self, links: Sequence[tuple[LinkSpec, LinkSink]], timeout: float | None) -> list[int | JMSException]:
        """Attach several links, in this order, without waiting for one before the next is asked for.

        Returns:
            The number of each link, or why there is none.

        Raises:
            ConnectionLostException: the connection is lost already.
        """
        deadline = time.monotonic() + self._limit(timeout)
        outcomes: list[int | JMSException] = []
        for wait in [self._begin_attach(spec, sink) for spec, sink in links]:
            try:
                outcomes.append(wait(max(0.0, deadline - time.monotonic())))
            except JMSException as error:
                outcomes.append(error)
        return outcomes

    def _begin_attach(self, spec: LinkSpec, sink: LinkSink) -> _Wait:
        if isinstance(spec, SenderSpec):
            if spec.destination is None and self._relay is not None:
                relayed = self._relay.add(spec.session)
                return lambda _timeout: relayed
            return self._begin_attach_sender(spec)
        if sink is None:
            raise IllegalStateException("a receiver's link needs a sink")
        if isinstance(spec, EventsSpec):
            take = cast(EventSink, sink)
            return self._begin(f"attaching {spec}", lambda protocol, done: protocol.attach_events(spec, take, done))
        receive = cast(Sink, sink)
        return self._begin(
            f"attaching {spec}",
            lambda protocol, done: protocol.attach_receiver(spec, receive, done),
        )

    def _begin_attach_sender(self, spec: SenderSpec) -> _Wait:
        attached = self._begin(
            f"attaching {spec}",
            lambda protocol, done: protocol.attach_sender(spec, done),
        )

        def wait(timeout: float | None) -> int:
            link: int
            link, limit = attached(timeout)
            if limit is not None:
                self._max_message_bytes[link] = limit
            return link

        return wait

    def _attach_relayed(self, session: int, destination: Destination) -> int:
        link: int = self._begin_attach_sender(SenderSpec(session, destination))(None)
        return link

    def _detach_relayed(self, link: int) -> None:
        try:
            self.detach(link, None)
        except JMSException:
            pass  # it is gone in any case

    def detach(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.detach`."""
        if link < 0 and self._relay is not None:
            self._relay.close(link)
            return True
        self._max_message_bytes.pop(link, None)
        self._ask("detaching the link", lambda protocol, done: protocol.detach(link, done), timeout)
        return True

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        """See :meth:`broker_adapter.transport.Transport.unsubscribe`."""
        self._ask(f"unsubscribing {name!r}", lambda protocol, done: protocol.unsubscribe(name, done), timeout)

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        """See :meth:`broker_adapter.transport.Transport.declare_temporary`."""
        destination: Destination = self._ask(
            "declaring a temporary destination", lambda protocol, done: protocol.declare_temporary(kind, done), timeout
        )
        return destination

    def restore_temporaries(self, destinations: Sequence[Destination], timeout: float | None) -> None:
        """Make temporary destinations again that a lost connection had, without waiting for one before the next.

        Raises:
            InvalidDestinationException: the name of one is taken.
        """
        if not self._protocol_in_use().traits.answers_requests:
            return  # a consumer's link makes it again, where the broker allows that

        def begin(destination: Destination) -> _Wait:
            return self._begin(
                f"restoring {destination.name!r}",
                lambda protocol, done: protocol.declare_temporary(destination.kind, done, destination.name),
            )

        for wait in [begin(each) for each in destinations]:
            wait(timeout)

    def watch(self) -> None:
        """Ask our own broker to tell what it announces, and each change: by ``BrokerAnnounced``.  Returns at once."""
        if self._protocol_in_use().traits.answers_requests:
            self.begin_request(WATCH, {}, self._watched)

    def _watched(self, answer: Any, error: JMSException | None) -> bool:
        if error is None:
            self._on_event(announced_by(answer))
        elif not self.is_lost:
            _log.warning("! %s:%s does not tell what changes: %s", self._url.host, self._url.port, error)
        return True

    def resolve_commit(
        self, session: int, commit_number: int, age_seconds: float, timeout: float | None
    ) -> bool | None:
        """Return whether a commit of an earlier connection of this client was done; None where the broker cannot tell.

        Args:
            session: the session's number.
            commit_number: counts the session's commits.
            age_seconds: how long ago it was made.
            timeout: longest wait in seconds; None: as long as requests may take.
        """
        protocol = self._protocol_in_use()
        if not protocol.traits.answers_requests:
            return None
        arguments = {
            "session": protocol.commit_name(session),
            "number": commit_number,
            "age_ms": int(age_seconds * 1000),
        }
        done: bool | None = self.request("resolve_commit", arguments, timeout)
        return done

    def _protocol_in_use(self) -> ClientProtocol:
        return self._usable()[1]

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.delete_temporary`."""
        self._ask(
            f"deleting {destination.name!r}",
            lambda protocol, done: protocol.delete_temporary(destination, done),
            timeout,
        )

    def drain(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.drain`."""
        return bool(self._ask("draining the link", lambda protocol, done: protocol.drain(link, done), timeout))

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.confirm`.  Failover ends it with its session or consumer."""
        self.confirm_until(lambda _end_wait: None, timeout)

    def confirm_until(self, begin: Callable[[Callable[[JMSException], None]], None], timeout: float | None) -> None:
        """See :meth:`broker_adapter.failover.inner.Inner.confirm_until`."""
        answer = Answer()
        begin(answer.settled)
        if self._protocol_in_use().traits.answers_requests:
            self._ask("the acknowledgement", lambda it, done: it.request("confirm", {}, done), timeout, answer)
        else:
            self._ask("the acknowledgement", lambda it, done: it.go_round(done), timeout, answer)

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """See :meth:`broker_adapter.transport.Transport.request`."""
        return self._ask(
            f"request {operation!r}",
            lambda protocol, done: protocol.request(operation, dict(arguments), done),
            timeout,
        )

    def begin_request(self, operation: str, arguments: Mapping[str, Any], done: Done) -> None:
        """See :meth:`broker_adapter.transport.RemoteTransport.begin_request`."""
        self._start(
            f"request {operation!r}", lambda protocol, done: protocol.request(operation, dict(arguments), done), done
        )

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.commit`."""
        packed = []
        for link, envelope in sends:
            real = self._real_link(link, envelope)
            packed.append((real, self._packed(real, envelope)))
        self._committing.append(session)
        try:
            self._ask(
                "the commit",
                lambda protocol, done: protocol.commit(session, commit_number, packed, settlements, done, changes),
                timeout,
            )
        except OperationTimedOutException as error:
            try:
                was_done = self._ask(
                    "the end of the commit",
                    lambda protocol, done: protocol.withdraw(session, commit_number, done),
                    _OWN_THREAD_SECONDS,
                )
            except JMSException as lost:  # the connection has ended meanwhile, and with it what is known of the commit
                raise TransactionInDoubtException(f"{error.reason}; {lost.reason}") from lost
            if was_done is None:
                raise
            if not was_done:
                raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        finally:
            self._committing.pop()

    # What does not wait.

    def credit(self, link: int, messages: int) -> None:
        """See :meth:`broker_adapter.transport.Transport.credit`."""
        io, protocol = self._usable()
        io.submit(lambda: protocol.credit(link, messages))

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """See :meth:`broker_adapter.transport.Transport.settle`."""
        io, _ = self._usable()
        io.submit(list(settlements))

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.send`."""
        if self._error is not None:
            raise copied(self._error)
        io = self._io
        assert io is not None
        link = self._real_link(link, envelope)
        payload = self._packed(link, envelope)
        limit = self._url.client.send_timeout_seconds if timeout is None else timeout
        if on_settled is not None:
            self._window.enter(limit, waits=not io.in_loop_thread())
            io.submit((link, payload, on_settled))
            return
        if io.in_loop_thread():
            raise IllegalStateException("a send that waits cannot be called from a callback of the transport")
        start = time.monotonic()
        self._window.enter(limit)
        call = Answer()
        io.submit((link, payload, call.settled))
        if not call.arrives(limit - (time.monotonic() - start)):
            raise OperationTimedOutException(unanswered_send(limit, timeout))
        if call.error is not None:
            raise copied(call.error)

    def _real_link(self, link: int, envelope: Envelope) -> int:
        """The link that a message is sent on, where an anonymous producer has one for each destination."""
        if link >= 0 or self._relay is None:
            return link
        real = self._relay.link(link, envelope.destination)
        if real is None:
            raise IllegalStateException(f"link {link} is closed")
        return real

    def _packed(self, link: int, envelope: Envelope) -> bytes:
        if envelope.deliver_at_ms is not None and not self._may_delay:
            raise JMSException("the broker does not offer delivery delay; send without delivery_delay")
        payload = self._encode(envelope)
        limit = self._max_message_bytes.get(link)
        if limit is not None and len(payload) > limit:
            raise MessageFormatException(
                f"message of {len(payload)} bytes is larger than the broker's limit of {limit} bytes",
                error_code="amqp:link:message-size-exceeded",
            )
        return payload

    def _usable(self) -> tuple[Io, ClientProtocol]:
        if self._error is not None:
            raise copied(self._error)
        io, protocol = self._io, self._protocol
        assert io is not None
        assert protocol is not None
        return io, protocol


def _invented_client_id(commit_prefix: str) -> str:
    """The client id of a connection that was given none: the same where it takes another's place.

    A durable client is known by it as long as its connection is restored.  The commit prefix does not follow from it.
    """
    return f"holdfast-{uuid5(NAMESPACE_OID, commit_prefix)}"


def _hash_elsewhere(io: Io, protocol: ClientProtocol, work: Work) -> None:
    """Do what a login has to have done in another thread, and go on with it in the loop's."""

    def go_on(result: Any) -> None:
        if protocol.phase is not Phase.CLOSED:
            work.resume(result)
            protocol.receive(b"")

    def done(result: Any) -> None:
        with suppress(IllegalStateException):  # the process was forked meanwhile
            io.submit(lambda: go_on(result))

    hash_elsewhere(work.compute, done)
