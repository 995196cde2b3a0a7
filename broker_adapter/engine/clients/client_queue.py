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

    Events may be *left out* (:mod:`left_out`): nothing is stored for that, it is asked as the queue is read.  They
    count as left out for good once the cursor has passed them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import merge
from itertools import chain, repeat
from typing import Final, NamedTuple, Protocol

from broker_adapter.engine.records.layout import LAST_POSITION
from broker_adapter.engine.regions.event_records import EventRecord

#: Events that are examined for a client in one read, at most, beside those that it gets.
EXAMINED: Final = 1000


class AudiencePart(NamedTuple):
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
        """Return how many postings a stream had when this position was given, those that are gone by now included."""

    def updates_behind(self, run: int, position: int) -> Iterator[int]:
        """The positions of the updates of a run behind one, in order."""


class LeftOut(IntEnum):
    """Why an event of a queue is not dispatched."""

    CONFLATED = 0  #: a newer update of its key is queued
    DRAINED = 1  #: it was for a query only that has ended, and was taken out
    LOST = 2  #: it cannot be read


#: Says of a position, an event and the number of the audience by which a client gets it whether it is left out.
LeaveOut = Callable[[int, EventRecord, int], LeftOut | None]


class Read(NamedTuple):
    """Events of a client, and how far its queue was read for them."""

    events: list[tuple[int, EventRecord]]
    through: int  #: up to here there are no others
    left_out: Sequence[tuple[int, LeftOut]] = ()  #: those between them that are not dispatched, in order


class Passed(NamedTuple):
    """How many events that were left out the cursor has passed."""

    conflated: int = 0
    drained: int = 0
    lost: int = 0


class _Gap:
    """Events that were left out, with none dispatched between them."""

    __slots__ = ("behind", "counts", "last")

    def __init__(self, behind: int) -> None:
        self.behind = behind  #: how many events were under way ahead of them, by position
        self.last = 0
        self.counts = [0] * len(LeftOut)


