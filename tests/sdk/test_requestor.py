"""Requests and replies, in process and over AMQP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter import Envelope
from broker_adapter.transport import OnSettled
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    IllegalStateException,
    InvalidDestinationException,
    Message,
    OperationTimedOutException,
    Requestor,
    Session,
    reply,
)
from tests.sdk.region_connections import Connect
from tests.sdk.small_broker import SmallBroker, started
from tests.server_process import ServerProcess

WAIT = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("requestor") / "data") as server:
        yield server


@pytest.fixture(params=["embedded", "amqp"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    url = "embedded:" if request.param == "embedded" else request.getfixturevalue("server").url
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def serve(connection: Connection, name: str, answer: Any) -> None:
    """Answer every request, on a thread of the SDK's."""
    session = connection.create_session()

    def handle(message: Message) -> None:
        answer(session, message)

    session.create_consumer(session.create_queue(name)).listener = handle


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT], ids=lambda mode: mode.name)
def test_each_request_gets_its_own_reply(connection: Connection, name: str, mode: AcknowledgeMode) -> None:
    serve(connection, name, lambda session, message: reply(session, message, f"{message.body}!"))
    with (
        connection.create_session(mode) as session,
        Requestor(session, session.create_queue(name)) as requestor,
    ):
        for number in range(5):
            assert requestor.request(str(number), timeout=WAIT).body == f"{number}!"


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL], ids=lambda mode: mode.name)
def test_a_request_acknowledges_its_reply_and_nothing_else(
    connection: Connection, name: str, mode: AcknowledgeMode
) -> None:
    """What other consumers of the session hold is the application's to acknowledge or to recover."""
    serve(connection, name, lambda session, message: reply(session, message, message.body))
    with connection.create_session(mode) as session:
        orders = session.create_queue(f"{name} orders")
        session.create_producer(orders).send("order")
        consumer = session.create_consumer(orders)
        with Requestor(session, session.create_queue(name)) as requestor:
            order = consumer.receive(timeout=WAIT)
            assert order is not None
            assert requestor.request("price?", timeout=WAIT).body == "price?"
            session.recover()
            again = consumer.receive(timeout=WAIT)
            assert again is not None
            assert (again.body, again.redelivered) == ("order", True)
            # The reply is not held: it is neither redelivered in place of another, nor does it wait to be acknowledged.
            assert requestor.request("stock?", timeout=WAIT).body == "stock?"
            queues = connection.statistics().queues
            assert [each.in_hand for each in queues if each.name.startswith("temporary-queue/")] == [0]
            again.acknowledge()
            session.recover()
            assert consumer.receive(timeout=0.5) is None


@pytest.mark.parametrize(
    "mode", [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.TRANSACTED], ids=lambda mode: mode.name
)
def test_a_requestor_makes_more_requests_than_a_consumer_may_hold(
    tmp_path: Path, name: str, mode: AcknowledgeMode
) -> None:
    with ConnectionFactory(f"embedded:{tmp_path}/data?max_unsettled_messages=5").create_connection() as connection:
        connection.start()
        serve(connection, name, lambda session, message: reply(session, message, message.body))
        with (
            connection.create_session(mode) as session,
            Requestor(session, session.create_queue(name)) as requestor,
        ):
            for number in range(12):
                assert requestor.request(str(number), timeout=WAIT).body == str(number)


def test_a_correlation_id_of_the_application_is_kept(connection: Connection, name: str) -> None:
    seen: list[Any] = []

    def answer(session: Any, message: Message) -> None:
        seen.append(message.correlation_id)
        reply(session, message, "yes")

    serve(connection, name, answer)
    with connection.create_session() as session, Requestor(session, session.create_queue(name)) as requestor:
        question = session.create_text_message("?")
        question.correlation_id = "mine"
        assert requestor.request(question, timeout=WAIT).correlation_id == "mine"
    assert seen == ["mine"]


def test_a_request_without_an_answer_ends_after_its_time_out(connection: Connection, name: str) -> None:
    with (
        connection.create_session() as session,
        Requestor(session, session.create_queue(name)) as requestor,
        pytest.raises(OperationTimedOutException, match=r"no reply to 'ID:.*' within 0\.2 s"),
    ):
        requestor.request("?", timeout=0.2)


