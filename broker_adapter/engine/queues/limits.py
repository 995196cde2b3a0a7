"""How much a queue may hold: one rule for sends, commits, staged and published batches, and dead letters put back.

A queue takes a message while it has fewer messages, and fewer bytes, than its limits.  What is decided and not there
yet counts as there, and what a transaction takes from the queue counts as gone.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final, Protocol

from broker_adapter.engine.queues.policies import QueueSettings
from broker_adapter.wording import counted


class Filled(Protocol):
    """What the rule needs of a queue."""

    depth: int
    bytes: int
    settings: QueueSettings

    def called(self) -> tuple[str, str]:
        """Return what it is called in errors, and the command that purges it."""

    @property
    def consumers(self) -> Sized:
        """Those that take from it."""


#: Messages and bytes that a subscription may have beyond its limits until its oldest messages are dropped.
OVER_MESSAGES: Final = 10_000
OVER_BYTES: Final = 64 * 1024 * 1024


def refusal(queue: Filled, more: int = 0, more_bytes: int = 0) -> str | None:
    """Why a queue takes no further message; None where it takes one.

    Args:
        queue: the queue.
        more: messages that it will have beside those that it has; below 0: that will be gone.
        more_bytes: the same in bytes.
    """
    settings = queue.settings
    messages, size = settings.max_messages, settings.max_bytes
    if messages is not None and queue.depth + more >= messages:
        return (
            f"{queue.called()[0]} is full: {_with(queue.depth, more, 'message')}, limit {messages}"
            f" ({settings.named('max_messages')}), {counted(len(queue.consumers), 'consumer')};"
            f" {_what_to_do(queue, 'max_messages')}"
        )
    if size is not None and queue.bytes + more_bytes >= size:
        return (
            f"{queue.called()[0]} is full: {_with(queue.bytes, more_bytes, 'byte')}, limit {size}"
            f" ({settings.named('max_bytes')}); {_what_to_do(queue, 'max_bytes')}"
        )
    return None


def excess(queue: Filled) -> tuple[int, int]:
    """Return how many messages and bytes a queue has beyond its limits; below 1: none."""
    messages, size = queue.settings.max_messages, queue.settings.max_bytes
    return 0 if messages is None else queue.depth - messages, 0 if size is None else queue.bytes - size


def drops_oldest(queue: Filled) -> bool:
    """Return whether a queue has too much, and its oldest messages are to be dropped for that (``when_full``)."""
    return queue.settings.when_full == "drop_oldest" and max(excess(queue)) > 0


def never(settings: QueueSettings, what: str, messages: int, size: int) -> str | None:
    """Why this many at once find no room in a queue, however empty; None where they may.

    Args:
        settings: of the queue.
        what: puts them into it, all or none.
        messages: how many they are, beyond what is taken from the queue at once.
        size: their bytes but for those of the last one.
    """
    most, most_bytes = settings.max_messages, settings.max_bytes
    if most is not None and messages > most:
        return f"{what} has {messages} messages for one queue, limit {most} ({settings.named('max_messages')})"
    if most_bytes is not None and size >= most_bytes:
        return f"{what} has more than {size} bytes for one queue, limit {most_bytes} ({settings.named('max_bytes')})"
    return None


def _what_to_do(queue: Filled, limit: str) -> str:
    name, purge = queue.called()
    what = "limit" if limit in queue.settings.patterns else "option"
    give_way = "; option full_subscription says what gives way" if name.startswith("subscription") else ""
    return f"receive its messages or purge it ({purge}), or raise the {what}{give_way}"


def _with(now: int, more: int, noun: str) -> str:
    """Return what there is, and what the same operation adds to it or takes away."""
    there = counted(now, noun)
    if not more:
        return there
    return f"{there} and {more} more" if more > 0 else f"{there} less {-more} that are taken with it"
