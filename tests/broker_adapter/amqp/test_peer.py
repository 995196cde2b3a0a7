"""The peer: two of them on a pretend wire, by the C functions and by proton's public classes, and hostile bytes."""

from __future__ import annotations

import functools
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from cproton_ffi import lib
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Dropped,
    Incoming,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    State,
    Terminus,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.peer import Peer, PeerLimits
from broker_adapter.amqp.public_engine import check_engine
from broker_adapter.amqp.values import Described, Reader, Symbol, UInt, ULong
from broker_adapter.errors import IllegalStateException, MessageFormatException, ResourceAllocationException
from tests.broker_adapter.amqp.frames import (
    BEGIN,
    END,
    FLOW,
    HEADER,
    attach,
    begin,
    detach,
    end,
    flow,
    frame,
    open_frame,
    split,
    transfer,
)
from tests.broker_adapter.amqp.pair import Pair, every, last


@pytest.fixture(params=[False, True], ids=["c", "public"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """An open pair, once by each engine."""
    return Pair(public_classes=request.param).opened()


def arrived(pair: Pair) -> list[Incoming]:
    """All messages that the server has got."""
    return [delivery for event in every(pair.server_events, Transfers) for delivery in event.deliveries]


def test_open_carries_names_capabilities_and_properties() -> None:
    pair = Pair()
    pair.client.open("me", hostname="host", desired_capabilities=["A", "B"], properties={"product": "x", "n": 1})
    pair.server.open("you", offered_capabilities=["A"])
    pair.pump()

    assert pair.server_events == [
        RemoteOpen("me", "host", frozenset(), frozenset({"A", "B"}), {"product": "x", "n": 1})
    ]
    assert pair.client_events == [RemoteOpen("you", None, frozenset({"A"}), frozenset(), {})]


def test_attach_carries_source_and_target(pair: Pair) -> None:
    source = Terminus(
        "topic",
        durable=2,
        expiry="never",
        timeout=9,
        copies=True,
        filters={Symbol("jms-selector"): Described(ULong(0x468C00000004), "a = 1")},
        outcomes=("amqp:accepted:list", "amqp:released:list"),
        capabilities=("topic", "shared"),
    )
    target = Terminus(dynamic=True, dynamic_properties={Symbol("lifetime-policy"): Described(ULong(0x2B), [])})
    session = pair.client.begin_session()
    link = pair.client.attach_receiver(session, "name|2", source, target, presettled=True, properties={"p": 5})
    pair.pump()

    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.source == source
    assert opened.target == target._replace(expiry="session-end")
    assert (opened.name, opened.by_peer, opened.is_sender, opened.presettled) == ("name|2", True, True, True)
    assert opened.properties == {"p": 5}

    pair.server.accept_link(opened.link, opened.source, opened.target, max_message_bytes=1234)
    pair.pump()
    answer = last(pair.client_events, LinkRemoteOpen)
    assert (answer.link, answer.by_peer, answer.max_message_bytes, answer.source) == (link, False, 1234, source)


def test_a_coordinator_is_known_by_its_target(pair: Pair) -> None:
    target = Terminus(capabilities=("amqp:local-transactions",), coordinator=True)
    pair.client.attach_sender(pair.client.begin_session(), "c", Terminus(), target)
    pair.pump()

    assert last(pair.server_events, LinkRemoteOpen).target == target


def test_a_refused_link_has_no_terminus_and_then_an_error(pair: Pair) -> None:
    link = pair.client.attach_sender(pair.client.begin_session(), "s", Terminus(), Terminus("nowhere"))
    pair.pump()
    error = AmqpError("amqp:not-found", "no such queue", {"k": "v"})
    pair.server.refuse_link(last(pair.server_events, LinkRemoteOpen).link, error)
    pair.pump()

    assert last(pair.client_events, LinkRemoteOpen).target is None
    assert last(pair.client_events, LinkRemoteClose) == LinkRemoteClose(link, True, error)
    pair.client.close_link(link)
    pair.pump()
    assert "links=0" in repr(pair.client)
    assert "links=0" in repr(pair.server)


def test_what_was_written_out_is_handed_out_first_and_up_to_the_limit(pair: Pair) -> None:
    client, _ = pair.sender()
    for index in range(20):
        pair.client.send(client, b"%03d" % index * 100)
        pair.client.write_out()
        pair.client.write_out()  # has nothing to do
    pair.client.send(client, b"later" * 100)
    chunks = []
    while data := pair.client.pending_output(500):
        chunks.append(data)
    assert max(map(len, chunks)) < 1500
    pair.server.receive(b"".join(chunks))
    pair.server_events += pair.server.events()
    assert [each.payload[:3] for each in arrived(pair)] == [*(b"%03d" % index for index in range(20)), b"lat"]


def test_messages_arrive_in_order_in_one_batch_and_are_settled_in_one_frame(pair: Pair) -> None:
    client, server = pair.sender()
    numbers = [pair.client.send(client, b"m%d" % index) for index in range(50)]
    pair.pump()

    (batch,) = every(pair.server_events, Transfers)
    assert [delivery.payload for delivery in batch.deliveries] == [b"m%d" % index for index in range(50)]
    pair.server.settle(server, [delivery.number for delivery in batch.deliveries], ACCEPTED_STATE)
    answer = pair.server.pending_output()
    assert answer.count(b"\x00\x53\x15") == 1
    pair.client.receive(answer)
    assert pair.client.events() == [Dispositions(client, numbers, ACCEPTED_STATE)]
    assert pair.client.unsettled(client) == []
    assert pair.server.unsettled(server) == []


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


@pytest.mark.parametrize("public_classes", [False, True])
def test_the_longest_id_of_a_transaction_fits_into_the_smallest_frame(public_classes: bool) -> None:
    pair = Pair(server=PeerLimits(max_frame_bytes=512), public_classes=public_classes).opened()
    client, _ = pair.sender()
    longest = State(TRANSACTIONAL, txn_id=b"t" * 256)
    pair.client.send(client, b"x" * 10_000, state=longest)
    pair.pump()
    assert [(len(delivery.payload), delivery.state) for delivery in arrived(pair)] == [(10_000, longest)]

    pair.client.send(client, b"x", state=State(TRANSACTIONAL, txn_id=b"t" * 257))
    pair.pump()
    assert "is not binary of at most 256 bytes" in str(last(pair.server_events, TransportFailed).error)


def links_of_one_session(pair: Pair, count: int) -> list[tuple[int, int]]:
    """Links on which the server sends, with credit: their numbers at the client and at the server."""
    session = pair.client.begin_session()
    links = []
    for number in range(count):
        link = pair.client.attach_receiver(session, f"r{number}", Terminus("q"), Terminus())
        links.append((link, pair._answered(0)))
        pair.client.credit(link, 1000)
    pair.pump()
    return links


def test_links_that_send_in_parts_take_turns(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.amqp.buffers.MAX_KEPT_BYTES", 0)
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


@pytest.mark.parametrize("public_classes", [False, True])
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7, 1000])
def test_messages_of_many_frames_and_chunks_are_put_together(public_classes: bool, chunk_bytes: int | None) -> None:
    limits = PeerLimits(max_frame_bytes=512)
    pair = Pair(limits, limits, public_classes=public_classes, chunk_bytes=chunk_bytes).opened()
    client, _ = pair.sender()
    payloads = [bytes([index]) * size for index, size in enumerate((0, 1, 400, 512, 5_000, 20_000, 0))]
    for payload in payloads:
        pair.client.send(client, payload)
    pair.pump()

    assert [delivery.payload for delivery in arrived(pair)] == payloads


def test_messages_larger_than_the_read_buffer_arrive_whole(pair: Pair) -> None:
    client, _ = pair.sender()
    pair.client.send(client, b"z" * 3_000_000)
    pair.pump()

    assert len(arrived(pair)[0].payload) == 3_000_000


SIZES = (0, 1, 31_000, 33_000, 64_000, 66_000, 130_000, 200_000, 131_072, 131_073, 3_000_000, 5)


@pytest.mark.parametrize("public_classes", [False, True], ids=["c", "public"])
@pytest.mark.parametrize("frame_bytes", [512, 40_000, 1 << 20])
@pytest.mark.parametrize("chunk_bytes", [None, 100_000])
def test_messages_of_every_size_arrive_whole_and_in_order(
    public_classes: bool, frame_bytes: int, chunk_bytes: int | None
) -> None:
    """Also those that proton gets in parts, or without their payload, and those behind them."""
    limits = PeerLimits(max_frame_bytes=frame_bytes)
    pair = Pair(limits, limits, public_classes=public_classes, chunk_bytes=chunk_bytes).opened()
    client, server = pair.sender()
    state = State(TRANSACTIONAL, txn_id=b"t1")
    payloads = [bytes((index + 1,)) * size for index, size in enumerate(SIZES)]
    numbers = [
        pair.client.send(client, payload, settled=index % 3 == 2, state=state if index % 2 else None)
        for index, payload in enumerate(payloads)
    ]
    pair.pump()

    got = arrived(pair)
    assert [each.payload for each in got] == payloads
    assert [each.state for each in got] == [state if index % 2 else None for index in range(len(payloads))]
    assert [each.number == 0 for each in got] == [index % 3 == 2 for index in range(len(payloads))]
    pair.server.settle(server, [each.number for each in got], ACCEPTED_STATE)
    pair.pump()
    settled = [number for event in every(pair.client_events, Dispositions) for number in event.numbers]
    assert settled == [number for number in numbers if number]


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


def transfers_in(data: bytes) -> list[bytes]:
    return [each for each in split(data) if each[8:11] == b"\x00\x53\x14"]


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


def sending_peer(*frames: bytes, window: int = 100) -> tuple[Peer, list[LinkRemoteOpen]]:
    """A server whose client receives on links 0 and 1 of a session, and what it has told of them."""
    server = Peer(PeerLimits(), server=True)
    server.open("server")
    links = (attach(0, number, f"r{number}", receives=True) for number in range(2))
    server.receive(HEADER + open_frame() + begin(0, window=window) + b"".join((*links, *frames)))
    opened = every(server.events(), LinkRemoteOpen)
    for each in opened:
        server.accept_link(each.link, each.source, each.target)
    server.pending_output()
    return server, opened


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


def test_unfinished_messages_have_a_limit_together() -> None:
    pair = Pair(server=PeerLimits(max_frame_bytes=512, max_unfinished_bytes=1_000)).opened()
    hands = [Unfinished(pair, handle) for handle in range(3)]
    for link in hands:
        link.send(b"x" * 400)
    assert pair.server.unfinished_bytes == 800
    dropped = last(pair.server.events(), Dropped)
    assert (dropped.link, dropped.messages) == (hands[2].link, 1)
    assert dropped.error is not None
    assert dropped.error.condition == "amqp:resource-limit-exceeded"
    hands[0].send(b"y", more=False)
    assert pair.server.unfinished_bytes == 400
    assert [each.payload for each in last(pair.server.events(), Transfers).deliveries] == [b"x" * 400 + b"y"]


def test_the_largest_unfinished_message_can_be_refused() -> None:
    pair = Pair().opened()
    hands = [Unfinished(pair, handle) for handle in range(3)]
    for link, size in zip(hands, (10, 30, 20), strict=True):
        link.send(b"x" * size)
    assert pair.server.largest_unfinished_bytes() == 30
    error = AmqpError("amqp:resource-limit-exceeded", "no room")
    pair.server.refuse_largest_unfinished(error)
    assert last(pair.server.events(), Dropped) == Dropped(hands[1].link, 1, set(), error)
    assert pair.server.unfinished_bytes == 30
    pair.pump()
    assert last(pair.client_events, LinkRemoteClose).error == error._replace(info={})
    for _ in range(3):
        pair.server.refuse_largest_unfinished(error)
    assert pair.server.unfinished_bytes == pair.server.largest_unfinished_bytes() == 0


@pytest.mark.parametrize("end", ["detach", "end", "abort"])
def test_an_unfinished_message_is_forgotten_with_what_it_came_on(end: str) -> None:
    pair = Pair().opened()
    hand = Unfinished(pair, 0)
    hand.send(b"x" * 100)
    if end == "abort":
        pair.server.receive(transfer(0, 0, None, None, b"", aborted=True))
    else:
        pair.server.receive(detach(0, 0) if end == "detach" else frame(0, END))
    pair.server.events()
    assert pair.server.unfinished_bytes == 0


def test_parts_of_one_octet_cost_what_they_hold() -> None:
    pair = Pair().opened()
    hand = Unfinished(pair, 0)
    hand.send(b"x")
    for _ in range(5_000):
        hand.send(b"x")
    (link,) = pair.server._endpoints.links.values()
    assert link.partial is not None
    assert len(link.partial) == 1
    hand.send(b"y", more=False)
    assert arrived_at(pair.server) == [b"x" * 5_001 + b"y"]


class Unfinished:
    """A link of the pair whose message comes by hand, part by part."""

    def __init__(self, pair: Pair, handle: int) -> None:
        session = next(iter(pair.client._endpoints.sessions), None) or pair.client.begin_session()
        pair.client.attach_sender(session, f"by hand {handle}", Terminus("s"), Terminus("q"))
        self.link = pair._answered(100)
        self._pair = pair
        self._handle = handle
        self._begun = False

    def send(self, part: bytes, *, more: bool = True) -> None:
        number, tag = (None, None) if self._begun else (self._handle, b"t")
        self._begun = True
        self._pair.server.receive(transfer(0, self._handle, number, tag, part, more=more))
        self._pair.server._events.take_events()


def arrived_at(peer: Peer) -> list[bytes]:
    return [delivery.payload for event in every(peer.events(), Transfers) for delivery in event.deliveries]


def test_an_aborted_message_is_dropped_and_the_next_one_arrives() -> None:
    limits = PeerLimits(max_frame_bytes=512)
    pair = Pair(limits, limits).opened()
    client, server = pair.sender()
    # The first frames of a long message, then the abort, as another client could send them.
    channel, handle = 0, 0
    pair.server.receive(transfer(channel, handle, 0, b"t", b"part one", more=True))
    pair.server.receive(transfer(channel, handle, None, None, b"part two", more=True))
    assert pair.server.events() == []
    pair.server.receive(transfer(channel, handle, None, None, b"", aborted=True))
    pair.server.receive(transfer(channel, handle, 1, b"u", b"whole"))

    dropped, batch = pair.server.events()
    assert dropped == Dropped(server, 1, set(), None)
    assert isinstance(batch, Transfers)
    assert [delivery.payload for delivery in batch.deliveries] == [b"whole"]
    assert client
    assert len(pair.server.unsettled(server)) == 1


def test_a_message_beyond_the_limit_closes_its_link_and_the_session_goes_on() -> None:
    small = PeerLimits(max_frame_bytes=512, max_message_bytes=1_000)
    pair = Pair(server=small).opened()
    client, server = pair.sender()
    other, _ = pair.sender()

    pair.client.send(client, b"x" * 1_000)
    pair.client.send(client, b"x" * 1_001)
    pair.client.send(client, b"x")
    pair.client.send(other, b"y")
    pair.pump()

    assert [len(delivery.payload) for delivery in arrived(pair)] == [1_000, 1]
    closed = last(pair.client_events, LinkRemoteClose)
    assert closed.link == client
    assert closed.error is not None
    assert closed.error.condition == "amqp:link:message-size-exceeded"
    assert server


def test_a_server_rejects_all_that_it_drops_and_names_the_transactions() -> None:
    pair = Pair(server=PeerLimits(max_frame_bytes=512, max_message_bytes=1_000)).opened()
    client, server = pair.sender()
    large = pair.client.send(client, b"x" * 1_001, state=State(TRANSACTIONAL, txn_id=b"t1"))
    behind = [
        pair.client.send(client, b"y", state=state)
        for state in (None, State(TRANSACTIONAL, txn_id=b"t2"), State(TRANSACTIONAL, txn_id=b"t1"))
    ]
    pair.client.send(client, b"presettled", settled=True, state=State(TRANSACTIONAL, txn_id=b"t3"))
    pair.pump()

    (dropped,) = every(pair.server_events, Dropped)
    assert (dropped.link, dropped.messages, dropped.txn_ids) == (server, 5, {b"t1", b"t2", b"t3"})
    states = {number: event.state for event in every(pair.client_events, Dispositions) for number in event.numbers}
    assert states.keys() == {large, *behind}
    assert {state.code for state in states.values()} == {REJECTED}
    assert {state.error.condition for state in states.values() if state.error} == {"amqp:link:message-size-exceeded"}


def test_a_client_rejects_a_message_above_the_limit_and_releases_what_is_behind_it() -> None:
    pair = Pair(PeerLimits(max_message_bytes=1_000)).opened()
    client, server = pair.receiver()
    pair.client.credit(client, 10)
    pair.pump()
    numbers = [pair.server.send(server, b"x" * size) for size in (1_001, 1, 2_000)]
    pair.pump()

    states = {number: event.state for event in every(pair.server_events, Dispositions) for number in event.numbers}
    assert states[numbers[0]].code == REJECTED
    assert [states[number] for number in numbers[1:]] == [RELEASED_STATE] * 2
    assert last(pair.client_events, Dropped).messages == 3


def test_more_messages_than_credit_close_the_link() -> None:
    pair = Pair().opened()
    client, _ = pair.sender(credit=2)
    pair.pump()
    for number in range(4):
        pair.server.receive(transfer(0, 0, number, b"t", b"x"))
    pair.server.events()
    pair.server.receive(transfer(0, 0, 4, b"t", b"x"))
    pair.server.events()
    pair.pump()

    closed = last(pair.client_events, LinkRemoteClose)
    assert closed.link == client
    assert closed.error is not None
    assert closed.error.condition == "amqp:link:transfer-limit-exceeded"


def test_one_slow_consumer_does_not_stall_the_others_of_its_session(pair: Pair) -> None:
    slow, slow_server = pair.receiver()
    session = last(pair.server_events, LinkRemoteOpen).session
    quick = pair.client.attach_receiver(session_of(pair, slow), "quick", Terminus("q"), Terminus())
    pair.pump()
    opened = last(pair.server_events, LinkRemoteOpen)
    pair.server.accept_link(opened.link, opened.source, opened.target)
    pair.client.credit(slow, 5_000)
    pair.client.credit(quick, 5_000)
    pair.pump()
    for _ in range(5_000):
        pair.server.send(slow_server, b"x" * 100)
    pair.pump()
    for _ in range(100):
        pair.server.send(opened.link, b"y")
    pair.pump()

    got = {slow: 0, quick: 0}
    for event in every(pair.client_events, Transfers):
        got[event.link] += len(event.deliveries)
    assert got == {slow: 5_000, quick: 100}
    assert session


def session_of(pair: Pair, link: int) -> int:
    """The client's number of a link's session."""
    return next(event for event in every(pair.client_events, LinkRemoteOpen) if event.link == link).session


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


def test_deliveries_may_be_settled_after_their_link_is_closed(pair: Pair) -> None:
    client, server = pair.receiver()
    pair.client.credit(client, 10)
    pair.pump()
    numbers = [pair.server.send(server, b"x") for _ in range(3)]
    pair.pump()
    got = [delivery.number for event in every(pair.client_events, Transfers) for delivery in event.deliveries]

    pair.client.close_link(client)
    pair.pump()
    pair.server.close_link(server)
    pair.pump()
    assert pair.client.is_unsettled(client, got[0])
    pair.client.settle(client, got, ACCEPTED_STATE)
    pair.pump()

    assert every(pair.server_events, Dispositions) == [Dispositions(server, numbers, ACCEPTED_STATE)]
    assert "links=0" in repr(pair.client)
    assert "links=0" in repr(pair.server)


def test_a_detach_that_keeps_the_subscription_says_so(pair: Pair) -> None:
    client, server = pair.receiver()
    pair.client.close_link(client, closed=False)
    pair.pump()

    assert last(pair.server_events, LinkRemoteClose) == LinkRemoteClose(server, False, None)


def test_the_end_of_a_session_ends_its_links(pair: Pair) -> None:
    client, server = pair.sender()
    pair.client.send(client, b"x")
    pair.pump()
    number = arrived(pair)[0].number
    session = session_of(pair, client)

    pair.client.end_session(session, AmqpError("a:b", "c"))
    pair.pump()

    assert last(pair.server_events, SessionRemoteClose).error == AmqpError("a:b", "c", {})
    assert last(pair.client_events, SessionRemoteClose).session == session
    assert "sessions=0 links=0" in repr(pair.client)
    assert "sessions=0 links=0" in repr(pair.server)
    pair.server.settle(server, [number], ACCEPTED_STATE)
    pair.server.close_link(server)
    with pytest.raises(IllegalStateException):
        pair.client.send(client, b"y")
    with pytest.raises(IllegalStateException):
        pair.client.attach_sender(session, "late", Terminus(), Terminus("q"))
    gc.collect()
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []


def test_close_carries_an_error_and_ends_the_output(pair: Pair) -> None:
    pair.client.close(AmqpError("amqp:connection:forced", "bye", {}))
    pair.pump()
    pair.server.close()
    pair.pump()

    assert last(pair.server_events, RemoteClose) == RemoteClose(AmqpError("amqp:connection:forced", "bye", {}))
    assert last(pair.client_events, RemoteClose) == RemoteClose(None)
    assert pair.client.output_closed
    assert pair.server.output_closed


def test_links_and_sessions_have_a_limit() -> None:
    pair = Pair(PeerLimits(max_sessions=3), PeerLimits(max_links=2, max_sessions=3)).opened()
    sessions = [pair.client.begin_session() for _ in range(3)]
    with pytest.raises(IllegalStateException, match="3 sessions are the limit"):
        pair.client.begin_session()
    for name in "ab":
        pair.client.attach_sender(sessions[0], name, Terminus(), Terminus("q"))
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []
    refused = pair.client.attach_sender(sessions[1], "c", Terminus(), Terminus("q"))
    pair.pump()
    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.excess is not None
    pair.server.refuse_link(opened.link, opened.excess)
    pair.pump()
    closed = last(pair.client_events, LinkRemoteClose)
    assert (closed.link, closed.error) == (refused, opened.excess._replace(info={}))
    assert opened.excess.condition == "amqp:resource-limit-exceeded"
    pair.client.close_link(refused)
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []


def test_a_peer_that_attaches_on_although_it_is_refused_loses_its_connection() -> None:
    pair = Pair(PeerLimits(), PeerLimits(max_links=2)).opened()
    session = pair.client.begin_session()
    for number in range(2 + 64):
        pair.client.attach_sender(session, str(number), Terminus(), Terminus("q"))
    pair.pump()
    assert every(pair.server_events, TransportFailed) == []
    assert [each.excess is None for each in every(pair.server_events, LinkRemoteOpen)] == [True] * 2 + [False] * 64
    pair.client.attach_sender(session, "one more", Terminus(), Terminus("q"))
    pair.pump()
    assert last(pair.server_events, TransportFailed).error.condition == "amqp:resource-limit-exceeded"
    assert last(pair.client_events, RemoteClose).error is not None


def test_a_peer_answers_as_many_links_as_the_other_side_takes() -> None:
    """A server may allow more links than its clients allow it to attach by itself."""
    pair = Pair(PeerLimits(max_links=2), PeerLimits(max_links=300)).opened()
    session = pair.client.begin_session()
    for number in range(300):
        pair.client.attach_sender(session, str(number), Terminus(), Terminus("q"))
    pair.pump()
    for opened in every(pair.server_events, LinkRemoteOpen):
        assert opened.excess is None
        pair.server.accept_link(opened.link, opened.source, opened.target)
    pair.pump()
    assert every(pair.client_events, TransportFailed) == []
    assert len(every(pair.client_events, LinkRemoteOpen)) == 300


@pytest.mark.parametrize("frame_bytes", [512, 4096, 1 << 20])
def test_an_attach_that_does_not_fit_into_a_frame_is_not_sent(frame_bytes: int) -> None:
    for limits in (
        (PeerLimits(max_frame_bytes=frame_bytes), PeerLimits()),
        (PeerLimits(), PeerLimits(max_frame_bytes=frame_bytes)),
    ):
        pair = Pair(*limits).opened()
        session = pair.client.begin_session()
        most = min(frame_bytes, 256 * 1024)
        rest = min(512, most // 2)
        for name, target in (("s", "q" * (most - rest)), ("s" * (most - rest + 1), None)):
            with pytest.raises(ResourceAllocationException, match="fit into a frame"):
                pair.client.attach_sender(session, name, Terminus(), Terminus(target))
        longest = "\N{EURO SIGN}" * ((most - rest - 1) // 3)
        link = pair.client.attach_sender(session, "s", Terminus(), Terminus(longest))
        pair.pump()
        opened = last(pair.server_events, LinkRemoteOpen)
        assert opened.excess is None
        pair.server.accept_link(opened.link, opened.source, opened.target)
        pair.pump()
        answer = last(pair.client_events, LinkRemoteOpen)
        assert (answer.link, answer.target and answer.target.address) == (link, longest)
        assert every(pair.client_events, TransportFailed) == []


def test_what_an_answer_would_repeat_beyond_the_peers_frames_is_refused() -> None:
    pair = Pair(PeerLimits(max_frame_bytes=512), PeerLimits()).opened()
    pair.client._connection.limits = PeerLimits()  # it does not heed its own limit
    session = pair.client.begin_session()
    pair.client.attach_sender(session, "s", Terminus(), Terminus("q" * 600))
    pair.pump()
    opened = last(pair.server_events, LinkRemoteOpen)
    assert opened.excess is not None
    pair.server.refuse_link(opened.link, opened.excess)
    pair.pump()
    assert every(pair.client_events, TransportFailed) == []
    pair.client.attach_sender(session, "s" * 600, Terminus(), Terminus("q"))
    pair.pump()
    assert last(pair.server_events, TransportFailed).error.description == "the name of a link does not fit into a frame"


def test_sessions_and_links_that_end_make_room_for_others() -> None:
    pair = Pair(PeerLimits(max_sessions=2), PeerLimits(max_links=2, max_sessions=2)).opened()
    for _ in range(20):
        client, _ = pair.sender()
        pair.client.send(client, b"x")
        pair.pump()
        pair.client.end_session(session_of(pair, client))
        pair.pump()

    assert every(pair.server_events, TransportFailed) == []
    assert len(every(pair.server_events, SessionRemoteOpen)) == 20


@pytest.mark.parametrize("opened_late", [False, True])
def test_sessions_that_begin_and_end_by_the_thousand_at_once(opened_late: bool) -> None:
    peer = Peer(PeerLimits(), server=True)
    peer.receive(HEADER + open_frame())
    if not opened_late:
        peer.open("server")
    peer.receive((begin(0) + end(0)) * 2_000)
    if opened_late:
        peer.open("server")
    events = peer.events()
    assert every(events, TransportFailed) == []
    assert len(every(events, SessionRemoteClose)) == 2_000
    assert len(every(events, SessionRemoteOpen)) == 2_000


def test_answers_that_are_not_written_count(pair: Pair) -> None:
    client, server = pair.sender(credit=1000)
    for _ in range(500):
        pair.client.send(client, b"x")
    pair.server.receive(pair.client.pending_output())
    transfers = every(pair.server.events(), Transfers)
    numbers = [each.number for event in transfers for each in event.deliveries]
    assert pair.server.unwritten_bytes == 0
    pair.server.settle(server, numbers[:400], ACCEPTED_STATE)
    plain = pair.server.unwritten_bytes
    assert plain >= 400 * 800
    pair.server.settle(server, numbers[400:], State(REJECTED, error=AmqpError("a:b", "c" * 5_000)))
    assert pair.server.unwritten_bytes - plain > 100 * 4_800
    pair.pump()
    assert pair.server.unwritten_bytes == 0
    assert sum(len(each.numbers) for each in every(pair.client_events, Dispositions)) == 500


def test_a_silent_peer_is_noticed_and_a_quiet_one_sends_keep_alives() -> None:
    limits = PeerLimits(idle_timeout_ms=1_000)
    pair = Pair(limits, limits).opened()
    assert pair.client.tick(1_000) == 1_250  # half of what the peer advertised, which is half of its time-out
    pair.server.tick(1_000)
    pair.client.tick(1_250)
    assert pair.client.pending_output() == bytes.fromhex("0000000802000000")

    pair.server.tick(2_001)
    assert last(pair.server.events(), TransportFailed).error.description == "local-idle-timeout expired"


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "amqp:connection:framing-error"),
        (b"AMQP\x03\x01\x00\x00", "amqp:connection:framing-error"),
        (b"AMQP\x00\x00\x09\x01", "amqp:connection:framing-error"),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("00000004"), None),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000000402000000"), "amqp:connection:framing-error"),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("7fffffff02000000"), "amqp:connection:framing-error"),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000000cff000000") + b"abcd", "amqp:connection:framing-error"),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000000c02000000005314c0"), "amqp:decode-error"),
        (b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000000e02000000") + b"\x00" * 6, "amqp:decode-error"),
    ],
)
def test_what_is_no_amqp_fails_the_connection_with_a_reason(data: bytes, condition: str | None) -> None:
    server = Peer(PeerLimits(), server=True)
    for start in range(len(data)):
        server.receive(data[start : start + 1])
    events = server.events()

    if condition is None:
        assert events == []
        return
    assert last(events, TransportFailed).error.condition == condition
    assert server.pending_output().startswith(b"AMQP\x00\x01\x00\x00")
    assert server.output_closed
    server.receive(b"more")
    assert server.events() == []


