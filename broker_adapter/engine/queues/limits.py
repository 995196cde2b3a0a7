"""How much a queue may hold: one rule for sends, commits, staged and published batches, and dead letters put back.

A queue takes a message while it has fewer messages, and fewer bytes, than its limits.  What is decided and not there
yet counts as there, and what a transaction takes from the queue counts as gone.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final, Protocol

import attrs

from broker_adapter.wording import counted


class Filled(Protocol):
    """What the rule needs of a queue."""

    depth: int
    bytes: int

    def called(self) -> tuple[str, str]:
        """Return what it is called in errors, and the command that purges it."""

    @property
    def consumers(self) -> Sized:
        """Those that take from it."""


#: Messages and bytes that a subscription may have beyond its limits until its oldest messages are dropped.
OVER_MESSAGES: Final = 10_000
OVER_BYTES: Final = 64 * 1024 * 1024


@attrs.frozen
class QueueLimits:
    """The limits of each queue; None: none.

    Attributes:
        messages: option ``max_queue_messages``.
        bytes: option ``max_queue_bytes``.
    """

    messages: int | None
    bytes: int | None

    def refusal(self, queue: Filled, more: int = 0, more_bytes: int = 0) -> str | None:
        """Why a queue takes no further message; None where it takes one.

        Args:
            queue: the queue.
            more: messages that it will have beside those that it has; below 0: that will be gone.
            more_bytes: the same in bytes.
        """
        if self.messages is not None and queue.depth + more >= self.messages:
            return (
                f"{queue.called()[0]} is full: {_with(queue.depth, more, 'message')}, limit {self.messages} (option"
                f" max_queue_messages), {counted(len(queue.consumers), 'consumer')}; {_what_to_do(queue)}"
            )
        if self.bytes is not None and queue.bytes + more_bytes >= self.bytes:
            return (
                f"{queue.called()[0]} is full: {_with(queue.bytes, more_bytes, 'byte')}, limit {self.bytes} (option"
                f" max_queue_bytes); {_what_to_do(queue)}"
            )
        return None

    def excess(self, queue: Filled) -> tuple[int, int]:
        """Return how many messages and bytes a queue has beyond its limits; below 1: none."""
        return (
            0 if self.messages is None else queue.depth - self.messages,
            0 if self.bytes is None else queue.bytes - self.bytes,
        )

    def never(self, what: str, messages: int, size: int) -> str | None:
        """Why this many at once find no room in any queue; None where they may.

        Args:
            what: puts them into one queue, all or none.
            messages: how many they are, beyond what is taken from the queue at once.
            size: their bytes but for those of the last one.
        """
        if self.messages is not None and messages > self.messages:
            return f"{what} has {messages} messages for one queue, limit {self.messages} (option max_queue_messages)"
        if self.bytes is not None and size >= self.bytes:
            return f"{what} has more than {size} bytes for one queue, limit {self.bytes} (option max_queue_bytes)"
        return None


def _what_to_do(queue: Filled) -> str:
    name, purge = queue.called()
    give_way = "; option full_subscription says what gives way" if name.startswith("subscription") else ""
    return f"receive its messages or purge it ({purge}), or raise the option{give_way}"


def _with(now: int, more: int, noun: str) -> str:
    """Return what there is, and what the same operation adds to it or takes away."""
    there = counted(now, noun)
    if not more:
        return there
    return f"{there} and {more} more" if more > 0 else f"{there} less {-more} that are taken with it"
