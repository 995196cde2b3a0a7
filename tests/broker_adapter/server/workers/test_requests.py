"""Requests beyond messaging: what one connection takes of the server's workers, and what ends with it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.operations.request import Threads
from broker_adapter.server.client_connection import ClientConnection
from broker_adapter.server.listener import Listener
from broker_adapter.server.workers.requests import MAX_WAITING, THREADS
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    IllegalStateException,
    ResourceAllocationException,
)
from tests.contracts.transports import eventually

WAIT = 120.0


class GatedBroker(Broker):
    """An engine in which requests of some operations wait at a gate."""

    def __init__(self) -> None:
        super().__init__(EngineSettings())
        self.gated: frozenset[str] = frozenset()
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.begun: list[Any] = []

    def request(self, operation: str, arguments: Mapping[str, Any], *others: Any) -> Any:
        if operation in self.gated:
            self.begun.append(arguments.get("destination"))
            self.arrived.release()
            assert self.gate.wait(WAIT)
        return super().request(operation, arguments, *others)

    def wait_for(self, count: int) -> None:
        """Wait until so many more requests have come to the gate."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=WAIT)


class Server:
    """A server over such an engine, and clients that ask from threads of their own."""

    def __init__(self) -> None:
        self.broker = GatedBroker()
        self.listener = Listener(self.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
        self._url = f"amqp://127.0.0.1:{self.listener.start()[1]}?failover=nofailover"
        self._threads = ThreadPoolExecutor(60)
        self._clients: list[Connection] = []

    def client(self, *queues: str) -> Connection:
        """A client that has sent a message to each of these queues."""
        connection = ConnectionFactory(self._url).create_connection()
        self._clients.append(connection)
        with connection.create_session() as session:
            for name in queues:
                session.create_producer(session.create_queue(name)).send("x")
        return connection

    def raw_connection(self, sock: socket.socket) -> ClientConnection:
        """A connection of a socket that nothing is read from: it asks when the test does."""
        connection = ClientConnection(self.listener, sock, ("127.0.0.1", 1))
        connection._protocol = self.listener.protocol(connection, None)
        return connection

    def ask(self, connection: Connection, operation: str, **arguments: Any) -> Future[Any]:
        return self._threads.submit(connection.request, operation, arguments, WAIT)

    def close(self) -> None:
        self.broker.gate.set()
        for each in self._clients:
            each.close()
        self._threads.shutdown()
        self.listener.stop()
        self.broker.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_the_requests_of_one_connection_leave_workers_for_others(server: Server) -> None:
    server.broker.gated = frozenset(["purge"])
    greedy, other = server.client("a", "b"), server.client()
    asked = [server.ask(greedy, "purge", destination="a") for _ in range(10)]
    server.broker.wait_for(1)
    asked.append(server.ask(other, "purge", destination="b"))
    server.broker.wait_for(1)
    assert server.broker.begun == ["a", "b"]
    server.broker.gate.set()
    assert sorted(each.result(WAIT) for each in asked) == [*[0] * 9, 1, 1]


def test_long_requests_hold_up_neither_short_ones_nor_those_of_a_restored_connection(server: Server) -> None:
    server.broker.gated = frozenset(["purge"])
    names = [f"q{number}" for number in range(THREADS[Threads.LONG] + 2)]
    clients = [server.client(name) for name in names]
    asked = [server.ask(client, "purge", destination=name) for client, name in zip(clients, names, strict=True)]
    server.broker.wait_for(THREADS[Threads.LONG])  # all workers for long requests have one
    for client in (clients[0], clients[-1]):
        assert client.statistics().clients == len(clients)
        assert server.ask(client, "resolve_commit", session="s", number=1).result(WAIT) is False
        none = {"destination": "q0", "given": [[10**9, "ID:none"]]}
        assert server.ask(client, "settle_positions", **none).result(WAIT) == {"settled": 0, "lost": []}
        assert server.ask(client, "uncount", **none).result(WAIT) == 0
    server.broker.gate.set()
    assert [each.result(WAIT) for each in asked] == [1] * len(names)


def test_long_requests_hold_up_nothing_that_streaming_queries_need(server: Server) -> None:
    server.broker.gated = frozenset(["purge"])
    names = [f"q{number}" for number in range(THREADS[Threads.LONG])]
    asked = [server.ask(server.client(name), "purge", destination=name) for name in names]
    server.broker.wait_for(THREADS[Threads.LONG])
    query = server.client("read")
    bounds = server.ask(query, "bounds", destination="read").result(WAIT)
    settle = {"destination": "read", "position": bounds["next"] - 1, "incarnation": bounds["incarnation"]}
    assert server.ask(query, "settle_through", **settle).result(WAIT) == 1
    assert server.ask(query, "published", group="g").result(WAIT) is None
    assert server.ask(query, "publish", group="g", number=1, transactions=[]).result(WAIT) is True
    assert server.ask(query, "published", group="g").result(WAIT) == 1
    server.broker.gate.set()
    assert [each.result(WAIT) for each in asked] == [1] * len(names)


def test_a_durable_client_waits_for_no_long_request_of_others(server: Server) -> None:
    slow = {
        "read_keys": ({"region": "r", "max_bytes": 1}, THREADS[Threads.READING]),
        "change_keys": ({"region": "r", "changes": []}, THREADS[Threads.CONFIRMING]),
        "register_interest": ({"region": "r", "interests": []}, THREADS[Threads.SHORT]),
        "purge": ({"destination": "q"}, THREADS[Threads.LONG]),
    }
    assert server.ask(server.client("q"), "create_region", region="r").result(WAIT) is True
    server.broker.gated = frozenset(slow)
    asked = [
        server.ask(server.client(), operation, **arguments)
        for operation, (arguments, threads) in slow.items()
        for _ in range(threads)
    ]
    server.broker.wait_for(len(asked))
    desk = server.client()
    for operation, arguments in (
        ("acknowledge_events", {"through": 1}),
        ("ready_for_events", {}),
        ("pending_events", {}),
    ):
        with pytest.raises(IllegalStateException, match="attach a link for them first"):
            server.ask(desk, operation, **arguments).result(WAIT)
    assert server.ask(desk, "leave", keep=True).result(WAIT) is True
    server.broker.gate.set()
    for each in asked:
        each.exception(WAIT)


def test_publications_that_wait_for_room_hold_up_what_makes_it_and_no_confirmation(server: Server) -> None:
    server.broker.gated = frozenset(["publish"])
    names = [f"g{number}" for number in range(THREADS[Threads.STREAMING] + THREADS[Threads.SHORT])]
    clients = [server.client("full") for _ in names]
    asked = [
        server.ask(client, "publish", group=name, number=1, transactions=[])
        for client, name in zip(clients, names, strict=True)
    ]
    server.broker.wait_for(len(names))
    reader = server.client()
    assert server.ask(reader, "settle_through", destination="full", position=1).result(WAIT) == 1
    assert server.ask(clients[0], "settle_through", destination="full", position=2).result(WAIT) == 1
    assert server.ask(reader, "confirm").result(WAIT) is True
    server.broker.gate.set()
    assert [each.result(WAIT) for each in asked] == [True] * len(names)


def test_as_many_confirmations_may_wait_together_as_share_one_write(server: Server) -> None:
    server.broker.gated = frozenset(["confirm"])
    clients = [server.client() for _ in range(THREADS[Threads.CONFIRMING])]
    asked = [server.ask(client, "confirm") for client in clients]
    server.broker.wait_for(len(clients))
    assert clients[0].statistics().clients == len(clients)
    server.broker.gate.set()
    assert [each.result(WAIT) for each in asked] == [True] * len(clients)


def test_repetitions_of_a_request_that_is_under_way_hold_no_workers(server: Server) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def act() -> int:
        begun.set()
        assert go_on.wait(WAIT)
        return 7

    asked = {"destination": "q", "kind": "queue", "subscription": None, "client_id": None}
    once = partial(server.broker._requests.once, what={"operation": "purge", **asked})
    first = threading.Thread(target=once, args=("one", act, WAIT))
    first.start()
    assert begun.wait(WAIT)
    sockets = [socket.socketpair() for _ in range(THREADS[Threads.LONG] + 1)]
    connections = [server.raw_connection(mine) for mine, _ in sockets]
    purge = {"destination": "q", "request_id": "one", "request_run": server.broker.run}
    answers: list[Any] = []
    for number, connection in enumerate(connections):
        server.listener.request(connection, "purge", lambda: purge, partial(lambda *each: answers.append(each), number))
    waiting = server.broker._requests._requests["one"].waiting
    eventually(lambda: len(waiting) == len(connections))
    other = server.client("other")
    assert server.ask(other, "purge", destination="other").result(WAIT) == 1
    assert answers == []
    connections[0].is_closed = True
    go_on.set()
    first.join(WAIT)
    assert answers == [(number, 7) for number in range(1, len(connections))]
    for each in (each for pair in sockets for each in pair):
        each.close()


@pytest.mark.parametrize(
    ("operation", "further"),
    [("settle_positions", {"given": []}), ("read_range", {"first": 0, "last": 1}), ("purge", {})],
)
def test_requests_that_wait_when_their_connection_ends_are_not_begun(
    server: Server, operation: str, further: dict[str, Any]
) -> None:
    server.broker.gated = frozenset([operation])
    leaving, other = server.client("q"), server.client()
    arguments = {"destination": "q", **further}
    asked = [server.ask(leaving, operation, **arguments) for _ in range(5)]
    server.broker.wait_for(1)
    leaving._transport._current.connected._io.abort()  # the network is cut, without a word
    for each in asked:
        with pytest.raises(ConnectionLostException):
            each.result(WAIT)
    eventually(lambda: other.statistics().clients == 1)
    server.broker.gate.set()
    if operation == "purge":  # the one under way is to be over
        eventually(lambda: not sum(each.messages for each in other.statistics().queues))
    answer = server.ask(other, operation, **arguments).result(WAIT)
    assert server.broker.begun == ["q", "q"], "one of the five was under way, then the other client's"
    if operation == "purge":
        assert answer == 0, "a purge takes effect once: it goes on, and is asked for again under its id"


def test_more_requests_than_may_wait_are_refused(server: Server) -> None:
    server.broker.gated = frozenset(["statistics"])
    asking, other = socket.socketpair()
    connection = server.raw_connection(asking)
    answers: list[Any] = []
    for _ in range(MAX_WAITING + 2):
        server.listener.request(connection, "statistics", dict, answers.append)
        if not server.broker.begun:
            server.broker.wait_for(1)
    (refusal,) = answers
    assert isinstance(refusal, ResourceAllocationException)
    asking.close()
    other.close()
    server.broker.gate.set()
    eventually(lambda: len(answers) == MAX_WAITING + 2)
