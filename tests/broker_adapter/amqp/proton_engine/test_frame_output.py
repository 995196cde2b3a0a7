"""The bytes that a peer sends, in portions and in order."""

from __future__ import annotations

from broker_adapter.amqp.events import LinkRemoteOpen, Transfers, TransportFailed
from broker_adapter.amqp.messages.values import UInt
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from tests.broker_adapter.amqp.frames import BEGIN, HEADER, attach, frame, open_frame
from tests.broker_adapter.amqp.pair import Pair, arrived, every, last


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
