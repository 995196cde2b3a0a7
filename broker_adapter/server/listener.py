"""The AMQP server's sockets: one asyncio loop in one thread, a protocol for each connection.

Theory of operation
    The engine answers from its own thread.  A connection that has news is put into a deque, and the loop is woken
    once for all that gathers there.  Bytes are written while the socket takes them; what it does not take stays in
    the protocol, which then asks the engine for no more.  Bytes are read while the protocol wants them.

    A connection that has ended is freed at once, and not when the garbage collector gets to it: its protocol knows it
    by a weak reference only.  What the engine still has to say to a protocol whose connection is gone, it hears alone.

    Connections are accepted here, and not by asyncio, so that each counts from that moment on, before its TLS handshake
    (the rules: :mod:`broker_adapter.server.admission`), and so that a process without free descriptors stops accepting
    for a moment instead of filling its log.

    Any peer may be hostile before it has logged in: it has ``handshake_timeout_seconds`` for all of login and open,
    its frames are small, and it costs nothing of the engine.  When a password is verified is decided by
    :mod:`broker_adapter.server.login_throttle`; its hash is computed by worker threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import attrs

from broker_adapter.amqp.amqp_message import decode_ahead
from broker_adapter.amqp.io_loop import LoopThread
from broker_adapter.amqp.sasl import ServerLogin, Work
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.recent_requests import UNDER_WAY
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    JMSSecurityException,
    ResourceAllocationException,
    StoreException,
    copied,
)
from broker_adapter.server.admission import Admission
from broker_adapter.server.announcements import ANNOUNCE, servers_from
from broker_adapter.server.log_limiter import RECORDS, LogLimiter
from broker_adapter.server.login_throttle import LoginThrottle, Pair
from broker_adapter.server.open_files import Places, open_now, places_for, soft_limit
from broker_adapter.server.origins import is_loopback, origin_of
from broker_adapter.server.permissions import Authorize, authorize
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.server.users import MAX_NAME_LENGTH
from broker_adapter.server.workers import Workers
from broker_adapter.settings import ServerSettings
from broker_adapter.transport import Server

_log = logging.getLogger(f"holdfast.{__name__}")

#: Bytes in a socket's buffer above which the protocol is not asked for more.
_HIGH_WATER_BYTES = 256 * 1024
#: Connections that the system may keep for us until we accept them.
_BACKLOG = 1024
#: Connections that are accepted before the loop goes on to other events.
_ACCEPTS_PER_TURN = 100
#: Errors of ``accept`` that the next connection would cause as well: no descriptor or no memory is free.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Pause after such an error, in seconds.
_ACCEPT_PAUSE_SECONDS = 1.0
#: Time between two looks at the clock, in seconds: time-outs are that exact.
TICK_SECONDS = 1.0
#: Operations beyond messaging have groups of worker threads, so that a long one delays no short one, nor those that
#: streaming queries cannot go on without, and none of these delays what failover needs.  Those that do little but wait,
#: for the disk or for room in a queue, have more threads, and delay only their like.  A connection has one operation of
#: each group under way.  A repetition of one that is under way waits for its answer without a thread.
_WAITING_THREADS = 16
_SHORT_THREADS = 2
_STREAMING_THREADS = 2
_GROUPS = (
    ("restoring", ("resolve_commit", "settle_positions", "forgive", "seen", "forgive_rest"), 2),
    ("confirming", ("confirm",), _WAITING_THREADS),
    ("publishing", ("publish",), _WAITING_THREADS),
    ("short", ("statistics", "bounds", "read_range", "stage", "renew", "discard", "published"), _SHORT_THREADS),
    ("streaming", ("settle_through",), _STREAMING_THREADS),
)
#: Threads for all other operations.
_LONG_THREADS = 4
#: Operations of each group that a connection may have waiting; one more is refused.
_MAX_WAITING = 200
#: Longest time such an operation may take, in seconds.
_REQUEST_SECONDS = 300.0
#: Most threads that compute hashes of passwords; there are no more than half of the cores.
_MAX_HASH_THREADS = 4


class _Attempt(NamedTuple):
    """A password, or a proof of one, that a client has sent."""

    connection: ClientConnection
    work: Work


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
        authorize: who may do what; see :mod:`broker_adapter.server.permissions`.
    """

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        settings: ServerSettings,
        make_login: Callable[[], ServerLogin],
        tls: ssl.SSLContext | None = None,
        servers: Sequence[Server] = (),
        authorize: Authorize = authorize,
    ) -> None:
        self.servers = tuple(servers)
        self._broker = broker
        broker.learn_format(AMQP_FORMAT, decode_ahead)
        self._host = host
        self._port = port
        self.settings = settings
        self._make_login = make_login
        self._tls = tls
        self._authorize = authorize
        self._thread: LoopThread | None = None
        self._listening: list[socket.socket] = []
        self._admission = _admission(settings, Places(settings.max_connections, settings.max_connections))
        self._log_limiters: dict[str, LogLimiter] = {}
        self._long = _workers("long", _LONG_THREADS)
        self._workers_of = {}
        self._request_workers = [self._long]
        for name, operations, threads in _GROUPS:
            workers = _workers(name, threads)
            self._request_workers.append(workers)
            self._workers_of.update(dict.fromkeys(operations, workers))
        threads = max(1, min(_MAX_HASH_THREADS, (os.cpu_count() or 1) // 2))
        self._hashing = Workers(
            "holdfast-hash", threads, most_running=1, most_waiting=1, group_of=lambda pair: pair.origin
        )
        self._throttle: LoginThrottle[_Attempt] = LoginThrottle(
            settings.failed_login_delay_seconds,
            settings.max_failed_login_delay_seconds,
            is_abandoned=lambda attempt: attempt.connection.is_closed,
        )
        self._throttle_timer: asyncio.TimerHandle | None = None
        self.connections: set[ClientConnection] = set()
        #: (user, word that the client chose) → its connection, for a client that comes again before the old one ended
        self._named: dict[tuple[str | None, str], ClientConnection] = {}
        self._with_news: deque[ClientConnection | ServerProtocol] = deque()
        self._signalled = False
        self._forget_failure: Callable[[], None] = lambda: None
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
        try:
            self._limit_connections()
            asyncio.run_coroutine_threadsafe(self._listen(), self._thread.loop).result()
        except IllegalStateException:
            self._end_thread()
            raise
        except OSError as error:
            self._end_thread()
            raise _cannot_listen(self._host, self._port, error) from error
        self._forget_failure = self._broker.on_failure(self._engine_failed)
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
        self._listening, absent = _bound(found)
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
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(listening, error)
                    break
                # It concerns this connection only, which has ended already.
                self.warn("accept", "! a connection could not be accepted: %s", error.strerror)
                continue
            sock.setblocking(False)
            self._accepted(ClientConnection(self, sock, address))
        self._advance()

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        self.warn("exhausted", "! accepting no connections for a moment: %s", error.strerror, records=1)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        if not self.is_stopping:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accepted(self, connection: ClientConnection) -> None:
        refused = self._admission.accepted(connection, origin_of(connection.host), time.monotonic())
        if refused is not None:
            self.warn("dropping", "! dropping %s: %s", connection.name, refused)
            connection.drop()

    def _advance(self) -> None:
        """Start the logins of the connections whose turn it is."""
        if self.is_stopping:
            return
        starting, evicted = self._admission.advance(time.monotonic())
        for connection in evicted:
            self.warn("dropping", "! dropping %s: another connection needs its place for a login", connection.name)
            connection.drop()
        for connection in starting:
            connection.start(self._tls)

    def warn(self, kind: str, text: str, *arguments: object, records: int = RECORDS) -> None:
        """Log a warning that unauthenticated clients can cause; of each kind a few a minute are written."""
        if self._log_limiters.setdefault(kind, LogLimiter(records)).may_write(time.monotonic()):
            _log.warning(text, *arguments)

    def stop(self, timeout: float = 5.0) -> None:
        """Close all connections with a word, and stop listening.  Legal twice.  Waits at most ``timeout`` seconds."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._forget_failure()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._close_all(timeout), thread.loop).result(timeout + 1)
        thread.stop()
        for workers in (*self._request_workers, self._hashing):
            workers.stop()

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

    def wake(self, connection: ClientConnection | ServerProtocol) -> None:
        """A connection has news, or a protocol whose connection is gone."""
        self._with_news.append(connection)
        if not self._signalled:
            self._signalled = True
            thread = self._thread
            if thread is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    thread.loop.call_soon_threadsafe(self._write_news)

    # In the loop's thread.

    def _write_news(self) -> None:
        self._signalled = False
        waiting = self._with_news
        for _ in range(len(waiting)):
            each = waiting.popleft()
            if isinstance(each, ClientConnection):
                each.write()
            else:
                each.pending_output(0)  # what the engine still has to say must not pile up

    def _tick(self) -> None:
        now = time.monotonic()
        for connection in self._admission.pending():
            connection.tick_queued(now)
        for connection in list(self.connections):
            connection.tick(now)
        self._advance()
        for kind, limiter in self._log_limiters.items():
            suppressed = limiter.suppressed(now)
            if suppressed:
                _log.warning("! %d more records like these were suppressed (%s)", suppressed, kind)
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def gone(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        connection.is_closed = True
        if self._admission.closed(connection):
            self._advance()
        for workers in self._request_workers:
            workers.drop(connection)
        self.connections.discard(connection)
        if connection.token is not None and self._named.get(connection.token) is connection:
            del self._named[connection.token]
        if self._all_gone is not None and not self.connections:
            self._all_gone.set()

    def logged_in(self, connection: ClientConnection) -> None:
        """A connection is open."""
        self._admission.opened(connection)
        self._advance()

    def announce(self, servers: Sequence[Server]) -> None:
        """Tell clients where else to connect: those that come, and those that are here and want to know."""
        self.servers = tuple(servers)
        for connection in list(self.connections):
            connection.announce()

    def request(
        self, connection: ClientConnection, operation: str, arguments: dict[str, Any], done: Callable[[Any], None]
    ) -> None:
        """Carry out an operation beyond messaging: one of the server at once, the engine's in a worker thread.

        Operations that have not begun when the connection ends are dropped; one under way ends after its current step.
        Those that take effect once go on, for whoever asks for them again under their id.
        """
        if operation == ANNOUNCE:
            try:
                if not connection.is_local:
                    # Who announces servers has all clients come there, with their passwords.
                    raise JMSSecurityException("servers are announced from the server's own machine only")
                self.announce(servers_from(arguments.get("servers")))
            except JMSException as error:
                done(error)
            else:
                done(len(self.servers))
            return

        def is_cancelled() -> bool:
            return connection.is_closed

        def answer(result: Any) -> None:
            if not connection.is_closed:
                done(result)

        def work() -> None:
            refusal = connection.refusal()  # of the requests that came together, the first ones may have filled it
            if refusal is not None:
                answer(refusal)
                return
            try:
                result = self._broker.request(operation, arguments, _REQUEST_SECONDS, is_cancelled, answer)
            except JMSException as error:
                result = copied(error)  # its traceback would keep the arguments in memory
            except Exception as error:
                _log.exception("! request %s failed unexpectedly", operation)
                result = JMSException(f"the request failed unexpectedly: {error!r}")
            if result is not UNDER_WAY:
                answer(result)

        try:
            self._workers_of.get(operation, self._long).submit(connection, work)
        except JMSException as error:
            done(error)

    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        """A protocol for a new connection, whose verified certificate names this user."""
        login = self._make_login()
        if certified is not None:
            login.offer_external(certified)

        known = weakref.ref(connection)
        made: weakref.ref[ServerProtocol]

        def carry_out(work: Work) -> None:
            living = known()
            if living is not None:
                self._verify(living, work)

        login.carry_out = carry_out

        def wake() -> None:
            living = known() or made()
            if living is not None:
                self.wake(living)

        def request(operation: str, arguments: dict[str, Any], done: Callable[[Any], None]) -> None:
            living = known()
            if living is not None:
                self.request(living, operation, arguments, done)

        def take_over(token: str) -> None:
            living = known()
            if living is not None:
                self._take_over(living, (login.username, token))

        protocol = ServerProtocol(
            *(self._broker, self.settings, login, wake, request),
            take_over,
            admit=self._admit,
            servers=lambda: self.servers,
            authorize=lambda action, destination: self._authorize(login.username, action, destination),
        )
        made = weakref.ref(protocol)
        return protocol

    # Verifying passwords, in the loop's thread where nothing else is said.

    def _verify(self, connection: ClientConnection, work: Work) -> None:
        """Verify what a client has sent when its turn comes."""
        attempt = _Attempt(connection, work)
        pair = Pair(origin_of(connection.host), work.username[:MAX_NAME_LENGTH])
        self._throttle.submit(pair, attempt, time.monotonic())
        self._verify_next(attempt)

    def _verify_next(self, current: _Attempt | None = None) -> None:
        """Verify the attempts whose time has come.

        Args:
            current: the one that is being received; its connection goes on with what it receives by itself.
        """
        while (taken := self._throttle.take(time.monotonic())) is not None:
            pair, attempt = taken
            if not attempt.work.is_costly:
                self._verified(pair, attempt, _computed(attempt.work), resumes=attempt is not current)
                continue
            try:
                self._hashing.submit(pair, partial(self._hash, pair, attempt))
            except JMSException:  # the server is stopping
                self._throttle.finished(pair, None, time.monotonic())
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        at = self._throttle.next_at()
        if at is not None:
            loop = asyncio.get_running_loop()
            self._throttle_timer = loop.call_later(max(0.0, at - time.monotonic()), self._verify_next)

    def _hash(self, pair: Pair, attempt: _Attempt) -> None:
        """In a worker's thread."""
        if attempt.connection.is_closed:
            then = partial(self._skipped, pair)
        else:
            then = partial(self._hashed, pair, attempt, _computed(attempt.work))
        thread = self._thread
        if thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                thread.loop.call_soon_threadsafe(then)

    def _skipped(self, pair: Pair) -> None:
        self._throttle.finished(pair, None, time.monotonic())
        self._verify_next()

    def _hashed(self, pair: Pair, attempt: _Attempt, result: Any) -> None:
        self._verified(pair, attempt, result, resumes=True)
        self._verify_next()

    def _verified(self, pair: Pair, attempt: _Attempt, result: Any, *, resumes: bool) -> None:
        self._throttle.finished(pair, bool(result), time.monotonic())
        connection, work = attempt
        if connection.is_closed:
            return
        work.resume(result)
        if resumes:
            connection.data_received(b"")

    def _admit(self) -> None:
        """Whether a connection that wants to be opened may be.

        Raises:
            ResourceAllocationException: there are too many.
        """
        limit = self.settings.max_connections
        if self._admission.open_connections >= limit:
            self.warn("refusing", "! refusing a client: %d connections are the limit (option max_connections)", limit)
            raise ResourceAllocationException(f"{limit} connections are the limit (option max_connections)")

    def _take_over(self, connection: ClientConnection, token: tuple[str | None, str]) -> None:
        """A client has come again, having lost the connection; we may not have noticed yet."""
        old = self._named.pop(token, None)
        if old is not None and old is not connection:
            _log.info("%s takes the place of %s", connection.name, old.name)
            old.end()
        self._named[token] = connection
        connection.token = token


class ClientConnection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, listener: Listener, sock: socket.socket, address: Any) -> None:
        self._listener = listener
        self._socket: socket.socket | None = sock  #: until there is a transport
        self._starting: asyncio.Task[None] | None = None
        self._protocol: ServerProtocol
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._reads = True
        self._is_open = False
        self._since = time.monotonic()
        self._next_tick_ms = 0
        self._closing_since: float | None = None
        has_port = isinstance(address, tuple)
        self.host = str(address[0]) if has_port else ""  #: address of the client
        self.name = f"{address[0]}:{address[1]}" if has_port else "?"
        self.token: tuple[str | None, str] | None = None
        self.is_closed = False  #: whether it has ended; read by the threads that work for it

    def __repr__(self) -> str:
        return f"<ClientConnection {self.name}>"

    # Before there is a transport.

    def start(self, tls: ssl.SSLContext | None) -> None:
        """Begin with the TLS handshake, where there is a certificate, and then the login."""
        self._starting = asyncio.get_running_loop().create_task(self._start(tls))

    async def _start(self, tls: ssl.SSLContext | None) -> None:
        sock, self._socket = self._socket, None
        if sock is None:  # it was dropped before this task began
            return
        left = self._since + self._listener.settings.handshake_timeout_seconds - time.monotonic()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, sock, ssl=tls, ssl_handshake_timeout=None if tls is None else max(0.001, left)
            )
        except (OSError, asyncio.CancelledError) as error:  # errors of TLS included; cancelled where it is dropped
            if not isinstance(error, asyncio.CancelledError):
                reason = str(error) or type(error).__name__
                self._listener.warn("login", "connection of %s ended: %s", self.name, reason)
            # asyncio's frames refer to the error and it to them: a third of a megabyte would wait for the collector.
            traceback.clear_frames(error.__traceback__)
        finally:
            self._starting = None
            if self._transport is None:
                self._listener.gone(self)

    def tick_queued(self, now: float) -> None:
        """Let time pass for a connection that is queued."""
        if self._socket is not None and now - self._since > self._listener.settings.handshake_timeout_seconds:
            self._listener.warn("login", "dropping %s: its turn to log in did not come in time", self.name)
            self.drop()

    def drop(self) -> None:
        """Drop the connection, in whatever state it is."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._listener.gone(self)
        elif self._transport is not None:
            self._transport.abort()
        elif self._starting is not None:
            self._starting.cancel()

    def drop_if_pending(self) -> None:
        """Drop the connection where there is no transport yet."""
        if self._transport is None:
            self.drop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a transport; a TLS handshake is done."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._protocol = self._listener.protocol(self, _certified_user(transport.get_extra_info("peercert")))
        if self._listener.is_stopping:
            transport.abort()
            return
        self._listener.connections.add(self)
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            self._protocol.receive(data, time.time_ns() // 1_000_000)
        except Exception as error:
            self._broken(error)
            return
        self.write()

    def eof_received(self) -> bool:
        """The client will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self._listener.gone(self)
        error = self._protocol.error
        if error is not None:
            if self._is_open:
                _log.warning("connection of %s ended: %s", self.name, error)
            else:
                self._listener.warn("login", "connection of %s ended: %s", self.name, error)
        self._protocol.receive_end()

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self._paused = True
        self._protocol.pause()

    def resume_writing(self) -> None:
        """The socket takes again."""
        self._paused = False
        self._protocol.resume()
        self.write()

    def write(self) -> None:
        """Write what the protocol has to say."""
        transport = self._transport
        try:
            if transport is None:
                self._protocol.pending_output(0)  # what the engine still has to say must not pile up
                return
            while not self._paused:
                data = self._protocol.pending_output(_HIGH_WATER_BYTES)
                if not data:
                    break
                transport.write(data)
            if self._protocol.wants_input is not self._reads:
                self._reads = not self._reads
                if self._reads:
                    transport.resume_reading()
                else:
                    transport.pause_reading()
        except Exception as error:
            self._broken(error)
            return
        if not self._is_open and self._protocol.is_open:
            self._is_open = True
            self._listener.logged_in(self)
        if not self._paused and self._protocol.output_closed:
            transport.close()

    def tick(self, now: float) -> None:
        """Let time pass."""
        limits = self._listener.settings
        if not self._protocol.is_open and now - self._since > limits.handshake_timeout_seconds:
            self._listener.warn(
                "login",
                "dropping %s: no login and open within %g s (option handshake_timeout_seconds)",
                self.name,
                limits.handshake_timeout_seconds,
            )
            self.abort()
            return
        if self._closing_since is None:
            if self._protocol.has_ended:
                self._closing_since = now
        elif now - self._closing_since > limits.handshake_timeout_seconds:
            self.abort()  # it does not even take our last words
            return
        now_ms = int(now * 1000)
        if now_ms >= self._next_tick_ms:
            try:
                self._next_tick_ms = self._protocol.tick(now_ms) or now_ms + 1000
            except Exception as error:
                self._broken(error)
                return
            self.write()

    def close(self, error: JMSException, *, stops: bool = False) -> None:
        """Close with a word; ``stops``: because the server does."""
        self._closing_since = time.monotonic()
        self._protocol.close(error, stops=stops)
        self.write()
        if not self._protocol.is_open:
            self.abort()

    def refusal(self) -> JMSException | None:
        """Why no request of the client may begin now; None: one may.  In any thread."""
        return self._protocol.refusal()

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine."""
        return is_loopback(self.host)

    def announce(self) -> None:
        """The list of servers has changed."""
        self._protocol.announce()
        self.write()

    def end(self) -> None:
        """Give back what the client had, at once, and drop the connection: nobody is at its other end."""
        self._protocol.receive_end()
        self._listener.gone(self)
        self.abort()

    def abort(self) -> None:
        """Drop it."""
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, error: Exception) -> None:
        _log.error("the connection of %s ends because of an unexpected error", self.name, exc_info=error)
        self.abort()


def check_address(host: str, port: int) -> None:
    """Look whether an address can be listened on now.

    Raises:
        ConnectionLostException: it cannot, because another process has it, say.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets, _ = _bound(found)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    for sock in sockets:
        sock.close()


