"""The server's side of one AMQP connection: between a peer and the engine; no sockets, threads or clock.

Theory of operation
    ``receive(data, now_ms)`` takes bytes; what they ask of the engine is gathered and submitted at the end of the call,
    the messages of one link as one command.  The engine's answers and deliveries come from its own thread into a
    deque; ``pending_output()`` takes them from there in the connection's thread, and returns bytes.  ``wake`` is
    called, from the engine's thread, when the deque was empty.

    A producer's credit is given back when its messages have their answer, so what is held at a limit of the engine
    holds the producer back; the larger its messages, the fewer may be on their way.  A consumer's credit is passed on
    to the engine in slices of so many messages and so many bytes, and not at all while the connection has more to send
    than it can or the client's session takes no more, so a slow client costs a bounded amount of memory.

    What the client has got stays in its hands until it settles it, or its session or connection ends (another client
    than ours: its link).  What it has not got as a whole when its link ends goes back as it was: a failed delivery is
    counted only for what somebody may have seen.

    A connection has a budget of bytes (:mod:`broker_adapter.server.budget`): above it ``wants_input`` is false, and
    what only the client can end is refused.  Deliveries that arrive when too much waits for the client already go back
    to the engine.  Transactions that a client leaves alone for too long are rolled back.

    What a link means is told by its terminus, in the manner of the JMS mapping: see ``_attach_producer`` and
    ``_attach_consumer``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import attrs

from ack_modes import Outcome
from broker_adapter.amqp.amqp_message import with_delivery
from broker_adapter.amqp.conditions import IN_DOUBT, AmqpError, error_for, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED,
    ACCEPTED_STATE,
    DECLARED,
    MODIFIED,
    REJECTED,
    TRANSACTIONAL,
    Dispositions,
    Dropped,
    Incoming,
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
from broker_adapter.amqp.management import Answer, error_fields, pack_answer, unpack_request
from broker_adapter.amqp.payloads import as_amqp, read_head, with_place
from broker_adapter.amqp.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import Login
from broker_adapter.amqp.values import Described, Reader, Symbol
from broker_adapter.amqp.wire import (
    BACK_OFF,
    COMMIT_ID,
    CONNECTION_TOKEN,
    DECLARE_CODE,
    DISCHARGE_CODE,
    EXCLUSIVE_CAPABILITY,
    MANAGEMENT_ADDRESS,
    NEWS,
    OUTCOMES,
    RUN,
    SERVER_LIST,
    STORE,
    WATCH,
    envelope_capabilities,
    envelope_version,
)
from broker_adapter.destination import Destination, topic
from broker_adapter.engine import commands as c
from broker_adapter.envelope import ENVELOPE_VERSION, in_version
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
    StoreException,
    TransactionRolledBackException,
)
from broker_adapter.server import permissions
from broker_adapter.server.announcements import as_answer, as_property
from broker_adapter.server.budget import Budget
from broker_adapter.server.termini import (
    browses,
    destination_of,
    filters_of,
    former_name,
    resolved,
    temporary_kind,
    temporary_terminus,
)
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import Server, Subscription
from broker_adapter.version import PRODUCT, own_version

#: Most messages that a consumer's link may have on their way from the engine.
SLICE_MESSAGES: Final = 1000
#: Least bytes of messages that the engine may hand out to a link at once.
_LEAST_SLICE_BYTES: Final = 64 * 1024
#: What a producer's messages are taken for before one has come, in bytes.
_GUESSED_BYTES: Final = 256 * 1024
#: Most messages and requests on their way to a coordinator or to the management node.
_CONTROL_CREDIT: Final = 100
#: Most transactions of a connection that are open at once.
_MAX_TRANSACTIONS: Final = 1000
#: What a message, and a settlement, of a transaction takes in memory beside its payload, in bytes.
_SEND_BYTES: Final = 512
_SETTLEMENT_BYTES: Final = 128
#: Consumers whose deliveries cannot be given back that may wait for the engine's answer to a grant at once.
_GRANTS_AT_ONCE: Final = 8
#: Time between two looks at transactions that are open, in milliseconds.
_TRANSACTION_TICK_MS: Final = 1000
#: Longest word by which a client's connection takes the place of another, in characters.
_MAX_TOKEN: Final = 100

_OFFERED: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "sole-connection-for-container")
#: Destinations that a link is known to be allowed to send to; beyond them it is asked again.
_MOST_ALLOWED: Final = 1000
_TIMED_OUT: Final = "amqp:transaction:timeout"
_ROLLED_BACK: Final = "amqp:transaction:rollback"


class Engine(Protocol):
    """What a connection needs of the broker."""

    settings: EngineSettings
    unique: str
    run: str

    def submit_all(self, commands: Iterable[c.Command]) -> None:
        """Hand over commands; the answers come through their ``reply``, from another thread."""


#: Runs an operation elsewhere: (operation, arguments, done); done gets the result or a JMSException, in any thread.
RunRequest = Callable[[str, dict[str, Any], Callable[[Any], None]], None]


@attrs.define(eq=False)
class _Producer:
    """A link that the client sends messages on.  ``destination`` None: each message names its own."""

    link: int
    destination: Destination | None
    most: int  #: messages that may be on their way to us
    temporary: bool = False  #: the destination ends with the link
    credit: int = 0  #: messages that the client may still send
    unanswered: int = 0  #: messages that came and are not answered yet
    mean_bytes: int = 0  #: of its messages, where some came; larger ones count at once, smaller ones by and by
    allowed: set[Destination] = attrs.field(factory=set)  #: of one without a destination: where it may send


@attrs.define(eq=False)
class _Batch:
    """Messages of one link that went to the engine together."""

    producer: _Producer
    numbers: list[int]  #: the peer's
    size: int = 0  #: bytes of them


@attrs.define(eq=False)
class _Consumer:
    """A link that the client receives messages on."""

    link: int
    session: int
    number: int  #: the engine's
    presettled: bool  #: the engine forgets what it hands out
    slice_bytes: int  #: most bytes of messages on their way from the engine, but for a part of the last one
    max_message_bytes: int  #: of the largest message that the client takes
    settles: bool = False  #: what is sent is settled for the client, and accepted for the engine then
    handed: int = 0  #: the engine's number of the last delivery that was looked at
    since_grant: int = 0  #: bytes of messages that came from the engine since it was last allowed a slice
    credit: int = 0  #: what the client allows beyond what was sent
    granted: int = 0  #: what of it the engine has, and has not used yet
    draining: bool = False  #: the client wants the credit used up or back
    drain_sent: bool = False  #: the engine was asked for that, and has not answered yet
    gives_back: bool = False  #: something went back to the engine, and so does what comes until the next such answer
    mean_bytes: int = 0  #: of what it was sent last
    detached: bool = False
    unsettled: dict[int, int] = attrs.field(factory=dict)  #: the peer's number of a delivery → the engine's
    subscription: tuple[str, bool] | None = None  #: durable: its name, and whether the client id belongs to it
    temporary: Destination | None = None  #: ends with the link

    @property
    def slice_is_used_up(self) -> bool:
        """Whether the engine may have stopped for the bytes, and not for want of messages or credit."""
        return self.since_grant >= self.slice_bytes


@attrs.define(eq=False)
class _Transaction:
    """What a client has put into a transaction so far."""

    coordinator: int
    sends: list[tuple[Destination, c.NewMessage]] = attrs.field(factory=list)
    settlements: list[tuple[int, int, Outcome]] = attrs.field(factory=list)
    send_bytes: int = 0  #: of the messages alone
    refusal: JMSException | None = None
    is_active: bool = False  #: whether something was put into it since the last look
    idle_since_ms: int = 0

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory, about."""
        return self.send_bytes + _SEND_BYTES * len(self.sends) + _SETTLEMENT_BYTES * len(self.settlements)


