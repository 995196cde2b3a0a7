"""Credit and drains of consumers, and how much may be on its way to a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.events import Terminus
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.server.links.consumers import SLICE_MESSAGES
from tests.broker_adapter.amqp import frames
from tests.broker_adapter.engine.driving import WAIT, depth
from tests.broker_adapter.server.protocol_client import Client, encoded, put
from tests.broker_adapter.server.raw_client import RawClient
from tests.broker_adapter.server.served import Served


def test_a_consumer_gets_exactly_its_credit(client: Client) -> None:
    client.send(client.sender("q"), *range(10))
    link = client.receiver("q", name="r")
    client.rest()
    assert client.messages(link) == []
    client.peer.credit(link, 3)
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 1)
    client.peer.credit(link, 4)
    client.rest()
    assert client.bodies(link) == list(range(8))


def test_credit_beyond_a_slice_is_passed_on_in_slices(client: Client, broker: Broker) -> None:
    count = 2 * SLICE_MESSAGES + 500
    put(broker, "q", *[encoded(body) for body in range(count)])
    link = client.receiver("q", count - 1, name="r")
    client.receive(link, count - 1)
    client.rest()
    assert len(client.messages(link)) == count - 1


def test_credit_that_is_taken_back_is_not_used(client: Client) -> None:
    link = client.receiver("q", 10, name="r")
    client.rest()
    client.peer.credit(link, -7)
    client.rest()
    client.send(client.sender("q"), *range(10))
    client.rest()
    assert client.bodies(link) == [0, 1, 2]
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    assert client.bodies(other) == [3, 4, 5, 6, 7, 8, 9]


def test_messages_on_their_way_for_credit_that_is_taken_back_go_to_others(client: Client, broker: Broker) -> None:
    client.send(client.sender("q"), *range(5))
    link = client.receiver("q", name="r")
    client.pump()
    client.peer.credit(link, 5)
    client.to_server()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out all five
    client.peer.credit(link, -3)
    client.to_server()
    client.rest()
    assert client.bodies(link) == [0, 1]
    other = client.receiver("q", 9, name="other")
    client.drained(other)
    assert client.bodies(other) == [2, 3, 4]
    client.peer.credit(link, 1)
    client.send(client.sender("q", name="again"), "x")
    client.receive(link, 3)


def test_two_consumers_share_a_queue_and_each_keeps_to_its_credit(client: Client) -> None:
    client.send(client.sender("q"), *range(10))
    first = client.receiver("q", 3, name="first")
    second = client.receiver("q", 4, name="second")
    client.rest()
    assert sorted(client.bodies(first) + client.bodies(second)) == list(range(7))
    assert (len(client.messages(first)), len(client.messages(second))) == (3, 4)


@pytest.mark.parametrize("credit", [10, SLICE_MESSAGES + 1, 10 * SLICE_MESSAGES, 2**31 - 1])
@pytest.mark.parametrize("count", [0, 4])
def test_a_drain_brings_what_there_is_and_ends_the_credit(client: Client, credit: int, count: int) -> None:
    if count:
        client.send(client.sender("q"), *range(count))
    link = client.receiver("q", credit, name="r")
    client.drained(link)
    assert client.bodies(link) == list(range(count))


def test_a_drain_of_more_than_a_slice_brings_all_of_it(client: Client, broker: Broker) -> None:
    count = 2 * SLICE_MESSAGES + 7
    put(broker, "q", *[encoded(body) for body in range(count)])
    link = client.receiver("q", 10 * SLICE_MESSAGES, name="r")
    client.drained(link)
    assert len(client.messages(link)) == count


def test_a_drain_that_the_messages_use_up_ends_as_well(client: Client) -> None:
    client.send(client.sender("q"), *range(4))
    link = client.receiver("q", 3, name="r")
    client.drained(link)
    assert client.bodies(link) == [0, 1, 2]
    client.peer.credit(link, 1)
    assert len(client.receive(link, 4)) == 4


def test_a_drain_that_comes_with_the_attach_is_answered(client: Client) -> None:
    client.send(client.sender("q"), "x")
    link = client.peer.attach_receiver(client.session, "r", Terminus("q"), Terminus())
    client.peer.credit(link, 5)
    client.drained(link)
    assert client.bodies(link) == ["x"]


def test_a_consumer_goes_on_after_a_drain(client: Client) -> None:
    link = client.receiver("q", 5, name="r")
    producer = client.sender("q")
    for body in range(3):
        client.drained(link)
        client.send(producer, body)
        client.rest()
        assert len(client.messages(link)) == body
        client.peer.credit(link, 5)
        client.receive(link, body + 1)
    assert client.bodies(link) == [0, 1, 2]


def test_a_client_that_takes_no_more_costs_a_bounded_amount(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    body = b"x" * 8192
    put(broker, "q", *[encoded(body)] * 200)
    client = Client(broker, max_output_bytes=65536).open()
    link = client.receiver("q", name="r")
    client.server.pause()
    client.peer.credit(link, 200)
    client.rest()
    assert client.messages(link) == []
    client.server.resume()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out what it may
    client.server.pause()
    client.rest()
    got = len(client.messages(link))
    assert 0 < got <= 8  # 65,536 bytes
    client.server.resume()
    broker.call(c.Statistics(), WAIT)
    client.server.pause()
    client.rest()
    assert 0 < len(client.messages(link)) - got <= 16  # what the engine had, and one slice more
    got = len(client.messages(link))
    client.peer.drain(link)
    client.rest()
    assert len(client.messages(link)) == got
    client.server.resume()
    client.until(lambda: client.peer.remaining_credit(link) == 0)
    assert len(client.messages(link)) == 200


@pytest.mark.parametrize("fields", [{}, {"copies": True}], ids=["consumer", "browser"])
def test_large_messages_are_handed_out_few_at_a_time(make_broker: Callable[..., Broker], fields: Any) -> None:
    broker = make_broker()
    put(broker, "q", *[encoded(str(number) * 10_000) for number in range(100)])
    client = Client(broker, max_output_bytes=65536).open()
    link = client.receiver(Terminus("q", **fields), name="r")
    client.peer.credit(link, 1000)
    client.to_server()
    broker.call(c.Statistics(), WAIT)  # the engine has handed out what it may
    client.server.pause()
    client.rest()
    assert len(client.messages(link)) == 7
    client.server.resume()
    client.drained(link)
    assert [body[:1] for body in client.bodies(link)] == [str(number)[0] for number in range(100)]


def test_links_share_what_a_connection_may_have_on_its_way(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    client = Client(broker, max_output_bytes=1 << 20).open()
    links = [client.receiver(f"q{number}", 1000, name=f"r{number}") for number in range(16)]
    client.rest()
    client.server.pause()
    for number in range(16):
        put(broker, f"q{number}", *[encoded("x" * 10_000)] * 100)
    client.rest()
    assert sum(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues) * 10_000 < 4 << 20
    client.server.resume()
    client.until(lambda: all(len(client.messages(link)) == 100 for link in links))


def test_a_session_that_takes_no_more_costs_a_bounded_amount(make_broker: Callable[..., Broker]) -> None:
    count = 200
    broker = make_broker()
    put(broker, "q", *[encoded(f"{number:010000}") for number in range(count)])
    client = Client(broker, max_output_bytes=65536).open()
    client.peer._endpoints.sessions[client.session].endpoint.incoming_capacity = 2 << 20  # two frames
    link = client.receiver("q", name="r", presettled=True)
    client.peer.credit(link, count)
    client.to_server()
    for _ in range(20):
        broker.call(c.Statistics(), WAIT)
        client.peer.receive(client.server.pending_output())  # and takes nothing out of the session
    assert count - depth(broker, "q") <= 20
    client.until(lambda: len(client.messages(link)) == count)
    assert [int(body[-9:]) for body in client.bodies(link)] == list(range(count))


@pytest.mark.parametrize("credit", [0, 1, 2, 3])
def test_a_foreign_client_gets_a_flow_for_each_drain(serve: Callable[..., Served], credit: int) -> None:
    served = serve()
    put(served.broker, "q", encoded("x"), encoded("y"))
    with RawClient(served.port, envelopes=False) as client:
        client.send(frames.begin(0), frames.attach(0, 0, "l", receives=True))
        client.send(frames.flow(0, 0, credit, drain=True))
        client.until(lambda: flows(client) == [(credit, 0)])
        client.send(frames.flow(0, 0, credit, drain=True, count=credit))
        client.until(lambda: flows(client) == [(credit, 0), (2 * credit, 0)])
        assert len(client.payloads) == min(2, 2 * credit)


def flows(client: RawClient) -> list[tuple[Any, Any]]:
    """The delivery-count and the credit of each flow about a link."""
    fields: list[Any] = list(client.fields(frames.FLOW))
    return [(each[5], each[6]) for each in fields if len(each) > 5 and each[4] is not None]
