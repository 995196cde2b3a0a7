"""The seed *Client Failover Behaviour*, sentence by sentence, against a real server behind a proxy.

Each test quotes the sentence that it shows.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from sdk import (
    AcknowledgeMode,
    BrowserInterruptedException,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    DeliveryMode,
    Failed,
    IllegalStateException,
    Interrupted,
    JMSException,
    Message,
    NoSuchElementException,
    OperationTimedOutException,
    Restored,
    Session,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.faults.conftest import Client, Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

#: Seconds in which is done what does not wait for the network, also where the machine is busy.
SOON = 60.0
#: Seconds after which something that still waits counts as waiting.
A_WHILE = 0.4
#: Time-outs for what would wait for the network, and is not to.
PATIENT = "&close_timeout_seconds=1000&request_timeout_seconds=1000&poll_timeout_seconds=1000&send_timeout_seconds=1000"


@pytest.fixture
def name() -> str:
    """Of a queue that no other test uses."""
    return f"queue {uuid4()}"


def fill(direct: Connection, name: str, count: int) -> None:
    with direct.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(str(number))


def messages_in(direct: Connection, name: str) -> int:
    return next((each.messages for each in direct.statistics().queues if each.name == name), 0)


def stored_in(direct: Connection, name: str) -> int:
    """How many messages a queue ever had."""
    return next((each.next_position - 1 for each in direct.statistics().queues if each.name == name), 0)


def seconds(act: Callable[[], object]) -> float:
    start = time.monotonic()
    act()
    return time.monotonic() - start


def lose(client: Client, proxy: Proxy) -> None:
    """Cut, and keep the network away."""
    proxy.refuse()
    assert proxy.cut()
    client.wait_for_loss()


def cut(client: Client, proxy: Proxy) -> None:
    """Cut, and wait until the connection is there again."""
    before = client.count(Restored)
    assert proxy.cut()
    client.wait_for_restore(before + 1)


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(act())
        except JMSException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


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


# "When the client connection is recreated, existing Sessions, Producers, Consumers will be refreshed transparently."


def test_everything_a_connection_had_comes_back(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    client = connect(client_id=f"client of {name}")
    got: dict[str, list[str]] = {}
    with direct.create_session() as elsewhere:
        queue, topic = elsewhere.create_queue(name), elsewhere.create_topic(name)
        sessions = [client.connection.create_session() for _ in range(5)]
        consumers = {
            "queue": sessions[0].create_consumer(queue, "colour = 'red'"),
            "topic": sessions[1].create_consumer(topic),
            "durable": sessions[2].create_durable_consumer(topic, "durable"),
            "shared": sessions[3].create_shared_consumer(topic, "shared"),
            "shared durable": sessions[4].create_shared_durable_consumer(topic, "shared durable"),
        }
        for word, consumer in consumers.items():
            consumer.listener = got.setdefault(word, []).append  # type: ignore[assignment]
        for _ in range(2):
            cut(client, proxy)
        to_queue, to_topic = elsewhere.create_producer(queue), elsewhere.create_producer(topic)
        for colour in ("blue", "red"):
            message = elsewhere.create_text_message(colour)
            message.properties["colour"] = colour
            to_queue.send(message)
        to_topic.send("news")
        assert wait_for(lambda: all(got.values())), got
    assert {word: [message.body for message in messages] for word, messages in got.items()} == {  # type: ignore[attr-defined]
        "queue": ["red"],
        "topic": ["news"],
        "durable": ["news"],
        "shared": ["news"],
        "shared durable": ["news"],
    }


def test_a_durable_subscription_has_what_came_while_the_network_was_away(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect(client_id=f"client of {name}")
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        consumer = session.create_durable_consumer(session.create_topic(name), "durable")
        lose(client, proxy)
        elsewhere.create_producer(elsewhere.create_topic(name)).send("meanwhile")
        proxy.refuse(False)
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == "meanwhile"


# "A special JMS exception (ConnectionLostException) needs to be sent into ExceptionListener."


def test_each_loss_is_told_once_with_what_became_of_it_in_order(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    for _ in range(3):
        cut(client, proxy)
    assert [type(each) for each in client.told] == [ConnectionLostException] * 3
    assert [type(each) for each in client.events] == [Interrupted, Restored] * 3
    restored = client.events[-1]
    assert isinstance(restored, Restored)
    assert restored.address == proxy.url
    assert 0 < restored.seconds < WAIT


def test_a_listener_that_raises_is_told_the_next_time_as_well(connect: Connect, proxy: Proxy) -> None:
    client = connect()
    told = []

    def listener(error: JMSException) -> None:
        told.append(error)
        raise RuntimeError("not my day")

    client.connection.exception_listener = listener
    for _ in range(2):
        cut(client, proxy)
    assert wait_for(lambda: len(told) == 2)


def test_a_listener_may_close_the_connection(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    session = client.connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    closed = threading.Event()

    def listener(_error: JMSException) -> None:
        client.connection.close()
        closed.set()

    client.connection.exception_listener = listener
    thread, results = in_background(consumer.receive)
    proxy.cut()
    assert closed.wait(WAIT)
    thread.join(WAIT)
    assert results == [None]


# "In Auto Acknowledge mode, by default the last message received by the application may fail to be acknowledged if the
# connection gets closed during onMessage ... in onMessage such failure has to be notified through the
# ExceptionListener."


def test_auto_a_message_whose_listener_ran_through_the_loss_is_redelivered_and_that_is_reported(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    seen: list[tuple[str, bool]] = []
    running, go_on = threading.Event(), threading.Event()

    def listener(message: Message) -> None:
        seen.append((message.body, message.redelivered))
        if len(seen) == 2:
            running.set()
            go_on.wait(WAIT)

    with client.connection.create_session() as session:
        session.create_consumer(session.create_queue(name)).listener = listener
        assert running.wait(WAIT)
        cut(client, proxy)
        go_on.set()
        assert wait_for(lambda: len(seen) == 4 and len(client.told) == 2)
    assert seen == [("0", False), ("1", False), ("1", True), ("2", False)], "the last one was only prefetched"
    assert [type(each) for each in client.told] == [ConnectionLostException] * 2
    assert "could not be acknowledged" in client.told[1].reason
    assert messages_in(direct, name) == 0


# "Only a session's last consumed message is subject to this ambiguity."


@pytest.mark.parametrize("held", [Direction.TO_SERVER, Direction.TO_CLIENT], ids=lambda each: each.name)
def test_auto_acknowledgements_that_never_arrived_are_repeated(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, held: Direction
) -> None:
    fill(direct, name, 50)
    client = connect()
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        received = [consumer.receive(WAIT) for _ in range(10)]
        assert wait_for(lambda: messages_in(direct, name) == 40)
        proxy.hold(held)  # acknowledgements go nowhere from here on
        received += [consumer.receive(WAIT) for _ in range(20)]
        proxy.hold()  # it would all arrive now, but for the cut
        proxy.cut()
        client.wait_for_restore()
        bodies = [message.body for message in received if message is not None]
        while len(set(bodies)) < 50 and (message := consumer.receive(WAIT)) is not None:
            bodies.append(message.body)
        while (message := consumer.receive(0.3)) is not None:
            bodies.append(message.body)
        again = len(bodies) - len(set(bodies))
        assert sorted(set(bodies), key=int) == [str(number) for number in range(50)]
        assert again <= 1, f"{again} messages were redelivered"
        assert wait_for(lambda: messages_in(direct, name) == 0)


# "Any call to recover() performed following failover should be successful, and the request to recover() would result in
# cleaning the Session and resuming message delivery with the first message sent by the new broker."


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.CLIENT])
@pytest.mark.parametrize("when", ["while it is away", "after it is back"])
def test_recover_succeeds_and_delivery_starts_again(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: AcknowledgeMode, when: str
) -> None:
    fill(direct, name, 3)
    client = connect("&dups_ok_delay_seconds=100")
    with client.connection.create_session(mode) as session:
        consumer = session.create_consumer(session.create_queue(name))
        first = consumer.receive(WAIT)
        assert first is not None
        lose(client, proxy)
        if when == "while it is away":
            session.recover()
        proxy.refuse(False)
        client.wait_for_restore()
        if when == "after it is back":
            session.recover()
        message = consumer.receive(WAIT)
        assert message is not None
        again = mode is not AcknowledgeMode.AUTO  # whose acknowledgement was on its way
        assert message.body == ("0" if again else "1")
        message.acknowledge()  # clean: nothing is raised


# "Duplicates are allowed in this mode ... and thus failover can be performed silently."


def test_dups_ok_is_silent(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    fill(direct, name, 20)
    client = connect("&dups_ok_delay_seconds=100&dups_ok_batch_messages=7")
    with client.connection.create_session(AcknowledgeMode.DUPS_OK) as session:
        consumer = session.create_consumer(session.create_queue(name))
        bodies = []
        for number in range(10):
            message = consumer.receive(WAIT)
            assert message is not None
            bodies.append(message.body)
            if number == 8:
                cut(client, proxy)
        while len(set(bodies)) < 20 and (message := consumer.receive(WAIT)) is not None:
            bodies.append(message.body)
    assert set(bodies) == {str(number) for number in range(20)}
    assert [type(each) for each in client.told] == [ConnectionLostException]


# "A Client Ack Session should be considered 'dirty' if any unacknowledged messages have been received by the
# application ... When the next call to message.acknowledge() is performed, recover() should be called implicitly to
# clean the Session and an exception should be thrown."


def test_client_a_dirty_session_says_so_once_and_with_how_many_messages(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 5)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        before = [consumer.receive(WAIT) for _ in range(3)]
        assert wait_for(lambda: len(consumer._prefetch.buffer) == 2), (
            "what the network still has would count as delivered"
        )
        cut(client, proxy)
        assert before[2] is not None
        with pytest.raises(StaleAcknowledgementException) as raised:
            before[2].acknowledge()
        assert raised.value.stale_count == 3
        before[2].acknowledge()  # once
        after = [consumer.receive(WAIT) for _ in range(5)]
        assert [(each.body, each.redelivered) for each in after if each is not None] == [
            (str(number), number < 3) for number in range(5)
        ]
        before[0].acknowledge()  # type: ignore[union-attr]  # does not acknowledge what came since
        assert messages_in(direct, name) == 5
        assert after[4] is not None
        after[4].acknowledge()
        assert wait_for(lambda: messages_in(direct, name) == 0)


def test_client_what_came_after_the_loss_is_recovered_with_the_dirty_session(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        assert consumer.receive(WAIT) is not None
        cut(client, proxy)
        newer = [consumer.receive(WAIT) for _ in range(2)]
        assert newer[1] is not None
        with pytest.raises(StaleAcknowledgementException):
            newer[1].acknowledge()
        assert messages_in(direct, name) == 3, "it acknowledged what it should have recovered"
        again = [consumer.receive(WAIT) for _ in range(3)]
        assert {each.body for each in again if each is not None} == {"0", "1", "2"}
        assert again[2] is not None
        again[2].acknowledge()
        assert wait_for(lambda: messages_in(direct, name) == 0)


def test_client_a_clean_session_notices_nothing(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    fill(direct, name, 4)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        for number in range(4):
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            message.acknowledge()
            cut(client, proxy)
    assert messages_in(direct, name) == 0


def test_individual_each_stale_message_is_refused_by_itself(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.INDIVIDUAL) as session:
        consumer = session.create_consumer(session.create_queue(name))
        stale = consumer.receive(WAIT)
        cut(client, proxy)
        good = consumer.receive(WAIT)
        assert stale is not None
        assert good is not None
        good.acknowledge()
        with pytest.raises(StaleAcknowledgementException) as raised:
            stale.acknowledge()
        assert raised.value.stale_count == 1
        stale.acknowledge()  # once
        assert wait_for(lambda: messages_in(direct, name) == 2)


# "A Transacted Session should be considered 'dirty' if any uncommitted send/receive operations exist ... When the next
# call to commit() is made, the Session will automatically be rolled back and TransactionRolledBackException thrown."


@pytest.mark.parametrize("work", ["a send", "a receive", "both"])
def test_transacted_a_dirty_session_rolls_back_once_and_the_next_transaction_is_clean(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, work: str
) -> None:
    fill(direct, f"{name} in", 1)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(f"{name} out"))
        consumer = session.create_consumer(session.create_queue(f"{name} in"))

        def do() -> None:
            if work != "a receive":
                producer.send("x")
            if work != "a send":
                assert consumer.receive(WAIT) is not None

        do()
        cut(client, proxy)
        with pytest.raises(TransactionRolledBackException):
            session.commit()
        assert stored_in(direct, f"{name} out") == 0
        assert messages_in(direct, f"{name} in") == 1
        do()
        session.commit()
        assert stored_in(direct, f"{name} out") == (work != "a receive")
        assert messages_in(direct, f"{name} in") == (work == "a send")


def test_transacted_a_rollback_after_the_loss_succeeds_and_cleans(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 1)
    client = connect(PATIENT)
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(name))
        assert consumer.receive(WAIT) is not None
        lose(client, proxy)
        assert seconds(session.rollback) < SOON
        proxy.refuse(False)
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.redelivered
        session.commit()
    assert messages_in(direct, name) == 0


def test_transacted_a_session_that_did_nothing_notices_nothing(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(name))
        for _ in range(3):
            cut(client, proxy)
            session.commit()
            producer.send("x")
            session.commit()


def test_transacted_what_is_sent_while_the_network_is_away_belongs_to_a_transaction_of_its_own(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(name))
        lose(client, proxy)
        producer.send("x")
        proxy.refuse(False)
        session.commit()
    assert messages_in(direct, name) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["its answer was lost", "it was lost"])
def test_transacted_a_commit_under_way_is_resolved(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, arrives: bool
) -> None:
    fill(direct, f"{name} in", 1)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(f"{name} in"))
        producer = session.create_producer(session.create_queue(f"{name} out"))
        producer.send("warm up")
        session.commit()
        assert consumer.receive(WAIT) is not None
        producer.send("x")
        proxy.hold(Direction.TO_CLIENT if arrives else Direction.TO_SERVER)
        thread, results = in_background(session.commit)
        if arrives:
            assert wait_for(lambda: stored_in(direct, f"{name} out") == 2)
        else:
            time.sleep(0.2)
        if arrives:
            proxy.leave_half_open()  # the server has not noticed when the client comes back
        else:
            proxy.cut()
        proxy.hold()
        thread.join(WAIT)
        if arrives:
            assert results == [None]
        else:
            assert isinstance(results[0], TransactionRolledBackException)
        assert stored_in(direct, f"{name} out") == 1 + arrives
        assert messages_in(direct, f"{name} in") == (not arrives)
        producer.send("next")
        session.commit()


# "If failover occurred while iterating through QueueBrowser enumerations a sub-class of NoSuchElementException should
# be thrown by default."


@pytest.mark.parametrize("prefetch", [500, 50])
def test_a_browser_that_was_being_iterated_says_that_it_lost_its_place(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, prefetch: int
) -> None:
    fill(direct, name, 120)
    client = connect(f"&browser_prefetch_messages={prefetch}")
    with client.connection.create_session() as session:
        browser = session.create_browser(session.create_queue(name))
        look = iter(browser)
        assert [message.body for message in itertools.islice(look, 10)] == [str(number) for number in range(10)]
        cut(client, proxy)
        with pytest.raises(NoSuchElementException) as raised:
            list(look)
        assert type(raised.value) is BrowserInterruptedException
        assert len(list(browser)) == 120, "a new iteration begins at the head"


# "On successful failover, it is expected that a Qpid client should restore all temporary queues (by redeclaring the
# queues with the same name+attributes) created before failover."


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_temporary_destinations_come_back_under_their_names(
    connect: Connect, proxy: Proxy, direct: Connection, kind: str
) -> None:
    client = connect()
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        is_queue = kind == "queue"
        temporary = session.create_temporary_queue() if is_queue else session.create_temporary_topic()
        consumer = session.create_consumer(temporary)
        replier = elsewhere.create_producer()
        for number in range(3):
            replier.send(str(number), temporary)
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            if number == 1:
                proxy.leave_half_open()  # the server still has it when the client comes back
                client.wait_for_restore(2)
            else:
                cut(client, proxy)
        assert temporary.is_temporary
        with pytest.raises(JMSException):
            elsewhere.create_consumer(temporary)  # still for its own connection alone
        consumer.close()
        session.delete_temporary(temporary)
        with pytest.raises(JMSException):
            replier.send("gone", temporary)


# What is only prefetched is discarded, and has not failed.


def test_what_waits_behind_others_does_not_become_a_dead_letter_by_losses_alone(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    count = 14  # more than max_deliveries
    fill(direct, name, count)
    client = connect()
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        received = []
        for _ in range(count):
            message = consumer.receive(WAIT)
            assert message is not None
            received.append(message.body)
            cut(client, proxy)
        assert consumer.receive(0.1) is None
    # What was lost on the wire, which the client could not report, may have been delayed and lost its turn.
    assert sorted(received, key=int) == [str(number) for number in range(count)], "each seen once"
    assert messages_in(direct, "DLQ") == 0


@pytest.mark.parametrize("durable", [False, True])
def test_acknowledgements_of_a_shared_subscription_do_not_stand_in_the_way_of_a_restore(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, durable: bool
) -> None:
    client = connect()
    with client.connection.create_session() as session, direct.create_session() as elsewhere:
        topic = session.create_topic(name)
        make = session.create_shared_durable_consumer if durable else session.create_shared_consumer
        consumer = make(topic, f"shared {name}")
        producer = elsewhere.create_producer(topic)
        for number in range(4):
            producer.send(str(number))
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            cut(client, proxy)  # a subscription that is not durable ends with it
        restored = client.events[-1]
        assert isinstance(restored, Restored)
        assert restored.attempts == 1
        consumer.close()
        if durable:
            session.unsubscribe(f"shared {name}")


# Sends that had no answer.


@pytest.mark.parametrize("lost", ["the message", "its answer"])
def test_a_synchronous_send_in_flight_arrives_once(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, lost: str
) -> None:
    client = connect()
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        producer.send("first")
        proxy.hold(Direction.TO_SERVER if lost == "the message" else Direction.TO_CLIENT)
        thread, results = in_background(lambda: producer.send("second"))
        if lost == "its answer":
            assert wait_for(lambda: stored_in(direct, name) == 2)
        else:
            time.sleep(0.1)
        proxy.leave_half_open()
        proxy.hold()
        thread.join(WAIT)
        assert results == [None]
        producer.send("third")
    assert stored_in(direct, name) == 3


@pytest.mark.parametrize("mode", DeliveryMode, ids=lambda mode: mode.name)
def test_asynchronous_sends_arrive_once_in_their_order_over_many_cuts(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: DeliveryMode
) -> None:
    client = connect("&send_window_messages=50")
    answers: list[tuple[str, JMSException | None]] = []
    count = 2000
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(
                str(number),
                delivery_mode=mode,
                on_completion=lambda message, error: answers.append((message.body, error)),
            )
            if number % 200 == 100:
                proxy.cut()
    assert wait_for(lambda: len(answers) == count)
    assert answers == [(str(number), None) for number in range(count)], "in order, none failed"
    with direct.create_session() as elsewhere:
        consumer = elsewhere.create_consumer(elsewhere.create_queue(name))
        found = []
        while len(found) < count and (message := consumer.receive(WAIT)) is not None:
            found.append(message.body)
        assert consumer.receive(0.3) is None
    assert found == [str(number) for number in range(count)]


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
