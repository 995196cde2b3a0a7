"""Which messages were processed by the consumer that got them after another one: remembered for a while.

A client whose connection was lost says again what it had acknowledged.  Where such a message is gone, either its
acknowledgement had arrived, or another consumer got it and has processed it too.  The delivery that was accepted tells
them apart: it had failed more often than the one that the client had.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: Messages that are remembered, of all queues; the oldest is forgotten.
MAX_REMEMBERED: Final = 50_000


class Redelivered:
    """Messages that were accepted after a delivery of them had failed."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._failures: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def accepted(self, queue: int, position: int, failures: int) -> None:
        """A consumer has processed a message whose delivery had failed so often before."""
        self._failures[queue, position] = failures
        if len(self._failures) > self._most:
            self._failures.popitem(last=False)

    def was_accepted_later(self, queue: int, position: int, failures: int) -> bool:
        """Whether a later delivery was accepted than the one before which so many had failed."""
        accepted = self._failures.get((queue, position))
        return accepted is not None and accepted > failures
