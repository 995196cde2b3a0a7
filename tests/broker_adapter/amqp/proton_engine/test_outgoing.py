"""Transfers that a peer sends, at once and in parts, and their answers."""

from __future__ import annotations

import pytest
from cproton_ffi import lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    DECLARED,
    FAILED_STATE,
    MODIFIED,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    Incoming,
    LinkFlow,
    LinkRemoteOpen,
    SessionRemoteClose,
    State,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.messages.values import Reader, Symbol, UInt
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from tests.broker_adapter.amqp.frames import END, FLOW, HEADER, attach, begin, detach, flow, frame, open_frame, split
from tests.broker_adapter.amqp.pair import Pair, arrived, every, last, links_of_one_session, sending_peer, transfers_in


def test_settled_messages_need_no_answer(pair: Pair) -> None:
    client, server = pair.sender()

    assert pair.client.send(client, b"x", settled=True) == 0
    pair.pump()

    assert arrived(pair) == [Incoming(0, b"x", None)]
    pair.server.settle(server, [0], ACCEPTED_STATE)
    assert pair.server.pending_output() == b""


@pytest.mark.parametrize(
    "state",
    [
        ACCEPTED_STATE,
        RELEASED_STATE,
        FAILED_STATE,
        State(MODIFIED, failed=True, undeliverable=True, annotations={Symbol("why"): "x"}),
        State(REJECTED, error=AmqpError("amqp:not-found", "gone", {})),
        State(REJECTED),
        State(DECLARED, txn_id=b"t1"),
        State(TRANSACTIONAL, txn_id=b"t1", outcome=ACCEPTED_STATE),
        State(TRANSACTIONAL, txn_id=b"t1", outcome=FAILED_STATE),
        State(TRANSACTIONAL, txn_id=b"t1", outcome=State(REJECTED, error=AmqpError("a:b", "c"))),
        State(TRANSACTIONAL, txn_id=b"t1"),
    ],
)
def test_every_outcome_reaches_the_sender(pair: Pair, state: State) -> None:
    client, server = pair.sender()
    number = pair.client.send(client, b"x")
    pair.pump()
    pair.server.settle(server, [arrived(pair)[0].number], state)
    pair.pump()

    assert last(pair.client_events, Dispositions) == Dispositions(client, [number], state)


def test_a_message_sent_in_a_transaction_says_so(pair: Pair) -> None:
    client, _ = pair.sender()
    pair.client.send(client, b"x", state=State(TRANSACTIONAL, txn_id=b"t1"))
    pair.client.send(client, b"y")
    pair.pump()

    assert [delivery.state for delivery in arrived(pair)] == [State(TRANSACTIONAL, txn_id=b"t1"), None]


def test_messages_of_many_transactions_at_once_keep_their_own_states(pair: Pair) -> None:
    outcomes = None, ACCEPTED_STATE, RELEASED_STATE, FAILED_STATE, State(REJECTED, error=AmqpError("a:b", "c"))
    outcomes += (FAILED_STATE._replace(annotations={Symbol("x-opt-k"): 5}),)
    states = [
        State(TRANSACTIONAL, txn_id=number.to_bytes(2) * length, outcome=outcome)
        for number in range(100)
        for length in (1, 100, 128)
        for outcome in outcomes
    ] * 2
    client, server = pair.sender(credit=len(states))
    numbers = [pair.client.send(client, b"x", state=state) for state in states]
    pair.pump()
    deliveries = arrived(pair)
    assert [delivery.state for delivery in deliveries] == states

    for delivery, state in zip(deliveries, reversed(states), strict=True):
        pair.server.settle(server, [delivery.number], state)
    pair.pump()
    told = [event for event in pair.client_events if isinstance(event, Dispositions)]
    assert {number: event.state for event in told for number in event.numbers} == dict(
        zip(numbers, reversed(states), strict=True)
    )


def test_the_longest_id_of_a_transaction_fits_into_the_smallest_frame() -> None:
    pair = Pair(server=PeerLimits(max_frame_bytes=512)).opened()
    client, _ = pair.sender()
    longest = State(TRANSACTIONAL, txn_id=b"t" * 256)
    pair.client.send(client, b"x" * 10_000, state=longest)
    pair.pump()
    assert [(len(delivery.payload), delivery.state) for delivery in arrived(pair)] == [(10_000, longest)]

    pair.client.send(client, b"x", state=State(TRANSACTIONAL, txn_id=b"t" * 257))
    pair.pump()
    assert "is not binary of at most 256 bytes" in str(last(pair.server_events, TransportFailed).error)


