"""Order after a failure: what is undone, or of a group, or of a consumer that keeps order, is passed by nothing later.

Default options but for shorter pauses, over each transport; what is compared is the order, not sets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import AcknowledgeMode, Connection, ConnectionFactory, Message, MessageConsumer, Session

WAIT = 120.0
NUMBERS = list(range(30))


@pytest.fixture
def delay() -> float:
    """The option ``redelivery_delay_seconds``."""
    return 0.05


@pytest.fixture(params=["in process", "amqp", "failover"])
def connection(request: pytest.FixtureRequest, tmp_path: Path, delay: float) -> Iterator[Connection]:
    if request.param == "in process":
        factory = ConnectionFactory(f"embedded:{tmp_path}?redelivery_delay_seconds={delay}")
        with factory.create_connection() as connection:
            connection.start()
            yield connection
        return
    broker = Broker(EngineSettings(redelivery_delay_seconds=delay), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    url = f"amqp://127.0.0.1:{port}"
    url = f"failover:({url})" if request.param == "failover" else f"{url}?failover=nofailover"
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        yield connection
    listener.stop()
    broker.close()


def send(connection: Connection, numbers: Sequence[int] = NUMBERS, **fields: Any) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        for number in numbers:
            message = session.create_text_message(str(number))
            for name, value in fields.items():
                setattr(message, name, value)
            producer.send(message)


def received(consumer: MessageConsumer, count: int) -> list[int]:
    messages = [consumer.receive(timeout=WAIT) for _ in range(count)]
    return [int(str(message.body)) for message in messages if message is not None]


def give_back(session: Session) -> None:
    (session.rollback if session.transacted else session.recover)()


class Listening:
    """A listener that raises on some messages, so often each, and ends when it has seen the last one."""

    def __init__(self, raising: dict[int, int], last: int) -> None:
        self.seen: list[int] = []
        self.counts: list[int] = []
        self._raising = dict(raising)
        self._last = last
        self.finished = threading.Event()

    def __call__(self, message: Message) -> None:
        number = int(str(message.body))
        self.seen.append(number)
        self.counts.append(message.delivery_count)
        if self._raising.get(number):
            self._raising[number] -= 1
            raise ValueError(f"as told, on {number}")
        if number == self._last:
            self.finished.set()


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name)
def test_what_is_recovered_or_rolled_back_again_and_again_comes_in_order(
    connection: Connection, mode: AcknowledgeMode
) -> None:
    send(connection)
    with connection.create_session(mode) as session:
        consumer = session.create_consumer(session.create_queue("q"))
        for count in (5, 1, 7, 3, 2):
            assert received(consumer, count) == NUMBERS[:count]
            give_back(session)
        assert received(consumer, len(NUMBERS)) == NUMBERS


def test_what_is_recovered_again_in_individual_mode_waits_alone(connection: Connection) -> None:
    send(connection, [0, 1, 2, 3])
    with connection.create_session(AcknowledgeMode.INDIVIDUAL) as session:
        consumer = session.create_consumer(session.create_queue("q"))
        for _ in range(2):
            assert received(consumer, 2) == [0, 1]
            session.recover()
        assert received(consumer, 4) == [2, 3, 0, 1]


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_others_pass_a_message_whose_listener_raises_again(connection: Connection, mode: AcknowledgeMode) -> None:
    send(connection)
    listening = Listening({3: 4, 4: 1, 20: 3}, -1)
    done = threading.Event()

    def listener(message: Message) -> None:
        try:
            listening(message)
        finally:
            if len(listening.seen) == len(NUMBERS) + 8:
                done.set()

    with connection.create_session(mode) as session:
        session.create_consumer(session.create_queue("q")).listener = listener
        assert done.wait(WAIT)
    first = [number for number, count in zip(listening.seen, listening.counts, strict=True) if count == 1]
    assert first == NUMBERS
    assert listening.seen[3:5] == [3, 3], "the first time it comes at once"
    assert [listening.seen.count(number) for number in (3, 4, 20)] == [5, 2, 4]
    assert listening.seen.index(29) < len(listening.seen) - 1, "others passed it"


@pytest.mark.parametrize("selector", [None, "number >= 0"])
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_where_order_is_kept_a_listener_that_raises_gets_that_message_next_however_often(
    connection: Connection, mode: AcknowledgeMode, selector: str | None
) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        for number in NUMBERS:
            message = session.create_text_message(str(number))
            message.properties["number"] = number
            producer.send(message)
    listening = Listening({3: 4, 4: 1, 20: 3}, NUMBERS[-1])
    with connection.create_session(mode) as session:
        session.create_consumer(session.create_queue("q"), selector, keep_order=True).listener = listening
        assert listening.finished.wait(WAIT)
    assert listening.seen == [*range(3), *[3] * 5, 4, 4, *range(5, 20), *[20] * 4, *range(21, 30)]
    assert listening.counts == [1, 1, 1, 1, 2, 3, 4, 5, 1, 2, *[1] * 15, 1, 2, 3, 4, *[1] * 9]


def test_in_client_mode_a_listener_that_raises_goes_on_with_the_next_message(connection: Connection) -> None:
    """Jakarta Messaging 8.7: the session does not recover by itself."""
    send(connection)
    listening = Listening({3: 1, 7: 1}, NUMBERS[-1])
    session = connection.create_session(AcknowledgeMode.CLIENT)
    again = Listening({}, NUMBERS[-1])

    def listener(message: Message) -> None:
        if not listening.finished.is_set():
            listening(message)
            if listening.finished.is_set():
                session.recover()
        else:
            again(message)
            message.acknowledge()

    session.create_consumer(session.create_queue("q")).listener = listener
    assert again.finished.wait(WAIT)
    session.close()
    assert listening.seen == NUMBERS
    assert again.seen == NUMBERS
    assert set(again.counts) == {2}
    with connection.create_session() as looking:
        assert list(looking.create_browser(looking.create_queue("DLQ"))) == []


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_a_message_group_comes_in_order_although_its_listener_raises(
    connection: Connection, mode: AcknowledgeMode
) -> None:
    listenings = [Listening({0: 3, 5: 2}, NUMBERS[-1]) for _ in range(2)]
    sessions = [connection.create_session(mode) for _ in range(2)]
    for session, listening in zip(sessions, listenings, strict=True):
        session.create_consumer(session.create_queue("q")).listener = listening
    send(connection, group_id="g")
    while not any(each.finished.wait(0.01) for each in listenings):
        pass
    for session in sessions:
        session.close()
    owner, other = sorted(listenings, key=lambda each: -len(each.seen))
    assert owner.seen == [*[0] * 4, *range(1, 5), *[5] * 3, *range(6, 30)]
    assert other.seen == []


def test_two_consumers_that_recover_in_turn_lose_and_double_nothing(connection: Connection) -> None:
    send(connection)
    sessions = [connection.create_session(AcknowledgeMode.CLIENT) for _ in range(2)]
    consumers = [session.create_consumer(session.create_queue("q"), prefetch=500) for session in sessions]
    for _ in range(4):
        for session, consumer in zip(sessions, consumers, strict=True):
            found = received(consumer, 3)
            assert found == sorted(found), "each has its own in order"
            session.recover()
    sessions[1].close()
    assert sorted(received(consumers[0], len(NUMBERS))) == NUMBERS
    sessions[0].close()


def test_what_failed_on_a_listener_does_not_hold_up_another_consumer(connection: Connection) -> None:
    """The pause is for the consumer that keeps order; another one gets what comes next meanwhile."""
    failing = Listening({0: 3}, 0)
    with connection.create_session() as session, connection.create_session() as other:
        session.create_consumer(session.create_queue("q"), keep_order=True).listener = failing
        send(connection, [0])
        while len(failing.seen) < 3:  # it is delayed by 0.05 s, and then by 0.1
            failing.finished.wait(0.001)
        consumer = other.create_consumer(other.create_queue("q"))
        send(connection, [1, 2, 3])
        assert received(consumer, 1)[0] in (1, 2, 3)
        assert failing.finished.wait(WAIT)
    assert failing.seen[:4] == [0] * 4
    assert failing.counts[:4] == [1, 2, 3, 4]


ENDS: dict[str, Callable[[Session, MessageConsumer], None]] = {
    "consumer": lambda session, consumer: consumer.close(),
    "session": lambda session, consumer: session.close(),
}


@pytest.mark.parametrize(
    "mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name
)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("exclusive", [False, True], ids=["group", "exclusive"])
def test_the_heir_of_a_closed_consumer_gets_what_that_left_in_order(
    connection: Connection, exclusive: bool, end: str, mode: AcknowledgeMode
) -> None:
    numbers = list(range(200))  # more than both of them prefetch
    session = connection.create_session(mode)
    destination = session.create_queue("q")
    first = session.create_consumer(destination, exclusive=exclusive, prefetch=20)
    send(connection, numbers, **({} if exclusive else {"group_id": "g"}))
    assert received(first, 15) == numbers[:15]
    with connection.create_session() as other:
        heir = other.create_consumer(destination, exclusive=exclusive, prefetch=20)
        ENDS[end](session, first)
        left = numbers if end == "session" else numbers[15:]
        assert received(heir, len(left)) == left
    session.close()


def test_what_several_consumers_of_a_session_leave_comes_in_order(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    destination = session.create_queue("q")
    consumers = [session.create_consumer(destination, prefetch=20) for _ in range(3)]
    for group in range(3):
        send(connection, range(group, 200, 3), group_id=f"g{group}")
    for consumer in consumers:
        assert len(received(consumer, 10)) == 10
    with connection.create_session() as other:
        heir = other.create_consumer(destination, prefetch=20)
        session.close()
        found = received(heir, 200)
    for group in range(3):
        assert [each for each in found if each % 3 == group] == list(range(group, 200, 3))


def test_a_few_bad_orders_do_not_hold_up_two_workers(connection: Connection) -> None:
    """Without a wait for any of the bad ones, which are dead letters in the end."""
    good, bad, lock, done = list[int](), dict[int, int](), threading.Lock(), threading.Event()

    def handle(message: Message) -> None:
        number = int(str(message.body))
        with lock:
            if number % 25 == 7:
                bad[number] = bad.get(number, 0) + 1
                if len(good) < 240:
                    tries.append(bad[number])
                raise ValueError("bad")
            good.append(number)
            if len(good) == 240:
                done.set()

    tries: list[int] = []
    send(connection, range(250))
    sessions = [connection.create_session() for _ in range(2)]
    for session in sessions:
        session.create_consumer(session.create_queue("q")).listener = handle
    assert done.wait(WAIT)
    assert max(tries) < 10, "no bad one was tried to its end before"
    assert sorted(good) == [number for number in range(250) if number % 25 != 7]
    for session in sessions:
        session.close()


@pytest.mark.parametrize(
    "mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name
)
@pytest.mark.parametrize("delay", [0.01])
def test_nothing_is_a_dead_letter_because_all_failed_for_a_while(connection: Connection, mode: AcknowledgeMode) -> None:
    """As for a quarter of a minute with the defaults; here the delays are a twenty-fifth."""
    succeeds = threading.Event()
    done = threading.Event()
    seen: list[int] = []
    session = connection.create_session(mode)

    def handle(message: Message) -> None:
        if not succeeds.is_set():
            if mode is AcknowledgeMode.AUTO:
                raise ConnectionError("the database is away")
            give_back(session)
            return
        if session.transacted:
            session.commit()
        else:
            message.acknowledge()
        seen.append(int(str(message.body)))
        if len(seen) == 10:
            done.set()

    send(connection, range(10))
    session.create_consumer(session.create_queue("q")).listener = handle
    threading.Event().wait(0.6)
    succeeds.set()
    assert done.wait(WAIT)
    assert sorted(seen) == list(range(10))
    session.close()
    with connection.create_session() as looking:
        assert list(looking.create_browser(looking.create_queue("DLQ"))) == []
