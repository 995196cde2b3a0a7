"""The server's sockets against friends and strangers."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import socket
import ssl
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.amqp.events import ACCEPTED_STATE, RemoteClose, RemoteOpen, Terminus, Transfers
from broker_adapter.amqp.payloads import decode_received
from broker_adapter.amqp.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException
from broker_adapter.server import listener, open_files
from broker_adapter.server.client_connection import ClientConnection
from broker_adapter.server.listener import Listener
from broker_adapter.server.listening import check_address
from broker_adapter.server.protocol import ServerProtocol
from broker_adapter.server.users import UsersFile
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    ConnectionFactory,
    JMSSecurityException,
    MessageFormatException,
    ResourceAllocationException,
    StoreException,
)
from tests.broker_adapter.amqp.frames import ATTACH, CLOSE, FLOW, TRANSFER, attach, begin, close, flow
from tests.broker_adapter.server.raw_client import RawClient, request
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


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener looks at the clock so often that no test waits for it."""
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.05)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(*arguments: Any, **settings: Any) -> Served:
        made.append(Served(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


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


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x03\x01\x00\x00" + b"\xff" * 100,
        b"AMQP\x03\x01\x00\x00" + b"\x00\x00\x00\x04\x02\x01\x00\x00",
    ],
    ids=["http", "amqp 0-9-1", "tls", "a huge frame", "a frame too small"],
)
def test_who_speaks_no_amqp_is_answered_and_closed(serve: Callable[..., Served], data: bytes) -> None:
    served = serve()
    with served.socket() as sock:
        sock.sendall(data)
        assert read_all(sock).startswith(b"AMQP\x03\x01\x00\x00")
    assert served.works()


