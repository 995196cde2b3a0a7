"""What a listener has in hand while its consumer, session, connection or context is closed or stopped.

Until it returns, all facilities of the connection work for it (Jakarta Messaging 3.1 sections 6.1.5 and 6.1.8): it
acknowledges, commits, sends and receives, and its message does not come again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, JMSContext, Message, RegionListener, Session
from sdk.context import _SharedConnection
from tests.contracts.transports import eventually
from tests.sdk.region_connections import Connect
from tests.sdk.threads.calls import WAIT, in_thread, send

ENDS: dict[str, Callable[..., Any]] = {
    "consumer": lambda connection, session, consumer: consumer.close(),
    "session": lambda connection, session, consumer: session.close(),
    "connection": lambda connection, session, consumer: connection.close(),
    "stop": lambda connection, session, consumer: connection.stop(),
}
#: How a listener ends its delivery, in each mode that leaves that to it.
DONE: dict[str, Callable[[Session, Message], None]] = {
    "AUTO": lambda session, message: None,
    "DUPS_OK": lambda session, message: None,
    "CLIENT": lambda session, message: message.acknowledge(),
    "INDIVIDUAL": lambda session, message: message.acknowledge(),
    "TRANSACTED": lambda session, message: session.commit(),
}


def left_at(connection: Connection, name: str) -> list[tuple[str, int]]:
    """What waits in a queue: bodies, and how often each was delivered before."""
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        found = [(str(each), each.delivery_count) for each in consumer.receive_many(100, timeout=1)]
        session.recover()
        return found


class Working:
    """A listener that, on its first message, goes on once something has begun to end it."""

    def __init__(self, session: Session, act: Callable[[Message], object]) -> None:
        self._act = act
        self._state = session._state
        self.entered = threading.Event()
        self.outcome: list[object] = []
        self.consumer = session.create_consumer(session.create_queue("q"))
        self.consumer.listener = self._listen

    def _listen(self, message: Message) -> None:
        self.entered.set()
        eventually(lambda: not self._state.running or self.consumer._prefetch.closing)
        try:
            self._act(message)
            self.outcome.append("done")
        except BaseException as error:
            self.outcome.append(error)


@pytest.mark.parametrize("mode", DONE)
@pytest.mark.parametrize("end", ENDS)
def test_a_listener_ends_its_delivery_and_sends_while_it_is_closed_or_stopped(
    connect: Connect, end: str, mode: str
) -> None:
    looker = connect()
    looker.start()
    connection = connect()
    session = connection.create_session(AcknowledgeMode[mode])
    answers = session.create_producer(session.create_queue("answers"))

    def answer(message: Message) -> None:
        answers.send(f"answer to {message}")
        DONE[mode](session, message)

    working = Working(session, answer)
    connection.start()
    send(looker, "1", "2")
    assert working.entered.wait(WAIT)

    ENDS[end](connection, session, working.consumer)
    assert working.outcome == ["done"]
    connection.close()

    assert left_at(looker, "q") == [("2", 1)]
    assert left_at(looker, "answers") == [("answer to 1", 1)]


@pytest.mark.parametrize("undo", ["recover", "rollback"])
@pytest.mark.parametrize("end", ["session", "connection", "stop"])
def test_a_listener_gives_its_message_back_while_it_is_closed_or_stopped(connect: Connect, end: str, undo: str) -> None:
    looker = connect()
    looker.start()
    connection = connect()
    session = connection.create_session(AcknowledgeMode.TRANSACTED if undo == "rollback" else AcknowledgeMode.CLIENT)
    working = Working(session, lambda _: getattr(session, undo)())
    connection.start()
    send(looker, "1", "2")
    assert working.entered.wait(WAIT)

    ENDS[end](connection, session, working.consumer)
    assert working.outcome == ["done"]
    connection.close()

    assert left_at(looker, "q") == [("1", 2), ("2", 1)]


@pytest.mark.parametrize("end", ["connection", "stop"])
def test_a_listener_asks_another_service_while_its_connection_is_closed_or_stopped(connect: Connect, end: str) -> None:
    """It sends a request, and receives the answer in another session of the connection."""
    service = connect()
    service.start()
    answering = service.create_session()
    replies = answering.create_producer()

    def reply(message: Message) -> None:
        assert message.reply_to is not None
        replies.send("42", destination=message.reply_to)

    answering.create_consumer(answering.create_queue("service")).listener = reply
    connection = connect()
    session = connection.create_session(AcknowledgeMode.CLIENT)
    asking = connection.create_session()
    requests = asking.create_producer(asking.create_queue("service"))
    inbox = asking.create_temporary_queue()
    answers = asking.create_consumer(inbox)
    got: list[str] = []

    def ask(message: Message) -> None:
        request = asking.create_text_message("6 by 9")
        request.reply_to = inbox
        requests.send(request)
        got.append(str(answers.receive(timeout=10)))
        message.acknowledge()

    working = Working(session, ask)
    connection.start()
    send(service, "1")
    assert working.entered.wait(WAIT)

    ENDS[end](connection, session, working.consumer)

    assert (working.outcome, got) == (["done"], ["42"])
    connection.close()
    assert left_at(service, "q") == []


def test_a_listener_makes_another_session_while_its_connection_is_closed(connect: Connect) -> None:
    looker = connect()
    looker.start()
    connection = connect()
    session = connection.create_session(AcknowledgeMode.CLIENT)

    def work(message: Message) -> None:
        with connection.create_session() as other:
            other.create_producer(other.create_queue("answers")).send("made meanwhile")
        message.acknowledge()

    working = Working(session, work)
    connection.start()
    send(looker, "1")
    assert working.entered.wait(WAIT)

    connection.close()

    assert working.outcome == ["done"]
    assert left_at(looker, "answers") == [("made meanwhile", 1)]


def test_a_listener_of_a_context_ends_its_delivery_while_the_context_is_closed(connect: Connect) -> None:
    looker = connect()
    looker.start()
    context = JMSContext(_SharedConnection(connect()), AcknowledgeMode.TRANSACTED)
    working = Working(context._session, lambda _: context.commit())
    context.start()
    send(looker, "1")
    assert working.entered.wait(WAIT)

    context.close()

    assert working.outcome == ["done"]
    assert left_at(looker, "q") == []


def test_all_listeners_of_a_connection_end_their_work_in_the_time_of_the_longest(connect: Connect) -> None:
    """None of them gets another message while the connection waits for the others."""
    looker = connect()
    looker.start()
    connection = connect()
    sessions = [connection.create_session(AcknowledgeMode.CLIENT) for _ in range(3)]
    all_told = threading.Barrier(3)

    def work(message: Message) -> None:
        all_told.wait(WAIT)  # each is being stopped by now, though none has returned
        message.acknowledge()

    working = [Working(session, work) for session in sessions]
    connection.start()
    for _ in working:
        send(looker, *("1" for _ in range(10)))
    assert all(each.entered.wait(WAIT) for each in working)

    connection.close()

    assert [each.outcome for each in working] == [["done"]] * 3
    assert len(left_at(looker, "q")) == 27


def test_a_region_listener_changes_a_region_while_its_connection_is_closed(connect: Connect) -> None:
    connection = connect()
    region = connection.create_session().create_region("quotes")
    outcome: list[object] = []
    entered, leave = threading.Event(), threading.Event()

    class Copies(RegionListener):
        def after_create(self, event: Any) -> None:
            if event.key == "first":
                entered.set()
                leave.wait(WAIT)
                try:
                    region.put("second", event.value)
                    outcome.append("done")
                except BaseException as error:
                    outcome.append(error)

    region.add_listener(Copies())
    region.register_interest(all_keys=True)
    connection.start()
    other = connect().create_session().create_region("quotes")
    other.put("first", "1")
    assert entered.wait(WAIT)
    thread, _ = in_thread(connection.close)
    eventually(lambda: not connection._events._is_started)
    leave.set()
    thread.join(WAIT)

    assert outcome == ["done"]
    assert other.get("second") == "1"


@pytest.mark.parametrize("mode", ["CLIENT", "TRANSACTED"])
@pytest.mark.parametrize("leave", ["consumer.close()", "consumer.listener = None"])
@pytest.mark.parametrize("end", ["session", "connection", "stop"])
def test_a_listener_that_has_closed_or_left_its_consumer_ends_its_delivery(
    connect: Connect, end: str, leave: str, mode: str
) -> None:
    connection = connect()
    session = connection.create_session(AcknowledgeMode[mode])
    consumer = session.create_consumer(session.create_queue("q"))
    left, ending, outcome = threading.Event(), threading.Event(), []

    def listen(message: Message) -> None:
        try:
            if leave == "consumer.close()":
                consumer.close()
            else:
                consumer.listener = None
            left.set()
            assert ending.wait(WAIT)
            DONE[mode](session, message)
            outcome.append("done")
        except BaseException as error:
            outcome.append(error)

    consumer.listener = listen
    connection.start()
    looker = connect()
    looker.start()
    send(looker, "a")
    assert left.wait(WAIT)
    _, ended = in_thread(lambda: ENDS[end](connection, session, consumer))
    eventually(lambda: not session._state.running)
    ending.set()
    assert ended.get(timeout=WAIT) is None
    assert outcome == ["done"]
    assert left_at(looker, "q") == []


def test_a_start_of_the_connection_does_not_end_the_wait_of_a_closing_session(connect: Connect) -> None:
    connection = connect()
    session = connection.create_session(AcknowledgeMode.CLIENT)
    started = threading.Event()

    def act(message: Message) -> None:
        assert started.wait(WAIT)
        message.acknowledge()

    working = Working(session, act)
    connection.start()
    send(connection, "a")
    assert working.entered.wait(WAIT)
    _, ended = in_thread(session.close)
    eventually(lambda: session._state.closes)
    connection.start()
    started.set()
    assert ended.get(timeout=WAIT) is None
    assert working.outcome == ["done"]
    assert left_at(connection, "q") == []


def test_a_start_during_a_stop_that_waits_for_a_listener_of_a_region_is_the_last_word(connect: Connect) -> None:
    connection = connect()
    connection.start()
    session = connection.create_session()
    region = session.create_region("r")
    entered, go = threading.Event(), threading.Event()

    class Slow(RegionListener):
        def after_create(self, event: object) -> None:
            entered.set()
            go.wait(WAIT)

    region.add_listener(Slow())
    region.register_interest(all_keys=True)
    region.put("k", "v")
    assert entered.wait(WAIT)
    _, stopped = in_thread(connection.stop)
    eventually(lambda: not connection._events._is_started)
    connection.start()
    go.set()
    assert stopped.get(timeout=WAIT) is None
    queue = session.create_queue("q")
    session.create_producer(queue).send("x")
    assert session.create_consumer(queue).receive(timeout=WAIT) is not None


@pytest.mark.parametrize("mode", ["AUTO", "DUPS_OK"])
def test_a_listener_whose_consumer_is_being_closed_receives_nothing_from_its_own_session(
    connect: Connect, mode: str
) -> None:
    looker = connect()
    looker.start()
    connection = connect()
    session = connection.create_session(AcknowledgeMode[mode])
    other = session.create_consumer(session.create_queue("other"))
    working = Working(session, lambda message: other.receive(timeout=WAIT))
    connection.start()
    send(looker, "a")
    with looker.create_session() as sending:
        sending.create_producer(sending.create_queue("other")).send("a")
    assert working.entered.wait(WAIT)
    working.consumer.close()
    assert "has listeners, which take its messages" in str(working.outcome[0])
    connection.close()
    assert left_at(looker, "q") == []
    assert [body for body, _ in left_at(looker, "other")] == ["a"]
