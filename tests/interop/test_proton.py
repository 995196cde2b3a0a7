"""Apache Qpid Proton's own Python client against our server: an AMQP client that we did not write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import ConnectionException, Event, Message, Timeout, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy, DurableSubscription, Filter, Selector, Transaction
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


def test_a_released_message_is_redelivered_and_so_is_what_a_client_held_when_it_closed(
    server: ServerProcess, proton: BlockingConnection, name: str
) -> None:
    proton.create_sender(name).send(Message(body="x"))
    leaving = BlockingConnection(server.url, timeout=WAIT)
    receiver = leaving.create_receiver(name, credit=1)
    receiver.receive(WAIT)
    receiver.release(delivered=False)
    receiver.flow(1)
    assert receiver.receive(WAIT).delivery_count == 0
    leaving.close()
    receiver = proton.create_receiver(name, credit=1)
    assert receiver.receive(WAIT).delivery_count == 0  # it did not say that the delivery had failed
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


# Selectors and subscriptions.


def test_a_selector_selects(proton: BlockingConnection, name: str) -> None:
    sender = proton.create_sender(name)
    for colour in ("red", "blue", "red"):
        sender.send(Message(body=colour, properties={"colour": colour}))
    receiver = proton.create_receiver(name, options=Selector("colour = 'red'"))
    for _ in range(2):
        assert receiver.receive(WAIT).body == "red"
        receiver.accept()
    rest = proton.create_receiver(name, name="rest")
    assert rest.receive(WAIT).body == "blue"


def test_an_invalid_selector_is_refused(proton: BlockingConnection, name: str) -> None:
    with pytest.raises(LinkDetached, match="column 5"):
        proton.create_receiver(name, options=Selector("a = = 1"))


def test_an_unknown_filter_is_refused(proton: BlockingConnection, name: str) -> None:
    with pytest.raises(LinkDetached, match="unknown filter"):
        proton.create_receiver(name, options=Filter({symbol("mine"): "x"}))


class Topic(DurableSubscription):
    """A durable subscription, said to be one of a topic."""

    def apply(self, receiver: object) -> None:
        super().apply(receiver)
        receiver.source.capabilities.put_object([symbol("topic")])  # type: ignore[attr-defined]


class Program(MessagingHandler, TransactionHandler):
    """A program in the manner of proton's examples: told in events, ended when it has what it wants.

    Args:
        url: the server's.
        container: the container id.
    """

    def __init__(self, url: str, container: str, **options: object) -> None:
        super().__init__(**options)
        self.url = url
        self.bodies: list[object] = []
        self.failure: object = None
        self._container = Container(self)
        self._container.container_id = container

    def run(self) -> list[object]:
        self._container.run()
        assert self.failure is None
        return self.bodies

    def on_transport_error(self, event: Event) -> None:
        self.failure = event.transport.condition

    def on_link_error(self, event: Event) -> None:
        self.failure = event.link.remote_condition
        event.connection.close()


class Subscriber(Program):
    """Makes its durable subscription, or takes one message from it."""

    def __init__(self, url: str, container: str, address: str, wanted: int) -> None:
        super().__init__(url, container)
        self.address = address
        self.wanted = wanted

    def on_start(self, event: Event) -> None:
        connection = event.container.connect(self.url, reconnect=False)
        event.container.create_receiver(connection, self.address, name="subscription", options=Topic())

    def on_link_opened(self, event: Event) -> None:
        if not self.wanted:
            self._leave(event)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        self.accept(event.delivery)
        if len(self.bodies) == self.wanted:
            self._leave(event)

    def _leave(self, event: Event) -> None:
        event.link.detach()
        event.connection.close()


def test_a_durable_subscription_waits_for_its_container(server: ServerProcess, name: str) -> None:
    assert Subscriber(server.url, name, name, 0).run() == []
    with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_topic(name)).send("meanwhile")
    assert Subscriber(server.url, name, name, 1).run() == ["meanwhile"]


# Transactions, in proton's own manner.


class Transactor(Program):
    """Sends and receives in transactions of three messages: one is committed, the next is aborted, and so on."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__(url, address, prefetch=0, auto_accept=False)
        self.address = address
        self.transaction: Transaction | None = None
        self.sent = 0
        self.rounds = 0

    def on_start(self, event: Event) -> None:
        self.connection = event.container.connect(self.url, reconnect=False)
        self.sender = event.container.create_sender(self.connection, self.address)
        event.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self._send()

    def on_sendable(self, event: Event) -> None:
        self._send()

    def _send(self) -> None:
        while self.transaction is not None and self.sender.credit and self.sent < 3:
            self.transaction.send(self.sender, Message(body=f"{self.rounds} {self.sent}"))
            self.sent += 1
        if self.transaction is not None and self.sent == 3:
            transaction, self.transaction, self.sent = self.transaction, None, 0
            transaction.abort() if self.rounds % 2 else transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self._next(event)

    def on_transaction_aborted(self, event: Event) -> None:
        self._next(event)

    def _next(self, event: Event) -> None:
        self.rounds += 1
        if self.rounds == 4:
            self.connection.close()
        else:
            event.container.declare_transaction(self.connection, handler=self)