@pytest.mark.parametrize("data", [b"", b"AMQP", b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"])
def test_who_stops_half_way_is_dropped(
    serve: Callable[..., Served], data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(handshake_timeout_seconds=0.2)
    with served.socket() as sock:
        sock.sendall(data)
        read_all(sock)
    assert "no login and open within 0.2 s" in caplog.text
    change(served, handshake_timeout_seconds=WAIT)
    assert served.works()


@pytest.fixture
def users(tmp_path: Path) -> UsersFile:
    found = UsersFile.open_or_make(tmp_path / "users")
    found.add("alice", "secret")
    return found


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize(
    ("username", "password"), [("alice", "guess"), ("alice", ""), ("mallory", "secret"), (None, None)]
)
def test_who_may_not_log_in_is_refused_and_others_are_served(
    serve: Callable[..., Served], users: UsersFile, mechanism: str, username: str | None, password: str | None
) -> None:
    served = serve(users=users)
    url = f"{served.url}?sasl_mechanisms={mechanism}&allow_plain_without_tls=true"
    with ConnectionFactory(url).create_connection("alice", "secret") as connection:
        with pytest.raises(JMSSecurityException):
            ConnectionFactory(url).create_connection(username, password)
        with connection.create_session() as session:
            session.create_producer(session.create_queue("q")).send("x")
        assert served.broker.call(c.Statistics(), WAIT).clients == 1


def test_who_skips_the_login_is_refused(serve: Callable[..., Served], users: UsersFile) -> None:
    served = serve(users=users)
    with served.socket() as sock:
        peer = Peer(PeerLimits())
        peer.open("raw")
        sock.sendall(peer.pending_output())
        assert read_all(sock) == b"AMQP\x03\x01\x00\x00"


def test_half_a_tls_handshake_is_dropped(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve(tls=server_context(tmp_path), handshake_timeout_seconds=0.2)
    with served.socket() as sock:
        sock.sendall(b"\x16\x03\x01")
        read_all(sock)
    change(served, handshake_timeout_seconds=WAIT)
    with served.socket() as sock:
        sock.sendall(b"AMQP\x00\x01\x00\x00")  # AMQP where TLS was expected
        read_all(sock)
    url = f"amqps://127.0.0.1:{served.port}?tls_ca_file={tmp_path / 'server.crt'}"
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")


def server_context(directory: Path, name: str = "IP:127.0.0.1") -> ssl.SSLContext:
    certificate, key = directory / "server.crt", directory / "server.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


class FaultyProtocol(ServerProtocol):
    """Has a fault that only the clients named "faulty" meet."""

    fault = ""

    def _meet(self, name: str) -> None:
        if self.peer_name == "faulty" and name == self.fault:
            raise RuntimeError(f"a fault in {name}")

    def tick(self, now_ms: int) -> int | None:
        self._meet("tick")
        return super().tick(now_ms)

    def receive(self, data: bytes, now_ms: int) -> None:
        self._meet("receive")
        super().receive(data, now_ms)

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        self._meet("pending_output")
        return super().pending_output(limit_bytes)


class FaultyListener(Listener):
    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        def wake() -> None:
            self.wake(connection)

        return FaultyProtocol(self._broker, self.settings, ServerLogin(None, plain=True), wake, self.request)


@pytest.mark.parametrize("fault", ["tick", "receive", "pending_output"])
def test_an_unexpected_fault_ends_one_connection_and_time_goes_on_for_the_others(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    served = serve(FaultyListener, handshake_timeout_seconds=WAIT)
    with served.socket() as half, served.socket() as sock:
        monkeypatch.setattr(FaultyProtocol, "fault", fault)
        peer = Peer(PeerLimits())
        peer.open("faulty")
        sock.sendall(peer.pending_output())
        if fault == "receive":  # the first bytes are well, since they only tell who it is
            peer.receive(sock.recv(65536))
            peer.begin_session()
            sock.sendall(peer.pending_output())
        read_all(sock)
        change(served, handshake_timeout_seconds=0.001)
        read_all(half)  # the clock still runs, so who says nothing is dropped
    assert f"a fault in {fault}" in caplog.text
    change(served, handshake_timeout_seconds=WAIT)
    assert served.works()


def open_raw(served: Served, name: str = "raw") -> tuple[socket.socket, Peer]:
    """An open connection of a client that is only a peer."""
    sock = served.socket()
    peer = Peer(PeerLimits())
    peer.open(name)
    sock.sendall(peer.pending_output())
    while not any(isinstance(event, RemoteOpen) for event in peer.events()):
        data = sock.recv(65536)
        assert data
        peer.receive(data)
    return sock, peer


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x00\x00\x10\x02\x00\x00\x00" + b"\xff" * 8,
        b"\x7f\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x14\xc0",
        b"\x00\x00\x00\x20\x02\x00\x00\x00" + b"\xc0\xff\xff" * 8,
    ],
)
def test_a_malformed_frame_ends_its_connection_only(serve: Callable[..., Served], frame: bytes) -> None:
    served = serve()
    sock, _ = open_raw(served)
    with sock:
        sock.sendall(frame)
        read_all(sock)
    assert served.works()


def test_a_message_above_the_limit_is_the_senders_error(serve: Callable[..., Served]) -> None:
    served = serve()
    with ConnectionFactory(served.url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        with pytest.raises(MessageFormatException, match="limit of 100000 bytes"):
            producer.send("x" * 200_000)
        producer.send("small")
    assert served.works()


def test_a_client_that_is_one_too_many_is_told_so(serve: Callable[..., Served]) -> None:
    served = serve(max_connections=3)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(open_raw(served)[0])
        with pytest.raises(
            ResourceAllocationException, match=r"3 connections are the limit \(option max_connections\)"
        ):
            ConnectionFactory(served.url).create_connection()
    eventually(lambda: not served.listener.connections)
    assert served.works()


def test_those_above_the_limit_who_are_still_to_be_told_so_are_limited_too(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "TOLD_AT_ONCE", 2)
    served = serve(max_connections=1, max_login_connections_per_address=10)
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(open_raw(served)[0])
        silent = [stack.enter_context(served.socket()) for _ in range(2)]
        eventually(lambda: len(served.listener.connections) == 3)
        assert read_all(stack.enter_context(served.socket())) == b""
        silent[0].close()
        eventually(lambda: len(served.listener.connections) == 2)
        told, peer = opened(served, None)
        stack.enter_context(told)
        assert "max_connections" in heard(told, peer, RemoteClose).error.description
        for sock in (inside, *silent):
            sock.close()
        eventually(lambda: not served.listener.connections)
        assert served.works()


def test_two_thousand_idle_connections_are_no_burden(serve: Callable[..., Served]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    served = serve(handshake_timeout_seconds=1000, idle_timeout_seconds=0)
    idle: list[Any] = []
    try:
        idle += [open_raw(served) for _ in range(2000)]
        assert len(served.listener.connections) == 2000
        assert served.works()
    finally:
        for sock, _ in idle:
            sock.close()
        served.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


def test_a_client_that_takes_nothing_costs_a_bounded_amount_and_then_gets_everything(
    serve: Callable[..., Served],
) -> None:
    count = 400  # 36 MB, more than the buffers of the system's sockets
    served = serve(max_output_bytes=65536)
    sock, peer, link = stalled(served, count)
    with sock:
        held = in_hand(served)
        assert held < count
        assert served.works()
        assert held <= in_hand(served) < count
        bodies: list[str] = []
        while len(bodies) < count:
            peer.receive(sock.recv(1 << 20))
            for event in peer.events():
                if isinstance(event, Transfers):
                    bodies += [str(decode_received(each.payload).body) for each in event.deliveries]
                    peer.settle(link, [each.number for each in event.deliveries], ACCEPTED_STATE)
            sock.sendall(peer.pending_output())
        assert [int(body[-9:]) for body in bodies] == list(range(count))
        eventually(lambda: in_hand(served) == 0)


def test_a_client_that_takes_nothing_and_says_nothing_is_dropped(serve: Callable[..., Served]) -> None:
    served = serve(max_output_bytes=65536)
    sock, _, _ = stalled(served, 300, idle_timeout_seconds=2.0)
    change(served, handshake_timeout_seconds=0.5)  # for its last words as well
    with sock:
        eventually(lambda: not served.listener.connections)
    assert in_hand(served) == 0


def test_stopping_does_not_wait_for_those_who_do_not_listen(serve: Callable[..., Served]) -> None:
    served = serve(max_output_bytes=65536)
    sock, _, _ = stalled(served, 300)
    with sock, served.socket() as half, served.socket() as silent:
        half.sendall(b"AMQP")
        eventually(lambda: len(served.listener.connections) == 3)
        started = time.monotonic()
        served.listener.stop(0.3)
        assert time.monotonic() - started < WAIT / 2
        assert read_all(silent) == b""


@pytest.mark.parametrize("tls", [False, True])
def test_who_connects_while_the_server_stops_is_dropped(
    serve: Callable[..., Served], tmp_path: Path, tls: bool
) -> None:
    served = serve(tls=server_context(tmp_path) if tls else None)
    go_on = threading.Event()
    assert served.listener._thread is not None
    served.listener._thread.loop.call_soon_threadsafe(go_on.wait, WAIT)  # the loop sees both at once
    listener = served.listener
    stopping = threading.Thread(target=listener.stop)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(served.socket()) for _ in range(10)]
        stopping.start()
        eventually(lambda: listener._thread is None)  # it stops
        go_on.set()
        stopping.join(WAIT)
        for sock in sockets:
            assert read_all(sock) == b""


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01"])
def test_who_is_within_the_tls_handshake_is_dropped_when_the_server_stops(
    serve: Callable[..., Served], tmp_path: Path, begun: bytes
) -> None:
    served = serve(tls=server_context(tmp_path), handshake_timeout_seconds=10 * WAIT)
    with served.socket() as sock:
        sock.sendall(begun)
        eventually(lambda: len(served.listener._admission) == 1)
        started = time.monotonic()
        served.listener.stop()
        assert time.monotonic() - started < WAIT / 2
        assert read_all(sock) == b""


def test_clients_that_send_and_vanish_do_no_harm(serve: Callable[..., Served]) -> None:
    served = serve()
    for _ in range(20):
        sock, peer = open_raw(served)
        session = peer.begin_session()
        peer.attach_receiver(session, "r", Terminus("vanished"), Terminus())
        link = peer.attach_sender(session, "s", Terminus(), Terminus("vanished"))
        sock.sendall(peer.pending_output())
        while not peer.remaining_credit(link):
            peer.receive(sock.recv(65536))
            peer.events()
        for _ in range(10):
            peer.send(link, b"\x00\x53\x77\xa1\x01x")
        sock.sendall(peer.pending_output())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        sock.close()
    eventually(lambda: not served.listener.connections)
    eventually(lambda: served.broker.call(c.Statistics(), WAIT).clients == 0)
    assert served.works()


def test_stopping_tells_the_clients(serve: Callable[..., Served]) -> None:
    served = serve()
    told: list[JMSException] = []
    arrived = threading.Event()

    def listener(error: JMSException) -> None:
        told.append(error)
        arrived.set()

    with ConnectionFactory(served.url).create_connection() as connection:
        connection.exception_listener = listener
        served.listener.stop()
        assert arrived.wait(WAIT)
        assert "stopping" in str(told[0])
    served.listener.stop()


def test_clients_are_told_when_the_engine_stops(serve: Callable[..., Served], tmp_path: Any) -> None:
    served = serve()
    broker = Broker(EngineSettings(), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    arrived = threading.Event()
    try:
        with ConnectionFactory(f"amqp://127.0.0.1:{port}").create_connection() as connection:
            connection.exception_listener = lambda _error: arrived.set()
            with connection.create_session() as session:
                producer = session.create_producer(session.create_queue("q"))
                assert broker._disk is not None
                broker._disk._env.close()
                with pytest.raises(JMSException):
                    producer.send("x")
            assert arrived.wait(WAIT)
        assert isinstance(broker.failed, StoreException)
    finally:
        listener.stop()
        broker.close()
    assert served.works()


#: No kernel has sockets of this family for TCP.
NO_FAMILY = (socket.AF_APPLETALK, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 0))
NOT_HERE = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("192.0.2.1", 0))
HERE = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0))


def listens(broker: Broker, monkeypatch: pytest.MonkeyPatch, *found: tuple[Any, ...]) -> tuple[str, int]:
    """Where a listener listens whose name has these addresses."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: list(found))
    check_address("name", 0)
    listener = Listener(broker, "name", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    try:
        return listener.start()
    finally:
        listener.stop()


@pytest.mark.parametrize("others", [(NO_FAMILY,), (NOT_HERE,), (NO_FAMILY, NOT_HERE)])
def test_addresses_of_a_name_that_this_machine_does_not_have_are_passed_over(
    serve: Callable[..., Served],
    others: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        for found in ((*others, HERE), (HERE, *others)):
            host, port = listens(serve().broker, monkeypatch, *found)
            assert (host, port > 0) == ("127.0.0.1", True)
    for each in others:
        assert f"= not listening on {each[4][0]}: " in caplog.text


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((NO_FAMILY,), "Address family not supported"),
        ((NO_FAMILY, NOT_HERE), "Address family not supported"),
        ((NOT_HERE, NO_FAMILY), "Cannot assign requested address"),
    ],
)
def test_a_name_of_which_no_address_is_left_is_refused(
    serve: Callable[..., Served], found: tuple[Any, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: list(found))
    listener = Listener(served.broker, "name", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    for start in (lambda: check_address("name", 0), listener.start):
        with pytest.raises(ConnectionLostException, match=reason):
            start()
    listener.stop()


def test_an_address_that_another_process_has_is_not_passed_over(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    taken = (*HERE[:4], ("127.0.0.1", served.port))
    with pytest.raises(ConnectionLostException, match="choose another"):
        listens(served.broker, monkeypatch, HERE, taken)


def test_where_no_file_is_left_no_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: [HERE, (*HERE[:4], ("127.0.0.2", 0))])
    check_address("name", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        os.close(held.pop())
        with pytest.raises(ConnectionLostException, match="Too many open files"):
            check_address("name", 0)
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_in_use_is_a_clear_error(serve: Callable[..., Served]) -> None:
    served = serve()
    other = Listener(served.broker, "127.0.0.1", served.port, ServerSettings(), lambda: ServerLogin(None, plain=True))
    with pytest.raises(ConnectionLostException, match="choose another"):
        other.start()
    other.stop()
    with pytest.raises(IllegalStateException):
        served.listener.start()


def test_a_silent_client_is_dropped_after_the_idle_time(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    served = serve(idle_timeout_seconds=0.5)
    sock, _ = open_raw(served)
    with sock:
        read_all(sock)  # keep-alives, until the server has heard nothing for too long
    assert "idle" in caplog.text
    assert attrs.asdict(served.listener.settings)["idle_timeout_seconds"] == 0.5


# A client that comes again.


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


def test_a_client_that_comes_again_takes_the_place_of_its_old_connection(serve: Callable[..., Served]) -> None:
    served = serve()
    first, first_peer = opened(served, "secret")
    assert heard(first, first_peer, RemoteOpen).properties["holdfast-store"] == served.broker.unique
    second, second_peer = opened(served, "secret")
    answer = heard(second, second_peer, RemoteOpen)
    assert "amqp:connection-establishment-failed" not in answer.properties, "its client id is free"
    assert heard(first, first_peer, RemoteClose) is None
    eventually(lambda: len(served.listener.connections) == 1)
    for each in (first, second):
        each.close()


def test_a_client_that_comes_again_needs_no_second_place(serve: Callable[..., Served]) -> None:
    served = serve(max_connections=1)
    first, first_peer = opened(served, "secret")
    heard(first, first_peer, RemoteOpen)
    second, second_peer = opened(served, "secret")
    assert "amqp:connection-establishment-failed" not in heard(second, second_peer, RemoteOpen).properties
    third, third_peer = opened(served, "another", "other")
    assert heard(third, third_peer, RemoteClose).error.condition == "amqp:resource-limit-exceeded"
    for each in (first, second, third):
        each.close()


@pytest.mark.parametrize("token", [None, "", "another", "x" * 101])
def test_a_client_with_another_word_or_none_takes_nobodys_place(
    serve: Callable[..., Served], token: str | None
) -> None:
    served = serve()
    first, first_peer = opened(served, "x" * 101 if token == "x" * 101 else "secret")
    heard(first, first_peer, RemoteOpen)
    second, second_peer = opened(served, token)
    answer = heard(second, second_peer, RemoteOpen)
    assert answer.properties["amqp:connection-establishment-failed"] is True, "the client id is in use"
    assert len(served.listener._tokens) <= 2
    for each in (first, second):
        each.close()
    eventually(lambda: len(served.listener._tokens) == 0)


def test_what_the_old_connection_had_is_there_for_the_new_one(serve: Callable[..., Served]) -> None:
    served = serve()
    with ConnectionFactory(served.url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")
    first, first_peer = opened(served, "secret")
    heard(first, first_peer, RemoteOpen)
    link = first_peer.attach_receiver(first_peer.begin_session(), "r", Terminus("q"), Terminus())
    first_peer.credit(link, 10)
    first.sendall(first_peer.pending_output())
    assert heard(first, first_peer, Transfers) is not None
    second, second_peer = opened(served, "secret")
    heard(second, second_peer, RemoteOpen)
    link = second_peer.attach_receiver(second_peer.begin_session(), "r", Terminus("q"), Terminus())
    second_peer.credit(link, 10)
    second.sendall(second_peer.pending_output())
    assert heard(second, second_peer, Transfers) is not None
    for each in (first, second):
        each.close()


def test_servers_are_announced_from_the_own_machine_only(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    with ConnectionFactory(served.url).create_connection() as connection:
        assert connection.request("announce_servers", {"servers": ["h:1"]}) == 1
        monkeypatch.setattr(ClientConnection, "is_local", False)
        with pytest.raises(JMSSecurityException, match="from the server's own machine only"):
            connection.request("announce_servers", {"servers": ["elsewhere:1"]})
    assert [each.host for each in served.listener.servers] == ["h"]


# Memory.


class Probe:
    """Lives as long as the C object that knows it."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[weakref.ref[Any]]]:
    """What connections are made of, by name, so that it can be seen to go."""
    found: dict[str, list[weakref.ref[Any]]] = {}

    def watch(cls: type[Any]) -> None:
        make = cls.__init__

        def made(self: Any, *arguments: Any, **fields: Any) -> None:
            make(self, *arguments, **fields)
            found.setdefault(cls.__name__, []).append(weakref.ref(self))
            if cls is ServerProtocol:
                probe = Probe()
                self._peer._transport._attrs["probe"] = probe
                found.setdefault("C transport", []).append(weakref.ref(probe))
                found.setdefault("Peer", []).append(weakref.ref(self._peer))

        monkeypatch.setattr(cls, "__init__", made)

    watch(ClientConnection)
    watch(ServerProtocol)
    return found


@pytest.mark.parametrize("end", ["dropped", "closed", "broken", "taken over", "refused"])
def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    serve: Callable[..., Served], ends: dict[str, list[weakref.ref[Any]]], end: str
) -> None:
    served = serve()
    gc.collect()
    gc.disable()
    try:
        with RawClient(served.port) as client:
            client.send(begin(0), attach(0, 0, "s", "q"), attach(0, 1, "r", "q", receives=True), flow(0, 1, 5))
            client.send(attach(0, 2, "c", coordinator=True), attach(0, 3, "ask", "$holdfast"))
            client.send(attach(0, 4, "answers", "$holdfast", receives=True), flow(0, 4, 5))
            client.until(lambda: client.count(ATTACH) == 5 and client.count(FLOW) >= 3)
            client.send(*client.deliver(0, 3, request(1, "statistics", {})), *client.deliver(0, 0, b"\x00\x53\x77\x41"))
            client.until(lambda: client.count(TRANSFER) == 2)
            client.send(*client.deliver(0, 0, bytes(50_000), finished=False))
            if end == "closed":
                client.send(close())
                client.until(lambda: client.count(CLOSE) == 1)
            elif end == "broken":
                client.send(begin(0))
                client.until(lambda: client.count(CLOSE) == 1)
            elif end == "taken over":
                (old,) = served.listener.connections
                thread = served.listener._thread
                assert thread is not None
                thread.loop.call_soon_threadsafe(old.end)
                del old
                client.until_closed()
            elif end == "refused":
                client.send(b"\xff" * 100)
                client.until_closed()
        eventually(lambda: not served.listener.connections)
        eventually(lambda: served.broker.call(c.Statistics(), WAIT).clients == 0)
        eventually(lambda: not [name for name, each in ends.items() if any(found() is not None for found in each)])
    finally:
        gc.enable()
    assert ends.keys() == {"ClientConnection", "ServerProtocol", "Peer", "C transport"}


