"""Background jobs of the engine: each is carried out in parts, one part a cycle.  No threads, files or clock.

The entries of published transactions are moved ahead of the trimming of queues that were deleted: consumers wait for
them, and none waits for a deleted queue.  Publications are moved in the order in which they were made.  Trimming has
its turn after some moves, so that it ends however much is published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from broker_adapter.engine.commands import messaging as c

#: Parts that are moved before one part is trimmed, where both wait.
MOVES_IN_A_ROW: Final = 8


class BackgroundJobs:
    """The moves of published transactions and the trims of deleted queues that are not done yet.

    Attributes:
        moves_added: how many publications there were, since the engine began.
        moves_done: how many of them are in their queues.
        moves: the parts of each publication that is not moved yet.
        trims: the parts of each trim.
    """

    def __init__(self) -> None:
        self.moves_added = 0
        self.moves_done = 0
        self.moves: deque[Iterator[c.Command]] = deque()
        self.trims: deque[Iterator[c.Command]] = deque()
        self._moves_in_a_row = 0

    def __len__(self) -> int:
        return len(self.moves) + len(self.trims)

    def move(self, parts: Iterator[c.Command]) -> None:
        """Add the moving of a publication."""
        self.moves.append(parts)
        self.moves_added += 1

    def trim(self, parts: Iterator[c.Command]) -> None:
        """Add the trimming of a queue."""
        self.trims.append(parts)

    def trim_first(self, parts: Iterator[c.Command]) -> None:
        """Add the trimming of a queue that takes messages meanwhile: deleted ones wait for it."""
        self.trims.appendleft(parts)

    def next(self) -> c.Command | None:
        """The next part; what the part before has decided must be written."""
        if self._moves_in_a_row >= MOVES_IN_A_ROW and self.trims:
            self._moves_in_a_row = 0
            part = self._next_trim()
            if part is not None:
                return part
        while self.moves:
            part = next(self.moves[0], None)
            if part is not None:
                self._moves_in_a_row += 1
                return part
            self.moves.popleft()
            self.moves_done += 1
        return self._next_trim()

    def _next_trim(self) -> c.Command | None:
        while self.trims:
            part = next(self.trims[0], None)
            if part is not None:
                return part
            self.trims.popleft()
        return None
