"""Several servers: which one a client connects to, and how it learns of others."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.server.access.users import UsersFile
from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    Failed,
    JMSException,
    JMSSecurityException,
    Restored,
    StaleAcknowledgementException,
)
from tests.faults.conftest import Client
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

FAST = "reconnect_delay_seconds=0.01&stable_seconds=0&close_timeout_seconds=2"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with (
        ServerProcess(tmp_path / "second") as second,
        ServerProcess(tmp_path / "first", "--failover-servers", f"127.0.0.1:{second.port}") as first,
    ):
        yield first, second


def connected(url: str) -> Client:
    client = Client(ConnectionFactory(url).create_connection())
    client.connection.exception_listener = client.told.append
    client.connection.event_listener = client.events.append
    client.connection.start()
    return client


def address_after(client: Client, restores: int) -> str:
    client.wait_for_restore(restores)
    restored = [each for each in client.events if isinstance(each, Restored)][-1]
    return restored.address


def announce(server: ServerProcess, servers: str) -> str:
    command = [sys.executable, "-m", "broker_adapter.server.cli", "announce", "--url", server.url, servers]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_other_server_is_taken_when_one_is_killed(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = pair
    client = connected(f"failover:({first.url},{second.url})?{FAST}")
    with client.connection, client.connection.create_session() as session:
        queue = session.create_queue("q")
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        producer.send("to the first")
        first.kill()
        assert address_after(client, 1) == second.url
        producer.send("to the second")
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == "to the second"
        first.start()
        second.kill()
        assert address_after(client, 2) == first.url
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == "to the first"


def test_another_server_does_not_confirm_what_the_first_one_has_not_heard(
    pair: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = pair
    with Proxy(first.port) as proxy:
        client = connected(f"failover:({proxy.url},{second.url})?{FAST}&synchronous_acknowledge=true")
        with client.connection, client.connection.create_session(AcknowledgeMode.CLIENT) as session:
            queue = session.create_queue("q")
            session.create_producer(queue).send("x")
            message = session.create_consumer(queue).receive(WAIT)
            assert message is not None
            proxy.hold(Direction.TO_SERVER)

            def cut() -> None:
                proxy.refuse()
                proxy.cut()

            timer = threading.Timer(0.3, cut)
            timer.start()
            with pytest.raises(StaleAcknowledgementException, match="another broker's store") as raised:
                message.acknowledge()
            timer.join()
            assert raised.value.stale_count == 1
            assert address_after(client, 1) == second.url


def test_a_client_that_knows_one_server_goes_to_those_that_it_announced(
    pair: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = pair
    client = connected(f"{first.url}?failover=failover_exchange&{FAST}")
    with client.connection:
        first.kill()
        assert address_after(client, 1) == second.url


def test_a_client_of_another_method_stays_with_its_own_list(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, _ = pair
    client = connected(f"{first.url}?{FAST}&max_reconnect_attempts=3")
    with client.connection:
        first.kill()
        assert wait_for(lambda: len(client.told) == 2)
        assert "no connection after 3 attempts" in str(client.told[1])


def test_a_change_of_the_list_reaches_a_client_that_is_connected(
    pair: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    first, second = pair
    with ServerProcess(tmp_path / "third") as third:
        client = connected(f"{first.url}?failover=failover_exchange&{FAST}")
        with client.connection:
            second.kill()
            assert announce(first, f"127.0.0.1:{third.port}") == "announced: 1 server\n"
            first.kill()
            assert address_after(client, 1) == third.url


def test_a_list_that_is_none_is_refused(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, _ = pair
    with ConnectionFactory(first.url).create_connection() as connection:
        for wrong in (["nowhere"], "127.0.0.1:1", ["h:0"], ["ftp://h:1"], [f"h:{port}" for port in range(1, 102)]):
            with pytest.raises(JMSException):
                connection.request("announce_servers", {"servers": wrong})
        assert connection.request("announce_servers", {"servers": ["amqps://h:1", "[::1]:5672"]}) == 2
        assert connection.request("announce_servers", {"servers": []}) == 0


# Who connects.


def add_user(users: Path, name: str, password: str) -> None:
    UsersFile.open_or_make(users).add(name, password)


def test_a_password_that_changes_while_the_network_is_away_is_asked_for_once(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "alice", "old")
    passwords = iter(["new", "newer"])
    asked: list[str] = []

    def refresh() -> tuple[str, str]:
        asked.append(next(passwords))
        return "alice", asked[-1]

    with ServerProcess(tmp_path / "data", "--users", str(users)) as server:
        factory = ConnectionFactory(f"{server.url}?{FAST}", "alice", "old", refresh_credentials=refresh)
        client = Client(factory.create_connection())
        client.connection.exception_listener = client.told.append
        client.connection.event_listener = client.events.append
        with client.connection:
            server.kill()
            add_user(users, "alice", "new")
            server.start()
            client.wait_for_restore()
            assert asked == ["new"]
            server.kill()
            add_user(users, "alice", "newest")
            server.start()
            assert wait_for(lambda: client.count(Failed) == 1)
            assert asked == ["new", "newer"], "once for each loss"
        with pytest.raises(JMSSecurityException):
            ConnectionFactory(server.url, "alice", "old").create_connection()


def test_the_url_of_qpid_connects_and_names_the_client(pair: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = pair
    brokers = f"tcp://127.0.0.1:{first.port}?retries='1'&connectdelay='10';tcp://127.0.0.1:{second.port}"
    plain = "allow_plain_without_tls='true'"
    url = f"amqp://guest:guest@me/?brokerlist='{brokers}'&{plain}&failover='roundrobin?cyclecount='3''"
    client = Client(ConnectionFactory(url).create_connection())
    client.connection.event_listener = client.events.append
    client.connection.exception_listener = client.told.append
    with client.connection:
        assert client.connection.client_id == "me"
        first.kill()
        assert address_after(client, 1) == second.url
