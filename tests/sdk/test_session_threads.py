"""Which thread may do what: misuse, listeners, callbacks, closing."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import attrs
import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    DeliveryMode,
    IllegalStateException,
    JMSException,
    Message,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    Session,
    TransactionRolledBackException,
    session_thread,
)
from sdk.prefetch import Prefetch
from tests.contracts.transports import eventually
from tests.sdk.small_broker import SmallBroker, started, with_messages
from tests.threads import no_new_threads

_WAIT = 120.0


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10, close_timeout_seconds=_WAIT)


@pytest.fixture
def connection(broker: SmallBroker) -> Iterator[Connection]:
    with broker.connect() as connection:
        connection.start()
        yield connection


def _send(connection: Connection, *bodies: str) -> None:
    with connection.create_session() as session, session.create_producer(session.create_queue("q")) as producer:
        for body in bodies:
            producer.send(body)


def _in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, queue.SimpleQueue[Any]]:
    """Run it in another thread; the queue gets its result or its error."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(act())
        except Exception as error:
            results.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def _receiving(session: Session) -> None:
    """Return when another thread waits in this session's receive."""
    state = session._state
    assert state.wait_until(lambda: True, None)
    while not state.waiters:
        threading.Event().wait(0.001)


# Misuse.


def test_session_in_use_by_another_thread_raises(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    destination = session.create_queue("q")
    consumer, producer = session.create_consumer(destination), session.create_producer(destination)
    thread, results = _in_thread(consumer.receive)
    _receiving(session)

    calls: list[Callable[[], object]] = [
        lambda: producer.send("x"),
        consumer.receive,
        consumer.receive_nowait,
        session.recover,
        lambda: session.create_consumer(destination),
        lambda: session.create_producer(destination),
        lambda: list(session.create_browser(destination)),
        session.create_temporary_queue,
        lambda: setattr(consumer, "listener", print),
    ]
    for call in calls:
        with pytest.raises(IllegalStateException, match="session 1 is in use by another thread"):
            call()

    _send(connection, "end")
    assert str(results.get(timeout=_WAIT)) == "end"
    thread.join()
    producer.send("and now it is free")


def test_a_receive_that_fails_puts_nothing_back_that_another_thread_has_received(connection: Connection) -> None:
    _send(connection, "m0", "m1")
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue("q"))
    state, got, plain = session._state, [], session._state.disown
    eventually(lambda: len(consumer._prefetch.buffer) == 2)

    def disown() -> None:
        state.disown = plain
        plain()
        thread, results = _in_thread(lambda: consumer.receive(_WAIT))
        thread.join(_WAIT)
        got.append(results.get())

    def refuse(_message: Message) -> None:
        raise MessageFormatException("of another type")

    state.disown = disown
    with pytest.raises(MessageFormatException, match="another type"):
        consumer._receive(_WAIT, refuse)
    got.append(consumer.receive(_WAIT))
    assert [message.body for message in got] == ["m0", "m1"]
    assert consumer.receive_nowait() is None


