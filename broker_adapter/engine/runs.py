"""The starts of an engine on its store: what tells whether a position still means what it meant.  Pure.

Theory of operation
    A store that is replaced by an older copy of itself gives positions a second time, to other messages.  Nothing in
    the copy says so.  So each start of the engine is a *run* with a word of its own, and the store notes with it which
    position each queue would give next.  Who has seen a position keeps the run in which it was seen.  What was seen in
    a run has positions below those with which the run behind it began; where that is not so, this store has never been
    where the position was seen.

    The word begins with the time of the start.  So a run that the store does not know, because it was forgotten or
    because the copy is older than it, still has its place among those that it knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from broker_adapter.engine.records import RunRecord
from broker_adapter.engine.store import DurableStore

#: Positions at the start of a run that are kept in memory: those that streaming queries ask for again and again.
_KEPT_POSITIONS: Final = 1_000


def new_run(now_ms: int, token: str) -> str:
    """The word for a run that begins now; ``token`` is random."""
    return f"{now_ms:012x}-{token}"


def following(runs: Sequence[str], run: str) -> str | None:
    """The run behind one.

    Args:
        runs: those that the store knows, in order.
        run: one of them, or another.

    Returns:
        None where there is none in ``runs``.
    """
    index = runs.index(run) + 1 if run in runs else bisect_right(runs, run)
    return runs[index] if index < len(runs) else None


class Runs:
    """This run and those before it, with the positions at which they began.

    Args:
        run: the word of this one.
        disk: the store on disk; None: there are no earlier runs.

    Attributes:
        noted: the word of this run; empty where the store has no room to note it.
    """

    def __init__(self, run: str, disk: DurableStore | None) -> None:
        self.noted = run
        self._run = run
        self._disk = disk
        self._earlier: list[str] = []
        self._start_positions: dict[int, int] = {}
        self._positions: dict[tuple[str, int], int] = {}  #: (run, queue) → where it began

    def begin(self, positions: dict[int, int]) -> None:
        """Note this run in the store, and learn the earlier ones from it.

        Args:
            positions: the position that each queue will give next; those without messages are missing.
        """
        self._start_positions = positions
        if self._disk is None:
            return
        if not self._disk.begin_run(RunRecord(self._run, positions)):
            self.noted = ""
        self._earlier = [run for run in self._disk.runs() if run != self._run]

    def restart_position(self, queue: int, run: str) -> int:
        """The position that a queue would give next when the run behind this one began."""
        behind = following(self._earlier, run)
        if self._disk is None or behind is None:
            return self._start_positions.get(queue, 1)
        key = behind, queue
        if key not in self._positions:
            if len(self._positions) >= _KEPT_POSITIONS:
                self._positions.clear()
            self._positions[key] = self._disk.run_positions(behind).get(queue, 1)
        return self._positions[key]
