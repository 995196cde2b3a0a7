"""Many threads that use connections in every way, while the network and the server come and go."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path

import pytest

from broker_adapter.server.users import UsersFile
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
from tests.broker_adapter.server.test_listener import server_context
from tests.faults.proxy import Cut, Direction, Proxy
from tests.sdk.test_many_threads import WAIT, Threads
from tests.server_process import ServerProcess

OPTIONS = (
    "?reconnect_delay_seconds=0.02&max_reconnect_delay_seconds=0.3&stable_seconds=0.1&idle_timeout_seconds=1"
    "&connect_timeout_seconds=2&startup_max_reconnect_attempts=none"
)
#: What an act may end with when its connection is lost.
PROMISED = (
    BrowserInterruptedException,
    ConnectionLostException,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)


class Shaken(Threads):
    """Threads that know that they may lose their connection."""

    acts = 60

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
    """Cuts connections; where the server is ours, kills it, and leaves connections half open, which it soon finds."""

    def __init__(self, server: ServerProcess | None, proxy: Proxy, seed: int) -> None:
        super().__init__(name="shaker", daemon=True)
        self._server = server
        self._proxy = proxy
        self._chance = random.Random(seed)
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(self._chance.expovariate(3)):
            weights = [5, 2, 1] if self._server is None else [5, 2, 1, 2, 0.5]
            fault = self._chance.choices(["cut", "bytes", "away", "half open", "kill"][: len(weights)], weights)[0]
            if fault == "cut":
                self._proxy.cut()
            elif fault == "bytes":
                direction = self._chance.choice(list(Direction))
                self._proxy.plan(Cut(direction, bytes=0, into_next=self._chance.randrange(100)))
            elif fault == "half open":
                self._proxy.leave_half_open()
            elif self._server is not None and fault == "kill":
                self._server.kill()
                self._server.start()
            else:
                self._proxy.refuse()
                self._proxy.cut()
                time.sleep(self._chance.random() * 0.5)
                self._proxy.refuse(False)

    def stop(self) -> None:
        self._is_over.set()
        self.join(WAIT)
        self._proxy.plan(None)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_nothing_is_lost_and_nobody_hangs_whatever_the_network_does(tmp_path: Path, secured: bool) -> None:
    arguments, scheme, options, user = ["--option", "idle_timeout_seconds=2"], "amqp", OPTIONS, None
    if secured:
        server_context(tmp_path)  # makes the certificate
        UsersFile.open_or_make(tmp_path / "users").add("ada", "secret")
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
        shaker = Shaker(server, proxy, int(secured))
        shaker.start()
        try:
            threads.run(40)
        finally:
            shaker.stop()
        with factory(server.port).create_connection() as connection:
            threads.drain(connection)
    assert threads.sent <= set(threads.ended)
    assert threads.again == []
    assert threads.losses > 0
