"""The server's side of one AMQP connection: between a peer and the engine; no sockets, threads or clock.

Theory of operation
    ``receive(data, now_ms)`` takes bytes; what they ask of the engine is deferred and submitted at the end of the call,
    the messages of one link as one command.  The engine's answers and deliveries come from its own thread as callbacks
    (:mod:`broker_adapter.server.links.engine_calls`); ``pending_output()`` runs them in the connection's thread, and
    returns bytes.  ``wake`` is called, from the engine's thread, when the first of them is added.

    What a link means is told by its terminus.  Each kind of link has a file of its own, which does what its events ask
    for: :mod:`~broker_adapter.server.links.producers`, :mod:`~broker_adapter.server.links.consumers`,
    :mod:`~broker_adapter.server.links.coordinator`, :mod:`~broker_adapter.server.links.event_links` and
    :mod:`~broker_adapter.server.links.requests`.

    A connection has a budget of bytes (:mod:`broker_adapter.server.links.budget`): above it ``wants_input`` is false,
    and what only the client can end is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker_adapter.amqp.conditions import AmqpError, error_for, exception_for
from broker_adapter.amqp.events import (
    REJECTED,
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
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.messages.region_events import EVENTS_CAPABILITY
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import Login
from broker_adapter.amqp.wire import (
    BATCHES_CAPABILITY,
    CONNECTION_TOKEN,
    MANAGEMENT_ADDRESS,
    RUN,
    STORE,
    envelope_capabilities,
    envelope_version,
)
from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import InvalidDestinationException, JMSException, ResourceAllocationException
from broker_adapter.server.announcements import Announcement
from broker_adapter.server.links.batched_consumers import BatchedConsumers
from broker_adapter.server.links.budget import Budget
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.consumers import IN_HAND_BYTES, SLICE_MESSAGES, Consumers
from broker_adapter.server.links.coordinator import Coordinator
from broker_adapter.server.links.engine_calls import ConnectionEngine, EngineCalls
from broker_adapter.server.links.event_links import EventLinks
from broker_adapter.server.links.links import Links
from broker_adapter.server.links.output import Output
from broker_adapter.server.links.producers import Producers
from broker_adapter.server.links.requests import Requests, RunRequest
from broker_adapter.settings import ServerSettings
from broker_adapter.version import PRODUCT, own_version

#: Time between two checks of open transactions, in milliseconds.
_TRANSACTION_TICK_MS: Final = 1000
#: Longest token by which a connection takes the place of another one of its client, in characters.
_MAX_TOKEN: Final = 100

#: Deliveries that a client settles in one turn, about; the rest of a longer range has its turn after other clients.
_SETTLED_AT_ONCE: Final = 2_000
#: Deliveries that may be examined when the client is gone, beside twice those that it holds.
_EXAMINED_AT_END: Final = 10_000

_OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "sole-connection-for-container")
#: What only our own client knows.
#: Events that concern the connection itself, and do not wait for the engine to admit the client.
_AT_ONCE: Final = (RemoteOpen, RemoteClose, TransportFailed)


class ServerProtocol:
    """One client's connection.  See the module's theory of operation."""

    def __init__(
        self,
        engine: ConnectionEngine,
        settings: ServerSettings,
        login: Login | None,
        wake: Callable[[], None],
        run_request: RunRequest,
        authorize: Callable[[str, Destination | None], None],
        take_over: Callable[[str], None] = lambda _token: None,
        admit: Callable[[], None] = lambda: None,
        announced: Callable[[], Announcement] = Announcement,
        log: Callable[..., None] = lambda kind, text, *arguments: None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """A connection on which no bytes have come yet.

        Args:
            engine: the broker.
            settings: the server's limits.
            login: the SASL exchange to go through first; None: none is accepted.
            wake: called from any thread when ``pending_output()`` is to be asked.
            run_request: carries out operations beyond messaging.
            authorize: raises JMSSecurityException where the user may not do this with this destination; see
                :mod:`broker_adapter.server.access.permissions`.
            take_over: ends the connection of this token, whose client has reconnected on this one.
            admit: raises a JMSException where the connection may not be opened; asked after ``take_over``.
            announced: what clients are told of the server.
            log: writes a warning; see :meth:`broker_adapter.limited_log.LimitedLog.write`.
            clock: a steady one, in seconds, by which conversions of messages are spread over turns.
        """
        self._engine = engine
        self._login = login
        self._login_output = b""  #: the end of the login, ahead of AMQP
        self._take_over = take_over
        self._admit = admit
        self._announced = announced
        limits = PeerLimits(
            max_frame_bytes=settings.max_frame_bytes,
            max_message_bytes=engine.settings.max_message_bytes,
            max_sessions=settings.max_sessions,
            max_links=settings.max_links,
            idle_timeout_ms=int(settings.idle_timeout_seconds * 1000),
            max_settling=max(SLICE_MESSAGES, settings.max_connection_bytes // IN_HAND_BYTES),
            settled_at_once=_SETTLED_AT_ONCE,
            bare_states=True,
        )
        peer = self._peer = Peer(limits, server=True)
        client = self._client = Client()
        budget = self._budget = Budget(settings.max_connection_bytes)
        output = self._output = Output(peer)
        links = self._links = Links(peer, client)
        calls = self.calls = EngineCalls(engine, wake)
        batched = self._batched = BatchedConsumers(peer, calls, client)
        coordinator = self._coordinator = Coordinator(
            *(peer, calls, client, batched, budget, engine.settings),
            settings.transaction_timeout_seconds,
            authorize,
        )
        self._producers = Producers(
            *(peer, calls, client, links, budget, coordinator, settings),
            engine.settings.max_message_bytes,
            authorize,
        )
        self._consumers = Consumers(
            *(peer, calls, client, links, output, coordinator, batched, settings),
            log,
            clock,
            authorize,
        )
        self._requests = Requests(
            *(peer, calls, client, budget, output, settings.max_output_bytes),
            run_request,
            announced,
            authorize,
            engine.settings.dead_letter_queue,
        )
        self._event_links = EventLinks(peer, calls, client, links, output, budget, settings, authorize)
        self._run_callbacks = calls.run_callbacks
        self._peer_output = peer.pending_output
        self._waiting: list[Any] = []  #: events that came before the engine knew the client
        self._opening = False
        self._goes_on = False  #: whether a callback will take more of what was settled
        self._now_ms = 0
        self.error: JMSException | None = None  #: why the connection ended, where it failed
        self.peer_name = ""  #: container id of the client

    def __repr__(self) -> str:
        return f"<ServerProtocol {self.peer_name!r} producers={len(self._producers)} consumers={len(self._consumers)}>"

    # Bytes.

    @property
    def is_open(self) -> bool:
        """Whether the client has logged in and its connection is open."""
        return self.calls.client is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done for the client; it may still have to be told."""
        return self._client.has_ended

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes from the client; ``now_ms`` is the time of day in milliseconds."""
        self._now_ms = now_ms
        login = self._login
        if login is not None:
            login.receive(data)
            if login.error is not None:
                self.error = login.error
                return
            if not login.done:
                return
            self._login = None
            self._login_output = login.pending_output()
            data = login.leftover()
        if data:
            takes_turns = self._peer.has_more  # then the bytes wait, too
            self._peer.receive(data)
            if not takes_turns:
                self._process()
                self._keep_to_budget()

    @property
    def wants_input(self) -> bool:
        """Whether bytes may be read from the client: neither above its budget, nor while the engine admits it."""
        if self._peer.has_more:
            return False
        if self._client.has_ended:
            return True  # for the end of the connection
        if (self._opening and self.calls.client is None) or self.calls.settles_too_much:
            return False
        output, budget = self._output, self._budget
        budget.output = 0
        if output.is_paused:
            budget.output = output.waiting_bytes + budget.answers + budget.events + self._peer.unwritten_bytes
        return budget.allows_reading

    def receive_end(self) -> None:
        """The client is gone.  What it has sent before counts, and is handed to the engine now.

        It may be back already: then it finds nothing that is still to be done for it, and nothing that it still holds.
        Where it settles the same deliveries again and again, the rest is ignored.
        """
        peer = self._peer
        most = peer.examined + _EXAMINED_AT_END + 2 * self._consumers.unsettled
        try:
            while peer.has_more and not self._client.has_ended and peer.examined <= most:
                # proton tells again of what was settled until it has written that.
                self._peer_output(None)
                peer.go_on()
                self._process()
        finally:
            self.end()

    def end(self) -> None:
        """The connection is over, at once: what the client had is given back."""
        self._disconnect()
        self._release()

    def _take_more(self) -> None:
        """Have a callback take more of what the client has settled, in a turn of its own."""
        calls = self.calls
        if self._goes_on or calls.go_on is not None:
            return
        if calls.settles_too_much:
            calls.go_on = self._take_more
        else:
            self._goes_on = True
            calls.next_turn(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._peer.go_on()
        self._process()
        self._keep_to_budget()
        if self._peer.has_more:
            self._take_more()

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now, after the callbacks that the engine has added."""
        login = self._login
        if login is not None:
            return login.pending_output()
        self._run_callbacks()
        if self._peer.has_more:
            self._take_more()
        if self._login_output:
            output, self._login_output = self._login_output, b""
            return output
        data = self._peer_output(limit_bytes)
        if self._consumers.postponed:
            self._consumers.grant_postponed()
            data += self._peer_output(limit_bytes)
        if self._requests.answers or self._event_links.waiting:
            self._requests.send_answers()
            self._event_links.send()
            data += self._peer_output(limit_bytes)
        return data

    @property
    def is_postponed(self) -> bool:
        """Whether something waits for the next turn, for which ``wake`` was called: others have theirs first."""
        return self.calls.is_postponed or self.calls.has_next_turn

    @property
    def output_closed(self) -> bool:
        """Whether nothing more will be sent: close the socket."""
        if self._login is not None:
            return self._login.error is not None
        return self._peer.output_closed

    def tick(self, now_ms: int) -> int | None:
        """Let time pass, on a clock that never goes back; returns when to call again at the latest."""
        if self._login is not None or self._client.has_ended:
            return None
        deadline = self._peer.tick(now_ms, listens=self.wants_input)
        if self._coordinator.end_idle(now_ms):
            deadline = min(deadline or now_ms + _TRANSACTION_TICK_MS, now_ms + _TRANSACTION_TICK_MS)
        if not self._peer.has_more:
            self._process()
        return deadline

    def pause(self) -> None:
        """The socket takes no more bytes: ask the engine for no more deliveries."""
        self._output.is_paused = True

    def resume(self) -> None:
        """The socket takes bytes again."""
        self._output.is_paused = False
        self._requests.send_answers()
        self._event_links.send()
        self._consumers.grant_all()

    def close(self, error: JMSException | None = None, *, stops: bool = False) -> None:
        """Close the connection from our side; ``stops``: because the server does."""
        if self._login is None:
            self._peer.close(None if error is None else error_for(error))
        self._disconnect(stops=stops)

    def refusal(self) -> JMSException | None:
        """Why no request may begin now: the client has not taken its answers; None: one may.  In any thread."""
        return self._requests.refusal()

    def announce(self) -> None:
        """What is announced has changed: tell a client that asked for it."""
        self._requests.announce()

    def _process(self, waiting: Sequence[Any] = ()) -> None:
        """Do what the peer's events ask for, after those that waited for the engine to admit the client."""
        handlers, settle, client, calls = self._HANDLERS, self._consumers.on_dispositions, self._client, self.calls
        events = self._peer.events()
        for event in (*waiting, *events) if waiting else events:
            if client.has_ended:
                break
            if calls.client is None and not isinstance(event, _AT_ONCE):
                self._waiting.append(event)
                continue
            if type(event) is Dispositions:  # without a call in between: each may be that of one message
                settle(event)
            else:
                handlers[type(event)](self, event)
        if calls.deferred:
            calls.submit()

    # The connection.

    def _on_open(self, event: RemoteOpen) -> None:
        if self._opening:
            return
        self._opening = True
        self.peer_name = event.container_id
        if event.refusal is not None:
            self._on_connected(exception_for(event.refusal, "refused"))
            return
        client, calls = self._client, self.calls
        client.container_id = event.container_id
        client.envelope_version = envelope_version(event.desired_capabilities)
        client.is_own = event.properties.get("product") == PRODUCT
        client.uses_batches = (
            client.is_own and client.envelope_version > 0 and BATCHES_CAPABILITY in event.desired_capabilities
        )
        token = event.properties.get(CONNECTION_TOKEN)
        token = str(token) if isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN else None
        if token is not None:
            # What the client had is given back, and what it was about to do is not done any more, before it goes on.
            self._take_over(token)
        try:
            self._admit()
        except JMSException as error:
            self._on_connected(error)
            return
        sole = "sole-connection-for-container" in event.desired_capabilities
        # Our own client invents a container id where the application gave no client id; that of another client names
        # its subscriptions in any case.
        client_id = event.container_id if sole or not client.is_own else None
        calls.defer(c.Connect(client_id, sole, calls.reply(self._on_connected), token))

    def _on_connected(self, result: int | JMSException) -> None:
        if isinstance(result, JMSException):
            self._open({"amqp:connection-establishment-failed": True})
            self._peer.close(error_for(result))
            self._client.has_ended = True
            return
        if self._client.has_ended:
            self.calls.defer(c.Disconnect(result))
            return
        self.calls.client = result
        self._open({})
        waiting, self._waiting = self._waiting, []
        self._process(waiting)

    def _open(self, properties: dict[str, Any]) -> None:
        client = self._client
        offered = (
            *_OFFERED,
            *envelope_capabilities(client.envelope_version),
            *((BATCHES_CAPABILITY,) if client.is_own else ()),
        )
        self._peer.open(
            "holdfast",
            offered_capabilities=offered,
            properties={
                "product": PRODUCT,
                "version": own_version(),
                STORE: self._engine.unique,
                RUN: self._engine.run,
                **self._announced().as_properties(),
                **properties,
            },
        )

    def _on_close(self, event: RemoteClose) -> None:
        self._peer.close()
        self._disconnect(failed=self._client.is_own)

    def _on_failed(self, event: TransportFailed) -> None:
        self.error = JMSException(event.error.description or "the connection broke", error_code=event.error.condition)
        self._disconnect()

    def _disconnect(self, *, failed: bool = True, stops: bool = False) -> None:
        """The connection is over; what the client held has failed, or was never delivered."""
        calls = self.calls
        if self._client.has_ended:
            return
        self._client.has_ended = True
        if calls.client is not None:
            never_delivered = self._consumers.never_delivered() if failed else {}
            calls.defer(c.Disconnect(calls.client, failed, never_delivered, stops=stops))
        calls.submit()

    def _release(self) -> None:
        """Drop all that is kept for the client, though the engine may still have answers for it."""
        self._peer.release()
        self._waiting.clear()
        for part in (
            self._links,
            self._producers,
            self._consumers,
            self._coordinator,
            self._event_links,
            self._requests,
        ):
            part.clear()

    # Memory.

    def _keep_to_budget(self) -> None:
        """Refuse the largest of what only the client can end, until the rest is within the budget."""
        budget = self._budget
        budget.unfinished = self._peer.unfinished_bytes
        if budget.excess <= 0:
            return
        reason = (
            f"the unfinished messages and open transactions of the connection are larger than {budget.most_bytes} bytes"
            " (option max_connection_bytes)"
        )
        error = ResourceAllocationException(reason, error_code="amqp:resource-limit-exceeded")
        coordinator = self._coordinator
        while (before := budget.excess) > 0:
            largest = coordinator.largest()
            if largest is not None and largest.kept_bytes >= self._peer.largest_unfinished_bytes():
                coordinator.give_up(largest, error)
            else:
                self._peer.refuse_largest_unfinished(error_for(error))
                self._process()
            budget.unfinished = self._peer.unfinished_bytes
            if budget.excess == before:
                break
        self.calls.submit()

    # Sessions and links.

    def _on_session_open(self, event: SessionRemoteOpen) -> None:
        self._links.begin(event.session)

    def _on_session_close(self, event: SessionRemoteClose) -> None:
        self._consumers.on_session_close(event)
        for link in self._links.end(event.session):
            self._consumers.remove(link)
            self._remove(link)

    def _on_link_open(self, event: LinkRemoteOpen) -> None:
        if not self._links.add(event):
            return  # gone while the engine had not answered the connection's open yet
        if event.excess is not None:
            self._peer.refuse_link(event.link, event.excess)
            return
        try:
            self._attach(event)
        except JMSException as error:
            self._peer.refuse_link(event.link, error_for(error))

    def _attach(self, event: LinkRemoteOpen) -> None:
        """Have the part that a link leads to accept it; raises a JMSException where it is refused."""
        if event.is_sender:
            source = event.source
            if source is not None and EVENTS_CAPABILITY in source.capabilities:
                self._event_links.attach(event)
            elif source is not None and source.address == MANAGEMENT_ADDRESS:
                self._requests.attach_answerer(event)
            else:
                self._consumers.attach(event)
            return
        target = event.target
        if target is None:
            raise InvalidDestinationException("an attach of a sender needs a target")
        if target.coordinator:
            self._coordinator.attach(event)
        elif not target.dynamic and target.address == MANAGEMENT_ADDRESS:
            self._requests.attach_requester(event, self._engine.settings.max_message_bytes)
        elif self._batched.is_attach(target):
            self._batched.attach(event)
        else:
            self._producers.attach(event, target)

    def _on_link_close(self, event: LinkRemoteClose) -> None:
        self._links.remove(event.link)
        parts = self._consumers, self._producers, self._event_links
        if any(part.on_link_close(event) for part in parts):
            return  # the engine answers first
        self._remove(event.link)
        self._peer.close_link(event.link, closed=event.closed)

    def _remove(self, link: int) -> None:
        """A link that messages came on, or answers went, is gone."""
        self._producers.remove(link)
        self._event_links.remove(link)
        self._requests.remove(link)
        self._coordinator.remove(link)
        self._batched.remove_link(link)

    def _on_flow(self, event: LinkFlow) -> None:
        if self._consumers.on_flow(event) or self._event_links.on_flow(event):
            return
        if self._requests.has_answerer(event.link):
            self._requests.send_answers()
            if event.drain:
                self._peer.drained(event.link)
        elif event.drain:
            self._consumers.expect_drain(event.link)

    def _on_transfers(self, event: Transfers) -> None:
        if self._producers.on_transfers(event, self._now_ms):
            return
        if self._coordinator.has_link(event.link):
            self._coordinator.on_transfers(event)
        elif self._requests.has_requester(event.link):
            self._requests.on_transfers(event)
        elif self._batched.has_link(event.link):
            try:
                self._batched.on_transfers(event)
            except JMSException as error:
                self.error = error
                self.close(error)
        else:
            self._refuse_all(event)

    def _refuse_all(self, event: Transfers) -> None:
        """Messages came on a link that was refused, or that has no place for messages any more."""
        nowhere = AmqpError("amqp:illegal-state", "the link takes no messages: it was refused or closed")
        refusal = State(REJECTED, error=nowhere)
        for number, _, state in event.deliveries:
            self._coordinator.refuse_named(state, nowhere)
            self._peer.settle(event.link, (number,), refusal)

    def _on_dropped(self, event: Dropped) -> None:
        """Messages came that are not handed out.  Only those that their sender gave up are not missed."""
        link, error = event.link, event.error
        if error is not None:
            for txn_id in event.txn_ids:
                self._coordinator.refuse_named(State(TRANSACTIONAL, txn_id=txn_id), error)
            # Which transaction a message to the coordinator was about cannot be told.  The link is closed, and with it
            # they all end.
            self._coordinator.remove(link)
        elif not self._producers.on_dropped(link, event.messages) and (
            self._coordinator.has_link(link) or self._requests.has_requester(link) or self._batched.has_link(link)
        ):
            self._peer.credit(link, event.messages)

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
        TransportFailed: _on_failed,
    }
