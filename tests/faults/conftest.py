"""A server, a proxy in front of it, and connections through it whose news are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import attrs
import pytest

from sdk import Connection, ConnectionFactory, Interrupted, JMSException, Restored
from tests.faults.proxy import Proxy
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess


@attrs.define
class Client:
    """A started connection through the proxy, and what it told."""

    connection: Connection
    told: list[JMSException] = attrs.field(factory=list)
    events: list[object] = attrs.field(factory=list)

    def wait_for_restore(self, times: int = 1) -> None:
        assert wait_for(lambda: self.count(Restored) >= times), f"not restored: {self.events}"

    def wait_for_loss(self, times: int = 1) -> None:
        assert wait_for(lambda: self.count(Interrupted) >= times), f"not lost: {self.events}"

    def count(self, kind: type) -> int:
        return sum(isinstance(each, kind) for each in self.events)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("faults") / "data") as running:
        yield running


@pytest.fixture
def name() -> str:
    """Of a queue that no other test uses."""
    return f"queue {uuid4()}"


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@pytest.fixture
def direct(server: ServerProcess) -> Iterator[Connection]:
    """A connection around the proxy."""
    with ConnectionFactory(server.url).create_connection() as connection:
        connection.start()
        yield connection


Connect = Callable[..., Client]


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Connect]:
    """Makes clients: of the proxy's URL with these options, or of another URL."""
    made: list[Client] = []

    def connect(options: str = "", *, url: str | None = None, client_id: str | None = None) -> Client:
        given = {"reconnect_delay_seconds": "0.01", "close_timeout_seconds": "2", "stable_seconds": "0"}
        given |= dict(each.split("=") for each in options.strip("&").split("&") if each)
        whole = f"{url or proxy.url}?{'&'.join('='.join(each) for each in given.items())}"
        client = Client(ConnectionFactory(whole).create_connection(client_id=client_id))
        made.append(client)
        client.connection.exception_listener = client.told.append
        client.connection.event_listener = client.events.append
        client.connection.start()
        return client

    yield connect
    for client in made:
        client.connection.close()
