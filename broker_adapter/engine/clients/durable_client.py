"""One durable client: what it wants, its queue, and what has happened to it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from broker_adapter.engine.clients.client_queue import ClientQueue, Passed
from broker_adapter.engine.clients.client_records import ClientRecord
from broker_adapter.engine.clients.left_out import Closed
from broker_adapter.engine.clients.queue_walks import QueryDrain, Walk, count_behind
from broker_adapter.engine.clients.states import NO_QUEUE_COUNT, State
from broker_adapter.engine.records.new_message import EventSink
from broker_adapter.engine.regions.audience import Audience
from broker_adapter.engine.regions.event_records import EventRecord
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.region import Region
from broker_adapter.errors import IllegalStateException

#: What an event takes beside its message and its key, and for each interest that matches it, in bytes, about.
_EVENT_BYTES: Final = 500
_INTEREST_BYTES: Final = 16


class Conflation(IntEnum):
    """Whether updates are conflated for a client; the numbers are stored."""

    SERVER = 0  #: where the region says so
    TRUE = 1
    FALSE = 2

    def holds(self, of_region: bool) -> bool:
        """Return whether they are, in a region that says so or does not."""
        return of_region if self is Conflation.SERVER else self is Conflation.TRUE


#: The words by which a client asks for it.
CONFLATIONS: Final = {each.name.lower(): each for each in Conflation}


def conflation_of(word: str) -> Conflation:
    """Return what a client has asked for; raises IllegalStateException where that is no word for it."""
    found = CONFLATIONS.get(word)
    if found is None:
        raise IllegalStateException(f"conflation is one of {', '.join(CONFLATIONS)}, and not {word!r}")
    return found


class OutgoingEvent(NamedTuple):
    """An event that leaves for a client; the driver adds its message."""

    position: int
    event: EventRecord
    is_history: bool  #: it came before the marker


class Marker(NamedTuple):
    """Everything before it is history, and everything behind it is live."""

    position: int


class ClientCounters(NamedTuple):
    """What has happened to a client's queue since the client came first.

    Of the events that came for it, each one is removed, conflated, drained, dropped, or still in its queue.
    """

    dispatched: int = 0  #: events that left for it, again ones included
    removed: int = 0  #: events that it has processed
    again: int = 0  #: events that had left for a connection that was lost
    reconnections: int = 0  #: how often it has come back
    conflated: int = 0  #: updates that were left out, since newer ones were queued
    drained: int = 0  #: events that were taken out, since they were for a query only that was closed
    dropped: int = 0  #: events that were lost with its queue, or could not be read
    while_away: int = 0  #: events that came while it was away, up to its last connect


class CountedQueue(NamedTuple):
    """What was counted of the queue of a client that connects, as of the last commit."""

    too_many: int = 0  #: by how many its queue was counted as longer than it is
    too_many_away: int = 0  #: by how many more were counted of those that came while it was away
    conflated: array[int] = array("Q")  #: the positions of events that are conflated
    came: int = -1  #: how many events had come for it, of which this is all; -1: it is not


class ClientTotals(NamedTuple):
    """What has happened to all clients since the engine was started."""

    timed_out: int = 0  #: queues that were dropped since their clients were away for too long
    overflowed: int = 0  #: queues that were dropped since they were too long
    markers: int = 0  #: clients that were told their marker


class DurableClient:
    """A durable client.

    Attributes:
        id: its client id.
        state: where it is in its life.
        timeout_ms: how long it may be away; None: for ever.
        away_ms: since when it is, by the age of the store; None: it is here.
        away_at: the last position of the log as it went away; None: it is here.
        queue: its events.
        interests: region → what it wants of it, and whether that outlives its connection.
        conflation: whether updates are conflated for it.
        closed: its queries that have ended, whose events were taken out of the queue.
        drains: queries whose events are still to be taken out.
        walk: the one through its queue that is under way.
        connection: the number of its connection; None: it is away.
        sink: where its events go.
        window: most events under way.
        window_bytes: most bytes that these may take, but for the last one; None: no limit.
        pending: what it was told of its queue as it connected.
        names: name → region and interest of each of its queries.
        asked: region → how many of its interests are not a key: so many may match one event beside that of its key.
        marker: the position of the last event that is history; None: it was told, or the client is not ready.
        is_behind: whether it gets its events from the store.
        counters: what has happened, up to the cursor of its queue; events that were drained count at once.
        counted: how many events its queue had, by what was seen of its audiences at ``seen``, those included that are
            left out.
        is_exact: whether that is exact; else it may be less.
        seen: by audience that it belongs to, how many events that had got by then.
        drained: how many events behind the cursor were drained.
        conflated: how many events behind the cursor were conflated as the queue was read.
        foreseen: events that are found to be conflated ahead of reading, by position.
        foreseen_of: how many events had come for it by then.
        came_by: how many events had come for it as it went away.
    """

    __slots__ = (
        "asked",
        "away_at",
        "away_ms",
        "came_by",
        "closed",
        "conflated",
        "conflation",
        "connection",
        "counted",
        "counters",
        "drained",
        "drains",
        "foreseen",
        "foreseen_of",
        "id",
        "interests",
        "is_behind",
        "is_exact",
        "marker",
        "names",
        "pending",
        "queue",
        "seen",
        "sink",
        "state",
        "timeout_ms",
        "walk",
        "window",
        "window_bytes",
    )

    def __init__(self, client_id: str, queue: ClientQueue) -> None:
        self.id = client_id
        self.state = State.ABSENT
        self.timeout_ms: int | None = None
        self.away_ms: int | None = None
        self.away_at: int | None = None
        self.queue = queue
        self.interests: dict[int, dict[Interest, bool]] = {}
        self.conflation = Conflation.SERVER
        self.closed: list[Closed] = []
        self.drains: list[QueryDrain] = []
        self.walk: Walk | None = None
        self.connection: int | None = None
        self.sink: EventSink | None = None
        self.window = 0
        self.window_bytes: int | None = None
        self.pending = NO_QUEUE_COUNT
        self.names: dict[str, tuple[int, Interest]] = {}
        self.asked: dict[int, int] = {}
        self.marker: int | None = None
        self.is_behind = True
        self.counters = ClientCounters()
        self.counted = 0
        self.is_exact = True
        self.seen: dict[int, int] = {}
        self.drained = 0
        self.conflated = 0
        self.foreseen = array("Q")
        self.foreseen_of = -1
        self.came_by = 0

    def __repr__(self) -> str:
        return f"<DurableClient {self.id!r}, {self.state.name}, processed up to {self.queue.cursor}>"

    @property
    def has_room(self) -> bool:
        """Whether a further event may be under way."""
        queue = self.queue
        return len(queue.in_hand) < self.window and (
            self.window_bytes is None or queue.in_hand_bytes < self.window_bytes
        )

    def size_of(self, event: EventRecord) -> int:
        """Return what an event takes that is under way, in bytes: with its key, and all interests that may match it."""
        return event.size + len(event.key) + _EVENT_BYTES + _INTEREST_BYTES * self.asked.get(event.region, 0)

    # What it wants.

    def want(self, region: int, wanted: Mapping[Interest, bool]) -> None:
        """Note what it wants of a region, in place of what it has wanted."""
        self.want_less(region, list(self.interests.get(region, ())))
        self.want_more(region, wanted)

    def want_more(self, region: int, more: Mapping[Interest, bool]) -> None:
        """Note what it wants of a region, beside what it has wanted."""
        if not more:
            return
        wanted = self.interests.setdefault(region, {})
        for each in more:
            if each not in wanted:
                self.asked[region] = self.asked.get(region, 0) + (each.kind is not InterestKind.KEY)
                if each.name:
                    self.names[each.name] = region, each
        wanted |= more

    def want_less(self, region: int, ended: Iterable[Interest]) -> None:
        """Note that it does not want any more some of what it has wanted of a region."""
        wanted = self.interests.get(region, {})
        for each in ended:
            del wanted[each]
            self.asked[region] -= each.kind is not InterestKind.KEY
            self.names.pop(each.name, None)
        if not wanted:
            self.interests.pop(region, None)
            self.asked.pop(region, None)

    def check_names(self, region: int, interests: Iterable[Interest]) -> None:
        """Whether it may have these interests in a region as well.

        Raises:
            IllegalStateException: it has another query of one of their names.
        """
        names: dict[str, tuple[int, Interest]] = {}
        for each in interests:
            mine = region, each
            if each.name and (self.names.get(each.name, mine) != mine or names.setdefault(each.name, mine) != mine):
                raise IllegalStateException(
                    f"durable client {self.id!r} has another query {each.name!r}: close that one"
                    " (create_query() with its region and selector, then close()), or give this one another name"
                )

    def conflates(self, region: Region) -> bool:
        """Return whether updates of a region are conflated for it."""
        return self.conflation.holds(region.conflates)

    def note_head(self, head: int) -> None:
        """Unless it is behind, it was given what was for it, up to the end of the log."""
        if not self.is_behind:
            self.queue.dispatched((), head)

    # What is counted.

    def raw_size(self, audiences: Mapping[int, Audience]) -> int:
        """Return how many events its queue has, those included that are left out; exact where ``is_exact``, else at
        most.
        """
        return self.counted + sum([audiences[each].events - seen for each, seen in self.seen.items()])

    def size(self, audiences: Mapping[int, Audience]) -> int:
        """Return how many events its queue has, under way or not; exact where ``is_exact``, else at most."""
        left_out = self.drained + self.conflated + count_behind(self.foreseen, self.queue.read_through)
        return max(0, self.raw_size(audiences) - left_out)

    def came(self, audiences: Mapping[int, Audience]) -> int:
        """Return how many events have come for it."""
        counters = self.counters
        gone = counters.removed + counters.conflated + counters.drained - self.drained + counters.dropped
        return gone + self.raw_size(audiences)

    def all_counters(self) -> ClientCounters:
        """Return what has happened, with what is known to be conflated behind the cursor."""
        foreseen = count_behind(self.foreseen, self.queue.read_through)
        return self.counters._replace(conflated=self.counters.conflated + self.conflated + foreseen)

    def foresee(self, found: array[int], of: int) -> None:
        """So much is found to be conflated of the events that are not dispatched, as ``of`` events had come."""
        self.foreseen = found
        self.foreseen_of = of

    def passed(self, removed: int) -> None:
        """The cursor has moved; ``removed``: how many events were processed."""
        left: Passed = self.queue.passed()
        self.counted -= removed + left.conflated + left.drained + left.lost
        self.conflated -= left.conflated
        self.drained -= left.drained
        counters = self.counters
        if removed or left.conflated or left.lost:
            self.counters = counters._replace(
                removed=counters.removed + removed,
                conflated=counters.conflated + left.conflated,
                dropped=counters.dropped + left.lost,
            )
        if self.closed:
            self.closed = [each for each in self.closed if each.through > self.queue.cursor]

    def rewind(self) -> None:
        """Its connection is lost: what is under way will be sent again."""
        again = self.queue.rewind()
        self.conflated = 0
        self.foresee(array("Q"), -1)
        self.counters = self.counters._replace(again=self.counters.again + again)

    def drop_queue(self, audiences: Mapping[int, Audience]) -> None:
        """What is queued is dropped."""
        counters = self.all_counters()
        self.counters = counters._replace(dropped=counters.dropped + self.size(audiences))
        self.counted = self.drained = self.conflated = 0
        self.seen = {}
        self.foresee(array("Q"), -1)
        self.closed = []
        self.queue = ClientQueue(0)
        self.is_behind = self.is_exact = True
        self.away_at = None

    def record(self) -> ClientRecord:
        """For the store."""
        return ClientRecord(
            self.id,
            self.timeout_ms,
            self.away_ms,
            self.state is State.TIMED_OUT,
            self.queue.cursor,
            [tuple(part) for part in self.queue.parts],
            self.counters,
            self.drained,
            self.away_at,
            int(self.conflation),
            [tuple(each) for each in self.closed],
            [each.record() for each in self.drains],
        )

    def expiry_ms(self) -> int | None:
        """Return when its time is over, by the age of the store; None: never, or it is not away."""
        if self.state is not State.PAUSED or self.away_ms is None or self.timeout_ms is None:
            return None
        return self.away_ms + self.timeout_ms
