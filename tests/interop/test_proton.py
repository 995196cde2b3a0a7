"""Apache Qpid Proton's own Python client against our server: an AMQP client that we did not write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import ConnectionException, Message, symbol
from proton.reactor import Copy
from proton.utils import BlockingConnection, LinkDetached, SendException

from sdk import ConnectionFactory
from tests.server_process import ServerProcess

WAIT = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("proton") / "data", "--option", "max_message_bytes=100000") as server:
        yield server


@pytest.fixture
def proton(server: ServerProcess) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(server.url, timeout=WAIT)
    yield connection
    connection.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def test_a_message_goes_in_and_out_unchanged(proton: BlockingConnection, name: str) -> None:
    sent = Message(
        body={"a": [1, "two", None]},
        id="ID:1",
        correlation_id="c",
        subject="s",
        durable=True,
        priority=7,
        properties={"x": 1},
        annotations={symbol("x-opt-mine"): "kept"},
    )
    proton.create_sender(name).send(sent)
    receiver = proton.create_receiver(name)
    got = receiver.receive(WAIT)
    receiver.accept()
    assert (got.body, got.id, got.correlation_id, got.subject) == (sent.body, sent.id, "c", "s")
    assert (got.durable, got.priority, got.properties, got.annotations) == (True, 7, {"x": 1}, sent.annotations)
    assert (got.first_acquirer, got.delivery_count) == (sent.first_acquirer, 0)


def test_a_released_message_comes_again_and_one_of_a_lost_client_says_so(
    server: ServerProcess, proton: BlockingConnection, name: str
) -> None:
    proton.create_sender(name).send(Message(body="x"))
    lost = BlockingConnection(server.url, timeout=WAIT)
    receiver = lost.create_receiver(name, credit=1)
    receiver.receive(WAIT)
    receiver.release(delivered=False)
    receiver.flow(1)
    assert receiver.receive(WAIT).delivery_count == 0
    lost.close()
    receiver = proton.create_receiver(name, credit=1)
    assert receiver.receive(WAIT).delivery_count == 1
    receiver.accept()


def test_a_rejected_message_is_a_dead_letter(proton: BlockingConnection, name: str) -> None:
    proton.create_sender(name).send(Message(body=name))
    receiver = proton.create_receiver(name)
    receiver.receive(WAIT)
    receiver.reject()
    dead = proton.create_receiver("DLQ").receive(WAIT)
    assert dead.body == name
    assert dead.properties["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == name


def test_a_browser_takes_nothing(proton: BlockingConnection, name: str) -> None:
    proton.create_sender(name).send(Message(body="x"))
    browser = proton.create_receiver(name, options=Copy())
    assert browser.receive(WAIT).body == "x"
    browser.close()
    assert proton.create_receiver(name).receive(WAIT).body == "x"


def test_a_temporary_queue_is_made_for_a_dynamic_source(proton: BlockingConnection, name: str) -> None:
    answers = proton.create_receiver(None, dynamic=True)
    address = answers.link.remote_source.address
    assert address
    proton.create_sender(address).send(Message(body="answer"))
    assert answers.receive(WAIT).body == "answer"


def test_a_message_above_the_limit_is_refused(server: ServerProcess, name: str) -> None:
    connection = BlockingConnection(server.url, timeout=WAIT)
    with pytest.raises((SendException, LinkDetached)):
        connection.create_sender(name).send(Message(body="x" * 200_000))
    connection.close()


def test_messages_of_our_sdk_and_of_proton_are_each_others(
    server: ServerProcess, proton: BlockingConnection, name: str
) -> None:
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        queue = session.create_queue(name)
        producer = session.create_producer(queue)
        message = session.create_text_message("hello")
        message.properties["n"] = 5
        message.correlation_id = "c"
        producer.send(message, priority=6)
        receiver = proton.create_receiver(name)
        got = receiver.receive(WAIT)
        receiver.accept()
        receiver.close()
        assert (got.body, got.properties["n"], got.correlation_id, got.priority) == ("hello", 5, "c", 6)
        producer.send(b"bytes")
        receiver = proton.create_receiver(name)
        assert bytes(receiver.receive(WAIT).body) == b"bytes"
        receiver.accept()
        receiver.close()
        proton.create_sender(name).send(Message(body="back", properties={"k": "v"}, reply_to="answers", durable=True))
        consumer = session.create_consumer(queue)
        answer = consumer.receive(timeout=WAIT)
        assert answer is not None
        assert (answer.body, answer.properties["k"], str(answer.reply_to)) == ("back", "v", "answers")


def test_a_wrong_password_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    with ServerProcess(tmp_path / "data", "--users", str(users)) as server, pytest.raises(ConnectionException):
        BlockingConnection(
            server.url, timeout=WAIT, user="alice", password="wrong", allow_insecure_mechs=True, sasl_enabled=True
        )
