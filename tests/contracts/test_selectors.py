"""Selectors over every transport: on queues, topics and browsers, over the whole backlog."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.errors import InvalidSelectorException
from broker_adapter.transport import Delivery, Subscription
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Engine, eventually, message


def bodies(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.envelope.body for delivery in deliveries]


def send(client: Client, *colours: str, to: Any = "q") -> None:
    """One message for each colour, with its number behind it as the body."""
    for number, colour in enumerate(colours):
        client.send(to, f"{colour} {number}", properties={"colour": colour, "number": number})


def test_a_consumer_gets_what_its_selector_selects_and_leaves_the_rest(client: Client) -> None:
    send(client, "red", "blue", "red", "green")
    assert bodies(client.drained("q", selector="colour = 'red'")) == ["red 0", "red 2"]
    assert bodies(client.drained("q", selector="number > 2 OR colour = 'blue'")) == ["blue 1", "green 3"]


def test_what_arrives_later_is_matched_on_arrival(client: Client) -> None:
    receiver = client.receiver(queue("q"), 10, selector="colour = 'red'")
    send(client, "blue", "red", "blue", "red")
    assert bodies(receiver.wait_for(2)) == ["red 1", "red 3"]
    assert client.bodies("q") == ["blue 0", "blue 2"]


def test_a_selector_finds_what_stands_behind_the_window(make_engine: MakeEngine) -> None:
    behind = 50
    engine = make_engine()
    engine.broker._state.directory.memory._most_each = behind
    client = engine.open()
    send(client, *["blue"] * behind, "red", *["blue"] * 20, "red")
    plain = client.receiver(queue("q"), 5)
    plain.wait_for(5)
    assert bodies(client.drained("q", selector="colour = 'red'")) == [f"red {behind}", f"red {behind + 21}"]
    assert bodies(client.drained("q"))[-1] == f"blue {behind + 20}"


def test_two_selectors_share_a_queue(client: Client) -> None:
    red = client.receiver(queue("q"), 10, selector="colour = 'red'")
    blue = client.receiver(queue("q"), 10, selector="colour = 'blue'")
    send(client, "red", "blue", "red")
    assert bodies(red.wait_for(2)) == ["red 0", "red 2"]
    assert bodies(blue.wait_for(1)) == ["blue 1"]


def test_headers_can_be_selected(client: Client) -> None:
    client.send("q", "a", type="car", priority=7, correlation_id="c-1", message_id="ID:1", sent_at_ms=1000)
    client.send("q", "b", type="boat", persistent=False, group_id="g", group_sequence=3)
    for selector, expected in {
        "JMSType = 'car' AND JMSPriority > 6": ["a"],
        "JMSCorrelationID = 'c-1' AND JMSMessageID = 'ID:1' AND JMSTimestamp = 1000": ["a"],
        "JMSDeliveryMode = 'PERSISTENT'": ["a"],
        "JMSDeliveryMode = 'NON_PERSISTENT'": ["b"],
        "JMSXGroupID = 'g' AND JMSXGroupSeq = 3": ["b"],
        "JMSPriority = 4": ["b"],
    }.items():
        assert bodies(client.drained("q", selector=selector, browse=True)) == expected, selector


def test_the_delivery_count_can_be_selected(client: Client) -> None:
    client.send("q", "a", "b")
    receiver = client.receiver(queue("q"), 1)
    client.settle(receiver.wait_for(1), Outcome.MODIFIED)
    found = client.receiver(queue("q"), 10, selector="JMSXDeliveryCount = 2")
    assert bodies(found.wait_for(1)) == ["a"]


def test_a_browser_shows_what_its_selector_selects(client: Client) -> None:
    send(client, "red", "blue", "red")
    assert bodies(client.drained("q", browse=True, selector="colour = 'red'")) == ["red 0", "red 2"]
    assert len(client.bodies("q")) == 3


def test_a_browser_stops_at_its_credit(client: Client) -> None:
    send(client, *["red", "blue"] * 10)
    receiver = client.receiver(queue("q"), 3, selector="colour = 'blue'", browse=True)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies() == ["blue 1", "blue 3", "blue 5"]
    client.transport.credit(receiver.link, 100)
    client.transport.drain(receiver.link, WAIT)
    assert receiver.bodies()[3:] == [f"blue {number}" for number in range(7, 20, 2)]


def test_what_comes_back_is_for_whoever_wants_it(client: Client) -> None:
    send(client, "red", "blue")
    plain = client.receiver(queue("q"), 2)
    held = plain.wait_for(2)
    red = client.receiver(queue("q"), 10, selector="colour = 'red'")
    client.transport.drain(red.link, WAIT)
    assert red.bodies() == []
    client.transport.credit(red.link, 10)
    client.settle(held, Outcome.RELEASED)
    assert bodies(red.wait_for(1)) == ["red 0"]


def test_a_subscription_takes_in_only_what_its_selector_selects(client: Client) -> None:
    receiver = client.receiver(topic("t"), 10, selector="colour = 'red'")
    everything = client.receiver(topic("t"), 10)
    send(client, "blue", "red", to=topic("t"))
    assert bodies(receiver.wait_for(1)) == ["red 1"]
    assert bodies(everything.wait_for(2)) == ["blue 0", "red 1"]


def test_a_message_in_a_transaction_goes_where_it_is_selected(client: Client) -> None:
    receiver = client.receiver(topic("t"), 10, selector="colour = 'red'")
    link = client.sender(topic("t"))
    sends = [(link, message(topic("t"), colour, properties={"colour": colour})) for colour in ("blue", "red")]
    client.transport.commit(1, 1, sends, [], WAIT)
    assert bodies(receiver.wait_for(1)) == ["red"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"selector": "colour = 'red'"}, {"selector": "colour = 'blue'"}, ["blue 1"]),
        ({"selector": "colour = 'red'"}, {}, ["red 0", "blue 1", "mine"]),
        ({}, {"selector": "colour = 'blue'"}, ["blue 1"]),
        ({"no_local": True}, {}, ["red 0", "blue 1", "mine"]),
        ({}, {"no_local": True}, ["red 0", "blue 1"]),
    ],
)
def test_another_selector_or_no_local_replaces_a_durable_subscription(
    engine: Engine, before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    client, other = engine.open(client_id="c"), engine.open()
    first = client.receiver(topic("t"), subscription=subscription, **before)
    client.transport.detach(first.link, WAIT)
    send(other, "red", "red", to=topic("t"))
    same = client.receiver(topic("t"), 1, subscription=subscription, **before)
    assert bodies(same.wait_for(1)) == ["red 0"]  # and one more waits
    client.settle(same.deliveries)
    client.transport.detach(same.link, WAIT)
    changed = client.receiver(topic("t"), 10, subscription=subscription, **after)
    client.transport.drain(changed.link, WAIT)
    assert changed.bodies() == []
    client.transport.detach(changed.link, WAIT)
    send(other, "red", "blue", to=topic("t"))
    client.send(topic("t"), "mine", properties={"colour": "grey"})
    changed = client.receiver(topic("t"), 10, subscription=subscription, **after)
    client.transport.drain(changed.link, WAIT)
    assert changed.bodies() == expected


def test_a_durable_subscription_keeps_its_selector_over_a_restart(make_engine: MakeEngine) -> None:
    subscription = Subscription("s", durable=True, shared=False)
    engine = make_engine("")
    client = engine.open(client_id="c")
    receiver = client.receiver(topic("t"), subscription=subscription, selector="colour = 'red'")
    client.transport.detach(receiver.link, WAIT)
    engine.close()
    client = make_engine("").open(client_id="c")
    send(client, "blue", "red", to=topic("t"))
    again = client.receiver(topic("t"), 10, subscription=subscription, selector="colour = 'red'")
    assert bodies(again.wait_for(1)) == ["red 1"]
    assert len(again.deliveries) == 1


@pytest.mark.parametrize("browse", [False, True])
def test_an_invalid_selector_is_refused_with_the_place_of_the_fault(client: Client, browse: bool) -> None:
    with pytest.raises(InvalidSelectorException, match="column 12"):
        client.receiver(queue("q"), selector="colour = 1 =", browse=browse)
    client.send("q", "the connection goes on")


def test_dead_letters_can_be_selected_by_their_reason(client: Client) -> None:
    client.send("q", "a")
    receiver = client.receiver(queue("q"), 1)
    dead = client.receiver(queue("DLQ"), 10, selector="JMS_HOLDFAST_DEAD_LETTER_QUEUE = 'q'")
    other = client.receiver(queue("DLQ"), 10, selector="JMS_HOLDFAST_DEAD_LETTER_QUEUE = 'r'")
    client.settle(receiver.wait_for(1), Outcome.REJECTED)
    assert bodies(dead.wait_for(1)) == ["a"]
    eventually(lambda: client.transport.request("statistics", {}, WAIT)["dead_lettered"] == 1)
    assert other.bodies() == []
