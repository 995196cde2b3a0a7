"""From a URL to an open connection, with the login that is on its way: real sockets, users and certificates."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import SASL_HEADER, ServerLogin
from broker_adapter.connect import transport_for
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import ConnectionLostException, InvalidURLException, JMSException, JMSSecurityException
from broker_adapter.in_process import InProcessTransport
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import Credentials, Failed, Interrupted, Peer

WAIT = 120.0


class Servers:
    """Listeners of one engine: ``ports`` by what they want."""

    def __init__(self, path: Path) -> None:
        certificate = path / "server"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
        self.trusted = f"{certificate}.crt"
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{certificate}.key", "-out", self.trusted]
        subprocess.run([*command.split(), *names], check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.trusted, f"{certificate}.key")
        self.users = UsersFile.open_or_make(path / "users")
        self.users.add("alice", "s3cret")
        self.broker = Broker(EngineSettings())
        self._listeners = []
        self.ports: dict[str, int] = {}
        for name, users, plain, tls in (
            ("open", None, True, None),
            ("users", self.users, True, None),
            ("scram", self.users, False, None),
            ("tls", self.users, True, context),
        ):

            def login(users: UsersFile | None = users, plain: bool = plain) -> ServerLogin:
                return ServerLogin(users, plain=plain)

            listener = Listener(self.broker, "127.0.0.1", 0, ServerSettings(), login, tls)
            self._listeners.append(listener)
            self.ports[name] = listener.start()[1]

    def url(self, name: str, user: str = "", options: str = "") -> str:
        scheme = "amqps" if name == "tls" else "amqp"
        trusted = f"tls_ca_file={self.trusted}" if name == "tls" else ""
        query = "&".join(each for each in (trusted, options, "allow_plain_without_tls=true") if each)
        return f"{scheme}://{user}127.0.0.1:{self.ports[name]}?{query}".rstrip("?")

    def close(self) -> None:
        for listener in self._listeners:
            listener.stop()
        self.broker.close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All of them."""
    found = Servers(tmp_path_factory.mktemp("servers"))
    yield found
    found.close()


def connect(url: str, credentials: Credentials | None = None, timeout: float = WAIT) -> Peer:
    """Open, close; what is known of the other side."""
    transport, _ = transport_for(url)
    try:
        peer = transport.open(credentials or Credentials(), lambda _event: None, timeout)
        assert transport.request("statistics", {}, WAIT)["clients"] >= 1
        return peer
    finally:
        transport.close(WAIT)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("open", ""),
        ("users", ""),
        ("users", "sasl_mechanisms=PLAIN"),
        ("users", "sasl_mechanisms=SCRAM-SHA-256"),
        ("scram", ""),
        ("tls", ""),
        ("tls", "sasl_mechanisms=plain"),
    ],
)
def test_a_user_is_let_in(servers: Servers, name: str, options: str) -> None:
    assert connect(servers.url(name, "alice:s3cret@", options)).is_holdfast
    assert connect(servers.url(name, "", options), Credentials("alice", "s3cret")).is_holdfast


def test_any_user_is_accepted_where_there_are_no_users(servers: Servers) -> None:
    assert connect(servers.url("open")).is_holdfast
    assert connect(servers.url("open", "anybody:at-all@")).is_holdfast
    assert connect(servers.url("open", "anybody:at-all@", "sasl_mechanisms=ANONYMOUS")).is_holdfast


@pytest.mark.parametrize(
    ("name", "user", "options", "reason"),
    [
        ("users", "", "", "give a user name and a password"),
        ("users", "alice:wrong@", "", r"refused the login of user 'alice' \(SCRAM-SHA-256\)"),
        ("users", "bob:s3cret@", "", r"refused the login of user 'bob' \(SCRAM-SHA-256\)"),
        ("users", "alice:wrong@", "sasl_mechanisms=PLAIN", r"refused the login of user 'alice' \(PLAIN\)"),
        ("users", "alice:s3cret@", "sasl_mechanisms=ANONYMOUS", "can use ANONYMOUS here"),
        ("users", "alice@", "", "a user name 'alice' without a password"),
        ("scram", "alice:s3cret@", "sasl_mechanisms=PLAIN", "can use PLAIN here; switch one of these on"),
        ("open", "alice:x@", "sasl_mechanisms=SCRAM-SHA-256", "offers the SASL mechanisms 'ANONYMOUS, PLAIN'"),
        ("tls", "alice:wrong@", "", "refused the login of user 'alice'"),
    ],
)
def test_a_refused_login_says_why(servers: Servers, name: str, user: str, options: str, reason: str) -> None:
    with pytest.raises(JMSSecurityException, match=reason):
        connect(servers.url(name, user, options))
    connect(servers.url(name, "" if name == "open" else "alice:s3cret@"))  # the server goes on


def test_a_user_that_is_added_may_log_in_at_once_and_one_that_is_removed_may_not(servers: Servers) -> None:
    UsersFile(servers.users.path).add("carol", "x")
    connect(servers.url("users", "carol:x@"))
    UsersFile(servers.users.path).remove("carol")
    with pytest.raises(JMSSecurityException):
        connect(servers.url("users", "carol:x@"))


def test_speaking_plainly_to_a_port_with_tls_is_told(servers: Servers) -> None:
    url = servers.url("tls", "alice:s3cret@").replace("amqps:", "amqp:").partition("?")[0]
    with pytest.raises(ConnectionLostException, match="amqps://"):
        connect(url)


