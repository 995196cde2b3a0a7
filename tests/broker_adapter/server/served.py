"""A listener over an engine in memory, and raw clients of it."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import attrs

from broker_adapter.amqp.events import RemoteOpen, Terminus
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    ConnectionFactory,
)
from tests.contracts.transports import eventually

WAIT = 120.0


class Served:
    """A listener over an engine in memory."""

    def __init__(
        self,
        kind: type[Listener] = Listener,
        users: UsersFile | None = None,
        tls: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> None:
        self.broker = Broker(EngineSettings(max_message_bytes=100_000))
        self.listener = kind(
            self.broker, "127.0.0.1", 0, ServerSettings(**settings), lambda: ServerLogin(users, plain=True), tls
        )
        _, self.port = self.listener.start()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT)

    def close(self) -> None:
        self.listener.stop()
        self.broker.close()

    def works(self) -> bool:
        """Whether a well-behaved client is served."""
        with ConnectionFactory(self.url).create_connection() as connection, connection.create_session() as session:
            connection.start()
            queue = session.create_queue("works")
            session.create_producer(queue).send("x")
            message = session.create_consumer(queue).receive(timeout=WAIT)
            return message is not None and message.body == "x"


def change(served: Served, **settings: Any) -> None:
    """Have other settings from now on, where a time-out is meant for some clients only."""
    served.listener.settings = attrs.evolve(served.listener.settings, **settings)


def read_all(sock: socket.socket) -> bytes:
    """What the server says until it closes."""
    sock.settimeout(WAIT)
    said = b""
    try:
        while data := sock.recv(65536):
            said += data
    except ConnectionResetError:
        pass
    return said


def server_context(directory: Path, name: str = "IP:127.0.0.1") -> ssl.SSLContext:
    certificate, key = directory / "server.crt", directory / "server.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def open_raw(served: Served, name: str = "raw", **limits: Any) -> tuple[socket.socket, Peer]:
    """An open connection of a client that is only a peer."""
    sock = served.socket()
    peer = Peer(PeerLimits(**limits))
    peer.open(name)
    sock.sendall(peer.pending_output())
    while not any(isinstance(event, RemoteOpen) for event in peer.events()):
        data = sock.recv(65536)
        assert data
        peer.receive(data)
    return sock, peer


def stalled(served: Served, count: int, **settings: Any) -> tuple[socket.socket, Peer, int]:
    """A client that asked for more messages than any buffer takes, and reads none of them; with settings of its own."""
    with ConnectionFactory(served.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        for number in range(count):
            producer.send(f"{number:090000}")
    change(served, **settings)
    sock, peer = open_raw(served)
    link = peer.attach_receiver(peer.begin_session(), "r", Terminus("q"), Terminus())
    peer.credit(link, count)
    sock.sendall(peer.pending_output())
    eventually(lambda: any(connection._paused for connection in served.listener.connections))
    return sock, peer, link


def in_hand(served: Served) -> int:
    (found,) = [each for each in served.broker.call(c.Statistics(), WAIT).queues if each.name == "q"]
    held: int = found.in_hand
    return held


def opened(
    served: Served, token: str | None, container: str = "me", *, sole: bool = True
) -> tuple[socket.socket, Peer]:
    """A raw connection of our own client, open as far as the server lets it."""
    peer = Peer(PeerLimits())
    properties = {"product": "Holdfast"} | ({} if token is None else {"holdfast-connection": token})
    desired = ["sole-connection-for-container"] if sole else []
    peer.open(container, desired_capabilities=desired, properties=properties)
    connected = served.socket()
    connected.sendall(peer.pending_output())
    return connected, peer


def heard(connected: socket.socket, peer: Peer, kind: type[Any]) -> Any:
    """The next event of this kind; None where the server hung up first."""
    while True:
        for event in peer.events():
            if isinstance(event, kind):
                return event
        try:
            data = connected.recv(65536)
        except ConnectionResetError:
            return None
        if not data:
            return None
        peer.receive(data)
