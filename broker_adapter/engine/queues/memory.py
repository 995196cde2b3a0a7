"""What the queues of one engine share: how much of them is in memory, and in the hands of consumers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

#: Messages that one cycle hands out, about: what comes in meanwhile waits for its end.
CYCLE_HANDOUTS = 5_000
#: Deliveries that a consumer may hold although all consumers together hold as many as they may.
LEAST_UNSETTLED = 16
#: Entries of a queue that may be in memory, however many queues share the memory.
LEAST_WINDOW = 16


class _Offering(Protocol):
    """A queue, which can be told that a consumer may get something."""

    def offer(self, consumer: Any) -> None:
        """Let a consumer have its turn."""


C = TypeVar("C")
Q = TypeVar("Q", bound=_Offering)


class QueueMemory(Generic[C, Q]):
    """What the queues of one engine may keep in memory, and the consumers hold.

    Attributes:
        window: entries of one queue that may be ready in memory.
        in_hand: entries that all consumers hold.
        cycle_handouts: how many they get in one cycle, about.
        max_in_hand: how many they may hold; above it a consumer gets nothing while it holds ``LEAST_UNSETTLED``.
        limited: consumers that got less because of that, with their queues; the one that has waited longest first.
    """

    __slots__ = ("_most_each", "_most_together", "cycle_handouts", "in_hand", "limited", "max_in_hand", "window")

    def __init__(self, window: int, most_together: int, max_in_hand: int) -> None:
        self._most_each = window
        self._most_together = most_together
        self.window = window
        self.in_hand = 0
        self.cycle_handouts = CYCLE_HANDOUTS
        self.max_in_hand = max_in_hand
        self.limited: dict[C, Q] = {}

    def share(self, queues: int) -> None:
        """Share what may be in memory between so many queues that have consumers."""
        self.window = min(self._most_each, max(LEAST_WINDOW, self._most_together // max(1, queues)))

    def unlimited(self) -> Iterator[Q]:
        """Offer the room that there is to consumers that wait for it; yields their queues.

        Each of them may take one message at least, so no more are asked than there is room for.
        """
        for consumer in list(islice(self.limited, max(0, self.max_in_hand - self.in_hand))):
            queue = self.limited.pop(consumer)
            queue.offer(consumer)
            yield queue

    def most_unsettled(self, most: int) -> int:
        """Return how many deliveries a consumer may hold now, of ``most`` that it may hold at all."""
        return most if self.in_hand < self.max_in_hand else min(most, LEAST_UNSETTLED)