def test_a_frame_at_the_limit_is_taken_and_one_beyond_it_refused() -> None:
    for size, failed in ((512, False), (513, True)):
        server = Peer(PeerLimits(max_frame_bytes=512), server=True)
        server.receive(b"AMQP\x00\x01\x00\x00" + size.to_bytes(4) + b"\x02\x00\x00\x00" + b"x" * 100)
        assert bool(server.events()) is failed


def test_nesting_and_empty_arrays_in_frames_never_reach_proton() -> None:
    nested = b"\x45"
    for _ in range(20_000):
        nested = b"\xd0" + (len(nested) + 4).to_bytes(4) + (1).to_bytes(4) + nested
    for value in (nested, bytes.fromhex("f000000005ffffffff40"), b"\x00" * 10_000):
        fields = b"\xa1\x01a" + b"\x40" * 6 + value
        performative = b"\x00\x53\x10\xd0" + (len(fields) + 4).to_bytes(4) + (8).to_bytes(4) + fields
        server = Peer(PeerLimits(), server=True)
        server.receive(
            b"AMQP\x00\x01\x00\x00" + (8 + len(performative)).to_bytes(4) + b"\x02\x00\x00\x00" + performative
        )

        assert last(server.events(), TransportFailed).error.condition == "amqp:decode-error"