class ClientQueue:
    """What is queued for a durable client, and what of it is under way.

    Attributes:
        cursor: up to here the client has processed everything.
        read_through: up to here everything that is for it was dispatched.
        in_hand: positions that were dispatched and are not acknowledged, in order.
        in_hand_bytes: what these take, together.
        parts: by which audiences it gets what, in the order in which they began.
    """

    __slots__ = ("_gaps", "_sizes", "cursor", "in_hand", "in_hand_bytes", "parts", "read_through")

    def __init__(self, cursor: int, parts: Iterable[AudiencePart] = ()) -> None:
        self.cursor = cursor
        self.read_through = cursor
        self.in_hand: deque[int] = deque()
        self.in_hand_bytes = 0
        self._sizes: deque[int] = deque()  #: of those in hand
        self.parts = list(parts)
        self._gaps: deque[_Gap] = deque()  #: what was left out behind the cursor

    def belong(
        self, region: int, broad: int, audience: int | None, head: int, nothing_after: int | None = None
    ) -> None:
        """Let the client belong to another audience of a region.

        Args:
            region: number of the region.
            broad: the stream of its broad events.
            audience: number of the audience; None: none.
            head: from the event behind this position on.
            nothing_after: behind this position it has got nothing by the audience to which it belongs; None: ``head``.
        """
        parts = []
        for part in self.parts:
            if part.region == region and part.last is None:
                if part.audience == audience:
                    return
                if part.first > (head if nothing_after is None else nothing_after):
                    continue  # it got nothing by it
                part = part._replace(last=head)
            parts.append(part)
        if audience is not None:
            parts.append(AudiencePart(region, broad, audience, head + 1))
        self.parts = parts

    def remove_ended_parts(self) -> list[AudiencePart]:
        """Remove the parts that have ended, and of which everything is processed; returns these."""
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

    def passed_of(self, audience: int) -> int:
        """Return how far the client has processed what it gets by an audience."""
        firsts = [part.first for part in self.parts if part.audience == audience]
        return max(self.cursor, min(firsts) - 1) if firsts else LAST_POSITION

    def dispatched(
        self,
        positions: Sequence[int],
        through: int,
        left_out: Sequence[tuple[int, LeftOut]] = (),
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Note what has left.

        Args:
            positions: of the events.
            through: up to where there were no others.
            left_out: those between them that were left out.
            sizes: what each of them takes, in bytes; None: nothing.
        """
        self.in_hand.extend(positions)
        self._sizes.extend(repeat(0, len(positions)) if sizes is None else sizes)
        if sizes:
            self.in_hand_bytes += sum(sizes)
        self.read_through = max(self.read_through, through)
        if left_out:
            under_way = list(self.in_hand)
            gaps = self._gaps
            for position, why in left_out:
                ahead = bisect_right(under_way, position)
                behind = under_way[ahead - 1] if ahead else 0
                if not gaps or gaps[-1].behind != behind:
                    gaps.append(_Gap(behind))
                gaps[-1].last = position
                gaps[-1].counts[why] += 1
        if not self.in_hand:
            self.cursor = self.read_through

    def passed(self) -> Passed:
        """Return what the cursor has passed of what was left out, each event once."""
        gaps = self._gaps
        if not gaps or gaps[0].last > self.cursor:
            return _NONE_PASSED
        counts = [0] * len(LeftOut)
        while gaps and gaps[0].last <= self.cursor:
            counts = [has + more for has, more in zip(counts, gaps.popleft().counts, strict=True)]
        return Passed(*counts)

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
        """Return what is under way will be sent again, first and in order; returns how many events these are."""
        again = len(self.in_hand)
        self.in_hand.clear()
        self._sizes.clear()
        self.in_hand_bytes = 0
        self._gaps.clear()
        self.read_through = self.cursor
        return again

    def size(self, log: EventLog, head: int, after: int | None = None) -> int:
        """Return how many events are queued, under way or not, up to ``head``; those included that are left out.

        It takes one look at each part, and one at each broad event that may be for the client.

        Args:
            log: of the engine.
            head: the last position that counts.
            after: count behind this position; None: behind the cursor.
        """
        count = 0
        for part in self.parts:
            first, last = part.within(self.cursor if after is None else after, head)
            if first <= last:
                count += log.postings_through(part.audience, last) - log.postings_through(part.audience, first - 1)
                for position in log.postings(part.broad, first, last):
                    event = log.event(position)
                    count += event is not None and contains(event.audiences, part.audience)
        return count

    def examine(self, log: EventLog, after: int, through: int) -> Iterator[tuple[int, int, EventRecord | None]]:
        """Yield what may be for the client: position, number of the audience, and the event.

        Args:
            log: of the engine.
            after: behind this position.
            through: up to this one.

        Returns:
            All in order; the event is None where it is for others, or cannot be read.
        """
        streams = chain.from_iterable(_streams(log, part, after, through) for part in self.parts)
        for position, is_broad, audience in merge(*streams):
            event = log.event(position)
            if event is not None and is_broad and not contains(event.audiences, audience):
                event = None  # a broad event: its record says who wants it
            yield position, -1 if is_broad and event is None else audience, event

    def read(
        self,
        log: EventLog,
        head: int,
        limit: int,
        after: int | None = None,
        leave_out: LeaveOut | None = None,
        room: int | None = None,
        size_of: Callable[[EventRecord], int] = lambda event: event.size,
    ) -> Read:
        """The next events of the queue.

        Args:
            log: of the engine.
            head: the last position of the log.
            limit: most events.
            after: read behind this position; None: behind what was dispatched.
            leave_out: says which ones are left out; None: none are.
            room: bytes that they may take, but for the last one; None: no limit.
            size_of: what an event takes.
        """
        examined = 0
        stop = head
        events: list[tuple[int, EventRecord]] = []
        left_out: list[tuple[int, LeftOut]] = []
        for position, audience, event in self.examine(log, self.read_through if after is None else after, head):
            if event is None:
                why = LeftOut.LOST if audience >= 0 else None
            else:
                why = None if leave_out is None else leave_out(position, event, audience)
            if event is None or why is not None:
                if why is not None:
                    left_out.append((position, why))
                examined += 1
                if examined >= EXAMINED:
                    stop = position
                    break
                continue
            if len(events) == limit or (room is not None and room <= 0):
                stop = position - 1  # not the last event: a marker may stand between the two
                break
            events.append((position, event))
            if room is not None:
                room -= size_of(event)
        return Read(events, stop, left_out)


_NONE_PASSED: Final = Passed()


def _streams(log: EventLog, part: AudiencePart, after: int, head: int) -> Iterator[Iterator[tuple[int, bool, int]]]:
    """(position, whether it is broad, audience) of what may be of a part, in order."""
    first, last = part.within(after, head)
    if first <= last:
        yield ((position, False, part.audience) for position in log.postings(part.audience, first, last))
        yield ((position, True, part.audience) for position in log.postings(part.broad, first, last))


def contains(numbers: Sequence[int], number: int) -> bool:
    """Return whether sorted numbers contain one."""
    index = bisect_left(numbers, number)
    return index < len(numbers) and numbers[index] == number
