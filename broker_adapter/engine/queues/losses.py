"""Deliveries that count as failed since their connection was lost, until its client says which it had seen.

A message that was on its way through the network when that broke was never seen by anybody.  Only the client knows
which those are: when it is back, it names what it had seen, and all others of that connection do not count.

Others may have got such a message meanwhile, and lost it in their turn.  So each loss is taken back by itself, by the
token of its connection, wherever the message is by then, and once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

#: Most deliveries that are remembered; those of the connections that were lost first are forgotten, and count.
MAX_DELIVERIES: Final = 200_000
#: Connections that are known though nothing is left of what they had; the oldest is forgotten.
MAX_EMPTY: Final = 10_000


class Place(NamedTuple):
    """Where a message is that was lost on its way: the numbers of its queue and lane, and its position."""

    queue: int
    lane: int
    position: int


class Losses:
    """What is remembered, by the tokens of the connections."""

    def __init__(self) -> None:
        self._by_token: OrderedDict[str, dict[tuple[int, int], int]] = OrderedDict()  #: queue and position → lane
        self._empty: OrderedDict[str, None] = OrderedDict()
        self._deliveries = 0

    def __len__(self) -> int:
        return self._deliveries

    def note(self, token: str, place: Place) -> None:
        """A delivery of this connection counts as failed."""
        found = self._by_token.get(token)
        if found is None:
            found = self._by_token[token] = {}
            self._empty.pop(token, None)
        before = len(found)
        found[place.queue, place.position] = place.lane
        self._deliveries += len(found) - before
        while self._deliveries > MAX_DELIVERIES:
            _, oldest = self._by_token.popitem(last=False)
            self._deliveries -= len(oldest)

    def knows(self, token: str) -> bool:
        """Return whether it is known what this connection had, though that may have been taken back since."""
        return token in self._by_token or token in self._empty

    def has(self, token: str, queue: int, position: int) -> bool:
        """Return whether a delivery of this connection counts as failed until its client says what it was."""
        return (queue, position) in self._by_token.get(token, ())

    def seen(self, token: str, queue: int, positions: Iterable[int]) -> int:
        """These of a queue had been seen, and go on to count; returns how many were remembered."""
        return self._remove(token, [(queue, position) for position in positions])

    def remove(self, token: str) -> None:
        """All that is left of a connection had been seen."""
        found = self._by_token.pop(token, None)
        if found is not None:
            self._deliveries -= len(found)
            self._note_empty(token)

    def take_one(self, token: str, queue: int, position: int) -> bool:
        """Remove one delivery; returns whether it was remembered."""
        return self._remove(token, [(queue, position)]) > 0

    def places(self, token: str, most: int) -> list[Place]:
        """Some of what is left of a connection, which ``take`` takes next."""
        found = self._by_token.get(token, {})
        return [Place(queue, lane, position) for (queue, position), lane in islice(found.items(), most)]

    def places_of(self, token: str, queue: int, positions: Iterable[int]) -> list[Place]:
        """Those of a connection's that are at these positions of a queue."""
        found = self._by_token.get(token, {})
        return [Place(queue, found[queue, each], each) for each in positions if (queue, each) in found]

    def take(self, token: str, most: int) -> list[Place]:
        """Some of what is left of a connection; it is forgotten."""
        taken = self.places(token, most)
        self._remove(token, [(each.queue, each.position) for each in taken])
        return taken

    def _remove(self, token: str, keys: Iterable[tuple[int, int]]) -> int:
        found = self._by_token.get(token)
        if found is None:
            return 0
        before = len(found)
        for key in keys:
            found.pop(key, None)
        count = before - len(found)
        self._deliveries -= count
        if not found:
            del self._by_token[token]
            self._note_empty(token)
        return count

    def _note_empty(self, token: str) -> None:
        self._empty[token] = None
        if len(self._empty) > MAX_EMPTY:
            self._empty.popitem(last=False)
