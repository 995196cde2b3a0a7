"""What a store has of regions and durable clients, against itself and against the entries of its queues.

An event has a record and an entry, with its message; the value of a key has an entry.  An event that a client has not
processed has a posting where the client's queue is read.  What cannot be trusted goes into quarantine.  Then a key
whose value is gone has none, a client whose record is damaged is a new one when it comes back, and an audience that is
missing is made from what its clients want.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgpack

from broker_adapter.engine.check.findings import Finding, Tables, to_quarantine
from broker_adapter.engine.clients.client_records import (
    SPAN_KEY_BYTES,
    AudienceRecord,
    ClientRecord,
    decode_audience,
    decode_client,
    decode_cursor,
    decode_interest,
    decode_span,
    encode_audience,
    moved,
)
from broker_adapter.engine.records.layout import (
    EVENT_TABLES,
    LAST_POSITION,
    LAST_STAMP,
    NEXT_STREAM,
    decode_entry,
    decode_message,
    decode_meta,
    decode_queue_key,
    encode_meta,
    entry_key,
    message_key,
    queue_key,
    unpack_entry_key,
)
from broker_adapter.engine.regions.event_records import (
    LANE,
    POSITION_KEY_BYTES,
    EventRecord,
    decode_event,
    decode_posting,
    decode_run,
    encode_posting,
    encode_run,
    position_key,
    posting_key,
    run_key,
)
from broker_adapter.engine.regions.key_records import (
    KeyState,
    decode_key_record,
    decode_tombstone,
    encode_key_record,
    tombstone,
)
from broker_adapter.engine.regions.region_records import RegionRecord, decode_region, encode_region
from broker_adapter.errors import StoreCorruptException

#: What is raised by a record that cannot be trusted.
_DAMAGE = (StoreCorruptException, ValueError, TypeError, msgpack.UnpackException)


class EventCheck:
    """A check of the regions and durable clients of a store.

    Args:
        tables: of the store.
        regions: numbers and names of the regions in the catalogue.
        events: number of the queue that has the events; None: the catalogue has none.

    Attributes:
        lost: the keys of entries that go into quarantine, since nothing refers to them.
    """

    def __init__(self, tables: Tables, regions: Mapping[int, str], events: int | None) -> None:
        self.lost: set[bytes] = set()
        self._tables = tables
        self._regions = regions
        self._events = events
        self._audiences: dict[int, AudienceRecord] = {}
        self._clients: list[ClientRecord] = []
        self._wanted: dict[tuple[str, int], list[tuple[int, str, str]]] = {}  #: by client and region
        self._damaged_events: set[bytes] = set()
        self._places: set[bytes] = set()  #: the keys of the entries that are values

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong; each finding may be repaired at once."""
        if not self._regions and self._events is None and not any(map(self._tables.count, EVENT_TABLES)):
            return
        yield from self._check_audiences()
        yield from self._check_clients()
        yield from self._check_interests()
        yield from self._check_streams()
        yield from self._check_events()
        yield from self._check_postings()
        yield from self._check_keys()
        yield from self._check_tombstones()
        yield from self._check_runs()
        yield from self._check_regions()
        yield from self._check_entries()

    # Audiences and clients.

    def _check_audiences(self) -> Iterator[Finding]:
        for key, value in self._tables.items("audiences"):
            if len(key) == SPAN_KEY_BYTES:
                yield from self._check_span(key, value)
                continue
            try:
                number = decode_queue_key("audiences", key)
                record = decode_audience(key, value)
                if record.region not in self._regions:
                    raise StoreCorruptException(f"there is no region {record.region}")
            except _DAMAGE as error:
                yield _damaged("damaged audience", "audiences", key, value, "the record of an audience", error)
                continue
            self._audiences[number] = record

    def _check_span(self, key: bytes, value: bytes) -> Iterator[Finding]:
        """A span follows its audience."""
        try:
            number, _ = decode_span(key, value)
            if number not in self._audiences or not self._audiences[number].is_own:
                raise StoreCorruptException(f"there is no audience {number} of one client alone")
        except _DAMAGE as error:
            yield _damaged(
                "damaged span", "audiences", key, value, "for which events a durable client had an interest", error
            )

    def _check_clients(self) -> Iterator[Finding]:
        known: set[bytes] = set()
        for key, value in self._tables.items("clients"):
            try:
                client = decode_client(key, value)
            except _DAMAGE as error:
                yield _damaged(
                    "damaged durable client",
                    *("clients", key, value, "the record of a durable client, which is new when it comes back,", error),
                )
                continue
            cursor = self._tables.get("cursors", key)
            with suppress(StoreCorruptException):
                if cursor is not None:
                    client = moved(client, decode_cursor(key, cursor))
            self._clients.append(client)
            known.add(key)
        for key, value in self._tables.items("cursors"):
            try:
                decode_cursor(key, value)
                if key not in known:
                    raise StoreCorruptException("there is no client of it")
            except StoreCorruptException as error:
                yield _damaged("damaged cursor", "cursors", key, value, "how far a durable client has come", error)

    def _check_interests(self) -> Iterator[Finding]:
        known = {client.client_id for client in self._clients if not client.timed_out}
        for key, value in self._tables.items("interests"):
            try:
                record = decode_interest(key, value)
                if record.client_id not in known or record.region not in self._regions:
                    raise StoreCorruptException("there is no client or no region of it")
            except _DAMAGE as error:
                yield _damaged("damaged interest", "interests", key, value, "what a durable client wants", error)
                continue
            wanted = self._wanted.setdefault((record.client_id, record.region), [])
            wanted.append((record.kind, record.text, record.name))

    def _check_streams(self) -> Iterator[Finding]:
        """Each region has a stream of what many want, and each client the audiences that it belonged to."""
        missing: dict[int, AudienceRecord] = {}
        for client in self._clients:
            for region, broad, audience, _, last in client.parts:
                if region not in self._regions:
                    continue
                wanted = self._wanted.get((client.client_id, region), []) if last is None else []
                if audience not in self._audiences:
                    missing.setdefault(audience, AudienceRecord(region, wanted))
                if broad not in self._audiences:
                    missing.setdefault(broad, AudienceRecord(region, None))
        have = {record.region for record in (*self._audiences.values(), *missing.values()) if record.interests is None}
        number = max((*self._audiences, *missing, 0))
        for region in sorted(set(self._regions) - have):
            number += 1
            missing[number] = AudienceRecord(region, None)
        for number, record in sorted(missing.items()):
            key = queue_key(number)
            yield Finding(
                "audience missing",
                "audiences",
                key,
                f"region {self._regions[record.region]!r} has no audience {number}; it is made from what its clients"
                " want",
                (("audiences", key, encode_audience(key, record)),),
            )
        self._audiences |= missing
        highest = max(self._audiences, default=0)
        noted = self._tables.get("meta", NEXT_STREAM)
        try:
            following = 0 if noted is None else int(decode_meta(NEXT_STREAM, noted))
        except _DAMAGE:
            following = 0
        if following <= highest and (highest or noted is not None):
            yield Finding(
                "wrong number of the next audience",
                "meta",
                NEXT_STREAM,
                f"the next audience would be number {following}, and there is a number {highest}; it is put right",
                (("meta", NEXT_STREAM, encode_meta(NEXT_STREAM, highest + 1)),),
            )

    # Events.

    def _check_events(self) -> Iterator[Finding]:
        for key, value in self._tables.items("events"):
            try:
                event = decode_event(key, value)
                if event.region not in self._regions:
                    raise StoreCorruptException(f"there is no region {event.region}")
                if self._events is None or not self._has_message(self._events, int.from_bytes(key), event.message):
                    raise StoreCorruptException("its message is gone or damaged")
            except _DAMAGE as error:
                self._damaged_events.add(key)
                yield _damaged("damaged event", "events", key, value, "an event", error)

    def _has_message(self, queue: int, position: int, number: int | None = None) -> bool:
        """Return whether there is an entry of a queue at a position, with a message that can be trusted: ``number``, if
        given.

        What is wrong there is found elsewhere as well: here it decides what becomes of the event or key.
        """
        key = entry_key(queue, LANE, position)
        value = self._tables.get("entries", key)
        try:
            entry = decode_entry(key, value or b"")
            message = self._tables.get("messages", message_key(entry.number))
            decode_message(entry.number, message or b"")
        except StoreCorruptException:
            return False
        return number is None or entry.number == number

    def _event(self, position: int) -> EventRecord | None:
        key = position_key(position)
        value = self._tables.get("events", key)
        try:
            return None if value is None else decode_event(key, value)
        except _DAMAGE:
            return None

    def _check_postings(self) -> Iterator[Finding]:
        """A stream whose postings are damaged, or that lacks one, is numbered again."""
        wrong: set[int] = set()
        last_stream, last = 0, 0
        for key, value in self._tables.items("postings"):
            try:
                stream, _, ordinal = decode_posting(key, value)
                if stream not in self._audiences:
                    raise StoreCorruptException(f"there is no audience {stream}")
            except _DAMAGE as error:
                yield _damaged("damaged posting", "postings", key, value, "a posting", error)
                continue
            if stream == last_stream and ordinal <= last:
                wrong.add(stream)
            last_stream, last = stream, ordinal
        missing: dict[int, list[int]] = {}
        for stream, position in self._due():
            key = posting_key(stream, position)
            found = self._tables.get("postings", key)
            try:
                decode_posting(key, found or b"")
            except StoreCorruptException:
                missing.setdefault(stream, []).append(position)
        yield from self._numbered_again({stream: missing.get(stream, []) for stream in sorted({*wrong, *missing})})

    def _due(self) -> Iterator[tuple[int, int]]:
        """Stream and position of each posting that a client has still to read."""
        processed: dict[int, list[tuple[int, int, int]]] = {}  # by audience: cursor, first, last
        for client in self._clients:
            for _, _, audience, first, last in client.parts:
                end = LAST_POSITION if last is None else last
                processed.setdefault(audience, []).append((client.cursor, first, end))
        broad = {record.region: number for number, record in self._audiences.items() if record.interests is None}
        for key, _ in self._tables.items("events"):
            position = int.from_bytes(key)
            event = self._event(position) if len(key) == 8 else None
            if event is None or event.region not in self._regions:
                continue
            waiting = [
                audience
                for audience in event.audiences
                if any(
                    cursor < position and first <= position <= end for cursor, first, end in processed.get(audience, ())
                )
            ]
            if event.is_broad:
                if waiting:
                    yield broad[event.region], position
            else:
                yield from ((audience, position) for audience in waiting)

    def _numbered_again(self, missing: Mapping[int, Sequence[int]]) -> Iterator[Finding]:
        """Number the postings of some streams again, with those that are missing in each."""
        positions = {stream: set(lacking) for stream, lacking in missing.items()}
        for key, value in self._tables.items("postings") if positions else ():
            try:
                stream, position, _ = decode_posting(key, value)
            except _DAMAGE:
                continue
            if stream in positions:
                positions[stream].add(position)
        for stream, lacking in missing.items():
            keys = [posting_key(stream, position) for position in sorted(positions[stream])]
            yield Finding(
                "postings missing",
                "postings",
                posting_key(stream, 0),
                f"{len(lacking)} postings of audience {stream} are missing or in a wrong order; they are put in, and"
                " numbered again",
                tuple(("postings", key, encode_posting(key, ordinal)) for ordinal, key in enumerate(keys, 1)),
            )

    # Keys.

    def _check_keys(self) -> Iterator[Finding]:
        greatest = 0
        for key, value in self._tables.items("keys"):
            try:
                record = decode_key_record(key, value)
                region = decode_queue_key("keys", key[:4])
                key[4:].decode()
                if region not in self._regions or len(key) < 5:
                    raise StoreCorruptException(f"there is no region {region}")
            except _DAMAGE as error:
                yield _damaged("damaged key", "keys", key, value, "what is known of a region's key", error)
                continue
            greatest = max(greatest, record.stamp.time)
            has_value = bool(record.place) and self._has_message(region, record.place)
            if has_value:
                self._places.add(entry_key(region, LANE, record.place))
            if (record.state is KeyState.VALID and not has_value) or (
                record.state is not KeyState.VALID and record.place
            ):
                state = KeyState.INVALID if record.state is KeyState.VALID else record.state
                yield Finding(
                    "value missing",
                    "keys",
                    key,
                    f"the value of key {key[4:].decode()!r} of region {self._regions[region]!r} is gone; the key has no"
                    " valid value now",
                    (("keys", key, encode_key_record(key, record._replace(place=0, state=state))),),
                )
        noted = self._tables.get("meta", LAST_STAMP)
        try:
            last = -1 if noted is None else int(decode_meta(LAST_STAMP, noted))
        except _DAMAGE:
            last = -1
        if last < greatest and (greatest or noted is not None):
            yield Finding(
                "wrong last stamp",
                "meta",
                LAST_STAMP,
                "the last stamp of a change is damaged, or older than that of a key; it is put right",
                (("meta", LAST_STAMP, encode_meta(LAST_STAMP, greatest)),),
            )

    def _check_tombstones(self) -> Iterator[Finding]:
        """Each key that was destroyed is to be forgotten."""
        due: dict[bytes, int] = {}
        for line, value in self._tables.items("tombstones"):
            try:
                _, key, version = decode_tombstone(line, value)
            except _DAMAGE as error:
                yield _damaged("damaged tombstone", "tombstones", line, value, "when a key is to be forgotten", error)
                continue
            due[key] = max(version, due.get(key, 0))
        for key, value in self._tables.items("keys"):
            try:
                record = decode_key_record(key, value)
            except StoreCorruptException:
                continue
            if record.state is KeyState.TOMBSTONE and due.get(key) != record.version:
                yield Finding(
                    "tombstone missing",
                    "keys",
                    key,
                    f"key {key.hex()} was destroyed, and nothing says when it is to be forgotten; that is put in",
                    (("tombstones", *tombstone(record.changed_ms, key, record.version)),),
                )

    # What follows from events and keys.

    def _check_runs(self) -> Iterator[Finding]:
        """Each update that is of a run is found by it."""
        for key, value in self._tables.items("runs"):
            try:
                run, position = decode_run(key, value)
                event = self._event(position)
                if event is None or event.run != run or position_key(position) in self._damaged_events:
                    raise StoreCorruptException(f"there is no update {position} of it")
            except _DAMAGE as error:
                yield _damaged("damaged run", "runs", key, value, "a place in a run of updates", error)
        for key, _ in self._tables.items("events"):
            event = self._event(int.from_bytes(key)) if len(key) == POSITION_KEY_BYTES else None
            if event is None or not event.run or key in self._damaged_events:
                continue
            of_run = run_key(event.run, int.from_bytes(key))
            found = self._tables.get("runs", of_run)
            if found != encode_run(of_run):
                text = f"update {int.from_bytes(key)} has no place in its run; it gets one"
                yield Finding("run missing", "runs", of_run, text, (("runs", of_run, encode_run(of_run)),))

    def _check_regions(self) -> Iterator[Finding]:
        """Check what is counted of each region."""
        keys, events = Counter[int](), Counter[int]()
        for key, value in self._tables.items("keys"):
            with suppress(*_DAMAGE):
                if decode_key_record(key, value).state is not KeyState.TOMBSTONE:
                    keys[int.from_bytes(key[:4])] += 1
        for key, value in self._tables.items("events"):
            if key not in self._damaged_events:
                with suppress(*_DAMAGE):
                    events[decode_event(key, value).region] += 1
        known = set()
        for key, value in self._tables.items("regions"):
            try:
                record = decode_region(key, value)
                region = int.from_bytes(key)
                if region not in self._regions:
                    raise StoreCorruptException(f"there is no region {region}")
            except _DAMAGE as error:
                yield _damaged("damaged region", "regions", key, value, "what is counted of a region", error)
                continue
            known.add(region)
            right = RegionRecord(record.conflates, keys[region], events[region])
            if record != right:
                yield self._counted_again(region, right)
        for region in sorted(set(self._regions) - known):
            right = RegionRecord(False, keys[region], events[region])
            if right != RegionRecord():
                yield self._counted_again(region, right)

    def _counted_again(self, region: int, right: RegionRecord) -> Finding:
        key = queue_key(region)
        return Finding(
            "wrong counts of a region",
            "regions",
            key,
            f"region {self._regions[region]!r} has {right.keys} keys and {right.events} events, and other"
            " numbers were noted; they are put right",
            (("regions", key, encode_region(key, right)),),
        )

    # Entries.

    def _check_entries(self) -> Iterator[Finding]:
        """The entries of events and values that nothing refers to."""
        for key, value in self._tables.items("entries"):
            try:
                decode_entry(key, value)
            except StoreCorruptException:
                continue  # it is found to be damaged
            queue, lane, position = unpack_entry_key(key)
            if queue == self._events:
                event = position_key(position)
                is_known = (
                    lane == LANE and event not in self._damaged_events and self._tables.get("events", event) is not None
                )
            elif queue in self._regions:
                is_known = key in self._places
            else:
                continue
            if not is_known:
                self.lost.add(key)
                yield Finding(
                    "message of no event or key",
                    "entries",
                    key,
                    f"entry {key.hex()} belongs to no event and is the value of no key; it goes into quarantine",
                    to_quarantine("entries", key, value),
                )


def _damaged(problem: str, table: str, key: bytes, value: bytes, what: str, error: Exception) -> Finding:
    return Finding(
        problem,
        table,
        key,
        f"{what} cannot be trusted ({error}); it goes into quarantine",
        to_quarantine(table, key, value),
    )
