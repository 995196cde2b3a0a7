"""Messages that some consumers of a queue do not take, and others may (``undeliverable-here``, AMQP 1.0 section 3.4.4).

Such a message does not come to a consumer again that has given it back so.  It waits beside the lanes of its queue for
another one, so that a dispatch without such messages costs nothing.  Once all the consumers that refused it have gone
it has its turn in its lane again; and if no other has come by then, its waiting ends when it is due.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

#: Messages of a queue that are noted, and consumers of one message; what would be beyond it is set aside at once.
MOST_MESSAGES: Final = 10_000
MOST_CONSUMERS: Final = 32

#: When a waiting ends that has ended.
_OVER: Final = -1

H = TypeVar("H")


class Undeliverable(Generic[H]):
    """What the consumers of one queue do not take.

    Attributes:
        refusers: position of a message → the consumers that it does not come to any more.
        waiting: refusers → a heap of (lane, position) of the messages that wait for another consumer, or are gone.
    """

    __slots__ = ("_due", "_due_ms", "refusers", "waiting")

    def __init__(self) -> None:
        self.refusers: dict[int, frozenset[H]] = {}
        self.waiting: dict[frozenset[H], list[tuple[int, int]]] = {}
        self._due_ms: dict[int, int] = {}  #: position → when its waiting ends
        self._due: list[tuple[int, int]] = []  #: a heap of (due, position); those that are not so any more are skipped

    def refuse(self, position: int, consumer: H, due_ms: int) -> bool:
        """Note that a consumer does not take a message.

        Args:
            position: of the message.
            consumer: the consumer.
            due_ms: when the message has waited long enough for another one.

        Returns:
            False, and nothing is noted, where there are too many messages, or too many consumers that refused this one.
        """
        known = self.refusers.get(position, frozenset[H]())
        if len(known) >= MOST_CONSUMERS or (not known and len(self.refusers) >= MOST_MESSAGES):
            return False
        self.refusers[position] = known | {consumer}
        self.wait_until(position, due_ms)
        return True

    def wait_until(self, position: int, due_ms: int) -> None:
        """Set when the waiting of a message ends."""
        self._due_ms[position] = due_ms
        heappush(self._due, (due_ms, position))

    def add(self, lane: int, position: int) -> None:
        """Have a message, which is noted, wait for another consumer."""
        refusers = self.refusers[position]
        waiting = self.waiting.setdefault(refusers, [])
        heappush(waiting, (lane, position))
        if len(waiting) > 2 * len(self.refusers) + 64:  # consumers with selectors take messages without a look at it
            waiting[:] = [place for place in waiting if self.refusers.get(place[1]) == refusers]
            heapify(waiting)

    def take(self, consumer: H) -> int | None:
        """Take out the position of the next message that may come to a consumer; None: there is none."""
        for refusers, waiting in list(self.waiting.items()):
            if consumer in refusers:
                continue
            while waiting:
                position = heappop(waiting)[1]
                if self.refusers.get(position) == refusers:
                    return position
            del self.waiting[refusers]
        return None

    def remove(self, position: int) -> None:
        """Forget a message that has ended."""
        if self.refusers.pop(position, None) is not None:
            del self._due_ms[position]

    def consumer_gone(self, consumer: H) -> list[tuple[int, int]]:
        """Forget a consumer; returns (lane, position) of the messages that may come to every consumer again."""
        refused = [position for position, each in self.refusers.items() if consumer in each]
        if not refused:
            return []
        places = [place for waiting in self.waiting.values() for place in waiting]
        self.waiting.clear()
        for position in refused:
            rest = self.refusers[position] - {consumer}
            if rest:
                self.refusers[position] = rest
            else:
                self.remove(position)
        free = []
        for lane, position in places:
            if position in self.refusers:
                self.add(lane, position)
            else:
                free.append((lane, position))
        return free

    def first_due_ms(self) -> int | None:
        """When the waiting of the next message ends."""
        while self._due:
            due_ms, position = self._due[0]
            if self._due_ms.get(position) == due_ms:
                return due_ms
            heappop(self._due)
        return None

    def due(self, now_ms: int) -> list[int]:
        """The positions of the messages whose waiting has ended; it has to be set again for those that stay."""
        found = []
        while (first := self.first_due_ms()) is not None and first <= now_ms:
            position = heappop(self._due)[1]
            self._due_ms[position] = _OVER  # it may be there twice
            found.append(position)
        return found
