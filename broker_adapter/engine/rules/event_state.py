"""The regions and durable clients of an engine, and the log of events between them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.clients.client_interests import ClientInterests
from broker_adapter.engine.clients.client_records import (
    AudienceRecord,
    ClientRecord,
    CursorRecord,
    InterestRecord,
    SpanRecord,
    encode_audience,
    encode_client,
    encode_cursor,
    encode_interest,
    encode_span,
    interest_key,
    span_key,
)
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.clients.durable_clients import EVERYTHING, DurableClients
from broker_adapter.engine.commands.effects import Effects, StoreBatch
from broker_adapter.engine.commands.regions import ChangeKeys
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import (
    LAST_STAMP,
    NEXT_STREAM,
    CatalogRecord,
    encode_meta,
    last_key,
    queue_key,
)
from broker_adapter.engine.regions.audience import Audience, OwnAudience, Span
from broker_adapter.engine.regions.event_log import BroadStream
from broker_adapter.engine.regions.interests import Interest, InterestKind, checked_key
from broker_adapter.engine.regions.region import Region
from broker_adapter.engine.regions.region_records import RegionRecord, encode_region
from broker_adapter.engine.regions.stamps import Stamp, next_time
from broker_adapter.errors import IllegalStateException, InvalidDestinationException

_log = logging.getLogger(f"holdfast.{__name__}")

#: The name of the queue in which each event's message has its place.
EVENTS = "holdfast.events"


class EventState:
    """What there is of regions and durable clients.

    Attributes:
        regions: by name.
        by_number: the same by number.
        events: the queue in which each event's message has its place; None: there is no region yet.
        clients: the durable clients.
        effects: of the decision under way.
        waiting: changes of keys for which selectors are still to be asked, in order.
        next_stream: the number of the next audience, or stream of what many want.
        last_stamp: the greatest time of a change's stamp that was seen.
        noted_stamp: the same as the store has it.
        next_tombstone_ms: when to remove keys that were destroyed long ago, by the age of the store; None: there are
            none.
        resolves: whether the value of a key that two sites have changed is resolved, from both.
    """

    def __init__(self, directory: Directory) -> None:
        self.regions: dict[str, Region] = {}
        self.by_number: dict[int, Region] = {}
        self.events: QueueState | None = None
        self.effects = Effects()
        self.started: Effects | None = self.effects
        self.next_stream = 1
        self.last_stamp = self.noted_stamp = 0
        self.next_tombstone_ms: int | None = None
        self.waiting: list[ChangeKeys] = []
        self._directory = directory
        self._durable = directory.durable
        settings = directory.settings
        self.resolves = settings.resolver is not None
        interests = ClientInterests(
            self._store_audience,
            self._store_span,
            self._store_interest,
            settings.max_client_interests,
            settings.max_client_queue_events,
        )
        self.clients = DurableClients(
            self.by_number.__getitem__,
            self._store_client,
            self._store_cursor,
            self._store_audience,
            interests,
            settings.max_durable_clients,
            settings.max_client_queue_events,
        )

    @property
    def batch(self) -> StoreBatch:
        """Where the changes of the decision under way go."""
        return self.effects.durable if self._durable else self.effects.volatile

    @property
    def head(self) -> int:
        """The position of the last event."""
        return 0 if self.events is None else self.events.next_position - 1

    def durable_client(self, connection: int) -> DurableClient:
        """The durable client of a connection; raises IllegalStateException where it has none."""
        found = self.clients.of_connection(connection)
        if found is None:
            raise IllegalStateException("the connection gets no events: attach a link for them first")
        return found

    def stored_head(self) -> int:
        """The position of the last event in the store, before anything else is known."""
        found = [queue for queue in self._directory.queues.values() if queue.record.kind == "events"]
        return found[0].next_position - 1 if found else 0

    # What a restart finds.

    def restore(
        self,
        regions: Mapping[int, RegionRecord],
        streams: Iterable[tuple[int, AudienceRecord, Sequence[SpanRecord], int]],
        clients: Iterable[tuple[ClientRecord, tuple[int, int, bool]]],
        interests: Iterable[InterestRecord],
        next_stream: int,
        last_stamp: int,
        age_ms: int,
    ) -> None:
        """Take over what the store has; the queues are there.

        Args:
            regions: what is known of each, by number.
            streams: number and record of each audience and each stream of what many want, the spans of its interests,
                and how many postings it had.
            clients: the record of each, with how many events its queue has, how many of them came while it was away,
                and whether these are exact.
            interests: of all clients.
            next_stream: the number of the next of the former.
            last_stamp: the greatest time of a change's stamp.
            age_ms: the age of the store.
        """
        self.next_stream = next_stream
        self.last_stamp = self.noted_stamp = last_stamp
        self.next_tombstone_ms = 0  # there may be some
        audiences = []
        broad: dict[int, BroadStream] = {}
        clients = list(clients)
        for client, _ in clients:
            for of, number, of_client, *_ in client.parts:  # whose records may be damaged
                broad.setdefault(of, BroadStream(number))
                self.next_stream = max(self.next_stream, number + 1, of_client + 1)
        for number, record, spans, postings in streams:
            self.next_stream = max(self.next_stream, number + 1)
            if record.interests is None:
                broad[record.region] = BroadStream(number, postings)
            else:
                audiences.append((_audience(number, record, spans), postings))
        for queue in self._directory.queues.values():
            if queue.record.kind == "events":
                self.events = queue
            elif queue.record.kind == "region":
                region = self._add(queue, broad.get(queue.id))
                if queue.id in regions:
                    region.conflates, region.keys, region.events = regions[queue.id]
        for audience, postings in audiences:
            if audience.region in self.by_number:
                audience.postings, audience.passed = postings, EVERYTHING
                self.clients.audiences[audience.id] = self.clients.to_trim[audience.id] = audience
        wanted: dict[str, dict[int, dict[Interest, bool]]] = {}
        for each in interests:
            if each.region in self.by_number:
                of_client = wanted.setdefault(each.client_id, {})
                of_client.setdefault(each.region, {})[_interest(each[2:5])] = each.durable
        head = self.head
        for client, (size, of_away, is_exact) in clients:
            found = wanted.get(client.client_id, {})
            parts = [each for each in client.parts if each[0] in self.by_number]
            for of, _, number, *_ in parts:
                if number not in self.clients.audiences:
                    _log.error("! the record of audience %d is missing or damaged; run 'holdfast check'", number)
                    self.clients.audiences[number] = Audience(number, of, frozenset(found.get(of, ())))
                    self.clients.audiences[number].passed = EVERYTHING
            self.clients.restore(
                *(client._replace(parts=parts), found, age_ms, head, (size, of_away)), is_exact=is_exact
            )
        self.clients.regions_to_trim |= dict.fromkeys(self.by_number)
        for audience in self.clients.audiences.values():
            if audience.belonging:
                self.by_number[audience.region].routing.add(audience)
        self.clients.restored(head)

    # Regions.

    def region(self, name: str) -> Region:
        """A region; raises InvalidDestinationException where there is none."""
        found = self.regions.get(name)
        if found is None:
            raise InvalidDestinationException(
                f"there is no region {name!r}: create it first (create_region, or: holdfast create-region)"
            )
        return found

    def make_region(self, name: str, conflates: bool | None = None) -> Region:
        """A region, which is made where there is none.

        Args:
            name: of the region.
            conflates: whether clients that leave it to the region have updates conflated; None: as it is, and of a new
                region False.

        Raises:
            InvalidDestinationException: it cannot have this name.
            ResourceAllocationException: there are as many destinations as there may be.
        """
        found = self.regions.get(name)
        if found is None:
            checked_key(name)
            self._directory.check_limit()
            if self.events is None:
                self.events = self._make_queue(CatalogRecord("events", EVENTS))
            found = self._add(self._make_queue(CatalogRecord("region", name)), None)
        if conflates is not None and found.conflates is not conflates:
            found.conflates = conflates
            self.clients.flag_changed()
            self.store_region(found)
        return found

    def store_region(self, region: Region) -> None:
        """What is known of a region has changed."""
        key = queue_key(region.id)
        self.batch.put("regions", key, encode_region(key, region.record()))

    def _make_queue(self, record: CatalogRecord) -> QueueState:
        directory, destination = self._directory, Destination(record.name)
        if self._durable:
            return directory.new_queue(destination, record, self.effects)
        return directory.new_volatile_queue(destination, record)

    def take_started(self, effects: Effects) -> None:
        """Take over what a restart had to make, which was not stored yet."""
        started, self.started = self.started, None
        if started is not None:
            effects.durable.tables |= started.durable.tables

    def _add(self, queue: QueueState, broad: BroadStream | None) -> Region:
        if broad is None:
            broad = BroadStream(self._new_stream())
            key = queue_key(broad.id)
            self.batch.put("audiences", key, encode_audience(key, AudienceRecord(queue.id, None)))
        region = Region(queue.id, queue.record.name, broad, self._new_stream)
        self.regions[region.name] = self.by_number[region.id] = region
        return region

    def _new_stream(self) -> int:
        number = self.next_stream
        self.next_stream = number + 1
        self.batch.put("meta", NEXT_STREAM, encode_meta(NEXT_STREAM, number + 1))
        return number

    # Stamps.

    def next_stamp(self, now_ms: int) -> Stamp:
        """Return the stamp of a change that is made now."""
        self.last_stamp = time = next_time(self.last_stamp, now_ms)
        return Stamp(time, self._directory.settings.site)

    def seen_stamp(self, stamp: Stamp) -> None:
        """Note the stamp of a change of another site: what is changed here from now on is newer."""
        self.last_stamp = max(self.last_stamp, stamp.time)

    def note_stamp(self) -> None:
        """Have the commit of this decision keep the last stamp that it gave."""
        self.noted_stamp = self.last_stamp
        self.batch.put("meta", LAST_STAMP, encode_meta(LAST_STAMP, self.last_stamp))

    # Records.

    def _store_client(self, client: DurableClient, is_there: bool) -> None:
        key = last_key(client.id)
        self.batch.put("clients", key, encode_client(key, client.record()) if is_there else None)
        self.batch.put("cursors", key, None)

    def _store_cursor(self, client: DurableClient) -> None:
        key = last_key(client.id)
        self.batch.put(
            "cursors", key, encode_cursor(key, CursorRecord(client.queue.cursor, client.drained, client.counters))
        )

    def _store_audience(self, audience: Audience, is_there: bool) -> None:
        key = queue_key(audience.id)
        if is_there:
            interests = [(int(each.kind), each.text, each.name) for each in audience.interests]
            record = AudienceRecord(audience.region, interests, isinstance(audience, OwnAudience))
            self.batch.put("audiences", key, encode_audience(key, record))
            return
        self.batch.put("audiences", key, None)
        if isinstance(audience, OwnAudience):
            for interest in audience.spans:
                self.batch.put("audiences", _span_record(audience, interest)[0], None)

    def _store_span(self, audience: OwnAudience, interest: Interest) -> None:
        key, record = _span_record(audience, interest)
        self.batch.put("audiences", key, encode_span(key, record))

    def _store_interest(self, client: DurableClient, region: int, interest: Interest, durable: bool | None) -> None:
        record = InterestRecord(client.id, region, int(interest.kind), interest.text, interest.name, durable is True)
        key = interest_key(record)
        self.batch.put("interests", key, None if durable is None else encode_interest(key, record))


def _span_record(audience: OwnAudience, interest: Interest) -> tuple[bytes, SpanRecord]:
    record = SpanRecord(int(interest.kind), interest.text, interest.name, *audience.spans[interest])
    return span_key(audience.id, record), record


def _audience(number: int, record: AudienceRecord, spans: Iterable[SpanRecord]) -> Audience:
    """An audience of its record, and of the spans of its interests."""
    interests = map(_interest, record.interests or ())
    if not record.is_own:
        return Audience(number, record.region, frozenset(interests))
    return OwnAudience(number, record.region, interests, {_interest(each[:3]): Span(*each[3:]) for each in spans})


def _interest(fields: Sequence[Any]) -> Interest:
    """An interest of (kind, text, name)."""
    kind, text, name = fields
    return Interest(InterestKind(kind), text, name)
