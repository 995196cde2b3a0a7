"""Closing while other threads receive, listen, close or make something."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from sdk import AcknowledgeMode, Connection, IllegalStateException, JMSException, Message, OperationTimedOutException
from tests.contracts.transports import eventually
from tests.sdk.small_broker import SmallBroker, started, with_messages
from tests.sdk.threads.calls import WAIT, in_thread, receiving, send


@pytest.mark.parametrize("what", ["consumer", "session", "connection"])
def test_closing_wakes_a_receive_that_waits(connection: Connection, what: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_queue("q"))
    thread, results = in_thread(consumer.receive)
    receiving(session)

    {"consumer": consumer, "session": session, "connection": connection}[what].close()  # type: ignore[attr-defined]

    assert results.get(timeout=WAIT) is None
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
                thread, _ = in_thread(consumer.close)
                thread.join(WAIT)
            return super().__getitem__(index)

    send(connection, "a")
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
        leave.wait(WAIT)
        left.set()

    consumer.listener = listen
    send(connection, "x")
    assert entered.wait(WAIT)
    acts = {
        "consumer": consumer.close,
        "session": session.close,
        "connection": connection.close,
        "stop": connection.stop,
    }

    thread, results = in_thread(lambda: (acts[what](), left.is_set())[1])
    assert not threading.Event().wait(0.02)
    assert results.empty()
    leave.set()

    assert results.get(timeout=WAIT) is True
    thread.join()


def test_close_gives_up_on_a_listener_that_does_not_return(caplog: pytest.LogCaptureFixture) -> None:
    broker = SmallBroker(close_timeout_seconds=0.05)
    entered, leave = threading.Event(), threading.Event()
    with broker.connect() as connection, caplog.at_level(logging.CRITICAL, "holdfast.sdk"):
        connection.start()
        session = connection.create_session()

        def listen(message: Message) -> None:
            entered.set()
            leave.wait(WAIT)

        session.create_consumer(session.create_queue("q")).listener = listen
        send(connection, "x")
        assert entered.wait(WAIT)
        with pytest.raises(OperationTimedOutException, match="has not returned in time"):
            connection.stop()

        session.close()

        assert [outcome.name for outcome in broker.outcomes()] == ["MODIFIED"]
        thread = session._thread
        assert thread is not None
        leave.set()
        thread.thread.join(WAIT)
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
    send(connection, "a", "b")
    with session.create_consumer(session.create_queue("q")) as consumer:
        message = consumer.receive(WAIT)
        assert message is not None

    message.acknowledge()

    assert [outcome.name for outcome in broker.outcomes()] == ["RELEASED", "ACCEPTED"]
    session.close()
    with pytest.raises(IllegalStateException, match="session 1 is CLOSED"):
        message.acknowledge()


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
    thread, results = in_thread(close)
    assert results.get(timeout=WAIT / 2) is None
    thread.join()
    assert ends == ["handler"]


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
            assert self.go_on.wait(WAIT)
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
    thread, results = in_thread(make)
    assert slow.begun.wait(WAIT)
    session._settings = session._state.settings = attrs.evolve(session._state.settings, close_timeout_seconds=0.1)
    session.close()
    slow.go_on.set()
    thread.join(WAIT)
    error = results.get_nowait()
    assert isinstance(error, IllegalStateException)
    assert "is CLOSED" in str(error)
    with connection.create_session() as other:
        send(connection, "a")
        message = other.create_consumer(destination).receive(WAIT)  # no exclusive consumer holds it
        assert message is not None


def test_a_second_thread_that_closes_a_consumer_waits_for_the_first(connection: Connection) -> None:
    with connection.create_session() as session:
        temporary = session.create_temporary_queue()
        consumer = session.create_consumer(temporary)
        session._state.transport = slow = Slow(session._state.transport, "detach")
        thread, results = in_thread(consumer.close)
        assert slow.begun.wait(WAIT)
        timer = threading.Timer(0.1, slow.go_on.set)
        timer.start()
        consumer.close()
        assert slow.go_on.is_set()
        session.delete_temporary(temporary)  # refused, while a consumer is there
        thread.join(WAIT)
        timer.join()
        assert results.get_nowait() is None


def test_a_listener_that_closes_its_consumer_does_not_wait_for_a_thread_that_waits_for_it(
    connection: Connection,
) -> None:
    send(connection, "a")
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue("q"))
        running, closing, ended = threading.Event(), threading.Event(), threading.Event()

        def listen(message: Message) -> None:
            running.set()
            assert closing.wait(WAIT)
            eventually(lambda: consumer._prefetch.closing)
            consumer.close()
            ended.set()

        consumer.listener = listen
        assert running.wait(WAIT)
        thread, results = in_thread(consumer.close)
        closing.set()
        assert ended.wait(WAIT)
        thread.join(WAIT)
        assert results.get_nowait() is None


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
            assert self.go_on.wait(WAIT)
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
    confirming = Confirming(monkeypatch, close_timeout_seconds=WAIT)
    reported: list[JMSException] = []
    with started(confirming.broker) as connection:
        connection.exception_listener = reported.append
        session, consumer = with_messages(connection, AcknowledgeMode.AUTO, 1)
        confirming.detached.clear()  # the producer's
        confirming.go_on.clear()
        receiver, received = in_thread(lambda: consumer.receive(WAIT))
        assert confirming.waits.wait(WAIT)
        closer, closed = in_thread(consumer.close)
        receiving(session)  # it waits
        assert confirming.detached == []
        confirming.go_on.set()
        assert str(received.get(timeout=WAIT)) == "0"
        assert closed.get(timeout=WAIT) is None
        for thread in (receiver, closer):
            thread.join()
        assert confirming.links == confirming.detached == [consumer._prefetch.link]
    assert reported == []


@pytest.mark.parametrize("by_handler", [False, True], ids=["by another thread", "by the handler of a signal"])
def test_a_receive_whose_confirmation_ends_with_its_consumer_returns_the_message_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, by_handler: bool
) -> None:
    confirming = Confirming(monkeypatch, close_timeout_seconds=WAIT if by_handler else 0.05)
    reported: queue.SimpleQueue[JMSException] = queue.SimpleQueue()
    with started(confirming.broker) as connection:
        connection.exception_listener = reported.put
        _, consumer = with_messages(connection, AcknowledgeMode.AUTO, 1)
        confirming.go_on.clear()
        if by_handler:
            confirming.while_it_waits = consumer.close
        receiver, received = in_thread(lambda: consumer.receive(WAIT))
        assert confirming.waits.wait(WAIT)
        consumer.close()
        assert str(received.get(timeout=WAIT)) == "0"
        receiver.join()
        assert "1 acknowledgement of session 1 is not confirmed" in reported.get(timeout=WAIT).reason
    assert reported.empty()
