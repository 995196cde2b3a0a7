"""The sockets of all AMQP connections of this process: one asyncio loop in one daemon thread.

Theory of operation
    The loop's thread starts with the first connection and serves all.  A process made by fork starts its own; the
    connections of its parent are dead in it, and say so.

    Application threads hand work over through a deque.  The loop is woken only where no wake-up is under way already,
    so a thousand sends in a row cost a few wake-ups.  The loop takes the work, lets the protocol turn it into bytes,
    and writes them at once.  While the socket takes no more, the protocol is not asked for bytes: messages wait there,
    within the send window.

    Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ack_modes import Settlement
from broker_adapter.amqp.loop_thread import LoopThread
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException
from broker_adapter.signals import uninterrupted

_log = logging.getLogger(f"holdfast.{__name__}")

#: Pieces of work that are taken before bytes are written and other connections have their turn.
WORK_PER_TURN: Final = 2_000
#: Longest time between two checks for keep-alives, in seconds.
TICK_SECONDS: Final = 1.0
#: Bytes waiting in the socket's buffer above which the protocol is not asked for more.
HIGH_WATER_BYTES: Final = 1024 * 1024

#: One send: link, payload, callback.
Send = tuple[int, bytes, Any]
#: A send, settlements, or anything else to do.
Work = Send | list[Settlement] | Callable[[], None]


class ByteProtocol(Protocol):
    """What runs over a connection, sans I/O.  All calls come from the loop's thread."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the network."""

    def receive_end(self) -> None:
        """The network will bring no more bytes."""

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now."""

    @property
    def output_closed(self) -> bool:
        """Whether nothing more will be sent."""

    def tick(self, now_ms: int) -> int | None:
        """Let time pass; returns when to call again at the latest."""

    def send_all(self, sends: Sequence[Send]) -> None:
        """Send messages, in order."""

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle deliveries, in order."""

    def fail(self, error: JMSException) -> None:
        """The connection is gone."""

    def release(self) -> None:
        """Free memory: no more bytes will come or go.  Legal twice."""


_lock = threading.Lock()
_shared: LoopThread | None = None
_connections: weakref.WeakSet[Connection]


def shared_loop() -> LoopThread:
    """The loop of this process, started at the first call."""
    return uninterrupted(_make_shared) if _shared is None else _shared


def _make_shared() -> LoopThread:
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread("holdfast-io")
        return _shared


def _after_fork() -> None:
    """In a process made by fork no thread runs the loop, and the sockets belong to the parent."""
    global _lock, _shared
    _lock = threading.Lock()
    _shared = None
    for connection in list(_connections):
        connection.disown()