def test_the_end_of_the_network_is_told_once() -> None:
    pair = Pair().opened()
    pair.server.receive_end()
    pair.server.receive_end()

    assert "connection aborted" in (last(pair.server.events(), TransportFailed).error.description or "")
    assert pair.server.events() == []


def test_a_link_is_answered_once_and_unknown_numbers_are_ignored(pair: Pair) -> None:
    _, server = pair.sender()
    with pytest.raises(IllegalStateException, match="attached already"):
        pair.server.accept_link(server, Terminus(), Terminus())
    with pytest.raises(IllegalStateException, match="closed"):
        pair.server.accept_link(12_345, Terminus(), Terminus())
    pair.server.close_link(12_345)
    pair.server.credit(12_345, 1)
    pair.server.drained(12_345)
    pair.server.settle(12_345, [1], ACCEPTED_STATE)
    pair.server.settle(server, [99], ACCEPTED_STATE)
    pair.server.end_session(12_345)
    assert pair.server.unsettled(12_345) == ()
    assert pair.server.outgoing_bytes(12_345) == 0


def test_output_can_be_taken_in_portions() -> None:
    pair = Pair().opened()
    client, _ = pair.sender()
    for _ in range(50):
        pair.client.send(client, b"x" * 10_000)
    first = pair.client.pending_output(50_000)
    rest = pair.client.pending_output()
    pair.server.receive(first + rest)

    assert 50_000 <= len(first) < 400_000
    (batch,) = pair.server.events()
    assert isinstance(batch, Transfers)
    assert len(batch.deliveries) == 50