def test_a_connection_whose_admission_comes_too_late_leaves_nothing_behind(
    serve: Callable[..., Served], ends: dict[str, list[weakref.ref[Any]]]
) -> None:
    """The engine answers a client that is gone; nobody but its protocol is there to hear it."""
    served = serve()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            with RawClient(served.port, reads=False):
                pass
        eventually(lambda: not served.listener.connections)
        eventually(lambda: served.broker.call(c.Statistics(), WAIT).clients == 0)
        eventually(lambda: not [name for name, each in ends.items() if any(found() is not None for found in each)])
    finally:
        gc.enable()


def test_nothing_is_read_above_the_budget_and_it_goes_on_below_it(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(max_connection_bytes=1 << 20)
    may_answer = threading.Event()
    answer = served.broker.request

    def wait(*arguments: Any) -> Any:
        assert may_answer.wait(WAIT)
        return answer(*arguments)

    monkeypatch.setattr(served.broker, "request", wait)
    with RawClient(served.port) as client:
        client.send(begin(0), attach(0, 0, "ask", "$holdfast"))
        client.send(attach(0, 1, "answers", "$holdfast", receives=True), flow(0, 1, 100))
        client.until(lambda: client.count(ATTACH) == 2 and client.count(FLOW) >= 1)
        (connection,) = served.listener.connections
        assert connection._reads
        # It may be more than the buffers of the system take while the server does not read: sending waits then.
        requests = [request(number, "statistics", {"x": bytes(90_000)}) for number in range(80)]
        sending = threading.Thread(target=lambda: [client.send(*client.deliver(0, 0, each)) for each in requests])
        sending.start()
        eventually(lambda: not connection._reads)
        kept = connection._protocol._budget.requests
        assert 1 << 20 < kept < 2 << 20
        assert connection._protocol._budget.requests == kept
        may_answer.set()
        sending.join(WAIT)
        client.until(lambda: client.count(TRANSFER) == 80)
        eventually(lambda: connection._reads)
