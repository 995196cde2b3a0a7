"""Credit and drains between two peers."""

from __future__ import annotations

from typing import Any

from broker_adapter.amqp.events import LinkFlow
from broker_adapter.amqp.messages.values import Reader
from broker_adapter.amqp.proton_engine.peer import Peer
from tests.broker_adapter.amqp.frames import FLOW, TRANSFER, flow, split
from tests.broker_adapter.amqp.pair import Pair, every, last, sending_peer


def test_credit_that_is_given_while_a_drain_is_to_be_answered_is_told() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 5, drain=True, window=0), window=0)
    server.send(first.link, b"x" * 1_000_000)
    server.drained(first.link)
    server.receive(flow(0, 0, 7, drain=True, window=0))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, 6, True)
    assert server.remaining_credit(first.link) == 6
    server.drained(first.link)
    server.receive(flow(0, 0, 7, window=0))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, 6, False)
    server.receive(flow(0, window=1_000))
    server.pending_output()
    assert server.remaining_credit(first.link) == 6


def test_a_drain_is_answered_behind_the_messages_that_use_up_the_credit() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 2, drain=True))
    for payload in (b"a", b"x" * 1_000_000):
        server.send(first.link, payload)
    server.drained(first.link)

    assert answers(server)[-3:] == ["transfer", "transfer", ("flow", 2, 0)]


def test_a_drain_that_waits_for_the_peers_window_is_answered_behind_it() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 1, drain=True, window=0), window=0)
    server.send(first.link, b"a")
    server.drained(first.link)
    assert answers(server) == []

    server.receive(flow(0, window=10))
    server.events()
    assert answers(server) == ["transfer", ("flow", 1, 0)]


def test_a_drain_without_credit_is_answered_each_time() -> None:
    server, (first, _) = sending_peer()
    for _ in range(2):
        server.receive(flow(0, 0, 0, drain=True))
        assert last(server.events(), LinkFlow) == LinkFlow(first.link, 0, True)
        server.drained(first.link)
        assert answers(server) == [("flow", 0, 0)]
        assert every(server.events(), LinkFlow) == []


def test_credit_after_such_an_answer_counts_from_there() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 1, drain=True))
    server.send(first.link, b"a")
    server.drained(first.link)
    assert answers(server) == ["transfer", ("flow", 1, 0)]

    server.receive(flow(0, 0, 2, count=1))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, 2, False)
    for payload in (b"b", b"c"):
        server.send(first.link, payload)
    assert answers(server) == ["transfer", "transfer"]
    assert server.remaining_credit(first.link) == 0


def test_a_drain_of_a_link_that_closes_meanwhile_is_not_answered() -> None:
    server, (first, _) = sending_peer(flow(0, 0, 1, drain=True))
    server.drained(first.link)
    server.close_link(first.link)

    assert "flow" not in str(answers(server))


def answers(server: Peer) -> list[Any]:
    """What a server says: of a flow, with delivery-count and credit; frames of one message count once."""
    said: list[Any] = []
    for each in split(server.pending_output()):
        code, fields = each[10], Reader(each[8:]).value().value
        if code == FLOW and fields[4] is not None:
            said.append(("flow", fields[5], fields[6]))
        elif code == TRANSFER and fields[1] is not None:
            said.append("transfer")
    return said


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