def test_a_proton_without_the_functions_of_the_hot_path_is_refused_by_name() -> None:
    check_engine()
    with pytest.raises(ImportError, match=r"lacks .*pn_link_recv.*; install python-qpid-proton==0\.40\.0"):
        check_engine(SimpleNamespace())


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_amqp_cannot_carry_are_refused_and_leave_nothing_behind(name: str) -> None:
    pair = Pair().opened()
    session = pair.client.begin_session()
    for link_name, address in ((name, "q"), ("link", name)):
        with pytest.raises(MessageFormatException, match="cannot be attached"):
            pair.client.attach_sender(session, link_name, Terminus(), Terminus(address))
    with pytest.raises(MessageFormatException, match="cannot be opened"):
        Peer(PeerLimits()).open(name)
    pair.pump()

    assert "links=0" in repr(pair.client)
    assert every(pair.server_events, LinkRemoteOpen) == []


def test_what_a_peer_sent_and_cannot_be_echoed_fails_its_connection() -> None:
    pair = Pair().opened()
    _, server = pair.receiver()
    opened = last(pair.server_events, LinkRemoteOpen)
    pair.client.attach_receiver(session_of(pair, opened.link), "second", Terminus("q"), Terminus())
    pair.pump()
    second = last(pair.server_events, LinkRemoteOpen)
    pair.server.accept_link(second.link, Terminus("q", filters={"ä": 1}), Terminus())

    assert server != second.link
    assert last(pair.server.events(), TransportFailed).error.condition == "amqp:invalid-field"


