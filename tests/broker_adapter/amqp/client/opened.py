"""A transport that is open to a scripted broker, over sockets or in memory."""

from __future__ import annotations

import socket
import threading
from typing import Any

from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.errors import JMSException
from broker_adapter.transport import Credentials, Failed
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker

WAIT = 120.0  #: seconds; longer than anything takes, also where the machine is busy
QUEUE = queue("q")
MESSAGE = Envelope(QUEUE, BodyKind.TEXT, "hello")


def url_of(port: int, options: str = "", scheme: str = "amqp") -> AmqpURL:
    """A URL of this machine."""
    return address_of(f"{scheme}://127.0.0.1:{port}{options}")


def address_of(text: str) -> AmqpURL:
    url = parse_url(text)
    assert isinstance(url, FailoverURL)
    return url.addresses[0]


class Opened:
    """An open transport and what its listener heard."""

    def __init__(self, port: int, options: str = "", **arguments: Any) -> None:
        self.events: list[Any] = []
        self.failed = threading.Event()
        self.transport = AmqpTransport(url_of(port, options), **arguments)
        self.peer = self.transport.open(Credentials(client_id="me"), self._heard, WAIT)

    def _heard(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, Failed):
            self.failed.set()


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Run a call in a thread of its own; its result or its error arrives in the list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except JMSException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


class Pipe:
    """A scripted broker as the far end of a connection in memory."""

    def __init__(self, broker: ScriptedBroker | None = None) -> None:
        self.broker = broker or ScriptedBroker()
        self.ended = threading.Event()

    def receive(self, data: bytes) -> None:
        self.broker.peer.receive(data)
        self.broker.handle()

    def receive_end(self) -> None:
        self.ended.set()

    def pending_output(self) -> bytes:
        return self.broker.peer.pending_output()


def refused_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
