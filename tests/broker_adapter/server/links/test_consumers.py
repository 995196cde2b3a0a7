"""Links that the client of the protocol in memory receives on: what it gets, and how deliveries end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    MODIFIED,
    NO_STATE,
    REJECTED,
    RELEASED_STATE,
    State,
    Terminus,
)
from broker_adapter.amqp.messages.payloads import decode_received, received
from broker_adapter.amqp.messages.values import Symbol
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from tests.broker_adapter.engine.driving import depth
from tests.broker_adapter.server.protocol_client import OWN_CLIENT, Client, decoded, encoded, waiting
from tests.contracts.transports import engine


def test_a_message_goes_through_unchanged(client: Client) -> None:
    sent = encoded(
        {"k": [1, 2.5, None, b"\x00", "é"]},
        id=b"\x01\x02",
        correlation_id="c",
        subject="s",
        priority=9,
        durable=True,
        reply_to="answers",
        content_type="x/y",
        properties={"n": 1, "s": "t", "b": True},
        annotations={Symbol("x-opt-mine"): [1, 2]},
        instructions={Symbol("x-opt-once"): 1},
        user_id=b"me",
        group_id="g",
        group_sequence=3,
    )
    client.raw(client.sender("q"), sent)
    link = client.receiver("q", 1, name="r")
    (got,) = client.receive(link, 1)
    assert got.payload == sent
    client.settle(link, [got], FAILED_STATE)
    client.peer.credit(link, 1)
    again = client.receive(link, 2)[1]
    message = decoded(again.payload)
    assert (message.delivery_count, message.priority, message.durable) == (1, 9, True)
    bare = sent.index(b"\x00\x53\x71")  # what follows the header and must not be changed
    assert again.payload.endswith(sent[bare:])


@pytest.mark.parametrize(
    "sections",
    [
        b"\x00\x53\x75\xa0\x03abc" + b"\x00\x53\x75\xa0\x03def",
        b"\x00\x53\x76\xc0\x05\x02\x54\x01\x54\x02",
        b"\x00\x53\x77\x40",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x77\xa1\x01x",
        b"\x00\x53\x77\xa1\x01x" + b"\x00\x53\x78\xc1\x07\x02\xa3\x01f\xa1\x01v",
    ],
    ids=["two data", "sequence", "null", "long descriptor", "footer"],
)
def test_bodies_of_every_kind_keep_their_bytes(client: Client, sections: bytes) -> None:
    assert client.raw(client.sender("q"), sections) == ACCEPTED_STATE
    assert client.receive(client.receiver("q", 1, name="r"), 1)[0].payload == sections


@pytest.mark.parametrize(
    ("state", "count", "dead"),
    [
        (ACCEPTED_STATE, None, False),
        (RELEASED_STATE, 0, False),
        (FAILED_STATE, 1, False),
        (State(MODIFIED), 0, False),
        (State(REJECTED), None, True),
        (State(REJECTED, error=AmqpError("my:reason", "because")), None, True),
        (State(MODIFIED, failed=True, undeliverable=True), 1, False),
        (NO_STATE, 0, False),
    ],
    ids=["accepted", "released", "failed", "modified", "rejected", "with a reason", "undeliverable", "without a word"],
)
def test_a_delivery_ends_as_the_client_says(
    client: Client, broker: Broker, state: State, count: int | None, dead: bool
) -> None:
    client.send(client.sender("q"), "x", "y")
    link = client.receiver("q", 1, name="r")
    client.settle(link, client.receive(link, 1)[:1], state)
    client.close_link(link)  # what has failed is kept for it until then
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    found = {decoded(each.payload).body: decoded(each.payload).delivery_count for each in client.messages(other)}
    assert found.get("x") == count
    assert list(found) == (["y"] if count is None else ["x", "y"])
    assert depth(broker, "DLQ") == int(dead)


def test_a_presettled_consumer_has_nothing_to_give_back(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "a", "b")
    link = client.receiver("q", 1, presettled=True, name="r")
    assert client.opened(link).presettled
    assert client.receive(link, 1)[0].number == 0
    client.server.receive_end()
    client.rest()
    assert waiting(broker, "q") == ["b"]


def test_a_browser_gets_copies_and_its_end_is_told(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(5))
    link = client.receiver(Terminus("q", copies=True), 3, name="b")
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 100)
    client.drained(link)
    assert client.bodies(link) == [0, 1, 2, 3, 4]
    assert client.close_link(link).error is None
    assert depth(broker, "q") == 5


@pytest.mark.parametrize("copies", [False, True], ids=["consumer", "browser"])
def test_a_queue_does_not_seem_to_end_where_the_engine_fails(client: Client, broker: Broker, copies: bool) -> None:
    link = client.receiver(Terminus("q", copies=copies), 3, name="r")
    client.rest()
    broker._fail(RuntimeError("a fault of the software"), (), None)
    client.peer.drain(link)
    while client.pump():
        pass
    assert client.peer.remaining_credit(link) == 3


def test_a_time_to_live_of_0_that_is_there_expires_the_message_as_it_comes(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(expiry_queue="over")).open()
    sender = client.sender("q")
    ttl_0 = b"\x00\x53\x70\xc0\x04\x03\x40\x40\x43"

    assert client.raw(sender, ttl_0 + b"\x00\x53\x77\xa1\x01x") == ACCEPTED_STATE

    link = client.receiver("over", 1, name="over")
    assert decoded(client.receive(link, 1)[0].payload).body == "x"
    assert depth(client.broker, "q") == 0


def test_an_expired_message_is_not_delivered(client: Client) -> None:
    client.now_ms = time.time_ns() // 1_000_000
    producer = client.sender("q")
    client.send(producer, "short", ttl=0.001)
    client.send(producer, "long", ttl=1000)
    deadline = time.monotonic() + 0.01
    while time.monotonic() < deadline:
        client.rest()
    link = client.receiver("q", 9, name="r")
    client.drained(link)
    assert client.bodies(link) == ["long"]


def test_messages_of_our_own_format_are_plain_amqp_to_others(tmp_path: Path) -> None:
    with engine("amqp in memory", tmp_path / "data") as found:
        ours = found.open()
        ours.send("q", "hello", priority=6)
        client = Client(found.broker).open()
        link = client.receiver("q", 1, name="r")
        message = decoded(client.receive(link, 1)[0].payload)
        assert (message.body, message.address, message.priority) == ("hello", "q", 6)
        client.settle(link, client.messages(link))
        client.send(client.sender("q"), "back", priority=7, correlation_id="c")
        envelope = ours.receiver(queue("q"), 1).wait_for(1)[0].envelope
        assert (envelope.body, envelope.priority, envelope.correlation_id) == ("back", 7, "c")


def test_our_own_client_is_told_the_place_of_a_message(broker: Broker) -> None:
    client = Client(broker).open(capabilities=OWN_CLIENT)
    client.send(client.sender("q"), "x")
    payload = client.receive(client.receiver("q", 1, name="r"), 1)[0].payload
    assert (received(payload).position, received(payload).delivery_count) == (1, 0)
    assert decode_received(payload, queue("q")).body == "x"
