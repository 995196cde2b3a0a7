"""A network that stalls from the server to the client, and goes on: what is given back meanwhile keeps its place."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest

from broker_adapter.errors import OperationTimedOutException
from sdk import AcknowledgeMode, Connection, Message, MessageConsumer, Session, TransactionRolledBackException
from tests.faults.conftest import Client, Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash

NUMBERS = list(range(60))
PREFETCH = 10
#: Shorter than the stalls, so that the client goes on without the broker's answer.
OPTIONS = f"poll_timeout_seconds=0.05&prefetch_messages={PREFETCH}"


@pytest.fixture
def name(direct: Connection) -> str:
    made = f"queue {uuid4()}"
    with direct.create_session() as session:
        producer = session.create_producer(session.create_queue(made))
        for number in NUMBERS:
            producer.send(str(number))
    return made


def received(consumer: MessageConsumer, count: int) -> list[int]:
    messages = [consumer.receive(timeout=WAIT) for _ in range(count)]
    return [int(str(message)) for message in messages if message is not None]


def give_back(session: Session) -> None:
    (session.rollback if session.transacted else session.recover)()


def wait_for_prefetched(consumer: MessageConsumer) -> None:
    assert wait_for(lambda: len(consumer._prefetch.buffer) == PREFETCH)


@pytest.mark.parametrize(
    "mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name
)
@pytest.mark.parametrize("timeout", [None, WAIT], ids=["without a timeout", "with a timeout"])
def test_what_was_on_its_way_does_not_pass_what_is_given_back(
    proxy: Proxy, connect: Connect, name: str, mode: AcknowledgeMode, timeout: float | None
) -> None:
    session = connect(OPTIONS).connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    proxy.hold(Direction.TO_CLIENT)
    assert received(consumer, 7) == NUMBERS[:7]  # which asks for five more
    give_back(session)
    give_back(session)  # again, still without an answer
    flowing = threading.Timer(0.5, proxy.hold)
    flowing.start()
    found = [consumer.receive(timeout) for _ in NUMBERS]
    assert [int(str(each)) for each in found] == NUMBERS
    flowing.join()


def test_receiving_ends_in_time_while_nothing_may_be_given_out(proxy: Proxy, connect: Connect, name: str) -> None:
    session = connect(OPTIONS).connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    proxy.hold(Direction.TO_CLIENT)
    assert received(consumer, 7) == NUMBERS[:7]
    session.recover()
    assert consumer.receive_nowait() is None
    assert consumer.receive(timeout=0.2) is None
    proxy.hold()
    assert wait_for(lambda: consumer._prefetch.buffer)  # what was on its way
    assert received(consumer, len(NUMBERS)) == NUMBERS


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_what_was_on_its_way_does_not_pass_what_a_listener_raised_on(
    proxy: Proxy, connect: Connect, name: str, mode: AcknowledgeMode
) -> None:
    session = connect(OPTIONS).connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    seen: list[int] = []
    finished = threading.Event()
    flowing = threading.Timer(0.5, proxy.hold)

    def listener(message: Message) -> None:
        seen.append(int(str(message)))
        if seen == NUMBERS[:7]:
            flowing.start()
            raise ValueError("as told")
        if len(seen) == len(NUMBERS) + 1:
            finished.set()

    proxy.hold(Direction.TO_CLIENT)
    consumer.listener = listener
    assert finished.wait(WAIT)
    flowing.join()
    assert seen == [*NUMBERS[:7], *NUMBERS[6:]]


def test_a_consumer_that_gives_back_can_be_closed_while_it_waits(proxy: Proxy, connect: Connect, name: str) -> None:
    session = connect(OPTIONS).connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    proxy.hold(Direction.TO_CLIENT)
    assert received(consumer, 7) == NUMBERS[:7]
    session.recover()
    found: list[Message | None] = []
    receiving = threading.Thread(target=lambda: found.append(consumer.receive()))
    receiving.start()
    receiving.join(0.1)  # it waits for the broker's answer by now
    closing = threading.Thread(target=consumer.close)
    closing.start()
    flowing = threading.Timer(0.2, proxy.hold)
    flowing.start()
    for thread in (receiving, closing, flowing):
        thread.join(WAIT)
    assert found == [None]
    again = session.create_consumer(session.create_queue(name))
    assert received(again, len(NUMBERS)) == NUMBERS


def test_what_was_on_its_way_is_forgotten_with_its_connection(proxy: Proxy, connect: Connect, name: str) -> None:
    client = connect(f"{OPTIONS}&reconnect_delay_seconds=0.01")
    session = client.connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    proxy.hold(Direction.TO_CLIENT)
    assert received(consumer, 7) == NUMBERS[:7]
    session.recover()
    proxy.cut()
    proxy.hold()
    client.wait_for_restore()
    assert received(consumer, len(NUMBERS)) == NUMBERS


@pytest.mark.parametrize("what", ["consumer", "session", "connection"])
def test_the_heir_of_a_consumer_that_is_closed_in_a_stall_gets_what_that_left_in_order(
    proxy: Proxy, connect: Connect, direct: Connection, name: str, what: str
) -> None:
    connection = connect(OPTIONS).connection
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name), exclusive=True)
    wait_for_prefetched(consumer)
    with direct.create_session() as other:
        heir = other.create_consumer(other.create_queue(name), exclusive=True)
        proxy.hold(Direction.TO_CLIENT)
        assert received(consumer, 7) == NUMBERS[:7]
        flowing = threading.Timer(0.5, proxy.hold)
        flowing.start()
        {"consumer": consumer, "session": session, "connection": connection}[what].close()  # type: ignore[attr-defined]
        left = NUMBERS[7:] if what == "consumer" else NUMBERS
        assert received(heir, len(left)) == left
        flowing.join()


def test_closing_gives_up_on_the_answer_when_half_of_its_time_is_over(
    proxy: Proxy, connect: Connect, direct: Connection, name: str
) -> None:
    connection = connect(f"{OPTIONS}&close_timeout_seconds=0.4").connection
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name), exclusive=True)
    wait_for_prefetched(consumer)
    proxy.hold(Direction.TO_CLIENT)
    assert received(consumer, 7) == NUMBERS[:7]
    session.close()
    with direct.create_session() as other:  # while the network still stalls
        heir = other.create_consumer(other.create_queue(name), exclusive=True)
        found = received(heir, 5 + PREFETCH - 7)
        proxy.hold()
        found += received(heir, len(NUMBERS) - len(found))
    assert sorted(found) == NUMBERS, "late, but there"


def test_a_listener_gets_what_comes_after_a_drain_that_was_answered_late(
    proxy: Proxy, connect: Connect, direct: Connection
) -> None:
    name = f"queue {uuid4()}"
    session = connect(OPTIONS).connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    proxy.hold(Direction.TO_CLIENT)
    assert consumer.receive_nowait() is None
    proxy.hold()
    seen: list[str] = []
    consumer.listener = lambda message: seen.append(str(message))
    with direct.create_session() as other:
        producer = other.create_producer(other.create_queue(name))
        for number in range(3):
            producer.send(str(number))
            assert wait_for(lambda number=number: len(seen) == number + 1)  # type: ignore[misc]


def test_a_listener_that_raised_gets_what_comes_after_a_drain_that_was_answered_late(
    proxy: Proxy, connect: Connect, direct: Connection
) -> None:
    name = f"queue {uuid4()}"
    session = connect(OPTIONS).connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    seen: list[str] = []
    flowing = threading.Timer(1.5, proxy.delay, (0,))

    def listener(message: Message) -> None:
        seen.append(str(message))
        if len(seen) == 1:
            proxy.delay(0.17)  # a round trip takes longer than a half of what the listener waits for one
            flowing.start()
            raise ValueError("as told")

    consumer.listener = listener
    with direct.create_session() as other:
        producer = other.create_producer(other.create_queue(name))
        producer.send("0")
        assert wait_for(lambda: len(seen) == 2)
        flowing.join()
        producer.send("1")
        assert wait_for(lambda: len(seen) == 3)
    assert seen == ["0", "0", "1"]


def test_a_broker_that_never_answers_a_drain_is_not_waited_for_for_ever(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(f"{OPTIONS}&request_timeout_seconds=0.5").connection
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name))
    wait_for_prefetched(consumer)
    assert received(consumer, 7) == NUMBERS[:7]

    def no_answer(_link: int, _timeout: float | None) -> bool:
        raise OperationTimedOutException("no answer")

    monkeypatch.setattr(connection._transport, "drain", no_answer)
    session.recover()
    assert sorted(received(consumer, len(NUMBERS))) == NUMBERS, "late, but there"
    assert "what was given back may come late" in caplog.text


# What a loss must not do, as its news is on its way.


@pytest.fixture
def late_news(connect: Connect) -> tuple[Client, threading.Event]:
    """A client whose connection is told late of the events of its transport, and whether it is about to be."""
    client = connect(f"prefetch_messages={PREFETCH}&reconnect_delay_seconds=0.01")
    current: Any = client.connection._transport._current
    hear, happened = current.listener, threading.Event()

    def late(event: object) -> None:
        happened.set()
        threading.Event().wait(0.2)
        hear(event)

    current.listener = late
    return client, happened


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_session_that_closes_as_the_connection_is_lost_leaves_no_consumer_behind(
    proxy: Proxy, direct: Connection, name: str, late_news: tuple[Client, threading.Event], exclusive: bool
) -> None:
    client, happened = late_news
    session = client.connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name), exclusive=exclusive)
    wait_for_prefetched(consumer)
    assert received(consumer, 1) == [0]
    proxy.cut()
    assert happened.wait(WAIT)
    session.close()
    client.wait_for_restore()
    (found,) = [each for each in direct.statistics().queues if each.name == name]
    assert found.consumers == 0
    with direct.create_session() as other:
        heir = other.create_consumer(other.create_queue(name), exclusive=exclusive)
        assert received(heir, len(NUMBERS)) == NUMBERS


def test_a_transaction_that_was_begun_in_the_outage_is_committed(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    name = f"queue {uuid4()}"
    client = connect("reconnect_delay_seconds=0.01")
    session = client.connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue(name))
    producer.send("lost")
    proxy.refuse()
    proxy.cut()
    client.wait_for_loss()
    with pytest.raises(TransactionRolledBackException):
        session.commit()
    producer.send("during")
    proxy.refuse(False)
    client.wait_for_restore()
    producer.send("after")
    session.commit()
    with direct.create_session() as other:
        consumer = other.create_consumer(other.create_queue(name))
        assert [str(consumer.receive(WAIT)) for _ in range(2)] == ["during", "after"]


@pytest.mark.parametrize("resolved", [False, True], ids=["waited", "resolved"])
def test_a_commit_that_was_done_after_a_loss_leaves_the_next_one_alone(
    proxy: Proxy, late_news: tuple[Client, threading.Event], resolved: bool
) -> None:
    client, _ = late_news
    session = client.connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue(f"queue {uuid4()}"))
    producer.send("before")
    session.commit()

    def cut() -> None:
        proxy.cut()
        proxy.hold()

    if resolved:
        producer.send("0")
        proxy.hold(Direction.TO_CLIENT)
        threading.Timer(0.2, cut).start()
    else:
        proxy.refuse()
        cut()
        client.wait_for_loss()
        producer.send("0")
        threading.Timer(0.2, proxy.refuse, (False,)).start()
    session.commit()
    producer.send("1")
    client.wait_for_restore()
    session.commit()
