"""The regions and durable clients of an engine, and the log of events between them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker_adapter.destination import Destination
from broker_adapter.engine.clients.client_records import (
    AudienceRecord,
    ClientRecord,
    CursorRecord,
    encode_audience,
    encode_client,
    encode_cursor,
)
from broker_adapter.engine.clients.durable_clients import EVERYTHING, DurableClient, DurableClients
from broker_adapter.engine.directory import Directory
from broker_adapter.engine.effects import Effects, StoreBatch
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.records import NEXT_STREAM, CatalogRecord, encode_meta, last_key, queue_key
from broker_adapter.engine.regions.event_log import BroadStream
from broker_adapter.engine.regions.interests import Interest, InterestKind, checked_key
from broker_adapter.engine.regions.region import Region
from broker_adapter.engine.regions.routing import Audience
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
        next_stream: the number of the next audience, or stream of what many want.
        next_forgotten_ms: when to look for keys that were destroyed long ago, by the age of the store; None: there are
            none.
    """

    def __init__(self, directory: Directory) -> None:
        self.regions: dict[str, Region] = {}
        self.by_number: dict[int, Region] = {}
        self.events: QueueState | None = None
        self.effects = Effects()
        self._started: Effects | None = self.effects
        self.next_stream = 1
        self.next_forgotten_ms: int | None = None
        self._directory = directory
        self._durable = directory.durable
        settings = directory.settings
        self.clients = DurableClients(
            self.by_number.__getitem__,
            self._store_client,
            self._store_cursor,
            self._store_audience,
            settings.max_durable_clients,
            settings.max_client_interests,
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
        streams: Iterable[tuple[int, AudienceRecord, int]],
        clients: Iterable[tuple[ClientRecord, tuple[int, bool]]],
        next_stream: int,
        age_ms: int,
    ) -> None:
        """Take over what the store has; the queues are there.

        Args:
            streams: number and record of each audience and each stream of what many want, and how many postings it had.
            clients: the record of each, with how many events wait for it, and whether that is exact.
            next_stream: the number of the next of the former.
            age_ms: the age of the store.
        """
        self.next_stream = next_stream
        self.next_forgotten_ms = 0  # it is looked whether there are any
        audiences = []
        broad: dict[int, BroadStream] = {}
        clients = list(clients)
        for client, _ in clients:
            for region, number, audience, *_ in client.parts:  # whose records may be damaged
                broad.setdefault(region, BroadStream(number))
                self.next_stream = max(self.next_stream, number + 1, audience + 1)
        for number, record, postings in streams:
            self.next_stream = max(self.next_stream, number + 1)
            if record.interests is None:
                broad[record.region] = BroadStream(number, postings)
            else:
                audiences.append((number, record, postings))
        for queue in self._directory.queues.values():
            if queue.record.kind == "events":
                self.events = queue
            elif queue.record.kind == "region":
                self._add(queue, broad.get(queue.id))
        for number, record, postings in audiences:
            region = self.by_number.get(record.region)
            if region is not None:
                interests = frozenset(Interest(InterestKind(kind), text) for kind, text in record.interests or ())
                audience = Audience(number, region.id, interests)
                audience.postings, audience.passed = postings, EVERYTHING
                self.clients.audiences[number] = self.clients.worn[number] = audience
        for client, (size, is_exact) in clients:
            parts = [each for each in client.parts if each[0] in self.by_number]
            for region, _, number, *_ in parts:
                if number not in self.clients.audiences:
                    _log.error("! the record of audience %d is missing or damaged; run 'holdfast check'", number)
                    wanted = [
                        Interest(InterestKind(kind), text) for of, kind, text, _ in client.interests if of == region
                    ]
                    self.clients.audiences[number] = Audience(number, region, frozenset(wanted))
                    self.clients.audiences[number].passed = EVERYTHING
            known = [each for each in client.interests if each[0] in self.by_number]
            self.clients.restore(client._replace(parts=parts, interests=known), age_ms, size, is_exact=is_exact)
        self.clients.worn_regions |= dict.fromkeys(self.by_number)
        for audience in self.clients.audiences.values():
            if audience.belonging:
                self.by_number[audience.region].routing.add(audience)

    # Regions.

    def region(self, name: str) -> Region:
        """A region; raises InvalidDestinationException where there is none."""
        found = self.regions.get(name)
        if found is None:
            raise InvalidDestinationException(f"there is no region {name!r}: create it first (create_region)")
        return found

    def make_region(self, name: str) -> Region:
        """A region, which is made where there is none.

        Raises:
            InvalidDestinationException: it cannot have this name.
            ResourceAllocationException: there are as many destinations as there may be.
        """
        found = self.regions.get(name)
        if found is not None:
            return found
        checked_key(name)
        self._directory.check_limit()
        if self.events is None:
            self.events = self._make_queue(CatalogRecord("events", EVENTS))
        return self._add(self._make_queue(CatalogRecord("region", name)), None)

    def _make_queue(self, record: CatalogRecord) -> QueueState:
        directory, destination = self._directory, Destination(record.name)
        if self._durable:
            return directory.new_queue(destination, record, self.effects)
        return directory.new_volatile_queue(destination, record)

    def begin(self, effects: Effects) -> None:
        """A decision begins."""
        started, self.effects = self._started, effects
        if started is not None:  # what a restart had to make
            self._started = None
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

    # Records.

    def _store_client(self, client: DurableClient, is_there: bool) -> None:
        key = last_key(client.id)
        self.batch.put("clients", key, encode_client(key, client.record()) if is_there else None)
        self.batch.put("cursors", key, None)

    def _store_cursor(self, client: DurableClient) -> None:
        key = last_key(client.id)
        self.batch.put("cursors", key, encode_cursor(key, CursorRecord(client.queue.cursor, client.counters)))

    def _store_audience(self, audience: Audience, is_there: bool) -> None:
        key = queue_key(audience.id)
        interests = [(int(each.kind), each.text) for each in sorted(audience.interests)]
        record = AudienceRecord(audience.region, interests)
        self.batch.put("audiences", key, encode_audience(key, record) if is_there else None)