# Hostile bytes: events, or one failure; never another error, never a crash.


@functools.cache
def recorded() -> tuple[bytes, ...]:
    """The frames of a client that does everything once."""
    pair = Pair().opened()
    client, _ = pair.sender()
    receiver, receiver_server = pair.receiver()
    pair.client.credit(receiver, 10)
    pair.pump()
    for index in range(4):
        pair.client.send(client, b"\xdcm%d" % index)
        pair.server.send(receiver_server, b"\xdcd%d" % index)
    pair.client.send(client, b"tx", state=State(TRANSACTIONAL, txn_id=b"abc"))
    pair.client.send(client, b"y" * 40_000)
    pair.pump()
    got = [delivery.number for event in every(pair.client_events, Transfers) for delivery in event.deliveries]
    for number, state in zip(
        got,
        (State(REJECTED, error=AmqpError("a:b", "d", {"k": 1})), FAILED_STATE, ACCEPTED_STATE, RELEASED_STATE),
        strict=True,
    ):
        pair.client.settle(receiver, [number], state)
    pair.client.drain(receiver)
    pair.pump()
    pair.client.close_link(client)
    pair.pump()
    pair.client.close()
    pair.pump()
    frames = []
    position = 8
    while position < len(pair.client_sent):
        size = int.from_bytes(pair.client_sent[position : position + 4])
        frames.append(pair.client_sent[position : position + size])
        position += size
    return tuple(frames)


