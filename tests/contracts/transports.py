"""Ways to an engine that must not differ: in process, AMQP in memory (our messages, standard ones), over loopback
(also with failover around it)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ack_modes import Failure, Outcome, Settlement
from broker_adapter.amqp.client.login import login_for
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.amqp.messages.amqp_message import decode_ahead
from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import AMQP_FORMAT, BodyKind, Envelope
from broker_adapter.errors import JMSException
from broker_adapter.failover.inner import Identification, Make
from broker_adapter.failover.transport import FailoverTransport
from broker_adapter.in_process import EngineLease, InProcessTransport
from broker_adapter.server.access.permissions import authorize
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.settings import ServerSettings
from broker_adapter.transport import (
    Credentials,
    Delivery,
    Peer,
    ReceiverSpec,
    SenderSpec,
    Transport,
    TransportEvent,
)
from broker_adapter.urls.url import AmqpURL, EmbeddedURL, FailoverURL, parse_url
from tests.memory_connection import MemoryConnection

WAIT = 120.0  #: seconds; longer than anything takes
KINDS = ("in process", "amqp in memory", "amqp over loopback", "standard amqp in memory", "failover over loopback")


class Engine:
    """An engine, and transports of one kind to it.

    Args:
        kind: one of :data:`KINDS`.  The standard one speaks as clients of other brokers do: without positions.
        path: directory of the store.
        options: of the engine, as in a URL.
        client_options: of each connection, as in a URL.
    """

    def __init__(self, kind: str, path: Path, options: str = "", client_options: str = "") -> None:
        self.kind = kind
        self.is_standard = kind == "standard amqp in memory"  #: messages travel in AMQP's own format
        self._client_options = client_options
        query = "&".join(each for each in (options, client_options) if each)
        parsed = parse_url(f"embedded:{path}?{query}" if query else f"embedded:{path}")
        assert isinstance(parsed, EmbeddedURL)
        self._url = parsed
        self.lease = EngineLease(parsed)
        self.broker: Broker = self.lease.broker
        self._listener: Listener | None = None
        self._port = 0
        self._transports: list[Transport] = []
        if kind in ("amqp over loopback", "failover over loopback"):
            self._listener = Listener(
                self.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True)
            )
            _, self._port = self._listener.start()

    def transport(self, **arguments: Any) -> Transport:
        """A transport that is not open yet; with further arguments of its class."""
        made: Transport
        if self.kind == "in process":
            made = InProcessTransport(self._url, decode_payload, **arguments)
        else:
            standard = "envelope=false" if self.is_standard else ""
            query = "&".join(each for each in (standard, self._client_options) if each)
            url = parse_url(f"amqp://127.0.0.1:{self._port or 1}?{query}".rstrip("?"))
            assert isinstance(url, FailoverURL)
            if "in memory" in self.kind:
                arguments["make_io"] = self._in_memory
            if self.kind == "failover over loopback":
                made = FailoverTransport(url, self._inner(arguments))
            else:
                made = AmqpTransport(url.addresses[0], make_login=login_for, **arguments)
        self._transports.append(made)
        return made

    @staticmethod
    def _inner(arguments: dict[str, Any]) -> Make:
        """Makes inner transports; with what is given in place of what a failover would have them say."""

        def make(address: AmqpURL, epoch: int, identification: Identification) -> AmqpTransport:
            own = {
                "epoch": epoch,
                "commit_prefix": identification.commit_prefix,
                "connection_token": identification.token,
            }
            return AmqpTransport(address, make_login=login_for, **{**own, **arguments})

        return make

    def _in_memory(self, protocol: Any) -> MemoryConnection:
        server = _MemoryServer(self.broker)
        connection = MemoryConnection(protocol, server)
        server.wake = connection.wake
        return connection

    def open(self, client_id: str | None = None, **arguments: Any) -> Client:
        """An open connection."""
        return Client(self.transport(**arguments), client_id)

    def close(self) -> None:
        for transport in self._transports:
            transport.close(WAIT)
        if self._listener is not None:
            self._listener.stop()
        self.lease.release()


class _MemoryServer:
    """The server's protocol at the other end of a pipe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        broker.learn_format(AMQP_FORMAT, decode_ahead)  # as the listener does
        self.wake: Callable[[], None] = lambda: None
        self._protocol = ServerProtocol(
            *(broker, ServerSettings(), ServerLogin(None, plain=True), lambda: self.wake(), self._request),
            authorize=partial(authorize, None),
        )

    def _request(self, operation: str, unpack: Callable[[], dict[str, Any]], done: Callable[[Any], None]) -> None:
        def work() -> None:
            try:
                result = self._broker.request(operation, unpack(), WAIT, client=self._protocol.calls.known_client)
            except JMSException as error:
                result = error
            done(result)

        threading.Thread(target=work).start()

    def receive(self, data: bytes) -> None:
        self._protocol.receive(data, time.time_ns() // 1_000_000)

    def receive_end(self) -> None:
        self._protocol.receive_end()

    def pending_output(self) -> bytes:
        return self._protocol.pending_output()


class Client:
    """An open transport, with short words for what tests do with it."""

    def __init__(self, transport: Transport, client_id: str | None = None) -> None:
        self.transport = transport
        self.events: list[TransportEvent] = []
        self.peer: Peer = transport.open(Credentials(client_id=client_id), self.events.append, WAIT)

    def sender(self, destination: Destination | None, session: int = 1) -> int:
        return self.transport.attach(SenderSpec(session, destination), None, WAIT)

    def receiver(self, destination: Destination, credit: int = 0, session: int = 1, **fields: Any) -> Receiver:
        receiver = Receiver(self.transport)
        spec = ReceiverSpec(session, destination, **fields)
        receiver.link = self.transport.attach(spec, receiver, WAIT)
        if credit:
            self.transport.credit(receiver.link, credit)
        return receiver

    def send(self, to: Destination | str, *bodies: Any, **fields: Any) -> None:
        """Send synchronously, each by itself."""
        destination = queue(to) if isinstance(to, str) else to
        link = self.sender(destination)
        for body in bodies:
            self.transport.send(link, message(destination, body, **fields), None, WAIT)
        self.transport.detach(link, WAIT)

    def drained(self, destination: Destination | str, **fields: Any) -> list[Delivery]:
        """What a new consumer gets until nothing is left; it holds all of it."""
        receiver = self.receiver(queue(destination) if isinstance(destination, str) else destination, 5000, **fields)
        self.transport.drain(receiver.link, WAIT)
        return list(receiver.deliveries)

    def bodies(self, destination: Destination | str) -> list[Any]:
        """The bodies of what waits in a queue, as a browser sees them."""
        return [delivery.envelope.body for delivery in self.drained(destination, browse=True)]

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome | Failure = Outcome.ACCEPTED) -> None:
        self.transport.settle([Settlement(delivery.tag, outcome) for delivery in deliveries])

    def close(self) -> None:
        self.transport.close(WAIT)


class Receiver:
    """A consumer's sink that can be waited for."""

    def __init__(self, transport: Transport) -> None:
        self.link = 0
        self.deliveries: list[Delivery] = []
        self._transport = transport
        self._arrived = threading.Condition()

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        with self._arrived:
            self.deliveries.extend(deliveries)
            self._arrived.notify_all()

    def wait_for(self, count: int) -> list[Delivery]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.deliveries) >= count, WAIT), len(self.deliveries)
            return list(self.deliveries)

    def bodies(self) -> list[Any]:
        return [delivery.envelope.body for delivery in self.deliveries]


def message(destination: Destination, body: Any = "x", **fields: Any) -> Envelope:
    return Envelope(destination, BodyKind.TEXT, body, **fields)


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until it holds: for what the port does not wait for, such as settlements."""
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def engine(kind: str, path: Path, options: str = "") -> Any:
    """An engine for a while."""
    found = Engine(kind, path, options)
    try:
        yield found
    finally:
        found.close()
