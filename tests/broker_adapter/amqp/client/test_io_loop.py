"""The loop of all connections: sockets, TLS, pipes in memory, forks and signals."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.amqp.client.io_loop import SocketConnection
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.destination import queue
from broker_adapter.envelope import pack
from broker_adapter.errors import ConnectionLostException, IllegalStateException
from broker_adapter.transport import Credentials, Delivery, ReceiverSpec, SenderSpec
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.opened import MESSAGE, QUEUE, WAIT, Opened, Pipe, address_of, refused_port, url_of
from tests.memory_connection import MemoryConnection


def test_a_port_without_a_listener_is_a_lost_connection() -> None:
    port = refused_port()
    with pytest.raises(ConnectionLostException) as told:
        Opened(port)
    assert str(told.value) == (
        f"no connection to 127.0.0.1:{port}: nothing listens there; correct host and port, or start: holdfast serve"
        f" --data DIR --listen 127.0.0.1:{port}"
    )


@pytest.mark.parametrize("host", ["a\0b", "h" * 70, "a..b"])
def test_a_host_that_cannot_be_one_is_told_at_once(host: str) -> None:
    url = url_of(refused_port())
    url = attrs.evolve(url, host=host, amqp=attrs.evolve(url.amqp, vhost="h"))
    with pytest.raises(ConnectionLostException, match="no connection to "):
        AmqpTransport(url).open(Credentials(), lambda _event: None, WAIT)


def test_tls_connects_to_trusted_servers_only(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = BrokerServer(context=context)
    transport = AmqpTransport(url_of(server.port, f"?tls_ca_file={certificate}.crt", "amqps"))
    transport.open(Credentials(), lambda _event: None, WAIT)
    link = transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    transport.send(link, MESSAGE, None, WAIT)
    transport.close(WAIT)

    with pytest.raises(ConnectionLostException, match=r"TLS with 127\.0\.0\.1:\d+ failed.*; name a PEM .* tls_ca_file"):
        AmqpTransport(url_of(server.port, "", "amqps")).open(Credentials(), lambda _event: None, WAIT)
    server.close()


def test_tls_with_a_certificate_for_other_names_says_so(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = BrokerServer(context=context)
    url = address_of(f"amqps://localhost:{server.port}?tls_ca_file={certificate}.crt")
    with pytest.raises(ConnectionLostException, match=r"is for other names: connect by one of those$"):
        AmqpTransport(url).open(Credentials(), lambda _event: None, WAIT)
    server.close()


def test_tls_with_a_broker_that_speaks_none_says_so(server: BrokerServer) -> None:
    with pytest.raises(ConnectionLostException, match=r"the broker speaks no TLS on this port, .* amqp://"):
        AmqpTransport(url_of(server.port, "", "amqps")).open(Credentials(), lambda _event: None, WAIT)


def test_a_fault_in_a_sink_ends_the_connection_and_not_the_loop(
    server: BrokerServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_deliveries: Any) -> None:
        raise RuntimeError("a bug in the application")

    other = Opened(server.port)
    link = opened.transport.attach(ReceiverSpec(1, QUEUE), broken, WAIT)
    opened.transport.credit(link, 1)
    opened.transport.attach(SenderSpec(1, queue("other")), None, WAIT)  # the credit is there when this is answered
    broker = server.brokers[0]
    server.run(lambda: broker.peer.send(broker.by_address["q"], pack(MESSAGE)))
    assert opened.failed.wait(WAIT)

    assert "a bug in the application" in str(opened.events[0].error)
    assert "unexpected error" in caplog.text
    assert other.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    other.transport.close(WAIT)


def test_a_forked_process_is_told_and_can_connect_by_itself(server: BrokerServer) -> None:
    program = textwrap.dedent(
        """
        import os, sys
        from broker_adapter.amqp.client.transport import AmqpTransport
        from broker_adapter.destination import queue
        from broker_adapter.envelope import Envelope
        from broker_adapter.errors import IllegalStateException
        from broker_adapter.transport import Credentials, SenderSpec
        from broker_adapter.urls.url import parse_url

        def connect():
            transport = AmqpTransport(parse_url(sys.argv[1]).addresses[0])
            transport.open(Credentials(), print, 120)
            return transport, transport.attach(SenderSpec(1, queue("q")), None, 120)

        transport, link = connect()
        child = os.fork()
        if child == 0:
            try:
                transport.send(link, Envelope(queue("q")), None, 120)
            except IllegalStateException as error:
                assert "forked" in str(error), error
                own, own_link = connect()
                own.send(own_link, Envelope(queue("q")), None, 120)
                own.close(120)
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        transport.send(link, Envelope(queue("q")), None, 120)
        transport.close(120)
        """
    )
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, f"amqp://127.0.0.1:{server.port}"],
        capture_output=True,
        text=True,
        timeout=WAIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )

    assert finished.returncode == 0, finished.stderr


def test_the_transport_runs_over_a_pipe_in_memory() -> None:
    pipe = Pipe()
    connections: list[MemoryConnection] = []

    def make_io(protocol: Any) -> MemoryConnection:
        connections.append(MemoryConnection(protocol, pipe))
        return connections[0]

    got: list[Delivery] = []
    arrived = threading.Event()

    def sink(deliveries: Any) -> None:
        got.extend(deliveries)
        arrived.set()

    opened = Opened(1, make_io=make_io)
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.send(link, MESSAGE, None, WAIT)
    consumer = opened.transport.attach(ReceiverSpec(1, QUEUE), sink, WAIT)
    opened.transport.credit(consumer, 1)
    opened.transport.send(link, MESSAGE, None, WAIT)  # the credit is there when this is answered
    pipe.broker.peer.send(pipe.broker.by_address["q"], pack(MESSAGE))
    connections[0].wake()
    assert arrived.wait(WAIT)
    opened.transport.close(WAIT)

    assert got[0].envelope == MESSAGE
    assert pipe.ended.wait(WAIT)
    assert opened.events == []


def test_what_a_handler_of_a_signal_kept_from_being_told_is_told_with_the_next(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = opened.transport._io
    assert io is not None
    done: list[int] = []
    came = threading.Event()

    def interrupted(_call: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(io._loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            io.submit(lambda: done.append(1))
    io.submit(came.set)
    assert came.wait(WAIT)
    assert done == [1]


def test_a_connection_that_was_made_before_a_fork_is_refused_in_the_child_and_can_be_closed(
    server: BrokerServer, opened: Opened
) -> None:
    """What a child finds, shown without one."""
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    io = opened.transport._io
    assert isinstance(io, SocketConnection)
    assert repr(io).startswith("<SocketConnection open work=")
    io.disown()
    assert repr(io).startswith("<SocketConnection disowned work=")
    with pytest.raises(IllegalStateException, match="was made before this process was forked; make a new one"):
        opened.transport.send(link, MESSAGE, None, WAIT)
    io.abort()
    io._disowned = False  # the parent goes on with it
    opened.transport.send(link, MESSAGE, None, WAIT)


def test_a_fault_at_a_tick_ends_the_connection_and_not_the_loop(
    server: BrokerServer, opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = opened.transport._io
    assert isinstance(io, SocketConnection)
    other = Opened(server.port)

    def fails(_now_ms: int) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(io._protocol, "tick", fails)
    io._loop.call_soon_threadsafe(io._tick)
    assert opened.failed.wait(WAIT)
    assert "unexpected error in the connection: ZeroDivisionError" in str(opened.events[-1].error)
    assert "the connection ends because of an unexpected error" in caplog.text
    other.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    other.transport.close(WAIT)
