"""The simplified API, in process and over AMQP."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSContext,
    JMSException,
    Message,
    MessageFormatException,
    Session,
    TextMessage,
)
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess

WAIT = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("context") / "data") as server:
        yield server


@pytest.fixture(params=["embedded", "amqp"])
def factory(request: pytest.FixtureRequest, tmp_path: Any) -> ConnectionFactory:
    if request.param == "embedded":
        return ConnectionFactory(f"embedded:{tmp_path}")
    server: ServerProcess = request.getfixturevalue("server")
    return ConnectionFactory(server.url)


@pytest.fixture
def context(factory: ConnectionFactory) -> Iterator[JMSContext]:
    with factory.create_context() as context:
        yield context


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def test_a_context_sends_and_receives_without_being_started(context: JMSContext, name: str) -> None:
    queue = context.create_queue(name)
    context.create_producer().send(queue, "hello").send(queue, {"k": 1})
    consumer = context.create_consumer(queue)
    assert consumer.receive_body(str, WAIT) == "hello"
    assert consumer.receive_body(dict, WAIT) == {"k": 1}
    assert consumer.receive_body_nowait(str) is None


def test_a_producer_sets_what_it_was_told(context: JMSContext, name: str) -> None:
    queue = context.create_queue(name)
    producer = (
        context.create_producer()
        .set_property("colour", "red")
        .set_priority(7)
        .set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        .set_time_to_live(60)
        .set_delivery_delay(0.05)
        .set_correlation_id("c")
        .set_type("t")
        .set_reply_to(queue)
        .set_disable_timestamp(True)
    )
    message = context.create_text_message("x")
    message.properties.update({"colour": "blue", "size": 5})
    before_ms = time.time_ns() // 1_000_000
    producer.send(queue, message)
    producer.clear_properties().set_delivery_delay(None).set_time_to_live(None).set_correlation_id(None)
    producer.set_disable_message_id(True).set_priority(3).send(queue, "y")
    consumer = context.create_consumer(queue)
    found = {message.body: message for message in (consumer.receive(WAIT), consumer.receive(WAIT)) if message}
    first, second = found["x"], found["y"]
    assert dict(first.properties) == {"colour": "red", "size": 5}
    assert (first.priority, first.delivery_mode, first.sent_at_ms) == (7, DeliveryMode.NON_PERSISTENT, None)
    assert (first.correlation_id, first.type, first.reply_to) == ("c", "t", queue)
    assert first.deliver_at_ms is not None
    assert before_ms + 50 <= first.deliver_at_ms < before_ms + 60_000
    assert first.expires_at_ms == first.deliver_at_ms + 60_000 - 50
    assert (second.deliver_at_ms, second.expires_at_ms, second.priority) == (None, None, 3)
    assert (dict(second.properties), second.correlation_id, second.message_id) == ({}, None, None)


def test_a_property_is_checked_as_it_is_set(context: JMSContext) -> None:
    with pytest.raises(MessageFormatException, match="not an identifier"):
        context.create_producer().set_property("two words", 1)
    with pytest.raises(MessageFormatException, match="cannot have the value"):
        context.create_producer().set_property("k", b"bytes")  # type: ignore[arg-type]


def test_asynchronous_sends_are_told(context: JMSContext, name: str) -> None:
    told: list[tuple[Any, JMSException | None]] = []
    finished = threading.Event()

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.append((message.body, error))
        if len(told) == 2:
            finished.set()

    queue = context.create_queue(name)
    context.create_producer().set_async(on_completion).send(queue, "a").send(queue, "b")
    assert finished.wait(WAIT)
    assert told == [("a", None), ("b", None)]


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.CLIENT])
def test_a_body_of_another_type_is_the_next_one_again(
    factory: ConnectionFactory, name: str, mode: AcknowledgeMode
) -> None:
    with factory.create_context(mode) as context:
        queue = context.create_queue(f"{name} {mode.name}")
        context.create_producer().send(queue, "text").send(queue, b"bytes").send(queue, context.create_message())
        consumer = context.create_consumer(queue)
        with pytest.raises(MessageFormatException, match="is a str, not a bytes"):
            consumer.receive_body(bytes, WAIT)
        assert consumer.receive_body(str, WAIT) == "text"
        assert consumer.receive_body(bytes, WAIT) == b"bytes"
        with pytest.raises(MessageFormatException, match=r"receive\(\) takes it"):
            consumer.receive_body(str, WAIT)
        last = consumer.receive(WAIT)
        assert type(last) is Message
        assert last.delivery_count == 1
        context.acknowledge()


def test_contexts_share_a_connection_that_closes_with_the_last(factory: ConnectionFactory, name: str) -> None:
    first = factory.create_context(client_id=name)
    second = first.create_context(AcknowledgeMode.TRANSACTED)
    assert first.client_id == second.client_id == name
    assert (first.transacted, second.transacted, second.session_mode) == (False, True, AcknowledgeMode.TRANSACTED)
    first.close()
    first.close()
    with pytest.raises(IllegalStateException):
        first.create_producer()
    with pytest.raises(IllegalStateException):
        first.create_context(AcknowledgeMode.AUTO)
    queue = second.create_queue(name)
    second.create_producer().send(queue, "x")
    second.commit()
    assert second.create_consumer(queue).receive_body(str, WAIT) == "x"
    second.rollback()
    second.close()
    with factory.create_context(client_id=name) as third:  # the client id is free again
        assert third.create_consumer(queue).receive_body(str, WAIT) == "x"


def is_gone(reference: weakref.ref[Any]) -> bool:
    gc.collect()  # while something is being closed, it keeps what it belongs to
    return reference() is None


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_context_that_is_dropped_does_not_keep_the_connection_of_the_others(factory: ConnectionFactory) -> None:
    first = factory.create_context()
    second = first.create_context(AcknowledgeMode.AUTO)
    connection = second._shared.connection
    del first
    gc.collect()
    second.close()
    assert wait_for(lambda: "CLOSED" in repr(connection))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_connection_whose_last_context_is_dropped_is_closed(factory: ConnectionFactory) -> None:
    first = factory.create_context()
    second = first.create_context(AcknowledgeMode.AUTO)
    connection = weakref.ref(first._shared.connection)
    first.close()
    assert "CLOSED" not in repr(connection())
    del first, second
    gc.collect()
    assert wait_for(lambda: is_gone(connection))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_consumer_goes_on_though_its_context_is_dropped_and_the_others_are_closed(
    factory: ConnectionFactory, name: str
) -> None:
    other = factory.create_context()
    consumer = other.create_context(AcknowledgeMode.AUTO).create_consumer(other.create_queue(name))
    connection = other._shared.connection
    gc.collect()
    other.create_producer().send(other.create_queue(name), "x")
    other.close()
    assert consumer.receive_body(str, WAIT) == "x"
    assert "CLOSED" not in repr(connection)
    gone = weakref.ref(connection)
    del connection, consumer, other
    gc.collect()
    assert wait_for(lambda: is_gone(gone))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_dropped_context_that_is_part_of_a_cycle_leaves_once(factory: ConnectionFactory) -> None:
    first = factory.create_context()
    second, third = first.create_context(AcknowledgeMode.AUTO), first.create_context(AcknowledgeMode.AUTO)
    connection = first._shared.connection
    cycle: list[object] = [second]
    cycle.append(cycle)
    second_session = weakref.ref(second._session)
    del second, cycle
    gc.collect()
    assert wait_for(lambda: is_gone(second_session))
    first.close()
    third.create_producer()
    assert "CLOSED" not in repr(connection)
    third.close()
    assert wait_for(lambda: "CLOSED" in repr(connection))


def test_a_client_context_acknowledges_and_recovers(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context(AcknowledgeMode.CLIENT) as context:
        queue = context.create_queue(name)
        context.create_producer().send(queue, "a").send(queue, "b")
        consumer = context.create_consumer(queue)
        assert [consumer.receive_body(str, WAIT) for _ in range(2)] == ["a", "b"]
        context.recover()
        assert [consumer.receive_body(str, WAIT) for _ in range(2)] == ["a", "b"]
        context.acknowledge()
    with factory.create_context() as context:
        assert context.create_consumer(queue).receive_nowait() is None


def test_a_context_that_does_not_start_by_itself_is_started(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        context.auto_start = False
        queue = context.create_queue(name)
        context.create_producer().send(queue, "x")
        consumer = context.create_consumer(queue)
        assert consumer.receive(0.1) is None
        context.start()
        assert consumer.receive_body(str, WAIT) == "x"
        context.stop()
        context.create_producer().send(queue, "y")
        assert consumer.receive(0.1) is None


def test_a_context_has_everything_that_a_session_makes(context: JMSContext, name: str) -> None:
    topic = context.create_topic(name)
    shared = context.create_shared_consumer(topic, "s")
    durable = context.create_shared_durable_consumer(topic, f"d {name}")
    temporary = context.create_temporary_topic()
    with context.create_consumer(temporary, no_local=True):
        pass
    context.delete_temporary(temporary)
    queue = context.create_temporary_queue()
    seen: list[Any] = []
    finished = threading.Event()

    def listener(message: Message) -> None:
        seen.append(message.body)
        finished.set()

    messages = [
        context.create_text_message("x"),
        context.create_bytes_message(b"x"),
        context.create_map_message({}),
        context.create_stream_message([]),
        context.create_object_message(1),
    ]
    for message in messages:
        context.create_producer().send(queue, message)
    with context.create_browser(queue, "JMSPriority = 4") as browser:
        assert len(list(browser)) == len(messages)
    context.create_producer().send(topic, "x")
    assert durable.receive_body(str, WAIT) == "x"
    durable.close()
    context.unsubscribe(f"d {name}")
    shared.listener = listener
    assert shared.listener is listener
    assert finished.wait(WAIT)
    assert seen == ["x"]
    assert context.meta_data.jms_version == "3.1"
    context.exception_listener = print
    assert context.exception_listener is print


def test_a_durable_consumer_needs_a_client_id(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context(client_id=name) as context:
        topic = context.create_topic(name)
        consumer = context.create_durable_consumer(topic, "s", "k = 1")
        assert consumer.selector == "k = 1"
        context.create_producer().set_property("k", 1).send(topic, TextMessage("x"))
        assert consumer.receive_body(str, WAIT) == "x"
    with factory.create_context() as context, pytest.raises(IllegalStateException, match="client id"):
        context.create_durable_consumer(topic, "s")


def test_two_threads_that_close_one_context_leave_the_connection_to_the_others(
    context: JMSContext, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = context.create_context(AcknowledgeMode.AUTO)
    both = threading.Barrier(2)
    close = Session.close

    def together(session: Session) -> None:
        both.wait(WAIT)
        close(session)

    monkeypatch.setattr(Session, "close", together)
    threads = [threading.Thread(target=context.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    monkeypatch.undo()
    other.create_producer().send(other.create_queue(name), "it is open")
    other.close()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("delivery_mode", 3, ValueError),
        ("priority", 10, ValueError),
        ("time_to_live", 0, ValueError),
        ("delivery_delay", "x", ValueError),
        ("correlation_id", 5, MessageFormatException),
        ("type", b"x", MessageFormatException),
        ("reply_to", "q", InvalidDestinationException),
        ("on_completion", "x", TypeError),
    ],
)
def test_a_producer_checks_what_it_is_told(context: JMSContext, name: str, value: Any, error: type[Exception]) -> None:
    producer = context.create_producer()
    with pytest.raises(error, match=f"^{name}="):
        setattr(producer, name, value)
    if name != "on_completion":
        with pytest.raises(error, match=f"^{name}="):
            getattr(producer, f"set_{name}")(value)
    assert getattr(producer, name) is None
    setattr(producer, name, None)


def test_a_producer_sends_several_with_what_was_set_before(context: JMSContext) -> None:
    queue = context.create_queue("several")
    producer = context.create_producer().set_property("colour", "red").set_priority(7)
    assert producer.send_all(queue, ["a", TextMessage("b")]) is producer
    with pytest.raises(TypeError, match=r"for one str use send\(\)"):
        producer.send_all(queue, "ab")
    with pytest.raises(TypeError, match="such as a list"):
        producer.send_all(queue, None)  # type: ignore[arg-type]
    found = list(context.create_browser(queue))
    assert [(each.body, each.properties["colour"], each.priority) for each in found] == [
        ("a", "red", 7),
        ("b", "red", 7),
    ]


def test_where_a_producer_sends_none_of_several_the_failures_have_all_of_them(context: JMSContext) -> None:
    queue = context.create_queue("none of several")
    producer = context.create_producer()
    with pytest.raises(MessageFormatException, match="message 1 of 3 cannot be sent, and none of them was") as told:
        producer.send_all(queue, ["a", {"b": object()}, "c"])
    assert list(told.value.failures) == [0, 1, 2]
    assert list(context.create_browser(queue)) == []
    context.close()
    with pytest.raises(IllegalStateException) as closed:
        producer.send_all(queue, ["a", "b"])
    assert list(closed.value.failures) == [0, 1]
