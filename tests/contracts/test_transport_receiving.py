"""Links that receive and sessions at their edges: no sink, no link, no credit, settled twice."""

from __future__ import annotations

import time

import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.destination import topic
from broker_adapter.errors import IllegalStateException, InvalidDestinationException
from broker_adapter.transport import ReceiverSpec
from tests.contracts.calls import TEMPORARY, Q, depth, texts
from tests.contracts.transports import WAIT, Client, Engine, eventually, message

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
