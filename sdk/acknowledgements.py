"""Acknowledgements that were given, and may not have reached the broker: remembered, to be given again.

Theory of operation
    An acknowledgement costs no round trip, so nobody knows which of the last ones the broker has when the connection is
    lost.  Their messages come again, and are then accepted once more without the application seeing them.

    How many must be remembered is bounded by the credit.  A broker takes what a client says in order: once it sends on
    credit that was granted after an acknowledgement, it has that acknowledgement.  So what was acknowledged more than
    two windows of deliveries ago has arrived (two, since a credit may overtake what is written together with it).

    A message is known again by its source and the identity that its producer gave it, or else by its message id.  One
    that has neither comes again as any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import Envelope

#: What a message is known again by.
Key = tuple[Hashable, Hashable]

#: Most acknowledgements of a connection that wait for their message to come again; the oldest is forgotten.
MAX_GIVEN: Final = 100_000
#: Deliveries beyond the windows of the consumers that an acknowledgement is remembered for.
_MARGIN: Final = 16


def key_of(source: str | None, envelope: Envelope) -> Key | None:
    """What a message is known again by, where it can be.

    Args:
        source: the queue or the subscription that it came from; None: nothing of it ever comes again.
        envelope: the message.
    """
    if source is None:
        return None
    name = envelope.identity or envelope.message_id
    return None if name is None else (source, name)


class Given:
    """The acknowledgements of a connection that were lost with the network; for all its sessions, from any thread."""

    def __init__(self) -> None:
        self._keys: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Iterable[Key]) -> None:
        """These were under way when the connection was lost."""
        for key in keys:
            self._keys[key] = None
        while len(self._keys) > MAX_GIVEN:
            self._keys.pop(next(iter(self._keys)), None)

    def take(self, key: Key) -> bool:
        """A message has come: returns whether it was acknowledged already, which is to be said again."""
        return self._keys.pop(key, _NOT_THERE) is None


class Acknowledgements:
    """What one session has acknowledged lately.  Its calls are made one at a time, as those of its policy."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self._window = 0
        self._delivered = 0
        self._held: dict[DeliveryTag, Key] = {}
        self._recent: deque[tuple[int, Key]] = deque()

    def __len__(self) -> int:
        return len(self._recent)

    def widen(self, prefetch: int) -> None:
        """A consumer with this prefetch has joined."""
        self._window += max(1, prefetch)

    def delivered(self, tag: DeliveryTag, key: Key | None) -> None:
        """The application is about to see a message."""
        self._delivered += 1
        if key is not None:
            self._held[tag] = key

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """These are on their way to the broker."""
        held, recent, now = self._held, self._recent, self._delivered
        for tag, outcome in settlements:
            key = held.pop(tag, None)
            if key is not None and outcome is _ACCEPTED:
                recent.append((now, key))
        arrived = now - 2 * self._window - _MARGIN
        while recent and recent[0][0] < arrived:
            recent.popleft()

    def committed(self, settlements: Iterable[Settlement]) -> None:
        """These are done, as the broker has said."""
        for tag, _ in settlements:
            self._held.pop(tag, None)

    def interrupted(self) -> None:
        """The connection was lost."""
        self.given.add(key for _, key in self._recent)
        self._recent.clear()
        self._held.clear()

    def link_lost(self, link: int) -> None:
        """The broker took back what came on this link."""
        for tag in [tag for tag in self._held if tag.link == link]:
            del self._held[tag]


_ACCEPTED = Outcome.ACCEPTED
_NOT_THERE: Final = object()
