"""What waits for the client of one connection."""

from __future__ import annotations

from typing import Any

from broker_adapter.server.links.output import Output


class Peer:
    """Has so many bytes that were not written."""

    def __init__(self, size: int) -> None:
        self.size = size

    def waiting_bytes(self) -> int:
        return self.size


def test_what_the_engine_has_handed_over_counts_until_it_is_processed_and_then_as_what_the_peer_has() -> None:
    peer: Any = Peer(10)
    output = Output(peer)
    output.arrived_bytes += 100
    assert output.waiting_bytes == 110
    output.taken_bytes += 100
    peer.size += 120
    assert output.waiting_bytes == 130
    assert repr(output) == "<Output waiting_bytes=130 is_paused=False>"
