"""``send_all``: messages that are sent together, over the engine in the process, a server, and a broker that a test
speaks for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter import BodyKind, Destination, Envelope
from sdk import (
    AcknowledgeMode,
    ConnectionLostException,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    Session,
    TextMessage,
    TransactionRolledBackException,
)
from sdk.range_reader import send_envelopes
from tests.sdk.region_connections import Connect
from tests.sdk.small_broker import SmallBroker


def bodies(session: Session, queue: str = "q") -> list[Any]:
    return [message.body for message in session.create_browser(session.create_queue(queue))]


@pytest.fixture
def session(connect: Connect) -> Session:
    connection = connect(engine="max_queue_messages=5000&blocked_send_timeout_seconds=1")
    connection.start()
    return connection.create_session()


def test_all_are_there_in_their_order_with_what_send_writes_into_them(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    mine = TextMessage("mine")
    producer.send("first")
    producer.send_all([mine, "text", b"bytes", {"a": 1}, ["x"]], priority=7, time_to_live=60)
    producer.send("last")
    assert mine.message_id is not None
    assert mine.priority == 7
    assert mine.expires_at_ms is not None
    found = list(session.create_browser(session.create_queue("q")))
    assert [each.body for each in found] == ["mine", "text", b"bytes", {"a": 1}, ["x"], "first", "last"]
    assert len({each.message_id for each in found}) == 7


def test_each_may_have_its_own_priority_and_time_to_live(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    producer.priority = 3
    messages = [TextMessage(str(number)) for number in range(3)]
    producer.send_all(messages, priority=[9, None, 0], time_to_live=[60, None, 3600])
    assert [message.priority for message in messages] == [9, 3, 0]
    first, never, last = [message.expires_at_ms for message in messages]
    assert never is None
    assert first is not None
    assert last is not None
    assert 3_500_000 < last - first < 3_600_000
    assert bodies(session) == ["0", "1", "2"]


@pytest.mark.parametrize("further", [{"priority": [1]}, {"priority": [1, 2, 3]}, {"time_to_live": ()}], ids=str)
def test_a_sequence_that_has_not_a_value_for_each_is_refused_before_any_is_sent(session: Session, further: Any) -> None:
    producer = session.create_producer(session.create_queue("q"))
    with pytest.raises(ValueError, match=r"has \d values for 2 messages"):
        producer.send_all(["a", "b"], **further)
    with pytest.raises(ValueError):
        producer.send_all(["a", "b"], priority=[1, 10])
    assert bodies(session) == []


def test_any_iterable_will_do_and_an_empty_one_sends_nothing(session: Session) -> None:
    producer = session.create_producer(None)
    queue = session.create_queue("q")
    producer.send_all((), queue)
    producer.send_all((str(number) for number in range(3)), queue, delivery_mode=DeliveryMode.NON_PERSISTENT)
    assert bodies(session) == ["0", "1", "2"]
    with pytest.raises(InvalidDestinationException):
        producer.send_all(["x"])


@pytest.mark.parametrize("one", ["text", b"bytes", {"a": 1}, TextMessage("x")], ids=lambda each: type(each).__name__)
def test_one_message_is_refused_as_it_would_be_taken_for_several(session: Session, one: Any) -> None:
    producer = session.create_producer(session.create_queue("q"))
    with pytest.raises(TypeError, match=r"use send\(\)"):
        producer.send_all(one)
    assert bodies(session) == []


def test_a_value_that_cannot_be_is_named_with_its_message(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    for nothing in (None, 5):
        with pytest.raises(TypeError, match="takes several messages, such as a list"):
            producer.send_all(nothing)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="message 1 of 2 cannot be sent, and none of them was: priority=11"):
        producer.send_all(["a", "b"], priority=[3, 11])
    assert bodies(session) == []


@pytest.mark.parametrize("wrong", [object(), 7, {"a": object()}], ids=["object", "number", "map"])
def test_one_that_no_message_can_carry_is_found_before_any_is_sent(session: Session, wrong: Any) -> None:
    producer = session.create_producer(session.create_queue("q"))
    with pytest.raises(
        (MessageFormatException, TypeError), match="message 1 of 3 cannot be sent, and none of them was"
    ):
        producer.send_all(["a", wrong, "b"])
    assert bodies(session) == []
    producer.send_all(["c"])
    assert bodies(session) == ["c"]


def test_where_none_is_sent_the_failures_have_all_of_them(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    for several in (["a", {"b": object()}, "c"], [{"b": object()}]):
        with pytest.raises(MessageFormatException) as told:
            producer.send_all(several)
        assert list(told.value.failures) == list(range(len(several)))
    producer.close()
    with pytest.raises(IllegalStateException) as told:
        producer.send_all(["a", "b"])
    assert list(told.value.failures) == [0, 1]
    assert bodies(session) == []


def test_where_another_thread_has_the_session_the_failures_have_all_of_them(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    sends: list[Callable[[], None]] = [
        lambda: producer.send_all(["a", "b"]),
        lambda: send_envelopes(producer, [Envelope(Destination("q"), BodyKind.TEXT, each) for each in "ab"]),
    ]
    told: list[list[int]] = []

    def send() -> None:
        for each in sends:
            with pytest.raises(IllegalStateException, match="in use by another thread") as refused:
                each()
            told.append(list(refused.value.failures))

    with session._state.owner:
        thread = threading.Thread(target=send)
        thread.start()
        thread.join(60)
    assert told == [[0, 1]] * 2
    assert bodies(session) == []


def test_what_the_broker_refuses_is_named_and_the_others_are_sent(session: Session) -> None:
    producer = session.create_producer(session.create_queue("q"))
    producer.send_all([str(number) for number in range(4998)])
    with pytest.raises(ResourceAllocationException, match="3 of 5 messages failed; the first of them") as told:
        producer.send_all(["a", "b", "c", "d", "e"])
    assert list(told.value.failures) == [2, 3, 4]
    assert bodies(session)[-2:] == ["a", "b"]


@pytest.mark.parametrize("bad", ["x" * 100_001, "\ud800"], ids=["too large", "not encodable"])
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.TRANSACTED])
def test_one_that_cannot_be_sent_is_named_and_those_behind_it_are_sent(
    connect: Connect, mode: AcknowledgeMode, bad: str
) -> None:
    connection = connect(engine="max_message_bytes=100000")
    connection.start()
    with connection.create_session(mode) as session:
        producer = session.create_producer(session.create_queue("q"))
        if mode is AcknowledgeMode.TRANSACTED and bad != "\ud800":
            producer.send_all(["before", bad, "behind"])
            with pytest.raises(TransactionRolledBackException):  # whether it is too large is known at the commit
                session.commit()
            assert bodies(session) == []
            return
        with pytest.raises(
            MessageFormatException, match="2 of 5 messages failed; the first of them is message 1"
        ) as told:
            producer.send_all(["before", bad, "between", bad, "behind"])
        assert list(told.value.failures) == [1, 3]
        if mode is AcknowledgeMode.TRANSACTED:
            session.commit()
        assert bodies(session) == ["before", "between", "behind"]


def test_where_nothing_more_can_be_sent_all_that_were_not_are_named() -> None:
    broker = SmallBroker()
    with broker.connect() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        gone = ConnectionLostException("gone")

        with pytest.MonkeyPatch.context() as patch:
            send = broker.send
            sent: list[object] = []

            def third_fails(*arguments: Any) -> None:
                if len(sent) == 2:
                    raise gone
                sent.append(arguments)
                send(*arguments)

            patch.setattr(broker, "send", third_fails)
            with pytest.raises(ConnectionLostException, match=r"3 of 5 .* first of them is message 2: gone") as told:
                producer.send_all(["a", "b", "c", "d", "e"])
        assert list(told.value.failures) == [2, 3, 4]
        assert str(told.value.failures[4]) == "it was not sent, as message 2 before it: gone"


def test_a_transacted_session_keeps_them_until_its_commit(connect: Connect) -> None:
    connection = connect(client="transaction_messages=4")
    connection.start()
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session, connection.create_session() as other:
        producer = session.create_producer(session.create_queue("q"))
        producer.send_all(["a", "b"])
        session.rollback()
        producer.send_all(["c", "d"])
        assert bodies(other) == []
        with pytest.raises(
            ResourceAllocationException, match="would have 5 sends and changes, more than the limit of 4"
        ) as told:
            producer.send_all(["e", "f", "g", "h"])
        assert list(told.value.failures) == [2, 3]
        session.commit()
        assert bodies(other) == ["c", "d", "e", "f"]


def test_ten_thousand_come_in_order_from_several_threads(connect: Connect) -> None:
    connection = connect()
    connection.start()

    def send(name: str) -> None:
        with connection.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            for first in range(0, 2500, 500):
                producer.send_all([f"{name} {number}" for number in range(first, first + 500)])

    threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with connection.create_session(AcknowledgeMode.DUPS_OK) as session:
        consumer = session.create_consumer(session.create_queue("q"))
        found: dict[str, list[int]] = {name: [] for name in "abcd"}
        for _ in range(10_000):
            message = consumer.receive(60)
            assert message is not None
            name, number = message.body.split()
            found[name].append(int(number))
        assert found == {name: list(range(2500)) for name in "abcd"}


def test_a_listener_may_send_several(connect: Connect) -> None:
    connection = connect()
    with connection.create_session() as session, connection.create_session() as other:
        producer = session.create_producer(session.create_queue("out"))
        consumer = session.create_consumer(session.create_queue("in"))
        consumer.listener = lambda message: producer.send_all([f"{message.body} {each}" for each in range(3)])
        connection.start()
        other.create_producer(other.create_queue("in")).send("x")
        out = other.create_consumer(other.create_queue("out"))
        found = [out.receive(60) for _ in range(3)]
        assert [each and each.body for each in found] == ["x 0", "x 1", "x 2"]


# A broker that a test speaks for.


def test_without_answers_it_waits_as_long_as_some_come_and_says_how_many_have_none() -> None:
    broker = SmallBroker(send_timeout_seconds=0.2, close_timeout_seconds=0.2)
    with broker.connect() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        broker.hold_answers = True
        with pytest.raises(OperationTimedOutException, match=r"3 of 3 .* no answer has come for 0\.2 s") as told:
            producer.send_all(["a", "b", "c"])
        assert list(told.value.failures) == [0, 1, 2]
        broker.answers[1](None)
        broker.answers.clear()
        timer = threading.Timer(0.05, lambda: broker.answers[1](None))
        timer.start()
        with pytest.raises(OperationTimedOutException, match="3 of 4 messages failed") as told:
            producer.send_all(["d", "e", "f", "g"])
        timer.join()
        assert list(told.value.failures) == [0, 2, 3]
        for answer in broker.answers:
            answer(None)
        broker.hold_answers = False
        producer.send_all(["d"])


def test_a_connection_that_is_lost_for_good_tells_which_ones_have_no_answer() -> None:
    broker = SmallBroker()
    with broker.connect() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        broker.hold_answers = True
        told: list[JMSException] = []

        def send() -> None:
            try:
                producer.send_all(["a", "b", "c"])
            except JMSException as error:
                told.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        while len(broker.answers) < 3:
            pass
        broker.answers[0](None)
        for answer in broker.answers[1:]:
            answer(ConnectionLostException("gone"))
        thread.join(60)
        assert isinstance(told[0], ConnectionLostException)
        assert list(told[0].failures) == [1, 2]


def test_it_is_refused_where_send_is() -> None:
    with SmallBroker().connect() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("q"))
        producer.close()
        with pytest.raises(IllegalStateException, match="CLOSED"):
            producer.send_all(["a"])
