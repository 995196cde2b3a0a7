"""Failed messages that wait before they are delivered again.

The first redelivery comes at once, and in order: that is what ``recover()`` and ``rollback()`` are for.  From the
second failure on each one waits longer than the one before, up to a limit, so that a message which nobody can process
does not keep its consumers busy.  Messages behind it do not wait for it.

The waiting is not stored: after a restart everything is delivered again at once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from broker_adapter.settings import EngineSettings


def redelivery_delay_ms(failures: int, settings: EngineSettings) -> int:
    """How long a message waits after this many failed deliveries, in milliseconds."""
    delay = settings.redelivery_delay_seconds
    if failures < 2 or not delay:
        return 0
    longest = settings.max_redelivery_delay_seconds
    multiplier = settings.redelivery_multiplier
    for _ in range(failures - 2):
        if delay >= longest or multiplier == 1:
            break
        delay *= multiplier
    return round(min(delay, longest) * 1000)


class _Placed(Protocol):
    """What has a position in its queue."""

    position: int


E = TypeVar("E", bound=_Placed)


class Resting(Generic[E]):
    """The resting messages of one queue, by position and by the time they are due."""

    __slots__ = ("_by_position", "_due")

    def __init__(self) -> None:
        self._by_position: dict[int, tuple[int, E]] = {}
        self._due: list[tuple[int, int]] = []  #: a heap of (due, position); those that are not so any more are skipped

    def __len__(self) -> int:
        return len(self._by_position)

    def add(self, entry: E, due_ms: int) -> None:
        """Let a message rest until then."""
        self._by_position[entry.position] = (due_ms, entry)
        heappush(self._due, (due_ms, entry.position))

    def get(self, position: int) -> E | None:
        """A message that rests; None where it does not."""
        found = self._by_position.get(position)
        return None if found is None else found[1]

    def take(self, position: int) -> E | None:
        """Take a message out, before its time; None where it does not rest."""
        found = self._by_position.pop(position, None)
        return None if found is None else found[1]

    def entries(self) -> list[E]:
        """Everything that rests."""
        return [entry for _, entry in self._by_position.values()]

    def take_all(self) -> list[E]:
        """Take out everything."""
        entries = self.entries()
        self._by_position.clear()
        self._due.clear()
        return entries

    def first_due_ms(self) -> int | None:
        """When the next message is due."""
        while self._due:
            due_ms, position = self._due[0]
            if self._by_position.get(position, (None,))[0] == due_ms:
                return due_ms
            heappop(self._due)
        return None

    def due(self, now_ms: int) -> list[E]:
        """Take out what is due."""
        entries = []
        while (first := self.first_due_ms()) is not None and first <= now_ms:
            _, position = heappop(self._due)
            entries.append(self._by_position.pop(position)[1])
        return entries
