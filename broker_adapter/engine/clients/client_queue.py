"""The queue of one durable client: a cursor over the events of its audiences.

Theory of operation
    Nothing is stored for a client when an event comes in.  A client belongs, for each region, to one audience at a time
    (:mod:`broker_adapter.engine.regions.routing`), and its queue is what its audiences have got: a list of
    :class:`Part`, each of which says for which positions it belonged to which one.  As its interests change, one part
    ends and another one begins, so what was queued stays queued.

    Positions are those of the engine's log of events, over all regions.  Events leave in their order, and a client
    acknowledges all up to a position.  So ``cursor`` is enough to know what it has processed: there are no holes.

    After a lost connection or a restart, what was dispatched and not acknowledged is dispatched again first, and in
    order, because reading begins at the cursor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, repeat
from typing import Final, NamedTuple, Protocol

from broker_adapter.engine.regions.event_records import EventRecord

#: Broad events that are examined for a client in one read, at most.
EXAMINED: Final = 1000


class Part(NamedTuple):
    """For which positions a client belonged to which audience of a region."""

    region: int
    broad: int  #: the stream of the region's broad events
    audience: int
    first: int
    last: int | None = None  #: None: it still does

    def within(self, after: int, head: int) -> tuple[int, int]:
        """Its first and last position behind ``after``, up to ``head``."""
        return max(self.first, after + 1), head if self.last is None else min(self.last, head)


class EventLog(Protocol):
    """The events as the stores have them."""

    def postings(self, stream: int, first: int, last: int) -> Iterator[int]:
        """The positions of a stream in [first, last], in order."""

    def event(self, position: int) -> EventRecord | None:
        """An event; None where it is gone or cannot be trusted."""

    def postings_through(self, stream: int, position: int) -> int:
        """How many postings a stream had when this position was given, those that are gone by now included."""


class Read(NamedTuple):
    """Events of a client, and how far its queue was read for them."""

    events: list[tuple[int, EventRecord]]
    through: int  #: up to here there are no others


class ClientQueue:
    """What is queued for a durable client, and what of it is under way.

    Attributes:
        cursor: up to here the client has processed everything.
        read_through: up to here everything that is for it was dispatched.
        in_hand: positions that were dispatched and are not acknowledged, in order.
        in_hand_bytes: what these take, together.
        parts: by which audiences it gets what, in the order in which they began.
    """

    __slots__ = ("_sizes", "cursor", "in_hand", "in_hand_bytes", "parts", "read_through")

    def __init__(self, cursor: int, parts: Iterable[Part] = ()) -> None:
        self.cursor = cursor
        self.read_through = cursor
        self.in_hand: deque[int] = deque()
        self.in_hand_bytes = 0
        self._sizes: deque[int] = deque()  #: of those in hand
        self.parts = list(parts)

    def belong(self, region: int, broad: int, audience: int | None, head: int) -> None:
        """Let the client belong to another audience of a region, from the event behind ``head`` on; None: to none."""
        parts = []
        for part in self.parts:
            if part.region == region and part.last is None:
                if part.audience == audience:
                    return
                if part.first > head:
                    continue  # it got nothing by it
                part = part._replace(last=head)
            parts.append(part)
        if audience is not None:
            parts.append(Part(region, broad, audience, head + 1))
        self.parts = parts

    def forget_parts(self) -> list[Part]:
        """Forget the parts that have ended, and of which everything is processed; returns these."""
        gone = [part for part in self.parts if part.last is not None and part.last <= self.cursor]
        if gone:
            self.parts = [part for part in self.parts if part.last is None or part.last > self.cursor]
        return gone

    def audience_of(self, region: int) -> int | None:
        """The audience of a region that the client belongs to now."""
        return next((part.audience for part in self.parts if part.region == region and part.last is None), None)

    def audience_at(self, region: int, position: int) -> int | None:
        """The audience of a region that the client belonged to when an event came."""
        for part in self.parts:
            if part.region == region and part.first <= position and (part.last is None or position <= part.last):
                return part.audience
        return None

    def dispatched(self, positions: Sequence[int], through: int, sizes: Sequence[int] | None = None) -> None:
        """Note what has left.

        Args:
            positions: of the events.
            through: up to where there were no others.
            sizes: what each of them takes, in bytes; None: nothing.
        """
        self.in_hand.extend(positions)
        self._sizes.extend(repeat(0, len(positions)) if sizes is None else sizes)
        if sizes:
            self.in_hand_bytes += sum(sizes)
        self.read_through = max(self.read_through, through)
        if not self.in_hand:
            self.cursor = self.read_through

    def acknowledged(self, through: int) -> int:
        """The client has processed what it got up to a position.

        Returns:
            How many events these were: 0 where it has said so before.
        """
        in_hand = self.in_hand
        count = 0
        while in_hand and in_hand[0] <= through:
            self.cursor = in_hand.popleft()
            self.in_hand_bytes -= self._sizes.popleft()
            count += 1
        if not in_hand:
            self.cursor = self.read_through
        return count

    def rewind(self) -> int:
        """What is under way comes again, first and in order; returns how many events these are."""
        again = len(self.in_hand)
        self.in_hand.clear()
        self._sizes.clear()
        self.in_hand_bytes = 0
        self.read_through = self.cursor
        return again

    def size(self, log: EventLog, head: int) -> int:
        """How many events are queued, under way or not, up to ``head``.

        It takes one look at each part, and one at each broad event that may be for the client.
        """
        count = 0
        for part in self.parts:
            first, last = part.within(self.cursor, head)
            if first <= last:
                count += log.postings_through(part.audience, last) - log.postings_through(part.audience, first - 1)
                for position in log.postings(part.broad, first, last):
                    event = log.event(position)
                    count += event is not None and _contains(event.audiences, part.audience)
        return count

    def read(
        self,
        log: EventLog,
        head: int,
        limit: int,
        after: int | None = None,
        room: int | None = None,
        size_of: Callable[[EventRecord], int] = lambda event: event.size,
    ) -> Read:
        """The next events of the queue.

        Args:
            log: of the engine.
            head: the last position of the log.
            limit: most events.
            after: read behind this position; None: behind what was dispatched.
            room: bytes that they may take, but for the last one; None: no limit.
            size_of: what an event takes.
        """
        start = self.read_through if after is None else after
        examined = 0
        stop = head
        events: list[tuple[int, EventRecord]] = []
        for position, audience in merge(*chain.from_iterable(_streams(log, part, start, head) for part in self.parts)):
            event = log.event(position)
            if audience is not None:  # a broad event: its record says who wants it
                examined += 1
                if event is None or not _contains(event.audiences, audience):
                    if examined >= EXAMINED:
                        stop = position
                        break
                    continue
            if event is not None:
                if len(events) == limit or (room is not None and room <= 0):
                    stop = position - 1  # not the last event: a marker may stand between the two
                    break
                events.append((position, event))
                if room is not None:
                    room -= size_of(event)
        return Read(events, stop)


def _streams(log: EventLog, part: Part, after: int, head: int) -> Iterator[Iterator[tuple[int, int | None]]]:
    """(position, audience) of what may be of a part, in order; the audience where it has to be looked for."""
    first, last = part.within(after, head)
    if first <= last:
        yield ((position, None) for position in log.postings(part.audience, first, last))
        yield ((position, part.audience) for position in log.postings(part.broad, first, last))


def _contains(numbers: Sequence[int], number: int) -> bool:
    """Whether sorted numbers contain one."""
    index = bisect_left(numbers, number)
    return index < len(numbers) and numbers[index] == number
