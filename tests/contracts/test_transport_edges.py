"""The transport port at its edges: what is closed, refused, repeated, late or in the wrong thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.amqp.amqp_message import encode_amqp
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.envelope import Identity, pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.transport import ReceiverSpec, SenderSpec, Subscription, Transport
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message

Q = queue("q")
TEMPORARY = DestinationKind.TEMPORARY_QUEUE


def texts(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


class Answers:
    """What sends are told; can be waited for."""

    def __init__(self) -> None:
        self.errors: list[JMSException | None] = []
        self._arrived = threading.Condition()

    def __call__(self, error: JMSException | None) -> None:
        with self._arrived:
            self.errors.append(error)
            self._arrived.notify_all()

    def wait_for(self, count: int) -> list[JMSException | None]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.errors) >= count, WAIT), self.errors
            return list(self.errors)


class Caller:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: JMSException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except JMSException as error:
            self.error = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def ended(self) -> Caller:
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self


def held_producers(client: Client, name: str) -> int:
    """How many sends wait for room in a queue."""
    queues = client.transport.request("statistics", {}, WAIT)["queues"]
    return sum(each["held_producers"] for each in queues if each["name"] == name)


def depth(client: Client, name: str) -> int:
    queues = client.transport.request("statistics", {}, WAIT)["queues"]
    return sum(each["messages"] for each in queues if each["name"] == name)


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
    engine = make_engine("max_queue_messages=1&hold_timeout_seconds=60")
    client, watcher = engine.open(), engine.open()
    full = [queue(name) for name in ("a", "b", "c")]
    for each in full:
        client.send(each, "full")
    links = [client.sender(each) for each in full]
    answers = Answers()
    for _ in range(3):
        client.transport.send(links[0], message(full[0]), answers, WAIT)
    waiting = [
        Caller(lambda: client.transport.send(links[1], message(full[1]), None, 60)),
        Caller(lambda: client.transport.commit(2, 1, [(links[2], message(full[2]))], [], 60)),
    ]
    eventually(lambda: all(held_producers(watcher, each.name) for each in full))
    client.close()

    assert len(answers.wait_for(3)) == 3
    assert all(isinstance(error, JMSException) for error in answers.errors)
    assert all(isinstance(each.ended().error, JMSException) for each in waiting)
    eventually(lambda: not any(held_producers(watcher, each.name) for each in full))
    assert [depth(watcher, each.name) for each in full] == [1, 1, 1]


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
    client = make_engine("max_queue_messages=1&hold_timeout_seconds=1000", "send_window_messages=3").open()
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
    client = make_engine("max_queue_messages=3&hold_timeout_seconds=0.2").open()
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
    client = make_engine("max_queue_messages=10&hold_timeout_seconds=60").open()
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


# Receiving.


def test_a_receiver_needs_a_sink(client: Client) -> None:
    with pytest.raises(IllegalStateException, match="needs a sink"):
        client.transport.attach(ReceiverSpec(1, Q), None, WAIT)


def test_credit_and_settlements_of_links_that_are_not_there_are_ignored(client: Client) -> None:
    client.send("q", "a")
    receiver = client.receiver(Q)
    client.transport.detach(receiver.link, WAIT)
    for link in (receiver.link, 999):
        client.transport.credit(link, 5)
        client.transport.settle([Settlement(DeliveryTag(0, link, 1), Outcome.ACCEPTED)])

    assert client.bodies("q") == ["a"]
    assert receiver.deliveries == []


def test_a_drain_of_a_link_that_is_not_there_is_an_illegal_state(client: Client) -> None:
    receiver = client.receiver(Q)
    client.transport.detach(receiver.link, WAIT)
    for link in (receiver.link, 999):
        with pytest.raises(IllegalStateException, match="closed"):
            client.transport.drain(link, WAIT)


def test_a_consumer_that_is_detached_gets_nothing_more(client: Client) -> None:
    receiver = client.receiver(Q, 10)
    client.transport.detach(receiver.link, WAIT)
    client.send("q", "a")

    assert [each.envelope.body for each in client.drained("q")] == ["a"]
    assert receiver.deliveries == []


def test_deliveries_settled_twice_are_settled_once(client: Client) -> None:
    client.send("q", "a", "b")
    first, second = client.drained("q")
    client.settle([first, first], Outcome.ACCEPTED)
    client.settle([first], Outcome.MODIFIED)
    client.settle([second], Outcome.RELEASED)

    eventually(lambda: depth(client, "q") == 1)
    assert [(each.envelope.body, each.delivery_count) for each in client.drained("q")] == [("b", 0)]


def test_what_comes_back_stands_in_its_old_place(client: Client) -> None:
    client.send("q", *texts(6))
    receiver = client.receiver(Q, 4)
    held = receiver.wait_for(4)
    client.settle([held[2], held[0]], Outcome.RELEASED)
    client.settle([held[3]], Outcome.MODIFIED)
    client.transport.drain(receiver.link, WAIT)
    again = client.drained("q")

    assert [(each.envelope.body, each.delivery_count) for each in again] == [
        ("0", 0),
        ("2", 0),
        ("3", 1),
        ("4", 0),
        ("5", 0),
    ]
    positions = [each.position for each in again]
    assert [held[0].position, held[2].position, held[3].position] == positions[:3]
    assert positions == sorted(positions, key=lambda position: position or 0)


def test_a_position_is_never_used_again(engine: Engine, client: Client) -> None:
    seen: list[int | None] = []
    for _ in range(3):
        client.send("q", "a", "b")
        deliveries = client.drained("q")
        seen += [each.position for each in deliveries]
        client.settle(deliveries)

    assert seen == ([None] * 6 if engine.is_standard else list(range(1, 7)))


def test_credit_of_a_presettled_consumer_is_kept_exactly(client: Client) -> None:
    client.send("q", *texts(5))
    receiver = client.receiver(Q, 2, presettled=True)
    held = receiver.wait_for(2)
    client.settle(held, Outcome.RELEASED)  # means nothing: they are settled
    client.transport.drain(receiver.link, WAIT)

    assert receiver.bodies() == ["0", "1"]
    assert client.bodies("q") == ["2", "3", "4"]


def test_a_presettled_consumer_loses_nothing_that_it_did_not_ask_for(engine: Engine) -> None:
    first, second = engine.open(), engine.open()
    first.send("q", *texts(5))
    receiver = first.receiver(Q, 2, presettled=True)
    receiver.wait_for(2)
    first.close()

    assert second.bodies("q") == ["2", "3", "4"]


def test_a_browser_sees_a_snapshot_of_what_could_be_had(client: Client) -> None:
    client.send("q", "held")
    held = client.drained("q")
    client.send("q", "low", priority=1)
    client.send("q", "later", deliver_at_ms=time.time_ns() // 1_000_000 + 60_000)
    client.send("q", "high", priority=9)
    browser = client.receiver(Q, browse=True)
    client.send("q", "new")
    client.transport.credit(browser.link, 100)
    client.transport.drain(browser.link, WAIT)

    assert browser.bodies() == ["high", "low"]
    client.settle(browser.deliveries)  # means nothing
    client.settle(held, Outcome.RELEASED)
    assert sorted(client.bodies("q")) == ["held", "high", "low", "new"]


def test_a_topic_cannot_be_browsed(client: Client) -> None:
    with pytest.raises(InvalidDestinationException, match="topic"):
        client.receiver(topic("t"), browse=True)


# Sessions.


def test_an_ended_session_gives_back_what_its_detached_consumers_held(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(Q, 2, session=2)
    held = receiver.wait_for(2)
    client.transport.detach(receiver.link, WAIT)
    client.settle(held[:1])
    client.transport.end_session(2, WAIT)
    again = client.receiver(Q, 2).wait_for(1)

    assert [(each.envelope.body, each.delivery_count) for each in again] == [("b", 1)]


def test_an_ended_session_leaves_the_others_alone_and_its_number_may_be_used_again(client: Client) -> None:
    mine, other = client.sender(Q, session=2), client.sender(Q, session=3)
    temporary = client.transport.declare_temporary(TEMPORARY, WAIT)
    client.transport.end_session(2, WAIT)
    with pytest.raises(IllegalStateException):
        client.transport.send(mine, message(Q), None, WAIT)
    client.transport.send(other, message(Q), None, WAIT)
    client.transport.send(client.sender(temporary, session=2), message(temporary), None, WAIT)
    client.transport.commit(2, 1, [(client.sender(Q, session=2), message(Q))], [], WAIT)

    assert len(client.bodies("q")) == 2


# Subscriptions.


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_has_no_subscriptions(engine: Engine, durable: bool) -> None:
    client = engine.open("me")
    with pytest.raises(InvalidDestinationException, match="cannot subscribe to the queue 'q'"):
        client.receiver(Q, subscription=Subscription("s", durable=durable, shared=not durable))


def test_a_temporary_topic_has_no_durable_subscriptions(engine: Engine) -> None:
    client = engine.open("me")
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    with pytest.raises(InvalidDestinationException, match="temporary"):
        client.receiver(temporary, subscription=Subscription("s", durable=True, shared=False))


def test_a_temporary_topic_may_be_shared(client: Client) -> None:
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    subscription = Subscription("s", durable=False, shared=True)
    receivers = [client.receiver(temporary, 10, subscription=subscription) for _ in range(2)]
    client.send(temporary, *texts(10))

    eventually(lambda: sum(len(each.deliveries) for each in receivers) == 10)
    assert all(each.deliveries for each in receivers)


def test_subscriptions_of_two_clients_are_two(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    receivers = [engine.open(name).receiver(topic("t"), 5, subscription=subscription) for name in ("me", "you")]
    engine.open().send(topic("t"), "news")

    assert [each.wait_for(1)[0].envelope.body for each in receivers] == ["news", "news"]


def test_a_durable_subscription_on_another_topic_is_a_new_one(engine: Engine) -> None:
    client = engine.open("me")
    subscription = Subscription("s", durable=True, shared=False)
    client.transport.detach(client.receiver(topic("t"), subscription=subscription).link, WAIT)
    client.send(topic("t"), "old")
    receiver = client.receiver(topic("u"), 5, subscription=subscription)
    client.send(topic("t"), "old")
    client.send(topic("u"), "new")
    receiver.wait_for(1)
    client.transport.drain(receiver.link, WAIT)

    assert receiver.bodies() == ["new"]


@pytest.mark.parametrize("shared", [True, False])
def test_a_subscription_does_not_change_its_kind(engine: Engine, shared: bool) -> None:
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=shared))
    with pytest.raises(IllegalStateException, match="subscription 's'"):
        client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=not shared))
    client.transport.detach(receiver.link, WAIT)
    with pytest.raises(IllegalStateException, match="subscription 's'"):  # nor while nobody uses it
        client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=not shared))


def test_a_shared_durable_subscription_needs_no_client_id_and_outlives_its_connections(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=True)
    first = engine.open()
    first.receiver(topic("t"), subscription=subscription)
    first.close()
    second = engine.open()
    second.send(topic("t"), "kept")
    receiver = second.receiver(topic("t"), 1, subscription=subscription)
    assert receiver.wait_for(1)[0].envelope.body == "kept"
    with pytest.raises(IllegalStateException):
        engine.open().transport.unsubscribe("s", WAIT)
    second.transport.detach(receiver.link, WAIT)
    with pytest.raises(IllegalStateException, match="holds messages"):
        engine.open().transport.unsubscribe("s", WAIT)
    second.settle(receiver.deliveries)
    second.send("q", "the settlement is there when this is answered")
    engine.open().transport.unsubscribe("s", WAIT)
    with pytest.raises(InvalidDestinationException):
        engine.open().transport.unsubscribe("s", WAIT)


@pytest.mark.parametrize("durable", [True, False])
def test_consumers_of_a_shared_subscription_come_and_go(engine: Engine, durable: bool) -> None:
    client = engine.open()
    subscription = Subscription("s", durable=durable, shared=True)
    receivers = [client.receiver(topic("t"), 100, subscription=subscription) for _ in range(3)]
    for _ in range(3):
        client.transport.detach(receivers.pop(0).link, WAIT)
        receivers.append(client.receiver(topic("t"), 100, subscription=subscription))
    client.send(topic("t"), *texts(30))

    eventually(lambda: sum(len(each.deliveries) for each in receivers) == 30)
    assert all(each.deliveries for each in receivers)
    assert client.events == []


def test_a_durable_subscriber_may_settle_late_what_the_next_one_does_not_get(engine: Engine) -> None:
    client = engine.open("me")
    subscription = Subscription("s", durable=True, shared=False)
    first = client.receiver(topic("t"), 5, subscription=subscription)
    client.send(topic("t"), "a", "b")
    held = first.wait_for(2)
    client.transport.detach(first.link, WAIT)
    second = client.receiver(topic("t"), 5, subscription=subscription)
    client.transport.drain(second.link, WAIT)
    assert second.deliveries == []
    client.settle(held[:1])
    client.settle(held[1:], Outcome.RELEASED)
    client.transport.credit(second.link, 1)

    assert second.wait_for(1)[0].envelope.body == "b"


def test_a_durable_subscriber_that_goes_gives_back_what_it_held(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    receiver = client.receiver(topic("t"), 5, subscription=subscription)
    client.send(topic("t"), "a", "b")
    client.settle(receiver.wait_for(2)[:1])
    eventually(lambda: client.transport.request("statistics", {}, WAIT)["settled"] == 1)
    client.close()
    again = engine.open("me").receiver(topic("t"), 5, subscription=subscription).wait_for(1)

    assert [(each.envelope.body, each.delivery_count) for each in again] == [("b", 1)]


def test_no_local_holds_for_a_durable_subscription_while_its_client_is_away(engine: Engine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=subscription, no_local=True)
    client.transport.detach(receiver.link, WAIT)
    client.send(topic("t"), "mine")
    engine.open().send(topic("t"), "theirs")
    receiver = client.receiver(topic("t"), 5, subscription=subscription, no_local=True)
    receiver.wait_for(1)
    client.transport.drain(receiver.link, WAIT)

    assert receiver.bodies() == ["theirs"]


# Temporary destinations.


def test_temporary_destinations_differ_and_belong_to_their_connection(engine: Engine) -> None:
    owner, other = engine.open(), engine.open()
    names = {
        each.transport.declare_temporary(kind, WAIT).name
        for each in (owner, other)
        for kind in (TEMPORARY, DestinationKind.TEMPORARY_TOPIC)
    }
    assert len(names) == 4
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    with pytest.raises(InvalidDestinationException, match="is no temporary destination of this connection"):
        other.transport.delete_temporary(temporary, WAIT)
    other.send(temporary, "it is still there")


def test_a_temporary_topic_is_deleted_when_it_is_not_in_use(client: Client) -> None:
    temporary = client.transport.declare_temporary(DestinationKind.TEMPORARY_TOPIC, WAIT)
    receiver = client.receiver(temporary, 5)
    with pytest.raises(IllegalStateException):
        client.transport.delete_temporary(temporary, WAIT)
    client.transport.detach(receiver.link, WAIT)
    client.transport.delete_temporary(temporary, WAIT)
    with pytest.raises(InvalidDestinationException):
        client.sender(temporary)


# Transactions.


def accepted(deliveries: Any, outcome: Outcome = Outcome.ACCEPTED) -> list[Settlement]:
    return [Settlement(each.tag, outcome) for each in deliveries]


def test_a_repeated_commit_changes_nothing(client: Client) -> None:
    client.send("in", "a")
    held = client.drained("in")
    link = client.sender(queue("out"))
    for _ in range(3):
        client.transport.commit(1, 1, [(link, message(queue("out")))], accepted(held), WAIT)
    client.transport.commit(1, 2, [(link, message(queue("out")))], [], WAIT)
    client.transport.commit(2, 1, [(link, message(queue("out")))], [], WAIT)  # of another session

    assert len(client.bodies("out")) == 3
    assert client.bodies("in") == []


def test_a_commit_repeated_by_the_connection_that_takes_its_place_changes_nothing(engine: Engine) -> None:
    first = engine.open(commit_prefix="me")
    first.transport.commit(1, 1, [(first.sender(Q), message(Q))], [], WAIT)
    first.close()
    second = engine.open(commit_prefix="me", epoch=1)
    link = second.sender(Q)
    second.transport.commit(1, 1, [(link, message(Q))], [], WAIT)
    assert len(second.bodies("q")) == 1
    second.transport.commit(1, 2, [(link, message(Q))], [], WAIT)
    other = engine.open(commit_prefix="other")
    other.transport.commit(1, 1, [(other.sender(Q), message(Q))], [], WAIT)

    assert len(second.bodies("q")) == 3


def test_deliveries_carry_the_epoch_of_their_connection(engine: Engine) -> None:
    client = engine.open(epoch=7)
    client.send("q", "a")
    (held,) = client.drained("q")
    stale = held.tag._replace(epoch=6)
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [(client.sender(Q), message(Q))], [Settlement(stale, Outcome.ACCEPTED)], WAIT)
    client.transport.settle([Settlement(stale, Outcome.ACCEPTED)])
    assert held.tag.epoch == 7
    client.settle([held], Outcome.RELEASED)

    assert [each.envelope.body for each in client.receiver(Q, 5).wait_for(1)] == ["a"]


def test_a_commit_ends_deliveries_in_every_way(client: Client) -> None:
    client.send("q", *texts(4))
    receiver = client.receiver(Q, 4)
    held = receiver.wait_for(4)
    endings = (Outcome.ACCEPTED, Outcome.REJECTED, Outcome.RELEASED, Outcome.MODIFIED)
    client.transport.commit(
        1, 1, [], [Settlement(each.tag, ending) for each, ending in zip(held, endings, strict=True)], WAIT
    )

    assert [(each.envelope.body, each.delivery_count) for each in client.drained("q")] == [("2", 0), ("3", 1)]
    assert client.bodies("DLQ") == ["1"]


def test_a_commit_that_settles_a_delivery_twice_does_nothing_or_settles_it_once(client: Client) -> None:
    client.send("q", "a")
    held = client.drained("q")
    try:
        client.transport.commit(1, 1, [], accepted(held * 2), WAIT)
    except TransactionRolledBackException:
        assert [each.delivery_count for each in client.drained("q")] == [1]
    else:
        assert client.bodies("q") == []


def test_a_commit_through_a_closed_link_does_nothing(client: Client) -> None:
    client.send("q", "a")
    held = client.drained("q")
    good, closed = client.sender(queue("out")), client.sender(queue("out"))
    client.transport.detach(closed, WAIT)
    with pytest.raises(TransactionRolledBackException, match="closed"):
        client.transport.commit(
            1, 1, [(good, message(queue("out"))), (closed, message(queue("out")))], accepted(held), WAIT
        )
    assert client.bodies("out") == []
    again = client.drained("q")
    assert [each.delivery_count for each in again] == [1]
    client.transport.commit(1, 2, [(good, message(queue("out")))], accepted(again), WAIT)
    assert (client.bodies("q"), len(client.bodies("out"))) == ([], 1)


def test_a_commit_to_what_does_not_exist_any_more_does_nothing(engine: Engine) -> None:
    owner, client = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    good, bad = client.sender(Q), client.sender(temporary)
    owner.close()
    client.send("in", "a")
    held = client.drained("in")
    with pytest.raises(TransactionRolledBackException, match="does not exist any more"):
        client.transport.commit(1, 1, [(good, message(Q)), (bad, message(temporary))], accepted(held), WAIT)
    assert client.bodies("q") == []
    client.transport.commit(1, 2, [(good, message(Q))], [], WAIT)
    assert len(client.bodies("q")) == 1


def test_a_commit_goes_wherever_its_anonymous_messages_say(client: Client) -> None:
    link = client.sender(None)
    client.transport.commit(1, 1, [(link, message(queue(name), name)) for name in ("a", "b", "a")], [], WAIT)

    assert (client.bodies("a"), client.bodies("b")) == (["a", "a"], ["b"])


def test_a_commit_is_held_back_until_there_is_room(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2").open()
    client.send("q", "a", "b")
    link = client.sender(Q)
    waiting = Caller(lambda: client.transport.commit(1, 1, [(link, message(Q, "c")), (link, message(Q, "d"))], [], 30))
    eventually(lambda: held_producers(client, "q") == 1)
    receiver = client.receiver(Q, 2)
    held = receiver.wait_for(2)
    client.settle(held[:1])
    eventually(lambda: depth(client, "q") == 1)
    assert waiting.is_waiting
    client.settle(held[1:])

    assert waiting.ended().error is None
    assert client.bodies("q") == ["c", "d"]


def test_a_commit_keeps_its_deadline(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1").open()
    client.send("q", "full")
    link = client.sender(Q)
    started = time.monotonic()
    with pytest.raises(OperationTimedOutException):
        client.transport.commit(1, 1, [(link, message(Q))], [], 0.1)
    assert time.monotonic() - started >= 0.1


def test_what_a_rolled_back_commit_was_to_settle_is_redelivered(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2&hold_timeout_seconds=0.1").open()
    client.send("in", "a")
    receiver = client.receiver(queue("in"), 5)
    held = receiver.wait_for(1)
    link = client.sender(Q)
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [(link, message(Q))] * 3, accepted(held), WAIT)
    client.settle(held, Outcome.MODIFIED)  # as a session does that rolls back; it changes nothing
    again = receiver.wait_for(2)[1]
    client.transport.drain(receiver.link, WAIT)

    assert (again.envelope.body, again.delivery_count, len(receiver.deliveries)) == ("a", 1, 2)


def test_a_commit_with_a_stale_delivery_releases_the_others(client: Client) -> None:
    client.send("q", "stale", "good")
    receiver = client.receiver(Q, 2)
    held = receiver.wait_for(2)
    client.settle(held[:1])
    with pytest.raises(TransactionRolledBackException):
        client.transport.commit(1, 1, [], accepted(held), WAIT)

    assert [(each.envelope.body, each.delivery_count) for each in client.drained("q")] == [("good", 1)]


def test_what_a_commit_was_to_settle_is_redelivered_though_no_call_waited_for_its_end(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1&hold_timeout_seconds=1.5").open()
    client.send("q", "full")
    client.send("in", "a")
    receiver = client.receiver(queue("in"), 5)
    held = receiver.wait_for(1)
    with pytest.raises(OperationTimedOutException):
        client.transport.commit(1, 1, [(client.sender(Q), message(Q))], accepted(held), 0.05)

    assert receiver.wait_for(2)[1].delivery_count == 1
    assert client.bodies("q") == ["full"]


def test_a_repeated_identity_in_a_commit_is_not_a_second_message(client: Client) -> None:
    link = client.sender(Q)
    client.send("q", "1", identity=Identity("p", 1, 1))
    sends = [(link, message(Q, str(number), identity=Identity("p", 1, number))) for number in (1, 2, 2, 3)]
    client.transport.commit(1, 1, sends, [], WAIT)

    assert client.bodies("q") == ["1", "2", "3"]


def test_sessions_commit_side_by_side(client: Client) -> None:
    def work(session: int) -> None:
        link = client.sender(Q, session=session)
        for number in range(1, 11):
            sends = [(link, message(Q, f"{session}/{number}/{index}")) for index in range(3)]
            client.transport.commit(session, number, sends, [], WAIT)

    callers = [Caller(lambda session=session: work(session)) for session in range(1, 5)]  # type: ignore[misc]
    assert [each.ended().error for each in callers] == [None] * 4
    bodies = client.bodies("q")
    assert len(bodies) == 120
    assert [body[-1] for body in bodies] == ["0", "1", "2"] * 40  # each commit in one piece


# Beyond messaging.


def test_a_range_is_read_in_pieces_and_again_until_it_is_settled(client: Client) -> None:
    request = client.transport.request
    client.send("q", *["x" * 1000] * 10)
    bounds = request("bounds", {"destination": "q"}, WAIT)
    for _ in range(2):
        position, found = bounds["first"], []
        while position < bounds["next"]:
            answer = request(
                "read_range",
                {
                    "destination": "q",
                    "first": position,
                    "last": bounds["next"] - 1,
                    "max_bytes": 3500,
                    "incarnation": bounds["incarnation"],
                },
                WAIT,
            )
            assert 0 < len(answer["messages"]) <= 4
            found += [each[0] for each in answer["messages"]]
            position = answer["next"]
        assert found == list(range(bounds["first"], bounds["next"]))
    settle = {"destination": "q", "position": bounds["first"] + 3, "incarnation": bounds["incarnation"]}
    assert request("settle_through", settle, WAIT) == 4
    assert request("settle_through", settle, WAIT) == 0
    assert request("bounds", {"destination": "q"}, WAIT)["first"] == bounds["first"] + 4


def test_a_range_is_not_settled_under_the_hands_of_consumers(client: Client) -> None:
    client.send("q", "a")
    receiver = client.receiver(Q)
    with pytest.raises(IllegalStateException, match="1 consumer is attached"):
        client.transport.request("settle_through", {"destination": "q", "position": 1}, WAIT)
    client.transport.detach(receiver.link, WAIT)
    assert client.transport.request("settle_through", {"destination": "q", "position": 1}, WAIT) == 1


def test_another_incarnation_of_a_queue_is_noticed(client: Client) -> None:
    client.send("q", "a")
    for operation, further in (("read_range", {"first": 1, "last": 1}), ("settle_through", {"position": 1})):
        with pytest.raises(InvalidDestinationException, match="was deleted and made again"):
            client.transport.request(operation, {"destination": "q", "incarnation": "gone", **further}, WAIT)
    assert client.bodies("q") == ["a"]


def test_the_queue_of_a_subscription_is_read_like_any_other(engine: Engine) -> None:
    client = engine.open("me")
    receiver = client.receiver(topic("t"), subscription=Subscription("s", durable=True, shared=False))
    client.transport.detach(receiver.link, WAIT)
    client.send(topic("t"), "a", "b")
    named = {"destination": "t", "kind": "topic", "subscription": "s", "client_id": "me"}
    bounds = client.transport.request("bounds", named, WAIT)
    assert bounds["next"] - bounds["first"] == 2
    assert client.transport.request("purge", named, WAIT) == 2
    with pytest.raises(InvalidDestinationException, match="there is one of client id 'me'"):
        client.transport.request("bounds", {**named, "client_id": "you"}, WAIT)


def test_staging_is_idempotent_and_publishing_all_or_nothing(client: Client) -> None:
    request = client.transport.request
    payloads = [pack(message(queue("out"), body)) for body in texts(4)]
    for first, last in ((0, 2), (0, 2), (1, 3), (3, 4)):
        stage = {"transaction": "t", "queue": "out", "first": first, "messages": payloads[first:last]}
        request("stage", stage, WAIT)
    with pytest.raises(IllegalStateException, match="has 4 messages"):
        request("stage", {"transaction": "t", "queue": "out", "first": 9, "messages": payloads}, WAIT)
    with pytest.raises(InvalidDestinationException, match="'unknown' does not exist"):
        request("publish", {"group": "g", "number": 1, "transactions": ["t", "unknown"]}, WAIT)
    assert client.bodies("out") == []
    assert request("publish", {"group": "g", "number": 1, "transactions": ["t"]}, WAIT) is True
    assert request("publish", {"group": "g", "number": 1, "transactions": ["t"]}, WAIT) is False
    assert client.bodies("out") == texts(4)
    assert request("discard", {"transactions": ["unknown"]}, WAIT) == 0


@pytest.mark.parametrize("arguments", [{}, {"destination": 7}, {"destination": "q", "first": "x", "last": 1}])
def test_a_request_with_wrong_arguments_is_refused(client: Client, arguments: dict[str, Any]) -> None:
    with pytest.raises(JMSException, match="needs the argument"):
        client.transport.request("read_range", arguments, WAIT)


def test_a_request_is_carried_out_once_under_the_id_and_run_of_its_caller(engine: Engine) -> None:
    client = engine.open()
    client.send("q", "a", "b")
    run = client.transport.request("bounds", {"destination": "q"}, WAIT)["run"]
    purge = {"destination": "q", "request_id": "mine", "request_run": run}
    assert client.transport.request("purge", purge, WAIT) == 2
    client.send("q", "c")
    assert client.transport.request("purge", purge, WAIT) == 2
    assert engine.open().transport.request("purge", purge, WAIT) == 2
    with pytest.raises(IllegalStateException, match="started again"):
        client.transport.request("purge", {**purge, "request_id": "other", "request_run": "earlier"}, WAIT)
    for name, value in (("request_id", 7), ("request_run", 7)):
        with pytest.raises(MessageFormatException, match=f"'{name}' of type str, not 7"):
            client.transport.request("purge", {**purge, name: value}, WAIT)
    assert client.bodies("q") == ["c"]
    assert client.transport.request("purge", {**purge, "request_id": "other"}, WAIT) == 1


def test_requests_of_many_threads_get_their_own_answers(client: Client) -> None:
    for number in range(4):
        client.send(f"q{number}", *texts(number + 1))

    def ask(number: int) -> list[int]:
        bounds = [client.transport.request("bounds", {"destination": f"q{number}"}, WAIT) for _ in range(20)]
        return [each["next"] - each["first"] for each in bounds]

    callers = [Caller(lambda number=number: ask(number)) for number in range(4)]  # type: ignore[misc]
    assert [each.ended().result for each in callers] == [[number + 1] * 20 for number in range(4)]
