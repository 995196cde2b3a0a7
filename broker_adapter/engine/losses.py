"""Deliveries that count as failed since their connection was lost, until its client says which it had seen.

A message that was on its way through the network when that broke was never seen by an application.  Only the client
knows which those are: when it is back, it names what it had seen, and all others of that connection do not count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

#: Most deliveries that are remembered; those of the connections that were lost first are forgotten, and count.
MAX_DELIVERIES: Final = 200_000


class Losses:
    """What is remembered, by the tokens of the connections."""

    def __init__(self) -> None:
        self._by_token: OrderedDict[str, dict[tuple[int, int], int]] = OrderedDict()
        self._deliveries = 0

    def __len__(self) -> int:
        return self._deliveries

    def note(self, token: str, queue: int, position: int, failures: int) -> None:
        """A delivery of this connection counts as failed; ``failures``: how many had failed before."""
        found = self._by_token.get(token)
        if found is None:
            found = self._by_token[token] = {}
        before = len(found)
        found[queue, position] = failures
        self._deliveries += len(found) - before
        while self._deliveries > MAX_DELIVERIES:
            _, oldest = self._by_token.popitem(last=False)
            self._deliveries -= len(oldest)

    def seen(self, token: str, queue: int, positions: Iterable[int]) -> int:
        """These of a queue had been seen, and go on to count; returns how many were remembered."""
        found = self._by_token.get(token, {})
        before = len(found)
        for position in positions:
            found.pop((queue, position), None)
        count = before - len(found)
        self._deliveries -= count
        return count

    def take(self, token: str, most: int) -> list[tuple[tuple[int, int], int]]:
        """Some of what is left of a connection: (queue and position, failures) each; these are forgotten."""
        found = self._by_token.get(token, {})
        taken = list(islice(found.items(), most))
        for place, _ in taken:
            del found[place]
        if not found:
            self._by_token.pop(token, None)
        self._deliveries -= len(taken)
        return taken
