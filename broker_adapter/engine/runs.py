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
