"""Asynchronous sends: the order and the thread of their completions, and what they may not do."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    DeliveryMode,
    IllegalStateException,
    JMSException,
    Message,
    ResourceAllocationException,
    TransactionRolledBackException,
    session_thread,
)
from tests.contracts.transports import eventually
from tests.sdk.small_broker import SmallBroker
from tests.sdk.threads.calls import WAIT, in_thread, send
from tests.threads import no_new_threads


def test_completions_come_in_the_order_of_the_sends_on_the_session_thread(
    broker: SmallBroker, connection: Connection
) -> None:
    broker.hold_answers = True
    session = connection.create_session()
    producers = [session.create_producer(session.create_queue(name)) for name in ("a", "b")]
    told: queue.SimpleQueue[tuple[str, JMSException | None, str]] = queue.SimpleQueue()

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.put((str(message), error, threading.current_thread().name))

    for number in range(4):
        producers[number % 2].send(str(number), on_completion=on_completion)
    for answer in reversed(broker.answers):
        assert told.empty()
        answer(None)

    assert [told.get(timeout=WAIT) for _ in range(4)] == [(str(n), None, "holdfast-session-1") for n in range(4)]


def test_a_send_whose_session_gets_no_thread_is_not_sent_and_leaves_nothing_to_wait_for(
    broker: SmallBroker, connection: Connection
) -> None:
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    told: queue.SimpleQueue[JMSException | None] = queue.SimpleQueue()

    with no_new_threads(), pytest.raises(ResourceAllocationException, match="new thread"):
        producer.send("a", on_completion=lambda _message, error: told.put(error))
    assert producer._unanswered == 0
    producer.send("b", on_completion=lambda _message, error: told.put(error))
    assert told.get(timeout=WAIT) is None
    assert told.empty()


@pytest.mark.parametrize("refused", ["thread", "limit"])
def test_a_completion_whose_send_was_refused_keeps_neither_a_commit_nor_a_thread_waiting(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "_LINGER", 0.01)
    with SmallBroker(transaction_messages=1, request_timeout_seconds=WAIT).connect() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        producer = session.create_producer(session.create_queue("q"))
        told: list[str] = []

        def send(body: str) -> None:
            producer.send(body, on_completion=lambda message, _error: told.append(str(message)))

        if refused == "thread":
            with no_new_threads(), pytest.raises(ResourceAllocationException, match="new thread"):
                send("a")
        else:
            send("a")
            with pytest.raises(ResourceAllocationException, match="transaction_messages"):
                send("b")
        eventually(lambda: session._state.thread is None)
        session.commit()
        assert len(told) == (refused == "limit")
        assert not session._state.completions


def test_a_commit_that_gets_no_thread_for_its_completions_is_done_and_tells_them_itself(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "_LINGER", 0.01)
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("q"))
    told: list[JMSException | None] = []
    producer.send("a", on_completion=lambda _message, error: told.append(error))
    eventually(lambda: session._state.thread is None)
    with no_new_threads():
        session.commit()
    assert (told, len(broker.commits)) == ([None], 1)


def test_a_completion_that_the_committing_thread_tells_ends_no_transaction_and_closes_nothing(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "_LINGER", 0.01)
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("q"))
    told: list[str] = []

    def callback(message: Message, _error: JMSException | None) -> None:
        told.append(str(message))
        for act in (session.commit, session.close):
            with pytest.raises(IllegalStateException, match="callback"):
                act()

    for body in ("a", "b"):
        producer.send(body, on_completion=callback)
    eventually(lambda: session._state.thread is None)
    with no_new_threads():
        session.commit()
    assert (told, len(broker.commits)) == (["a", "b"], 1)


def test_completion_tells_what_went_wrong_and_another_still_comes(
    broker: SmallBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refuse_send = ResourceAllocationException("the queue is full")
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    told: list[JMSException | None] = []

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.append(error)
        raise ValueError("the callback is wrong")

    with caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        producer.send("x", on_completion=on_completion)
        producer.send("y", on_completion=on_completion)
        producer.close()  # waits for both

    assert [str(error) for error in told] == ["the queue is full"] * 2


def test_closing_a_session_waits_for_its_completions(broker: SmallBroker, connection: Connection) -> None:
    broker.hold_answers = True
    session = connection.create_session()
    told: list[object] = []
    session.create_producer(session.create_queue("q")).send("x", on_completion=lambda *facts: told.append(facts))

    thread, results = in_thread(lambda: (session.close(), len(told))[1])
    assert not threading.Event().wait(0.02)
    assert results.empty()
    broker.answers[0](None)

    assert results.get(timeout=WAIT) == 1
    thread.join()


def test_failed_non_persistent_send_is_told_to_the_exception_listener(
    broker: SmallBroker, connection: Connection
) -> None:
    told: queue.SimpleQueue[JMSException] = queue.SimpleQueue()
    connection.exception_listener = told.put
    broker.refuse_send = ResourceAllocationException("the queue is full")
    session = connection.create_session()

    message = session.create_text_message("x")
    session.create_producer(session.create_queue("q")).send(message, delivery_mode=DeliveryMode.NON_PERSISTENT)

    error = told.get(timeout=WAIT)
    assert type(error) is ResourceAllocationException
    assert str(error) == f"message {message.message_id!r} to 'q': the queue is full"


def test_completions_of_a_transaction_come_with_its_end(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("q"))
    told: queue.SimpleQueue[tuple[str, JMSException | None]] = queue.SimpleQueue()

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.put((str(message), error))

    producer.send("kept", on_completion=on_completion)
    assert told.empty()
    session.commit()
    assert told.get(timeout=WAIT) == ("kept", None)
    producer.send("dropped", on_completion=on_completion)
    session.rollback()
    assert isinstance(told.get(timeout=WAIT)[1], TransactionRolledBackException)


@pytest.mark.parametrize("what", ["commit", "rollback", "close"])
def test_completion_callback_cannot_end_its_session_or_transaction(connection: Connection, what: str) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    acts = {"commit": session.commit, "rollback": session.rollback, "close": session.close}

    def on_completion(message: Message, error: JMSException | None) -> None:
        try:
            results.put(acts[what]())
        except JMSException as refusal:
            results.put(refusal)

    session.create_producer(session.create_queue("q")).send("x", on_completion=on_completion)
    session.commit()

    assert isinstance(results.get(timeout=WAIT), IllegalStateException)


def test_the_completions_of_a_commit_that_finds_no_room_say_so(tmp_path: object) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}?max_queue_messages=5").create_connection() as connection:
        connection.start()
        send(connection, *"abcd")
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        destination = session.create_queue("q")
        told: list[tuple[Any, JMSException | None]] = []
        producer = session.create_producer(destination)
        for body in "fg":
            producer.send(body, on_completion=lambda message, error: told.append((message.body, error)))
        with pytest.raises(TransactionRolledBackException, match="does not wait for room"):
            session.commit()
        session.close()
        with connection.create_session() as other, other.create_consumer(destination) as consumer:
            received = [consumer.receive(WAIT) for _ in range(4)]
            assert consumer.receive_nowait() is None
        assert [message.body for message in received if message is not None] == list("abcd")
        assert [(body, type(error)) for body, error in told] == [
            ("f", TransactionRolledBackException),
            ("g", TransactionRolledBackException),
        ]
