"""What another client's ``modified`` does: annotations, delays, and deliveries that are not for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from broker_adapter.amqp.events import FAILED_STATE, MODIFIED, State
from broker_adapter.amqp.messages.jms_mapping import DELIVERY_DELAY
from broker_adapter.amqp.messages.payloads import decode_received
from broker_adapter.amqp.messages.values import Symbol, UInt
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.engine.driving import depth
from tests.broker_adapter.server.protocol_client import OWN_CLIENT, Client, decoded, in_transaction, put
from tests.broker_adapter.server.raw_client import RawClient
from tests.broker_adapter.server.served import Served

WHY, TRY, LONG = Symbol("x-opt-why"), Symbol("x-opt-try"), Symbol("x-opt-long")
NOT_HERE = State(MODIFIED, failed=True, undeliverable=True)


def modified(**fields: Any) -> State:
    return State(MODIFIED, failed=True, **fields)


def again(client: Client, link: int, state: State) -> proton.Message:
    """Give a message back, and receive the next one."""
    (*_, last) = client.messages(link) or client.receive(link, 1)
    count = len(client.messages(link))
    client.settle(link, [last], state)
    client.peer.credit(link, 1)
    return decoded(client.receive(link, count + 1)[-1].payload)


@pytest.mark.parametrize("text", ["short", "longer than what is not read field by field"])
def test_annotations_are_seen_with_their_types_by_the_next_client(client: Client, text: str) -> None:
    old = {proton.symbol("x-opt-old"): "kept", TRY: proton.symbol("old")}
    client.send(client.sender("q"), "x", annotations={proton.symbol(str(key)): value for key, value in old.items()})
    link = client.receiver("q", 1, name="r")
    message = again(client, link, modified(annotations={TRY: UInt(1)}))
    assert (message.annotations, type(message.annotations["x-opt-try"])) == ({"x-opt-old": "kept", TRY: 1}, proton.uint)
    message = again(client, link, modified(annotations={WHY: text, TRY: Symbol("s")}))
    assert message.annotations == {"x-opt-old": "kept", TRY: "s", WHY: text}
    assert type(message.annotations["x-opt-try"]) is proton.symbol
    assert (message.delivery_count, message.body) == (2, "x")


def test_a_message_in_our_own_form_has_them_as_well_and_our_own_client_as_properties(broker: Broker) -> None:
    client = Client(broker).open()
    put(broker, "q", pack(Envelope(queue("q"), BodyKind.TEXT, "x", {"p": 1})), format=ENVELOPE_FORMAT)
    link = client.receiver("q", 1, name="r")
    message = again(client, link, modified(annotations={WHY: "busy", TRY: UInt(2), LONG: [1]}))
    assert message.annotations["x-opt-why"] == "busy"
    assert message.annotations["x-opt-long"] == [1]
    client.settle(link, client.messages(link)[-1:], FAILED_STATE)

    own = Client(broker).open("own", OWN_CLIENT)
    (delivery,) = own.receive(own.receiver("q", 1, name="r"), 1)
    properties = decode_received(delivery.payload).properties
    assert properties == {"p": 1, "JMS_AMQP_MA_x-opt-why": "busy", "JMS_AMQP_MA_x-opt-try": 2}


def test_they_are_in_the_dead_letter_queue_beside_the_reason(make_broker: Callable[..., Broker]) -> None:
    client = Client(make_broker(max_deliveries=1)).open()
    client.send(client.sender("q"), "x")
    link = client.receiver("q", 1, name="r")
    client.settle(link, client.receive(link, 1), modified(annotations={WHY: "busy"}))
    dead = decoded(client.receive(client.receiver("DLQ", 1, name="dead"), 1)[0].payload)
    assert dead.annotations == {WHY: "busy"}
    assert dead.properties["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == 1


def test_too_many_are_left_out_and_the_next_client_is_told(client: Client) -> None:
    client.send(client.sender("q"), "x")
    link = client.receiver("q", 1, name="r")
    message = again(client, link, modified(annotations={WHY: "x" * 5_000}))
    ((name, text),) = message.annotations.items()
    assert name == "x-opt-holdfast-left-out"
    assert "the limit is 4096" in text


def test_in_a_transaction_they_are_added_at_its_discharge(client: Client) -> None:
    client.send(client.sender("q"), "x")
    control = client.coordinator()
    txn_id = client.declare(control)
    link = client.receiver("q", 1, name="r")
    client.settle(link, client.receive(link, 1), in_transaction(txn_id, State(MODIFIED, undeliverable=True)))
    other = client.receiver("q", 1, name="other")
    client.rest()
    assert client.messages(other) == []
    client.discharge(control, txn_id)
    assert client.receive(other, 1)


def test_a_delay_is_obeyed(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "first", "second")
    link = client.receiver("q", 1, name="r")
    message = again(client, link, modified(annotations={DELIVERY_DELAY: UInt(3_600_000)}))
    assert message.body == "second"
    client.peer.credit(link, 5)
    client.drained(link)
    assert client.bodies(link) == ["first", "second"]
    assert depth(broker, "q") == 2


def test_what_is_undeliverable_at_one_link_goes_to_another(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), "x", "y")
    first = client.receiver("q", 1, name="first")
    client.settle(first, client.receive(first, 1), NOT_HERE)
    client.peer.credit(first, 5)
    client.receive(first, 2)
    client.rest()
    assert client.bodies(first) == ["x", "y"]
    assert depth(broker, "DLQ") == 0
    second = client.receiver("q", 5, name="second")
    message = decoded(client.receive(second, 1)[0].payload)
    assert (message.body, message.delivery_count) == ("x", 1)


def test_a_small_modified_by_hand_is_read_like_a_large_one(serve: Callable[..., Served]) -> None:
    served = serve()
    put(served.broker, "q", proton.Message(body="x").encode())
    with RawClient(served.port, envelopes=False) as client:
        client.send(frames.begin(0), frames.attach(0, 0, "l", receives=True), frames.flow(0, 0, 5))
        client.until(lambda: len(client.payloads) == 1)
        for number, value in enumerate((UInt(1), "y" * 100)):
            client.send(frames.disposition(0, True, number, None, MODIFIED, True, False, {Symbol("a"): value}))
            client.until(lambda: len(client.payloads) == number + 2)  # noqa: B023 - in turn
        found = [decoded(each).annotations for each in client.payloads]
    assert found == [None, {"a": 1}, {"a": "y" * 100}]
    assert type(found[1]["a"]) is proton.uint