def test_links_that_send_in_parts_take_turns(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.amqp.proton_engine.buffers.MAX_KEPT_BYTES", 0)
    (_, busy), (quiet, server_quiet) = links_of_one_session(pair, 2)
    for _ in range(100):
        pair.server.send(busy, b"b" * 5_000)
    pair.server.send(server_quiet, b"q" * 5_000)
    pair.pump()
    order = [event.link for event in every(pair.client_events, Transfers) for _ in event.deliveries]
    assert len(order) == 101
    assert order.index(quiet) < 5


def test_a_message_that_is_settled_before_all_of_it_has_come_is_not_sent_on(pair: Pair) -> None:
    (first, server_first), (second, server_second) = links_of_one_session(pair, 2)
    large = pair.server.send(server_first, b"l" * 1_000_000)
    behind = pair.server.send(server_first, b"behind")
    while pair.client._endpoints.links[first].unfinished is None:
        pair.client.receive(pair.server.pending_output(1))
        pair.client_events += pair.client.events()
    unfinished = pair.client._endpoints.links[first].unfinished
    lib.pn_delivery_update(unfinished, lib.PN_RELEASED)
    lib.pn_delivery_settle(unfinished)
    pair.server.receive(pair.client.pending_output())
    pair.server_events += pair.server.events()
    assert last(pair.server_events, Dispositions).numbers == [large]
    for _ in range(3):  # proton uses the object of the first one again
        pair.server.send(server_second, b"another")
    pair.server.close_link(server_first)
    pair.pump()
    arrived_second = [
        bytes(delivery.payload)
        for event in every(pair.client_events, Transfers)
        if event.link == second
        for delivery in event.deliveries
    ]
    assert arrived_second == [b"another"] * 3
    assert behind not in pair.server.unsettled(server_second)
    assert pair.server.waiting_bytes() == 0


def test_large_messages_of_several_links_and_sessions_take_turns() -> None:
    pair = Pair().opened()
    links = [pair.sender() for _ in range(3)]
    for client, _ in links:
        for size in (400_000, 10, 300_000):
            pair.client.send(client, b"x" * size)
    pair.pump()

    got: dict[int, list[int]] = {}
    for event in every(pair.server_events, Transfers):
        got.setdefault(event.link, []).extend(len(delivery.payload) for delivery in event.deliveries)
    assert got == {server: [400_000, 10, 300_000] for _, server in links}


def test_a_session_that_takes_nothing_keeps_what_is_sent_out_of_proton() -> None:
    """The rest goes out as the window opens; credit and drain count what proton has not got yet."""
    server = Peer(PeerLimits(), server=True)
    server.open("server")
    server.receive(
        HEADER + open_frame() + begin(0, window=0) + attach(0, 0, "r", receives=True) + flow(0, 0, 5, window=0)
    )
    opened = last(server.events(), LinkRemoteOpen)
    server.accept_link(opened.link, opened.source, opened.target)
    server.pending_output()
    for size in (300_000, 10):
        server.send(opened.link, b"x" * size)
    assert transfers_in(server.pending_output()) == []
    assert server.waiting_bytes() == server.outgoing_bytes(opened.session) == 300_010
    assert server.remaining_credit(opened.link) == 3
    server.receive(flow(0, 0, 5, drain=True, window=0))
    server.drained(opened.link)
    assert server.remaining_credit(opened.link) == 0
    assert transfers_in(server.pending_output()) == []

    server.receive(flow(0, window=3))
    assert len(transfers_in(server.pending_output())) == 3
    assert 0 < server.waiting_bytes() < 300_010
    server.receive(frame(0, FLOW, UInt(3), UInt(100), UInt(0), UInt(100)))
    said = server.pending_output()
    assert len(transfers_in(said)) == 3  # two parts of the large one, and the small one
    assert server.waiting_bytes() == 0
    (returned,) = [each for each in split(said) if each[8:11] == b"\x00\x53\x13"]
    assert Reader(returned, 8).value().value[4:7] == [0, 5, 0]  # handle, delivery count, credit


def test_what_proton_has_not_got_is_dropped_with_its_link() -> None:
    server = Peer(PeerLimits(), server=True)
    server.open("server")
    server.receive(
        HEADER + open_frame() + begin(0, window=1) + attach(0, 0, "r", receives=True) + flow(0, 0, 5, window=1)
    )
    opened = last(server.events(), LinkRemoteOpen)
    server.accept_link(opened.link, opened.source, opened.target)
    for _ in range(2):
        server.send(opened.link, b"x" * 1_000_000)
    server.pending_output()
    server.receive(detach(0, 0))
    server.events()
    server.close_link(opened.link)
    server.pending_output()

    assert server.waiting_bytes() == 0
    assert "links=0" in repr(server)


@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("closed", ["link", "session"])
def test_what_the_peer_has_not_got_as_a_whole_is_known_when_it_closes(window: int, closed: str) -> None:
    server, (first, _) = sending_peer(flow(0, 0, 9, window=window), window=window)
    sizes = (100, 1_000_000, 200, 300, 1_000_000)
    numbers = [server.send(first.link, b"x" * size, settled=size == 200) for size in sizes]
    server.pending_output()
    server.receive(detach(0, 0) if closed == "link" else frame(0, END))
    events = server.events()
    if closed == "link":
        unsent = server.withdraw(first.link)
        assert server.withdraw(first.link) == []
        assert server.unsettled(first.link) == ([] if window == 0 else [numbers[0]])
    else:
        unsent = last(events, SessionRemoteClose).unsent[first.link]

    assert unsent == [each for each in numbers if each][0 if window == 0 else 1 :]
    assert server.waiting_bytes() == server.outgoing_bytes(first.session) == 0


def test_messages_of_a_closed_link_do_not_keep_the_window_of_its_session_for_themselves() -> None:
    server, (first, second) = sending_peer(flow(0, 0, 9, window=0), flow(0, 1, 9, window=0), window=0)
    for _ in range(9):
        server.send(first.link, b"x" * 10_000)
    server.send(second.link, b"y" * 1_000_000)
    server.pending_output()
    server.receive(detach(0, 0))
    server.events()
    server.withdraw(first.link)
    server.close_link(first.link)
    server.pending_output()
    server.receive(flow(0, window=1_000))
    said = server.pending_output()

    assert sum(each.count(b"y") for each in transfers_in(said)) >= 1_000_000
    assert server.waiting_bytes() == 0


@pytest.mark.parametrize("window", [0, 1])
def test_a_link_is_closed_though_a_message_of_it_has_begun(window: int) -> None:
    server, (first, _) = sending_peer(flow(0, 0, 9, window=window), window=window)
    for _ in range(2):
        server.send(first.link, b"x" * 1_000_000)
    server.pending_output()
    server.close_link(first.link, AmqpError("amqp:resource-deleted", "gone"))
    server.receive(flow(0, window=1_000))
    said = server.pending_output()

    assert len([each for each in split(said) if each[8:11] == b"\x00\x53\x16"]) == 1
    assert server.waiting_bytes() == 0


def test_messages_without_credit_do_not_stop_those_of_other_links() -> None:
    """A receiver may take its credit back, behind which messages wait."""
    server, (first, second) = sending_peer(flow(0, 0, 9, window=0), flow(0, 1, 9, window=0), window=0)
    numbers = [server.send(first.link, b"x" * size) for size in (200_000, 10, 200_000, 20)]
    server.receive(flow(0, 0, 1, window=1_000))
    assert last(server.events(), LinkFlow) == LinkFlow(first.link, -3, False)
    assert server.take_back(first.link, 2) == [numbers[3], numbers[2]]
    large = server.send(second.link, b"y" * 1_000_000)
    said = server.pending_output()
    assert sum(each.count(b"y") for each in transfers_in(said)) >= 1_000_000
    assert sum(each.count(b"x") for each in transfers_in(said)) >= 200_000
    assert server.unsettled(second.link) == [large]
    assert server.take_back(first.link, 9) == [numbers[1]]
    assert server.unsettled(first.link) == [numbers[0]]
    assert server.waiting_bytes() == 0