class Connection:
    """The hand-over between application threads and a protocol in the loop's thread; below it a carrier of bytes."""

    def __init__(self, protocol: ByteProtocol) -> None:
        self._protocol = protocol
        self._thread = shared_loop()
        self._loop = self._thread.loop
        self._work: deque[Work] = deque()
        self._signalled = False
        self._signalling = False
        self._ended = False
        self._disowned = False
        self._ticker: asyncio.TimerHandle | None = None
        _connections.add(self)

    def __repr__(self) -> str:
        state = "disowned" if self._disowned else "ended" if self._ended else "open"
        return f"<{type(self).__name__} {state} work={len(self._work)}>"

    # From any thread.

    def submit(self, work: Work) -> None:
        """Hand work to the loop's thread.

        Raises:
            IllegalStateException: this process was made by fork after the connection.
        """
        self._check_owner()
        self._work.append(work)
        # Two threads may both see False and wake the loop twice, which is harmless; that none wakes it cannot be,
        # since the loop sets False before it takes the work.  While one is about to wake it, others do so as well:
        # the handler of a signal may have interrupted it, and wait for work of its own.
        if not self._signalled or self._signalling:
            self._signalled = self._signalling = True
            try:
                self._loop.call_soon_threadsafe(self._take_work)
            except BaseException:  # a handler of a signal raised here: perhaps no wake-up is under way
                self._signalled = False
                raise
            finally:
                self._signalling = False

    def connect(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        """Start to connect; the protocol's ``fail`` is told where that does not work within this time."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drop the connection at once, whatever is under way."""
        if not self._disowned:
            self._loop.call_soon_threadsafe(self._abort)

    def disown(self) -> None:
        """This process was forked from the one that owns the connection."""
        self._disowned = True

    def in_loop_thread(self) -> bool:
        """Return whether the caller is a callback, which must not wait."""
        return self._thread.owns_current_thread()

    def _check_owner(self) -> None:
        if self._disowned:
            raise IllegalStateException("the connection was made before this process was forked; make a new one")

    # In the loop's thread.

    def _write(self) -> None:
        """Carry what the protocol has to send."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Abort the carrier at once."""

    def _take_work(self) -> None:
        self._signalled = False
        work = self._work
        # What is sent and settled in a row goes out together.
        sends: list[Send] = []
        settlements: list[Settlement] = []
        for _ in range(min(len(work), WORK_PER_TURN)):
            item = work.popleft()
            if isinstance(item, tuple):
                sends.append(item)
            elif isinstance(item, list):
                settlements += item
            else:
                if sends or settlements:
                    self._hand_over(sends, settlements)
                    sends, settlements = [], []
                try:
                    item()
                except Exception as error:
                    self._broken(error)
        if sends or settlements:
            self._hand_over(sends, settlements)
        if work and not self._signalled:
            self._signalled = True
            self._loop.call_soon(self._take_work)
        self._write()

    def _hand_over(self, sends: Sequence[Send], settlements: Sequence[Settlement]) -> None:
        """Pass on what was sent and settled: first the messages, which may have been made of what is settled."""
        try:
            if sends:
                self._protocol.send_all(sends)
            if settlements:
                self._protocol.settle(settlements)
        except Exception as error:
            self._broken(error)

    def _tick(self) -> None:
        if self._ended:
            return
        now_ms = time.monotonic_ns() // 1_000_000
        deadline_ms: int | None = None
        try:
            deadline_ms = self._protocol.tick(now_ms)
        except Exception as error:
            self._broken(error)
            return
        self._write()
        delay = TICK_SECONDS
        if deadline_ms is not None:
            delay = min(delay, max(0.001, (deadline_ms - now_ms) / 1000))
        self._ticker = self._loop.call_later(delay, self._tick)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._broken(error)

    def _fail(self, reason: str, cause: BaseException | None) -> None:
        error = ConnectionLostException(reason)
        error.__cause__ = cause
        self._guarded(self._protocol.fail, error)
        self._end()

    def _broken(self, error: Exception) -> None:
        """A fault of ours, or of a callback: this connection ends, the others go on."""
        _log.error("the connection ends because of an unexpected error", exc_info=error)
        lost = ConnectionLostException(f"unexpected error in the connection: {error!r}")
        lost.__cause__ = error
        try:
            self._protocol.fail(lost)
        except Exception as another:
            _log.error("a second unexpected error while the connection ended", exc_info=another)
        self._abort()

    def _abort(self) -> None:
        self._drop()
        self._end()

    def _end(self) -> None:
        is_first = not self._ended
        self._ended = True
        if is_first:
            self._guarded(self._protocol.release)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None


class SocketConnection(Connection, asyncio.Protocol):
    """A TCP or TLS connection under a protocol."""

    def __init__(self, protocol: ByteProtocol) -> None:
        super().__init__(protocol)
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._paused = False

    def connect(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        """See :meth:`Connection.connect`."""
        self._check_owner()
        self._loop.call_soon_threadsafe(self._start, host, port, context, seconds)

    def _start(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        self._connecting = self._loop.create_task(self._connect(host, port, context, seconds))

    async def _connect(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        where = f"{host}:{port}"
        try:
            async with asyncio.timeout(seconds):
                await self._loop.create_connection(lambda: self, host, port, ssl=context)
        except TimeoutError as error:
            self._fail(f"no connection to {where} within {seconds:g} s", error)
        except ssl.SSLError as error:
            self._fail(f"TLS with {where} failed: {error}{_remedy(error)}", error)
        except OSError as error:
            reason = str(error.strerror or error)
            if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in reason:
                error = ConnectionRefusedError(*error.args)  # also of a name with several addresses
                command = f"holdfast serve --data DIR --listen {where}"
                reason = f"nothing listens there; correct host and port, or start: {command}"
            self._fail(f"no connection to {where}: {reason}", error)
        except ValueError as error:  # a host name that cannot be one: no text, too long, or with a NUL
            self._fail(f"no connection to {where}: {error}", error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._ended:
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._tick()

    def data_received(self, data: bytes) -> None:
        self._guarded(self._protocol.receive, data)
        self._write()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is None:
            self._guarded(self._protocol.receive_end)
        else:
            self._fail(f"the network connection failed: {exc}", exc)
        self._end()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write()

    def _write(self) -> None:
        transport = self._transport
        if transport is None:
            return
        while not self._paused:
            data = self._protocol.pending_output(HIGH_WATER_BYTES)
            if not data:
                break
            transport.write(data)
        if not self._paused and self._protocol.output_closed:
            transport.close()

    def _drop(self) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()


#: Codes of OpenSSL: the certificate is for another host, e-mail address or IP address.
_OTHER_NAME = frozenset((62, 63, 64))
#: It is not valid yet, or not any more.
_OTHER_TIME = frozenset((9, 10))


def _remedy(error: ssl.SSLError) -> str:
    """Return what to do about a TLS handshake that failed, where that is clear."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return "; the broker's certificate is for other names: connect by one of those"
        if error.verify_code in _OTHER_TIME:
            return "; the broker needs a certificate that is valid now (or a clock is wrong)"
        return "; name a PEM file with the certificate that signed the broker's in the option tls_ca_file"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "; the broker speaks no TLS on this port, whose URL then begins with amqp://"
    return ""


_connections = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
