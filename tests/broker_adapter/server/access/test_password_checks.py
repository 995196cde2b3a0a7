"""Passwords at the server's sockets: what checking them costs others, and what wrong ones cost."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scramp import ScramMechanism

from broker_adapter.amqp.messages.values import Described, Reader, Symbol, ULong, encode
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import (
    AUTH,
    OK,
    PLAIN,
    SASL_HEADER,
    SCRAM_SHA_256,
    ServerLogin,
)
from broker_adapter.engine.broker import Broker
from broker_adapter.mechanisms import MAX_ITERATIONS
from broker_adapter.server import listener
from broker_adapter.server.access import password_checks
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import ConnectionFactory, JMSSecurityException
from tests.contracts.transports import eventually

WAIT = 120.0
_OUTCOME = 0x44


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener reads the clock so often that no test waits for it."""
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.05)


def line(name: str, password: str, iterations: int) -> str:
    """Of a users file."""
    salt, stored, server, _ = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, iterations)
    texts = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"{name} SCRAM-SHA-256${iterations}:{texts[0]}${texts[1]}:{texts[2]}\n"


class Server:
    """A server on which alice and bob may log in."""

    def __init__(self, users: UsersFile, **settings: Any) -> None:
        self.broker = Broker(EngineSettings())
        self.listener = Listener(
            self.broker, "127.0.0.1", 0, ServerSettings(**settings), lambda: ServerLogin(users, plain=True)
        )
        self.port = self.listener.start()[1]

    def login(self, user: str, password: str, mechanism: str = SCRAM_SHA_256) -> None:
        """Log in and out again; raises JMSSecurityException."""
        url = (
            f"amqp://127.0.0.1:{self.port}?sasl_mechanisms={mechanism}&allow_plain_without_tls=true&failover=nofailover"
            f"&connect_timeout_seconds={WAIT}"
        )
        ConnectionFactory(url, user, password).create_connection().close()

    def claim(self, user: str, password: str) -> socket.socket:
        """Send a password by PLAIN, and do not wait for the outcome."""
        claiming = socket.create_connection(("127.0.0.1", self.port), WAIT)
        init = encode(Described(ULong(0x41), [Symbol(PLAIN), f"\0{user}\0{password}".encode()]))
        claiming.sendall(SASL_HEADER + (len(init) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + init)
        return claiming

    def close(self) -> None:
        self.listener.stop()
        self.broker.close()


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[Server] = []

    def make(alices_iterations: int = 4096, **settings: Any) -> Server:
        path = tmp_path / "users"
        path.write_text(line("alice", "secret", alices_iterations) + line("bob", "secret", 4096))
        made.append(Server(UsersFile(path), **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _outcomes(data: bytes) -> list[int]:
    """The codes of the outcomes in what a server has said."""
    found = []
    position = len(SASL_HEADER)
    while len(data) >= position + 8:
        size = int.from_bytes(data[position : position + 4], "big")
        if len(data) < position + size:
            break
        performative = Reader(data, position + 8, position + size).value()
        if performative.descriptor == _OUTCOME:
            found.append(int(performative.value[0]))
        position += size
    return found


def outcome(claiming: socket.socket) -> int | None:
    """The code of the outcome, once it comes; None where the server closes without one."""
    data = b""
    while not _outcomes(data):
        try:
            more = claiming.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            return None
        data += more
    return _outcomes(data)[0]


def test_hashes_of_one_user_hold_up_no_other(serve: Serve) -> None:
    server = serve(MAX_ITERATIONS, handshake_timeout_seconds=120.0)
    wrong = [server.claim("alice", f"guess {number}") for number in range(13)]
    server.login("bob", "secret", PLAIN)
    server.login("bob", "secret", SCRAM_SHA_256)
    last = wrong[-1].recv(65536)
    assert _outcomes(last) == [], "its mechanisms, but no outcome yet"
    for each in wrong:
        each.close()
    eventually(lambda: not server.listener.connections)
    server.login("bob", "secret", PLAIN)


def test_passwords_are_judged_in_the_order_in_which_they_came(serve: Serve) -> None:
    server = serve()
    claims = [server.claim("alice", password) for password in ("guess", "secret", "guess")]
    assert [outcome(each) for each in claims] == [AUTH, OK, AUTH]
    for each in claims:
        each.close()


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_after_three_wrong_passwords_the_next_one_waits(serve: Serve, mechanism: str) -> None:
    server = serve(failed_login_delay_seconds=1.0)
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(JMSSecurityException, match="refused"):
            server.login("alice", "guess", mechanism)
    server.login("alice", "secret", mechanism)
    assert time.monotonic() - began >= 1.0
    for _ in range(3):  # a right one ends that
        with pytest.raises(JMSSecurityException):
            server.login("alice", "guess", mechanism)


def test_a_password_that_waits_too_long_is_dropped_and_others_are_not(serve: Serve) -> None:
    server = serve(
        failed_login_delay_seconds=1000.0, max_failed_login_delay_seconds=1000.0, handshake_timeout_seconds=6.0
    )
    for _ in range(3):
        claiming = server.claim("alice", "guess")
        assert outcome(claiming) == AUTH
        claiming.close()
    late = server.claim("alice", "secret")
    server.login("bob", "secret", PLAIN)
    server.login("bob", "secret", SCRAM_SHA_256)
    assert outcome(late) is None
    late.close()


def test_a_client_may_send_its_first_frames_of_amqp_ahead_of_the_outcome(serve: Serve) -> None:
    server = serve(MAX_ITERATIONS, handshake_timeout_seconds=120.0)
    peer = Peer(PeerLimits())
    peer.open("eager")
    with server.claim("alice", "secret") as eager:
        eager.sendall(peer.pending_output())
        assert outcome(eager) == OK
        eventually(lambda: any(each._protocol.is_open for each in server.listener.connections))


def test_a_client_that_leaves_before_its_password_is_checked_costs_no_hash(serve: Serve) -> None:
    server = serve(MAX_ITERATIONS, handshake_timeout_seconds=120.0)
    for number in range(50):
        server.claim("alice", f"guess {number}").close()
    eventually(lambda: not server.listener.connections)
    server.login("alice", "secret", PLAIN)


def test_the_password_of_a_client_that_has_gone_by_its_turn_is_not_computed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()
    compute = password_checks._computed

    def gated(work: Any) -> Any:
        computed.append(work)
        begun.set()
        assert go_on.wait(WAIT)
        return compute(work)

    monkeypatch.setattr(password_checks, "_computed", gated)
    server = serve(MAX_ITERATIONS, handshake_timeout_seconds=WAIT)
    first = server.claim("alice", "guess")
    assert begun.wait(WAIT)
    gone = server.claim("bob", "guess")
    eventually(lambda: len(server.listener.connections) == 2)
    gone.close()
    eventually(lambda: len(server.listener.connections) == 1)
    go_on.set()
    assert outcome(first) == AUTH
    first.close()
    server.login("bob", "secret", PLAIN)
    assert len(computed) == 2, "that of alice, and that of bob who stayed"
