"""What the parts of one connection know of its client.  Pure."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Client:
    """The client of one connection; only the connection's protocol changes it.

    Attributes:
        container_id: how it has opened the connection; its client id, given or invented.
        is_own: whether the client is this package's own.
        envelope_version: of packed envelopes, that both ends know; 0: standard AMQP.
        uses_batches: whether several messages may go as one transfer.
        has_ended: whether the connection is over, so that nothing more is done for the client.
    """

    container_id: str = ""
    is_own: bool = False
    envelope_version: int = 0
    uses_batches: bool = False
    has_ended: bool = False
