"""Messages of one command that can be taken in one step: alike but for their payloads.

Nearly all messages that come together do: one producer sends them one behind the other, with one priority, and without
an expiry or a delay.  What is decided for each of them is the same then, and is decided once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.envelope import Identity


class MessageRun(NamedTuple):
    """Messages that differ in their payload, their group and the sequence of their identity only."""

    messages: Sequence[NewMessage]
    sizes: Sequence[int]  #: of the payloads, in bytes
    priority: int
    persistent: bool
    identity: Identity | None  #: of the first one; the sequences of the others follow it without a gap

    @property
    def last_sequence(self) -> int:
        """Of the last one, where they have identities."""
        return self.identity.sequence + len(self.messages) - 1 if self.identity is not None else 0


def run_of(messages: Sequence[NewMessage]) -> MessageRun | None:
    """The messages as a run; None where they are no run, or less than two."""
    if len(messages) < 2:
        return None
    _, _, priority, persistent, _, _, identity, _ = messages[0]
    producer_id, thread_id, sequence = identity or ("", 0, 0)
    sizes = []
    for _, payload, its_priority, is_persistent, expires_at_ms, deliver_at_ms, its_identity, _ in messages:
        if (
            expires_at_ms is not None
            or deliver_at_ms is not None
            or its_priority != priority
            or is_persistent is not persistent
        ):
            return None
        if its_identity is not None:
            its_producer, its_thread, its_sequence = its_identity
            if identity is None or its_sequence != sequence or its_producer != producer_id or its_thread != thread_id:
                return None
            sequence += 1
        elif identity is not None:
            return None
        sizes.append(len(payload))
    return MessageRun(messages, sizes, priority, persistent, identity)
