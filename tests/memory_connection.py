"""A connection in memory, without sockets: of a client to the protocol of a server."""

from __future__ import annotations

import ssl
from typing import Protocol

from broker_adapter.amqp.client.io_loop import ByteProtocol, Connection


class ByteServer(Protocol):
    """The other end of a connection in memory, sans I/O.  All calls come from the loop's thread."""

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""

    def receive_end(self) -> None:
        """The client is gone."""

    def pending_output(self) -> bytes:
        """The bytes to send now."""


class MemoryConnection(Connection):
    """A connection without sockets: the protocol of a server at the other end of a pipe, in the same thread."""

    def __init__(self, protocol: ByteProtocol, server: ByteServer) -> None:
        super().__init__(protocol)
        self._server = server
        self._connected = False

    def connect(self, host: str, port: int, context: ssl.SSLContext | None, seconds: float) -> None:
        """Begin; host, port, TLS and time-out mean nothing here."""
        self._check_owner()
        self._loop.call_soon_threadsafe(self._start)

    def wake(self) -> None:
        """The server has something to send.  From any thread."""
        self._loop.call_soon_threadsafe(self._write)

    def _start(self) -> None:
        self._connected = True
        self._tick()

    def _write(self) -> None:
        while self._connected and not self._ended:
            data = self._protocol.pending_output()
            if data:
                self._server.receive(data)
            answer = self._server.pending_output()
            if answer:
                self._guarded(self._protocol.receive, answer)
            if not data and not answer:
                break
        if self._connected and self._protocol.output_closed:
            self._abort()

    def _drop(self) -> None:
        if self._connected:
            self._connected = False
            self._server.receive_end()
            self._guarded(self._protocol.receive_end)
