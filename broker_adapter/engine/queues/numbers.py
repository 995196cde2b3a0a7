"""The numbers that name queues in the stores.

A queue or durable subscription has a number that no other one had before, also none that is deleted: what was noted of
a deleted queue must not be taken for another one's.  A staged transaction lives for a short time only, so its number
may be one that an earlier transaction had.  The numbers of queues in memory start again with each run of the engine.
"""

from __future__ import annotations

from collections.abc import Container

from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.records.layout import FIRST_STAGED_QUEUE, FIRST_VOLATILE_QUEUE, NEXT_QUEUE, encode_meta
from broker_adapter.errors import ResourceAllocationException


class QueueNumbers:
    """The next number of each kind of queue.

    Attributes:
        next: of the next queue or durable subscription.
    """

    def __init__(self, secret: bytes, *, durable: bool) -> None:
        """The numbers of an engine that has no queues.

        Args:
            secret: differs from run to run.
            durable: whether there is a store that remembers the next number.
        """
        self.next = 1
        # Not from the same one in each run: what is in quarantine goes by the number.
        self._next_staged = FIRST_STAGED_QUEUE + int.from_bytes(secret[:4]) % FIRST_STAGED_QUEUE
        self._next_volatile = FIRST_VOLATILE_QUEUE
        self._durable = durable

    def restore(self, number: int) -> None:
        """The store has a queue of this number."""
        if number < FIRST_STAGED_QUEUE:
            self.next = max(self.next, number + 1)

    def new(self, effects: Effects) -> int:
        """A number for a queue or durable subscription.

        Raises:
            ResourceAllocationException: there is none left.
        """
        number = self.next
        if number >= FIRST_STAGED_QUEUE:
            raise ResourceAllocationException(
                f"{number - 1} queues and durable subscriptions were made since the store is new, and it has no number"
                " for another one: move what it has to a new store"
            )
        self.next = number + 1
        if self._durable:
            effects.durable.put("meta", NEXT_QUEUE, encode_meta(NEXT_QUEUE, number + 1))
        return number

    def new_staged(self, used: Container[int]) -> int:
        """A number for a staged transaction: none of those that are ``used`` now."""
        number = self._next_staged
        while number in used or number >= FIRST_VOLATILE_QUEUE:
            number = number + 1 if number < FIRST_VOLATILE_QUEUE else FIRST_STAGED_QUEUE
        self._next_staged = number + 1
        return number

    def new_volatile(self) -> int:
        """A number for a queue in memory."""
        number = self._next_volatile
        self._next_volatile = number + 1
        return number
