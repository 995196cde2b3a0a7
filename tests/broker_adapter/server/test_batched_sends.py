"""Several messages that our own client has sent as one transfer, over the server's protocol in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker_adapter.amqp.events import ACCEPTED_STATE, REJECTED, State, Terminus
from broker_adapter.amqp.messages.batches import MOST_MESSAGES, PARTLY_REFUSED, pack_batch, refused_in
from broker_adapter.amqp.wire import BATCHES_CAPABILITY
from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import JMSSecurityException
from tests.broker_adapter.engine.driving import connect, depth, drained
from tests.broker_adapter.server.protocol_client import OWN_CLIENT, Client, code_of, in_transaction

OWN = {"product": "Holdfast"}


def own(broker: Broker, *, batches: bool = True, **options: Any) -> Client:
    """A connection of our own client."""
    capabilities = (*OWN_CLIENT, *((BATCHES_CAPABILITY,) if batches else ()))
    return Client(broker, **options).open("own", capabilities, properties=OWN)


def message(body: str, name: str = "q", **fields: Any) -> bytes:
    return pack(Envelope(queue(name), BodyKind.TEXT, body, **fields))


def send(client: Client, link: int, *messages: bytes, state: State | None = None) -> State:
    """Send a batch, and wait for its answer."""
    return client.raw(link, pack_batch(messages), state=state)


def bodies(broker: Broker, name: str = "q") -> list[Any]:
    return [unpack(each.payload).body for each in drained(broker, connect(broker), name, browse=True)]


def test_the_messages_of_a_batch_are_taken_in_order_and_answered_once(broker: Broker) -> None:
    client = own(broker)
    link = client.sender("q")

    assert send(client, link, *[message(str(number)) for number in range(100)]) == ACCEPTED_STATE
    assert bodies(broker) == [str(number) for number in range(100)]


def test_a_batch_is_offered_to_our_own_client_alone_and_taken_from_one_that_asked(broker: Broker) -> None:
    without = own(broker, batches=False)
    foreign = Client(broker).open("foreign", (BATCHES_CAPABILITY,))
    for client in (without, foreign):
        answer = client.raw(client.sender("q"), pack_batch([message("a")]))
        assert code_of(answer) == (REJECTED, "amqp:decode-error")
    assert depth(broker, "q") == 0


def test_a_damaged_batch_is_refused_as_a_whole_and_the_link_goes_on(broker: Broker) -> None:
    client = own(broker)
    link = client.sender("q")

    assert code_of(client.raw(link, pack_batch([message("a")]) + b"x")) == (REJECTED, "amqp:decode-error")
    assert code_of(client.raw(link, pack_batch([message("a")] * (MOST_MESSAGES + 1)))) == (
        REJECTED,
        "amqp:decode-error",
    )
    assert send(client, link, message("b")) == ACCEPTED_STATE
    assert bodies(broker) == ["b"]


def test_those_that_cannot_be_decoded_are_refused_and_the_others_are_taken(broker: Broker) -> None:
    client = own(broker)
    nested = pack_batch([message("inside")])
    answer = send(client, client.sender("q"), message("a"), b"\x48", message("b"), nested, b"", message("c"))

    assert code_of(answer) == (REJECTED, PARTLY_REFUSED)
    refused = refused_in(answer.error, 6)
    # A payload without any octet is an AMQP message without any section.
    assert {place: error.condition for place, error in refused.items()} == dict.fromkeys((1, 3), "amqp:decode-error")
    assert depth(broker, "q") == 4
    assert bodies_of_ours(broker) == ["a", "b", "c"]


def bodies_of_ours(broker: Broker) -> list[Any]:
    found = drained(broker, connect(broker), "q", browse=True)
    return [unpack(each.payload).body for each in found if each.payload]


def test_messages_for_several_destinations_go_where_they_belong(broker: Broker) -> None:
    def authorize(action: str, destination: Destination | None) -> None:
        if destination == queue("forbidden"):
            raise JMSSecurityException("not there")

    client = own(broker, authorize=authorize)
    link = client.sender(Terminus())
    names = ["a", "a", "forbidden", "b", "a", "forbidden", "b"]
    answer = send(client, link, *[message(str(place), name) for place, name in enumerate(names)])

    refused = refused_in(answer.error, len(names))
    assert {place: error.condition for place, error in refused.items()} == dict.fromkeys(
        (2, 5), "amqp:unauthorized-access"
    )
    assert (bodies(broker, "a"), bodies(broker, "b")) == (["0", "1", "4"], ["3", "6"])
    assert send(client, link, *[message(name, name) for name in "aba"]) == ACCEPTED_STATE


def test_a_batch_at_a_limit_of_the_engine_is_refused_message_by_message(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_queue_messages=3, blocked_send_timeout_seconds=0)
    client = own(broker)
    link = client.sender("q")
    answer = send(client, link, *[message(str(number)) for number in range(5)])

    refused = refused_in(answer.error, 5)
    assert {place: error.condition for place, error in refused.items()} == dict.fromkeys(
        (3, 4), "amqp:resource-limit-exceeded"
    )
    assert bodies(broker) == ["0", "1", "2"]
    client.rest()
    assert client.peer.remaining_credit(link) > 0


def test_batches_and_single_messages_that_come_together_stay_in_order(broker: Broker) -> None:
    client = own(broker)
    link = client.sender("q")
    numbers = [
        client.peer.send(link, payload)
        for payload in (
            message("0"),
            pack_batch([message("1"), message("2")]),
            message("3"),
            pack_batch([message("4"), b"\x48", message("5")]),
            pack_batch([b"\x48", b"\x48"]),
            pack_batch([message("6")]),
        )
    ]
    client.until(lambda: client.answers(link).keys() >= set(numbers))

    answers = [client.answers(link)[number] for number in numbers]
    assert bodies(broker) == [str(number) for number in range(7)]
    assert [answer == ACCEPTED_STATE for answer in answers] == [True, True, True, False, False, True]
    assert sorted(refused_in(answers[3].error, 3)) == [1]
    assert sorted(refused_in(answers[4].error, 2)) == [0, 1]


def test_the_messages_of_a_batch_belong_to_its_transaction(broker: Broker) -> None:
    client = own(broker)
    link, control = client.sender("q"), client.coordinator()
    txn_id = client.declare(control)
    answer = send(client, link, message("a"), message("b"), state=in_transaction(txn_id))
    assert answer == in_transaction(txn_id, ACCEPTED_STATE)
    assert depth(broker, "q") == 0
    assert client.discharge(control, txn_id) == ACCEPTED_STATE
    assert bodies(broker) == ["a", "b"]

    txn_id = client.declare(control)
    answer = send(client, link, message("c"), b"\x48", message("d"), state=in_transaction(txn_id))
    assert answer.code == REJECTED
    assert min(refused_in(answer.error, 3)) == 1
    assert code_of(client.discharge(control, txn_id))[0] == REJECTED
    assert bodies(broker) == ["a", "b"]


def test_a_producer_of_full_batches_may_have_fewer_on_their_way(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    client = own(broker, max_input_bytes=1 << 20, link_credit_messages=100)
    link = client.sender("q")
    for _ in range(4):
        send(client, link, *[message("")] * MOST_MESSAGES)
    client.rest()

    # 256 messages of a batch are taken for 512 bytes each beside their payload: 128 KiB and more.
    assert 1 <= client.peer.remaining_credit(link) <= 8
    assert depth(broker, "q") == 4 * MOST_MESSAGES


def test_what_is_repeated_in_a_batch_is_taken_once(broker: Broker) -> None:
    client = own(broker)
    link = client.sender("q")
    batch = [message(str(number), identity=Identity("producer", 1, number)) for number in range(3)]

    assert send(client, link, *batch) == ACCEPTED_STATE
    assert send(client, link, *batch, message("3", identity=Identity("producer", 1, 3))) == ACCEPTED_STATE
    assert bodies(broker) == ["0", "1", "2", "3"]
