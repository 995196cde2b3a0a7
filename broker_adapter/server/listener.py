"""The AMQP server: sockets that listen, one asyncio loop in one thread, a protocol for each connection.

Theory of operation
    The engine answers from its own thread.  A connection with pending callbacks is put into a deque, and the loop is
    woken once for all that are there.  Bytes are read and written by :mod:`broker_adapter.server.client_connection`.

    A connection that has ended is freed at once, and not when the garbage collector gets to it: its protocol knows it
    by a weak reference only.  Callbacks that are added when the connection is gone are run without it.

    Connections are accepted here, and not by asyncio, so that each counts from that moment on, before its TLS handshake
    (the rules: :mod:`broker_adapter.server.access.admission`), and so that a process without free descriptors stops
    accepting for a moment instead of filling its log.

    Any peer may be hostile before it has logged in: it has ``handshake_timeout_seconds`` for all of login and open,
    its frames are small, and it costs nothing of the engine.  Passwords are verified by
    :mod:`broker_adapter.server.access.password_checks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from broker_adapter.amqp.loop_thread import LoopThread
from broker_adapter.amqp.messages.amqp_message import decode_ahead
from broker_adapter.amqp.sasl import ServerLogin, Work
from broker_adapter.engine.commands.selection import Read
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    JMSSecurityException,
    ResourceAllocationException,
    StoreException,
)
from broker_adapter.limited_log import LimitedLog
from broker_adapter.server.access.admission import LoginAdmission
from broker_adapter.server.access.connection_tokens import ConnectionTokens
from broker_adapter.server.access.origins import origin_of
from broker_adapter.server.access.password_checks import PasswordChecks
from broker_adapter.server.access.permissions import Authorize, authorize
from broker_adapter.server.announcements import ANNOUNCE, Announcement, servers_from
from broker_adapter.server.client_connection import ClientConnection
from broker_adapter.server.links.engine_calls import ConnectionEngine, EngineCalls
from broker_adapter.server.links.requests import Unpack
from broker_adapter.server.listening import EXHAUSTED, bound, cannot_listen
from broker_adapter.server.open_files import ConnectionPlaces, open_now, places_for, soft_limit
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.server.workers.requests import RequestedEngine, RequestWorkers
from broker_adapter.settings import ServerSettings
from broker_adapter.transport import Server

_log = logging.getLogger(f"holdfast.{__name__}")

#: Connections that the system may keep for us until we accept them.
_BACKLOG = 1024
#: Connections that are accepted before the loop goes on to other events.
_ACCEPTS_PER_TURN = 100
#: Pause after an error of ``accept`` that the next connection would cause as well, in seconds.
_ACCEPT_PAUSE_SECONDS = 1.0
#: Time between two ticks of the clock, in seconds: time-outs are that exact.
TICK_SECONDS = 1.0


class ServedEngine(ConnectionEngine, RequestedEngine, Protocol):
    """What a server needs of the engine; see :class:`broker_adapter.engine.broker.Broker`."""

    def learn_format(self, message_format: int, read: Read, whole: Read | None = None) -> None:
        """Have messages of a format read."""

    def on_failure(self, listener: Callable[[JMSException], None]) -> Callable[[], None]:
        """Call ``listener`` when the engine stops because of an error; returns what takes the listener away."""


class Listener:
    """An engine as an AMQP 1.0 server.

    Args:
        broker: the engine; it is not closed with the listener.
        host: the address to listen on.
        port: the port; 0: any that is free.
        settings: the server's limits.
        make_login: makes the SASL exchange of each connection.
        tls: the server's certificate, for ``amqps``; None: no TLS.
        servers: where else clients are told to connect.
        authorize: checks permissions; see :mod:`broker_adapter.server.access.permissions`.

    Attributes:
        announced: what clients are told of the server.
        tls: as given; connections that come later use what is assigned here.
    """

    def __init__(
        self,
        broker: ServedEngine,
        host: str,
        port: int,
        settings: ServerSettings,
        make_login: Callable[[], ServerLogin],
        tls: ssl.SSLContext | None = None,
        servers: Sequence[Server] = (),
        authorize: Authorize = authorize,
    ) -> None:
        self.announced = Announcement(tuple(servers))
        self.log = LimitedLog(_log)
        self._broker = broker
        broker.learn_format(AMQP_FORMAT, decode_ahead)
        self._host = host
        self._port = port
        self.settings = settings
        self._make_login = make_login
        self.tls = tls
        self._authorize = authorize
        self._thread: LoopThread | None = None
        self._listening: list[socket.socket] = []
        self._admission = _admission(settings, ConnectionPlaces(settings.max_connections, settings.max_connections))
        self._request_workers = RequestWorkers(broker)
        self._password_checks = PasswordChecks(
            settings.failed_login_delay_seconds, settings.max_failed_login_delay_seconds
        )
        self.connections: set[ClientConnection] = set()
        self._tokens = ConnectionTokens()
        self._with_callbacks: deque[ClientConnection | EngineCalls] = deque()
        self._signalled = False
        self._unregister_listener: Callable[[], None] = lambda: None
        self._all_gone: asyncio.Event | None = None

    def start(self) -> tuple[str, int]:
        """Listen, in a thread of its own.  Returns the address and port.

        Raises:
            ConnectionLostException: the address cannot be listened on, because another process has it, say.
            IllegalStateException: it was started before.
        """
        if self._thread is not None or self.is_stopping:
            raise IllegalStateException("the listener was started before; make a new one")
        self._thread = LoopThread("holdfast-server")
        self._password_checks.start(self._thread.loop)
        try:
            self._limit_connections()
            asyncio.run_coroutine_threadsafe(self._listen(), self._thread.loop).result()
        except IllegalStateException:
            self._end_thread()
            raise
        except OSError as error:
            self._end_thread()
            raise cannot_listen(self._host, self._port, error) from error
        self._unregister_listener = self._broker.on_failure(self._engine_failed)
        host, port = self._listening[0].getsockname()[:2]
        return str(host), int(port)

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _limit_connections(self) -> None:
        """Allow as many connections as the settings say, and no more than the limit of open files allows."""
        limit, wanted = soft_limit(), self.settings.max_connections
        places = places_for(wanted, limit, open_now())
        if places.connections < wanted:
            _log.info(
                "= %d connections are the limit, instead of %d (option max_connections): this process may have %d files"
                " open; raise that with 'ulimit -n'",
                places.connections,
                wanted,
                limit,
            )
            self.settings = attrs.evolve(self.settings, max_connections=places.connections)
        self._admission = _admission(self.settings, places)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._listening, absent = bound(found)
        for address, error in absent:
            _log.info("= not listening on %s: %s", address[0], error.strerror)
        try:
            for sock in self._listening:
                sock.setblocking(False)
                sock.listen(_BACKLOG)
        except OSError:
            self._close_listening()
            raise
        for sock in self._listening:
            loop.add_reader(sock, self._accept, sock)
        loop.call_later(TICK_SECONDS, self._tick)

    def _close_listening(self) -> None:
        for sock in self._listening:
            sock.close()

    # Accepting, in the loop's thread.

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that the system has for us."""
        made_room = False
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in EXHAUSTED:
                    if not made_room:  # else the next turn has the descriptors of those that were dropped
                        self._pause_accepting(listening, error)
                    break
                # It concerns this connection only, which has ended already.
                self.log.write("accept", "! a connection could not be accepted: %s", error.strerror)
                continue
            sock.setblocking(False)
            self._accepted(ClientConnection(self, sock, address))
            # A connection that had to make room gives back its descriptor before the next one needs it.
            made_room = self._advance() or made_room

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        self.log.write("exhausted", "! accepting no connections for a moment: %s", error.strerror, records=1)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        if not self.is_stopping:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accepted(self, connection: ClientConnection) -> None:
        refused = self._admission.accepted(connection, origin_of(connection.host), time.monotonic())
        if refused is not None:
            self.log.write("dropping", "! dropping %s: %s", connection.name, refused)
            connection.drop()
        else:
            connection.watch()

    def _advance(self) -> bool:
        """Start the logins of the connections whose turn it is; returns whether others were dropped for them."""
        if self.is_stopping:
            return False
        starting, evicted = self._admission.advance(time.monotonic())
        for connection in evicted:
            self.log.write("dropping", "! dropping %s: another connection needs its place for a login", connection.name)
            connection.drop()
        for connection in starting:
            connection.start(self.tls)
        return bool(evicted)

    def stop(self, timeout: float = 5.0) -> None:
        """Close all connections with a reason, and stop listening.  Legal twice.  Waits at most ``timeout`` seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._password_checks.stop()
        self._unregister_listener()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_all(timeout), thread.loop).result(timeout + 1)
        thread.stop()
        self._request_workers.stop()

    async def _close_all(self, seconds: float) -> None:
        self._all_gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock)
        self._close_listening()
        for connection in self._admission.pending():
            connection.drop_if_pending()
        stopping = ConnectionLostException("the server is stopping", error_code="amqp:connection:forced")
        for connection in list(self.connections):
            connection.close(stopping, stops=True)
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), seconds)
        for connection in list(self.connections):
            connection.abort()

    @property
    def is_stopping(self) -> bool:
        """Whether no connection is accepted any more."""
        return self._all_gone is not None

    def _engine_failed(self, error: JMSException) -> None:
        thread = self._thread
        if thread is not None:
            _log.critical("! the engine stopped, so the server closes its connections: %s", error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are none
                thread.loop.call_soon_threadsafe(self._close_for, error)

    def _close_for(self, error: JMSException) -> None:
        for connection in list(self.connections):
            connection.close(StoreException(error.reason))

    # From the engine's thread.

    def wake(self, connection: ClientConnection | EngineCalls) -> None:
        """A connection has callbacks to run; or these have, where the connection is gone."""
        self._with_callbacks.append(connection)
        if not self._signalled:
            self._signalled = True
            thread = self._thread
            if thread is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    thread.loop.call_soon_threadsafe(self._run_callbacks)

    # In the loop's thread.

    def _run_callbacks(self) -> None:
        self._signalled = False
        waiting = self._with_callbacks
        for _ in range(len(waiting)):
            each = waiting.popleft()
            if isinstance(each, ClientConnection):
                each.write()
            else:
                try:
                    each.run_callbacks()  # callbacks of the engine must not pile up
                except Exception:
                    _log.exception("! an unexpected error in what was left of a connection that has ended")

    def _tick(self) -> None:
        now = time.monotonic()
        for connection in self._admission.pending():
            connection.tick_queued(now)
        for connection in list(self.connections):
            connection.tick(now)
        self._advance()
        self.log.report()
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def gone(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        connection.is_closed = True
        if self._admission.closed(connection):
            self._advance()
        self._request_workers.drop(connection)
        self.connections.discard(connection)
        self._tokens.gone(connection)
        if self._all_gone is not None and not self.connections:
            self._all_gone.set()

    def spoke(self, connection: ClientConnection) -> None:
        """The first bytes of a connection are there: it waits for its turn to log in."""
        self._admission.spoke(connection)
        self._advance()

    def logged_in(self, connection: ClientConnection) -> None:
        """A connection is open."""
        self._admission.opened(connection)
        self._advance()

    def announce(self, announced: Announcement) -> None:
        """Tell clients this of the server: those that come, and those that are here and want to know."""
        self.announced = announced
        for connection in list(self.connections):
            connection.announce()

    def announce_soon(self, announced: Announcement) -> None:
        """The same, called in any thread."""
        thread = self._thread
        if thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                thread.loop.call_soon_threadsafe(self.announce, announced)

    def request(
        self, connection: ClientConnection, operation: str, unpack: Unpack, done: Callable[[Any], None]
    ) -> None:
        """Carry out an operation beyond messaging: one of the server at once, the engine's in a worker thread.

        Operations that have not begun when the connection ends are dropped; one under way ends after its current step.
        Those that take effect once go on, for a client that asks for them again under their id.
        """
        if operation == ANNOUNCE:
            try:
                if not connection.is_local:
                    # All clients connect to servers that are announced, with their passwords.
                    raise JMSSecurityException("servers are announced from the server's own machine only")
                servers = servers_from(unpack().get("servers"))
                self.announce(attrs.evolve(self.announced, servers=servers))
            except JMSException as error:
                done(error)
            else:
                done(len(servers))
            return
        self._request_workers.request(connection, operation, unpack, done)

    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        """A protocol for a new connection, whose verified certificate names this user."""
        login = self._make_login()
        if certified is not None:
            login.offer_external(certified)

        known = weakref.ref(connection)
        made: weakref.ref[EngineCalls]

        def carry_out(work: Work) -> None:
            living = known()
            if living is not None:
                self._password_checks.verify(living, work)

        login.carry_out = carry_out

        def wake() -> None:
            living = known() or made()
            if living is not None:
                self.wake(living)

        def request(operation: str, unpack: Unpack, done: Callable[[Any], None]) -> None:
            living = known()
            if living is not None:
                self.request(living, operation, unpack, done)

        def take_over(token: str) -> None:
            living = known()
            if living is not None:
                self._tokens.take_over(living, (login.username, token))

        protocol = ServerProtocol(
            *(self._broker, self.settings, login, wake, request),
            lambda action, destination: self._authorize(login.username, action, destination),
            take_over,
            admit=self._admit,
            announced=lambda: self.announced,
            log=self.log.write,
            clock=time.monotonic,
        )
        made = weakref.ref(protocol.calls)
        return protocol

    def _admit(self) -> None:
        """Whether a connection that wants to be opened may be.

        Raises:
            ResourceAllocationException: there are too many.
        """
        limit = self.settings.max_connections
        if self._admission.open_connections >= limit:
            self.log.write(
                "refusing", "! refusing a client: %d connections are the limit (option max_connections)", limit
            )
            raise ResourceAllocationException(f"{limit} connections are the limit (option max_connections)")


def _admission(settings: ServerSettings, places: ConnectionPlaces) -> LoginAdmission[ClientConnection]:
    per_origin = settings.max_login_connections_per_address
    return LoginAdmission(
        places=places.sockets,
        logins=settings.max_login_connections,
        per_origin=max(1, places.sockets // 2) if per_origin is None else per_origin,
    )
