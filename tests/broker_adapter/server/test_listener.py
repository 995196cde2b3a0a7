"""The server's sockets, with well-behaved and hostile clients."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import attrs
import pytest

from broker_adapter.amqp.events import RemoteClose, Terminus
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException
from broker_adapter.mechanisms import MIN_ITERATIONS
from broker_adapter.server import open_files
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.client_connection import ClientConnection
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    ConnectionFactory,
    JMSSecurityException,
    MessageFormatException,
    ResourceAllocationException,
    StoreException,
)
from tests.broker_adapter.server.served import (
    WAIT,
    Served,
    change,
    heard,
    open_raw,
    opened,
    read_all,
    server_context,
    stalled,
)
from tests.contracts.transports import eventually

pytestmark = pytest.mark.usefixtures("often")


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
def test_a_client_that_speaks_no_amqp_is_answered_and_closed(serve: Callable[..., Served], data: bytes) -> None:
    served = serve()
    with served.socket() as sock:
        sock.sendall(data)
        assert read_all(sock).startswith(b"AMQP\x03\x01\x00\x00")
    assert served.works()


@pytest.mark.parametrize("data", [b"", b"AMQP", b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"])
def test_a_client_that_stops_half_way_is_dropped(
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
    found.add("alice", "secret", MIN_ITERATIONS)  # for many logins
    return found


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize(
    ("username", "password"), [("alice", "guess"), ("alice", ""), ("mallory", "secret"), (None, None)]
)
def test_a_user_that_may_not_log_in_is_refused_and_others_are_served(
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


def test_a_client_that_skips_the_login_is_refused(serve: Callable[..., Served], users: UsersFile) -> None:
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


def test_connections_above_the_limit_that_are_still_to_be_refused_are_limited_too(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "TOLD_AT_ONCE", 2)
    served = serve(max_connections=1, max_login_connections_per_address=10)
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(open_raw(served)[0])
        silent = [stack.enter_context(served.socket()) for _ in range(2)]
        for each in silent:
            each.sendall(b"AM")
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


def test_stopping_does_not_wait_for_clients_that_do_not_read(serve: Callable[..., Served]) -> None:
    served = serve(max_output_bytes=65536)
    sock, _, _ = stalled(served, 300)
    with sock, served.socket() as half, served.socket() as silent:
        half.sendall(b"AMQP")
        eventually(lambda: (len(served.listener.connections), len(served.listener._admission)) == (2, 3))
        started = time.monotonic()
        served.listener.stop(0.3)
        assert time.monotonic() - started < WAIT / 2
        assert read_all(silent) == b""


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_made_while_the_server_stops_is_dropped(
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
def test_a_connection_within_the_tls_handshake_is_dropped_when_the_server_stops(
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
                assert broker._stores.disk is not None
                broker._stores.disk._env.close()
                with pytest.raises(JMSException):
                    producer.send("x")
            assert arrived.wait(WAIT)
        assert isinstance(broker.failed, StoreException)
    finally:
        listener.stop()
        broker.close()
    assert served.works()


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


def test_servers_are_announced_from_the_own_machine_only(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    with ConnectionFactory(served.url).create_connection() as connection:
        assert connection.request("announce_servers", {"servers": ["h:1"]}) == 1
        monkeypatch.setattr(ClientConnection, "is_local", False)
        with pytest.raises(JMSSecurityException, match="from the server's own machine only"):
            connection.request("announce_servers", {"servers": ["elsewhere:1"]})
    assert [each.host for each in served.listener.announced.servers] == ["h"]


def test_an_error_in_what_is_left_of_a_connection_blocks_no_other_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    faulty, sound = Mock(spec=EngineCalls), Mock(spec=EngineCalls)
    faulty.run_callbacks.side_effect = RuntimeError("a fault")
    listener.wake(faulty)
    listener.wake(sound)
    listener._run_callbacks()
    sound.run_callbacks.assert_called_once_with()
    assert "a fault" in caplog.text
