"""Credit and drains between two peers."""

from __future__ import annotations

from broker_adapter.amqp.events import LinkFlow
from tests.broker_adapter.amqp.frames import flow
from tests.broker_adapter.amqp.pair import Pair, every, last, sending_peer


def test_credit_that_is_given_while_a_drain_is_to_be_answered_is_told() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 5, drain=True, window=0), window=0)
    server.send(first.link, b"x" * 1_000_000)
    server.drained(first.link)
    server.receive(flow(0, 0, 5, drain=True, window=0))
    assert every(server.events(), LinkFlow) == []
    server.receive(flow(0, 0, 7, drain=True, window=0))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, 6, True)
    assert server.remaining_credit(first.link) == 6
    server.drained(first.link)
    server.receive(flow(0, 0, 7, window=0))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, 6, False)
    server.receive(flow(0, window=1_000))
    server.pending_output()
    assert server.remaining_credit(first.link) == 6


def test_drain_returns_the_credit(pair: Pair) -> None:
    client, server = pair.receiver()
    assert pair.client.drain(client) is False
    pair.client.credit(client, 10)
    pair.pump()
    pair.server.send(server, b"x")
    assert pair.client.drain(client) is True
    pair.pump()
    assert last(pair.server_events, LinkFlow).drain is True
    pair.server.drained(server)
    pair.pump()

    assert last(pair.client_events, LinkFlow).credit == 0
    assert pair.client.remaining_credit(client) == 0
    pair.client.credit(client, 3)
    pair.pump()
    assert last(pair.server_events, LinkFlow) == LinkFlow(server, 3, False)
