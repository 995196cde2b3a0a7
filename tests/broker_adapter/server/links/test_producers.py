"""Links that the client of the protocol in memory sends on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.amqp.events import (
    ACCEPTED,
    ACCEPTED_STATE,
    REJECTED,
    Dispositions,
    LinkRemoteClose,
    Terminus,
)
from broker_adapter.destination import MAX_NAME_BYTES, Destination
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import JMSSecurityException
from tests.broker_adapter.engine.driving import depth
from tests.broker_adapter.server.protocol_client import (
    TOPIC,
    Client,
    code_of,
    encoded,
    in_transaction,
    waiting,
)


def test_messages_are_taken_and_their_credit_is_given_back(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=4).open()
    link = client.sender("q")
    assert client.peer.remaining_credit(link) == 4
    for body in range(20):
        client.until(lambda: client.peer.remaining_credit(link) > 0)
        assert client.send(link, body) == [ACCEPTED_STATE]
    assert waiting(broker, "q") == list(range(20))


def test_more_messages_than_credit_end_the_link(broker: Broker) -> None:
    client = Client(broker, link_credit_messages=1).open()
    link = client.sender("q")
    other = Client(broker, link_credit_messages=100).open()
    generous = other.sender("q")
    for _ in range(2):  # what was meant for a server that gives more
        for body in range(5):
            other.peer.send(generous, encoded(body))
        client.server.receive(other.peer.pending_output(), client.now_ms)
    closed = client.until(lambda: client.of(LinkRemoteClose, link))
    assert closed[0].error.condition == "amqp:link:transfer-limit-exceeded"
    assert depth(broker, "q") <= 10


def test_a_producer_of_large_messages_may_have_fewer_on_their_way(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(), max_input_bytes=1 << 20, link_credit_messages=100).open()
    link = client.sender("q")
    assert client.peer.remaining_credit(link) == 4  # nothing is known yet of its messages
    for _ in range(3):
        client.send(link, "small")
    client.rest()
    assert client.peer.remaining_credit(link) > 75
    for _ in range(100):
        client.send(link, "x" * 300_000)
    client.rest()
    assert client.peer.remaining_credit(link) <= 3
    client.send(link, "x" * 3_000_000)
    assert client.send(link, "and it goes on") == [ACCEPTED_STATE]


def test_presettled_messages_are_taken_without_a_word(client: Client, broker: Broker) -> None:
    link = client.sender("q", presettled=True)
    credit = client.peer.remaining_credit(link)
    for body in range(credit):
        client.peer.send(link, encoded(body), settled=True)
    client.until(lambda: client.peer.remaining_credit(link) >= credit)
    client.rest()
    assert client.of(Dispositions) == []
    assert depth(broker, "q") == credit


def test_an_anonymous_sender_names_the_destination_in_each_message(client: Client, broker: Broker) -> None:
    link = client.sender(Terminus())
    numbers = [client.peer.send(link, encoded(body, address=to)) for body, to in enumerate(["a", "b", "a", "b", "b"])]
    numbers.append(client.peer.send(link, encoded("nowhere")))
    numbers.append(client.peer.send(link, encoded("x", address="")))
    client.until(lambda: len(client.answers(link)) == len(numbers))
    assert [code_of(client.answers(link)[number]) for number in numbers] == [
        *[(ACCEPTED, None)] * 5,
        (REJECTED, "amqp:not-found"),
        (REJECTED, "amqp:not-found"),
    ]
    assert (waiting(broker, "a"), waiting(broker, "b")) == ([0, 2], [1, 3, 4])


def test_a_message_that_cannot_be_decoded_is_refused_alone(client: Client, broker: Broker) -> None:
    link = client.sender("q")
    good = client.peer.send(link, encoded("good"))
    bad = client.peer.send(link, b"\x00\x53\x70\xc0\x05\x02\x41\x50")
    last = client.peer.send(link, encoded("last"))
    client.until(lambda: len(client.answers(link)) == 3)
    answers = client.answers(link)
    assert [code_of(answers[number]) for number in (good, bad, last)] == [
        (ACCEPTED, None),
        (REJECTED, "amqp:decode-error"),
        (ACCEPTED, None),
    ]
    assert waiting(broker, "q") == ["good", "last"]


def test_messages_at_a_limit_of_the_engine_are_refused_one_by_one(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(max_queue_messages=2, blocked_send_timeout_seconds=0)).open()
    states = client.send(client.sender("q"), *range(4))
    assert [code_of(state) for state in states] == [
        (ACCEPTED, None),
        (ACCEPTED, None),
        (REJECTED, "amqp:resource-limit-exceeded"),
        (REJECTED, "amqp:resource-limit-exceeded"),
    ]


def test_a_producer_at_a_limit_waits_with_its_credit_used_up(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_queue_messages=2, blocked_send_timeout_seconds=60)
    client = Client(broker, link_credit_messages=4).open()
    link = client.sender("q")
    for body in range(4):
        client.peer.send(link, encoded(body))
    client.rest()
    assert client.peer.remaining_credit(link) == 0
    consumer = client.receiver("q", 4, name="r")
    client.settle(consumer, client.receive(consumer, 2)[:2])
    client.until(lambda: len(client.answers(link)) == 4)
    client.until(lambda: client.peer.remaining_credit(link) == 4)


def test_a_message_above_the_limit_is_refused_with_the_link(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_message_bytes=1000)
    client = Client(broker).open()
    link = client.sender("q")
    assert client.opened(link).max_message_bytes == 1000
    client.peer.send(link, encoded("x" * 2000))
    error = client.until(lambda: client.of(LinkRemoteClose, link))[0].error
    assert error.condition == "amqp:link:message-size-exceeded"
    assert client.send(client.sender("q", name="other"), "x") == [ACCEPTED_STATE]
    assert waiting(broker, "q") == ["x"]


@pytest.mark.parametrize("end", ["link", "session", "connection"])
@pytest.mark.parametrize("capabilities", [(), ("queue",), ("temporary-queue",), TOPIC, ("temporary-topic",)])
def test_a_dynamic_target_lives_as_long_as_its_link(
    client: Client, broker: Broker, end: str, capabilities: tuple[str, ...]
) -> None:
    link = client.sender(Terminus(dynamic=True, expiry="link-detach", capabilities=capabilities))
    target = client.opened(link).target
    assert target is not None
    word = "topic" if any("topic" in each for each in capabilities) else "queue"
    assert target.capabilities == (f"temporary-{word}",)
    assert target.address is not None
    assert target.address.startswith(f"temporary-{word}/")
    session = client.peer.begin_session()
    consumer = client.receiver(target.address, 5, session=session, name="r")
    client.send(link, "x")
    client.receive(consumer, 1)
    client.close_link(consumer)
    if end == "link":
        assert client.close_link(link).error is None
    elif end == "session":
        client.peer.end_session(client.session)
    else:
        client.peer.close()
    client.rest()
    other = Client(broker).open()
    gone = other.peer.attach_sender(other.session, "gone", Terminus(), Terminus(target.address))
    assert other.refusal(gone).condition == "amqp:not-found"


def test_producers_share_half_the_budget_for_what_is_on_its_way(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=16 << 20).open()
    assert client.peer.remaining_credit(client.sender("q0", name="s0")) == 32  # of the size that is guessed
    for number in range(1, 4):
        last = client.sender(f"q{number}", name=f"s{number}")
    assert client.peer.remaining_credit(last) == 8
    for number in range(4, 40):
        last = client.sender(f"q{number}", name=f"s{number}")
    assert client.peer.remaining_credit(last) == 1
    for _ in range(3):
        assert client.send(last, "small") == [ACCEPTED_STATE]
    client.rest()
    assert client.peer.remaining_credit(last) > 500


class Asked:
    """What the server was asked to allow."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, action: str, destination: Destination | None) -> None:
        if destination is not None:
            self.names.append(destination.name)


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_name_that_no_destination_can_have_is_refused_before_permissions_are_checked(
    broker: Broker, in_a_transaction: bool
) -> None:
    asked = Asked()
    client = Client(broker, authorize=asked).open()
    link = client.sender(Terminus())
    coordinator = client.coordinator()

    def send(name: str) -> int:
        state = in_transaction(client.declare(coordinator)) if in_a_transaction else None
        return client.send(link, "x", address=name, state=state)[0].code

    for name in ("x" * (MAX_NAME_BYTES + 1), "ä" * MAX_NAME_BYTES):
        assert send(name) == REJECTED
    assert asked.names == []
    assert send("x" * MAX_NAME_BYTES) != REJECTED
    assert asked.names == ["x" * MAX_NAME_BYTES]


def test_all_links_of_a_connection_remember_a_bounded_number_of_destinations(broker: Broker) -> None:
    asked = Asked()
    client = Client(broker, authorize=asked).open()
    links = [client.sender(Terminus(), name=f"s{number}") for number in range(2)]
    for link in links:
        client.send(link, "x", address="q0")
    assert asked.names == ["q0"]  # the second link knows it from the first
    for number in range(1, 101):
        client.send(links[number % 2], "x", address=f"q{number}")
    client.send(links[0], "x", address="q0")
    assert asked.names[-2:] == ["q100", "q0"]  # it was among those that made room


def test_nothing_is_kept_of_a_message_that_its_sender_may_not_send(
    broker: Broker,
) -> None:
    names: list[str] = []

    def refuse(action: str, destination: Destination | None) -> None:
        assert destination is not None
        names.append(destination.name)
        raise JMSSecurityException("no")

    client = Client(broker, authorize=refuse).open()
    link = client.sender(Terminus())
    for _ in range(2):
        assert code_of(client.send(link, "x", address="q")[0]) == (REJECTED, "amqp:unauthorized-access")
    assert names == ["q", "q"]  # asked each time