def test_a_malformed_request_keeps_no_caller_waiting(connect: Connect, name: str) -> None:
    """In order behind it, they would wait for four minutes."""
    connection = connect(engine="redelivery_delay_seconds=30")
    connection.start()
    failures = threading.Semaphore(0)

    def answer(session: Session, message: Message) -> None:
        if message.body == "malformed":
            failures.release()
            raise ValueError("as each time")
        reply(session, message, f"{message.body}!")

    serve(connection, name, answer)
    with connection.create_session() as session, Requestor(session, session.create_queue(name)) as requestor:
        session.create_producer(session.create_queue(name)).send("malformed")
        for _ in range(2):
            assert failures.acquire(timeout=WAIT)
        for number in range(5):
            assert requestor.request(str(number), timeout=WAIT).body == f"{number}!"


def test_a_reply_that_comes_too_late_is_not_taken_for_another(connection: Connection, name: str) -> None:
    with (
        connection.create_session() as session,
        connection.create_session() as serving,
        Requestor(session, session.create_queue(name)) as requestor,
    ):
        with pytest.raises(OperationTimedOutException):
            requestor.request("slow", timeout=0.05)
        late = serving.create_consumer(serving.create_queue(name)).receive(timeout=WAIT)
        assert late is not None
        reply(serving, late, "too late")
    serve(connection, f"{name} 2", lambda session, message: reply(session, message, message.body))
    with (
        connection.create_session() as session,
        Requestor(session, session.create_queue(f"{name} 2")) as requestor,
    ):
        assert requestor.request("fast", timeout=WAIT).body == "fast"


def test_late_replies_on_the_same_requestor_are_dropped(connection: Connection, name: str) -> None:
    with (
        connection.create_session() as session,
        connection.create_session() as serving,
        Requestor(session, session.create_queue(name)) as requestor,
    ):
        with pytest.raises(OperationTimedOutException):
            requestor.request("slow", timeout=0.05)
        consumer = serving.create_consumer(serving.create_queue(name))
        late = consumer.receive(timeout=WAIT)
        assert late is not None
        reply(serving, late, "too late")
        consumer.close()
        serve(connection, name, lambda session, message: reply(session, message, message.body))
        assert requestor.request("fast", timeout=WAIT).body == "fast"


def test_a_transacted_session_makes_no_requests(connection: Connection, name: str) -> None:
    with (
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
        pytest.raises(IllegalStateException, match="not sent before commit"),
    ):
        Requestor(session, session.create_queue(name))


def test_a_message_without_reply_to_gets_no_reply(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        queue = session.create_queue(name)
        session.create_producer(queue).send("no reply wanted")
        message = session.create_consumer(queue).receive(timeout=WAIT)
        assert message is not None
        with pytest.raises(InvalidDestinationException, match="wants no reply"):
            reply(session, message, "here")


def test_closing_ends_the_temporary_queue(connection: Connection, name: str) -> None:
    with connection.create_session() as session:
        requestor = Requestor(session, session.create_queue(name))
        with pytest.raises(OperationTimedOutException):
            requestor.request("?", timeout=0.01)
        requestor.close()
        requestor.close()
        question = session.create_consumer(session.create_queue(name)).receive(timeout=WAIT)
        assert question is not None
        with pytest.raises(InvalidDestinationException):
            reply(session, question, "without a receiver")


def test_closing_is_silent_where_the_session_is_closed(connection: Connection, name: str) -> None:
    session = connection.create_session()
    requestor = Requestor(session, session.create_queue(name))
    session.close()
    requestor.close()
    requestor.close()


def test_a_requestor_that_is_refused_leaves_no_temporary_queue(connection: Connection) -> None:
    with connection.create_session() as session:
        gone = session.create_temporary_queue()
        session.delete_temporary(gone)
        with pytest.raises(InvalidDestinationException):
            Requestor(session, gone)
        queues = [each.name for each in connection.statistics().queues]
        assert [each for each in queues if each.startswith("temporary-queue/")] == []


def test_a_request_hands_its_deadline_to_the_send(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker()
    limits: list[float | None] = []

    def send(link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        limits.append(timeout)
        raise OperationTimedOutException("the send had no answer")

    monkeypatch.setattr(broker, "send", send)
    with (
        started(broker) as connection,
        connection.create_session() as session,
        Requestor(session, session.create_queue("q")) as requestor,
    ):
        with pytest.raises(OperationTimedOutException, match=r"^no reply within 0\.5 s: the send had no answer$"):
            requestor.request("x", timeout=0.5)
        for timeout in (None, 3600):
            with pytest.raises(OperationTimedOutException, match=r"^the send had no answer$"):
                requestor.request("x", timeout=timeout)
    limit, *others = limits
    assert limit is not None
    assert 0 <= limit <= 0.5
    assert others == [None, None]


def test_a_requestor_needs_a_destination(connection: Connection) -> None:
    with connection.create_session() as session, pytest.raises(InvalidDestinationException):
        Requestor(session, None)  # type: ignore[arg-type]
