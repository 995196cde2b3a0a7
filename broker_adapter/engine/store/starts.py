"""The starts of an engine on its store: what tells whether a position still means what it meant.  Pure.

Theory of operation
    A store that is replaced by another copy of itself gives positions a second time, to other messages.  Nothing in
    the copy says so.  So each start of the engine is a *run* with a word of its own, and the store notes with it which
    position each queue would give next.  A client that has seen a position keeps the run in which it was seen.

    A run that the store knows was a run of this store, up to where the run behind it began.  A run that it does not
    know was a run of another copy, or was forgotten; no clock can tell where it would belong.  So a client that has
    seen a position also keeps the runs before that one, with the position at which each of them began in this queue:
    its *links*.  The first of them that the store knows is where the two histories part, and what both of them have in
    common ends where the earlier of the two next runs began.  Where the store knows none, it has nothing in common
    with them that it could be sure of.

    A store keeps a limited number of runs, and drops the oldest.  A client that has seen positions long ago, and only
    waits since, is told that its run is aging, and keeps the present run in its place while the store still has both.

    A start of the engine is stored with the first commit of that run, or when a client asks in which run a position was
    seen.  So no position that is stored was given, and none was seen, in a run that is not stored.  A start with
    neither is dropped when the engine stops: no client can name it, and its first position is that of the next one.  So
    starts that do nothing drop none of the runs that the store has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker_adapter.engine.records.layout import RunRecord
from broker_adapter.engine.records.start_numbers import ALWAYS_KEPT_RUNS
from broker_adapter.engine.store.port import DurableStore
from broker_adapter.errors import ResourceAllocationException

#: Positions at the start of a run that are kept in memory: those that streaming queries ask for again and again.
_KEPT_POSITIONS: Final = 10_000
#: Runs that are named where a position was seen: that one, and those before it.
LINKS: Final = 8
#: Starts behind a run from which on clients that have seen positions in it should ask again, before it is forgotten.
AGING_STARTS: Final = ALWAYS_KEPT_RUNS // 2
#: No queue gives an earlier position.
_FIRST: Final = 1


class StartPosition(NamedTuple):
    """A run, and the position at which it began in one queue; 0: that is not known."""

    run: str
    start: int


def new_run(now_ms: int, token: str) -> str:
    """The word for a run that begins now; ``token`` is random.

    The time is for people.
    """
    return f"{now_ms:012x}-{token}"


def text_of(links: Sequence[StartPosition]) -> str:
    """Links as clients keep them; the latest one, which comes first, has the word of its run first."""
    return "<".join(f"{link.run}@{link.start}" for link in links)


def links_of(text: str) -> list[StartPosition]:
    """Return the links that a client has kept, as far as they can be read."""
    links = []
    for part in text.split("<", LINKS)[:LINKS]:
        run, _, start = part.rpartition("@")
        if not run or not start.isdecimal() or len(start) > 20:
            break
        links.append(StartPosition(run, int(start)))
    return links


def run_of(text: str) -> str:
    """Return the run that a client names, by its word alone or by links."""
    return text.partition("@")[0]


def links_to(known: Sequence[str], start: Callable[[str], int]) -> list[StartPosition]:
    """The links of the last run.

    Args:
        known: the runs in order; empty in place of those that cannot be trusted.
        start: the position at which a run of these began.
    """
    links: list[StartPosition] = []
    for run in reversed(known):
        if not run or len(links) == LINKS:
            break
        began = start(run)
        if links and began == links[-1].start:
            continue  # the queue gave no position in it, so the run behind it says as much
        links.append(StartPosition(run, began))
        if links[-1].start <= _FIRST:
            break  # the runs before that have no positions
    return links


def kept(links: Sequence[StartPosition], known: Sequence[str], start: Callable[[str], int], next_position: int) -> int:
    """Positions below this one are those of the same messages as where these links are from.

    Args:
        links: of the run in which the positions were seen, the latest first.
        known: the runs that the store knows, in order, the present one at their end; empty in place of those that
            cannot be trusted.
        start: the position at which a run of these began.
        next_position: the one that the queue will give next.
    """
    other = next_position  # where the run behind the link began there
    for link in links:
        if link.run and link.run in known:
            behind = known.index(link.run) + 1
            if behind == len(known):
                return min(other, next_position)
            # It is not known how far a run went behind which one is missing.
            return min(other, next_position, start(known[behind] or link.run))
        other = max(_FIRST, min(other, link.start))
    return _FIRST


def is_aging(links: Sequence[StartPosition], known: Sequence[str]) -> bool:
    """Return whether a run is one of those that are forgotten next, so that clients with positions of it should ask
    again.

    Args:
        links: of the run in which the positions were seen, the latest first.
        known: the runs that the store knows, in order, the present one at their end; empty in place of those that
            cannot be trusted.
    """
    behind = next((len(known) - 1 - known.index(run) for run, _ in links if run and run in known), 0)
    return behind > AGING_STARTS


class Runs:
    """This run and those before it, with the positions at which they began.

    Args:
        run: the word of this one.
        disk: the store on disk; None: there are no earlier runs.

    Attributes:
        word: of this run.
    """

    def __init__(self, run: str, disk: DurableStore | None) -> None:
        self.word = run
        self._disk = disk
        self._earlier: list[str] = []
        self._start_positions: dict[int, int] = {}
        self._positions: dict[tuple[str, int], int] = {}  #: (run, queue) → where it began

    def begin(self, positions: dict[int, int]) -> None:
        """Learn the earlier runs from the store, and have this one noted with the first commit.

        Args:
            positions: the position that each queue will give next; those without messages are missing.
        """
        self._start_positions = positions
        if self._disk is not None:
            self._earlier = self._disk.runs()
            self._disk.begin_run(RunRecord(self.word, positions))

    def seen(self, queue: int) -> str:
        """Return what tells later, for a queue, in which run its positions were seen; notes this one in the store.

        Raises:
            ResourceAllocationException: the store has no room for the note.
            StoreException: the store has failed.
        """
        if self._disk is not None:
            try:
                self._disk.note_run()
            except ResourceAllocationException as error:
                raise ResourceAllocationException(
                    f"{error.reason}, and ask again: the start of the engine is not noted in the store yet, and without"
                    " that positions cannot be told from those of a restored older copy"
                ) from error
        return text_of(links_to([*self._earlier, self.word], lambda run: self._start(queue, run)))

    def kept(self, queue: int, seen: str, next_position: int) -> int:
        """Positions of a queue below this one are those of the same messages as where they were seen.

        Args:
            queue: its number.
            seen: what ``seen`` has answered there.
            next_position: the one that the queue will give next.
        """
        known = [*self._earlier, self.word]
        return kept(links_of(seen), known, lambda run: self._start(queue, run), next_position)

    def is_aging(self, seen: str) -> bool:
        """Return whether the run of some positions will be forgotten before long; ``seen`` as for ``kept``."""
        return is_aging(links_of(seen), [*self._earlier, self.word])

    def _start(self, queue: int, run: str) -> int:
        """The position that a queue would give next when a known run began."""
        if self._disk is None or run == self.word:
            return self._start_positions.get(queue, _FIRST)
        key = run, queue
        if key not in self._positions:
            if len(self._positions) >= _KEPT_POSITIONS:
                self._positions.clear()
            self._positions[key] = self._disk.run_positions(run).get(queue, _FIRST)
        return self._positions[key]
