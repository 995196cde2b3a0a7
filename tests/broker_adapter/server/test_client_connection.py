"""One client's socket: faults, a client that takes nothing, what is left of a connection that has ended."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from broker_adapter.amqp.events import ACCEPTED_STATE, RemoteClose, RemoteOpen, SessionRemoteOpen, Transfers
from broker_adapter.amqp.messages.payloads import decode_received
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.server import listener
from broker_adapter.server.access.permissions import authorize
from broker_adapter.server.client_connection import ClientConnection
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import ServerProtocol
from tests.broker_adapter.amqp.frames import ATTACH, CLOSE, FLOW, TRANSFER, attach, begin, close, end, flow
from tests.broker_adapter.server.protocol_client import Client
from tests.broker_adapter.server.raw_client import RawClient, request
from tests.broker_adapter.server.served import (
    WAIT,
    Served,
    change,
    in_hand,
    open_raw,
    read_all,
    stalled,
)
from tests.contracts.transports import eventually

pytestmark = pytest.mark.usefixtures("often")


class FaultyProtocol(ServerProtocol):
    """Has a fault that only the clients named "faulty" meet."""

    fault = ""

    def _meet(self, name: str) -> None:
        if self.peer_name == "faulty" and name == self.fault:
            raise RuntimeError(f"a fault in {name}")

    def tick(self, now_ms: int) -> int | None:
        self._meet("tick")
        return super().tick(now_ms)

    def receive(self, data: bytes, now_ms: int) -> None:
        self._meet("receive")
        super().receive(data, now_ms)

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        self._meet("pending_output")
        return super().pending_output(limit_bytes)


class FaultyListener(Listener):
    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        def wake() -> None:
            self.wake(connection)

        login = ServerLogin(None, plain=True)
        return FaultyProtocol(self._broker, self.settings, login, wake, self.request, partial(authorize, None))


@pytest.mark.parametrize("fault", ["tick", "receive", "pending_output"])
def test_an_unexpected_fault_ends_one_connection_and_time_goes_on_for_the_others(
    serve: Callable[..., Served], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    served = serve(FaultyListener, handshake_timeout_seconds=WAIT)
    with served.socket() as half, served.socket() as sock:
        monkeypatch.setattr(FaultyProtocol, "fault", fault)
        peer = Peer(PeerLimits())
        peer.open("faulty")
        sock.sendall(peer.pending_output())
        if fault == "receive":  # the first bytes are well, since they only identify the client
            peer.receive(sock.recv(65536))
            peer.begin_session()
            sock.sendall(peer.pending_output())
        read_all(sock)
        change(served, handshake_timeout_seconds=0.001)
        read_all(half)  # the clock still runs, so a silent connection is dropped
    assert f"a fault in {fault}" in caplog.text
    change(served, handshake_timeout_seconds=WAIT)
    assert served.works()


def test_a_client_that_takes_nothing_costs_a_bounded_amount_and_then_gets_everything(
    serve: Callable[..., Served],
) -> None:
    count = 400  # 36 MB, more than the buffers of the system's sockets
    served = serve(max_output_bytes=65536)
    sock, peer, link = stalled(served, count)
    with sock:
        held = in_hand(served)
        assert held < count
        assert served.works()
        assert held <= in_hand(served) < count
        bodies: list[str] = []
        while len(bodies) < count:
            peer.receive(sock.recv(1 << 20))
            for event in peer.events():
                if isinstance(event, Transfers):
                    bodies += [str(decode_received(each.payload).body) for each in event.deliveries]
                    peer.settle(link, [each.number for each in event.deliveries], ACCEPTED_STATE)
            sock.sendall(peer.pending_output())
        assert [int(body[-9:]) for body in bodies] == list(range(count))
        eventually(lambda: in_hand(served) == 0)


def test_a_client_that_takes_nothing_and_says_nothing_is_dropped(serve: Callable[..., Served]) -> None:
    served = serve(max_output_bytes=65536)
    sock, _, _ = stalled(served, 300, idle_timeout_seconds=2.0)
    change(served, handshake_timeout_seconds=0.5)  # for its last words as well
    with sock:
        eventually(lambda: not served.listener.connections)
    assert in_hand(served) == 0


class Probe:
    """Lives as long as the C object that knows it."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[weakref.ref[Any]]]:
    """What connections are made of, by name, so that it can be seen to go."""
    found: dict[str, list[weakref.ref[Any]]] = {}

    def watch(cls: type[Any]) -> None:
        make = cls.__init__

        def made(self: Any, *arguments: Any, **fields: Any) -> None:
            make(self, *arguments, **fields)
            found.setdefault(cls.__name__, []).append(weakref.ref(self))
            if cls is ServerProtocol:
                probe = Probe()
                self._peer._connection.transport._attrs["probe"] = probe
                found.setdefault("C transport", []).append(weakref.ref(probe))
                found.setdefault("Peer", []).append(weakref.ref(self._peer))

        monkeypatch.setattr(cls, "__init__", made)

    watch(ClientConnection)
    watch(ServerProtocol)
    return found