def test_stop_waits_for_a_receiver_though_another_thread_is_refused_meanwhile(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send(connection, "x")
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    inside, go_on, plain = threading.Event(), threading.Event(), Prefetch.count_used

    def slow(this: Prefetch) -> None:
        inside.set()
        assert go_on.wait(_WAIT)
        plain(this)

    monkeypatch.setattr(Prefetch, "count_used", slow)
    receiver, results = _in_thread(lambda: consumer.receive(_WAIT))
    assert inside.wait(_WAIT)
    with pytest.raises(IllegalStateException, match="in use by another thread"):
        consumer.receive_nowait()
    stopper, stopped = _in_thread(connection.stop)
    stopper.join(0.2)
    assert stopped.empty()
    go_on.set()
    assert stopped.get(timeout=_WAIT) is None
    assert results.get(timeout=_WAIT).body == "x"
    receiver.join(_WAIT)


def test_message_cannot_be_acknowledged_while_another_thread_uses_its_session(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue("q"))
    _send(connection, "x")
    message = consumer.receive(_WAIT)
    assert message is not None
    thread, results = _in_thread(consumer.receive)
    _receiving(session)

    with pytest.raises(IllegalStateException, match="in use by another thread"):
        message.acknowledge()

    consumer.close()
    assert results.get(timeout=_WAIT) is None
    thread.join()


def test_sessions_with_listeners_belong_to_their_thread(connection: Connection) -> None:
    session = connection.create_session()
    destination = session.create_queue("q")
    consumer, producer = session.create_consumer(destination), session.create_producer(destination)
    called = threading.Event()
    consumer.listener = lambda message: called.set()
    _send(connection, "x")
    assert called.wait(_WAIT)

    with pytest.raises(IllegalStateException, match="served by the thread of its listeners"):
        producer.send("x")
    with pytest.raises(IllegalStateException, match="served by the thread of its listeners"):
        consumer.receive()

    session.create_consumer(session.create_queue("another")).listener = print  # setting up is allowed
    connection.stop()
    while True:  # the thread releases it in its own time
        try:
            producer.send("y")
            break
        except IllegalStateException:
            threading.Event().wait(0.001)


def test_receive_is_refused_where_the_session_has_listeners(connection: Connection) -> None:
    connection.stop()
    session = connection.create_session()
    one, two = (session.create_consumer(session.create_queue(name)) for name in ("q", "r"))
    one.listener = print

    with pytest.raises(IllegalStateException, match="session 1 has listeners"):
        two.receive(0)

    one.listener = None
    assert two.receive(0) is None


@pytest.mark.parametrize("thing", ["listener", "exception_listener", "on_completion"])
def test_callback_that_cannot_be_called_is_refused(connection: Connection, thing: str) -> None:
    session = connection.create_session()
    destination = session.create_queue("q")

    with pytest.raises(TypeError, match=f"{thing}=7 cannot be called"):  # noqa: PT012
        if thing == "listener":
            session.create_consumer(destination).listener = 7  # type: ignore[assignment]
        elif thing == "exception_listener":
            connection.exception_listener = 7  # type: ignore[assignment]
        else:
            session.create_producer(destination).send("x", on_completion=7)  # type: ignore[arg-type]


# Listeners.


def test_listeners_of_one_session_run_one_after_the_other_on_its_thread(connection: Connection) -> None:
    connection.stop()
    session = connection.create_session()
    running: list[int] = []
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        running.append(1)
        assert len(running) == 1
        seen.append((str(message), threading.current_thread().name))
        running.pop()
        if len(seen) == 100:
            done.set()

    for name in ("a", "b"):
        destination = session.create_queue(name)
        producer = session.create_producer(destination)
        for number in range(50):
            producer.send(f"{name}{number}")
        session.create_consumer(destination).listener = listen
    connection.start()

    assert done.wait(_WAIT)
    assert {thread for _, thread in seen} == {"holdfast-session-1"}
    for name in ("a", "b"):
        assert [body for body, _ in seen if body[0] == name] == [f"{name}{number}" for number in range(50)]


def test_listener_that_raises_is_logged_and_the_next_message_comes(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append((str(message), message.delivery_count))
        if len(seen) == 3:
            done.set()
        if str(message) == "bad" and not message.redelivered:
            raise SystemExit("not even this ends the thread")

    session = connection.create_session()
    _send(connection, "bad", "good")
    with caplog.at_level(logging.ERROR, "holdfast.sdk"):
        session.create_consumer(session.create_queue("q")).listener = listen
        assert done.wait(_WAIT)
        session.close()

    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]
    assert "SystemExit: not even this" in caplog.text


def test_client_session_goes_on_when_its_listener_raises(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Jakarta Messaging 8.7: it does not recover by itself; what the listener raised on is held like the others."""
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append((str(message), message.delivery_count))
        if str(message) == "b" and not message.redelivered:
            raise ValueError("failed")
        if str(message) == "c" and not message.redelivered:
            session.recover()
        elif str(message) == "c":
            message.acknowledge()
            done.set()

    session = connection.create_session(AcknowledgeMode.CLIENT)
    _send(connection, "a", "b", "c")
    with caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        session.create_consumer(session.create_queue("q")).listener = listen
        assert done.wait(_WAIT)
        session.close()

    assert seen == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]


def test_listener_may_use_its_session(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("out"))
    done = threading.Event()

    def forward(message: Message) -> None:
        producer.send(message)
        session.commit()
        done.set()

    session.create_consumer(session.create_queue("q")).listener = forward
    _send(connection, "x")

    assert done.wait(_WAIT)
    other = connection.create_session()
    assert str(other.create_consumer(other.create_queue("out")).receive(_WAIT)) == "x"


def test_listener_that_recovers_gets_the_message_again(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.AUTO)
    counts: list[int] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        counts.append(message.delivery_count)
        if message.redelivered:
            done.set()
        else:
            session.recover()

    session.create_consumer(session.create_queue("q")).listener = listen
    _send(connection, "x")

    assert done.wait(_WAIT)
    assert counts == [1, 2]


def test_listener_may_close_its_consumer(broker: SmallBroker, connection: Connection) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    seen: list[str] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        seen.append(str(message))
        consumer.close()
        done.set()

    _send(connection, "a", "b")
    consumer.listener = listen
    assert done.wait(_WAIT)
    session.close()

    assert seen == ["a"]
    assert [outcome.name for outcome in broker.outcomes()] == ["RELEASED", "ACCEPTED"]


@pytest.mark.parametrize("what", ["session.close", "connection.close", "connection.stop"])
def test_listener_cannot_close_or_stop_what_it_runs_in(connection: Connection, what: str) -> None:
    session = connection.create_session()
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    act = {"session.close": session.close, "connection.close": connection.close, "connection.stop": connection.stop}

    def listen(message: Message) -> None:
        try:
            results.put(act[what]())
        except JMSException as error:
            results.put(error)

    session.create_consumer(session.create_queue("q")).listener = listen
    _send(connection, "x")

    assert isinstance(results.get(timeout=_WAIT), IllegalStateException)


# Closing.


@pytest.mark.parametrize("what", ["consumer", "session", "connection"])
def test_closing_wakes_a_receive_that_waits(connection: Connection, what: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    thread, results = _in_thread(consumer.receive)
    _receiving(session)

    {"consumer": consumer, "session": session, "connection": connection}[what].close()  # type: ignore[attr-defined]

    assert results.get(timeout=_WAIT) is None
    thread.join()


@pytest.mark.parametrize("timeout", [None, 0, 60])
def test_a_receive_whose_messages_another_thread_gives_back_as_it_closes_returns_nothing(
    broker: SmallBroker, connection: Connection, timeout: float | None
) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))

    class Emptied(deque[Any]):
        def __getitem__(self, index: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                thread, _ = _in_thread(consumer.close)
                thread.join(_WAIT)
            return super().__getitem__(index)

    _send(connection, "a")
    eventually(lambda: len(consumer._prefetch.buffer) == 1)
    consumer._prefetch.buffer = session._links.sinks[consumer._prefetch.link].buffer = Emptied(
        consumer._prefetch.buffer
    )
    assert consumer.receive(timeout) is None
    assert [outcome.name for outcome in broker.outcomes()] == ["RELEASED"]


@pytest.mark.parametrize("what", ["consumer", "session", "connection", "stop"])
def test_closing_and_stopping_wait_for_a_listener_that_runs(connection: Connection, what: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def listen(message: Message) -> None:
        entered.set()
        leave.wait(_WAIT)
        left.set()

    consumer.listener = listen
    _send(connection, "x")
    assert entered.wait(_WAIT)
    acts = {
        "consumer": consumer.close,
        "session": session.close,
        "connection": connection.close,
        "stop": connection.stop,
    }

    thread, results = _in_thread(lambda: (acts[what](), left.is_set())[1])
    assert not threading.Event().wait(0.02)
    assert results.empty()
    leave.set()

    assert results.get(timeout=_WAIT) is True
    thread.join()


def test_close_gives_up_on_a_listener_that_does_not_return(caplog: pytest.LogCaptureFixture) -> None:
    broker = SmallBroker(close_timeout_seconds=0.05)
    entered, leave = threading.Event(), threading.Event()
    with broker.connect() as connection, caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        connection.start()
        session = connection.create_session()

        def listen(message: Message) -> None:
            entered.set()
            leave.wait(_WAIT)

        session.create_consumer(session.create_queue("q")).listener = listen
        _send(connection, "x")
        assert entered.wait(_WAIT)
        with pytest.raises(OperationTimedOutException, match="has not returned in time"):
            connection.stop()

        session.close()

        assert [outcome.name for outcome in broker.outcomes()] == ["MODIFIED"]
        thread = session._thread
        assert thread is not None
        leave.set()
        thread.thread.join(_WAIT)
        assert [outcome.name for outcome in broker.outcomes()] == ["MODIFIED"]  # settled once


@pytest.mark.parametrize("what", ["connection", "session", "producer", "consumer", "browser"])
def test_closing_twice_is_legal_and_using_afterwards_is_not(connection: Connection, what: str) -> None:
    session = connection.create_session()
    destination = session.create_queue("q")
    things: dict[str, Any] = {
        "connection": connection,
        "session": session,
        "producer": session.create_producer(destination),
        "consumer": session.create_consumer(destination),
        "browser": session.create_browser(destination),
    }
    uses: dict[str, Callable[[], object]] = {
        "connection": connection.create_session,
        "session": lambda: session.create_consumer(destination),
        "producer": lambda: things["producer"].send("x"),
        "consumer": things["consumer"].receive,
        "browser": lambda: list(things["browser"]),
    }

    things[what].close()
    things[what].close()

    for name in list(things)[list(things).index(what) :] if what in ("connection", "session") else [what]:
        with pytest.raises(IllegalStateException, match="CLOSED"):
            uses[name]()


def test_closed_consumer_leaves_what_it_received_to_the_session(broker: SmallBroker, connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    _send(connection, "a", "b")
    with session.create_consumer(session.create_queue("q")) as consumer:
        message = consumer.receive(_WAIT)
        assert message is not None

    message.acknowledge()

    assert [outcome.name for outcome in broker.outcomes()] == ["RELEASED", "ACCEPTED"]
    session.close()
    with pytest.raises(IllegalStateException, match="session 1 is CLOSED"):
        message.acknowledge()


# Asynchronous sends.


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

    assert [told.get(timeout=_WAIT) for _ in range(4)] == [(str(n), None, "holdfast-session-1") for n in range(4)]


def test_a_send_whose_session_gets_no_thread_is_not_sent_and_leaves_nothing_to_wait_for(
    broker: SmallBroker, connection: Connection
) -> None:
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    told: queue.SimpleQueue[JMSException | None] = queue.SimpleQueue()

    with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
        producer.send("a", on_completion=lambda _message, error: told.put(error))
    assert producer._unanswered == 0
    producer.send("b", on_completion=lambda _message, error: told.put(error))
    assert told.get(timeout=_WAIT) is None
    assert told.empty()


@pytest.mark.parametrize("refused", ["thread", "limit"])
def test_a_completion_whose_send_was_refused_keeps_neither_a_commit_nor_a_thread_waiting(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "_LINGER", 0.01)
    with SmallBroker(transaction_messages=1, request_timeout_seconds=_WAIT).connect() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        producer = session.create_producer(session.create_queue("q"))
        told: list[str] = []

        def send(body: str) -> None:
            producer.send(body, on_completion=lambda message, _error: told.append(str(message)))

        if refused == "thread":
            with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
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


def test_a_message_is_received_though_no_thread_can_acknowledge_it_in_time(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.DUPS_OK)
    consumer = session.create_consumer(session.create_queue("q"))
    _send(connection, "a", "b")
    with no_new_threads():
        assert str(consumer.receive(_WAIT)) == "a"
    assert str(consumer.receive(_WAIT)) == "b"


def test_a_thread_that_stops_leaves_the_one_that_was_started_meanwhile(connection: Connection) -> None:
    session = connection.create_session()
    state = session._state
    for begun in (threading.Thread(), None):
        stopping = session_thread.SessionThread(state, lambda *_: None)
        stopping.stop()
        state.thread = begun
        stopping._run()
        assert state.thread is begun


def test_a_listener_that_gets_no_thread_is_not_set(connection: Connection) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    _send(connection, "a")
    with no_new_threads(), pytest.raises(RuntimeError, match="new thread"):
        consumer.listener = lambda _message: None
    assert consumer.listener is None
    assert str(consumer.receive(_WAIT)) == "a"


def test_a_thread_that_ended_without_work_is_started_again_for_the_next(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_thread, "_LINGER", 0.01)
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    told: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    threads = []
    for number in range(3):
        producer.send(str(number), on_completion=lambda _message, _error: told.put(threading.current_thread()))
        threads.append(told.get(timeout=_WAIT))
        threads[-1].join(_WAIT)
        assert not threads[-1].is_alive()
    assert len(set(threads)) == 3
    session.close()


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

    thread, results = _in_thread(lambda: (session.close(), len(told))[1])
    assert not threading.Event().wait(0.02)
    assert results.empty()
    broker.answers[0](None)

    assert results.get(timeout=_WAIT) == 1
    thread.join()


def test_failed_non_persistent_send_is_told_to_the_exception_listener(
    broker: SmallBroker, connection: Connection
) -> None:
    told: queue.SimpleQueue[JMSException] = queue.SimpleQueue()
    connection.exception_listener = told.put
    broker.refuse_send = ResourceAllocationException("the queue is full")
    session = connection.create_session()

    session.create_producer(session.create_queue("q")).send("x", delivery_mode=DeliveryMode.NON_PERSISTENT)

    assert str(told.get(timeout=_WAIT)) == "the queue is full"


def test_completions_of_a_transaction_come_with_its_end(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.TRANSACTED)
    producer = session.create_producer(session.create_queue("q"))
    told: queue.SimpleQueue[tuple[str, JMSException | None]] = queue.SimpleQueue()

    def on_completion(message: Message, error: JMSException | None) -> None:
        told.put((str(message), error))

    producer.send("kept", on_completion=on_completion)
    assert told.empty()
    session.commit()
    assert told.get(timeout=_WAIT) == ("kept", None)
    producer.send("dropped", on_completion=on_completion)
    session.rollback()
    assert isinstance(told.get(timeout=_WAIT)[1], TransactionRolledBackException)


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

    assert isinstance(results.get(timeout=_WAIT), IllegalStateException)


# The exception listener.


def test_exception_listener_may_close_the_connection(broker: SmallBroker) -> None:
    connection = broker.connect()
    closed = threading.Event()
    connection.exception_listener = lambda error: (connection.close(), closed.set())
    connection.create_session()

    broker.fail()

    assert closed.wait(_WAIT)
    assert broker.closed


def test_exception_listener_that_raises_is_called_for_the_next_error(
    broker: SmallBroker, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    told: queue.SimpleQueue[JMSException] = queue.SimpleQueue()

    def listen(error: JMSException) -> None:
        told.put(error)
        raise ValueError("the listener is wrong")

    connection.exception_listener = listen
    with caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        for _ in range(2):
            broker.interrupt()
            broker.restore()
            told.get(timeout=_WAIT)


def test_no_thread_runs_where_none_is_needed(connection: Connection) -> None:
    before = threading.active_count()
    session = connection.create_session()
    _send(connection, "x")
    consumer = session.create_consumer(session.create_queue("q"))
    consumer.receive(_WAIT)

    assert threading.active_count() == before


@pytest.mark.parametrize("confirms", [False, True])
def test_no_receiver_returns_a_message_after_a_stop(confirms: bool) -> None:
    """Also where it has checked its buffer before, and where its acknowledgement is being confirmed."""
    url = "embedded:?synchronous_acknowledge=true" if confirms else "embedded:"
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        session = connection.create_session()
        name = f"queue {uuid4()}"
        with connection.create_session() as other:
            producer = other.create_producer(other.create_queue(name))
            for number in range(3000):
                producer.send(str(number))
        consumer = session.create_consumer(session.create_queue(name))
        taken: list[str] = []

        def receive() -> None:
            while not over.is_set():
                message = consumer.receive(0.05)
                if message is None:
                    continue
                taken.append(message.text)  # type: ignore[attr-defined]

        over = threading.Event()
        thread = threading.Thread(target=receive)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            for _ in range(50):
                threading.Event().wait(0.002)
                connection.stop()
                count = len(taken)
                threading.Event().wait(0.002)
                # One may have been returned, and not been noted yet.
                assert len(taken) - count <= 1
                connection.start()
        finally:
            sys.setswitchinterval(interval)
        over.set()
        thread.join(_WAIT)
        assert taken == [str(number) for number in range(len(taken))]


def test_a_message_that_a_receiver_checked_before_a_stop_stays_in_its_place(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    _send(connection, "1", "2")
    eventually(lambda: len(consumer._prefetch.buffer) == 2)
    opened = consumer._opened

    def stop_first(delivery: Any, tag: Any) -> Any:
        found = opened(delivery, tag)
        stopper = threading.Thread(target=connection.stop)
        stopper.start()
        stopper.join(_WAIT)
        return found

    monkeypatch.setattr(consumer, "_opened", stop_first)
    assert consumer.receive(0.05) is None
    monkeypatch.undo()
    connection.start()
    received = [consumer.receive(_WAIT) for _ in range(2)]
    assert [each and each.text for each in received] == ["1", "2"]  # type: ignore[attr-defined]


# Stopping, beside everything else.


class Hanging:
    """A listener that hangs on its first message until it is released, and counts."""

    def __init__(self, session: Session, name: str) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.seen = 0
        self.consumer = session.create_consumer(session.create_queue(name))
        self.consumer.listener = self._listen

    def _listen(self, _message: Message) -> None:
        self.seen += 1
        self.entered.set()
        self.leave.wait(_WAIT)


def _send_to(connection: Connection, name: str, count: int) -> None:
    with connection.create_session() as session, session.create_producer(session.create_queue(name)) as producer:
        for number in range(count):
            producer.send(str(number))


def test_a_listener_that_hangs_keeps_no_other_session_from_being_stopped() -> None:
    broker = SmallBroker(close_timeout_seconds=0.05)
    with broker.connect() as connection:
        connection.start()
        sessions = [connection.create_session() for _ in range(3)]
        hanging = Hanging(sessions[0], "a")
        consumers = [session.create_consumer(session.create_queue("b")) for session in sessions[1:]]
        taken: list[str] = []
        consumers[0].listener = lambda message: taken.append(str(message))
        _send_to(connection, "a", 2)
        assert hanging.entered.wait(_WAIT)
        for _ in range(2):  # nor is the second stop less than the first
            with pytest.raises(OperationTimedOutException, match="listener of session 1 has not returned in time"):
                connection.stop()
            _send_to(connection, "b", 10)
            assert consumers[1].receive(0.05) is None
            assert taken == []
        hanging.leave.set()
        connection.stop()
        assert hanging.seen == 1


def test_each_stop_waits_for_a_listener_that_runs(connection: Connection) -> None:
    hanging = Hanging(connection.create_session(), "a")
    _send_to(connection, "a", 2)
    assert hanging.entered.wait(_WAIT)
    stops = [_in_thread(lambda: (connection.stop(), hanging.leave.is_set())[1]) for _ in range(2)]
    eventually(lambda: not hanging.consumer._state.running)
    for thread, _ in stops:
        thread.join(0.02)
    hanging.leave.set()
    assert [results.get(timeout=_WAIT) for _, results in stops] == [True, True]
    assert hanging.seen == 1


def test_a_connection_that_is_started_while_another_thread_stops_it_is_started(connection: Connection) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    _send_to(connection, "a", 2)
    assert hanging.entered.wait(_WAIT)
    thread, results = _in_thread(connection.stop)
    eventually(lambda: not session._state.running)
    connection.start()
    assert results.get(timeout=_WAIT) is None  # its stop is over
    hanging.leave.set()
    eventually(lambda: hanging.seen == 2)
    thread.join(_WAIT)


@pytest.mark.parametrize("what", ["start", "stop"])
def test_a_connection_is_started_and_stopped_while_a_session_of_it_is_being_closed(
    connection: Connection, what: str
) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    _send_to(connection, "a", 1)
    assert hanging.entered.wait(_WAIT)
    if what == "start":
        thread, _ = _in_thread(connection.stop)
        eventually(lambda: not session._state.running)
    closing, _ = _in_thread(session.close)
    eventually(lambda: not session._state.lifecycle.usable)
    stopping, results = _in_thread(connection.start if what == "start" else connection.stop)
    stopping.join(0.05)
    hanging.leave.set()
    assert results.get(timeout=_WAIT) is None
    closing.join(_WAIT)
    if what == "start":
        thread.join(_WAIT)


@pytest.mark.parametrize("what", ["stop", "no listener", "closed consumer"])
def test_a_session_is_free_as_soon_as_its_listeners_are_done(connection: Connection, what: str) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        session = connection.create_session()
        other = session.create_consumer(session.create_queue("other"))
        for _ in range(100):
            consumer = session.create_consumer(session.create_queue("q"))
            came = threading.Event()
            consumer.listener = lambda _message, came=came: came.set()  # type: ignore[misc]
            _send_to(connection, "q", 1)
            assert came.wait(_WAIT)
            if what == "stop":
                connection.stop()
                session.recover()
                consumer.listener = None
                connection.start()
            elif what == "no listener":
                consumer.listener = None
            else:
                consumer.close()
            assert other.receive(0.001) is None
            consumer.close()
    finally:
        sys.setswitchinterval(interval)


def test_a_start_while_something_is_given_back_grants_nothing_before_that_is_back(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the broker sends for it passes what is given back."""
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumers = [session.create_consumer(session.create_queue(name), prefetch=4) for name in ("a", "b")]
    _send_to(connection, "a", 10)
    assert [str(consumers[0].receive(_WAIT)) for _ in range(3)] == ["0", "1", "2"]
    drain, receiver, on_its_way = broker.drain, broker._receivers[consumers[0]._prefetch.link], list[Any]()
    sink, restarts = receiver.sink, 0

    def restart_behind_it(link: int, timeout: float | None) -> bool:
        nonlocal restarts
        answer = drain(link, timeout)
        receiver.sink = on_its_way.extend
        thread, results = _in_thread(lambda: (connection.stop(), connection.start()))
        assert results.get(timeout=_WAIT) == (None, None)
        thread.join()
        restarts += 1
        return answer

    monkeypatch.setattr(broker, "drain", restart_behind_it)
    session.recover()
    monkeypatch.undo()
    assert restarts
    receiver.sink = sink
    sink(on_its_way)
    assert [str(consumers[0].receive(_WAIT)) for _ in range(10)] == [str(number) for number in range(10)]


def test_taking_a_listener_away_waits_for_it(connection: Connection) -> None:
    session = connection.create_session()
    hanging = Hanging(session, "a")
    _send_to(connection, "a", 2)
    assert hanging.entered.wait(_WAIT)

    def take_away() -> str:
        hanging.consumer.listener = None
        return str(hanging.consumer.receive(_WAIT))

    thread, results = _in_thread(take_away)
    thread.join(0.02)
    assert results.empty()
    hanging.leave.set()
    assert results.get(timeout=_WAIT) == "1"
    assert hanging.seen == 1


@pytest.mark.parametrize("what", ["connection", "session"])
def test_a_thread_that_is_interrupted_as_it_closes_and_closes_again_does_not_wait_for_itself(
    broker: SmallBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As the handler of a signal does."""
    session = connection.create_session()
    close = {"connection": connection, "session": session}[what].close  # type: ignore[attr-defined]
    ends: list[str] = []
    end_session = broker.end_session

    def interrupted(number: int, timeout: float | None) -> None:
        close()
        ends.append("handler")
        end_session(number, timeout)

    monkeypatch.setattr(broker, "end_session", interrupted)
    thread, results = _in_thread(close)
    assert results.get(timeout=_WAIT / 2) is None
    thread.join()
    assert ends == ["handler"]


def test_the_completions_of_a_commit_that_waits_say_that_its_session_was_closed(tmp_path: object) -> None:
    options = "max_queue_messages=5&close_timeout_seconds=0.3&hold_timeout_seconds=600&request_timeout_seconds=600"
    with ConnectionFactory(f"embedded:{tmp_path}?{options}").create_connection() as connection:
        connection.start()
        _send(connection, *"abcde")
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        destination = session.create_queue("q")
        told: list[tuple[Any, JMSException | None]] = []
        producer = session.create_producer(destination)
        for body in "fg":
            producer.send(body, on_completion=lambda message, error: told.append((message.body, error)))
        thread, results = _in_thread(session.commit)
        eventually(lambda: any(each.held_producers for each in connection.statistics().queues))
        session.close()
        thread.join(_WAIT)
        assert isinstance(results.get_nowait(), TransactionRolledBackException)
        with connection.create_session() as other, other.create_consumer(destination) as consumer:
            received = [consumer.receive(_WAIT) for _ in range(5)]
            assert consumer.receive_nowait() is None
        assert [message.body for message in received if message is not None] == list("abcde")
        assert [(body, type(error)) for body, error in told] == [
            ("f", TransactionRolledBackException),
            ("g", TransactionRolledBackException),
        ]


class Slow:
    """A transport whose call of this name waits until it may go on."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._name:
            return found

        def call(*arguments: Any) -> Any:
            self.begun.set()
            assert self.go_on.wait(_WAIT)
            return found(*arguments)

        return call


@pytest.mark.parametrize("what", ["consumer", "producer", "browser"])
def test_what_is_made_while_another_thread_closes_the_session_is_refused_and_its_link_detached(
    connection: Connection, what: str
) -> None:
    """A durable subscription would stay in use until the connection ends."""
    session = connection.create_session()
    destination = session.create_queue("q")
    session._transport = session._state.transport = slow = Slow(session._state.transport, "attach")
    make = {
        "consumer": lambda: session.create_consumer(destination, exclusive=True),
        "producer": lambda: session.create_producer(destination),
        "browser": lambda: list(session.create_browser(destination)),
    }[what]
    thread, results = _in_thread(make)
    assert slow.begun.wait(_WAIT)
    session._settings = session._state.settings = attrs.evolve(session._state.settings, close_timeout_seconds=0.1)
    session.close()
    slow.go_on.set()
    thread.join(_WAIT)
    error = results.get_nowait()
    assert isinstance(error, IllegalStateException)
    assert "is CLOSED" in str(error)
    with connection.create_session() as other:
        _send(connection, "a")
        message = other.create_consumer(destination).receive(_WAIT)  # no exclusive consumer holds it
        assert message is not None


def test_a_second_thread_that_closes_a_consumer_waits_for_the_first(connection: Connection) -> None:
    with connection.create_session() as session:
        temporary = session.create_temporary_queue()
        consumer = session.create_consumer(temporary)
        session._state.transport = slow = Slow(session._state.transport, "detach")
        thread, results = _in_thread(consumer.close)
        assert slow.begun.wait(_WAIT)
        timer = threading.Timer(0.1, slow.go_on.set)
        timer.start()
        consumer.close()
        assert slow.go_on.is_set()
        session.delete_temporary(temporary)  # refused, while a consumer is there
        thread.join(_WAIT)
        timer.join()
        assert results.get_nowait() is None


def test_a_listener_that_closes_its_consumer_does_not_wait_for_a_thread_that_waits_for_it(
    connection: Connection,
) -> None:
    _send(connection, "a")
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"))
        running, closing, ended = threading.Event(), threading.Event(), threading.Event()

        def listen(message: Message) -> None:
            running.set()
            assert closing.wait(_WAIT)
            eventually(lambda: consumer._prefetch.closing)
            consumer.close()
            ended.set()

        consumer.listener = listen
        assert running.wait(_WAIT)
        thread, results = _in_thread(consumer.close)
        closing.set()
        assert ended.wait(_WAIT)
        thread.join(_WAIT)
        assert results.get_nowait() is None


def test_a_start_that_was_interrupted_is_finished_by_the_next(connection: Connection) -> None:
    _send(connection, "a")
    connection.stop()
    with connection.create_session() as first, connection.create_session() as second:
        start = Session._start

        def interrupted(session: Session) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "_start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.start()
        assert Session._start is start
        connection.start()
        message = second.create_consumer(second.create_queue("q")).receive(_WAIT)
        assert message is not None
        assert first._state.running


def test_a_call_that_waited_for_another_thread_leaves_no_call_under_way(connection: Connection) -> None:
    with connection.create_session() as session:
        state = session._state
        own = state.own

        def own_later(blocking: bool = True, timeout: float = -1) -> bool:
            state.calling = False  # that of the other thread has ended by the time the session is free
            return own(blocking, timeout)

        producer = session.create_producer(session.create_queue("q"))
        consumer = session.create_consumer(session.create_queue("q"))
        state.own = own_later
        calls: list[Callable[[], object]] = [
            lambda: state.in_one_call(lambda: None),
            lambda: producer.send("a"),
            lambda: consumer.receive(_WAIT),
        ]
        for call in calls:
            state.calling = True
            call()
            assert not state.calling
        state.own = own


# Closing a consumer whose receive waits for the confirmation of what it acknowledged.


class Confirming:
    """A broker whose confirmations wait for an event, or for the end of the consumer that asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.broker = SmallBroker(prefetch_messages=10, synchronous_acknowledge=True, **settings)
        self.waits, self.go_on = threading.Event(), threading.Event()
        self.links: list[int | None] = []
        self.detached: list[int] = []
        self.while_it_waits: Callable[[], None] = lambda: None
        detach = self.broker.detach

        def confirm(
            timeout: float | None, session: int | None, link: int | None, *, outlasts_loss: bool = True
        ) -> None:
            self.links.append(link)
            self.waits.set()
            self.while_it_waits()
            assert self.go_on.wait(_WAIT)
            if link in self.detached:
                raise IllegalStateException("the acknowledgement: the consumer was closed meanwhile")

        def detach_and_end(link: int, timeout: float | None) -> None:
            self.detached.append(link)
            self.go_on.set()
            detach(link, timeout)

        monkeypatch.setattr(self.broker, "confirm", confirm)
        monkeypatch.setattr(self.broker, "detach", detach_and_end)


def test_a_consumer_closes_once_the_receive_of_another_thread_has_its_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirming = Confirming(monkeypatch, close_timeout_seconds=_WAIT)
    reported: list[JMSException] = []
    with started(confirming.broker) as connection:
        connection.exception_listener = reported.append
        session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 1)
        confirming.detached.clear()  # the producer's
        confirming.go_on.clear()
        receiver, received = _in_thread(lambda: consumer.receive(_WAIT))
        assert confirming.waits.wait(_WAIT)
        closer, closed = _in_thread(consumer.close)
        _receiving(session)  # it waits
        assert confirming.detached == []
        confirming.go_on.set()
        assert str(received.get(timeout=_WAIT)) == "0"
        assert closed.get(timeout=_WAIT) is None
        for thread in (receiver, closer):
            thread.join()
        assert confirming.links == confirming.detached == [consumer._prefetch.link]
    assert reported == []


@pytest.mark.parametrize("by_handler", [False, True], ids=["by another thread", "by the handler of a signal"])
def test_a_receive_whose_confirmation_ends_with_its_consumer_returns_the_message_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, by_handler: bool
) -> None:
    confirming = Confirming(monkeypatch, close_timeout_seconds=_WAIT if by_handler else 0.05)
    reported: queue.SimpleQueue[JMSException] = queue.SimpleQueue()
    with started(confirming.broker) as connection:
        connection.exception_listener = reported.put
        _, consumer = with_messages(connection, AcknowledgeMode.AUTO, 1)
        confirming.go_on.clear()
        if by_handler:
            confirming.while_it_waits = consumer.close
        receiver, received = _in_thread(lambda: consumer.receive(_WAIT))
        assert confirming.waits.wait(_WAIT)
        consumer.close()
        assert str(received.get(timeout=_WAIT)) == "0"
        receiver.join()
        assert "1 acknowledgements of session 1 are not confirmed" in reported.get(timeout=_WAIT).reason
    assert reported.empty()
