"""Which thread may use a session, and when a session has a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    IllegalStateException,
    Message,
    MessageFormatException,
    ResourceAllocationException,
    session_thread,
)
from sdk.receiving.prefetch import Prefetch
from tests.contracts.transports import eventually
from tests.sdk.threads.calls import WAIT, in_thread, receiving, send
from tests.threads import no_new_threads


def test_session_in_use_by_another_thread_raises(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    destination = session.create_queue("q")
    consumer, producer = session.create_consumer(destination), session.create_producer(destination)
    thread, results = in_thread(consumer.receive)
    receiving(session)

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
        with pytest.raises(IllegalStateException, match=r"session 1 is in use by another thread.*docs/faq\.md"):
            call()

    send(connection, "end")
    assert str(results.get(timeout=WAIT)) == "end"
    thread.join()
    producer.send("and now it is free")


def test_a_receive_that_fails_puts_nothing_back_that_another_thread_has_received(connection: Connection) -> None:
    send(connection, "m0", "m1")
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue("q"))
    state, got, plain = session._state, [], session._state.disown
    eventually(lambda: len(consumer._prefetch.buffer) == 2)

    def disown() -> None:
        state.disown = plain
        plain()
        thread, results = in_thread(lambda: consumer.receive(WAIT))
        thread.join(WAIT)
        got.append(results.get())

    def refuse(_message: Message) -> None:
        raise MessageFormatException("of another type")

    state.disown = disown
    with pytest.raises(MessageFormatException, match="another type"):
        consumer._receive(WAIT, refuse)
    got.append(consumer.receive(WAIT))
    assert [message.body for message in got] == ["m0", "m1"]
    assert consumer.receive_nowait() is None


def test_stop_waits_for_a_receiver_though_another_thread_is_refused_meanwhile(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, "x")
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    inside, go_on, plain = threading.Event(), threading.Event(), Prefetch.count_used

    def slow(this: Prefetch, messages: int = 1) -> None:
        inside.set()
        assert go_on.wait(WAIT)
        plain(this, messages)

    monkeypatch.setattr(Prefetch, "count_used", slow)
    receiver, results = in_thread(lambda: consumer.receive(WAIT))
    assert inside.wait(WAIT)
    with pytest.raises(IllegalStateException, match="in use by another thread"):
        consumer.receive_nowait()
    stopper, stopped = in_thread(connection.stop)
    stopper.join(0.2)
    assert stopped.empty()
    go_on.set()
    assert stopped.get(timeout=WAIT) is None
    assert results.get(timeout=WAIT).body == "x"
    receiver.join(WAIT)


def test_message_cannot_be_acknowledged_while_another_thread_uses_its_session(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue("q"))
    send(connection, "x")
    message = consumer.receive(WAIT)
    assert message is not None
    thread, results = in_thread(consumer.receive)
    receiving(session)

    with pytest.raises(IllegalStateException, match="in use by another thread"):
        message.acknowledge()

    consumer.close()
    assert results.get(timeout=WAIT) is None
    thread.join()


def test_sessions_with_listeners_belong_to_their_thread(connection: Connection) -> None:
    session = connection.create_session()
    destination = session.create_queue("q")
    consumer, producer = session.create_consumer(destination), session.create_producer(destination)
    called = threading.Event()
    consumer.listener = lambda message: called.set()
    send(connection, "x")
    assert called.wait(WAIT)

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


def test_a_message_is_received_though_no_thread_can_acknowledge_it_in_time(connection: Connection) -> None:
    session = connection.create_session(AcknowledgeMode.DUPS_OK)
    consumer = session.create_consumer(session.create_queue("q"))
    send(connection, "a", "b")
    with no_new_threads():
        assert str(consumer.receive(WAIT)) == "a"
    assert str(consumer.receive(WAIT)) == "b"


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
    send(connection, "a")
    with no_new_threads(), pytest.raises(ResourceAllocationException, match="new thread"):
        consumer.listener = lambda _message: None
    assert consumer.listener is None
    assert str(consumer.receive(WAIT)) == "a"


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
        threads.append(told.get(timeout=WAIT))
        threads[-1].join(WAIT)
        assert not threads[-1].is_alive()
    assert len(set(threads)) == 3
    session.close()


def test_no_thread_runs_where_none_is_needed(connection: Connection) -> None:
    before = threading.active_count()
    session = connection.create_session()
    send(connection, "x")
    consumer = session.create_consumer(session.create_queue("q"))
    consumer.receive(WAIT)

    assert threading.active_count() == before


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
            lambda: consumer.receive(WAIT),
        ]
        for call in calls:
            state.calling = True
            call()
            assert not state.calling
        state.own = own