def test_transactions_are_committed_and_aborted(server: ServerProcess, proton: BlockingConnection, name: str) -> None:
    Transactor(server.url, name).run()
    receiver = proton.create_receiver(name, credit=10)
    found = []
    for _ in range(6):
        found.append(receiver.receive(WAIT).body)
        receiver.accept()
    assert found == [f"{number} {index}" for number in (0, 2) for index in range(3)]


class TooLarge(Program):
    """Takes a message and sends three in a transaction: one that the server takes, one too large, one behind it."""

    def __init__(self, url: str, taken_from: str, sent_to: str) -> None:
        super().__init__(url, taken_from, prefetch=1, auto_accept=False)
        self.taken_from = taken_from
        self.sent_to = sent_to
        self.transaction: Transaction | None = None
        self.outcomes: list[str] = []
        self.ended = ""

    def on_start(self, event: Event) -> None:
        self.connection = event.container.connect(self.url, reconnect=False)
        self.sender = event.container.create_sender(self.connection, self.sent_to)

    def on_sendable(self, event: Event) -> None:
        if self.transaction is None and not self.ended:
            self.ended = "declaring"
            event.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        event.container.create_receiver(self.connection, self.taken_from)

    def on_message(self, event: Event) -> None:
        if self.ended != "declaring":
            self.bodies.append((event.message.body, event.message.delivery_count))
            self.accept(event.delivery)
            self.connection.close()
            return
        assert self.transaction is not None
        self.transaction.accept(event.delivery)
        for body in ("before", "x" * 200_000, "behind"):
            self.transaction.send(self.sender, Message(body=body))
        self.transaction.commit()

    def on_settled(self, event: Event) -> None:
        if event.link == self.sender:
            self.outcomes.append(str(event.delivery.remote_state))

    def on_link_error(self, event: Event) -> None:
        self.outcomes.append(event.link.remote_condition.name)

    def on_transaction_committed(self, event: Event) -> None:
        self.failure = "committed"
        self.connection.close()

    def on_transaction_commit_failed(self, event: Event) -> None:
        self.ended = "commit failed"


def test_a_commit_without_a_message_that_was_too_large_fails_and_gives_back_what_was_taken(
    server: ServerProcess, proton: BlockingConnection, name: str
) -> None:
    proton.create_sender(f"{name}-in").send(Message(body="request"))
    program = TooLarge(server.url, f"{name}-in", f"{name}-out")
    assert program.run() == [("request", 1)]
    assert program.ended == "commit failed"
    assert program.outcomes[-1] == "amqp:link:message-size-exceeded" or "REJECTED" in program.outcomes
    with pytest.raises(Timeout):
        proton.create_receiver(f"{name}-out").receive(0.3)


class Taker(Program):
    """Takes messages in a transaction, which it aborts once and then commits."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__(url, address, prefetch=2, auto_accept=False)
        self.address = address
        self.transaction: Transaction | None = None
        self.aborted = False

    def on_start(self, event: Event) -> None:
        self.container = event.container
        self.connection = event.container.connect(self.url, reconnect=False)
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        if not self.aborted:
            self.container.create_receiver(self.connection, self.address)

    def on_message(self, event: Event) -> None:
        assert self.transaction is not None
        self.bodies.append((event.message.body, event.message.delivery_count))
        self.transaction.accept(event.delivery)
        if len(self.bodies) == 2:
            self.aborted = True
            self.transaction.abort()
            self.container.declare_transaction(self.connection, handler=self)
        if len(self.bodies) == 4:
            self.transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self.connection.close()


def test_what_was_taken_in_an_aborted_transaction_is_redelivered(
    server: ServerProcess, proton: BlockingConnection, name: str
) -> None:
    sender = proton.create_sender(name)
    for body in ("a", "b"):
        sender.send(Message(body=body))
    assert Taker(server.url, name).run() == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    with pytest.raises(Timeout):
        proton.create_receiver(name).receive(0.3)
