"""Places at the server's sockets: clients that have not logged in, many at once, and a process without descriptors."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import IllegalStateException
from broker_adapter.server import listener, open_files
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import ConnectionFactory, ConnectionLostException
from tests.broker_adapter.server.served import server_context
from tests.contracts.transports import eventually

WAIT = 120.0
ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener reads the clock so often that no test waits for it."""
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.05)


class Server:
    """A server without users, over an engine in memory."""

    def __init__(self, tls: ssl.SSLContext | None = None, trusted: Path | None = None, **settings: Any) -> None:
        self._query = "failover=nofailover" + ("" if trusted is None else f"&tls_ca_file={trusted}")
        self._scheme = "amqp" if tls is None else "amqps"
        self.broker = Broker(EngineSettings())
        self.listener = Listener(
            self.broker, "127.0.0.1", 0, ServerSettings(**settings), lambda: ServerLogin(None, plain=True), tls
        )
        self.port = self.listener.start()[1]

    def silent(self, host: str = "127.0.0.1") -> socket.socket:
        """A client that connects from this address and sends nothing."""
        return socket.create_connection(("127.0.0.1", self.port), WAIT, (host, 0))

    def stalled(self, host: str = "127.0.0.1") -> socket.socket:
        """A client that begins a login, or a TLS handshake, and does not go on."""
        sock = self.silent(host)
        sock.sendall(b"AM" if self._scheme == "amqp" else b"\x16\x03")
        return sock

    def works(self, host: str = "127.0.0.1") -> bool:
        """Whether a well-behaved client is served."""
        url = f"{self._scheme}://{host}:{self.port}?{self._query}"
        with ConnectionFactory(url).create_connection() as connection:
            return bool(connection.statistics().clients)

    def be_patient(self) -> None:
        """Give logins all the time that a busy machine may need, from now on."""
        self.listener.settings = attrs.evolve(self.listener.settings, handshake_timeout_seconds=WAIT)

    @property
    def places(self) -> int:
        """How many are taken."""
        return len(self.listener._admission)

    def close(self) -> None:
        self.listener.stop()
        self.broker.close()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    made: list[Server] = []

    def make(*arguments: Any, **settings: Any) -> Server:
        made.append(Server(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def is_closed(sock: socket.socket) -> bool:
    """Whether the server closes it, without a word."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_handshakes_that_end_early_leave_nothing_for_the_garbage_collector(
    serve: Serve, sockets: contextlib.ExitStack, tmp_path: Path
) -> None:
    server = serve(server_context(tmp_path), max_login_connections=5, handshake_timeout_seconds=1000)
    gc.collect()
    gc.disable()
    try:
        leaving = [server.silent() for _ in range(20)]
        for number, each in enumerate(leaving):
            if number % 2:
                each.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
            each.close()
        eventually(lambda: server.places == 0)
        for _ in range(20):
            sockets.enter_context(server.silent())
        eventually(lambda: server.places == 20)
        thread = server.listener._thread
        assert thread is not None
        for connection in list(server.listener._admission.pending()):
            thread.loop.call_soon_threadsafe(connection.drop)
        eventually(lambda: server.places == 0)
        eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, SSLProtocol)])
    finally:
        gc.enable()


def test_silent_connections_before_the_tls_handshake_are_counted(
    serve: Serve, sockets: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "TOLD_AT_ONCE", 5)
    server = serve(
        *(server_context(tmp_path), tmp_path / "server.crt"),
        max_connections=10,
        max_login_connections=100,
        max_login_connections_per_address=100,
        handshake_timeout_seconds=1000,
    )
    silent = [sockets.enter_context(server.silent()) for _ in range(15)]
    eventually(lambda: server.places == 15)
    silent += [sockets.enter_context(server.silent()) for _ in range(20)]
    assert all(is_closed(each) for each in silent[:20]), "those that came first"
    assert server.places == 15
    assert server.works(), "in the place of a silent one"
    for each in silent:
        each.close()
    eventually(lambda: server.places == 0)
    assert server.works()


def test_few_handshakes_are_under_way_at_once(serve: Serve, sockets: contextlib.ExitStack, tmp_path: Path) -> None:
    server = serve(server_context(tmp_path), max_login_connections=4, handshake_timeout_seconds=1000)
    for number in range(200):
        sockets.enter_context(server.stalled(f"127.0.0.{2 + number % 20}"))
    eventually(lambda: server.places == 200)
    eventually(lambda: repr(server.listener._admission).startswith("<LoginAdmission 200 of 10100: logging in 4, "))


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_speaks_is_served_beside_any_number_of_silent_connections_of_its_address(
    serve: Serve, sockets: contextlib.ExitStack, tmp_path: Path, tls: bool
) -> None:
    server = serve(
        *((server_context(tmp_path), tmp_path / "server.crt") if tls else ()),
        max_login_connections=2,
        max_login_connections_per_address=50,
        handshake_timeout_seconds=1000,
    )
    silent = [sockets.enter_context(server.silent()) for _ in range(50)]
    eventually(lambda: server.places == 50)
    for _ in range(3):
        assert server.works()
    silent += [sockets.enter_context(server.silent()) for _ in range(50)]
    assert all(is_closed(each) for each in silent[:50])
    assert server.works()
    for each in silent[50:]:
        each.setblocking(False)
    left = 0
    for each in silent[50:]:
        with contextlib.suppress(BlockingIOError):
            each.recv(1)
            continue
        left += 1
    assert left >= 46, "each newcomer has taken the place of one silent connection at most"


def test_a_silent_connection_that_ends_gives_its_place_back_at_once(serve: Serve) -> None:
    server = serve(handshake_timeout_seconds=1000)
    leaving = [server.silent() for _ in range(20)]
    eventually(lambda: server.places == 20)
    for each in leaving:
        each.close()
    eventually(lambda: server.places == 0)


def test_one_address_does_not_take_all_places(serve: Serve, sockets: contextlib.ExitStack) -> None:
    server = serve(
        max_connections=20, max_login_connections=4, max_login_connections_per_address=7, handshake_timeout_seconds=1000
    )
    greedy = [sockets.enter_context(server.silent("127.0.0.2")) for _ in range(50)]
    assert all(is_closed(each) for each in greedy[:-7])
    assert server.places == 7
    assert server.works(), "a client from another address"


def test_one_address_has_half_of_the_places_unless_an_option_says_otherwise(
    serve: Serve, sockets: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "TOLD_AT_ONCE", 10)
    server = serve(max_connections=30, handshake_timeout_seconds=1000)
    for number in range(60):
        sockets.enter_context(server.silent("127.0.0.1" if number % 2 else "127.0.0.2"))
    eventually(lambda: server.places == 40)
    assert not any(connection._is_open for connection in server.listener.connections)


def test_open_connections_do_not_count_among_the_pending_ones_of_their_address(
    serve: Serve, sockets: contextlib.ExitStack
) -> None:
    server = serve(max_login_connections_per_address=2, handshake_timeout_seconds=1000)
    opened = [ConnectionFactory(f"amqp://127.0.0.1:{server.port}").create_connection() for _ in range(10)]
    for _ in range(2):
        sockets.enter_context(server.stalled())
    eventually(lambda: server.places == 12)
    eventually(lambda: "logging in 2" in repr(server.listener._admission))
    assert is_closed(sockets.enter_context(server.silent()))
    for each in opened:
        each.close()


def test_a_stalled_login_makes_room_for_a_queued_connection(
    serve: Serve, sockets: contextlib.ExitStack, tmp_path: Path
) -> None:
    server = serve(
        server_context(tmp_path), tmp_path / "server.crt", max_login_connections=2, handshake_timeout_seconds=1000
    )
    stalled = sockets.enter_context(server.stalled())
    eventually(lambda: "logging in 1" in repr(server.listener._admission))
    assert server.works(), "though its address has one place for logins only"
    assert is_closed(stalled)


def test_a_connection_that_is_queued_for_too_long_is_dropped(serve: Serve, sockets: contextlib.ExitStack) -> None:
    server = serve(max_login_connections=1, handshake_timeout_seconds=0.3)
    waiting = [sockets.enter_context(server.silent()) for _ in range(20)]
    assert all(is_closed(each) for each in waiting)
    eventually(lambda: server.places == 0)
    server.be_patient()
    assert server.works()


def test_a_queued_connection_that_the_client_closes_gives_its_place_back_in_time(
    serve: Serve, sockets: contextlib.ExitStack
) -> None:
    server = serve(max_login_connections=1, handshake_timeout_seconds=0.5)
    for _ in range(20):
        server.silent().close()
    eventually(lambda: server.places == 0)
    server.be_patient()
    assert server.works()


def test_unauthenticated_clients_cause_a_few_log_records(
    serve: Serve, sockets: contextlib.ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(max_login_connections_per_address=1)
    for _ in range(100):
        with server.silent() as speaking:
            speaking.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                while speaking.recv(1000):
                    pass
    for _ in range(100):
        sockets.enter_context(server.silent())
    eventually(lambda: server.places <= 1)
    server.close()
    assert len(caplog.records) < 60


def test_without_descriptors_the_server_pauses_logs_it_once_and_goes_on(
    serve: Serve, sockets: contextlib.ExitStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_ACCEPT_PAUSE_SECONDS", 0.05)
    server = serve()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ConnectionFactory(f"amqp://127.0.0.1:{server.port}?failover=nofailover").create_connection() as connection:
        try:
            with caplog.at_level(logging.WARNING):
                # Descriptors of clients and server are of one process here, so the client's is had before.
                late = sockets.enter_context(socket.socket())
                resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno() + 1, hard))
                late.connect(("127.0.0.1", server.port))
                eventually(lambda: "accepting no connections for a moment" in caplog.text)
                assert connection.statistics().clients == 1, "an open connection is served"
                for _ in range(20):
                    assert connection.statistics().clients == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        eventually(lambda: server.places == 2)
    assert caplog.text.count("accepting no connections") == 1
    assert server.works()


def test_connections_are_limited_by_the_limit_of_open_files(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1000, hard), hard))
    try:
        with caplog.at_level(logging.INFO):
            left = min(1000, hard) - open_files.open_now()  # earlier tests of this process may have left some open
            server = serve()
        assert left - 300 < server.listener.settings.max_connections < left
        assert server.listener.settings.max_connections + 20 < server.listener._admission.places < 1000
        assert "connections are the limit, instead of 10000" in caplog.text
        assert server.works()
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files.open_now() + 20, hard))
        with pytest.raises(IllegalStateException, match="ulimit -n"):
            serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("limit", ["ulimit -S -n 200", "ulimit -n 200"])
def test_a_server_with_few_descriptors_serves_and_keeps_its_log_short(
    tmp_path: Path, sockets: contextlib.ExitStack, limit: str
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [
                *("bash", "-c", f'{limit} && exec "$@"', "serve", sys.executable, "-m", "broker_adapter.server.cli"),
                *("serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"),
                *("--option", "handshake_timeout_seconds=1000"),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline().split(":")[2].split()[0])
        process.send_signal(signal.SIGSTOP)
        for number in range(400):  # that connect at once and send nothing, from five addresses
            silent = socket.create_connection(("127.0.0.1", port), WAIT, (f"127.0.0.{2 + number % 5}", 0))
            sockets.enter_context(silent)
        process.send_signal(signal.SIGCONT)

        def is_served() -> bool:
            try:
                with ConnectionFactory(f"amqp://127.0.0.1:{port}?failover=nofailover").create_connection() as found:
                    return bool(found.statistics().clients)
            except ConnectionLostException:
                return False

        eventually(is_served)
    finally:
        process.terminate()
        process.wait(WAIT)
        process.stdout.close()
    said = log.read_text()
    assert len(said) < 10_000
    assert "accepting no connections" not in said, "each that came had its place at once"
    if "-S" in limit:
        assert "files open now, instead of 200" in said
    else:
        assert re.search(r"connections are the limit, instead of 10000 .* may have 200 files", said)
