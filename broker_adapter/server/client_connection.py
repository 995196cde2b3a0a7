"""One client's socket: bytes between it and the connection's protocol, in the thread of the server's loop.

Bytes are written while the socket takes them; what it does not take stays in the protocol, which then asks the engine
for no more.  Bytes are read while the protocol wants them; what takes long is taken in slices
(:mod:`broker_adapter.server.input_slices`), between which other connections have their turn.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
import traceback
from typing import Any, Protocol

from broker_adapter.clock import epoch_ms
from broker_adapter.errors import JMSException
from broker_adapter.limited_log import LimitedLog
from broker_adapter.server.access.connection_tokens import Token
from broker_adapter.server.access.origins import is_loopback
from broker_adapter.server.input_slices import InputSlices
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import ServerSettings

_log = logging.getLogger(f"holdfast.{__name__}")

#: What is due earlier does not wait for the clock of the listener, which ticks once a second.
_SOON_MS = 2000
#: Least time between two ticks of a connection's own, whatever is due.
_LEAST_TICK_MS = 50
#: Bytes in a socket's buffer above which the protocol is not asked for more.
_HIGH_WATER_BYTES = 256 * 1024


class Owner(Protocol):
    """What a connection tells of itself, and asks for: the listener that has accepted it."""

    settings: ServerSettings
    log: LimitedLog
    connections: set[ClientConnection]

    @property
    def is_stopping(self) -> bool:
        """Whether no connection is accepted any more."""

    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        """A protocol for a new connection, whose verified certificate names this user."""

    def spoke(self, connection: ClientConnection) -> None:
        """The first bytes of a connection are there."""

    def logged_in(self, connection: ClientConnection) -> None:
        """A connection is open."""

    def gone(self, connection: ClientConnection) -> None:
        """A connection has ended."""


class ClientConnection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, listener: Owner, sock: socket.socket, address: Any) -> None:
        self._listener = listener
        self._socket: socket.socket | None = sock  #: until there is a transport
        self._starting: asyncio.Task[None] | None = None
        self._protocol: ServerProtocol
        self._transport: asyncio.Transport | None = None
        self._input = InputSlices()
        self._has_spoken = False
        self._paused = False
        self._reads = True
        self._is_open = False
        self._since = time.monotonic()
        self._next_tick_ms = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._closing_since: float | None = None
        has_port = isinstance(address, tuple)
        self.host = str(address[0]) if has_port else ""  #: address of the client
        self.name = f"{address[0]}:{address[1]}" if has_port else "?"
        self.token: Token | None = None
        self.is_closed = False  #: whether it has ended; read by the threads that work for it

    def __repr__(self) -> str:
        return f"<ClientConnection {self.name}>"

    # Before there is a transport.

    def watch(self) -> None:
        """Tell the listener when the first bytes are there, which are not read yet."""
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._spoke)

    def _unwatch(self, sock: socket.socket) -> None:
        if not self._has_spoken:
            asyncio.get_running_loop().remove_reader(sock)

    def _spoke(self) -> None:
        assert self._socket is not None
        try:
            has_ended = not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return  # there is nothing after all
        except OSError:
            has_ended = True
        self._unwatch(self._socket)
        self._has_spoken = True
        if has_ended:
            self.drop()
        else:
            self._listener.spoke(self)

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
                self._listener.log.write("login", "connection of %s ended: %s", self.name, reason)
            # asyncio's frames refer to the error and it to them: a third of a megabyte would wait for the collector.
            traceback.clear_frames(error.__traceback__)
        finally:
            self._starting = None
            if self._transport is None:
                self._listener.gone(self)

    def tick_queued(self, now: float) -> None:
        """Let time pass for a connection that is silent or queued."""
        if self._socket is not None and now - self._since > self._listener.settings.handshake_timeout_seconds:
            if self._has_spoken:
                self._listener.log.write("login", "dropping %s: its turn to log in did not come in time", self.name)
            else:
                self._log_no_login()
            self.drop()

    def _log_no_login(self) -> None:
        self._listener.log.write(
            "login",
            "dropping %s: no login and open within %g s (option handshake_timeout_seconds)",
            self.name,
            self._listener.settings.handshake_timeout_seconds,
        )

    def drop(self) -> None:
        """Drop the connection, in whatever state it is."""
        if self._socket is not None:
            self._unwatch(self._socket)
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
        rest = self._input.rest
        if rest and data:
            rest += data
            return
        self._take(self._input.cut(data))

    def _go_on(self) -> None:
        """The others have had their turn: take the next slice of what has come."""
        if self._transport is not None and self._input.rest:
            self._take(self._input.next())

    def _take(self, data: bytes) -> None:
        """Take one slice; what is left has its turn after the others."""
        self._receive(data)
        if self._input.rest:
            asyncio.get_running_loop().call_soon(self._go_on)
        self.write()

    def _receive(self, data: bytes) -> None:
        began = time.thread_time()
        try:
            self._protocol.receive(data, epoch_ms())
        except Exception as error:
            self._input.rest.clear()
            self._broken(error)
            return
        self._input.took(len(data), time.thread_time() - began)

    def eof_received(self) -> bool:
        """The client will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        rest = bytes(self._input.rest)
        self._input.rest.clear()
        if rest:
            self._receive(rest)  # it came before the end
        self._transport = None
        if self._ticker is not None:
            self._ticker.cancel()
        self._listener.gone(self)
        error = self._protocol.error
        if error is not None:
            if self._is_open:
                self._listener.log.write("end", "connection of %s ended: %s", self.name, error)
            else:
                self._listener.log.write("login", "connection of %s ended: %s", self.name, error)
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
        """Write the bytes that the protocol has to send."""
        transport = self._transport
        try:
            if transport is None:
                self._protocol.pending_output(0)  # callbacks of the engine must not pile up
                return
            while not self._paused:
                data = self._protocol.pending_output(_HIGH_WATER_BYTES)
                if not data:
                    break
                transport.write(data)
                if len(data) < _HIGH_WATER_BYTES or self._protocol.is_postponed:  # a wake-up tells of more
                    break
            if (self._protocol.wants_input and not self._input.rest) is not self._reads:
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
            self.tick(time.monotonic())  # the client's idle time-out counts from here
        if not self._paused and self._protocol.output_closed:
            transport.close()

    def tick(self, now: float) -> None:
        """Let time pass."""
        limits = self._listener.settings
        if not self._protocol.is_open and now - self._since > limits.handshake_timeout_seconds:
            self._log_no_login()
            self.abort()
            return
        if self._closing_since is None:
            if self._protocol.has_ended:
                self._closing_since = now
        elif now - self._closing_since > limits.handshake_timeout_seconds:
            self.abort()  # it does not even take the close frame
            return
        now_ms = int(now * 1000)
        if now_ms >= self._next_tick_ms:
            try:
                deadline_ms = self._protocol.tick(now_ms)
            except Exception as error:
                self._broken(error)
                return
            self._next_tick_ms = deadline_ms or now_ms + 1000
            self.write()
            if deadline_ms is not None and deadline_ms - now_ms < _SOON_MS and self._transport is not None:
                if self._ticker is not None:
                    self._ticker.cancel()
                delay = max(deadline_ms - now_ms + 1, _LEAST_TICK_MS) / 1000
                self._ticker = asyncio.get_running_loop().call_later(delay, self._tick_soon)

    def _tick_soon(self) -> None:
        if self._transport is not None:
            self.tick(time.monotonic())

    def close(self, error: JMSException, *, stops: bool = False) -> None:
        """Close with a reason; ``stops``: because the server does."""
        self._closing_since = time.monotonic()
        try:
            self._protocol.close(error, stops=stops)
        except Exception as fault:
            self._broken(fault)
            return
        self.write()
        if not self._protocol.is_open:
            self.abort()

    def refusal(self) -> JMSException | None:
        """Why no request of the client may begin now; None: one may.  In any thread."""
        return self._protocol.refusal()

    @property
    def client(self) -> int:
        """The engine's number of the client; 0: the engine has not admitted it."""
        return self._protocol.calls.client or 0

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine."""
        return is_loopback(self.host)

    def announce(self) -> None:
        """What the server announces has changed."""
        self._protocol.announce()
        self.write()

    def end(self) -> None:
        """Give back what the client had, at once, and drop the connection: its client has reconnected, or is gone."""
        self._protocol.end()
        self._listener.gone(self)
        self.abort()

    def abort(self) -> None:
        """Drop it."""
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, error: Exception) -> None:
        _log.error("the connection of %s ends because of an unexpected error", self.name, exc_info=error)
        self.abort()


def _certified_user(certificate: Any) -> str | None:
    """The common name of a verified certificate's subject, as the ``ssl`` module gives it; None where there is none."""
    if not isinstance(certificate, dict):
        return None
    names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return names[-1] if names and names[-1] else None
