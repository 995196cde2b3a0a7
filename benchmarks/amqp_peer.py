"""What the AMQP peer and the codec cost per message: CPU time, in memory, without sockets.

Expected on one core of a small machine: at most 8 µs per message and side for a 1 KiB transfer and its disposition.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker_adapter.amqp.events import ACCEPTED_STATE, Dispositions, LinkRemoteOpen, Terminus, Transfers
from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp
from broker_adapter.amqp.messages.payloads import decode_received, read_head, with_place
from broker_adapter.amqp.messages.stored_message import with_delivery
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack

Row = tuple[str, float, str]


def peer_costs(messages: int, body_bytes: int) -> tuple[float, float]:
    """CPU microseconds per message of the sending and of the receiving side, transfer and disposition."""
    client = Peer(PeerLimits())
    server = Peer(PeerLimits(), server=True)
    client.open("client")
    server.open("server")
    link = client.attach_sender(client.begin_session(), "s", Terminus("s"), Terminus("q"))
    server_link = 0
    for _ in range(4):
        server.receive(client.pending_output())
        for event in server.events():
            if isinstance(event, LinkRemoteOpen):
                server_link = event.link
                server.accept_link(event.link, event.source, event.target)
                server.credit(event.link, messages)
        client.receive(server.pending_output())
        client.events()
    payload = bytes(body_bytes)
    client_seconds = server_seconds = 0.0
    sent = settled = 0
    clock = time.process_time
    while settled < messages:
        start = clock()
        for _ in range(min(100, messages - sent)):
            client.send(link, payload)
            sent += 1
        data = client.pending_output()
        middle = clock()
        server.receive(data)
        for event in server.events():
            if isinstance(event, Transfers):
                server.settle(server_link, [delivery.number for delivery in event.deliveries], ACCEPTED_STATE)
        answer = server.pending_output()
        end = clock()
        client.receive(answer)
        for event in client.events():
            if isinstance(event, Dispositions):
                settled += len(event.numbers)
        client_seconds += middle - start + clock() - end
        server_seconds += end - middle
    return client_seconds / messages * 1e6, server_seconds / messages * 1e6


def cost(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times * 1e6


def main(messages: int = 50_000) -> list[Row]:
    """Measure; returns rows of (name, value, unit)."""
    rows: list[Row] = []
    sender, receiver = peer_costs(messages, 1024)
    rows.append(("peer, 1 KiB, sending side", sender, "µs/message"))
    rows.append(("peer, 1 KiB, receiving side", receiver, "µs/message"))
    envelope = Envelope(
        queue("q"), BodyKind.TEXT, "x" * 1024, {"a": 1, "b": "c"}, "ID:1", sent_at_ms=1, identity=Identity("p", 1, 2)
    )
    packed, encoded = pack(envelope), encode_amqp(envelope)
    delivered = with_place(1, 0, None, packed)
    times = messages // 5
    for name, call in (
        ("codec, envelope, pack", lambda: pack(envelope)),
        ("codec, envelope, routing fields", lambda: read_head(packed, 0)),
        ("codec, envelope, place in front", lambda: with_place(1, 0, None, packed)),
        ("codec, envelope, decode a delivery", lambda: decode_received(delivered)),
        ("codec, AMQP, encode", lambda: encode_amqp(envelope)),
        ("codec, AMQP, routing fields", lambda: read_head(encoded, 0)),
        ("codec, AMQP, delivery count set", lambda: with_delivery(encoded, 1)),
        ("codec, AMQP, decode", lambda: decode_amqp(encoded)),
    ):
        rows.append((name, cost(call, times), "µs/message"))
    return rows


if __name__ == "__main__":
    for name, value, unit in main():
        print(f"{name:45} {value:8.2f} {unit}")
