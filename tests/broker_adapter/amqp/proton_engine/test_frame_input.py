"""Frames that a peer refuses before proton sees them."""

from __future__ import annotations

import pytest

from broker_adapter.amqp.events import TransportFailed
from broker_adapter.amqp.peer import Peer, PeerLimits
from tests.broker_adapter.amqp.pair import Pair, last


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
