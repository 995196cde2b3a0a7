"""Sentences of *Client Failover Behaviour* on outages: what waits, how long, and who is told."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    Failed,
    IllegalStateException,
    Interrupted,
    JMSException,
    OperationTimedOutException,
    Restored,
    Session,
    TransactionRolledBackException,
)
from tests.faults.conftest import Connect
from tests.faults.losses import PATIENT, SOON, cut, fill, in_background, lose, messages_in, seconds
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash
#: Seconds after which something that still waits counts as waiting.
A_WHILE = 0.4


# "When connection to broker is lost due to network failure a Qpid client should be able to re-establish connection to a
# Qpid broker if failover policy is not switched off by specifying 'nofailover'."


def test_a_lost_connection_is_restored(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    with client.connection.create_session() as session:
        queue = session.create_queue(name)
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        for number in range(3):
            producer.send(str(number))
            cut(client, proxy)
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)


def test_without_failover_a_loss_is_the_end(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect("&failover=nofailover")
    session = client.connection.create_session()
    producer = session.create_producer(session.create_queue(name))
    proxy.cut()
    assert wait_for(lambda: client.count(Failed) == 1)
    with pytest.raises(ConnectionLostException):
        producer.send("x")
    assert [type(each) for each in client.told] == [ConnectionLostException]


# "Such operations should be blocked until failover functionality restores the connectivity."


@pytest.mark.parametrize(
    "operation",
    [
        "send",
        "receive",
        "create_consumer",
        "create_producer",
        "browse",
        "unsubscribe",
        "temporary",
        "commit",
        "request",
    ],
)
def test_what_needs_the_network_waits_for_it(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, operation: str
) -> None:
    client = connect(client_id=name)
    with (
        client.connection.create_session() as session,
        client.connection.create_session(AcknowledgeMode.TRANSACTED) as transacted,
    ):
        queue = session.create_queue(name)
        producer, consumer = session.create_producer(queue), session.create_consumer(queue)
        in_transaction = transacted.create_producer(queue)
        session.create_durable_consumer(session.create_topic(name), "subscription").close()
        lose(client, proxy)

        def commit() -> None:
            in_transaction.send("in a transaction")
            transacted.commit()

        operations: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("x"),
            "receive": lambda: consumer.receive(),
            "create_consumer": lambda: session.create_consumer(queue),
            "create_producer": lambda: session.create_producer(queue),
            "browse": lambda: list(session.create_browser(queue)),
            "unsubscribe": lambda: session.unsubscribe("subscription"),
            "temporary": session.create_temporary_queue,
            "commit": commit,
            "request": lambda: client.connection.statistics(),
        }
        thread, results = in_background(operations[operation])
        thread.join(A_WHILE)
        assert thread.is_alive(), f"it did not wait: {results}"
        proxy.refuse(False)
        if operation == "receive":
            fill(direct, name, 1)
        thread.join(WAIT)
        assert not thread.is_alive(), "it still waits"
        assert not isinstance(results[0], JMSException), results


# "... until connection is restored or the application calls Connection.close() or all failover method reconnection
# attempts are exhausted. If the failover functionality cannot re-establish the connection a JMSException should be
# thrown within any JMS operation requiring transferring data over the network."


def test_what_waits_is_told_when_the_attempts_are_exhausted(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect("&max_reconnect_attempts=3&reconnect_delay_seconds=0.2&reconnect_jitter=0")
    session = client.connection.create_session()
    queue = session.create_queue(name)
    producer, consumer = session.create_producer(queue), session.create_consumer(queue)
    other = client.connection.create_session()
    other_producer = other.create_producer(queue)
    lose(client, proxy)
    received = in_background(consumer.receive)
    sent = in_background(lambda: other_producer.send("x"))
    for thread, results in (received, sent):
        thread.join(WAIT)
        assert isinstance(results[0], ConnectionLostException)
        assert "no connection after 3 attempts" in results[0].reason
    with pytest.raises(ConnectionLostException):
        producer.send("later")
    assert wait_for(lambda: len(client.events) == len(client.told) == 2)
    assert [type(each) for each in client.events] == [Interrupted, Failed]
    assert [type(each) for each in client.told] == [ConnectionLostException] * 2


def test_what_waits_is_told_when_the_connection_is_closed(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect(PATIENT)
    session = client.connection.create_session()
    queue = session.create_queue(name)
    producer, consumer = session.create_producer(queue), session.create_consumer(queue)
    other = client.connection.create_session().create_consumer(queue)
    lose(client, proxy)
    sending = in_background(lambda: producer.send("x"))
    receiving = in_background(other.receive)
    time.sleep(0.05)
    assert seconds(client.connection.close) < SOON
    sending[0].join(WAIT)
    receiving[0].join(WAIT)
    assert isinstance(sending[1][0], JMSException)
    assert receiving[1] == [None]
    assert consumer


@pytest.mark.parametrize(
    "operation",
    ["send", "create_consumer", "create_producer", "browse", "unsubscribe", "temporary", "commit", "confirm"],
)
def test_what_waits_ends_when_its_session_is_closed(connect: Connect, proxy: Proxy, name: str, operation: str) -> None:
    client = connect(f"{PATIENT}&synchronous_acknowledge=true")
    session = client.connection.create_session(
        AcknowledgeMode.TRANSACTED if operation == "commit" else AcknowledgeMode.CLIENT
    )
    queue = session.create_queue(name)
    producer, consumer = session.create_producer(queue), session.create_consumer(queue)
    temporary = session.create_temporary_queue()
    if operation == "confirm":
        producer.send("x")
        message = consumer.receive(WAIT)
        assert message is not None
        proxy.hold(Direction.TO_CLIENT)  # the answer to the acknowledgement
        thread, results = in_background(message.acknowledge)
        time.sleep(A_WHILE)
    lose(client, proxy)
    if operation == "commit":
        producer.send("x")
    operations: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send("x"),
        "create_consumer": lambda: session.create_consumer(queue),
        "create_producer": lambda: session.create_producer(queue),
        "browse": lambda: list(session.create_browser(queue)),
        "unsubscribe": lambda: session.unsubscribe("subscription"),
        "temporary": session.create_temporary_queue,
        "commit": session.commit,
    }
    if operation != "confirm":
        thread, results = in_background(operations[operation])
    thread.join(A_WHILE)
    assert thread.is_alive(), f"it did not wait: {results}"
    assert seconds(session.close) < SOON
    thread.join(WAIT)
    assert not thread.is_alive()
    expected = {"commit": TransactionRolledBackException, "send": JMSException}
    assert isinstance(results[0], expected.get(operation, IllegalStateException)), results
    proxy.refuse(False)
    proxy.hold()
    assert wait_for(lambda: [type(each) for each in client.events] == [Interrupted, Restored])
    assert client.connection.create_session().create_consumer(temporary)  # restored, and nothing waits behind the rest


# Deadlines hold, whatever the network does.


def test_a_receive_keeps_its_deadline_in_an_outage(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect("&poll_timeout_seconds=0.3")
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        lose(client, proxy)
        for timeout in (0.5, 0.05):
            took = seconds(lambda timeout=timeout: consumer.receive(timeout))  # type: ignore[misc]
            assert timeout <= took < SOON
        assert seconds(consumer.receive_nowait) < SOON


def test_a_receive_keeps_its_deadline_in_a_black_hole(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        assert consumer.receive(0.01) is None
        proxy.hold(*Direction)
        took = seconds(lambda: consumer.receive(0.5))
        assert 0.5 <= took < SOON
        proxy.hold()


def test_a_send_keeps_its_deadline_and_is_not_sent_later(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect("&send_timeout_seconds=0.3")
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        producer.send("first")
        lose(client, proxy)
        start = time.monotonic()
        with pytest.raises(OperationTimedOutException):
            producer.send("too late")
        assert 0.3 <= time.monotonic() - start < SOON
        proxy.refuse(False)
        client.wait_for_restore()
        producer.send("after")
    assert messages_in(direct, name) == 2


@pytest.mark.parametrize("mode", AcknowledgeMode, ids=lambda mode: mode.name)
def test_nothing_that_ends_something_waits_for_a_network_that_is_away(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: AcknowledgeMode
) -> None:
    fill(direct, name, 3)
    client = connect(PATIENT)
    session = client.connection.create_session(mode)
    queue = session.create_queue(name)
    producer, consumer = session.create_producer(queue), session.create_consumer(queue)
    browser = session.create_browser(queue)
    temporary = session.create_temporary_queue()
    assert consumer.receive(WAIT) is not None
    lose(client, proxy)
    ends: list[Callable[[], object]] = [session.rollback] if session.transacted else [session.recover]
    ends += [browser.close, consumer.close, producer.close, lambda: session.delete_temporary(temporary), session.close]
    ends.append(client.connection.close)
    for end in ends:
        assert seconds(end) < SOON, end


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name)
def test_what_ends_something_keeps_its_deadline_where_a_lost_network_was_not_noticed_yet(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: AcknowledgeMode
) -> None:
    fill(direct, name, 3)
    client = connect("&close_timeout_seconds=0.3&poll_timeout_seconds=0.3&request_timeout_seconds=0.3")
    session = client.connection.create_session(mode)
    queue = session.create_queue(name)
    producer, consumer = session.create_producer(queue), session.create_consumer(queue)
    assert consumer.receive(WAIT) is not None
    proxy.hold(*Direction)
    ends: list[Callable[[], object]] = [session.rollback] if session.transacted else [session.recover]
    ends += [consumer.close, producer.close, session.close, client.connection.close]
    for end in ends:
        assert seconds(end) < SOON, end
    proxy.hold()


def test_a_connection_closes_at_once_while_it_tries_a_host_that_says_nothing(connect: Connect, proxy: Proxy) -> None:
    client = connect(f"{PATIENT}&connect_timeout_seconds=1000")
    proxy.be_mute()
    proxy.cut()
    client.wait_for_loss()
    time.sleep(0.1)  # the attempt has connected, and waits for a word
    assert seconds(client.connection.close) < SOON


# A server that is killed, stopped, or takes long to notice.


def test_a_server_that_is_killed_and_comes_back_is_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ServerProcess(tmp_path_factory.mktemp("killed") / "data") as server:
        factory = ConnectionFactory(f"{server.url}?reconnect_delay_seconds=0.01&max_reconnect_delay_seconds=0.1")
        with factory.create_connection() as connection, connection.create_session() as session:
            connection.start()
            queue = session.create_queue("q")
            producer, consumer = session.create_producer(queue), session.create_consumer(queue)
            for number in range(3):
                producer.send(str(number))
                server.kill()
                server.start()
                message = consumer.receive(WAIT)
                assert message is not None
                assert message.body == str(number)


def test_a_client_id_and_a_durable_subscription_are_free_for_the_client_that_comes_back(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect(client_id=f"client of {name}")
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        consumer = session.create_durable_consumer(session.create_topic(name), "durable")
        proxy.leave_half_open()  # the server believes that the old connection lives
        client.wait_for_restore()
        restored = client.events[-1]
        assert isinstance(restored, Restored)
        assert restored.attempts == 1
        elsewhere.create_producer(elsewhere.create_topic(name)).send("x")
        assert consumer.receive(WAIT) is not None


def test_a_silent_network_is_taken_for_dead(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect("&idle_timeout_seconds=1")
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        proxy.hold(*Direction)
        client.wait_for_loss()
        proxy.hold()
        client.wait_for_restore()
        producer.send("x")


def test_sessions_made_while_the_network_is_away_work_when_it_is_back(
    connect: Connect, proxy: Proxy, name: str
) -> None:
    client = connect()
    lose(client, proxy)
    session: Session = client.connection.create_session()
    thread, results = in_background(lambda: session.create_consumer(session.create_queue(name)))
    time.sleep(0.05)
    proxy.refuse(False)
    thread.join(WAIT)
    consumer = results[0]
    assert not isinstance(consumer, JMSException)
    session.create_producer(session.create_queue(name)).send("x")
    assert consumer.receive(WAIT) is not None  # type: ignore[attr-defined]


def test_a_closed_connection_cannot_be_used(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    lose(client, proxy)
    client.connection.close()
    with pytest.raises(IllegalStateException):
        client.connection.create_session()