@pytest.mark.parametrize("end", ["dropped", "closed", "broken", "taken over", "refused"])
def test_a_connection_that_has_ended_is_freed_without_the_garbage_collector(
    serve: Callable[..., Served], ends: dict[str, list[weakref.ref[Any]]], end: str
) -> None:
    served = serve()
    gc.collect()
    gc.disable()
    try:
        with RawClient(served.port) as client:
            client.send(begin(0), attach(0, 0, "s", "q"), attach(0, 1, "r", "q", receives=True), flow(0, 1, 5))
            client.send(attach(0, 2, "c", coordinator=True), attach(0, 3, "ask", "$holdfast"))
            client.send(attach(0, 4, "answers", "$holdfast", receives=True), flow(0, 4, 5))
            client.until(lambda: client.count(ATTACH) == 5 and client.count(FLOW) >= 3)
            client.send(*client.deliver(0, 3, request(1, "statistics", {})), *client.deliver(0, 0, b"\x00\x53\x77\x41"))
            client.until(lambda: client.count(TRANSFER) == 2)
            client.send(*client.deliver(0, 0, bytes(50_000), finished=False))
            if end == "closed":
                client.send(close())
                client.until(lambda: client.count(CLOSE) == 1)
            elif end == "broken":
                client.send(begin(0))
                client.until(lambda: client.count(CLOSE) == 1)
            elif end == "taken over":
                (old,) = served.listener.connections
                thread = served.listener._thread
                assert thread is not None
                thread.loop.call_soon_threadsafe(old.end)
                del old
                client.until_closed()
            elif end == "refused":
                client.send(b"\xff" * 100)
                client.until_closed()
        eventually(lambda: not served.listener.connections)
        eventually(lambda: served.broker.call(c.Statistics(), WAIT).clients == 0)
        eventually(lambda: not [name for name, each in ends.items() if any(found() is not None for found in each)])
    finally:
        gc.enable()
    assert ends.keys() == {"ClientConnection", "ServerProtocol", "Peer", "C transport"}


def test_a_connection_whose_admission_comes_too_late_leaves_nothing_behind(
    serve: Callable[..., Served], ends: dict[str, list[weakref.ref[Any]]]
) -> None:
    """The engine answers a client that is gone; only its protocol is there to receive that."""
    served = serve()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            with RawClient(served.port, reads=False):
                pass
        eventually(lambda: not served.listener.connections)
        eventually(lambda: served.broker.call(c.Statistics(), WAIT).clients == 0)
        eventually(lambda: not [name for name, each in ends.items() if any(found() is not None for found in each)])
    finally:
        gc.enable()


