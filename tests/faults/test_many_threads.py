"""Many threads that use connections in every way, while the network and the server come and go."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest

from broker_adapter.mechanisms import MIN_ITERATIONS
from broker_adapter.server.access.users import UsersFile
from sdk import (
    BrowserInterruptedException,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    JMSException,
    Message,
    MessageConsumer,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.broker_adapter.server.served import server_context
from tests.faults import faults
from tests.faults.proxy import Proxy
from tests.sdk.test_many_threads import WAIT, Threads
from tests.server_process import ServerProcess

OPTIONS = f"{faults.OPTIONS}&startup_max_reconnect_attempts=none"
#: What an act may end with when its connection is lost.
PROMISED = (
    BrowserInterruptedException,
    ConnectionLostException,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)


class Shaken(Threads):
    """Threads that know that they may lose their connection."""

    acts = 25

    def __init__(self, factory: ConnectionFactory, shared: Connection, seed: int) -> None:
        super().__init__(factory, shared, seed)
        self.losses = 0
        shared.exception_listener = self._told

    def _told(self, _error: JMSException) -> None:
        self.losses += 1

    def connected(self) -> Connection:
        connection = super().connected()
        connection.exception_listener = self._told
        return connection

    def act(self, chance: random.Random, name: str) -> None:
        with contextlib.suppress(*PROMISED):
            super().act(chance, name)

    def completed(self, message: Message, error: JMSException | None) -> None:
        if not isinstance(error, ConnectionLostException):  # its session was closed while the network was away
            super().completed(message, error)

    def check_temporary(self, consumer: MessageConsumer, name: str) -> None:
        message = consumer.receive(0.5)  # it may be gone with the connection, or with the server
        assert message is None or message.body == name


class Shaker(threading.Thread):
    """Has faults happen until it is stopped."""

    def __init__(self, server: ServerProcess | None, proxy: Proxy, seed: int) -> None:
        super().__init__(name="shaker", daemon=True)
        self._proxy = proxy
        self._chance = random.Random(seed)
        self._faults = faults.Faults(server, proxy, self._chance)
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(self._chance.expovariate(3)):
            self._faults.one()

    def stop(self) -> None:
        self._is_over.set()
        self.join(WAIT)
        self._proxy.plan(None)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_nothing_is_lost_and_no_thread_hangs_whatever_the_network_does(tmp_path: Path, secured: bool) -> None:
    arguments, scheme, options, user = ["--option", "idle_timeout_seconds=2"], "amqp", OPTIONS, None
    if secured:
        server_context(tmp_path)  # makes the certificate
        UsersFile.open_or_make(tmp_path / "users").add("ada", "secret", MIN_ITERATIONS)  # for many logins
        arguments += ["--users", str(tmp_path / "users")]
        arguments += ["--tls-certificate", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")]
        scheme, user, options = "amqps", "ada", f"{OPTIONS}&tls_ca_file={tmp_path / 'server.crt'}"

    def factory(port: int) -> ConnectionFactory:
        return ConnectionFactory(f"{scheme}://127.0.0.1:{port}{options}", user, user and "secret")

    with (
        ServerProcess(tmp_path / "data", *arguments) as server,
        Proxy(server.port) as proxy,
        factory(proxy.port).create_connection() as shared,
    ):
        shared.start()
        threads = Shaken(factory(proxy.port), shared, int(secured))
        threads.acts //= 1 + secured  # a handshake takes longer than an act
        shaker = Shaker(server, proxy, int(secured))
        shaker.start()
        try:
            threads.run(1500)
        finally:
            shaker.stop()
        with factory(server.port).create_connection() as connection:
            threads.drain(connection)
    assert threads.sent <= set(threads.ended)
    assert threads.again == []
    assert threads.losses > 0
