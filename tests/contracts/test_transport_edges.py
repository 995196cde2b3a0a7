"""The transport port at its edges: what is closed, full, refused or in the wrong thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.destination import Destination, queue
from broker_adapter.envelope import pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
)
from broker_adapter.transport import ReceiverSpec, SenderSpec, Transport
from tests.contracts.calls import TEMPORARY, Answers, Caller, Q, blocked_sends, depth, texts
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message

# The connection.

CALLS: dict[str, Callable[[Transport], Any]] = {
    "end_session": lambda transport: transport.end_session(1, WAIT),
    "attach a sender": lambda transport: transport.attach(SenderSpec(1, Q), None, WAIT),
    "attach a receiver": lambda transport: transport.attach(ReceiverSpec(1, Q), lambda _: None, WAIT),
    "detach": lambda transport: transport.detach(1, WAIT),
    "unsubscribe": lambda transport: transport.unsubscribe("s", WAIT),
    "declare_temporary": lambda transport: transport.declare_temporary(TEMPORARY, WAIT),
    "delete_temporary": lambda transport: transport.delete_temporary(Destination("t", TEMPORARY), WAIT),
    "credit": lambda transport: transport.credit(1, 1),
    "drain": lambda transport: transport.drain(1, WAIT),
    "send": lambda transport: transport.send(1, message(Q), None, WAIT),
    "send asynchronously": lambda transport: transport.send(1, message(Q), lambda _: None, WAIT),
    "settle": lambda transport: transport.settle([Settlement(DeliveryTag(0, 1, 1), Outcome.ACCEPTED)]),
    "commit": lambda transport: transport.commit(1, 1, [], [], WAIT),
    "request": lambda transport: transport.request("statistics", {}, WAIT),
}


def refused(call: Callable[[Transport], Any], transport: Transport) -> str:
    """What the exception says that the call raises."""
    try:
        call(transport)
    except IllegalStateException as error:
        return error.reason
    return "it did not raise"


def test_every_call_before_the_opening_raises(engine: Engine) -> None:
    transport = engine.transport()
    assert {name: refused(call, transport) for name, call in CALLS.items()} == dict.fromkeys(
        CALLS, "the connection is not open yet"
    )


def test_every_call_after_the_close_raises(client: Client) -> None:
    client.close()
    assert {name: refused(call, client.transport) for name, call in CALLS.items()} == dict.fromkeys(
        CALLS, "the connection is closed"
    )
    assert client.events == []


def test_a_transport_that_was_closed_is_not_opened_any_more(engine: Engine) -> None:
    transport = engine.transport()
    transport.close(WAIT)
    with pytest.raises(IllegalStateException):
        Client(transport)


def test_invented_client_ids_differ(engine: Engine) -> None:
    assert engine.open().peer.client_id != engine.open().peer.client_id


def test_a_close_wakes_all_waiting_calls(make_engine: MakeEngine) -> None:
    engine = make_engine("max_queue_messages=1&blocked_send_timeout_seconds=60")
    client, watcher = engine.open(), engine.open()
    full = [queue(name) for name in ("a", "b")]
    for each in full:
        client.send(each, "full")
    links = [client.sender(each) for each in full]
    answers = Answers()
    for _ in range(3):
        client.transport.send(links[0], message(full[0]), answers, WAIT)
    waiting = Caller(lambda: client.transport.send(links[1], message(full[1]), None, 60))
    eventually(lambda: all(blocked_sends(watcher, each.name) for each in full))
    client.close()

    assert len(answers.wait_for(3)) == 3
    assert all(isinstance(error, JMSException) for error in answers.errors)
    assert isinstance(waiting.ended().error, JMSException)
    eventually(lambda: not any(blocked_sends(watcher, each.name) for each in full))
    assert [depth(watcher, each.name) for each in full] == [1, 1]


# Callbacks.


def test_a_callback_may_send_though_the_window_is_full(make_engine: MakeEngine) -> None:
    client = make_engine(client_options="send_window_messages=2").open()
    link = client.sender(Q)
    finished = threading.Event()
    left = itertools.count(40, -1)

    def again(error: JMSException | None) -> None:
        assert error is None
        if next(left) > 0:
            client.transport.send(link, message(Q), again, WAIT)
        else:
            finished.set()

    def others() -> None:
        for _ in range(100):
            client.transport.send(link, message(Q), lambda _: None, WAIT)

    callers = [Caller(others) for _ in range(2)]
    client.transport.send(link, message(Q), again, WAIT)

    assert finished.wait(WAIT)
    assert [each.ended().error for each in callers] == [None, None]


def test_a_call_that_waits_is_refused_in_a_callback(client: Client) -> None:
    link, other = client.sender(Q), client.sender(queue("other"))
    refused: list[str] = []
    finished = threading.Event()

    def answered(_error: JMSException | None) -> None:
        for name, call in {**CALLS, "send": lambda each: each.send(other, message(Q), None, WAIT)}.items():
            if name in ("credit", "settle", "send asynchronously"):
                continue
            try:
                call(client.transport)
            except IllegalStateException:
                refused.append(name)
        finished.set()

    client.transport.send(link, message(Q), answered, WAIT)
    assert finished.wait(WAIT)
    assert len(refused) == len(CALLS) - 3
    client.send("q", "works all the same")


def test_a_close_in_a_callback_does_not_wait_for_itself(engine: Engine) -> None:
    client, other = engine.open("me"), engine.open()
    link = client.sender(Q)
    closed = threading.Event()

    def close(_error: JMSException | None) -> None:
        client.transport.close(WAIT)
        closed.set()

    client.transport.send(link, message(Q), close, WAIT)
    assert closed.wait(WAIT)
    eventually(lambda: other.transport.request("statistics", {}, WAIT)["clients"] == 1)
    assert engine.open("me").peer.client_id == "me"


def test_a_sink_may_settle_give_credit_and_send(client: Client) -> None:
    client.send("q", *texts(20))
    link = client.sender(queue("out"))
    seen: list[Any] = []
    answers = Answers()

    class Forwarding:
        link = 0

        def __call__(self, deliveries: Any) -> None:
            for delivery in deliveries:
                client.transport.send(link, message(queue("out"), delivery.envelope.body), answers, None)
                client.transport.settle([Settlement(delivery.tag, Outcome.ACCEPTED)])
                client.transport.credit(self.link, 1)
                seen.append(delivery.envelope.body)

    sink = Forwarding()
    sink.link = client.transport.attach(ReceiverSpec(1, Q), sink, WAIT)
    client.transport.credit(sink.link, 1)

    assert answers.wait_for(20) == [None] * 20
    assert seen == texts(20)
    assert client.bodies("out") == texts(20)
    eventually(lambda: depth(client, "q") == 0)


# Sending.


def test_the_send_window_holds_a_sender_back_until_its_deadline(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1&blocked_send_timeout_seconds=1000", "send_window_messages=3").open()
    client.send("q", "full")
    link = client.sender(Q)
    answers = Answers()
    for body in ("a", "b", "c"):
        client.transport.send(link, message(Q, body), answers, WAIT)
    started = time.monotonic()
    with pytest.raises(OperationTimedOutException, match="send window of 3 messages"):
        client.transport.send(link, message(Q, "d"), answers, 0.1)
    assert time.monotonic() - started >= 0.1
    receiver = client.receiver(Q, 5)
    for count in (1, 2, 3):
        client.settle(receiver.wait_for(count)[count - 1 :])

    client.transport.send(link, message(Q, "d"), answers, WAIT)
    client.settle(receiver.wait_for(4)[3:])
    assert answers.wait_for(4) == [None] * 4


def test_a_refusal_reaches_its_own_send_and_the_order_stays(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=3&blocked_send_timeout_seconds=0.2").open()
    link = client.sender(None)
    answers = Answers()
    for number in range(5):
        client.transport.send(link, message(Q, str(number)), answers, WAIT)
    client.transport.send(link, message(queue("other"), "x"), answers, WAIT)
    errors = answers.wait_for(6)

    assert [type(error) for error in errors] == [
        *[type(None)] * 3,
        *[ResourceAllocationException] * 2,
        type(None),
    ]
    assert client.bodies("q") == texts(3)
    assert client.bodies("other") == ["x"]


def test_a_send_that_is_held_back_holds_up_the_answers_of_its_own_link_only(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=10&blocked_send_timeout_seconds=60").open()
    client.send("q", *texts(10))
    held, free = client.sender(None), client.sender(None)
    told: list[str] = []
    answers = Answers()

    def answered(name: str, error: JMSException | None) -> None:
        assert error is None
        told.append(name)
        answers(error)

    def send(link: int, to: Destination, name: str) -> None:
        client.transport.send(link, message(to, name), lambda error: answered(name, error), WAIT)

    send(held, Q, "held 1")
    for number in range(2, 5):
        send(held, queue("a"), f"held {number}")
        send(free, queue("a"), f"free {number}")
        send(free, queue("b"), f"free {number} b")
        send(held, queue("b"), f"held {number} b")
    answers.wait_for(6)
    eventually(lambda: len(client.bodies("a")) == 6)
    assert told == [f"free {number}{b}" for number in range(2, 5) for b in ("", " b")]
    client.settle(client.receiver(Q, 1).wait_for(1))
    answers.wait_for(13)

    assert told[6:] == ["held 1", *[f"held {number}{b}" for number in range(2, 5) for b in ("", " b")]]


@pytest.mark.parametrize("waits", [True, False])
def test_a_send_on_a_closed_link_is_an_illegal_state(client: Client, waits: bool) -> None:
    link = client.sender(Q)
    client.transport.detach(link, WAIT)
    answers = Answers()
    try:
        client.transport.send(link, message(Q), None if waits else answers, WAIT)
        (error,) = answers.wait_for(1)
    except IllegalStateException as raised:
        error = raised

    assert isinstance(error, IllegalStateException)
    assert "closed" in str(error)
    assert client.bodies("q") == []


def test_a_send_to_what_does_not_exist_any_more_is_refused(engine: Engine) -> None:
    owner, other = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    bound, anonymous = other.sender(temporary), other.sender(None)
    other.transport.send(bound, message(temporary), None, WAIT)
    owner.transport.delete_temporary(temporary, WAIT)
    for link in (bound, anonymous):
        with pytest.raises(InvalidDestinationException, match="does not exist any more"):
            other.transport.send(link, message(temporary), None, WAIT)
    other.transport.send(anonymous, message(Q, "the link goes on"), None, WAIT)


def test_a_name_that_cannot_be_one_is_refused(client: Client) -> None:
    name = "x" * 401
    for attach in (client.sender, client.receiver):
        with pytest.raises(InvalidDestinationException, match="longer than the limit of 400 bytes"):
            attach(Destination(name))
    link = client.sender(None)
    with pytest.raises(InvalidDestinationException, match="longer than the limit of 400 bytes"):
        client.transport.send(link, message(Destination(name)), None, WAIT)


def test_a_message_at_the_limit_passes_and_a_byte_more_does_not(make_engine: MakeEngine) -> None:
    limit = 3_000_000  # more than an AMQP frame
    engine = make_engine(f"max_message_bytes={limit}")
    client = engine.open()
    encode = encode_amqp if engine.is_standard else pack
    room = limit - len(encode(message(Q, "x" * 100_000))) + 100_000
    link = client.sender(Q)
    with pytest.raises(JMSException, match=f"limit of {limit} bytes"):
        client.transport.send(link, message(Q, "x" * (room + 1)), None, WAIT)
    client.transport.send(link, message(Q, "x" * room), None, WAIT)

    assert [len(body) for body in client.bodies("q")] == [room]


def test_many_threads_share_one_connection(client: Client) -> None:
    def work(number: int) -> None:
        link = client.sender(Q, session=number)
        answers = Answers()
        for index in range(50):
            client.transport.send(link, message(Q, f"{number}/{index}"), answers, WAIT)
            if index % 10 == 0:
                client.transport.send(link, message(Q, f"{number}/{index}s"), None, WAIT)
        assert answers.wait_for(50) == [None] * 50

    callers = [Caller(lambda number=number: work(number)) for number in range(4)]  # type: ignore[misc]
    assert [each.ended().error for each in callers] == [None] * 4
    bodies = client.bodies("q")
    assert len(bodies) == 4 * 55
    for number in range(4):
        mine = [body.partition("/")[2] for body in bodies if body.startswith(f"{number}/")]
        assert [int(each) for each in mine if not each.endswith("s")] == list(range(50))
