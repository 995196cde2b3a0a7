"""Open connections to scripted brokers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.opened import WAIT, Opened
from tests.broker_adapter.amqp.client.scripted_broker import Wired


@pytest.fixture
def wired() -> Wired:
    """An open connection to a broker that says it is ours."""
    return Wired().opened()


@pytest.fixture
def server() -> Iterator[BrokerServer]:
    """A scripted broker that listens."""
    listening = BrokerServer()
    yield listening
    listening.close()


@pytest.fixture
def opened(server: BrokerServer) -> Iterator[Opened]:
    """A transport that is open to the scripted broker."""
    transport = Opened(server.port)
    yield transport
    transport.transport.close(WAIT)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, in one PEM file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path
