"""The durable clients of an engine: who they are, what they want, and what they get.

Theory of operation
    A client's life is the table of :mod:`states`, and its queue a cursor (:mod:`client_queue`).  A client that is live
    and has nothing queued gets an event in the decision that makes it.  Any other one is *behind*: the driver reads its
    next events from the store in each cycle while the client has room for them (``behind``), until it has caught up.

    As a client says that it is ready, a *marker* is set behind the events that its queue has by then: these are
    history.  The marker is told between the last of them and the first one that is live.

    Everything that a restart needs is in the client's record, which is stored with each change of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from broker_adapter.engine.clients.client_queue import ClientQueue, Part, Read
from broker_adapter.engine.clients.client_records import ClientRecord
from broker_adapter.engine.clients.states import NO_QUEUE_COUNT, Event, Refusal, State, after, pending_count
from broker_adapter.engine.new_message import EventSink
from broker_adapter.engine.records import LAST_POSITION
from broker_adapter.engine.regions.event_records import EventRecord
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.region import Region
from broker_adapter.engine.regions.routing import Audience
from broker_adapter.errors import IllegalStateException, ResourceAllocationException

#: Clients that timed out of which that is remembered, to be told when they come back.
MOST_TIMED_OUT: Final = 10_000
#: How often the queues of an audience's clients are measured while as many events come as one of them may have.
_CHECKS: Final = 64
#: What an event takes beside its message and its key, and for each interest that matches it, in bytes, about.
_EVENT_BYTES: Final = 500
_INTEREST_BYTES: Final = 16
#: How far an audience has passed that has no clients.
EVERYTHING: Final = LAST_POSITION


class OutgoingEvent(NamedTuple):
    """An event that leaves for a client; the driver adds its message."""

    position: int
    event: EventRecord
    is_history: bool  #: it came before the marker


class Marker(NamedTuple):
    """Everything before it is history, and everything behind it is live."""

    position: int


class Counters(NamedTuple):
    """What has happened to a client's queue since the client came first."""

    dispatched: int = 0  #: events that left for it, again ones included
    removed: int = 0  #: events that it has processed
    again: int = 0  #: events that had left for a connection that was lost
    reconnections: int = 0  #: how often it has come back


class DurableClient:
    """A durable client.

    Attributes:
        id: its client id.
        state: where it is in its life.
        timeout_ms: how long it may be away; None: for ever.
        away_ms: since when it is, by the age of the store; None: it is here.
        queue: its events.
        interests: region → what it wants of it, and whether that outlives its connection.
        connection: the number of its connection; None: it is away.
        sink: where its events go.
        window: most events under way.
        window_bytes: most bytes that these may take, but for the last one; None: no limit.
        pending: what it was told of its queue as it connected.
        marker: the position of the last event that is history; None: it was told, or the client is not ready.
        is_behind: whether it gets its events from the store.
        counters: what has happened.
        counted: how many events its queue had, by what was seen of its audiences at ``seen``.
        is_exact: whether that is exact; else it may be less.
        asked: region → how many of its interests are not a key: so many may match one event beside that of its key.
        seen: by audience that it belongs to, how many events that had got by then.
    """

    __slots__ = (
        "asked",
        "away_ms",
        "connection",
        "counted",
        "counters",
        "id",
        "interests",
        "is_behind",
        "is_exact",
        "marker",
        "pending",
        "queue",
        "seen",
        "sink",
        "state",
        "timeout_ms",
        "window",
        "window_bytes",
    )

    def __init__(self, client_id: str, queue: ClientQueue) -> None:
        self.id = client_id
        self.state = State.ABSENT
        self.timeout_ms: int | None = None
        self.away_ms: int | None = None
        self.queue = queue
        self.interests: dict[int, dict[Interest, bool]] = {}
        self.connection: int | None = None
        self.sink: EventSink | None = None
        self.window = 0
        self.window_bytes: int | None = None
        self.pending = NO_QUEUE_COUNT
        self.marker: int | None = None
        self.is_behind = True
        self.counters = Counters()
        self.counted = 0
        self.is_exact = True
        self.seen: dict[int, int] = {}
        self.asked: dict[int, int] = {}

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
        """What an event takes that is under way, in bytes: with its key, and all interests that may match it."""
        return event.size + len(event.key) + _EVENT_BYTES + _INTEREST_BYTES * self.asked.get(event.region, 0)

    def want(self, region: int, wanted: Mapping[Interest, bool]) -> None:
        """Note what it wants of a region."""
        self.interests.pop(region, None)
        self.asked.pop(region, None)
        if wanted:
            self.interests[region] = dict(wanted)
            self.asked[region] = sum(1 for each in wanted if each.kind is not InterestKind.KEY)

    def query_names(self) -> dict[str, tuple[int, Interest]]:
        """Name → region and interest of each of its queries."""
        found = ((region, each) for region, wanted in self.interests.items() for each in wanted)
        return {each.name: (region, each) for region, each in found if each.name}

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
        )


