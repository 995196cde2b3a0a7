"""A walk through all events of a client's queue, over several cycles of the engine.

A queue may have a million events, and one cycle examines some hundred of them.  A walk finds which events are left
out: those of queries that were closed, which are to be taken out of the queue and counted, or those that are conflated,
where the size of the queue has to be known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

#: Answers a command: the number of events that were taken out, or an error.
Answer = Callable[[Any], None]


class QueryDrain:
    """The events of some queries of a client are to be taken out of its queue.

    Attributes:
        region: of the queries.
        names: of them.
        through: up to this position: behind it, the queries have no events.
        answer: gets how many events were taken out; None: no command waits for it, as after a restart.
    """

    __slots__ = ("answer", "names", "region", "through")

    def __init__(self, region: int, names: Sequence[str], through: int, answer: Answer | None = None) -> None:
        self.region = region
        self.names = tuple(names)
        self.through = through
        self.answer = answer

    def record(self) -> tuple[int, tuple[str, ...], int]:
        """For the store."""
        return self.region, self.names, self.through


class Walk:
    """How far a walk has come, and what it has found.

    Attributes:
        drain: what it is for; None: it counts what is conflated.
        first: behind this position it began.
        after: up to here everything was examined.
        through: up to here it goes.
        found: the positions that it has found.
    """

    __slots__ = ("after", "drain", "first", "found", "through")

    def __init__(self, after: int, through: int, drain: QueryDrain | None = None) -> None:
        self.drain = drain
        self.first = self.after = after
        self.through = through
        self.found = array("Q")

    @property
    def is_done(self) -> bool:
        """Whether everything was examined."""
        return self.after >= self.through

    def note_part(self, found: Iterable[int], after: int) -> None:
        """Note what one part has found, and how far it went."""
        self.found.extend(found)
        self.after = after


def count_behind(positions: array[int], position: int) -> int:
    """Return how many of some positions, in order, stand behind one."""
    return len(positions) - bisect_right(positions, position)
