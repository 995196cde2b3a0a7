"""Redelivery back-off: failed messages wait before they are delivered again, alone or with what must not pass them.

The first time, a message that has failed comes again at once.  From the second time on it waits, each time longer, up
to a limit:

| it failed | who waits |
|---|---|
| undone in order: a rollback, `recover()` in CLIENT (`MODIFIED`) | its consumer, and its group |
| by itself (`FAILED`), and its consumer is exclusive or keeps order | its consumer, and its group |
| by itself, and it is of a message group | its group |
| by itself, and nothing of that | the message alone: others pass it |

A consumer whose last few *different* messages all failed rests as well, each time longer, until it has processed one.
Meanwhile a message that waits alone is not counted as delivered again, so that none becomes a dead letter because a
database is away.  What keeps others waiting is always counted, since else it could keep them waiting for ever.

What has waited alone is then on the *shelf*, where selectors find it as well: it goes to consumers whose last message
did not fail.  The others get it if nothing else is there for them, so that a few bad messages keep nobody from the good
ones.

A lost connection is no failure here.  Nothing of this is stored, and what keeps a consumer waiting ends with it.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker_adapter.settings import EngineSettings

#: A consumer that has failed on so many different messages, and processed none since, rests.
FEW: Final = 3


class Waits(Enum):
    """Who waits for the next delivery of a message that has failed again."""

    MESSAGE = "message"
    GROUP = "group"
    CONSUMER = "consumer"


def who_waits(*, undone: bool, keeps_order: bool, in_group: bool) -> Waits:
    """Return who waits for a message that has failed again: the table of this module.

    Args:
        undone: whether it was given back in order, and did not fail by itself.
        keeps_order: whether its consumer is exclusive or keeps order.
        in_group: whether its consumer has the message group that it is of.
    """
    if undone or keeps_order:
        return Waits.CONSUMER
    return Waits.GROUP if in_group else Waits.MESSAGE


def redelivery_delay_ms(failures: int, settings: EngineSettings, delay: float | None = None) -> int:
    """Return how long a message waits that has failed so often, in milliseconds.

    Args:
        failures: of the message.
        settings: of the engine.
        delay: ``redelivery_delay_seconds`` of the queue; None: as the option says.
    """
    if delay is None:
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
    holders: tuple[H, ...]


class Backoff(Generic[E, H]):
    """The messages of one queue whose redelivery is delayed, by position and by the time they are due.

    Attributes:
        failures: position → how often its message has failed.
        holders: consumer or group → for how many things it waits.  It gets nothing while it is here.
        rests: consumer whose last few messages all failed → how often it has rested since then.
        shelf: positions of messages that have waited alone, the first one first.
        on_trial: positions of those that were taken from there, and have not ended or failed again.
    """

    __slots__ = ("_by_position", "_due", "_released", "_resting", "failures", "holders", "on_trial", "rests", "shelf")

    def __init__(self) -> None:
        self._by_position: dict[int, _Delayed[E, H]] = {}
        self._due: list[tuple[int, int]] = []  #: a heap of (due, position); those that are not so any more are skipped
        self._resting: dict[H, int] = {}  #: consumer → until when
        self._released: list[H] = []
        self.failures: dict[int, int] = {}
        self.holders: dict[H, int] = {}
        self.rests: dict[H, int] = {}
        # Its first one is found at once, however many were taken out before it.
        self.shelf: OrderedDict[int, None] = OrderedDict()
        self.on_trial: set[int] = set()

    def __len__(self) -> int:
        return len(self._by_position)

    @property
    def is_waiting(self) -> bool:
        """Whether a message or a consumer waits."""
        return bool(self._by_position or self._resting)

    def failed(self, position: int, most: int) -> int:
        """Count that a message has failed; returns how often it has.

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
        self.on_trial.discard(position)

    def add(self, entry: E, due_ms: int, *holders: H) -> None:
        """Delay a message until then, and with it the consumer and the group that wait for it; none: it waits alone."""
        self._by_position[entry.position] = _Delayed(due_ms, entry, holders)
        heappush(self._due, (due_ms, entry.position))
        for holder in holders:
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
        self.shelf.pop(position, None)
        for holder in found.holders:
            self._let_go(holder)
        return found.entry

    def put_back(self, entry: E) -> None:
        """Put a message that was on trial, and has not failed, onto the shelf again."""
        self.on_trial.discard(entry.position)
        self._by_position[entry.position] = _Delayed(0, entry, ())
        self.shelf[entry.position] = None

    def take_for_trial(self, position: int) -> E | None:
        """Take a message from the shelf; None where it is not there."""
        entry = self.take(position) if position in self.shelf else None
        if entry is not None:
            self.on_trial.add(position)
        return entry

    def _let_go(self, holder: H) -> None:
        left = self.holders[holder] - 1
        if left:
            self.holders[holder] = left
        else:
            del self.holders[holder]
            self._released.append(holder)

    def take_of(self, holder: H) -> list[E]:
        """Take out what a consumer waits for that has gone."""
        self.processed_one(holder)
        if holder not in self.holders:
            return []
        found = [position for position, each in self._by_position.items() if holder in each.holders]
        return [entry for entry in map(self.take, found) if entry is not None]

    def take_released(self) -> list[H]:
        """The consumers and groups that need not wait any more, since this was asked last."""
        if not self._released:
            return []
        released, self._released = self._released, []
        return [holder for holder in released if holder not in self.holders]

    def rest(self, consumer: H, now_ms: int, settings: EngineSettings, delay: float | None = None) -> None:
        """Have a consumer wait by itself, each time longer; one that does goes on waiting."""
        if consumer not in self._resting:
            rests = self.rests[consumer] = self.rests.get(consumer, 0) + 1
            self._resting[consumer] = now_ms + redelivery_delay_ms(rests + 1, settings, delay)
            self.holders[consumer] = self.holders.get(consumer, 0) + 1

    def processed_one(self, consumer: H) -> None:
        """A consumer need not rest: it has processed a message, or is gone."""
        self.rests.pop(consumer, None)
        if self._resting.pop(consumer, None) is not None:
            self._let_go(consumer)

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
        """Return when the next message is due, or a consumer has rested."""
        rested_ms = min(self._resting.values()) if self._resting else None
        while self._due:
            due_ms, position = self._due[0]
            if self._is_delayed(due_ms, position):
                return due_ms if rested_ms is None else min(due_ms, rested_ms)
            heappop(self._due)
        return rested_ms

    def _is_delayed(self, due_ms: int, position: int) -> bool:
        found = self._by_position.get(position)
        return found is not None and found.due_ms == due_ms

    def due(self, now_ms: int) -> list[tuple[E, tuple[H, ...]]]:
        """Take out what is due, each with who has waited for it; what waited alone (nobody) goes onto the shelf.

        The consumers that have rested may go on.
        """
        for consumer in [each for each, until_ms in self._resting.items() if until_ms <= now_ms]:
            del self._resting[consumer]
            self._let_go(consumer)
        found = []
        while self._due and self._due[0][0] <= now_ms:
            due_ms, position = heappop(self._due)
            if not self._is_delayed(due_ms, position):
                continue
            entry, holders = self._by_position[position][1:]
            found.append((entry, holders))
            if holders:
                self.take(position)
            else:
                self.shelf[position] = None
        return found