def _cannot_listen(host: str, port: int, error: OSError) -> ConnectionLostException:
    remedy = "give an address of this machine, and a port that it may use"
    if error.errno == errno.EADDRINUSE:
        remedy = "stop what has the port, or choose another"
    return ConnectionLostException(f"cannot listen on {host}:{port}: {error.strerror or error}; {remedy}")


def _admission(settings: ServerSettings, places: Places) -> Admission[ClientConnection]:
    per_origin = settings.max_login_connections_per_address
    return Admission(
        places=places.sockets,
        logins=settings.max_login_connections,
        per_origin=max(1, places.sockets // 2) if per_origin is None else per_origin,
    )


def _bound(found: Iterable[tuple[Any, ...]]) -> tuple[list[socket.socket], list[tuple[Any, OSError]]]:
    """Sockets for the addresses of a name.

    Args:
        found: as ``getaddrinfo`` gives them.

    Returns:
        The sockets; and the addresses that this machine does not have, as asyncio passes over them too: the kernel has
        no sockets of the family, or it is not enabled.

    Raises:
        OSError: no address is left, or another error than these.
    """
    sockets: list[socket.socket] = []
    absent: list[tuple[Any, OSError]] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    raise
                absent.append((address, error))
                continue
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
            try:
                sock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                absent.append((address, error))
                sockets.pop().close()
        if absent and not sockets:
            raise absent[0][1]
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets, absent


def _computed(work: Work) -> Any:
    """The result of a piece of work; an unexpected error counts as a wrong password."""
    try:
        return work.compute()
    except Exception:
        _log.exception("! verifying a password failed unexpectedly")
        return None


def _workers(name: str, threads: int) -> Workers:
    return Workers(f"holdfast-{name}", threads, most_running=1, most_waiting=_MAX_WAITING)


def _certified_user(certificate: Any) -> str | None:
    """The common name of a verified certificate's subject, as the ``ssl`` module gives it; None where there is none."""
    if not isinstance(certificate, dict):
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names and names[-1] else None
