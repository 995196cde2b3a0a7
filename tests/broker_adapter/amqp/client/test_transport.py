"""The transport over real sockets against scripted brokers: threads, deadlines, outages."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.login import login_for
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    Dispositions,
    LinkRemoteClose,
    LinkRemoteOpen,
    SessionRemoteClose,
    Transfers,
)
from broker_adapter.amqp.messages.payloads import decode_payload, with_place
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.envelope import Envelope, pack, unpack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionInDoubtException,
)
from broker_adapter.transport import Credentials, Delivery, Failed, ReceiverSpec, SenderSpec, Transport
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.opened import MESSAGE, QUEUE, WAIT, Opened, Pipe, in_thread, url_of
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.contracts.transports import eventually
from tests.memory_connection import MemoryConnection


def test_it_implements_the_port(opened: Opened) -> None:
    transport: Transport = opened.transport

    assert transport
    assert (opened.peer.product, opened.peer.is_holdfast, opened.peer.client_id) == ("Holdfast", True, "me")


@pytest.mark.parametrize("end", ["close", "loss", "protocol error"])
def test_what_proton_had_is_freed_at_the_end_without_the_garbage_collector(server: BrokerServer, end: str) -> None:
    class Probe:
        """Lives as long as the C object that knows it."""

    opened = Opened(server.port)
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.send(link, MESSAGE, None, WAIT)
    protocol = opened.transport._protocol
    assert protocol is not None
    probe = Probe()
    protocol._peer._connection.transport._attrs["probe"] = probe
    found = weakref.ref(probe)
    del probe
    gc.disable()
    try:
        if end == "close":
            opened.transport.close(WAIT)
        elif end == "loss":
            server.drop_connections()
            assert opened.failed.wait(WAIT)
        else:
            server.run(lambda: server.connections[0]._transport.write(b"\xff" * 64))
            assert opened.failed.wait(WAIT)
        eventually(lambda: found() is None)
    finally:
        gc.enable()
    opened.transport.close(WAIT)


def test_a_send_returns_when_the_broker_has_confirmed(server: BrokerServer, opened: Opened) -> None:
    server.brokers[0].accepts = False
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    thread, outcome = in_thread(lambda: opened.transport.send(link, MESSAGE, None, WAIT))
    while not server.brokers[0].held:
        thread.join(0.001)
    assert outcome == []
    server.run(lambda: server.brokers[0].settle(*server.brokers[0].held[0]))
    thread.join(WAIT)

    assert outcome == [None]
    assert unpack(server.brokers[0].held[0][1].payload) == MESSAGE


def test_a_refused_send_raises_the_brokers_reason(server: BrokerServer, opened: Opened) -> None:
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    server.run(
        lambda: server.brokers[0].peer.close_link(
            server.brokers[0].by_address["q"], AmqpError("amqp:resource-limit-exceeded", "the queue is full")
        )
    )
    with pytest.raises((ResourceAllocationException, IllegalStateException)):
        opened.transport.send(link, MESSAGE, None, WAIT)


def test_asynchronous_sends_call_back_in_order(opened: Opened) -> None:
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    seen: list[int] = []
    finished = threading.Event()

    def settled(index: int, error: JMSException | None) -> None:
        assert error is None
        seen.append(index)
        if index == 99:
            finished.set()

    for index in range(100):
        opened.transport.send(link, MESSAGE, lambda error, index=index: settled(index, error), WAIT)  # type: ignore[misc]

    assert finished.wait(WAIT)
    assert seen == list(range(100))


def test_the_send_window_holds_a_sender_back_until_its_deadline(server: BrokerServer) -> None:
    opened = Opened(server.port, "?send_window_messages=3")
    server.brokers[0].accepts = False
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    answers: list[Any] = []
    for _ in range(3):
        opened.transport.send(link, MESSAGE, answers.append, WAIT)
    start = time.monotonic()
    with pytest.raises(OperationTimedOutException, match="send window of 3 messages"):
        opened.transport.send(link, MESSAGE, answers.append, 0.05)
    assert time.monotonic() - start >= 0.05

    thread, outcome = in_thread(lambda: opened.transport.send(link, MESSAGE, answers.append, WAIT))
    while len(server.brokers[0].held) < 3:
        thread.join(0.001)
    server.run(lambda: server.brokers[0].settle(*server.brokers[0].held[0]))
    thread.join(WAIT)
    assert outcome == [None]
    opened.transport.close(WAIT)
    assert len(answers) == 4


def test_a_callback_may_send_though_the_window_is_full(server: BrokerServer) -> None:
    opened = Opened(server.port, "?send_window_messages=1")
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    finished = threading.Event()
    left = [20]

    def again(_error: Any) -> None:
        left[0] -= 1
        if left[0]:
            opened.transport.send(link, MESSAGE, again, WAIT)
        else:
            finished.set()

    opened.transport.send(link, MESSAGE, again, WAIT)
    assert finished.wait(WAIT)
    opened.transport.close(WAIT)


def test_calls_that_wait_are_refused_in_a_callback(opened: Opened) -> None:
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    raised: list[Any] = []
    finished = threading.Event()

    def settled(_error: Any) -> None:
        for call in (
            lambda: opened.transport.send(link, MESSAGE, None, WAIT),
            lambda: opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT),
        ):
            try:
                call()
            except IllegalStateException as error:
                raised.append(error)
        finished.set()

    opened.transport.send(link, MESSAGE, settled, WAIT)
    assert finished.wait(WAIT)
    assert len(raised) == 2


def test_a_deadline_is_kept_and_the_late_answer_undone(server: BrokerServer, opened: Opened) -> None:
    broker = server.brokers[0]
    accept = broker.peer.accept_link
    asked = threading.Event()
    waiting: list[Any] = []

    def wait(*given: Any, **options: Any) -> None:
        waiting.append(lambda: accept(*given, **options))
        asked.set()

    broker.peer.accept_link = wait  # type: ignore[method-assign]
    with pytest.raises(OperationTimedOutException, match=r"attaching a producer to 'q' had no answer within 1 s"):
        opened.transport.attach(SenderSpec(1, QUEUE), None, 1.0)

    assert asked.wait(WAIT)
    broker.peer.accept_link = accept  # type: ignore[method-assign]
    server.run(waiting[0])
    # The answer to the first comes after the late one, the second is sent after what the client did about that.
    opened.transport.attach(SenderSpec(1, queue("first")), None, WAIT)
    opened.transport.attach(SenderSpec(1, queue("second")), None, WAIT)
    assert len(broker.of(LinkRemoteClose)) == 1


def test_deliveries_are_pushed_and_settled(server: BrokerServer, opened: Opened) -> None:
    got: list[Delivery] = []
    arrived = threading.Semaphore(0)

    def sink(deliveries: Any) -> None:
        got.extend(deliveries)
        for _ in deliveries:
            arrived.release()

    link = opened.transport.attach(ReceiverSpec(1, QUEUE), sink, WAIT)
    opened.transport.credit(link, 10)
    broker = server.brokers[0]
    for index in range(3):
        server.run(
            lambda index=index: broker.peer.send(broker.by_address["q"], with_place(index, 0, None, pack(MESSAGE)))
        )  # type: ignore[misc]
        assert arrived.acquire(timeout=WAIT)
    opened.transport.settle([Settlement(each.tag, Outcome.ACCEPTED) for each in got])
    opened.transport.drain(link, WAIT)

    assert [(each.position, each.envelope.body) for each in got] == [(0, "hello"), (1, "hello"), (2, "hello")]
    settled = [number for event in broker.of(Dispositions) if event.state == ACCEPTED_STATE for number in event.numbers]
    assert len(settled) == 3
    opened.transport.detach(link, WAIT)
    opened.transport.detach(link, WAIT)
    opened.transport.end_session(1, WAIT)


def test_commits_and_temporary_destinations_go_through(server: BrokerServer, opened: Opened) -> None:
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.commit(1, 1, [(link, MESSAGE)] * 3, [], WAIT)
    assert [fail for fail, _ in server.brokers[0].discharges] == [False]

    temporary = opened.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    opened.transport.delete_temporary(temporary, WAIT)
    with pytest.raises(InvalidDestinationException):
        opened.transport.delete_temporary(temporary, WAIT)
    server.brokers[0].refusals[None] = AmqpError("amqp:not-found", "no such subscription")
    with pytest.raises(InvalidDestinationException, match="no such subscription"):
        opened.transport.unsubscribe("sub", WAIT)


def test_a_message_larger_than_the_brokers_limit_is_refused_here(server: BrokerServer) -> None:
    opened = Opened(server.port)
    server.brokers[0].max_message_bytes = 2_000
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    size = 2_000 - len(pack(MESSAGE._replace(body="x" * 1_000))) + 1_000

    opened.transport.send(link, MESSAGE._replace(body="x" * size), None, WAIT)
    with pytest.raises(MessageFormatException, match="2001 bytes is larger than the broker's limit of 2000 bytes"):
        opened.transport.send(link, MESSAGE._replace(body="x" * (size + 1)), None, WAIT)
    opened.transport.close(WAIT)


@pytest.mark.parametrize(("version", "octet"), [(0, 0x00), (1, 0x48), (2, 0x48)])
def test_messages_are_sent_in_the_highest_version_that_the_broker_knows(version: int, octet: int) -> None:
    def make() -> ScriptedBroker:
        broker = ScriptedBroker()
        broker.envelope_version = version
        return broker

    server = BrokerServer(make)
    opened = Opened(server.port)
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.send(link, MESSAGE, None, WAIT)
    ((_, payload, _),) = [each for event in server.brokers[0].of(Transfers) for each in event.deliveries]
    opened.transport.close(WAIT)
    server.close()
    assert payload[0] == octet
    assert decode_payload(payload, QUEUE).body == "hello"


def test_an_event_that_is_sent_on_to_a_foreign_broker_loses_what_says_that_it_is_one(server: BrokerServer) -> None:
    opened = Opened(server.port, "?envelope=false")
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    event = MESSAGE._replace(properties={"JMS_Holdfast_Key": "a", "own": 1})
    opened.transport.send(link, event, None, WAIT)
    opened.transport.close(WAIT)
    ((_, payload, _),) = [each for event in server.brokers[0].of(Transfers) for each in event.deliveries]
    assert decode_payload(payload, QUEUE).properties == {"own": 1}


# Outages.


def test_an_outage_wakes_all_calls_with_the_reason(server: BrokerServer, opened: Opened) -> None:
    broker = server.brokers[0]
    broker.accepts = broker.answers_drain = False
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    consumer = opened.transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, WAIT)
    opened.transport.credit(consumer, 5)
    answers: list[Any] = []
    opened.transport.send(link, MESSAGE, answers.append, WAIT)
    opened.transport.begin_request("y", {}, lambda _result, error: bool(answers.append(error)))
    calls = [
        in_thread(lambda: opened.transport.send(link, MESSAGE, None, WAIT)),
        in_thread(lambda: opened.transport.drain(consumer, WAIT)),
        in_thread(lambda: opened.transport.request("x", {}, WAIT)),
    ]
    while len(broker.held) < 3 or not any(getattr(event, "drain", False) for event in broker.log):
        calls[0][0].join(0.001)
    server.drop_connections()
    for thread, _ in calls:
        thread.join(WAIT)

    assert [type(outcome[0]) for _, outcome in calls] == [ConnectionLostException] * 3
    assert opened.failed.wait(WAIT)
    assert [type(event) for event in opened.events] == [Failed]
    assert [type(error) for error in answers] == [ConnectionLostException] * 2
    for call in (
        lambda: opened.transport.send(link, MESSAGE, None, WAIT),
        lambda: opened.transport.begin_request("z", {}, lambda _result, _error: True),
        lambda: opened.transport.credit(consumer, 1),
        lambda: opened.transport.settle([]),
        lambda: opened.transport.drain(consumer, WAIT),
    ):
        with pytest.raises(ConnectionLostException):
            call()
    opened.transport.close(WAIT)
    assert len(opened.events) == 1


def test_a_sender_held_back_by_the_window_is_woken_by_an_outage(server: BrokerServer) -> None:
    opened = Opened(server.port, "?send_window_messages=1")
    server.brokers[0].accepts = False
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.send(link, MESSAGE, lambda _error: None, WAIT)
    thread, outcome = in_thread(lambda: opened.transport.send(link, MESSAGE, lambda _error: None, WAIT))
    while not server.brokers[0].held:
        thread.join(0.001)
    server.drop_connections()
    thread.join(WAIT)

    assert len(outcome) == 1  # the window opened with the outage, or the outage came first
    assert opened.failed.wait(WAIT)
    opened.transport.close(WAIT)


def test_a_commit_caught_by_an_outage_is_in_doubt(server: BrokerServer, opened: Opened) -> None:
    broker = server.brokers[0]
    opened.transport.commit(1, 1, [], [], WAIT)
    settle = broker.peer.settle
    broker.peer.settle = lambda *given: None  # type: ignore[method-assign]
    thread, outcome = in_thread(lambda: opened.transport.commit(1, 2, [], [], WAIT))
    while len(broker.discharges) < 2:
        thread.join(0.001)
    broker.peer.settle = settle  # type: ignore[method-assign]
    server.drop_connections()
    thread.join(WAIT)

    assert [type(error) for error in outcome] == [TransactionInDoubtException]


def test_close_is_legal_twice_and_never_hangs(server: BrokerServer) -> None:
    opened = Opened(server.port, "?close_timeout_seconds=0.1")
    server.brokers[0].peer.close = lambda error=None: None  # type: ignore[method-assign]
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    opened.transport.close(None)
    opened.transport.close(None)

    assert opened.events == []
    with pytest.raises(IllegalStateException, match="the connection is closed"):
        opened.transport.send(link, MESSAGE, None, WAIT)
    with pytest.raises(IllegalStateException):
        opened.transport.open(Credentials(), lambda _event: None, WAIT)


def test_closing_what_was_never_opened_is_legal() -> None:
    AmqpTransport(url_of(1)).close(1)


# Connections that do not come about.


def test_a_port_that_speaks_no_amqp_is_a_lost_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread, outcome = in_thread(lambda: Opened(listening.getsockname()[1]))
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            thread.join(WAIT)

    assert isinstance(outcome[0], ConnectionLostException)
    assert "does not answer in AMQP 1.0" in outcome[0].reason


def test_a_port_that_says_nothing_keeps_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionLostException, match=r"gave no answer within 1 s"):
            Opened(port, "?connect_timeout_seconds=1")
        with pytest.raises(OperationTimedOutException):
            AmqpTransport(url_of(port)).open(Credentials(), lambda _event: None, 0.05)


def test_a_client_id_in_use_is_told_by_its_own_exception() -> None:
    def make() -> ScriptedBroker:
        broker = ScriptedBroker()
        broker.open_error = AmqpError("amqp:invalid-field", "in use", {"invalid-field": "container-id"})
        return broker

    server = BrokerServer(make)
    with pytest.raises(InvalidClientIDException, match="in use"):
        Opened(server.port)
    server.close()


def test_a_login_over_tls_that_is_turned_away_is_not_told_to_use_tls(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def turn_away() -> None:
        with listening.accept()[0] as accepted, context.wrap_socket(accepted, server_side=True) as wrapped:
            wrapped.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=turn_away)
        thread.start()
        url = url_of(listening.getsockname()[1], f"?tls_ca_file={certificate}.crt", "amqps")
        with pytest.raises(
            ConnectionLostException, match="during the login; it may be stopping or have too many logins at once"
        ):
            AmqpTransport(url, make_login=login_for).open(Credentials("al", "s3cret"), lambda _event: None, WAIT)
        thread.join(WAIT)


# Threads, and what a broker does not offer.


def test_many_threads_share_one_connection(opened: Opened) -> None:
    links = [opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT) for _ in range(4)]

    def send(link: int) -> str:
        for _ in range(100):
            opened.transport.send(link, MESSAGE, None, WAIT)
        return "sent"

    threads = [in_thread(lambda link=link: send(link)) for link in links]  # type: ignore[misc]
    for thread, _ in threads:
        thread.join(WAIT)

    assert [outcome for _, outcome in threads] == [["sent"]] * 4


def test_an_anonymous_producer_has_a_link_for_each_destination_where_there_is_no_relay() -> None:
    pipe = Pipe(ScriptedBroker(holdfast=False, offered=()))
    opened = Opened(1, make_io=lambda protocol: MemoryConnection(protocol, pipe))
    transport = opened.transport
    link = transport.attach(SenderSpec(1, None), None, WAIT)
    for name in ("a", "b", "a"):
        transport.send(link, Envelope(queue(name)), None, WAIT)
    transport.commit(1, 1, [(link, Envelope(queue("b"))), (link, Envelope(queue("c")))], [], WAIT)
    targets = [event.target.address for event in pipe.broker.of(LinkRemoteOpen) if not event.target.coordinator]
    assert targets == ["a", "b", "c"]
    counts = [
        sum(len(event.deliveries) for event in pipe.broker.of(Transfers) if event.link == pipe.broker.by_address[name])
        for name in "abc"
    ]
    assert counts == [2, 2, 1]
    transport.detach(link, WAIT)
    assert len(pipe.broker.of(LinkRemoteClose)) == 3
    with pytest.raises(IllegalStateException, match="closed"):
        transport.send(link, Envelope(queue("a")), None, WAIT)
    transport.close(WAIT)


def test_a_delay_that_the_broker_does_not_offer_is_refused() -> None:
    pipe = Pipe(ScriptedBroker(holdfast=False, offered=()))
    opened = Opened(1, make_io=lambda protocol: MemoryConnection(protocol, pipe))
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    with pytest.raises(JMSException, match="does not offer delivery delay"):
        opened.transport.send(link, Envelope(QUEUE, deliver_at_ms=1), None, WAIT)
    opened.transport.send(link, Envelope(QUEUE), None, WAIT)
    opened.transport.close(WAIT)


def test_another_broker_is_not_asked_what_only_ours_can_answer() -> None:
    server = BrokerServer(lambda: ScriptedBroker(holdfast=False))
    opened = Opened(server.port)
    transport = opened.transport
    transport.watch()
    assert transport.resolve_commit(1, 1, 0.0, WAIT) is None
    transport.restore_temporaries([Destination("temporary-queue/1", DestinationKind.TEMPORARY_QUEUE)], WAIT)
    assert server.brokers[0].links == {}, "no link to a management node, and none of a temporary queue"
    transport.confirm(WAIT)  # a session begins and ends instead
    assert len(server.brokers[0].of(SessionRemoteClose)) == 1
    transport.close(WAIT)
    server.close()


def test_what_is_asked_of_a_lost_connection_is_refused_in_its_own_words(server: BrokerServer, opened: Opened) -> None:
    link = opened.transport.attach(SenderSpec(1, QUEUE), None, WAIT)
    server.close()
    assert opened.failed.wait(WAIT)
    for ask in (
        lambda: opened.transport.detach(link, WAIT),
        lambda: opened.transport.end_session(1, WAIT),
        lambda: opened.transport.confirm(WAIT),
    ):
        with pytest.raises(ConnectionLostException):
            ask()


def test_the_wait_for_a_confirmation_ends_where_another_thread_ends_it(server: BrokerServer, opened: Opened) -> None:
    server.brokers[0].accepts = False

    def begin(end_wait: Callable[[JMSException], None]) -> None:
        threading.Timer(0.1, end_wait, (IllegalStateException("the consumer was closed"),)).start()

    with pytest.raises(IllegalStateException, match="the consumer was closed"):
        opened.transport.confirm_until(begin, WAIT)
