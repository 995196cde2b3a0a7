"""Several messages in one call of ``receive_many``, in each mode, and where a handler of a signal raises in it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

import sdk
from ack_modes import DeliveryTag, Settlement
from broker_adapter import Delivery, Envelope
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
from sdk.receiving.receive_many import Several
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


def consumer_of(session: Session, name: str) -> MessageConsumer:
    return session.create_consumer(session.create_queue(name))


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
            consumer = consumer_of(session, "stale")
            assert wait_for(lambda: len(consumer._prefetch.buffer) == 5)
            consume = Several.consume
            cuts = 0

            def lose(self: Several, *arguments: Any) -> Any:
                nonlocal cuts
                if cuts == 0:
                    cuts = 1
                    proxy.cut()
                    session._state.settling.release()
                    assert restored.wait(WAIT)
                    session._state.settling.acquire()
                return consume(self, *arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Several, "consume", lose)
                assert received(consumer, 5, limit=3) == numbers(5)
            assert cuts == 1


class RaisedError(Exception):
    """What a handler of a signal raises."""


def consuming(session: Session, meanwhile: Callable[[], object]) -> Callable[..., Any]:
    """``Several.consume``, where another thread comes first for once."""
    consume, calls = Several.consume, iter([meanwhile])

    def delayed(self: Several, *arguments: Any) -> Any:
        for call in calls:
            session._state.settling.release()
            call()
            session._state.settling.acquire()
        return consume(self, *arguments)

    return delayed


@pytest.mark.parametrize("mode", AcknowledgeMode)
def test_what_was_taken_as_another_thread_closes_stays_in_the_queue(
    embedded: Connection, name: str, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    filled(embedded, 3, name)
    with embedded.create_session(mode) as session:
        consumer = consumer_of(session, name)
        closing = threading.Thread(target=consumer.close)

        def close() -> None:
            closing.start()
            assert wait_for(lambda: consumer._prefetch.closing)

        assert wait_for(lambda: len(consumer._prefetch.buffer) == 3)
        monkeypatch.setattr(Several, "consume", consuming(session, close))
        assert consumer.receive_many(3, timeout=WAIT) == []
        closing.join(WAIT)
        assert not closing.is_alive()
    with embedded.create_session(AUTO) as session:
        # Without acknowledgements the broker has let them go as it sent them.
        left = [] if mode is NO_ACK else numbers(3)
        assert received(consumer_of(session, name), len(left)) == left


def test_what_another_thread_empties_as_it_is_taken_is_left_alone(embedded: Connection, name: str) -> None:
    filled(embedded, 3, name)
    with embedded.create_session(AUTO) as session:
        consumer = consumer_of(session, name)
        prefetch = consumer._prefetch
        assert wait_for(lambda: len(prefetch.buffer) == 3)
        opened = consumer._opened
        emptied: list[Delivery] = []

        def emptying(delivery: Delivery, tag: DeliveryTag) -> Envelope | None:
            emptied.extend(prefetch.buffer)
            prefetch.buffer.clear()
            return opened(delivery, tag)

        several = Several(session._state, prefetch, 3)
        several.take(emptying)
        assert several.messages == []
        assert prefetch.taken == []
        several = Several(session._state, prefetch, 3)
        prefetch.buffer.extend(emptied)
        several.take(lambda delivery, tag: prefetch.buffer.popleft() and opened(delivery, tag))
        assert prefetch.taken == []
        prefetch.buffer.extendleft(reversed(emptied[:1]))
        assert received(consumer, 3) == numbers(3)


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK])
def test_a_loss_as_they_are_acknowledged_is_told_where_the_mode_tells_it(
    server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    with Proxy(server.port) as proxy, ConnectionFactory(proxy.url).create_connection() as connection:
        connection.start()
        filled(connection, 3, name)
        with connection.create_session(mode) as session:
            consumer = consumer_of(session, name)
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


@pytest.mark.parametrize("mode", [AUTO, DUPS_OK])
def test_what_a_handler_interrupts_as_it_is_settled_is_settled(
    embedded: Connection, name: str, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    filled(embedded, 3, name)
    with embedded.create_session(mode) as session:
        consumer = consumer_of(session, name)
        assert wait_for(lambda: len(consumer._prefetch.buffer) == 3)
        transport = session._state.transport
        settle, raised = transport.settle, iter([RaisedError])

        def interrupted(settlements: Sequence[Settlement]) -> None:
            for error in raised:
                raise error
            settle(settlements)

        with monkeypatch.context() as patch:
            patch.setattr(transport, "settle", interrupted)
            try:
                consumer.receive_many(3, timeout=WAIT)
            except RaisedError:
                assert consumer.receive_many(3, timeout=0) == []  # they are lost in these modes
    assert waiting(embedded, name) == 0


class Handler:
    """Raises at the n-th line of the steps of ``receive_many``, as the handler of a signal may."""

    _FILE = str(Path(sdk.__file__).parent / "receiving" / "receive_many.py")
    _STEPS = frozenset(("receive_many", "_take_several", "_end_take"))

    def __init__(self, line: int) -> None:
        self._left = line

    @property
    def has_raised(self) -> bool:
        return self._left == 0

    def __enter__(self) -> Handler:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        return self._line if code.co_filename == self._FILE or code.co_name in self._STEPS else None

    def _line(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and self._left:
            self._left -= 1
            if not self._left:
                raise RaisedError
        return self._line


@pytest.mark.parametrize("mode", [AUTO, CLIENT, DUPS_OK, TRANSACTED, INDIVIDUAL])
def test_nothing_is_lost_or_doubled_wherever_a_handler_raises(embedded: Connection, mode: AcknowledgeMode) -> None:
    count = 5
    raised_before_settling = 0
    for line in range(1, 1_000):
        name = f"{mode.name} {line} {uuid4()}"
        filled(embedded, count, name)
        with embedded.create_session(mode) as session:
            consumer = consumer_of(session, name)
            assert wait_for(lambda: len(consumer._prefetch.buffer) == count)  # noqa: B023
            found: list[str] = []
            with Handler(line) as handler:
                try:
                    found = [message.body for message in consumer.receive_many(count, timeout=WAIT)]
                except RaisedError:
                    pass
            if not handler.has_raised:
                break
            if not found and (rest := consumer.receive_many(count, timeout=0)):
                raised_before_settling += 1
                assert not any(message.redelivered for message in rest)
                found = [message.body for message in rest]
            # In AUTO and DUPS_OK, what was about to be returned is lost where the handler raises as it is settled.
            assert found == numbers(count) or (found == [] and mode in (AUTO, DUPS_OK)), line
            if mode is TRANSACTED:
                session.rollback()
            elif mode is CLIENT:
                session.recover()
        with embedded.create_session(AUTO) as session:
            left = [message.body for message in consumer_of(session, name).receive_many(count, timeout=0)]
        assert left == ([] if mode in (AUTO, DUPS_OK) else numbers(count)), line
    else:
        raise AssertionError("the call never ended")
    assert raised_before_settling > 20


def wait_for(condition: Any) -> bool:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return False
