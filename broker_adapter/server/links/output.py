"""What waits for the client of one connection, in bytes, and whether its socket takes it."""

from __future__ import annotations

from broker_adapter.amqp.proton_engine.peer import Peer


class Output:
    """Deliveries and answers on their way to the client, from the engine's hand-over to the socket.

    Args:
        peer: has what was sent and is not written yet.

    Attributes:
        is_paused: whether the client's socket takes no more.
        arrived_bytes: bytes of deliveries that came from the engine; counted in the engine's thread.
        taken_bytes: bytes of those that the connection's thread has taken; counted there.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer_bytes = peer.waiting_bytes
        self.is_paused = False
        self.arrived_bytes = 0
        self.taken_bytes = 0

    def __repr__(self) -> str:
        return f"<Output waiting_bytes={self.waiting_bytes} is_paused={self.is_paused}>"

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._peer_bytes() + self.arrived_bytes - self.taken_bytes
