"""SASL EXTERNAL: clients are the users that their certificates name, over mutual TLS."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from broker_adapter.amqp.sasl import EXTERNAL, SASL_HEADER, ClientLogin, ServerLogin
from broker_adapter.errors import ConnectionLostException, JMSSecurityException
from broker_adapter.server.access.users import UsersFile
from sdk import ConnectionFactory
from tests.server_process import ServerProcess


def openssl(command: str, *arguments: str) -> None:
    subprocess.run(["openssl", *command.split(), *arguments], check=True, capture_output=True)


@attrs.frozen
class Authority:
    """Who signs certificates."""

    place: Path

    def make(self, name: str, *extensions: str) -> Path:
        """A certificate and its key, signed: ``NAME.crt`` and ``NAME.key``."""
        path = self.place / name
        openssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes", *self._request(path, name))
        config = Path(f"{path}.ext")
        config.write_text("\n".join(extensions) + "\n")
        openssl(
            "x509 -req -days 2 -set_serial 2",
            *("-in", f"{path}.csr", "-out", f"{path}.crt", "-extfile", str(config)),
            *("-CA", str(self.place / "ca.crt"), "-CAkey", str(self.place / "ca.key")),
        )
        return path

    @staticmethod
    def _request(path: Path, name: str) -> list[str]:
        return ["-subj", f"/O=test/CN={name}", "-keyout", f"{path}.key", "-out", f"{path}.csr"]


def authority(place: Path) -> Authority:
    place.mkdir()
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca",
        *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"),
        *("-keyout", str(place / "ca.key"), "-out", str(place / "ca.crt")),
    )
    return Authority(place)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def serve(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers with TLS that ask clients for certificates of ours."""
    server = ca.make("server", "subjectAltName=IP:127.0.0.1")
    started: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        process = ServerProcess(
            tmp_path_factory.mktemp("data") / "data",
            *("--tls-certificate", f"{server}.crt", "--tls-key", f"{server}.key"),
            *("--tls-client-ca", str(ca.place / "ca.crt"), *arguments),
        )
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def factory(ca: Authority, server: ServerProcess, client: Path | None, *options: str) -> ConnectionFactory:
    parts = [f"tls_ca_file={ca.place / 'ca.crt'}", *options]
    if client is not None:
        parts += [f"tls_certificate_file={client}.crt", f"tls_key_file={client}.key"]
    return ConnectionFactory(f"amqps://127.0.0.1:{server.port}?{'&'.join(parts)}")


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users"
    UsersFile.open_or_make(path).add("ada", "secret")
    return path


def test_a_client_is_the_user_that_its_certificate_names(
    ca: Authority, serve: Callable[..., ServerProcess], users: Path
) -> None:
    server = serve("--users", str(users))
    with factory(ca, server, ca.make("ada")).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")


def test_a_certificate_of_an_unknown_user_is_refused(
    ca: Authority, serve: Callable[..., ServerProcess], users: Path
) -> None:
    server = serve("--users", str(users))
    with pytest.raises(JMSSecurityException, match="the user that the client's certificate names"):
        factory(ca, server, ca.make("eve")).create_connection()


def test_a_client_without_a_certificate_logs_in_with_a_password(
    ca: Authority, serve: Callable[..., ServerProcess], users: Path
) -> None:
    server = serve("--users", str(users))
    factory(ca, server, None).create_connection("ada", "secret").close()
    with pytest.raises(JMSSecurityException):
        factory(ca, server, None).create_connection()


def test_a_certificate_of_another_authority_is_refused(
    ca: Authority, serve: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = serve()
    foreign = authority(tmp_path / "other").make("ada")
    with pytest.raises(ConnectionLostException):
        factory(ca, server, foreign).create_connection()
    with factory(ca, server, ca.make("anybody")).create_connection():
        pass  # without a users file whoever has a certificate may come


def test_asking_for_certificates_without_tls_is_a_mistake() -> None:
    command = ["holdfast", "serve", "--data", "unused", "--tls-client-ca", "ca.crt"]
    program = "import sys; from broker_adapter.server.cli import main; sys.argv = sys.argv[1:]; sys.exit(main())"
    finished = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert finished.returncode != 0
    assert "needs --tls-certificate" in finished.stderr


# The exchange by itself.


class Ada:
    """Users, of which there is one."""

    def verifier(self, username: str) -> None:
        return None

    def check(self, username: str, password: str) -> bool:
        return False

    def has(self, username: str) -> bool:
        return username == "ada"


def exchange(server: ServerLogin, client: ClientLogin) -> None:
    for _ in range(6):
        server.receive(client.pending_output())
        client.receive(server.pending_output())


def test_external_is_offered_first_and_only_with_a_certificate() -> None:
    with_certificate, without = ServerLogin(Ada(), plain=True), ServerLogin(Ada(), plain=True)
    with_certificate.offer_external("ada")
    assert with_certificate.mechanisms == (EXTERNAL, *without.mechanisms)
    client = ClientLogin([EXTERNAL, "PLAIN"], None, None)
    exchange(with_certificate, client)
    assert (with_certificate.done, with_certificate.username, client.mechanism) == (True, "ada", EXTERNAL)
    client = ClientLogin([EXTERNAL], None, None)
    exchange(without, client)
    assert re.search("offers the SASL mechanisms", str(client.error))


@pytest.mark.parametrize(("wish", "accepted"), [(b"", True), (b"ada", True), (b"root", False), (None, True)])
def test_no_user_acts_as_another_one(wish: bytes | None, accepted: bool) -> None:
    server = ServerLogin(Ada(), plain=False)
    server.offer_external("ada")
    server.receive(SASL_HEADER)
    server._on_init(EXTERNAL, wish)
    assert server.done is accepted
    assert (server.error is None) is accepted
