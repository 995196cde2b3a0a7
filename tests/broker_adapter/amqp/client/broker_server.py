"""Scripted brokers behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from broker_adapter.amqp.loop_thread import LoopThread
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker

T = TypeVar("T")


async def stop_listening(server: asyncio.Server) -> None:
    """Accept no more.  What was accepted before has a transport by then, which asyncio 3.11 would otherwise forget to
    make, and leave the socket open."""
    with contextlib.suppress(NotImplementedError):  # a loop without readers, as that of Windows
        for listening in server.sockets:
            server.get_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)
    server.close()


class BrokerServer:
    """Listens on a free port of this machine; each connection gets a broker of its own.

    Attributes:
        brokers: the broker of each connection so far.
        is_closed: whether it was closed.
        port: where it listens.
    """

    def __init__(
        self, make_broker: Callable[[], ScriptedBroker] = ScriptedBroker, context: ssl.SSLContext | None = None
    ) -> None:
        self.brokers: list[ScriptedBroker] = []
        self.connections: list[_ServerConnection] = []
        self._make_broker = make_broker
        self._context = context
        self.is_closed = False
        self._thread = LoopThread("test-broker")
        self._connected = threading.Condition()
        self._server = self.run_async(self._listen)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> Any:
        return await self._thread.loop.create_server(self._accept, "127.0.0.1", 0, ssl=self._context)

    def _accept(self) -> _ServerConnection:
        broker = self._make_broker()
        connection = _ServerConnection(broker, self)
        with self._connected:
            self.brokers.append(broker)
            self.connections.append(connection)
            self._connected.notify_all()
        return connection

    def run_async(self, make: Callable[[], Any]) -> Any:
        """The result of a coroutine in the server's thread."""
        return asyncio.run_coroutine_threadsafe(make(), self._thread.loop).result(120)

    def run(self, act: Callable[[], T]) -> T:
        """Do something in the server's thread, send what it has to say, return its result."""

        async def acted() -> T:
            result = act()
            for connection in self.connections:
                connection.flush()
            return result

        result: T = self.run_async(acted)
        return result

    def drop_connections(self) -> None:
        """Cut all connections as a network does."""

        def cut() -> None:
            for connection in self.connections:
                connection.cut()

        self.run(cut)

    def close(self) -> None:
        """Stop listening, cut everything.  Legal twice."""
        if self.is_closed:
            return
        self.is_closed = True
        # First, or a client that connects again at once has a new connection.
        self.run_async(lambda: stop_listening(self._server))
        self.drop_connections()
        self._thread.stop()


class _ServerConnection(asyncio.Protocol):
    def __init__(self, broker: ScriptedBroker, server: BrokerServer) -> None:
        self._broker = broker
        self._server = server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._server.is_closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._broker.peer.receive(data)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def flush(self) -> None:
        while self._transport is not None:
            handled = self._broker.handle()
            data = self._broker.peer.pending_output()
            if data:
                self._transport.write(data)
            if not data and not handled:
                break
        if self._transport is not None and self._broker.peer.output_closed:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