class ServerProtocol:
    """One client's connection.  See the module's theory of operation."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        login: Login | None,
        wake: Callable[[], None],
        run_request: RunRequest,
        take_over: Callable[[str], None] = lambda _token: None,
        admit: Callable[[], None] = lambda: None,
        servers: Callable[[], Sequence[Server]] = lambda: (),
        authorize: Callable[[str, Destination | None], None] = lambda action, destination: None,
    ) -> None:
        """A connection on which nothing has been said yet.

        Args:
            engine: the broker.
            settings: the server's limits.
            login: the SASL exchange to go through first; None: none is accepted.
            wake: called from any thread when ``pending_output()`` is to be asked.
            run_request: carries out operations beyond messaging.
            take_over: ends the connection of this token, whose client has come again on this one.
            admit: raises a JMSException where the connection may not be opened; asked after ``take_over``.
            servers: where else clients are told to connect.
            authorize: raises JMSSecurityException where the user may not do this with this destination; see
                :mod:`broker_adapter.server.permissions`.
        """
        self._authorize = authorize
        self._admit = admit
        self._servers = servers
        self._watcher: int | None = None  #: the link on which the client asked to be told of changes of that
        self._take_over = take_over
        self._engine = engine
        self._settings = settings
        self._login = login
        self._last_words = b""  #: of the login, ahead of AMQP
        self._wake = wake
        self._run_request = run_request
        limits = PeerLimits(
            max_frame_bytes=settings.max_frame_bytes,
            max_message_bytes=engine.settings.max_message_bytes,
            max_sessions=settings.max_sessions,
            max_links=settings.max_links,
            idle_timeout_ms=int(settings.idle_timeout_seconds * 1000),
        )
        self._peer = Peer(limits, server=True)
        self._news: deque[Callable[[], None]] = deque()
        self._told = False  #: whether somebody was woken for the news
        self._commands: list[c.Command] = []
        self._client: int | None = None
        self._waiting: list[Any] = []  #: events that came before the engine knew the client
        self._opening = False
        self._ended = False
        self._paused = False
        self._now_ms = 0
        self._envelope_version = 0  #: of packed envelopes, that both ends know; 0: standard AMQP
        self._is_own = False  #: whether the client is ours
        self._producers: dict[int, _Producer] = {}
        self._consumers: dict[int, _Consumer] = {}
        self._sessions: dict[int, set[int]] = {}
        self._early_drains: set[int] = set()  #: links whose drain came ahead of the engine's consumer
        self._choked: dict[int, None] = {}  #: links of consumers that were granted nothing because too much waits
        self._coordinators: set[int] = set()
        self._transactions: dict[bytes, _Transaction] = {}
        self._next_transaction = 1
        self._budget = Budget(settings.max_connection_bytes)
        self._input_bytes = settings.max_input_bytes  #: of each producer's messages on their way to us
        #: Bytes of deliveries that came from the engine, and those of them that were looked at.  The first is counted
        #: in the engine's thread, the other in the connection's.
        self._arrived_bytes = 0
        self._taken_bytes = 0
        self._granting = 0  #: grants to consumers whose deliveries cannot be given back, not answered yet
        self._requesters: set[int] = set()
        self._answerers: list[int] = []
        #: the link that the question came on (None: nobody asked), the answer
        self._answers: deque[tuple[int | None, bytes]] = deque()
        #: Answers that were packed, and that the budget does not count yet: link and bytes of the request, the answer.
        self._packed: deque[tuple[int, int, bytes]] = deque()
        self.error: JMSException | None = None  #: why the connection ended, where it did badly
        self.peer_name = ""  #: container id of the client

    def __repr__(self) -> str:
        return f"<ServerProtocol {self.peer_name!r} producers={len(self._producers)} consumers={len(self._consumers)}>"

    # Bytes.

    @property
    def is_open(self) -> bool:
        """Whether the client has logged in and its connection is open."""
        return self._client is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done for the client; it may still have to be told."""
        return self._ended

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
            self._last_words = login.pending_output()
            data = login.leftover()
        if data:
            self._peer.receive(data)
            self._process()
            self._keep_to_budget()

    @property
    def wants_input(self) -> bool:
        """Whether bytes may be read from the client: neither above its budget, nor while the engine admits it."""
        if self._ended:
            return True  # for its last words, and its end
        if self._opening and self._client is None:
            return False
        output = self._waiting_bytes + self._budget.answers + self._peer.unwritten_bytes
        self._budget.output = output if self._paused else 0
        return self._budget.allows_reading

    def receive_end(self) -> None:
        """The client is gone."""
        self._disconnect()
        self._release()

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now, after what the engine had to say."""
        login = self._login
        if login is not None:
            return login.pending_output()
        self._take_news()
        if self._last_words:
            words, self._last_words = self._last_words, b""
            return words
        data = self._peer.pending_output(limit_bytes)
        if self._choked:
            self._grant_choked()
        if self._answers:
            self._send_answers()
            data += self._peer.pending_output(limit_bytes)
        return data

    @property
    def output_closed(self) -> bool:
        """Whether nothing more will be sent: close the socket."""
        if self._login is not None:
            return self._login.error is not None
        return self._peer.output_closed

    def tick(self, now_ms: int) -> int | None:
        """Let time pass, on a clock that never goes back; returns when to call again at the latest."""
        if self._login is not None or self._ended:
            return None
        deadline = self._peer.tick(now_ms, listens=self.wants_input)
        if self._transactions and self._end_idle_transactions(now_ms):
            deadline = min(deadline or now_ms + _TRANSACTION_TICK_MS, now_ms + _TRANSACTION_TICK_MS)
        self._process()
        return deadline

    def pause(self) -> None:
        """The client takes no more: ask the engine for no more deliveries."""
        self._paused = True

    def resume(self) -> None:
        """The client takes again."""
        self._paused = False
        self._send_answers()
        self._grant_all(self._consumers.values())

    def close(self, error: JMSException | None = None, *, stops: bool = False) -> None:
        """Close the connection from our side; ``stops``: because the server does."""
        if self._login is None:
            self._peer.close(None if error is None else error_for(error))
        self._disconnect(stops=stops)

    def _process(self) -> None:
        for event in self._peer.events():
            self._on_event(event)
        self._submit()

    def _on_event(self, event: Any) -> None:
        if self._ended:
            return
        if self._client is None and not isinstance(event, RemoteOpen | RemoteClose | TransportFailed):
            self._waiting.append(event)
            return
        self._HANDLERS[type(event)](self, event)

    def _submit(self) -> None:
        if self._commands:
            commands, self._commands = self._commands, []
            self._engine.submit_all(commands)

    # What the engine says.

    def _tell(self, act: Callable[..., None], *arguments: Any) -> None:
        """From any thread: have this done in the connection's own."""
        self._news.append(partial(act, *arguments))
        if not self._told:
            self._told = True
            self._wake()

    def _take_news(self) -> None:
        self._told = False  # before the deque is emptied: who comes later wakes again
        news = self._news
        while news:
            news.popleft()()
        self._submit()

    def _reply(self, act: Callable[..., None], *arguments: Any) -> c.Reply:
        """A reply that has ``act(*arguments, result)`` done in the connection's thread."""

        def reply(result: Any) -> None:
            self._tell(act, *arguments, result)

        return reply

    # The connection.

    def _on_open(self, event: RemoteOpen) -> None:
        if self._opening:
            return
        self._opening = True
        self.peer_name = event.container_id
        self._envelope_version = envelope_version(event.desired_capabilities)
        self._is_own = event.properties.get("product") == PRODUCT
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
        client_id = event.container_id if sole or not self._is_own else None
        self._commands.append(c.Connect(client_id, sole, self._reply(self._on_connected), token))

    def _on_connected(self, result: int | JMSException) -> None:
        if isinstance(result, JMSException):
            self._open({"amqp:connection-establishment-failed": True})
            self._peer.close(error_for(result))
            self._ended = True
            return
        if self._ended:
            self._commands.append(c.Disconnect(result))
            return
        self._client = result
        self._open({})
        waiting, self._waiting = self._waiting, []
        for event in (*waiting, *self._peer.events()):
            self._on_event(event)

    def _open(self, properties: dict[str, Any]) -> None:
        offered = (*_OFFERED, *envelope_capabilities(self._envelope_version))
        self._peer.open(
            "holdfast",
            offered_capabilities=offered,
            properties={
                "product": PRODUCT,
                "version": own_version(),
                STORE: self._engine.unique,
                RUN: self._engine.run,
                **({SERVER_LIST: as_property(servers)} if (servers := self._servers()) else {}),
                **properties,
            },
        )

    def _on_close(self, event: RemoteClose) -> None:
        self._peer.close()
        self._disconnect(failed=self._is_own)

    def _on_failed(self, event: TransportFailed) -> None:
        self.error = JMSException(event.error.description or "the connection broke", error_code=event.error.condition)
        self._disconnect()

    def _disconnect(self, *, failed: bool = True, stops: bool = False) -> None:
        """The connection is over; what the client held has failed, or was only never looked at."""
        if self._ended:
            return
        self._ended = True
        if self._client is not None:
            unseen: dict[int, c.Unseen] = {}
            if failed:
                for consumer in self._consumers.values():
                    unseen[consumer.number] = self._unseen(consumer, self._peer.withdraw(consumer.link))
            self._commands.append(c.Disconnect(self._client, failed, unseen, stops=stops))
        self._submit()

    def _release(self) -> None:
        """Let go of all that is kept for the client, though the engine may still have answers for it."""
        self._peer.release()
        for table in (
            *(self._waiting, self._producers, self._consumers, self._sessions, self._early_drains, self._choked),
            *(self._coordinators, self._transactions, self._requesters, self._answerers, self._answers),
        ):
            table.clear()

    # Memory.

    @property
    def _waiting_bytes(self) -> int:
        """Of deliveries and answers on their way to the client, from the engine's hand-over to the socket."""
        return self._peer.waiting_bytes() + self._arrived_bytes - self._taken_bytes

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
        while (before := budget.excess) > 0:
            largest = max(self._transactions.values(), key=lambda each: each.kept_bytes, default=None)
            if largest is not None and largest.kept_bytes >= self._peer.largest_unfinished_bytes():
                self._give_up(largest, error)
            else:
                self._peer.refuse_largest_unfinished(error_for(error))
                self._process()
            budget.unfinished = self._peer.unfinished_bytes
            if budget.excess == before:
                break
        self._submit()

    def _refuse(self, transaction: _Transaction, error: JMSException) -> None:
        """A transaction cannot be done, which is said at its discharge; what it was to send is not kept until then."""
        self._budget.transactions -= transaction.kept_bytes
        transaction.refusal = error
        transaction.sends.clear()
        transaction.send_bytes = 0
        self._budget.transactions += transaction.kept_bytes

    def _give_up(self, transaction: _Transaction, error: JMSException) -> None:
        """Undo a transaction without waiting for its discharge, which is told why."""
        self._refuse(transaction, error)
        self._roll_back(transaction)
        self._budget.transactions -= transaction.kept_bytes
        transaction.settlements.clear()

    def _end_idle_transactions(self, now_ms: int) -> bool:
        """Undo what the client has left alone for too long; returns whether there is something to look at again."""
        limit = self._settings.transaction_timeout_seconds
        open_ones = False
        for transaction in self._transactions.values():
            if limit is None or not transaction.kept_bytes:
                continue  # clients declare the next one ahead, and may need it much later
            open_ones = True
            if transaction.is_active:
                transaction.is_active = False
                transaction.idle_since_ms = now_ms
            elif now_ms - transaction.idle_since_ms >= limit * 1000:
                reason = f"the transaction was left alone for {limit:g} s (option transaction_timeout_seconds)"
                self._give_up(transaction, TransactionRolledBackException(reason, error_code=_TIMED_OUT))
        return open_ones

    # Sessions and links.

    def _on_session_open(self, event: SessionRemoteOpen) -> None:
        self._sessions[event.session] = set()

    def _on_session_close(self, event: SessionRemoteClose) -> None:
        for consumer in [each for each in self._consumers.values() if each.session == event.session]:
            del self._consumers[consumer.link]
            unseen = self._unseen(consumer, event.unsent.get(consumer.link, ()))
            self._commands.append(c.Detach(consumer.number, give_back=True, failed=self._is_own, unseen=unseen))
            if not consumer.detached:
                consumer.detached = True  # what the engine has handed out already finds no link any more
                self._end_temporary(consumer.temporary)
        for link in self._sessions.pop(event.session, ()):
            self._early_drains.discard(link)
            self._forget_producer(link)

    def _on_link_open(self, event: LinkRemoteOpen) -> None:
        self._sessions.setdefault(event.session, set()).add(event.link)
        if not self._peer.has_link(event.link):
            return  # gone while the engine had not answered the connection's open yet
        if event.excess is not None:
            self._peer.refuse_link(event.link, event.excess)
            return
        try:
            if event.is_sender:
                self._attach_consumer(event)
            else:
                self._attach_producer(event)
        except JMSException as error:
            self._peer.refuse_link(event.link, error_for(error))

    def _attach_producer(self, event: LinkRemoteOpen) -> None:
        """A link that we receive on: to a destination, anywhere, a new temporary destination, or a node of ours."""
        target = event.target
        link = event.link
        if target is None:
            raise InvalidDestinationException("an attach of a sender needs a target")
        if target.coordinator:
            self._coordinators.add(link)
            self._peer.accept_link(link, event.source, target)
            self._peer.credit(link, _CONTROL_CREDIT)
        elif target.dynamic:
            kind = temporary_kind(target)
            name = former_name(target, kind)
            self._authorize(permissions.CREATE_TEMPORARY, Destination(name or "", kind))
            command = c.DeclareTemporary(self._known_client, kind, name, self._reply(self._on_temporary, event))
            self._commands.append(command)
        elif target.address == MANAGEMENT_ADDRESS:
            self._requesters.add(link)
            self._peer.accept_link(link, event.source, target)
            self._peer.credit(link, _CONTROL_CREDIT)
        elif target.address is None:
            self._accept_producer(event, None, target)
        else:
            destination = destination_of(target)
            self._authorize(permissions.SEND, destination)
            self._commands.append(c.Declare(destination, self._reply(self._on_declared, event, destination)))

    def _on_declared(self, event: LinkRemoteOpen, destination: Destination, result: JMSException | None) -> None:
        if self._refused(event, result):
            return
        assert event.target is not None
        self._accept_producer(event, destination, event.target)

    def _on_temporary(self, event: LinkRemoteOpen, result: Destination | JMSException) -> None:
        if self._refused(event, result):
            if isinstance(result, Destination):
                self._end_temporary(result)
            return
        assert isinstance(result, Destination)
        self._accept_producer(event, result, temporary_terminus(result), temporary=True)

    def _accept_producer(
        self, event: LinkRemoteOpen, destination: Destination | None, target: Terminus, *, temporary: bool = False
    ) -> None:
        link = event.link
        settings = self._settings
        # Half of the budget is for all of them, so that those who keep to their credit do not stop the reading.
        share = settings.max_connection_bytes // 2 // (len(self._producers) + 1)
        self._input_bytes = min(settings.max_input_bytes, share)
        most = max(1, min(settings.link_credit_messages, self._input_bytes // _GUESSED_BYTES))
        producer = self._producers[link] = _Producer(link, destination, most, temporary)
        self._peer.accept_link(link, event.source, target, max_message_bytes=self._engine.settings.max_message_bytes)
        self._allow(producer)

    def _refused(self, event: LinkRemoteOpen, result: Any) -> bool:
        """Refuse a link where the engine did; returns whether there is nothing more to do."""
        if self._ended or not self._is_attached(event):
            return True
        if isinstance(result, JMSException):
            self._peer.refuse_link(event.link, error_for(result))
            return True
        return False

    def _is_attached(self, event: LinkRemoteOpen) -> bool:
        """Whether the link is still there: neither did the client end it, nor we because it broke a rule."""
        return event.link in self._sessions.get(event.session, ()) and self._peer.has_link(event.link)

    def _attach_consumer(self, event: LinkRemoteOpen) -> None:
        """A link that we send on: from a queue, a browser's, a subscription's, from a node of ours.

        The JMS mapping tells a subscription by the link's name (behind a ``|`` stands what makes several links of a
        shared one differ) and the source's capabilities.  No source: the client looks for the subscription of the
        link's name, to end it.
        """
        source = event.source
        link = event.link
        name, _, suffix = event.name.partition("|")
        if source is None:
            of_client = not suffix.startswith("global")
            self._authorize(permissions.UNSUBSCRIBE, topic(name))
            reply = self._reply(self._on_unsubscribed, event)
            self._commands.append(c.Unsubscribe(self._known_client, name, of_client, reply))
            return
        if source.address == MANAGEMENT_ADDRESS:
            self._answerers.append(link)
            self._peer.accept_link(link, source, event.target)
            return
        if source.dynamic:
            kind = temporary_kind(source)
            self._authorize(permissions.CREATE_TEMPORARY, Destination("", kind))
            reply = self._reply(self._on_temporary_source, event)
            self._commands.append(c.DeclareTemporary(self._known_client, kind, None, reply))
            return
        if source.address is None:
            raise InvalidDestinationException("an attach of a receiver needs a source with an address")
        destination = destination_of(source)
        self._authorize(permissions.BROWSE if browses(source, destination) else permissions.CONSUME, destination)
        self._attach_to(event, source, destination, name)

    def _on_temporary_source(self, event: LinkRemoteOpen, result: Destination | JMSException) -> None:
        if self._refused(event, result):
            if isinstance(result, Destination):
                self._end_temporary(result)
            return
        assert isinstance(result, Destination)
        self._attach_to(event, temporary_terminus(result), result, event.name, temporary=result)

    def _attach_to(
        self,
        event: LinkRemoteOpen,
        source: Terminus,
        destination: Destination,
        name: str,
        temporary: Destination | None = None,
    ) -> None:
        selector, no_local = filters_of(source)
        subscription: Subscription | None = None
        durable = source.durable > 0 or source.expiry == "never"
        if destination.is_topic and (durable or "shared" in source.capabilities):
            of_client = "global" not in source.capabilities
            subscription = Subscription(name, durable, "shared" in source.capabilities, of_client)
        browse = browses(source, destination)
        link = event.link
        share = self._settings.max_output_bytes // sum(map(len, self._sessions.values()))
        slice_bytes = max(share, _LEAST_SLICE_BYTES)
        # A message that turns out to be larger than the client takes must not be forgotten by then.
        settles = event.presettled and not browse and event.max_message_bytes is not None
        presettled = (event.presettled or browse) and not settles
        max_message_bytes = event.max_message_bytes or sys.maxsize
        consumer = _Consumer(link, event.session, 0, presettled, slice_bytes, max_message_bytes, settles)
        if subscription is not None and subscription.durable:
            consumer.subscription = (name, subscription.of_client)
        consumer.temporary = temporary

        most_waiting = self._settings.max_connection_bytes // 4

        def sink(handouts: Sequence[c.Handout]) -> None:
            # In the engine's thread.  All consumers of a connection may be granted something at once, and each gets at
            # least one message, however large: what is too much goes back before the connection's thread sees it.
            if self._arrived_bytes - self._taken_bytes > most_waiting and not consumer.presettled:
                self._tell(self._give_back, consumer, [handout.number for handout in handouts])
                return
            size = sum([len(handout.payload) for handout in handouts])
            self._arrived_bytes += size
            self._tell(self._deliver, consumer, handouts, size)

        self._commands.append(
            c.Attach(
                self._known_client,
                destination,
                sink,
                subscription,
                selector,
                no_local,
                consumer.presettled,
                browse,
                slice_bytes,
                exclusive=EXCLUSIVE_CAPABILITY in source.capabilities,
                ended=self._reply(self._on_ended, consumer),
                reply=self._reply(self._on_attached, event, source, consumer),
            )
        )

    def _on_attached(
        self, event: LinkRemoteOpen, source: Terminus, consumer: _Consumer, result: int | JMSException
    ) -> None:
        if self._refused(event, result):
            if isinstance(result, int):
                self._commands.append(c.Detach(result, give_back=True))
            self._end_temporary(consumer.temporary)
            return
        assert isinstance(result, int)
        consumer.number = result
        self._consumers[event.link] = consumer
        self._peer.accept_link(event.link, source._replace(outcomes=OUTCOMES), event.target)
        consumer.credit = self._peer.remaining_credit(event.link)
        consumer.draining = event.link in self._early_drains
        self._early_drains.discard(event.link)
        self._grant(consumer)

    def _on_ended(self, consumer: _Consumer, error: JMSException) -> None:
        """The engine has ended a consumer, because its queue was deleted."""
        if consumer.detached or self._ended:
            return
        consumer.detached = True
        consumer.unsettled.clear()
        self._consumers.pop(consumer.link, None)
        self._peer.abandon(consumer.link)
        self._peer.close_link(consumer.link, error_for(error))

    def _on_unsubscribed(self, event: LinkRemoteOpen, result: JMSException | None) -> None:
        """The subscription is gone already; the client closes the link that it looked for it with."""
        if not self._refused(event, result):
            self._peer.accept_link(event.link, Terminus(event.name.partition("|")[0]), event.target)

    def _on_link_close(self, event: LinkRemoteClose) -> None:
        link = event.link
        self._early_drains.discard(link)
        for links in self._sessions.values():
            links.discard(link)
        consumer = self._consumers.get(link)
        if consumer is not None and not consumer.detached:
            consumer.detached = True
            reply = self._reply(self._on_detached, link, event.closed)
            unseen = set(self._take_left(consumer)), self._ahead(consumer)
            self._commands.append(c.Detach(consumer.number, unseen=unseen, reply=reply))
            if event.closed and consumer.subscription is not None and self._may_unsubscribe(consumer.subscription[0]):
                name, of_client = consumer.subscription
                self._commands.append(c.Unsubscribe(self._known_client, name, of_client))
            self._end_temporary(consumer.temporary)
            return
        if consumer is not None:  # the answer to our own detach
            if left := self._take_left(consumer):
                self._commands.append(c.Settle(consumer.number, left, Outcome.RELEASED))
            if not consumer.unsettled:
                del self._consumers[link]
        producer = self._producers.get(link)
        if producer is not None and producer.temporary and producer.destination is not None:
            del self._producers[link]
            reply = self._reply(self._on_deleted, link, event.closed)
            self._commands.append(c.DeleteTemporary(self._known_client, producer.destination, reply))
            return
        self._forget_producer(link)
        self._peer.close_link(link, closed=event.closed)

    def _may_unsubscribe(self, name: str) -> bool:
        try:
            self._authorize(permissions.UNSUBSCRIBE, topic(name))
        except JMSException:
            return False  # the client has closed its link, and takes no other answer
        return True

    def _take_left(self, consumer: _Consumer) -> list[int]:
        """The client has detached a link: what it can settle no more goes back to where it was (the engine's numbers).

        Sessions of our own client may acknowledge what a consumer has got that is closed; to others a link that is
        closed is the end of what came on it.
        """
        unsent = self._peer.withdraw(consumer.link)
        if not self._is_own:
            unsent = list(consumer.unsettled)
            self._peer.abandon(consumer.link)
        return self._take(consumer, unsent)

    @staticmethod
    def _take(consumer: _Consumer, deliveries: Iterable[int]) -> list[int]:
        """The engine's numbers of some deliveries, which are the client's no more."""
        take = consumer.unsettled.pop
        return [number for number in [take(each, 0) for each in deliveries] if number]

    def _unseen(self, consumer: _Consumer, unsent: Iterable[int]) -> c.Unseen:
        """A consumer is about to go, and what it holds may count as failed: but not what the client never got.

        Args:
            consumer: it gets nothing more.
            unsent: what the peer has not sent as a whole, by its numbers.
        """
        return set(self._take(consumer, unsent)), self._ahead(consumer)

    @staticmethod
    def _ahead(consumer: _Consumer) -> range:
        """What the engine may have handed out meanwhile: it is on its way here, and is not sent any more."""
        return range(consumer.handed + 1, consumer.handed + 1 + consumer.granted)

    def _on_detached(self, link: int, closed: bool, _result: Any) -> None:
        self._peer.close_link(link, closed=closed)
        consumer = self._consumers.get(link)
        if consumer is not None and not consumer.unsettled:
            del self._consumers[link]

    def _on_deleted(self, link: int, closed: bool, result: JMSException | None) -> None:
        self._peer.close_link(link, None if result is None else error_for(result), closed=closed)

    def _forget_producer(self, link: int) -> None:
        producer = self._producers.pop(link, None)
        if producer is not None and producer.temporary:
            self._end_temporary(producer.destination)
        if link in self._requesters:
            self._requesters.discard(link)
            self._drop_answers(link)
        if link in self._answerers:
            self._answerers.remove(link)
        if link in self._coordinators:
            self._coordinators.discard(link)
            for txn_id, transaction in list(self._transactions.items()):
                if transaction.coordinator == link:
                    del self._transactions[txn_id]
                    self._budget.transactions -= transaction.kept_bytes
                    self._roll_back(transaction)

    def _end_temporary(self, destination: Destination | None) -> None:
        if destination is not None:
            self._commands.append(c.DeleteTemporary(self._known_client, destination))

    @property
    def _known_client(self) -> int:
        assert self._client is not None
        return self._client

    # Deliveries.

    def _on_flow(self, event: LinkFlow) -> None:
        consumer = self._consumers.get(event.link)
        if consumer is None:
            if event.link in self._answerers:
                self._send_answers()
            elif event.drain:
                self._early_drains.add(event.link)
            return
        consumer.credit = event.credit
        consumer.draining = event.drain
        if event.credit < 0:  # the client took credit back that messages were to use which wait
            unsent = self._peer.take_back(event.link, -event.credit)
            consumer.credit += len(unsent)
            if taken := self._take(consumer, unsent):
                self._release_some(consumer, taken)
        if event.credit < consumer.granted and not event.drain and not consumer.drain_sent:
            self._drain(consumer)  # the client took credit back: so do we
        self._grant(consumer)

    def _grant(self, consumer: _Consumer) -> None:
        """Let the engine have as much of a consumer's credit as the connection can take; answer a drain."""
        if consumer.detached or consumer.drain_sent or self._paused:
            return
        wanted = max(0, min(consumer.credit, SLICE_MESSAGES) - consumer.granted)
        # A grant for each few messages would cost more than it brings.
        asks = (wanted and (consumer.granted <= SLICE_MESSAGES // 2 or consumer.draining)) or (
            consumer.slice_is_used_up and consumer.granted
        )
        if not asks and not consumer.draining:
            return
        if self._waiting_bytes >= self._settings.max_output_bytes or (
            consumer.presettled and self._granting >= _GRANTS_AT_ONCE
        ):
            self._choked[consumer.link] = None
            return
        if asks:
            consumer.granted += wanted
            consumer.since_grant = 0
            reply: c.Reply | None = None
            if consumer.presettled:
                self._granting += 1
                reply = self._reply(self._on_granted)
            self._commands.append(c.Credit(consumer.number, wanted, reply))
        if consumer.draining:
            self._drain(consumer)

    def _on_granted(self, _result: Any) -> None:
        self._granting -= 1
        self._grant_choked()

    def _grant_all(self, consumers: Iterable[_Consumer]) -> None:
        for consumer in consumers:
            self._grant(consumer)
        self._submit()

    def _grant_choked(self) -> None:
        """Grant something again, in turn, to those who were granted nothing, as far as there is room for it."""
        room = self._settings.max_output_bytes - self._waiting_bytes
        choked = self._choked
        for link in list(choked):
            if room <= 0:
                break
            del choked[link]
            consumer = self._consumers.get(link)
            if consumer is not None:
                commands = len(self._commands)
                self._grant(consumer)
                if len(self._commands) > commands:
                    room -= consumer.mean_bytes
        self._submit()

    def _drain(self, consumer: _Consumer) -> None:
        consumer.drain_sent = True
        consumer.since_grant = 0
        self._commands.append(c.Drain(consumer.number, self._reply(self._on_drained, consumer)))

    def _on_drained(self, consumer: _Consumer, _result: Any) -> None:
        """The engine has used up or dropped what it was granted."""
        left, consumer.granted = consumer.granted, 0
        consumer.drain_sent = consumer.gives_back = False
        if consumer.detached:
            return
        # With nothing left over there may be more: the client's credit can exceed what the engine is granted at once.
        if consumer.draining and ((left and not consumer.slice_is_used_up) or consumer.credit <= 0):
            consumer.draining = False
            consumer.credit = 0
            self._peer.drained(consumer.link)
        else:
            self._grant(consumer)

    def _give_back(self, consumer: _Consumer, numbers: Sequence[int]) -> None:
        """Deliveries go back to where they were, untouched: too much waits for the client already."""
        if self._ended:
            return
        consumer.handed = numbers[-1]
        self._release_some(consumer, numbers)
        if not consumer.detached:
            consumer.granted = max(0, consumer.granted - len(numbers))
            self._choked[consumer.link] = None
            if not consumer.drain_sent:
                self._drain(consumer)  # else it would be handed the same again

    def _release_some(self, consumer: _Consumer, numbers: Sequence[int]) -> None:
        """Deliveries go back, and what comes behind them as well until the engine has answered a drain."""
        consumer.gives_back = True
        self._commands.append(c.Settle(consumer.number, numbers, Outcome.RELEASED))

    def _deliver(self, consumer: _Consumer, handouts: Sequence[c.Handout], size: int) -> None:
        self._taken_bytes += size
        consumer.handed = handouts[-1].number
        if consumer.detached or self._ended:
            if not self._ended and not consumer.presettled:
                numbers = [handout.number for handout in handouts]
                self._commands.append(c.Settle(consumer.number, numbers, Outcome.RELEASED))
            return
        send, link, settled, unsettled = self._peer.send, consumer.link, consumer.presettled, consumer.unsettled
        settles, most_bytes = settled or consumer.settles, consumer.max_message_bytes
        count = len(handouts)
        consumer.mean_bytes = size // count
        is_full = self._peer.waiting_bytes() > self._settings.max_connection_bytes // 4
        if not settled and (is_full or consumer.gives_back):  # what comes behind it must not pass it
            self._give_back(consumer, [handout.number for handout in handouts])
            return
        consumer.since_grant += size
        if count > consumer.credit and not settled:  # the client took credit back meanwhile
            self._release_some(consumer, [handout.number for handout in handouts[consumer.credit :]])
            handouts = handouts[: consumer.credit]
        version = self._envelope_version
        for number, position, failures, form, payload, added, _ in handouts:
            if version == ENVELOPE_VERSION:
                data = with_place(position, failures, added, payload)
            else:
                try:
                    if version:
                        data = with_place(position, failures, added, in_version(version, form, payload)[1])
                    else:
                        data = with_delivery(as_amqp(form, payload), failures, added)
                except MessageFormatException:
                    self._commands.append(c.Settle(consumer.number, (number,), Outcome.REJECTED))
                    consumer.credit += 1  # the engine used it, the client did not
                    continue
            if len(data) > most_bytes:
                self._end_before(consumer, [each.number for each in handouts if each.number >= number], len(data))
                return
            sent = send(link, data, settled=settles)
            if not settles:
                unsettled[sent] = number
            elif not settled:
                self._commands.append(c.Settle(consumer.number, (number,), Outcome.ACCEPTED))
        consumer.granted = max(0, consumer.granted - count)
        consumer.credit = max(0, consumer.credit - count)
        if consumer.granted < consumer.credit or consumer.slice_is_used_up:
            self._grant(consumer)

    def _end_before(self, consumer: _Consumer, numbers: Sequence[int], size: int) -> None:
        """Close a link ahead of these deliveries, the first of which is larger than its client takes."""
        link = consumer.link
        consumer.detached = True
        unsent = self._take(consumer, self._peer.withdraw(link, stays=True))
        self._commands.append(c.Detach(consumer.number, unseen=({*numbers, *unsent}, self._ahead(consumer))))
        reason = (
            f"a message of {size} bytes is larger than the {consumer.max_message_bytes} bytes that the receiver takes"
            " (max-message-size of its attach); attach with a larger limit"
        )
        self._peer.close_link(link, AmqpError("amqp:link:message-size-exceeded", reason))
        self._end_temporary(consumer.temporary)

    def _on_dispositions(self, event: Dispositions) -> None:
        consumer = self._consumers.get(event.link)
        if consumer is None:
            return
        take = consumer.unsettled.pop
        numbers = [number for number in [take(each, 0) for each in event.numbers] if number]
        state = event.state
        if state.code == TRANSACTIONAL:
            transaction = self._transactions.get(state.txn_id or b"")
            if transaction is None or transaction.refusal is not None:
                self._commands.append(c.Settle(consumer.number, numbers, Outcome.MODIFIED))
            else:
                outcome = _outcome(state.outcome) if state.outcome is not None else Outcome.RELEASED
                transaction.settlements += [(consumer.number, number, outcome) for number in numbers]
                transaction.is_active = True
                self._budget.transactions += _SETTLEMENT_BYTES * len(numbers)
        else:
            self._commands.append(c.Settle(consumer.number, numbers, _outcome(state)))
        if consumer.detached and not consumer.unsettled:
            del self._consumers[event.link]

    # Messages that come in.

    def _on_transfers(self, event: Transfers) -> None:
        link = event.link
        producer = self._producers.get(link)
        if producer is None:
            if link in self._coordinators:
                self._on_control(event)
            elif link in self._requesters:
                self._on_requests(event)
            else:
                self._refuse_all(event)
            return
        own = producer.destination
        now_ms = self._now_ms
        total = self._count_in(producer, event.deliveries)
        target: Destination | None = None
        messages: list[c.NewMessage] = []
        numbers: list[int] = []
        batches: list[tuple[_Batch, list[c.NewMessage]]] = []
        for number, payload, state in event.deliveries:
            try:
                head = read_head(payload, now_ms)
            except MessageFormatException as error:
                self._reject(producer, number, state, AmqpError("amqp:decode-error", error.reason))
                continue
            message, destination = c.from_head(payload, head), own or head.destination
            if destination is None:
                nowhere = AmqpError("amqp:not-found", "the message names no destination (its field 'to')")
                self._reject(producer, number, state, nowhere)
                continue
            if own is None and destination not in producer.allowed:
                refusal = self._allow_sending(producer, destination)
                if refusal is not None:
                    self._reject(producer, number, state, refusal)
                    continue
            if state is not None and state.code == TRANSACTIONAL:
                self._put_into_transaction(producer, number, state, destination, message)
                continue
            if destination is not target and destination != target:
                target, messages, numbers = resolved(destination), [], []
                batch = _Batch(producer, numbers)
                batches.append((batch, messages))
                reply = self._reply(self._on_taken, batch)
                self._commands.append(c.Enqueue(self._known_client, target, messages, reply))
                target = destination
            messages.append(message)
            numbers.append(number)
        for batch, messages in batches:
            is_all = len(messages) == len(event.deliveries)
            batch.size = total if is_all else sum([len(message.payload) for message in messages])
            self._budget.unanswered += batch.size

    def _allow_sending(self, producer: _Producer, destination: Destination) -> AmqpError | None:
        """Whether a link whose messages name their destinations may send there; else why not."""
        try:
            self._authorize(permissions.SEND, resolved(destination))
        except JMSException as error:
            return error_for(error)
        if len(producer.allowed) >= _MOST_ALLOWED:
            producer.allowed.clear()
        producer.allowed.add(destination)
        return None

    def _refuse_all(self, event: Transfers) -> None:
        """Messages came on a link that was refused, or that has no place for messages any more."""
        nowhere = AmqpError("amqp:illegal-state", "the link takes no messages: it was refused or closed")
        refusal = State(REJECTED, error=nowhere)
        for number, _, state in event.deliveries:
            self._refuse_transaction(state, nowhere)
            self._peer.settle(event.link, (number,), refusal)

    def _on_dropped(self, event: Dropped) -> None:
        """Messages came that are not handed out.  Only those that their sender gave up are not missed."""
        link, error = event.link, event.error
        if error is not None:
            for txn_id in event.txn_ids:
                self._refuse_transaction(State(TRANSACTIONAL, txn_id=txn_id), error)
            if link in self._coordinators:
                # Which transaction it was about cannot be told.  The link is closed, and with it they all end.
                self._forget_producer(link)
            return
        producer = self._producers.get(link)
        if producer is not None:
            producer.credit -= event.messages
            self._allow(producer)
        elif link in self._coordinators or link in self._requesters:
            self._peer.credit(link, event.messages)

    def _on_taken(self, batch: _Batch, result: Any) -> None:
        """The engine has answered messages of a link."""
        producer, numbers = batch.producer, batch.numbers
        self._budget.unanswered -= batch.size
        if result is None:
            self._answer(producer, numbers, ACCEPTED_STATE)
            return
        errors = [result] * len(numbers) if isinstance(result, JMSException) else result
        for number, error in zip(numbers, errors, strict=True):
            self._answer(
                producer, (number,), ACCEPTED_STATE if error is None else State(REJECTED, error=error_for(error))
            )

    def _answer(self, producer: _Producer, numbers: Sequence[int], state: State) -> None:
        """Settle messages, and give the credit for them back, now or a little later."""
        self._peer.settle(producer.link, numbers, state)
        producer.unanswered -= len(numbers)
        self._allow(producer)

    def _count_in(self, producer: _Producer, deliveries: Sequence[Incoming]) -> int:
        """Messages have come: they use up credit, and their size says how much of it there may be.

        Returns:
            bytes of all of them.
        """
        count = len(deliveries)
        producer.credit -= count
        producer.unanswered += count
        total = sum([len(payload) for _, payload, _ in deliveries])
        mean = total // count
        producer.mean_bytes = mean = max(mean, (producer.mean_bytes * 3 + mean) // 4, 1)
        producer.most = max(1, min(self._settings.link_credit_messages, self._input_bytes // mean))
        return total

    def _allow(self, producer: _Producer) -> None:
        """Let a producer have as many messages on their way as it may, once that is worth a flow."""
        most = producer.most
        more = most - producer.credit - producer.unanswered
        if more * 4 >= most:
            producer.credit += more
            self._peer.credit(producer.link, more)

    def _reject(self, producer: _Producer, number: int, state: State | None, error: AmqpError) -> None:
        """Refuse a message, and with it the transaction that it was to be part of."""
        self._refuse_transaction(state, error)
        self._answer(producer, (number,), State(REJECTED, error=error))

    def _refuse_transaction(self, state: State | None, error: AmqpError) -> None:
        """The transaction that this state of a message names, if any, cannot be done without the message."""
        if state is not None and state.code == TRANSACTIONAL:
            transaction = self._transactions.get(state.txn_id or b"")
            if transaction is not None and transaction.refusal is None:
                self._refuse(transaction, exception_for(error, "a message was refused"))

    def _put_into_transaction(
        self, producer: _Producer, number: int, state: State, destination: Destination, message: c.NewMessage
    ) -> None:
        transaction = self._transactions.get(state.txn_id or b"")
        if transaction is None:
            self._answer(producer, (number,), State(REJECTED, error=_unknown_transaction(state.txn_id)))
            return
        limits = self._engine.settings
        if transaction.refusal is not None:
            self._answer(producer, (number,), State(REJECTED, error=self._why_nothing(transaction.refusal)))
            return
        transaction.send_bytes += len(message.payload)
        transaction.sends.append((resolved(destination), message))
        transaction.is_active = True
        self._budget.transactions += len(message.payload) + _SEND_BYTES
        if (
            len(transaction.sends) > limits.max_transaction_messages
            or transaction.send_bytes > limits.max_transaction_bytes
        ):
            reason = (
                f"the transaction is larger than {limits.max_transaction_messages} messages (option"
                f" max_transaction_messages) or {limits.max_transaction_bytes} bytes (option max_transaction_bytes)"
            )
            self._refuse(transaction, ResourceAllocationException(reason, error_code="amqp:resource-limit-exceeded"))
        self._answer(producer, (number,), State(TRANSACTIONAL, txn_id=state.txn_id, outcome=ACCEPTED_STATE))

    # Transactions.

    def _on_control(self, event: Transfers) -> None:
        for number, payload, _ in event.deliveries:
            self._peer.credit(event.link, 1)
            try:
                annotations, body = _control(payload)
            except ValueError as error:
                bad = State(REJECTED, error=AmqpError("amqp:decode-error", str(error)))
                self._peer.settle(event.link, (number,), bad)
                continue
            if body.descriptor in (DECLARE_CODE, "amqp:declare:list"):
                self._on_declare(event.link, number)
            elif body.descriptor in (DISCHARGE_CODE, "amqp:discharge:list"):
                self._on_discharge(event.link, number, annotations, body.value)
            else:
                other = AmqpError("amqp:not-implemented", f"a coordinator cannot {body.descriptor!r}")
                self._peer.settle(event.link, (number,), State(REJECTED, error=other))

    def _on_declare(self, link: int, number: int) -> None:
        if len(self._transactions) >= _MAX_TRANSACTIONS:
            error = AmqpError("amqp:resource-limit-exceeded", f"{_MAX_TRANSACTIONS} transactions are open already")
            self._peer.settle(link, (number,), State(REJECTED, error=error))
            return
        txn_id = self._next_transaction.to_bytes(8, "big")
        self._next_transaction += 1
        self._transactions[txn_id] = _Transaction(link)
        self._peer.settle(link, (number,), State(DECLARED, txn_id=txn_id))

    def _on_discharge(self, link: int, number: int, annotations: dict[Any, Any], fields: list[Any]) -> None:
        txn_id = fields[0] if fields else None
        transaction = self._transactions.pop(txn_id, None) if isinstance(txn_id, bytes) else None
        if transaction is None:
            self._peer.settle(link, (number,), State(REJECTED, error=_unknown_transaction(txn_id)))
            return
        self._budget.transactions -= transaction.kept_bytes
        if len(fields) > 1 and fields[1] is True:
            self._roll_back(transaction)
            self._peer.settle(link, (number,), ACCEPTED_STATE)
            return
        assert isinstance(txn_id, bytes)
        if transaction.refusal is None and self._peer.has_unfinished(txn_id):
            transaction.refusal = IllegalStateException("a message of the transaction has not come as a whole")
        if transaction.refusal is not None:
            self._on_committed(link, number, transaction, 0, transaction.refusal)
            return
        commit_id: c.CommitId | None = None
        named = annotations.get(COMMIT_ID)
        if isinstance(named, list) and len(named) == 2 and isinstance(named[0], str) and type(named[1]) is int:
            commit_id = c.CommitId(named[0], named[1])
        self._budget.unanswered += transaction.kept_bytes
        reply = self._reply(self._on_committed, link, number, transaction, transaction.kept_bytes)
        self._commands.append(
            c.Commit(self._known_client, commit_id, transaction.sends, transaction.settlements, reply)
        )

    def _on_committed(
        self, link: int, number: int, transaction: _Transaction, size: int, result: JMSException | None
    ) -> None:
        self._budget.unanswered -= size
        if result is None:
            self._peer.settle(link, (number,), ACCEPTED_STATE)
            return
        self._roll_back(transaction)
        self._peer.settle(link, (number,), State(REJECTED, error=self._why_nothing(result)))

    def _why_nothing(self, error: JMSException) -> AmqpError:
        """What a refused discharge says: the condition of its cause, since clients take ``rollback`` for a doubt."""
        if isinstance(error, StoreException):  # it may have been written all the same
            return AmqpError(IN_DOUBT if self._is_own else _ROLLED_BACK, error.reason)
        cause = error.__cause__
        condition = error_for(error).condition
        if condition == _ROLLED_BACK and isinstance(cause, JMSException):
            condition = error_for(cause).condition
        if condition == _ROLLED_BACK and not self._is_own:
            condition = "amqp:precondition-failed"
        return AmqpError(condition, error.reason)

    def _roll_back(self, transaction: _Transaction) -> None:
        """What was settled in it comes again: the client has let go of it."""
        for consumer, number, _ in transaction.settlements:
            self._commands.append(c.Settle(consumer, (number,), Outcome.MODIFIED))

    # Operations beyond messaging.

    def _on_requests(self, event: Transfers) -> None:
        self._submit()  # a worker may be fast: the request comes after what the client said before it
        for number, payload, _ in event.deliveries:
            self._peer.settle(event.link, (number,), ACCEPTED_STATE)
            try:
                request = unpack_request(payload)
            except MessageFormatException as error:
                self._peer.close_link(event.link, error_for(error))
                return
            try:
                self._authorize(request.operation, permissions.destination_of(request.arguments))
            except JMSException as error:
                self._on_done(event.link, request.number, error)
                continue
            if request.operation == WATCH:
                self._watcher = event.link
                self._on_done(event.link, request.number, as_answer(self._servers()))
                continue
            refusal = self.refusal()
            if refusal is not None:
                self._on_done(event.link, request.number, refusal)
                continue
            self._budget.requests += len(payload)
            done = partial(self._carried_out, event.link, request.number, len(payload))
            self._run_request(request.operation, request.arguments, done)

    def refusal(self) -> JMSException | None:
        """Why no request may begin now: the client has not taken its answers; None: one may.  In any thread."""
        uncounted = sum(len(answer) for _, _, answer in list(self._packed))
        if self._budget.allows_requests(uncounted):
            return None
        return ResourceAllocationException(
            f"the answers that the client has not taken are larger than {self._budget.most_bytes} bytes (option"
            " max_connection_bytes); take them before asking more"
        )

    def _carried_out(self, link: int, number: int, size: int, result: Any) -> None:
        """A request of so many bytes has this result; called in any thread, which packs the answer."""
        self._packed.append((link, size, _answer(number, result)))
        self._tell(self._take_packed)

    def _take_packed(self) -> None:
        link, size, answer = self._packed.popleft()
        self._budget.requests -= size
        self._give_answer(link, answer)

    def _on_done(self, link: int, number: int, result: Any) -> None:
        self._give_answer(link, _answer(number, result))

    def _give_answer(self, link: int, answer: bytes) -> None:
        """Answer, unless nobody is there any more who asked on this link."""
        if not self._ended and link in self._requesters:
            self._queue_answer(link, answer)

    def announce(self) -> None:
        """The list of servers has changed: tell a client that asked for it."""
        if self._watcher in self._requesters and not self._ended:
            # An answer that was not sent yet is as old as the list that it has.
            self._drop_answers(None)
            self._queue_answer(None, pack_answer(Answer(NEWS, None, as_answer(self._servers()))))

    def _queue_answer(self, link: int | None, answer: bytes) -> None:
        """Have an answer sent when the client takes it; a link of None is that of the watcher."""
        self._answers.append((link, answer))
        self._budget.answers += len(answer)
        self._send_answers()

    def _drop_answers(self, asker: int | None) -> None:
        """Nobody waits for these answers any more, which were not sent yet."""
        dropped = [answer for link, answer in self._answers if link == asker]
        if dropped:
            self._answers = deque(each for each in self._answers if each[0] != asker)
            self._budget.answers -= sum(map(len, dropped))

    def _send_answers(self) -> None:
        """Send what there is credit and room for; who takes no answers gets no credit for more questions."""
        if not self._answerers:
            return
        link, most = self._answerers[-1], self._settings.max_output_bytes
        while self._answers and not self._paused and self._waiting_bytes < most:
            if self._peer.remaining_credit(link) <= 0:
                break
            asker, answer = self._answers.popleft()
            self._budget.answers -= len(answer)
            self._peer.send(link, answer, settled=True)
            if asker is not None:
                self._peer.credit(asker, 1)

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


def _answer(number: int, result: Any) -> bytes:
    """The answer to a request, packed: an error if the result is one, or cannot be packed."""
    try:
        if isinstance(result, JMSException):
            return pack_answer(Answer(number, error_fields(result), None))
        return pack_answer(Answer(number, None, result))
    except MessageFormatException as error:
        return pack_answer(Answer(number, error_fields(error), None))


def _unknown_transaction(txn_id: Any) -> AmqpError:
    return AmqpError("amqp:transaction:unknown-id", f"there is no transaction {txn_id!r:.100}")


def _outcome(state: State) -> Outcome:
    """How a delivery ended, by the state that the client gave it."""
    code = state.code
    if code == ACCEPTED:
        return Outcome.ACCEPTED
    if code == REJECTED or (code == MODIFIED and state.undeliverable):
        return Outcome.REJECTED
    if code == MODIFIED and state.failed:
        return Outcome.FAILED if state.annotations and BACK_OFF in state.annotations else Outcome.MODIFIED
    return Outcome.RELEASED  # also where it was settled without a word


def _control(payload: bytes) -> tuple[dict[Any, Any], Any]:
    """The message annotations and the body of a message to the coordinator; raises ValueError."""
    reader = Reader(payload)
    annotations: dict[Any, Any] = {}
    while reader.position < len(payload):
        section = reader.value()
        descriptor = getattr(section, "descriptor", None)
        if descriptor in (0x72, Symbol("amqp:message-annotations:map")) and isinstance(section.value, dict):
            annotations = section.value
        elif descriptor in (0x77, Symbol("amqp:amqp-value:*")):
            body = section.value
            if not isinstance(body, Described) or not isinstance(body.value, list):
                raise ValueError("the message to the coordinator is neither a declare nor a discharge")
            return annotations, body
    raise ValueError("the message to the coordinator has no body")
