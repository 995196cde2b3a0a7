"""What commands about regions and durable clients need of the stores before the rules decide on them."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from broker_adapter.engine.clients.client_queue import AudiencePart, LeftOut
from broker_adapter.engine.clients.client_records import (
    SPAN_KEY_BYTES,
    AudienceRecord,
    ClientRecord,
    InterestRecord,
    SpanRecord,
    decode_audience,
    decode_client,
    decode_cursor,
    decode_interest,
    decode_span,
    moved,
)
from broker_adapter.engine.clients.durable_client import CONFLATIONS, Conflation, CountedQueue, DurableClient
from broker_adapter.engine.clients.durable_clients import EVERYTHING
from broker_adapter.engine.clients.left_out import Closed, LeavingOut
from broker_adapter.engine.clients.states import State
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.effects import Leaving
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.records.layout import (
    FLAG_PERSISTENT,
    LAST_STAMP,
    MAX_KEY_BYTES,
    NEXT_STREAM,
    QUEUE_KEY_BYTES,
    RawEntry,
    decode_meta,
    unpack_queue_key,
)
from broker_adapter.engine.regions.event_records import LANE, EventRecord
from broker_adapter.engine.regions.interests import InterestKind
from broker_adapter.engine.regions.key_records import (
    KeyRecord,
    KeyState,
    decode_key_record,
    decode_tombstone,
    region_key,
)
from broker_adapter.engine.regions.region_records import RegionRecord, decode_region
from broker_adapter.engine.regions.stored_log import Records, StoredLog
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.engine.store.stores import Stores
from broker_adapter.errors import StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")

#: Events that are read for one client in one cycle, at most.
READ_AT_ONCE = 500
#: Events that are examined in one cycle, of one queue that is walked as a whole.
WALKED_AT_ONCE = 500
#: Postings that are examined in one cycle, to end events.
TRIMMED_AT_ONCE = 500
#: Keys that were destroyed and are removed in one cycle, at most.
TOMBSTONES_AT_ONCE = 500

_R = TypeVar("_R", AudienceRecord, ClientRecord, InterestRecord, RegionRecord, tuple[int, SpanRecord])


class EventReads:
    """Reads what commands about regions and durable clients ask for.

    Args:
        stores: of the engine.
        reads: of its entries.
        state: of regions and durable clients.
    """

    def __init__(self, stores: Stores, reads: EntryReads, state: EventState) -> None:
        self._stores = stores
        self._flags = 0 if stores.disk is None else FLAG_PERSISTENT
        self._reads = reads
        self._state = state
        self._expecting: set[int] = set()  #: regions of which queries may be asked from this cycle on
        self.by_kind: dict[type, Callable[[Any], c.Command]] = {
            e.ChangeKeys: self.keys,
            e.ConnectDurable: self._counted,
            e.RegisterInterest: self._expect_queries,
            e.ReadEvents: self._events,
            e.WalkEvents: self._walk,
            e.TrimEvents: self._postings,
            e.RemoveTombstones: self._tombstones,
        }

    def restore(self, age_ms: int) -> None:
        """Tell the state what the stores have."""
        with self._stores.records() as records:
            log = StoredLog(records)
            streams = []
            spans: dict[int, list[SpanRecord]] = {}
            for key, value in records.items_from("audiences", b"\0"):
                if len(key) == SPAN_KEY_BYTES:
                    span = self._decoded(decode_span, "audiences", key, value)
                    if span is not None:
                        spans.setdefault(span[0], []).append(span[1])
                    continue
                audience = self._decoded(decode_audience, "audiences", key, value)
                if audience is not None and len(key) == QUEUE_KEY_BYTES:
                    (number,) = unpack_queue_key(key)
                    streams.append((number, audience, spans.setdefault(number, []), log.last_ordinal(number)))
            found = [self._client(records, *each) for each in records.items_from("clients", b"\0")]
            head = self._state.stored_head()
            clients = [(each, _sizes_of(each, log, head)) for each in found if each is not None]
            wanted = [
                self._decoded(decode_interest, "interests", *each) for each in records.items_from("interests", b"\0")
            ]
            regions = {
                int.from_bytes(key): record
                for key, value in records.items_from("regions", b"\0")
                if (record := self._decoded(decode_region, "regions", key, value)) is not None
            }
            next_stream = records.get("meta", NEXT_STREAM)
            last_stamp = _last_stamp(records)
        number = 1
        if next_stream is not None:
            try:
                number = decode_meta(NEXT_STREAM, next_stream)
            except StoreCorruptException:
                _log.warning("! the number of the next audience is damaged; it follows from those that are there")
        interests = [each for each in wanted if each is not None]
        self._state.restore(regions, streams, clients, interests, number, last_stamp, age_ms)

    def _client(self, records: Records, key: bytes, value: bytes) -> ClientRecord | None:
        """The record of a client, as far as its cursor has come."""
        client = self._decoded(decode_client, "clients", key, value)
        value_of_cursor = records.get("cursors", key)
        if client is None or value_of_cursor is None:
            return client
        try:
            return moved(client, decode_cursor(key, value_of_cursor))
        except StoreCorruptException as error:
            _log.error(
                "! record %s of table cursors cannot be trusted: %s; some events are sent again", key.hex(), error
            )
            return client

    @staticmethod
    def _decoded(decode: Callable[[bytes, bytes], _R], table: str, key: bytes, value: bytes) -> _R | None:
        try:
            return decode(key, value)
        except StoreCorruptException as error:
            _log.error("! record %s of table %s cannot be trusted: %s", key.hex(), table, error)
            return None

    def keys(self, command: e.ChangeKeys) -> e.ChangeKeys:
        """The changes with what the stores have of their keys."""
        region = self._state.regions.get(command.region)
        if region is None:
            return command
        damaged: list[bytes] = []
        with self._stores.records() as records:
            found = [_key_record(records, region.id, change.key, damaged) for change in command.changes]
        if damaged and self._stores.disk is not None:
            self._stores.disk.quarantine("keys", damaged)
        changes = []
        for change, record in zip(command.changes, found, strict=True):
            value = None if record is None or not record.place else self._entry(region.id, record.place)
            changes.append(change._replace(before=record, value=value))
        resolves = self._state.resolves and any(change.stamp is not None for change in changes)
        if resolves or region.routing.queries or region.id in self._expecting:
            places = [(change.value.number, change.value.flags) for change in changes if change.value is not None]
            bodies = iter(self._stores.bodies(places))
            changes = [change if change.value is None else change._replace(old=next(bodies)) for change in changes]
            if region.routing.queries:
                self._expecting.discard(region.id)
        return command._replace(changes=changes)

    def _expect_queries(self, command: e.RegisterInterest) -> c.Command:
        """A region's first query is asked of changes in the same cycle, which need the old values."""
        region = self._state.regions.get(command.region)
        if region is not None and any(each.kind is InterestKind.QUERY for each in command.interests):
            self._expecting.add(region.id)
        return command

    def _counted(self, command: e.ConnectDurable) -> c.Command:
        clients = self._state.clients
        client = clients.clients.get(command.client_id)
        wish = CONFLATIONS.get(command.conflation)
        if client is None or client.state is not State.PAUSED or wish is None:
            return command
        conflates = clients.conflates(client, wish)
        if client.is_exact and not conflates:
            return command
        queue, head = client.queue, self._state.head
        came, size = client.came(clients.audiences), client.raw_size(clients.audiences)
        too_many = too_many_away = 0
        conflated, is_all = array("Q"), True
        with self._stores.records() as records:
            log = StoredLog(records)
            if not client.is_exact:
                too_many = size - queue.size(log, head)
                away_at = max(queue.cursor, client.away_at or 0)
                too_many_away = came - client.came_by - queue.size(log, head, away_at)
            if conflates:
                leave_out = self._leaving_out(client, log, wish)
                walked = islice(queue.examine(log, queue.cursor, head), e.COUNTED_AT_ONCE)
                for count, (position, audience, event) in enumerate(walked, 1):
                    is_all = count < e.COUNTED_AT_ONCE
                    if event is not None and leave_out(position, event, audience) is LeftOut.CONFLATED:
                        conflated.append(position)
        counted = CountedQueue(too_many, too_many_away, conflated, came - too_many if is_all else -1)
        return command._replace(counted=counted)

    def _leaving_out(
        self,
        client: DurableClient,
        log: StoredLog,
        conflation: Conflation | None = None,
        closed: Sequence[Closed] | None = None,
    ) -> LeavingOut:
        """Says what is left out of a client's queue.

        Args:
            client: the client.
            log: of the engine.
            conflation: what it asks for; None: what it has asked for.
            closed: its queries that have ended; None: those that have.
        """
        state = self._state
        wish = client.conflation if conflation is None else conflation

        def conflates(number: int) -> bool:
            region = state.by_number.get(number)
            return region is not None and wish.holds(region.conflates)

        return LeavingOut(
            log, client.queue, state.clients.audiences.get, client.closed if closed is None else closed, conflates
        )

    def _walk(self, command: e.WalkEvents) -> c.Command:
        client = self._state.clients.clients.get(command.client_id)
        walk = None if client is None else client.walk
        if client is None or walk is None:
            return command
        drain = walk.drain
        found: list[int] = []
        through = walk.through
        with self._stores.records() as records:
            log = StoredLog(records)
            before = self._leaving_out(client, log)
            closed = () if drain is None else (Closed(drain.region, drain.names, 0, drain.through),)
            then = self._leaving_out(client, log, closed=[*client.closed, *closed])
            for count, (position, audience, event) in enumerate(client.queue.examine(log, walk.after, walk.through), 1):
                if event is not None:
                    if drain is None:
                        is_found = before(position, event, audience) is LeftOut.CONFLATED
                    else:
                        is_found = then.is_drained(position, event, audience) and not before.is_drained(
                            position, event, audience
                        )
                    if is_found:
                        found.append(position)
                if count == WALKED_AT_ONCE:
                    through = position
                    break
        return command._replace(walk=walk, found=found, through=through)

    def _events(self, command: e.ReadEvents) -> c.Command:
        client = self._state.clients.clients.get(command.client_id)
        if client is None:
            return command
        queue = client.queue
        limit = min(READ_AT_ONCE, client.window - len(queue.in_hand))
        room = None if client.window_bytes is None else client.window_bytes - queue.in_hand_bytes
        if not client.has_room:
            return command._replace(after=-1)
        with self._stores.records() as records:
            log = StoredLog(records)
            leave_out = self._leaving_out(client, log)
            read = queue.read(log, self._state.head, limit, None, leave_out, room, client.size_of)
        self._note_damage(log)
        return command._replace(after=queue.read_through, read=read)

    def _postings(self, command: e.TrimEvents) -> c.Command:
        clients = self._state.clients
        audience = clients.audiences.get(command.stream)
        if audience is not None:
            through = clients.measure(audience)
        elif command.region is not None:
            through = EVERYTHING  # each event says who wants it
        else:
            return command
        found: list[tuple[int, EventRecord | None]] = []
        is_empty, has_more = True, False
        with self._stores.records() as records:
            log = StoredLog(records)
            for position in log.postings(command.stream, 0, min(through, EVERYTHING - 1)):
                if len(found) == TRIMMED_AT_ONCE:
                    is_empty, has_more = False, True
                    break
                event = log.event(position)
                if audience is None and event is not None and not clients.have_passed(event.audiences, position):
                    break
                found.append((position, event))
            if is_empty and through < EVERYTHING:
                is_empty = next(log.postings(command.stream, through + 1, EVERYTHING - 1), None) is None
        self._note_damage(log)
        events = self._state.events
        places = [
            None if event is None or events is None else self._entry(events.id, position) for position, event in found
        ]
        with_places = [(*each, place) for each, place in zip(found, places, strict=True)]
        return command._replace(found=with_places, is_empty=is_empty, has_more=has_more)

    def _tombstones(self, command: e.RemoveTombstones) -> c.Command:
        lines: list[bytes] = []
        keys: list[bytes] = []
        next_ms: int | None = None
        damaged: list[bytes] = []
        with self._stores.records() as records:
            for line, value in records.items_from("tombstones", b"\0"):
                try:
                    due_ms, key, version = decode_tombstone(line, value)
                except StoreCorruptException:
                    damaged.append(line)
                    continue
                if due_ms > command.age_ms or len(lines) == TOMBSTONES_AT_ONCE:
                    next_ms = due_ms
                    break
                lines.append(line)
                found = records.get("keys", key)
                try:
                    record = None if found is None else decode_key_record(key, found)
                except StoreCorruptException:
                    record = None
                if record is not None and record.version == version and record.state is KeyState.TOMBSTONE:
                    keys.append(key)
        if damaged and self._stores.disk is not None:
            self._stores.disk.quarantine("tombstones", damaged)
        return command._replace(lines=lines, keys=keys, next_ms=next_ms)

    def _entry(self, queue: int, position: int) -> RawEntry | None:
        read = self._reads.repaired(self._stores.load, queue, LANE, position - 1, 1).entries
        return read[0] if read and read[0].position == position else None

    def handouts(self, leaving: Sequence[Leaving]) -> list[Any]:
        """Return what leaves for a durable client, with its payloads; an event whose message cannot be read is left
        out.
        """
        bodies = iter(self._stores.bodies([(each.message, self._flags) for each in leaving if each.message]))
        found: list[Any] = []
        for message, handout in leaving:
            if not message:
                found.append(handout)
                continue
            body = next(bodies)
            if body is None:
                _log.error("! message %d of an event cannot be trusted; the event is left out", message)
                continue
            found.append(handout._replace(format=body[0], payload=body[1]))
        return found

    @staticmethod
    def _note_damage(log: StoredLog) -> None:
        for table, key in log.damaged:
            _log.error("! record %s of table %s cannot be trusted; its event is passed over", key.hex(), table)


