"""Several messages in one call of ``receive_many``, in each mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import sdk
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    IllegalStateException,
    MessageConsumer,
    Restored,
    Session,
)
from tests.faults.proxy import Proxy
from tests.server_process import ServerProcess

AUTO, CLIENT, DUPS_OK = AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.DUPS_OK
TRANSACTED, INDIVIDUAL, NO_ACK = AcknowledgeMode.TRANSACTED, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.NO_ACK
WAIT = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data")) as process:
        yield process


@pytest.fixture(params=["embedded", "amqp"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    url = "embedded:" if request.param == "embedded" else request.getfixturevalue("server").url
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def embedded() -> Iterator[Connection]:
    with ConnectionFactory("embedded:").create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def name() -> str:
    """Of a queue that no other test uses: engines in memory are shared."""
    return f"queue {uuid4()}"


def filled(connection: Connection, count: int, name: str) -> None:
    with connection.create_session(AUTO) as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(str(number))


def consumer_of(session: Session, name: str, prefetch: int | None = None) -> MessageConsumer:
    return session.create_consumer(session.create_queue(name), prefetch=prefetch)


def received(consumer: MessageConsumer, count: int, limit: int = 1_000) -> list[str]:
    """So many messages, in calls of so many at most."""
    found: list[str] = []
    while len(found) < count:
        messages = consumer.receive_many(limit, timeout=WAIT)
        assert messages
        assert len(messages) <= limit
        found += [message.body for message in messages]
    return found


def waiting(connection: Connection, name: str) -> int:
    return next(each for each in connection.statistics().queues if each.name == name).messages


def numbers(*places: int) -> list[str]:
    return [str(number) for number in range(*places)]


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_messages_come_in_order_and_never_more_than_the_limit(connection: Connection, mode: AcknowledgeMode) -> None:
    name = f"in order {mode.name}"
    filled(connection, 250, name)
    with connection.create_session(mode) as session:
        consumer = consumer_of(session, name)
        assert received(consumer, 250, limit=30) == numbers(250)
        assert consumer.receive_many(10, timeout=0) == []
        if mode is TRANSACTED:
            session.commit()
        elif mode is CLIENT:
            consumer.close()
            session.recover()


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK])
def test_what_was_returned_is_acknowledged(connection: Connection, mode: AcknowledgeMode) -> None:
    name = f"acknowledged {mode.name}"
    filled(connection, 20, name)
    with connection.create_session(mode) as session:
        received(consumer_of(session, name), 20)
    assert waiting(connection, name) == 0


def test_acknowledge_of_the_last_one_acknowledges_all(connection: Connection) -> None:
    filled(connection, 10, "client")
    with connection.create_session(CLIENT) as session:
        consumer = consumer_of(session, "client")
        first = consumer.receive_many(4, timeout=WAIT)
        first[-1].acknowledge()
        received(consumer, 10 - len(first))
        session.recover()
        again = received(consumer, 10 - len(first))
        assert again == numbers(len(first), 10)


def test_each_of_them_is_acknowledged_by_itself(embedded: Connection, name: str) -> None:
    filled(embedded, 4, name)
    with embedded.create_session(INDIVIDUAL) as session:
        consumer = consumer_of(session, name)
        messages = [message for _ in range(4) for message in consumer.receive_many(1, timeout=WAIT)]
        for message in messages[::2]:
            message.acknowledge()
    with embedded.create_session(AUTO) as session:
        assert received(consumer_of(session, name), 2) == ["1", "3"]


def test_a_rollback_redelivers_all_of_them_and_a_commit_ends_them(connection: Connection) -> None:
    filled(connection, 50, "transacted")
    with connection.create_session(TRANSACTED) as session:
        consumer = consumer_of(session, "transacted")
        assert received(consumer, 50) == numbers(50)
        session.rollback()
        again = consumer.receive_many(50, timeout=WAIT)
        assert all(message.redelivered for message in again)
        assert [message.body for message in again] + received(consumer, 50 - len(again)) == numbers(50)
        session.commit()
    assert waiting(connection, "transacted") == 0


def test_the_first_message_is_waited_for_and_no_other(embedded: Connection, name: str) -> None:
    with embedded.create_session(AUTO) as session:
        consumer = consumer_of(session, name)
        assert consumer.receive_many(5, timeout=0.05) == []
        timer = threading.Timer(0.1, filled, (embedded, 1, name))
        timer.start()
        assert [message.body for message in consumer.receive_many(5, timeout=WAIT)] == ["0"]
        timer.join()


def test_a_consumer_that_is_closed_meanwhile_returns_none(embedded: Connection, name: str) -> None:
    with embedded.create_session(AUTO) as session:
        consumer = consumer_of(session, name)
        timer = threading.Timer(0.1, consumer.close)
        timer.start()
        assert consumer.receive_many(5, timeout=WAIT) == []
        timer.join()
        with pytest.raises(IllegalStateException):
            consumer.receive_many(5, timeout=0)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "5", None])
def test_a_limit_that_cannot_be_is_refused(embedded: Connection, name: str, limit: Any) -> None:
    with embedded.create_session(AUTO) as session, pytest.raises(ValueError, match="limit="):
        consumer_of(session, name).receive_many(limit)


def test_without_prefetch_one_message_comes_at_a_time(server: ServerProcess) -> None:
    with ConnectionFactory(f"{server.url}?prefetch_messages=0").create_connection() as connection:
        connection.start()
        filled(connection, 3, "no prefetch")
        with connection.create_session(AUTO) as session:
            consumer = consumer_of(session, "no prefetch")
            assert [len(consumer.receive_many(10, timeout=WAIT)) for _ in range(3)] == [1, 1, 1]


def test_what_has_expired_is_left_out_and_the_others_are_returned(embedded: Connection, name: str) -> None:
    with embedded.create_session(AUTO) as session:
        producer = session.create_producer(session.create_queue(name))
        consumer = consumer_of(session, name)
        for number in range(6):
            producer.send(str(number), time_to_live=0.2 if number % 2 else None)
        time.sleep(0.3)
        assert received(consumer, 3) == ["0", "2", "4"]


def test_a_receive_and_a_listener_go_on_behind_it(embedded: Connection, name: str) -> None:
    filled(embedded, 30, name)
    with embedded.create_session(AUTO) as session:
        consumer = consumer_of(session, name)
        first = [message.body for message in consumer.receive_many(10, timeout=WAIT)]
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        heard: list[str] = []
        over = threading.Event()

        def listener(message: sdk.Message) -> None:
            heard.append(message.body)
            if len(heard) == 29 - len(first):
                over.set()

        consumer.listener = listener
        assert over.wait(WAIT)
        assert [*first, message.body, *heard] == numbers(30)


def test_a_call_that_is_refused_takes_nothing_from_the_one_under_way(embedded: Connection, name: str) -> None:
    with embedded.create_session(AUTO) as session:
        consumer = consumer_of(session, name)
        found: list[str] = []
        waiting_thread = threading.Thread(
            target=lambda: found.extend(message.body for message in consumer.receive_many(10, timeout=WAIT))
        )
        waiting_thread.start()
        assert wait_for(lambda: session._state.calling)
        with pytest.raises(IllegalStateException):
            consumer.receive_many(10, timeout=WAIT)
        filled(embedded, 1, name)
        waiting_thread.join(WAIT)
        assert found == ["0"]


def test_what_is_lost_as_it_is_taken_does_not_use_up_the_limit(server: ServerProcess) -> None:
    with Proxy(server.port) as proxy, ConnectionFactory(proxy.url).create_connection() as connection:
        connection.start()
        filled(connection, 5, "stale")
        restored = threading.Event()
        connection.event_listener = lambda event: restored.set() if isinstance(event, Restored) else None
        with connection.create_session(AUTO) as session:
            consumer = consumer_of(session, "stale", prefetch=10)
            assert wait_for(lambda: len(consumer._prefetch.buffer) == 5)

            def lose() -> None:
                proxy.cut()
                assert restored.wait(WAIT)

            with pytest.MonkeyPatch.context() as patch:
                calls = behind_third(patch, lose)
                assert received(consumer, 5, limit=3) == numbers(5)
            assert not calls


def behind_third(patch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> list[Callable[[], object]]:
    """Have something happen, once, as the third message of a call is opened; returns what has not happened yet."""
    opens, calls = MessageConsumer._open, [meanwhile]

    def opening(self: MessageConsumer, index: int = 0) -> Any:
        found = opens(self, index)
        if index == 2 and calls:
            calls.pop()()
        return found

    patch.setattr(MessageConsumer, "_open", opening)
    return calls


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_what_was_taken_as_another_thread_closes_stays_in_the_queue(
    embedded: Connection, name: str, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    filled(embedded, 3, name)
    with embedded.create_session(mode) as session:
        consumer = consumer_of(session, name, prefetch=10)
        closing = threading.Thread(target=consumer.close)

        def close() -> None:
            closing.start()
            assert wait_for(lambda: consumer._prefetch.closing)

        assert wait_for(lambda: len(consumer._prefetch.buffer) == 3)
        behind_third(monkeypatch, close)
        assert consumer.receive_many(3, timeout=WAIT) == []
        closing.join(WAIT)
        assert not closing.is_alive()
    with embedded.create_session(AUTO) as session:
        # Without acknowledgements the broker has let them go as it sent them.
        left = [] if mode is NO_ACK else numbers(3)
        assert received(consumer_of(session, name), len(left)) == left


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK])
def test_a_loss_as_they_are_acknowledged_is_told_where_the_mode_tells_it(
    server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    with Proxy(server.port) as proxy, ConnectionFactory(proxy.url).create_connection() as connection:
        connection.start()
        filled(connection, 3, name)
        with connection.create_session(mode) as session:
            consumer = consumer_of(session, name, prefetch=10)
            assert wait_for(lambda: len(consumer._prefetch.buffer) == 3)

            def lost(_settlements: object) -> None:
                raise ConnectionLostException("cut")

            with monkeypatch.context() as patch:
                patch.setattr(session._state.transport, "settle", lost)
                if mode is AUTO:
                    with pytest.raises(ConnectionLostException, match="3 messages could not be acknowledged"):
                        consumer.receive_many(3, timeout=WAIT)
                else:
                    assert len(consumer.receive_many(3, timeout=WAIT)) == 3
            proxy.cut()


def wait_for(condition: Any) -> bool:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return False
