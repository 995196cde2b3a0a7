"""Redelivery back-off: failed messages wait before they are delivered again, and their consumers wait with them.

What ``recover()``, ``rollback()`` or a lost connection gives back is redelivered at once, and in order.  A message
whose listener raised comes at once the first time.  From the second time on it waits longer than before, up to a limit,
so that a message which cannot be processed does not keep its consumer busy.  That consumer gets nothing meanwhile:
nothing later of it, of the message groups that it owns, or of a queue that it has for itself, passes the message.

The waiting is not stored, and ends with its consumer: then everything is delivered again at once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from broker_adapter.settings import EngineSettings


def redelivery_delay_ms(failures: int, settings: EngineSettings) -> int:
    """Return how long a message waits whose listener has raised so often, in milliseconds."""
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
H = TypeVar("H")


class _Delayed(NamedTuple, Generic[E, H]):
    due_ms: int
    entry: E
    holder: H | None


class Backoff(Generic[E, H]):
    """The messages of one queue whose redelivery is delayed, by position and by the time they are due.

    Attributes:
        failures: position → how often the listener of its message has raised.
        holders: consumer → how many messages that it failed to process are delayed.  It gets nothing while it is here.
    """

    __slots__ = ("_by_position", "_due", "_released", "failures", "holders")

    def __init__(self) -> None:
        self._by_position: dict[int, _Delayed[E, H]] = {}
        self._due: list[tuple[int, int]] = []  #: a heap of (due, position); those that are not so any more are skipped
        self.failures: dict[int, int] = {}
        self._released: list[H] = []
        self.holders: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._by_position)

    def failed(self, position: int, most: int) -> int:
        """Count that the listener of a message raised; returns how often it has.

        Args:
            position: of the message.
            most: messages of the queue that are counted; beyond it, each time is the first one.
        """
        failures = self.failures
        count = failures.get(position, 0) + 1
        if count > 1 or len(failures) < most:
            failures[position] = count
        return count

    def stop_counting(self, position: int) -> None:
        """The message at this position is gone."""
        self.failures.pop(position, None)

    def add(self, entry: E, due_ms: int, holder: H | None) -> None:
        """Delay a message until then, and with it the consumer that failed to process it."""
        self._by_position[entry.position] = _Delayed(due_ms, entry, holder)
        heappush(self._due, (due_ms, entry.position))
        if holder is not None:
            self.holders[holder] = self.holders.get(holder, 0) + 1

    def get(self, position: int) -> E | None:
        """A message that is delayed; None where it is not."""
        found = self._by_position.get(position)
        return None if found is None else found.entry

    def take(self, position: int) -> E | None:
        """Take a message out, before its time; None where it is not delayed."""
        found = self._by_position.pop(position, None)
        if found is None:
            return None
        holder = found.holder
        if holder is not None:
            left = self.holders[holder] - 1
            if left:
                self.holders[holder] = left
            else:
                del self.holders[holder]
                self._released.append(holder)
        return found.entry

    def take_of(self, holder: H) -> list[E]:
        """Take out what a consumer failed to process that has gone."""
        if holder not in self.holders:
            return []
        found = [position for position, each in self._by_position.items() if each.holder is holder]
        return [entry for entry in map(self.take, found) if entry is not None]

    def take_released(self) -> list[H]:
        """The consumers that need not wait any more, since this was asked last."""
        if not self._released:
            return []
        released, self._released = self._released, []
        return [holder for holder in released if holder not in self.holders]

    def entries(self) -> list[E]:
        """All messages that are delayed."""
        return [each.entry for each in self._by_position.values()]

    def take_all(self) -> list[E]:
        """Take out everything."""
        entries = self.entries()
        for entry in entries:
            self.take(entry.position)
        self._due.clear()
        return entries

    def first_due_ms(self) -> int | None:
        """Return when the next message is due."""
        while self._due:
            due_ms, position = self._due[0]
            found = self._by_position.get(position)
            if found is not None and found.due_ms == due_ms:
                return due_ms
            heappop(self._due)
        return None

    def due(self, now_ms: int) -> list[tuple[E, H | None]]:
        """Take out what is due, each with the consumer that failed to process it."""
        found = []
        while (first := self.first_due_ms()) is not None and first <= now_ms:
            position = heappop(self._due)[1]
            delayed = self._by_position[position]
            self.take(position)
            found.append((delayed.entry, delayed.holder))
        return found