def _sizes_of(client: ClientRecord, log: StoredLog, head: int) -> tuple[int, int, bool]:
    """Return what the queue of a client has: how many events at most, how many of them came while it was away, and
    whether that is exact: of what many want, all are counted.
    """
    size, many = _events_behind(client, log, client.cursor, head)
    of_away = 0
    if client.away_at is not None:
        of_away, _ = _events_behind(client, log, max(client.cursor, client.away_at), head)
    return size, of_away, not many


def _events_behind(client: ClientRecord, log: StoredLog, after: int, head: int) -> tuple[int, int]:
    """Return how many events a client may have behind a position, and how many of them many want."""
    own = many = 0
    for part in map(_part, client.parts):
        first, last = part.within(after, head)
        if first <= last:
            own += log.postings_through(part.audience, last) - log.postings_through(part.audience, first - 1)
            many += log.postings_through(part.broad, last) - log.postings_through(part.broad, first - 1)
    return own + many, many


def _part(fields: Sequence[Any]) -> AudiencePart:
    return AudiencePart(*fields)


def _last_stamp(records: Records) -> int:
    """Return the greatest time of a stamp; where the note of it is lost, the greatest that a key has."""
    noted = records.get("meta", LAST_STAMP)
    with suppress(StoreCorruptException):
        if noted is not None:
            return int(decode_meta(LAST_STAMP, noted))
    greatest = 0
    for key, value in records.items_from("keys", b"\0"):
        with suppress(StoreCorruptException):
            greatest = max(greatest, decode_key_record(key, value).stamp.time)
    if greatest:
        _log.warning("! the last stamp of a change is damaged; it follows from the keys that are there")
    return greatest


def _key_record(records: Records, region: int, key: str, damaged: list[bytes]) -> KeyRecord | None:
    """Return what the store knows of a key; a record that cannot be trusted is noted, and the key counts as new."""
    try:
        of = region_key(region, key)
    except UnicodeEncodeError:
        return None  # the command is refused
    value = records.get("keys", of) if len(of) <= MAX_KEY_BYTES else None
    try:
        return None if value is None else decode_key_record(of, value)
    except StoreCorruptException:
        damaged.append(of)
        return None
