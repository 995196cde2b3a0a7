"""The peer as a whole: time, hostile bytes, and what is freed at the end."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    FAILED_STATE,
    REJECTED,
    RELEASED_STATE,
    TRANSACTIONAL,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteOpen,
    State,
    Transfers,
    TransportFailed,
)
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.errors import IllegalStateException
from tests.broker_adapter.amqp.pair import Pair, Unfinished, arrived, every, last


def test_a_silent_peer_is_noticed_and_a_quiet_one_sends_keep_alives() -> None:
    limits = PeerLimits(idle_timeout_ms=1_000)
    pair = Pair(limits, limits).opened()
    assert pair.client.tick(1_000) == 1_125  # a quarter of what the peer advertised, which is half of its time-out
    pair.server.tick(1_000)
    pair.client.tick(1_250)
    assert pair.client.pending_output() == bytes.fromhex("0000000802000000")

    pair.server.tick(2_001)
    assert last(pair.server.events(), TransportFailed).error.description == "local-idle-timeout expired"


@pytest.mark.parametrize("sent_ms", [1, 60, 249, 251])
def test_the_gap_between_two_frames_is_below_what_the_peer_has_asked_for(sent_ms: int) -> None:
    pair = Pair(PeerLimits(idle_timeout_ms=1_000)).opened()
    now_ms = last_ms = longest_ms = 0
    due_ms = pair.server.tick(now_ms) or 0
    frames = 0
    for now_ms in range(1, 5_000):
        if now_ms % 2_000 == sent_ms:
            pair.server.begin_session()
        if now_ms >= due_ms:
            due_ms = pair.server.tick(now_ms) or 0
        if pair.server.pending_output():
            frames += 1
            longest_ms, last_ms = max(longest_ms, now_ms - last_ms), now_ms
    assert longest_ms <= 375
    assert frames < 30


@pytest.mark.parametrize(("idle_timeout_ms", "is_kept"), [(2, False), (499, False), (500, True), (0, True)])
def test_an_idle_time_out_that_is_too_short_is_to_be_refused(idle_timeout_ms: int, is_kept: bool) -> None:
    pair = Pair(PeerLimits(idle_timeout_ms=idle_timeout_ms)).opened()

    refusal = last(pair.server_events, RemoteOpen).refusal
    assert (refusal is None) == is_kept
    if refusal is not None:
        asked = (
            f"an idle-time-out of {idle_timeout_ms // 2} ms is not kept; ask for 250 ms at least"
            " (option idle_timeout_seconds, of which half is announced: 0.5 at least)"
        )
        assert refusal == AmqpError("amqp:not-implemented", asked)


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
