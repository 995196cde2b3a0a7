"""What is kept of one link that a client receives messages on.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import attrs

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c


@attrs.define(eq=False)
class Consumer:
    """A link that the client receives messages on."""

    link: int
    session: int
    number: int  #: the engine's
    presettled: bool  #: the engine settles what it hands out
    slice_bytes: int  #: most bytes of messages on their way from the engine, but for a part of the last one
    max_message_bytes: int  #: of the largest message that the client takes
    destination: Destination  #: what it receives from
    settles: bool = False  #: what is sent is settled for the client, and accepted for the engine then
    handed: int = 0  #: the engine's number of the last delivery that the connection's thread has taken
    since_grant: int = 0  #: bytes of messages that came from the engine since it was last allowed a slice
    credit: int = 0  #: what the client allows beyond what was sent
    granted: int = 0  #: what of it the engine has, and has not used yet
    draining: bool = False  #: the client wants the credit used up or back
    drain_sent: bool = False  #: the engine was asked for that, and has not answered yet
    gives_back: bool = False  #: something went back to the engine, and so does what comes until the next such answer
    mean_bytes: int = 0  #: of what it was sent last
    detached: bool = False
    browses: bool = False  #: it gets copies
    is_second: bool = False  #: the client settles once we have
    #: The peer's number of a delivery → the engine's; where it gets batches, the engine's → the engine's.
    unsettled: dict[int, int] = attrs.field(factory=dict)
    batches: int | None = None  #: the client's number of a consumer that gets batches
    under_way: dict[int, range] = attrs.field(
        factory=dict
    )  #: the peer's number of a batch that may not have come → its
    subscription: tuple[str, bool] | None = None  #: durable: its name, and whether the client id belongs to it
    temporary: Destination | None = None  #: ends with the link

    @property
    def slice_is_used_up(self) -> bool:
        """Whether the engine may have stopped for the bytes, and not because messages or credit ran out."""
        return self.since_grant >= self.slice_bytes

    @property
    def in_hand(self) -> int:
        """Deliveries that the client has not settled, and batches that it has not answered: each is kept here."""
        return len(self.unsettled) + len(self.under_way)

    def take(self, deliveries: Iterable[int]) -> list[int]:
        """The engine's numbers of some deliveries, which are the client's no more.

        Args:
            deliveries: the peer's numbers, of batches where it gets those.
        """
        if self.batches is not None:
            deliveries = chain.from_iterable([self.under_way.pop(each, ()) for each in deliveries])
        take = self.unsettled.pop
        return [number for number in [take(each, 0) for each in deliveries] if number]

    def sent(self, batch: int, numbers: range) -> None:
        """A batch of these deliveries, by the engine's numbers, was sent."""
        self.under_way[batch] = numbers
        self.unsettled.update(zip(numbers, numbers, strict=True))

    def settle(self, ranges: Iterable[tuple[int, int]], most_missing: int) -> tuple[list[int], int]:
        """Take deliveries that the client has settled.

        Args:
            ranges: (first, last) numbers, as the client has sent them.
            most_missing: numbers that it may name and does not have.

        Returns:
            The numbers of those that it had, in order, and how many it had not: more than ``most_missing`` where that
            is exceeded, and then not all are taken.
        """
        take = self.unsettled.pop
        found: list[int] = []
        missing = 0
        for first, last in ranges:
            if missing > most_missing or last - first >= len(self.unsettled) + most_missing:
                return found, most_missing + 1
            numbers = [number for number in [take(each, 0) for each in range(first, last + 1)] if number]
            missing += last - first + 1 - len(numbers)
            found += numbers
        return found, missing

    def on_their_way(self) -> range:
        """Return the numbers of what the engine may have handed out meanwhile, which is not sent any more."""
        return range(self.handed + 1, self.handed + 1 + self.granted)

    def never_delivered(self, unsent: Iterable[int]) -> c.NeverDelivered:
        """Return what does not count as failed though the consumer goes, because the client never got it.

        Args:
            unsent: what the peer has not sent as a whole, by its numbers.
        """
        return set(self.take(unsent)), self.on_their_way()
