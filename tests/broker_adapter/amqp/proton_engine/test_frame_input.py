"""Frames that a peer refuses before proton sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Dispositions,
    Event,
    SessionRemoteClose,
    State,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.messages.values import Described, Symbol, UInt, ULong
from broker_adapter.amqp.proton_engine.frames import FrameRules
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from tests.broker_adapter.amqp.frames import DISPOSITION, begin, disposition, end, frame, in_long_form, transfer
from tests.broker_adapter.amqp.pair import Pair, every, last


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


def outgoing(count: int, **limits: Any) -> Pair:
    """A server that has sent so many messages, none of them settled, and a client that writes frames by hand."""
    pair = Pair(server=PeerLimits(**limits)).opened()
    link, at_server = pair.receiver()
    pair.client.credit(link, count)
    pair.pump()
    for _ in range(count):
        pair.server.send(at_server, b"x")
    pair.pump()
    return pair


def told(pair: Pair) -> list[list[Event]]:
    """What each turn of the server tells."""
    turns = [pair.server.events()]
    while pair.server.has_more:
        pair.server.go_on()
        turns.append(pair.server.events())
    return turns


def states(events: Sequence[Event]) -> list[tuple[int, int]]:
    """The states that they tell, each with the number of its deliveries."""
    return [(each.state.code, len(each.numbers)) for each in every(list(events), Dispositions)]


def test_a_long_range_is_reported_in_parts_ahead_of_what_follows_it() -> None:
    pair = outgoing(1000, settled_at_once=100)
    pair.server.receive(disposition(0, True, 0, 899) + disposition(0, True, 800, 999, 0x26) + end(0))
    assert pair.server.has_more
    turns = told(pair)
    found = [each for turn in turns for each in states(turn)]
    assert found == [(ACCEPTED, 100)] * 9 + [(RELEASED, 100)]
    assert isinstance(turns[-1][-1], SessionRemoteClose)


def test_many_ranges_in_one_read_are_not_more_at_once_than_one() -> None:
    pair = outgoing(1000, settled_at_once=100)
    pair.server.receive(b"".join(disposition(0, True, first, first + 49) for first in range(0, 1000, 50)))
    counts = [sum(count for _, count in states(turn)) for turn in told(pair)]
    assert (sum(counts), max(counts)) == (1000, 100)


def test_sessions_that_begin_and_end_between_ranges_do_not_make_a_turn_longer() -> None:
    pair = outgoing(1000, settled_at_once=100)
    between = begin(1) + end(1)
    ranges = [disposition(0, True, first, first + 49) for first in range(0, 1000, 50)]
    pair.server.receive(between.join(ranges) + between + end(0))
    turns = told(pair)
    counts = [sum(count for _, count in states(turn)) for turn in turns]
    assert (sum(counts), max(counts) <= 150) == (1000, True)
    assert len(every([each for turn in turns for each in turn], SessionRemoteClose)) == 21


def test_a_peer_without_such_a_limit_tells_all_at_once() -> None:
    pair = outgoing(1000)
    pair.server.receive(disposition(0, True, 0, 999))
    assert states(pair.server.events()) == [(ACCEPTED, 1000)]
    assert not pair.server.has_more


def test_a_state_that_is_too_large_for_its_range_fails_the_connection() -> None:
    pair = outgoing(100)
    large = Described(ULong(MODIFIED), [True, False, {f"k{number}": number for number in range(9000)}])
    pair.server.receive(frame(0, DISPOSITION, True, UInt(0), UInt(99), True, large))
    (failed,) = pair.server.events()
    assert isinstance(failed, TransportFailed)
    assert failed.error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("bare", [True, False])
def test_annotations_of_a_state_are_told_also_where_proton_is_not_given_them(bare: bool) -> None:
    pair = outgoing(3, bare_states=bare)
    annotations = {Symbol(f"k{number}"): UInt(number) for number in range(20)}
    modified = Described(ULong(MODIFIED), [True, False, annotations])
    pair.server.receive(disposition(0, True, 0, 0) + frame(0, DISPOSITION, True, UInt(1), UInt(1), True, modified))
    pair.server.receive(disposition(0, True, 2, 2))
    first, second, third = every(pair.server.events(), Dispositions)
    assert (first.state, third.state) == (State(ACCEPTED), State(ACCEPTED))
    assert second.state == State(MODIFIED, failed=True, annotations=annotations)
    assert {type(each) for each in (second.state.annotations or {}).values()} == {UInt}
    assert pair.server._connection.kept_annotations == {}


@pytest.mark.parametrize("bare", [True, False])
def test_why_a_message_is_rejected_is_told_also_where_proton_is_not_given_it(bare: bool) -> None:
    pair = outgoing(2, bare_states=bare)
    why = Described(ULong(REJECTED), [Described(ULong(0x1D), [Symbol("a:b"), "no such customer " * 5])])
    small = Described(ULong(REJECTED), [Described(ULong(0x1D), [Symbol("holdfast:kept"), "1"])])
    pair.server.receive(
        frame(0, DISPOSITION, True, UInt(0), UInt(0), True, why)
        + frame(0, DISPOSITION, True, UInt(1), UInt(1), True, small)
    )
    first, second = every(pair.server.events(), Dispositions)
    assert (first.state.error or AmqpError("")).description == "no such customer " * 5
    assert (second.state.error or AmqpError("")).description == "1"
    assert pair.server._connection.kept_annotations == {}


def test_annotations_of_several_states_and_of_one_in_a_transaction_are_told_apart() -> None:
    pair = outgoing(4, bare_states=True)
    first, second = ({Symbol("k"): f"{number} " * 30} for number in range(2))
    modified = Described(ULong(MODIFIED), [True, False, first])
    in_transaction = Described(ULong(TRANSACTIONAL), [b"t", Described(ULong(MODIFIED), [False, True, second])])
    pair.server.receive(
        frame(0, DISPOSITION, True, UInt(0), UInt(1), True, modified)
        + frame(0, DISPOSITION, True, UInt(2), UInt(2), True, in_transaction)
        + frame(0, DISPOSITION, True, UInt(3), UInt(3), True, modified)
    )
    told = every(pair.server.events(), Dispositions)
    outcome = State(MODIFIED, undeliverable=True, annotations=second)
    assert [(len(each.numbers), each.state) for each in told] == [
        (2, State(MODIFIED, failed=True, annotations=first)),
        (1, State(TRANSACTIONAL, txn_id=b"t", outcome=outcome)),
        (1, State(MODIFIED, failed=True, annotations=first)),
    ]


@pytest.mark.parametrize("number", [ULong(1), [1], "1", {"a": 1}])
@pytest.mark.parametrize("in_transaction", [True, False])
def test_annotations_that_name_what_is_kept_of_others_find_nothing(number: Any, in_transaction: bool) -> None:
    pair = outgoing(3, bare_states=True)
    kept = Described(ULong(MODIFIED), [True, False, {Symbol("k"): "x" * 100}])
    forged = Described(ULong(MODIFIED), [True, False, {ULong(0): number}])
    if in_transaction:
        forged = Described(ULong(TRANSACTIONAL), [b"t", forged])
    pair.server.receive(
        frame(0, DISPOSITION, True, UInt(0), None, True, kept)
        + frame(0, DISPOSITION, True, UInt(1), None, True, forged)
    )
    _, told = every(pair.server.events(), Dispositions)
    state = told.state.outcome if in_transaction else told.state
    assert state is not None
    assert state.annotations is None


def test_annotations_in_a_transaction_that_are_no_map_are_left_out() -> None:
    pair = outgoing(2, bare_states=True)
    kept = Described(ULong(MODIFIED), [True, False, {Symbol("k"): "x" * 100}])
    odd = Described(ULong(TRANSACTIONAL), [b"t", Described(ULong(MODIFIED), [True, False, "no map"])])
    pair.server.receive(
        frame(0, DISPOSITION, True, UInt(0), None, True, kept) + frame(0, DISPOSITION, True, UInt(1), None, True, odd)
    )
    _, told = every(pair.server.events(), Dispositions)
    assert told.state.outcome == State(MODIFIED, failed=True)


def test_an_annotation_that_is_no_character_is_a_decode_error() -> None:
    pair = outgoing(1, bare_states=True)
    sent = frame(
        0, DISPOSITION, True, UInt(0), None, True, Described(ULong(MODIFIED), [True, False, {"a": UInt(0xD800)}])
    )
    pair.server.receive(sent.replace(b"\x70\x00\x00\xd8\x00", b"\x73\x00\x00\xd8\x00"))
    (failed,) = every(pair.server.events(), TransportFailed)
    assert failed.error.condition == "amqp:decode-error"
    assert "0xd800 is no Unicode character" in str(failed.error.description)


def in_a_transaction() -> list[bytes]:
    """A transfer, and dispositions, as Qpid JMS writes them in a transaction."""
    settled = Described(ULong(0x34), [b"t" * 8, Described(ULong(ACCEPTED), [])])
    return [
        in_long_form(transfer(1, 0, 0, b"t", b"payload", txn_id=b"t" * 8)),
        in_long_form(frame(0, DISPOSITION, True, UInt(0), UInt(0), True, settled)),
        in_long_form(frame(0, DISPOSITION, True, UInt(1), UInt(1), True, settled)),
    ]


def test_frames_of_a_transaction_are_told_by_their_octets(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = outgoing(2)
    pair.sender()
    monkeypatch.setattr(FrameRules, "read", None)  # what reads field by field
    for each in in_a_transaction():
        pair.server.receive(each)
    events = pair.server.events()
    (transfers,) = every(events, Transfers)
    (dispositions,) = every(events, Dispositions)
    assert [(each.payload, each.state) for each in transfers.deliveries] == [
        (b"payload", State(TRANSACTIONAL, txn_id=b"t" * 8))
    ]
    assert len(dispositions.numbers) == 2
    assert dispositions.state == State(TRANSACTIONAL, txn_id=b"t" * 8, outcome=State(ACCEPTED))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("place", range(11, 34))
def test_a_long_form_with_other_octets_is_taken_or_fails_the_connection(which: int, place: int) -> None:
    """Above all sizes and counts that do not fit: nothing is read beyond the frame."""
    sent = in_a_transaction()[which]
    for octet in (0x00, 0x01, 0x45, 0x7F, 0xC0, 0xD0, 0xE0, 0xF0, 0xFF):
        pair = outgoing(2)
        pair.server.receive(sent[:place] + bytes((octet,)) + sent[place + 1 :] + disposition(0, True, 1))
        events = pair.server.events()
        assert every(events, TransportFailed) or every(events, Dispositions)


@pytest.mark.parametrize("is_server", [True, False])
def test_a_larger_state_is_told_by_its_octets_only_of_one_delivery_and_at_a_client(
    monkeypatch: pytest.MonkeyPatch, is_server: bool
) -> None:
    """Artemis has ids of transactions of 36 bytes; a server gives proton only what it reads of such a state."""
    pair = outgoing(3, bare_states=is_server)
    read, reads = FrameRules.read, list[int]()

    def noted(rules: FrameRules, data: bytes, start: int, end: int) -> tuple[int, int, list[Any], int] | None:
        reads.append(end - start)
        return read(rules, data, start, end)

    monkeypatch.setattr(FrameRules, "read", noted)
    state = Described(ULong(0x34), [b"t" * 36, Described(ULong(ACCEPTED), [])])
    for first, through in ((0, 0), (1, 2)):
        pair.server.receive(frame(0, DISPOSITION, True, UInt(first), UInt(through), True, state))
    (dispositions,) = every(pair.server.events(), Dispositions)
    assert len(dispositions.numbers) == 3
    assert dispositions.state == State(TRANSACTIONAL, txn_id=b"t" * 36, outcome=State(ACCEPTED))
    assert len(reads) == (2 if is_server else 1)
