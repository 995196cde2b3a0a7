"""A program that listens where a broker was, or where one sends its clients, does not get their passwords."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.amqp.messages.values import Described, Symbols, UByte, ULong, encode
from broker_adapter.amqp.sasl import PLAIN, SASL_HEADER, ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.announcements import Announcement
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import Server
from sdk import Connection, ConnectionFactory, ConnectionLostException, JMSSecurityException
from tests.broker_adapter.server.served import server_context
from tests.contracts.transports import eventually

WAIT = 120.0
PASSWORD = "correct-horse"
FAST = "reconnect_delay_seconds=0.01&max_reconnect_delay_seconds=0.05"


def frame(code: int, *fields: object) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


class Attacker:
    """Listens on a port, offers PLAIN, accepts every client that sends anything more, and records all of it."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.heard: list[bytes] = []
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # it was closed
                return
            connection.settimeout(WAIT)
            self.heard.append(self._listen_to(connection))

    def _listen_to(self, plain: socket.socket) -> bytes:
        """What a client sends until it closes the connection."""
        heard = b""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(plain)
            talking = plain
            if self._context is not None:
                talking = stack.enter_context(self._context.wrap_socket(plain, server_side=True))
            heard = talking.recv(8)
            talking.sendall(SASL_HEADER + frame(0x40, Symbols([PLAIN])))
            while more := talking.recv(65536):
                heard += more
                talking.sendall(frame(0x44, UByte(0)))
        return heard

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(WAIT)


class Place:
    """A server on which alice may log in, by SCRAM or by PLAIN."""

    def __init__(
        self, directory: Path, port: int = 0, tls: ssl.SSLContext | None = None, *, scram: bool = True
    ) -> None:
        users = UsersFile.open_or_make(directory / "users")
        users.add("alice", PASSWORD)

        def login() -> ServerLogin:
            made = ServerLogin(users, plain=True)
            if not scram:
                made.mechanisms = (PLAIN,)
            return made

        self.broker = Broker(EngineSettings())
        self.listener = Listener(self.broker, "127.0.0.1", port, ServerSettings(), login, tls)
        self.port = self.listener.start()[1]

    def announce(self, *servers: Server) -> None:
        self.listener.announce_soon(Announcement(servers))

    def close(self) -> None:
        self.listener.stop()
        self.broker.close()


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def works(connection: Connection) -> bool:
    return connection.statistics().clients > 0


def test_a_listener_in_place_of_the_server_gets_no_password(tmp_path: Path, closing: contextlib.ExitStack) -> None:
    place = Place(tmp_path)
    url = f"amqp://alice:{PASSWORD}@127.0.0.1:{place.port}?allow_plain_without_tls=true&{FAST}"
    connection = closing.enter_context(ConnectionFactory(url).create_connection())
    assert works(connection)
    place.close()
    attacker = Attacker(place.port)
    eventually(lambda: len(attacker.heard) >= 3)
    attacker.close()
    assert not any(PASSWORD.encode() in heard for heard in attacker.heard)
    again = Place(tmp_path, place.port)
    closing.callback(again.close)
    assert works(connection), "and the connection is restored when the server is back"


def test_a_listener_that_is_there_from_the_beginning_gets_none_either_unless_an_option_says_so(
    closing: contextlib.ExitStack,
) -> None:
    attacker = Attacker()
    closing.callback(attacker.close)
    url = f"amqp://alice:{PASSWORD}@localhost:{attacker.port}?failover=nofailover&connect_timeout_seconds=1"
    with pytest.raises(JMSSecurityException, match="this machine are trusted"):
        ConnectionFactory(url).create_connection()
    eventually(lambda: len(attacker.heard) == 1)
    assert attacker.heard == [SASL_HEADER]
    with pytest.raises(ConnectionLostException):
        ConnectionFactory(f"{url}&allow_plain_without_tls=true").create_connection()
    eventually(lambda: len(attacker.heard) == 2)
    assert PASSWORD.encode() in attacker.heard[1]


@pytest.mark.parametrize("scram", [True, False])
def test_a_server_that_is_announced_gets_the_password_only_where_the_url_names_its_host(
    tmp_path: Path, closing: contextlib.ExitStack, scram: bool
) -> None:
    """An attacker with a certificate that is valid for its own name, which a broker announces."""
    context = server_context(tmp_path)  # for 127.0.0.1
    place = Place(tmp_path, tls=context, scram=scram)
    other = tmp_path / "other"
    other.mkdir()
    attacker = Attacker(context=named_context(other, "localhost"))
    trusted = tmp_path / "trusted"
    trusted.write_bytes((tmp_path / "server.crt").read_bytes() + (other / "server.crt").read_bytes())
    url = (
        f"amqps://alice:{PASSWORD}@127.0.0.1:{place.port}?tls_ca_file={trusted}&{FAST}"
        "&failover=failover_exchange&failover_server_list=replace"
    )
    connection = closing.enter_context(ConnectionFactory(url).create_connection())
    rules = connection._transport._rules
    place.announce(Server("localhost", attacker.port))
    eventually(lambda: len(rules.addresses) == 2)
    place.close()
    eventually(lambda: len(attacker.heard) >= 2)
    assert set(attacker.heard) == {SASL_HEADER}
    attacker.close()
    again = Place(tmp_path, place.port, context)
    closing.callback(again.close)
    assert works(connection)


@pytest.mark.parametrize("option", ["", "trusted_hosts=localhost"])
def test_a_trusted_host_that_is_announced_is_logged_in_to(
    tmp_path: Path, closing: contextlib.ExitStack, option: str
) -> None:
    """By SCRAM any host may be logged in to, by PLAIN one that an option names."""
    context = server_context(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    first = Place(tmp_path, tls=context, scram=not option)
    second = Place(tmp_path, tls=named_context(other, "localhost"), scram=not option)
    closing.callback(second.close)
    trusted = tmp_path / "trusted"
    trusted.write_bytes((tmp_path / "server.crt").read_bytes() + (other / "server.crt").read_bytes())
    url = f"amqps://alice:{PASSWORD}@127.0.0.1:{first.port}?tls_ca_file={trusted}&{FAST}&failover=failover_exchange"
    connection = closing.enter_context(ConnectionFactory(f"{url}&{option}".rstrip("&")).create_connection())
    first.announce(Server("localhost", second.port))
    eventually(lambda: len(connection._transport._rules.addresses) == 2)
    first.close()
    assert works(connection)
    assert connection._transport._rules.address.host == "localhost"


def named_context(directory: Path, host: str) -> ssl.SSLContext:
    """For a server whose certificate names this host."""
    return server_context(directory, f"DNS:{host}")
