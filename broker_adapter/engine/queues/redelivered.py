"""Which messages others processed than the first who got them, or were set aside: remembered for a while.

A client whose connection was lost says again what it had acknowledged.  Where such a message is gone, either its
acknowledgement had arrived, or others got the message and have processed it too, or it was set aside: it failed too
often with this loss, and is a dead letter, or its time was over, and it is in the expiry queue.  What is remembered
tells them apart: each message that was processed or set aside after a delivery of it had failed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: Messages that are remembered, of all queues; the oldest is forgotten.
MAX_REMEMBERED: Final = 50_000


class Redelivered:
    """Messages that ended after a delivery of them had failed."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._failures: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def ended(self, queue: int, position: int, failures: int) -> None:
        """A message has ended in a delivery before which so many had failed; or was set aside, after them."""
        self._failures[queue, position] = failures
        if len(self._failures) > self._most:
            self._failures.popitem(last=False)

    def has_ended(self, queue: int, position: int) -> bool:
        """Return whether a message has ended after a delivery had failed."""
        return (queue, position) in self._failures

    def ended_later(self, queue: int, position: int, failures: int) -> bool:
        """Return whether a message has ended in a later delivery than the one before which so many had failed."""
        ended = self._failures.get((queue, position))
        return ended is not None and ended > failures
