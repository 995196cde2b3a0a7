"""The bytes that go out at a peer, and how what was said is kept in order."""

from __future__ import annotations

from collections import deque

from cproton_ffi import ffi

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.credit import Credit
from broker_adapter.amqp.proton_engine.frames import begins
from broker_adapter.amqp.proton_engine.outgoing import OutgoingTransfers


class FrameOutput:
    """What was taken out of proton, and not asked for yet."""

    def __init__(
        self, connection: ProtonConnection, rules: frames.FrameRules, outgoing: OutgoingTransfers, credit: Credit
    ) -> None:
        """Nothing was said.

        Args:
            connection: proton's objects.
            rules: told of the channels of our sessions.
            outgoing: gives proton the parts of large messages.
            credit: answers drains behind them.
        """
        self._connection = connection
        self._rules = rules
        self._outgoing = outgoing
        self._credit = credit
        self._written: deque[bytes] = deque()
        self._unwritten_begins = 0  # begins of ours whose channel is not known yet

    def pending_output(self, limit_bytes: int | None = None) -> bytes:
        """The bytes to send now, oldest first; about ``limit_bytes`` at most, where given.

        Each byte is returned once: the caller keeps what its socket does not take.
        """
        if self._connection.released:
            return b""
        written = self._written
        if self._unwritten_begins:
            written.append(self._take_output())
        if not written:
            return self._pull(limit_bytes)
        chunks: list[bytes] = []
        total = 0
        while written and (limit_bytes is None or total < limit_bytes):
            chunks.append(written.popleft())
            total += len(chunks[-1])
        if not written:
            chunks.append(self._pull(limit_bytes))
        return b"".join(chunks)

    def write_out(self) -> None:
        """Have what was said so far written ahead of what comes now, except parts of messages that it has not got yet.

        proton writes begins, flows and transfers ahead of dispositions, whichever was first.
        """
        if not self._connection.released:
            outgoing = self._outgoing
            later, outgoing.with_later = outgoing.with_later, {}
            try:
                data = self._take_output()
                if data:
                    self._written.append(data)
            finally:
                outgoing.with_later = later

    def note_begin(self) -> None:
        """A session of ours has begun: its channel is to be read from what is written."""
        self._unwritten_begins += 1

    def _take_output(self) -> bytes:
        """All that there is to send, which ends with a whole frame; begins of ours in it are noted."""
        data = self._pull(None)
        if self._unwritten_begins:
            for channel in begins(data):
                self._unwritten_begins -= 1
                self._rules.begun(channel)
        return data

    def _pull(self, limit_bytes: int | None) -> bytes:
        connection, outgoing = self._connection, self._outgoing
        engine, transport = connection.engine, connection.c_transport
        pending, peek, pop = engine.pn_transport_pending, engine.pn_transport_peek, engine.pn_transport_pop
        unpack = ffi.unpack
        chunks: list[bytes] = []
        total = 0
        while limit_bytes is None or total < limit_bytes:
            if outgoing.with_later:
                outgoing.give_parts()
            size = pending(transport)
            if connection.stuck and connection.failure is None:
                # The peer allows fewer channels or handles than it has answered, or wants answered.
                reason = f"nothing can be written: {connection.stuck}"
                connection.fail(AmqpError("amqp:resource-limit-exceeded", reason))
                continue
            if size == 0 and self._credit.returning and self._credit.answer_drains():
                continue
            if size <= 0:
                connection.unwritten_bytes = 0
                if size < 0:
                    connection.output_closed = True
                break
            if size > connection.scratch_bytes:
                connection.grow_scratch(size)
            scratch = connection.scratch
            peek(transport, scratch, size)
            chunks.append(unpack(scratch, size))
            pop(transport, size)
            total += size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self) -> None:
        """Nothing is sent any more: the connection is released."""
        self._written.clear()