def test_tls_to_a_port_without_is_told(servers: Servers) -> None:
    url = servers.url("users", "alice:s3cret@").replace("amqp:", "amqps:")
    with pytest.raises(ConnectionLostException, match=r"TLS with .* failed"):
        connect(url)


class FixedAnswer:
    """A port that answers every client with the same bytes, and then hangs up or waits."""

    def __init__(self, says: bytes, *, hangs_up: bool) -> None:
        self._says = says
        self._hangs_up = hangs_up
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        connection.settimeout(WAIT)
        connection.recv(100)
        connection.sendall(self._says)
        if self._hangs_up:
            connection.close()
        else:
            self._connections.append(connection)

    def close(self) -> None:
        self._thread.join(WAIT)
        for each in (self._socket, *self._connections):
            each.close()


@pytest.mark.parametrize(
    ("says", "hangs_up", "kind", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, ConnectionLostException, "that is HTTP"),
        (b"AMQP\x00\x00\x09\x01", True, ConnectionLostException, "that is AMQP 0-9-1"),
        (b"AMQP\x00\x01\x00\x00", True, JMSSecurityException, "takes no login"),
        (b"SSH-2.0-x\r\n", False, ConnectionLostException, r"it answered b'SSH-2\.0-'"),
        (b"", True, ConnectionLostException, "closed the connection during the login; if it wants TLS"),
        (SASL_HEADER, True, ConnectionLostException, "closed the connection during the login"),
        (
            SASL_HEADER + b"\x00" * 8,
            False,
            ConnectionLostException,
            "does not answer in AMQP 1.0: a frame of the login",
        ),
        (SASL_HEADER[:5], False, JMSException, r"within 0\.3 s"),
        (SASL_HEADER, False, JMSException, r"within 0\.3 s"),
    ],
)
def test_a_port_that_does_not_log_in_any_user_is_reported_in_time(
    says: bytes, hangs_up: bool, kind: type[JMSException], reason: str
) -> None:
    answering = FixedAnswer(says, hangs_up=hangs_up)
    seconds = 0.3 if "within" in reason else WAIT
    with pytest.raises(kind, match=reason):
        connect(f"amqp://al:s3cret@127.0.0.1:{answering.port}?connect_timeout_seconds={seconds}")
    answering.close()


def test_a_port_without_a_listener_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    with pytest.raises(ConnectionLostException, match=rf"no connection to 127\.0\.0\.1:{port}"):
        connect(f"amqp://127.0.0.1:{port}")


def test_an_option_that_makes_no_sense_is_told_before_anything_is_sent() -> None:
    for url, kind, reason in (
        ("amqp://127.0.0.1:1?sasl_mechanisms=CRAM-MD5", JMSSecurityException, "unknown SASL mechanism 'CRAM-MD5'"),
        ("amqp://127.0.0.1:1?sasl_mechanism=PLAIN", InvalidURLException, "the options here are .*sasl_mechanisms"),
        ("amqp://al:s3@example:1?sasl_mechanisms=PLAIN", JMSSecurityException, "unencrypted to 'example'"),
    ):
        with pytest.raises(kind, match=reason):
            connect(url)


@pytest.mark.parametrize(
    ("module", "needed", "remedy"),
    [
        ("ssl", "the module 'ssl'", "; use a Python that was built with OpenSSL (embedded: URLs work without it)"),
        ("scramp", "the module 'scramp'", "; install it: pip install scramp (embedded: URLs work without it)"),
        (
            "broker_adapter.amqp.client.login",
            "the module 'broker_adapter'",
            "None in sys.modules (embedded: URLs work without it)",
        ),
    ],
)
def test_a_url_of_amqp_says_what_is_missing_and_how_to_get_it(
    module: str, needed: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no remedy is known for is told with the error of its import alone."""
    for name in ("broker_adapter.amqp.client.login", "broker_adapter.amqp.sasl"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # it is loaded again
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JMSException) as raised:
        transport_for("amqp://localhost")
    assert raised.value.reason.startswith(f"AMQP needs {needed}, which cannot be loaded here: ")
    assert raised.value.reason.endswith(remedy)
    assert isinstance(raised.value.__cause__, ImportError)


def test_a_url_of_a_directory_names_an_engine_in_the_process_and_has_the_options_of_the_client(tmp_path: Path) -> None:
    transport, settings = transport_for(f"embedded:{tmp_path}?prefetch_messages=7")
    assert isinstance(transport, InProcessTransport)
    assert settings.prefetch_messages == 7
    transport.open(Credentials(), lambda _event: None, WAIT)
    assert transport.request("statistics", {}, WAIT)["clients"] == 1
    transport.close(WAIT)
    assert (tmp_path / "data.mdb").exists()


@pytest.mark.parametrize(
    ("restores", "options", "event"),
    [(True, "", Interrupted), (False, "", Failed), (True, "?failover=nofailover", Failed)],
)
def test_a_lost_connection_is_restored_unless_the_caller_or_the_url_says_otherwise(
    restores: bool, options: str, event: type
) -> None:
    broker = Broker(EngineSettings())
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    transport, _ = transport_for(f"amqp://127.0.0.1:{listener.start()[1]}{options}", restores=restores)
    told: list[object] = []
    arrived = threading.Event()

    def tell(found: object) -> None:
        told.append(found)
        arrived.set()

    transport.open(Credentials(), tell, WAIT)
    listener.stop()
    assert arrived.wait(WAIT)
    assert isinstance(told[0], event)
    transport.close(WAIT)
    broker.close()
