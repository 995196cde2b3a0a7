"""The durable clients of an engine: who they are, what they want, and what they get.

Theory of operation
    A client's life is the table of :mod:`states`, and its queue a cursor (:mod:`client_queue`).  A client that is live
    and has nothing queued gets an event in the decision that makes it.  Any other one is *behind*: the driver reads its
    next events from the store in each cycle while the client has room for them (``behind``), until it has caught up.

    As a client says that it is ready, a *marker* is set behind the events that its queue has by then: these are
    history.  The marker is told between the last of them and the first one that is live.

    The events of a query that was closed are taken out of a queue by a *drain*: a walk through all of it, in slices
    (:mod:`walks`), behind which one note says which events are left out from then on (:mod:`left_out`).  A client that
    is away cannot come back meanwhile; one that is connected goes on, and what is dispatched meanwhile is not taken
    out.

    Everything that a restart needs is in the client's record, which is stored with each change of it.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from broker_adapter.engine.clients.client_interests import ClientInterests
from broker_adapter.engine.clients.client_queue import AudiencePart, ClientQueue, LeftOut, Read
from broker_adapter.engine.clients.client_records import ClientRecord
from broker_adapter.engine.clients.durable_client import (
    ClientCounters,
    ClientTotals,
    Conflation,
    CountedQueue,
    DurableClient,
    Marker,
    OutgoingEvent,
)
from broker_adapter.engine.clients.expiries import Expiries
from broker_adapter.engine.clients.left_out import Closed
from broker_adapter.engine.clients.queue_walks import Answer, QueryDrain
from broker_adapter.engine.clients.states import Event, Refusal, State, after, pending_count
from broker_adapter.engine.clients.walks import Walks
from broker_adapter.engine.records.layout import LAST_POSITION
from broker_adapter.engine.records.new_message import EventSink
from broker_adapter.engine.regions.audience import Audience
from broker_adapter.engine.regions.event_records import EventRecord
from broker_adapter.engine.regions.interests import Interest
from broker_adapter.engine.regions.region import Region
from broker_adapter.errors import IllegalStateException, ResourceAllocationException

_log = logging.getLogger(f"holdfast.{__name__}")

#: Clients that timed out of which that is remembered, to be told when they come back.
MOST_TIMED_OUT: Final = 10_000
#: Closed queries of a client whose events were taken out of its queue, and which the client has not passed yet.
MOST_CLOSED: Final = 1000
#: How far an audience has passed that has no clients.
EVERYTHING: Final = LAST_POSITION


class DurableClients:
    """All durable clients.

    Args:
        region: gives a region by its number; raises where there is none.
        store_client: called with each client that changed, to be stored, and whether it is still there.
        store_cursor: the same where only its cursor has moved.
        store_audience: as ``store_client``, with audiences.
        interests: what the clients want.
        max_clients: most clients that have a queue.
        max_events: most events that wait for a client.

    Attributes:
        clients: by client id; of those that timed out, only this is left.
        audiences: by number, those included that get nothing any more and have not been passed yet.
        behind: clients that have room, and events to be read.
        to_trim: audiences whose members have processed something since they were trimmed.
        regions_to_trim: regions of which an audience has passed something since what many want was trimmed.
        walks: those through whole queues.
        conflating: in which regions updates are conflated for any of them.
        alerts: clients that lost their queues, and why, to be logged.
        totals: what has happened to all of them.
    """

    def __init__(
        self,
        region: Callable[[int], Region],
        store_client: Callable[[DurableClient, bool], None],
        store_cursor: Callable[[DurableClient], None],
        store_audience: Callable[[Audience, bool], None],
        interests: ClientInterests,
        max_clients: int,
        max_events: int,
    ) -> None:
        self.clients: dict[str, DurableClient] = {}
        self.audiences = interests.audiences
        self.behind: dict[DurableClient, None] = {}
        self.to_trim = interests.to_trim
        self.conflating = interests.conflating
        self.regions_to_trim: dict[int, None] = {}
        self.alerts: list[tuple[str, str]] = []
        self.totals = ClientTotals()
        self._region = region
        self._store_client = store_client
        self._store_cursor = store_cursor
        self._store_audience = store_audience
        self._interests = interests
        self._max_clients = max_clients
        self._max_events = max_events
        self._by_connection: dict[int, DurableClient] = {}
        self._queues = 0  #: clients that have a queue
        self._timed_out: dict[str, None] = {}  #: the ids of those that have none any more, the first ones first
        self.walks = Walks(self.audiences, self._drained)
        self._expiries = Expiries(self.clients)
        self._interrupted: list[DurableClient] = []  #: after a start: those that were connected

    # What a restart finds.

    def restore(
        self,
        record: ClientRecord,
        interests: Mapping[int, Mapping[Interest, bool]],
        age_ms: int,
        head: int,
        sizes: tuple[int, int],
        *,
        is_exact: bool,
    ) -> None:
        """Take over a client that the store has; its audiences are there, and have passed what the others have.

        Args:
            record: of the client.
            interests: region → what it wants of it, and whether that outlives its connection.
            age_ms: now, by the age of the store.
            head: the last position of the log.
            sizes: how many events its queue has, and how many of them came while it was away.
            is_exact: whether these are exact; else they may be less.
        """
        client = self.clients[record.client_id] = DurableClient(
            record.client_id, ClientQueue(record.cursor, [AudiencePart(*part) for part in record.parts])
        )
        client.timeout_ms = record.timeout_ms
        client.conflation = Conflation(record.conflation)
        client.counters = ClientCounters(*record.counters)
        if record.timed_out:
            client.state = State.TIMED_OUT
            self._timed_out[client.id] = None
            return
        self._queues += 1
        client.drained = record.drained
        client.closed = [Closed(*each) for each in record.closed]
        client.drains = [QueryDrain(*each) for each in record.draining]
        client.counted, client.is_exact = sizes[0], is_exact
        client.state = State.DRAINING if client.drains else State.PAUSED
        client.away_ms, client.away_at = record.away_ms, record.away_at
        self._interests.restore(client, interests, record.cursor)
        client.came_by = client.came(self.audiences)
        if client.away_ms is None or client.away_at is None:  # it was connected
            client.away_ms, client.away_at = age_ms, head
            self._interrupted.append(client)
        else:
            client.came_by -= sizes[1]
        self._expiries.note(client)
        self.walks.go_on(client)

    def restored(self, head: int) -> None:
        """All clients are there, and regions have their audiences: those that were connected are away now."""
        self._interests.started_at = head
        for client in self.clients.values():
            for region in client.interests:
                if self._interests.put_right(client, self._region(region), head):
                    _log.error("! what durable client %r wants was damaged; run 'holdfast check'", client.id)
                    self._store_client(client, True)
        for client in self._interrupted:
            self._end_connection(client, head)
        self._interrupted.clear()

    # Clients come and go.

    def connect(
        self,
        client_id: str,
        connection: int,
        timeout_ms: int | None,
        window: int,
        sink: EventSink,
        conflation: Conflation,
        counted: CountedQueue | None,
        head: int,
        window_bytes: int | None = None,
    ) -> int:
        """A client comes.

        Args:
            client_id: its id.
            connection: the number of its connection.
            timeout_ms: how long it may be away after this connection; None: for ever; 0: it keeps no queue.
            window: most events under way, from 1 on.
            sink: where its events go.
            conflation: whether updates are conflated for it.
            counted: what was counted of its queue; None: that is known.
            head: the last position of the log.
            window_bytes: most bytes that the events under way may take, but for the last one; None: no limit.

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
        if client is None or not before.has_queue:
            if self._queues >= self._max_clients:
                raise ResourceAllocationException(
                    f"no more than {self._max_clients} durable clients (option max_durable_clients): close those that"
                    " do not come back, or raise the option"
                )
            self._queues += 1
            self._timed_out.pop(client_id, None)
            counters = ClientCounters() if client is None else client.counters
            client = self.clients[client_id] = DurableClient(client_id, ClientQueue(head))
            client.counters = counters
        else:
            self._come_back(client, counted, head)
        client.state = state
        client.connection, client.timeout_ms, client.away_ms, client.away_at = connection, timeout_ms, None, None
        client.window, client.window_bytes, client.sink = window, window_bytes, sink
        for region in client.interests if client.conflation is not conflation else ():
            self.conflating.wants(region, client.conflation, -1)
            self.conflating.wants(region, conflation, 1)
        client.conflation = conflation
        self._by_connection[connection] = client
        self._store_client(client, True)
        client.pending = pending_count(before, self.size(client))
        return client.pending

    def _come_back(self, client: DurableClient, counted: CountedQueue | None, head: int) -> None:
        """A client comes that was away."""
        too_many_away = 0
        client.foresee(array("Q"), -1)
        if counted is not None:
            client.counted -= counted.too_many
            client.is_exact = True
            client.foresee(counted.conflated, counted.came)
            too_many_away = counted.too_many_away - counted.too_many
        while_away = max(0, client.came(self.audiences) - client.came_by - too_many_away)
        counters = client.counters
        client.counters = counters._replace(
            reconnections=counters.reconnections + 1, while_away=counters.while_away + while_away
        )

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

    def leave(self, connection: int, age_ms: int, head: int, *, keep: bool, asked: bool) -> bool:
        """The client of a connection goes.

        Args:
            connection: its number.
            age_ms: now, by the age of the store.
            head: the last position of the log.
            keep: whether its queue is kept.
            asked: whether it was asked to be; else the connection was lost.  What is kept on request is not kept where
                the client has no durable interest.

        Returns:
            Whether its queue is kept; where the connection has no client, or has none any more, what was asked for.
        """
        client = self._by_connection.pop(connection, None)
        if client is None:
            return keep
        client.connection = client.sink = client.marker = None
        if keep and asked and not any(any(found.values()) for found in client.interests.values()):
            keep = False
        keep = keep and client.timeout_ms != 0
        client.state = after(client.state, Event.AWAY if keep else Event.CLOSE, client.id)
        client.note_head(head)
        self._no_longer_live(client)
        client.rewind()
        if not keep:
            self._end(client)
            return False
        client.away_ms, client.away_at, client.came_by = age_ms, head, client.came(self.audiences)
        self._expiries.note(client)
        self._end_connection(client, head)
        return True

    def _end_connection(self, client: DurableClient, head: int) -> None:
        """A client is away: what it wants only as long as it is connected ends, and what is queued by it stays."""
        for region, interests in list(client.interests.items()):
            ended = [interest for interest, outlives in interests.items() if not outlives]
            self._interests.end(client, self._region(region), ended, head)
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
        """End the clients that were away for too long; it costs what these cost, however many others there are."""
        for client in self._expiries.over(age_ms):
            client.state = after(client.state, Event.EXPIRE, client.id)
            self.totals = self.totals._replace(timed_out=self.totals.timed_out + 1)
            self._end(client)
            self.alerts.append((client.id, "was away for longer than its durable_timeout"))

    def next_expiry_ms(self) -> int | None:
        """Return when to look for clients that are over, by the age of the store; None: there is none that can be."""
        return self._expiries.next_ms()

    def _end(self, client: DurableClient) -> None:
        """A client has no queue any more."""
        for region, interests in list(client.interests.items()):
            self._interests.end(client, self._region(region), list(interests), EVERYTHING)
        for number in {part.audience for part in client.queue.parts}:
            self._interests.leave(client, number)
        client.drop_queue(self.audiences)
        self.walks.give_up(client)
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
        if self._interests.add(client, region, interests, durable, head):
            self._store_client(client, True)

    def unregister(
        self,
        client: DurableClient,
        region: Region,
        interests: Collection[Interest],
        head: int,
        *,
        drop: bool = False,
        answer: Answer | None = None,
    ) -> bool:
        """Let a client not want something any more.

        Args:
            client: the client.
            region: of which it wanted it.
            interests: what it does not want any more.
            head: the last position of the log.
            drop: whether what is queued by queries only that are among these is taken out, as far as it is not under
                way; else everything stays that is queued.
            answer: gets how many events were taken out, when that is done.

        Returns:
            Whether something is to be taken out.

        Raises:
            ResourceAllocationException: the client has not yet passed the events of as many closed queries as it may.
        """
        if drop and any(interest.name for interest in interests):
            _check_closed(client)
        ended = self._interests.end(client, region, interests, head)
        names = [interest.name for interest in ended if interest.name] if drop else []
        if names:
            client.drains.append(QueryDrain(region.id, names, head, answer))
            self.walks.go_on(client)
        self._store_client(client, True)
        return bool(names)

    def close_query(self, client_id: str, name: str, head: int, answer: Answer | None) -> None:
        """An administrator closes a query of a client that is away, and has its events taken out of the queue.

        Args:
            client_id: of the client.
            name: of the query.
            head: the last position of the log.
            answer: gets how many events were taken out, when that is done.

        Raises:
            IllegalStateException: there is no such client or query; or the table of :mod:`states` says so.
            ResourceAllocationException: as ``unregister``.
        """
        client = self.clients.get(client_id)
        state = after(State.ABSENT if client is None else client.state, Event.BEGIN_DRAIN, client_id)
        assert client is not None
        found = client.names.get(name)
        if found is None:
            raise IllegalStateException(f"durable client {client_id!r} has no query {name!r}")
        _check_closed(client)
        client.state = state
        region, interest = found
        self.unregister(client, self._region(region), [interest], head, drop=True, answer=answer)

    def _drained(self, client: DurableClient) -> None:
        """Events were taken out of a client's queue."""
        if client.state is State.DRAINING and not client.drains:
            client.state = after(client.state, Event.END_DRAIN, client.id)
            self._expiries.note(client)
        self._store_client(client, True)

    def flag_changed(self) -> None:
        """Whether updates of a region are conflated has changed: what was foreseen does not hold any more."""
        for client in self.clients.values():
            if client.conflation is Conflation.SERVER:
                client.foresee(array("Q"), -1)

    def conflates(self, client: DurableClient, conflation: Conflation | None = None) -> bool:
        """Return whether updates of a region that it gets events of are conflated for a client.

        Args:
            client: the client.
            conflation: what it asks for; None: what it has asked for.
        """
        wish = client.conflation if conflation is None else conflation
        if wish is not Conflation.SERVER:
            return wish is Conflation.TRUE
        return any(self._region(part.region).conflates for part in client.queue.parts)

    # What a client gets.

    def size(self, client: DurableClient) -> int:
        """Return how many events a client's queue has, under way or not; exact where ``is_exact`` says so, else at
        most.
        """
        return client.size(self.audiences)

    def is_exact(self, client: DurableClient) -> bool:
        """Return whether the size of a client's queue is exact, and what follows from it."""
        if not client.is_exact:
            return False
        if not client.is_behind or not self.conflates(client):
            return True
        return client.foreseen_of == client.came(self.audiences) or client.raw_size(self.audiences) == client.drained

    def overflowing(self, wanting: Iterable[Audience], head: int) -> list[DurableClient]:
        """An event has come for some audiences: the clients whose queues are longer now than they may be.

        It is not checked with each event: a queue may have a 64th more than its limit for each of its regions.  Where
        updates are conflated, it is counted first how many are left.
        """
        found: dict[DurableClient, None] = {}
        for audience in wanting:
            if audience.events >= audience.check_at:
                audience.check_at = audience.events + self._interests.check_step
                found |= {each: None for each in audience.members if self.size(each) > self._max_events}
        for client in [each for each in found if self.conflates(each)]:
            del found[client]
            self.walks.count(client, head)
        return list(found)

    def is_too_long(self, client: DurableClient) -> bool:
        """Return whether the queue of a client is longer than it may be."""
        return self.size(client) > self._max_events

    def overflow(self, client: DurableClient) -> EventSink | None:
        """The queue of a client is too long, and is dropped; returns where the client is told."""
        sink = client.sink
        if client.connection is not None:
            self._by_connection.pop(client.connection, None)
        client.connection = client.sink = client.marker = None
        client.state = after(client.state, Event.OVERFLOW, client.id)
        self._no_longer_live(client)
        self.totals = self.totals._replace(overflowed=self.totals.overflowed + 1)
        self._end(client)
        self.alerts.append((client.id, f"has more than {self._max_events} events (option max_client_queue_events)"))
        return sink

    def came(self, position: int, event: EventRecord, wanting: Iterable[Audience]) -> list[DurableClient]:
        """An event has come; returns the clients that get it now, to which it is dispatched."""
        found = []
        for audience in wanting:
            if not audience.live:
                continue  # as those of ten thousand clients that are away
            for client in list(audience.live):
                if client.has_room:
                    client.queue.dispatched((position,), position, (), (client.size_of(event),))
                    self._count(client, 1)
                    found.append(client)
                else:
                    self._no_longer_live(client)
        return found

    def take(self, client: DurableClient, read: Read, after_position: int, head: int) -> list[OutgoingEvent | Marker]:
        """Take what was read for a client that is behind, to send it.

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
                leaving.append(self._marker(client, marker))
                marker = None
            leaving.append(OutgoingEvent(position, event, marker is not None))
        if marker is not None and read.through >= marker:
            leaving.append(self._marker(client, marker))
        before = queue.cursor
        sizes = [client.size_of(event) for _, event in read.events]
        queue.dispatched([position for position, _ in read.events], read.through, read.left_out, sizes)
        client.conflated += sum([why is LeftOut.CONFLATED for _, why in read.left_out])
        self._count(client, len(read.events))
        if queue.cursor > before:  # nothing was for it
            client.passed(0)
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

    def _marker(self, client: DurableClient, position: int) -> Marker:
        """A client is told its marker."""
        client.marker = None
        self.totals = self.totals._replace(markers=self.totals.markers + 1)
        return Marker(position)

    def acknowledge(self, client: DurableClient, through: int) -> int:
        """A client has processed what it got up to a position; returns how many events these were."""
        count = client.queue.acknowledged(through)
        if count:
            client.passed(count)
            self._processed(client)
            if client.state is State.LIVE and client.is_behind:
                self.behind[client] = None
        return count

    def _processed(self, client: DurableClient) -> None:
        """The cursor of a client has moved."""
        for part in client.queue.parts:
            self.to_trim[part.audience] = self.audiences[part.audience]
        if self._interests.remove_ended_parts(client):
            self._store_client(client, True)
        else:
            self._store_cursor(client)

    def _count(self, client: DurableClient, dispatched: int) -> None:
        client.counters = client.counters._replace(dispatched=client.counters.dispatched + dispatched)

    def _no_longer_live(self, client: DurableClient) -> None:
        """A client gets its next events from the store."""
        client.is_behind = True
        self.behind.pop(client, None)
        for part in client.queue.parts:
            self.audiences[part.audience].live.pop(client, None)

    # What no client needs any more.

    def passed(self, number: int) -> int:
        """Return how far an audience has passed, as was measured last."""
        audience = self.audiences.get(number)
        return EVERYTHING if audience is None else audience.passed

    def have_passed(self, numbers: Iterable[int], position: int) -> bool:
        """Return whether all of these audiences have passed a position, as was measured last."""
        return all(self.passed(number) >= position for number in numbers)

    def measure(self, audience: Audience) -> int:
        """Return how far an audience has passed: its slowest member says it."""
        slowest = min((each.queue.passed_of(audience.id) for each in audience.members), default=EVERYTHING)
        if slowest != audience.passed:
            audience.passed = slowest
            self.regions_to_trim[audience.region] = None
        return slowest

    def remove_audience(self, audience: Audience) -> None:
        """Remove an audience that has neither postings nor members."""
        self.regions_to_trim[audience.region] = None
        self.audiences.pop(audience.id, None)
        self._store_audience(audience, False)


def _check_closed(client: DurableClient) -> None:
    """Whether the events of one more query may be taken out of a client's queue; each is noted until it has passed."""
    if len(client.closed) + len(client.drains) >= MOST_CLOSED:
        raise ResourceAllocationException(
            f"the queue of durable client {client.id!r} was drained of the events of {MOST_CLOSED} queries already: let"
            " the client process what is queued before others are closed with their events"
        )