def serve(data: bytes, chunk: int) -> None:
    """A server that accepts everything."""
    server = Peer(PeerLimits(max_message_bytes=30_000, max_links=8), server=True)
    server.open("server")
    failures = 0
    for start in range(0, len(data), chunk):
        server.receive(data[start : start + chunk])
        for event in server.events():
            failures += isinstance(event, TransportFailed)
            try:
                answer(server, event)
            except IllegalStateException:
                pass
        server.pending_output()
    server.receive_end()
    failures += len(every(server.events(), TransportFailed))
    server.pending_output()
    assert failures <= 1


def answer(server: Peer, event: Any) -> None:
    """What a friendly server does."""
    if isinstance(event, LinkRemoteOpen):
        server.accept_link(event.link, event.source, event.target)
        if event.is_sender:
            for _ in range(3):
                server.send(event.link, b"\xdcx")
        else:
            server.credit(event.link, 10)
    elif isinstance(event, Transfers):
        server.settle(event.link, [delivery.number for delivery in event.deliveries], ACCEPTED_STATE)
    elif isinstance(event, LinkRemoteClose):
        server.close_link(event.link)
    elif isinstance(event, LinkFlow) and event.drain:
        server.drained(event.link)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_events_or_one_failure(data: bytes, with_header: bool) -> None:
    serve(b"AMQP\x00\x01\x00\x00" + data if with_header else data, 1 + len(data) // 3)


CODES = [0x00, 0x40, 0x41, 0x43, 0x45, 0x53, 0xA0, 0xA1, 0xA3, 0xB0, 0xC0, 0xC1, 0xD0, 0xD1, 0xE0, 0xF0, 0xFF]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_frames_give_events_or_one_failure(data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in recorded()]
    pick = st.integers(0, len(frames) - 1)
    for _ in range(data.draw(st.integers(0, 2))):
        frames.insert(data.draw(pick), bytearray(frames[data.draw(pick)]))
    for _ in range(data.draw(st.integers(1, 4))):
        frame = frames[data.draw(pick)]
        where = data.draw(st.integers(4, max(4, min(len(frame), 120) - 1)))
        change = data.draw(st.sampled_from(["set", "insert", "delete"]))
        if where >= len(frame):
            continue
        if change == "set":
            frame[where] = data.draw(st.sampled_from(CODES) | st.integers(0, 255))
        elif change == "insert":
            frame[where:where] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            del frame[where]
        frame[:4] = len(frame).to_bytes(4)
    serve(b"AMQP\x00\x01\x00\x00" + b"".join(frames), data.draw(st.sampled_from([10**6, 1_000, 4_096])))


def test_a_session_that_came_ahead_of_our_open_is_answered_after_it() -> None:
    client, server = Peer(PeerLimits()), Peer(PeerLimits(), server=True)
    client.open("client")
    session = client.begin_session()
    server.receive(client.pending_output())
    assert [type(event) for event in server.events()] == [RemoteOpen, SessionRemoteOpen]
    client.receive(server.pending_output())  # the header only
    server.open("server")
    client.receive(server.pending_output())
    assert [type(event) for event in client.events()] == [RemoteOpen, SessionRemoteOpen]
    assert session in client._endpoints.sessions


def test_no_more_sessions_are_begun_than_the_peer_allows() -> None:
    pair = Pair(PeerLimits(), PeerLimits(max_sessions=2)).opened()
    for _ in range(2):
        pair.client.begin_session()
    with pytest.raises(IllegalStateException, match="2 sessions are the limit"):
        pair.client.begin_session()


def test_a_peer_whose_handles_are_used_up_fails_the_connection_with_a_reason() -> None:
    """proton itself would be silent for ever."""
    server = Peer(PeerLimits(), server=True)
    server.open("server")
    server.receive(HEADER + open_frame() + frame(0, BEGIN, None, UInt(0), UInt(9), UInt(9), UInt(1)))
    for handle in range(3):
        server.receive(attach(0, handle, f"link {handle}"))
    for event in every(server.events(), LinkRemoteOpen):
        server.accept_link(event.link, event.source, event.target)
    said = server.pending_output()

    assert last(server.events(), TransportFailed).error.condition == "amqp:resource-limit-exceeded"
    assert b"unable to find an open available handle" in said
    assert server.output_closed


def test_a_peer_that_is_released_has_freed_what_proton_had_and_does_nothing_more() -> None:
    class Probe:
        """Lives as long as the C object that knows it."""

    pair = Pair().opened()
    client, server = pair.sender()
    pair.client.send(client, b"x")
    pair.pump()
    Unfinished(pair, 1).send(b"part")
    number = arrived(pair)[0].number
    probes = []
    for each in (pair.server._connection.transport, pair.server._connection.connection):
        probe = Probe()
        each._attrs["probe"] = probe
        probes.append(weakref.ref(probe))
        del probe, each
    gc.disable()
    try:
        pair.server.release()
        assert [probe() for probe in probes] == [None, None]
    finally:
        gc.enable()
    pair.server.release()
    pair.server.receive(b"more")
    pair.server.receive_end()
    pair.server.close()
    pair.server.settle(server, [number], ACCEPTED_STATE)
    pair.server.credit(server, 1)
    assert (pair.server.events(), pair.server.pending_output(), pair.server.tick(1)) == ([], b"", None)
    assert (pair.server.output_closed, pair.server.unfinished_bytes, pair.server.waiting_bytes()) == (True, 0, 0)
    assert "sessions=0 links=0" in repr(pair.server)
    for refused in (lambda: pair.server.send(server, b"x"), pair.server.begin_session):
        with pytest.raises(IllegalStateException):
            refused()


def test_a_peer_that_is_not_read_from_is_not_taken_for_silent() -> None:
    limits = PeerLimits(idle_timeout_ms=1_000)
    pair = Pair(limits, limits).opened()
    for now_ms in range(1_000, 60_000, 500):
        pair.server.tick(now_ms, listens=False)
    assert pair.server.events() == []
    pair.server.tick(61_000)
    pair.server.tick(62_001)
    assert last(pair.server.events(), TransportFailed).error.description == "local-idle-timeout expired"
