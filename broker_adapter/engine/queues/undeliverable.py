"""Messages that some consumers of a queue do not take, and others may (``undeliverable-here``, AMQP 1.0 section 3.4.4).

Such a message does not come to a consumer again that has given it back so, and has no turn in its lane while one of
them is there.  Each dispatch offers it to the others.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

#: Messages of a queue that are noted, and consumers of one message.  A dispatch looks at each.
MOST_MESSAGES: Final = 100
MOST_CONSUMERS: Final = 8

H = TypeVar("H")


class Undeliverable(Generic[H]):
    """What the consumers of one queue do not take.

    Attributes:
        refusers: position of a message → the consumers, attached, that it does not come to any more.
        since_ms: position → since when it is ready, and none of the other consumers may have it; by the clock that is
            never set.
    """

    __slots__ = ("refusers", "since_ms")

    def __init__(self) -> None:
        self.refusers: dict[int, frozenset[H]] = {}
        self.since_ms: dict[int, int] = {}

    def refuse(self, position: int, consumer: H) -> bool:
        """Note that a consumer does not take a message; return False where too many are noted already."""
        known = self.refusers.get(position, frozenset[H]())
        if len(known) >= MOST_CONSUMERS or (not known and len(self.refusers) >= MOST_MESSAGES):
            return False
        self.refusers[position] = known | {consumer}
        return True

    def remove(self, position: int) -> None:
        """Remove a message that has ended."""
        self.refusers.pop(position, None)
        self.since_ms.pop(position, None)

    def consumer_gone(self, consumer: H) -> list[int]:
        """Remove a consumer; return the positions of the messages that may come to every consumer again."""
        free = []
        for position, refusers in list(self.refusers.items()):
            if refusers == {consumer}:
                self.remove(position)
                free.append(position)
            else:
                self.refusers[position] = refusers - {consumer}
        return free