class DurableClients:
    """All durable clients.

    Args:
        region: gives a region by its number; raises where there is none.
        store_client: called with each client that changed, to be stored, and whether it is still there.
        store_cursor: the same where only its cursor has moved.
        store_audience: as ``store_client``, with audiences.
        store_interest: called with each interest of a client that changed, its region, and whether it outlives the
            client's connection; None: it has ended.
        max_clients: most clients that have a queue.
        max_interests: most interests of a client.
        max_events: most events that wait for a client.

    Attributes:
        clients: by client id; of those that timed out, only this is left.
        audiences: by number, those included that get nothing any more and have not been passed yet.
        behind: clients that have room, and events to be read.
        worn: audiences whose members have processed something since they were trimmed.
        worn_regions: regions of which an audience has passed something since what many want was trimmed.
        alerts: clients that lost their queues, and why, to be logged.
    """

    def __init__(
        self,
        region: Callable[[int], Region],
        store_client: Callable[[DurableClient, bool], None],
        store_cursor: Callable[[DurableClient], None],
        store_audience: Callable[[Audience, bool], None],
        store_interest: Callable[[DurableClient, int, Interest, bool | None], None],
        max_clients: int,
        max_interests: int,
        max_events: int,
    ) -> None:
        self.clients: dict[str, DurableClient] = {}
        self.audiences: dict[int, Audience] = {}
        self.behind: dict[DurableClient, None] = {}
        self.worn: dict[int, Audience] = {}
        self.worn_regions: dict[int, None] = {}
        self.alerts: list[tuple[str, str]] = []
        self._region = region
        self._store_client = store_client
        self._store_cursor = store_cursor
        self._store_audience = store_audience
        self._store_interest = store_interest
        self._max_clients = max_clients
        self._max_interests = max_interests
        self._max_events = max_events
        self._check_step = max(1, max_events // _CHECKS)
        self._by_connection: dict[int, DurableClient] = {}
        self._queues = 0  #: clients that have a queue
        self._timed_out: dict[str, None] = {}  #: the ids of those that have none any more, the first ones first
        self._next_expiry_ms: int | None = None  #: not later than the next client is over

    # What a restart finds.

    def restore(
        self,
        record: ClientRecord,
        interests: Mapping[int, Mapping[Interest, bool]],
        age_ms: int,
        size: int,
        *,
        is_exact: bool,
    ) -> None:
        """Take over a client that the store has; its audiences are there, and have passed what the others have.

        Args:
            record: of the client.
            interests: region → what it wants of it, and whether that outlives its connection.
            age_ms: now, by the age of the store.
            size: of its queue.
            is_exact: whether that is exact; else it may be less.
        """
        client = self.clients[record.client_id] = DurableClient(
            record.client_id, ClientQueue(record.cursor, [Part(*part) for part in record.parts])
        )
        client.timeout_ms = record.timeout_ms
        client.counters = Counters(*record.counters)
        if record.timed_out:
            client.state = State.TIMED_OUT
            self._timed_out[client.id] = None
            return
        self._queues += 1
        client.counted, client.is_exact = size, is_exact
        client.state = State.PAUSED
        client.away_ms = age_ms if record.away_ms is None else record.away_ms
        self._note_expiry(client)
        for region, wanted in interests.items():
            client.want(region, wanted)
        for part in client.queue.parts:
            audience = self.audiences[part.audience]
            audience.members[client] = None
            if part.last is None:
                audience.belonging += 1
                client.seen[audience.id] = audience.events
            audience.passed = min(audience.passed, max(record.cursor, part.first - 1))
            self.worn[audience.id] = audience

    # Clients come and go.

    def connect(
        self,
        client_id: str,
        connection: int,
        timeout_ms: int | None,
        window: int,
        sink: EventSink,
        too_many: int | None,
        head: int,
        window_bytes: int | None = None,
    ) -> int:
        """A client comes.

        Args:
            client_id: its id.
            connection: the number of its connection.
            timeout_ms: how long it may be away after this connection; None: for ever; 0: it keeps no queue.
            window: most events under way.
            sink: where its events go.
            too_many: by how many its queue was counted as longer than it is; None: it is not known to be.
            head: the last position of the log.
            window_bytes: most bytes that these may take, but for the last one; None: no limit.

        Returns:
            How many events wait for it; below 0: why it had no queue (:mod:`states`).

        Raises:
            InvalidClientIDException: a client of this id is connected.
            IllegalStateException: its queue is being drained.
            ResourceAllocationException: there are as many clients as there may be.
        """
        client = self.clients.get(client_id)
        before = State.ABSENT if client is None else client.state
        state = after(before, Event.CONNECT, client_id)
        if not before.has_queue:
            if self._queues >= self._max_clients:
                raise ResourceAllocationException(
                    f"no more than {self._max_clients} durable clients (option max_durable_clients): close those that"
                    " do not come back, or raise the option"
                )
            self._queues += 1
            self._timed_out.pop(client_id, None)
            client = self.clients[client_id] = DurableClient(client_id, ClientQueue(head))
        assert client is not None
        if before is State.PAUSED:
            client.counters = client.counters._replace(reconnections=client.counters.reconnections + 1)
        client.state = state
        client.connection, client.timeout_ms, client.away_ms = connection, timeout_ms, None
        client.window, client.window_bytes, client.sink = window, window_bytes, sink
        self._by_connection[connection] = client
        if too_many is not None:
            client.counted -= too_many
            client.is_exact = True
        self._store_client(client, True)
        client.pending = pending_count(before, self.size(client))
        return client.pending

    def of_connection(self, connection: int) -> DurableClient | None:
        """The client of a connection."""
        return self._by_connection.get(connection)

    def ready(self, client: DurableClient, head: int) -> None:
        """A client is ready for events: what is queued by now is history.

        Raises:
            IllegalStateException: see the table of :mod:`states`.
        """
        is_first = client.state is not State.LIVE
        client.state = after(client.state, Event.READY, client.id)
        if is_first:
            client.marker = head
            client.is_behind = True
            self.behind[client] = None

    def leave(self, connection: int, age_ms: int, head: int, *, keep: bool, asked: bool) -> None:
        """The client of a connection goes.

        Args:
            connection: its number.
            age_ms: now, by the age of the store.
            head: the last position of the log.
            keep: whether its queue is kept.
            asked: whether it was asked to be; else the connection was lost.  What is kept on request is not kept where
                the client has no durable interest.
        """
        client = self._by_connection.pop(connection, None)
        if client is None:
            return
        client.connection = client.sink = client.marker = None
        if keep and asked and not any(any(found.values()) for found in client.interests.values()):
            keep = False
        keep = keep and client.timeout_ms != 0
        client.state = after(client.state, Event.AWAY if keep else Event.CLOSE, client.id)
        self._note_head(client, head)
        self._no_longer_live(client)
        again = client.queue.rewind()
        client.counters = client.counters._replace(again=client.counters.again + again)
        if not keep:
            self._end(client)
            return
        client.away_ms = age_ms
        self._note_expiry(client)
        for region, interests in list(client.interests.items()):
            durable = {interest: True for interest, outlives in interests.items() if outlives}
            if len(durable) < len(interests):
                self._want(client, self._region(region), durable, head)
        self._store_client(client, True)

    def close(self, client_id: str) -> None:
        """An administrator closes a client that is away.

        Raises:
            IllegalStateException: there is none, it is connected, or its queue is being drained.
        """
        client = self.clients.get(client_id)
        before = State.ABSENT if client is None else client.state
        if before.is_here:
            raise Refusal.CONNECTED.error(client_id)
        after(before, Event.CLOSE, client_id)
        assert client is not None
        client.state = State.ABSENT
        self._end(client)

    def expire(self, age_ms: int) -> None:
        """End the clients that were away for too long."""
        if self._next_expiry_ms is None or age_ms < self._next_expiry_ms:
            return
        over = [client for client in self.clients.values() if (_expiry_ms(client) or EVERYTHING) <= age_ms]
        for client in over:
            client.state = after(client.state, Event.EXPIRE, client.id)
            self._end(client)
            self.alerts.append((client.id, "was away for longer than its durable_timeout"))
        left = [_expiry_ms(client) for client in self.clients.values()]
        self._next_expiry_ms = min((each for each in left if each is not None), default=None)

    def next_expiry_ms(self) -> int | None:
        """When to look for clients that are over, by the age of the store; None: there is none that can be."""
        return self._next_expiry_ms

    def _note_expiry(self, client: DurableClient) -> None:
        expiry_ms = _expiry_ms(client)
        if expiry_ms is not None:
            self._next_expiry_ms = min(self._next_expiry_ms or EVERYTHING, expiry_ms)

    def _end(self, client: DurableClient) -> None:
        """A client has no queue any more."""
        for region in list(client.interests):
            self._want(client, self._region(region), {}, EVERYTHING)
        for number in {part.audience for part in client.queue.parts}:
            self._leave_audience(client, number)
        client.queue = ClientQueue(0)
        client.counted = 0
        client.is_behind = True
        self._queues -= 1
        if client.state is State.TIMED_OUT:
            self._store_client(client, True)
            self._timed_out[client.id] = None
            if len(self._timed_out) > MOST_TIMED_OUT:
                oldest = next(iter(self._timed_out))
                del self._timed_out[oldest]
                self._store_client(self.clients.pop(oldest), False)
        else:
            del self.clients[client.id]
            self._store_client(client, False)

    # What a client wants.

    def register(
        self, client: DurableClient, region: Region, interests: Iterable[Interest], durable: bool, head: int
    ) -> None:
        """Let a client want more of a region, from the event behind ``head`` on.

        One that it has already, and that is durable, stays durable.

        Raises:
            IllegalStateException: it has another query of this name.
            ResourceAllocationException: it has as many interests as it may have.
        """
        wanted = dict(client.interests.get(region.id, {}))
        names = client.query_names()
        for interest in interests:
            if interest.name and names.setdefault(interest.name, (region.id, interest)) != (region.id, interest):
                raise IllegalStateException(
                    f"durable client {client.id!r} has another query {interest.name!r}: the name of a query is given"
                    " once in a client"
                )
            wanted[interest] = durable or wanted.get(interest, False)
        others = sum(len(found) for number, found in client.interests.items() if number != region.id)
        if len(wanted) + others > self._max_interests:
            raise ResourceAllocationException(
                f"durable client {client.id!r} may have no more than {self._max_interests} interests (option"
                " max_client_interests): want keys that match an expression, or all keys"
            )
        self._want(client, region, wanted, head)
        self._store_client(client, True)

    def unregister(self, client: DurableClient, region: Region, interests: Iterable[Interest], head: int) -> None:
        """Let a client not want something any more; what is queued by it stays."""
        left = dict(client.interests.get(region.id, {}))
        for interest in interests:
            left.pop(interest, None)
        self._want(client, region, left, head)
        self._store_client(client, True)

    def _want(self, client: DurableClient, region: Region, wanted: Mapping[Interest, bool], head: int) -> None:
        """Give a client these interests in a region, and none besides."""
        had = client.interests.get(region.id, {})
        for interest in had:
            if interest not in wanted:
                self._store_interest(client, region.id, interest, None)
        for interest, durable in wanted.items():
            if had.get(interest) is not durable:
                self._store_interest(client, region.id, interest, durable)
        client.want(region.id, wanted)
        queue = client.queue
        self._note_head(client, head)
        before = queue.audience_of(region.id)
        audience: Audience | None = None
        if wanted:
            interests = frozenset(wanted)
            old = None if before is None else self.audiences[before]
            audience = old if old is not None and old.interests == interests else region.routing.audience(interests)
            if audience.id not in self.audiences:
                audience.passed = head
                self.audiences[audience.id] = audience
                self._store_audience(audience, True)
        number = None if audience is None else audience.id
        if number == before:
            return
        queue.belong(region.id, region.broad.id, number, head)
        if audience is not None:
            if not audience.belonging:
                audience.check_at = audience.events + self._check_step
            audience.belonging += 1
            client.seen[audience.id] = audience.events
            audience.members[client] = None
            if not client.is_behind:
                audience.live[client] = None
        if before is not None:
            left = self.audiences[before]
            left.live.pop(client, None)
            left.belonging -= 1
            client.counted += left.events - client.seen.pop(before)
            if not left.belonging:  # it gets nothing any more
                region.routing.drop(left)
            if all(part.audience != before for part in queue.parts):
                self._leave_audience(client, before)
            self._forget_parts(client)

    def _forget_parts(self, client: DurableClient) -> bool:
        """A client may have processed all that it got by audiences to which it belonged; returns whether it has."""
        gone = client.queue.forget_parts()
        for part in gone:
            if all(each.audience != part.audience for each in client.queue.parts):
                self._leave_audience(client, part.audience)
        return bool(gone)

    def _leave_audience(self, client: DurableClient, number: int) -> None:
        """A client has processed all that it got by an audience, and does not belong to it."""
        audience = self.audiences[number]
        audience.members.pop(client, None)
        self.worn[number] = audience

    # What a client gets.

    def size(self, client: DurableClient) -> int:
        """How many events a client's queue has, under way or not; exact where ``client.is_exact``, else at most."""
        return client.counted + sum([self.audiences[each].events - seen for each, seen in client.seen.items()])

    def overflowing(self, wanting: Iterable[Audience]) -> list[DurableClient]:
        """An event has come for some audiences: the clients whose queues are longer now than they may be.

        It is not looked at with each event: a queue may have a 64th more than its limit for each of its regions.
        """
        found: dict[DurableClient, None] = {}
        for audience in wanting:
            if audience.events >= audience.check_at:
                audience.check_at = audience.events + self._check_step
                found |= {each: None for each in audience.members if self.size(each) > self._max_events}
        return list(found)

    def overflow(self, client: DurableClient) -> EventSink | None:
        """The queue of a client is too long, and is dropped; returns where the client is told."""
        sink = client.sink
        if client.connection is not None:
            self._by_connection.pop(client.connection, None)
        client.connection = client.sink = client.marker = None
        client.state = after(client.state, Event.OVERFLOW, client.id)
        self._no_longer_live(client)
        self._end(client)
        self.alerts.append((client.id, f"has more than {self._max_events} events (option max_client_queue_events)"))
        return sink

    def came(self, position: int, event: EventRecord, wanting: Iterable[Audience]) -> list[DurableClient]:
        """An event has come; returns the clients that get it now, to which it is dispatched."""
        found = []
        for audience in wanting:
            for client in list(audience.live):
                if client.has_room:
                    client.queue.dispatched((position,), position, (client.size_of(event),))
                    self._count(client, 1)
                    found.append(client)
                else:
                    self._no_longer_live(client)
        return found

    def take(self, client: DurableClient, read: Read, after_position: int, head: int) -> list[OutgoingEvent | Marker]:
        """What was read for a client that is behind leaves for it.

        Args:
            client: the client.
            read: its next events.
            after_position: behind which it was read.
            head: the last position of the log, now.

        Returns:
            What is to be told to it, the marker included in its place.
        """
        queue = client.queue
        if client.state is not State.LIVE or queue.read_through != after_position or not client.is_behind:
            self.behind.pop(client, None)
            if client.state is State.LIVE and client.is_behind and client.has_room:
                self.behind[client] = None
            return []
        marker = client.marker
        leaving: list[OutgoingEvent | Marker] = []
        for position, event in read.events:
            if marker is not None and position > marker:
                leaving.append(Marker(marker))
                client.marker = marker = None
            leaving.append(OutgoingEvent(position, event, marker is not None))
        if marker is not None and read.through >= marker:
            leaving.append(Marker(marker))
            client.marker = None
        before = queue.cursor
        sizes = [client.size_of(event) for _, event in read.events]
        queue.dispatched([position for position, _ in read.events], read.through, sizes)
        self._count(client, len(read.events))
        if queue.cursor > before:  # nothing was for it
            self._processed(client)
        if queue.read_through >= head:
            client.is_behind = False
            self.behind.pop(client, None)
            for number in client.interests:
                audience = self.audiences[queue.audience_of(number) or 0]
                audience.live[client] = None
        elif not client.has_room:
            self.behind.pop(client, None)
        return leaving

    def acknowledge(self, client: DurableClient, through: int) -> int:
        """A client has processed what it got up to a position; returns how many events these were."""
        count = client.queue.acknowledged(through)
        if count:
            client.counted -= count
            client.counters = client.counters._replace(removed=client.counters.removed + count)
            self._processed(client)
            if client.state is State.LIVE and client.is_behind:
                self.behind[client] = None
        return count

    def _processed(self, client: DurableClient) -> None:
        """The cursor of a client has moved."""
        for part in client.queue.parts:
            self.worn[part.audience] = self.audiences[part.audience]
        if self._forget_parts(client):
            self._store_client(client, True)
        else:
            self._store_cursor(client)

    def _count(self, client: DurableClient, dispatched: int) -> None:
        client.counters = client.counters._replace(dispatched=client.counters.dispatched + dispatched)

    @staticmethod
    def _note_head(client: DurableClient, head: int) -> None:
        """A client that is not behind was given what was for it, up to the end of the log."""
        if not client.is_behind:
            client.queue.dispatched((), head)

    def _no_longer_live(self, client: DurableClient) -> None:
        """A client gets its next events from the store."""
        client.is_behind = True
        self.behind.pop(client, None)
        for part in client.queue.parts:
            self.audiences[part.audience].live.pop(client, None)

    # What nobody needs any more.

    def passed(self, number: int) -> int:
        """How far an audience has passed, as was measured last."""
        audience = self.audiences.get(number)
        return EVERYTHING if audience is None else audience.passed

    def have_passed(self, numbers: Iterable[int], position: int) -> bool:
        """Whether all of these audiences have passed a position, as was measured last."""
        return all(self.passed(number) >= position for number in numbers)

    def measure(self, audience: Audience) -> int:
        """How far an audience has passed: its slowest member says it."""
        slowest = EVERYTHING
        for client in audience.members:
            cursor = client.queue.cursor
            for part in client.queue.parts:
                if part.audience == audience.id:
                    slowest = min(slowest, max(cursor, part.first - 1))
        if slowest != audience.passed:
            audience.passed = slowest
            self.worn_regions[audience.region] = None
        return slowest

    def forget(self, audience: Audience) -> None:
        """Forget an audience that has neither postings nor members."""
        self.worn_regions[audience.region] = None
        self.audiences.pop(audience.id, None)
        self._store_audience(audience, False)


def _expiry_ms(client: DurableClient) -> int | None:
    """When the time of a client is over that is away, by the age of the store; None: never, or it is not away."""
    if client.state is not State.PAUSED or client.away_ms is None or client.timeout_ms is None:
        return None
    return client.away_ms + client.timeout_ms
