"""Transfers that come in at a peer, in one frame and in many, and what is dropped."""

from __future__ import annotations

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Dispositions,
    Dropped,
    LinkRemoteClose,
    LinkRemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.proton_engine.peer import PeerLimits
from tests.broker_adapter.amqp.frames import END, detach, frame, transfer
from tests.broker_adapter.amqp.pair import Pair, Unfinished, arrived, arrived_at, every, last, session_of


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


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7, 1000])
def test_messages_of_many_frames_and_chunks_are_put_together(chunk_bytes: int | None) -> None:
    limits = PeerLimits(max_frame_bytes=512)
    pair = Pair(limits, limits, chunk_bytes=chunk_bytes).opened()
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


@pytest.mark.parametrize("frame_bytes", [512, 40_000, 1 << 20])
@pytest.mark.parametrize("chunk_bytes", [None, 100_000])
def test_messages_of_every_size_arrive_whole_and_in_order(frame_bytes: int, chunk_bytes: int | None) -> None:
    """Also those that proton gets in parts, or without their payload, and those behind them."""
    limits = PeerLimits(max_frame_bytes=frame_bytes)
    pair = Pair(limits, limits, chunk_bytes=chunk_bytes).opened()
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