def test_nothing_is_read_above_the_budget_and_it_goes_on_below_it(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(max_connection_bytes=1 << 20)
    may_answer = threading.Event()
    answer = served.broker.request

    def wait(*arguments: Any) -> Any:
        assert may_answer.wait(WAIT)
        return answer(*arguments)

    monkeypatch.setattr(served.broker, "request", wait)
    with RawClient(served.port) as client:
        client.send(begin(0), attach(0, 0, "ask", "$holdfast"))
        client.send(attach(0, 1, "answers", "$holdfast", receives=True), flow(0, 1, 100))
        client.until(lambda: client.count(ATTACH) == 2 and client.count(FLOW) >= 1)
        (connection,) = served.listener.connections
        assert connection._reads
        # It may be more than the buffers of the system take while the server does not read: sending waits then.
        staged = {"transaction": "t", "queue": "q", "first": 0}
        requests = [request(number, "stage", {**staged, "messages": [bytes(90_000)]}) for number in range(80)]
        sending = threading.Thread(target=lambda: [client.send(*client.deliver(0, 0, each)) for each in requests])
        sending.start()
        eventually(lambda: connection._protocol._budget.requests > 1 << 20)
        eventually(lambda: not connection._reads)
        assert connection._protocol._budget.requests < 2 << 20
        may_answer.set()
        sending.join(WAIT)
        client.until(lambda: client.count(TRANSFER) == 80)
        eventually(lambda: connection._reads)


def test_what_is_postponed_waits_for_another_turn_though_there_is_output(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Mock(is_postponed=True, is_open=False, output_closed=False, wants_input=True)
    turns.pending_output.return_value = b"x"
    connection = ClientConnection(Mock(), Mock(), None)
    monkeypatch.setattr(connection, "_protocol", turns, raising=False)
    monkeypatch.setattr(connection, "_transport", Mock())
    connection.write()
    assert turns.pending_output.call_count == 1


class SlowListener(Listener):
    """Notes the clients that had a turn; each KiB of the clients named "slow" takes a millisecond and more."""

    def protocol(self, connection: ClientConnection, certified: str | None) -> ServerProtocol:
        protocol = super().protocol(connection, certified)
        plain = protocol.receive

        def receive(data: bytes, now_ms: int) -> None:
            TURNS.append((protocol.peer_name, len(data)))
            if protocol.peer_name == "slow":
                time.sleep(0.002 * len(data) / 1024)
            plain(data, now_ms)

        protocol.receive = receive  # type: ignore[method-assign]
        return protocol


TURNS: list[tuple[str | None, int]] = []


def test_other_clients_have_their_turn_while_the_input_of_one_is_taken(serve: Callable[..., Served]) -> None:
    TURNS.clear()
    served = serve(SlowListener)
    with served.socket() as slow, served.socket() as other:
        for sock, name in ((slow, "slow"), (other, "other")):
            peer = Peer(PeerLimits())
            peer.open(name)
            sock.sendall(peer.pending_output())
            while not any(isinstance(each, RemoteOpen) for each in peer.events()):
                peer.receive(sock.recv(65536))
        reader = threading.Thread(target=read_all, args=(slow,))
        reader.start()
        flood = b"".join(begin(1) + end(1) for _ in range(4_000))
        sender = threading.Thread(target=slow.sendall, args=(flood,))
        sender.start()
        eventually(lambda: [size for name, size in TURNS if name == "slow" and size > 1000])
        session = peer.begin_session()
        other.sendall(peer.pending_output())
        while not [each for each in peer.events() if isinstance(each, SessionRemoteOpen) and each.session == session]:
            peer.receive(other.recv(65536))
        sender.join(WAIT)
        eventually(lambda: sum(size for name, size in TURNS if name == "slow") >= len(flood))
        slow.shutdown(socket.SHUT_RDWR)
        reader.join(WAIT)
    names = [name for name, _ in TURNS]
    assert "slow" in names[names.index("other") :], "the other client was answered before all of the input was taken"
    assert len([name for name in names if name == "slow"]) > 4


def test_what_came_before_the_end_of_a_connection_is_taken() -> None:
    """The connection is lost while a part of its input waits for its turn."""
    taken: list[bytes] = []
    data = bytes(range(256)) * 256

    async def lose() -> None:
        protocol = Mock(is_open=True, wants_input=True, output_closed=False, is_postponed=False, error=None)
        protocol.receive = lambda each, _now_ms: taken.append(each)
        protocol.receive_end = lambda: taken.append(b"the end")
        protocol.tick = lambda _now_ms: None
        protocol.pending_output = lambda _limit: b""
        connection = ClientConnection(Mock(is_stopping=False, connections=set()), Mock(), ("127.0.0.1", 1))
        connection._listener.protocol = lambda *_: protocol  # type: ignore[method-assign]
        transport = Mock(spec=asyncio.Transport)
        connection.connection_made(transport)
        connection.data_received(data[:1000])
        transport.pause_reading.assert_not_called()
        connection.data_received(data[1000:])
        transport.pause_reading.assert_called_once()
        connection.data_received(data[:10])  # TLS has more, though reading is paused
        connection.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(lose())
    assert len(taken) > 3
    assert b"".join(taken) == data + data[:10] + b"the end"


def test_a_socket_that_has_no_bytes_after_all_is_watched_on() -> None:
    """A system may say that a socket can be read, and find none."""
    ours, theirs = socket.socketpair()

    async def watch() -> list[str]:
        told: list[str] = []
        spoke = asyncio.Event()
        owner = Mock(spoke=lambda _connection: spoke.set(), gone=lambda _connection: told.append("gone"))
        ours.setblocking(False)
        connection = ClientConnection(owner, ours, ("127.0.0.1", 1))
        connection.watch()
        connection._spoke()
        assert not spoke.is_set()
        assert not told
        theirs.send(b"A")
        await asyncio.wait_for(spoke.wait(), WAIT)
        connection.drop()
        return told

    with theirs:
        assert asyncio.run(watch()) == ["gone"]


def test_keep_alives_for_a_short_idle_time_out_do_not_wait_for_the_clock_of_the_listener(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TICK_SECONDS", 1000.0)
    sock, _ = open_raw(serve(), idle_timeout_ms=600)
    heard = b""
    with sock:
        sock.settimeout(WAIT)
        while heard.count(b"\x00\x00\x00\x08\x02\x00\x00\x00") < 5:
            heard += sock.recv(65536)


def test_too_short_an_idle_time_out_refuses_the_open_and_costs_no_ticks(broker: Broker) -> None:
    client = Client(broker)
    client.peer = Peer(PeerLimits(idle_timeout_ms=2))
    client.peer.open("hasty")

    error = client.until(lambda: client.of(RemoteClose))[0].error

    assert client.of(RemoteOpen)[0].properties["amqp:connection-establishment-failed"] is True
    assert error.condition == "amqp:not-implemented"
    assert error.description == (
        "an idle-time-out of 1 ms is not kept; ask for 250 ms at least"
        " (option idle_timeout_seconds, of which half is announced: 0.5 at least)"
    )
    assert not client.server.is_open
    assert client.server.tick(1) is None
