"""Every table of a store against every other: what does not fit, and how it is repaired.  No I/O.

Theory of operation
    ``Check(tables).findings()`` reads all tables once, in the order of their keys, and yields what is wrong.  Each
    finding carries the changes that repair it.  A repair loses nothing: what cannot be trusted goes into the table
    ``quarantine`` as it is, entries of an unknown queue get a queue that is named after them, and counters are made to
    say what there is.  After a repair, a second check finds nothing.

    Memory: 8 bytes for each entry, 16 for each message that has lost places, and the keys of the delayed entries.

    What the checks cannot know: a message that was never stored, and one whose entry, body and counters are all of the
    same earlier time, as a whole store that is restored from a copy.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from typing import Final, NamedTuple

from broker_adapter.engine.check.events import EventCheck
from broker_adapter.engine.check.findings import (
    Change,
    Finding,
    Lack,
    Summary,
    Tables,
    can_decode,
    damaged_key,
    to_quarantine,
)
from broker_adapter.engine.check.gateways import check_gateways
from broker_adapter.engine.check.names import check_meta, check_names, check_tail
from broker_adapter.engine.check.places import Places
from broker_adapter.engine.check.schedule_lines import delivery_ms, fits, in_words, right_line
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    ENTRY_KEY_BYTES,
    FIRST_STAGED_QUEUE,
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    FLAG_SHARED,
    KIND_DELIVER,
    KIND_EXPIRE,
    LAST_MESSAGE,
    CatalogRecord,
    Counters,
    LaneCounters,
    RawEntry,
    decode_annotations,
    decode_catalog,
    decode_counters,
    decode_entry,
    decode_message,
    decode_schedule_line,
    encode_annotations,
    encode_catalog,
    encode_counters,
    encode_entry,
    entry_key,
    message_key,
    queue_key,
    schedule_key,
    schedule_line,
    unpack_entry_key,
    unpack_message_key,
    unpack_queue_key,
)
from broker_adapter.envelope import ENVELOPE_FORMAT
from broker_adapter.errors import StoreCorruptException

#: Positions that are skipped where it is not known which ones were used.
SKIPPED_POSITIONS: Final = 1 << 32
#: Lanes that an entry may have.
_LANES: Final = frozenset((*range(10), DELAYED_LANE))
#: Entries whose message numbers are sorted at a time.
_SORTED_AT_ONCE: Final = 1_000_000
#: What the engine makes itself.


class _Queue:
    """A queue of the catalogue, and what was counted of its entries."""

    __slots__ = ("counted", "last", "number", "record", "size", "without_message")

    def __init__(self, number: int, record: CatalogRecord) -> None:
        self.number = number
        self.record = record
        self.counted: Counter[int] = Counter()  #: lane → entries
        self.size = 0
        self.last = 0
        self.without_message = 0  #: entries that are not counted, since their messages are gone or damaged

    def __str__(self) -> str:
        """Return what it is called in a finding."""
        topic = "" if self.record.topic is None else f" of topic {self.record.topic!r}"
        return f"{self.record.kind} {self.record.name!r}{topic}"

    @property
    def is_staged(self) -> bool:
        """Whether its messages are a staged transaction's."""
        return self.record.kind == "staged"


class _Moved(NamedTuple):
    """Where the entries of an unknown queue are to go."""

    queue: int
    record: CatalogRecord


class Check:
    """A check of one store.

    Args:
        tables: its records.
        progress: called with the number of records checked so far and how many there are.
        formats: reads messages for the time at which they are to be delivered; None: those of our own format.

    Attributes:
        summary: what was seen; complete when ``findings`` has come to its end.
    """

    def __init__(
        self,
        tables: Tables,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
        formats: Formats | None = None,
    ) -> None:
        self._tables = tables
        self._formats = formats or Formats()
        self._progress = progress
        self._done = 0
        self._total = sum(tables.count(table) for table in ("catalog", "queues", "entries", "messages", "schedule"))
        self.summary = Summary()
        self._queues: dict[int, _Queue] = {}
        self._moved: dict[int, _Moved] = {}  #: unknown queue → its new one
        self._references: list[array[int]] = []  #: message number << 1 | whether the entry says that it is shared
        self._delayed: set[bytes] = set()
        self._expiring: dict[bytes, int] = {}  #: entries that have no line in the schedule where it should be → expiry
        self._places = Places(tables, self.summary)
        self._lost_messages: set[int] = set()  #: messages that are gone or damaged: their entries go into quarantine
        self._set_aside: set[bytes] = set()  #: entries of events and keys that go into quarantine
        self._highest = 0  #: number of the last message

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong.  To be exhausted; each finding may be repaired at once."""
        for finding in self._all():
            (self.summary.harmless if finding.harmless else self.summary.problems)[finding.problem] += 1
            yield finding

    def _all(self) -> Iterator[Finding]:
        yield from self._check_catalog()
        yield from self._check_events()
        yield from self._check_gateways()
        yield from self._check_entries()
        yield from self._check_messages()
        yield from self._check_references()
        yield from self._check_annotations()
        yield from self._check_schedule()
        yield from self._check_entries_again()
        yield from self._check_counters()
        yield from self._places.counted_again()
        yield from check_names(self._tables, self.summary)
        yield from check_meta(self._tables, self._highest_queue(), self._highest)
        yield from check_tail(self._tables)
        self.summary.quarantined = self._tables.count("quarantine")
        self._progress(self._total, self._total)

    def _seen(self) -> None:
        self._done += 1
        if not self._done % 10_000:
            self._progress(self._done, self._total)

    # The catalogue.

    def _check_catalog(self) -> Iterator[Finding]:
        if not self._tables.persistent:
            return
        names: dict[object, int] = {}
        for key, value in self._tables.items("catalog"):
            self._seen()
            if len(key) != 4:
                yield damaged_key("catalog", key, value)
                continue
            (number,) = unpack_queue_key(key)
            try:
                record = decode_catalog(key, value)
            except (StoreCorruptException, ValueError, TypeError):
                record = CatalogRecord("queue", f"recovered-{number}")
                yield Finding(
                    "damaged catalogue record",
                    "catalog",
                    key,
                    f"the record of queue {number} cannot be trusted; it goes into quarantine, and the queue is named"
                    f" {record.name!r}",
                    (*to_quarantine("catalog", key, value), ("catalog", key, encode_catalog(key, record))),
                )
            self._queues[number] = _Queue(number, record)
            name = record.kind, record.name, record.client_id if record.kind == "subscription" else None
            if record.kind != "ended" and name in names:
                other = record._replace(name=f"recovered-{number}")
                yield Finding(
                    "two queues of one name",
                    "catalog",
                    key,
                    f"queue {number} has the name {record.name!r} of queue {names[name]}; it is named {other.name!r}",
                    (("catalog", key, encode_catalog(key, other)),),
                )
            names.setdefault(name, number)
        self.summary.queues = len(self._queues)

    # Entries.

    def _check_entries(self) -> Iterator[Finding]:
        numbers: array[int] = array("Q")
        for key, value in self._tables.items("entries"):
            self._seen()
            if key in self._set_aside:
                continue
            self.summary.entries += 1
            try:
                entry = decode_entry(key, value)
                if entry.lane not in _LANES:
                    raise StoreCorruptException(f"lane {entry.lane}")
            except StoreCorruptException as error:
                yield Finding(
                    "damaged entry",
                    "entries",
                    key,
                    f"{self._place(key)} cannot be trusted ({error}); it goes into quarantine",
                    to_quarantine("entries", key, value),
                )
                continue
            yield from self._check_entry(key, entry)
            numbers.append(entry.number << 1 | bool(entry.flags & FLAG_SHARED))
            if len(numbers) == _SORTED_AT_ONCE:
                self._references.append(array("Q", sorted(numbers)))
                numbers = array("Q")
        self._references.append(array("Q", sorted(numbers)))

    def _check_entry(self, key: bytes, entry: RawEntry) -> Iterator[Finding]:
        tables = self._tables
        queue = self._queues.get(entry.queue)
        if queue is None and tables.persistent:
            if entry.queue not in self._moved:
                self._moved[entry.queue] = self._home(entry.queue)
                yield Finding(
                    "entries of an unknown queue",
                    "entries",
                    key,
                    f"the catalogue has no queue {entry.queue}; its entries get the queue"
                    f" {self._moved[entry.queue].record.name!r}",
                )
            queue = self._queues[self._moved[entry.queue].queue]
        if queue is not None:
            queue.counted[entry.lane] += 1
            queue.size += entry.size
            queue.last = max(queue.last, entry.position)
        if entry.lane == DELAYED_LANE:
            self._delayed.add(key)
            self.summary.delayed += 1
        elif (
            entry.expires_at_ms
            and not (queue is not None and queue.is_staged)  # what is staged expires in the queue where it is published
            and not self._is_scheduled(schedule_key(entry.expires_at_ms, KIND_EXPIRE, key))
        ):
            self._expiring[key] = entry.expires_at_ms
        flags = entry.flags
        if tables.persistent and not flags & FLAG_PERSISTENT:
            flags |= FLAG_PERSISTENT
            yield Finding(
                "entry not marked as persistent",
                "entries",
                key,
                f"{self._place(key)} is stored and not marked as persistent; it is marked",
                (_entry_change(key, entry, flags),),
            )
        if flags & FLAG_ANNOTATED:
            annotations = tables.get("annotations", key)
            if annotations is None or not can_decode(decode_annotations, key, annotations):
                yield Finding(
                    "annotations missing",
                    "entries",
                    key,
                    f"the annotations of {self._place(key)} (such as why it was set aside) are gone or damaged; it goes"
                    " on without them",
                    (
                        *(() if annotations is None else to_quarantine("annotations", key, annotations)),
                        _entry_change(key, entry, flags & ~FLAG_ANNOTATED),
                    ),
                )

    def _home(self, unknown: int) -> _Moved:
        """The queue that entries of an unknown queue get: its own, where its number is one that queues can have."""
        number = unknown
        if number >= FIRST_STAGED_QUEUE or number in self._queues:
            number = self._highest_queue() + 1
        record = CatalogRecord("queue", f"recovered-{unknown}")
        self._queues[number] = _Queue(number, record)
        return _Moved(number, record)

    def _highest_queue(self) -> int:
        """The highest number of a queue that is no staged transaction."""
        return max((number for number in self._queues if number < FIRST_STAGED_QUEUE), default=0)

    # Messages, and what refers to them.

    def _check_messages(self) -> Iterator[Finding]:
        tables = self._tables
        references = groupby(merge(*self._references), lambda word: word >> 1)
        self._references = []
        wanted = next(references, None)
        for key, value in tables.items("messages"):
            self._seen()
            self.summary.messages += 1
            self.summary.message_bytes += len(value)
            if len(key) != 8:
                yield damaged_key("messages", key, value)
                continue
            (number,) = unpack_message_key(key)
            if number <= LAST_MESSAGE:
                self._highest = number
            while wanted is not None and wanted[0] < number:
                self._lost_messages.add(wanted[0])  # the message is not there
                wanted = next(references, None)
            words = [*wanted[1]] if wanted is not None and wanted[0] == number else []
            if words:
                wanted = next(references, None)
            try:
                decode_message(number, value)
            except StoreCorruptException as error:
                self._lost_messages.add(number)
                yield Finding(
                    "damaged message",
                    "messages",
                    key,
                    f"message {number} cannot be trusted ({error}); it goes into quarantine with its entries",
                    to_quarantine("messages", key, value),
                )
                continue
            if not words:
                lost = self._places.lost_with_all(number)
                yield Finding(
                    "message without an entry",
                    "messages",
                    key,
                    f"no queue holds message {number}{f', and {lost} did' if lost else ''}; it goes into quarantine",
                    to_quarantine("messages", key, value),
                )
                continue
            yield from self._places.check(number, value, len(words), sum(word & 1 for word in words))
        while wanted is not None:
            self._lost_messages.add(wanted[0])
            wanted = next(references, None)

    def _place(self, key: bytes) -> str:
        """Return what an entry is called, with its queue."""
        queue = self._queues.get(unpack_entry_key(key)[0]) if len(key) == ENTRY_KEY_BYTES else None
        if queue is None:
            return f"entry {key.hex()}"
        return f"entry {key.hex()} of {queue}"

    def _check_references(self) -> Iterator[Finding]:
        for key, _ in self._tables.items("references"):
            if self._tables.get("messages", key) is None:
                yield Finding(
                    "count of references left over",
                    "references",
                    key,
                    f"message {int.from_bytes(key)} is gone; its count of references is dropped",
                    (("references", key, None),),
                    harmless=True,
                )

    # What belongs to entries.

    def _check_annotations(self) -> Iterator[Finding]:
        for key, value in self._tables.items("annotations"):
            entry = self._entry(key)
            if entry is None or not entry.flags & FLAG_ANNOTATED:
                yield Finding(
                    "annotations left over",
                    "annotations",
                    key,
                    f"there is no entry {key.hex()} with annotations; they go into quarantine",
                    to_quarantine("annotations", key, value),
                    harmless=True,
                )

    def _is_scheduled(self, line: bytes) -> bool:
        """Return whether the schedule has this line, and it can be trusted."""
        value = self._tables.get("schedule", line)
        return value is not None and can_decode(decode_schedule_line, line, value)

    def _check_schedule(self) -> Iterator[Finding]:
        for line, value in self._tables.items("schedule"):
            self._seen()
            try:
                due_ms, kind, key = decode_schedule_line(line, value)
            except StoreCorruptException as error:
                yield Finding(
                    "damaged line of the schedule",
                    "schedule",
                    line,
                    f"a line of the schedule cannot be trusted ({error}); it goes into quarantine",
                    to_quarantine("schedule", line, value),
                )
                continue
            entry = self._entry(key)
            right_ms = None if entry is None else self._contradicted(due_ms, kind, entry)
            if entry is not None and right_ms is not None:
                yield Finding(
                    "wrong time in the schedule",
                    "schedule",
                    line,
                    f"a line of the schedule makes {self._place(key)} due {in_words(due_ms)} in place of"
                    f" {in_words(right_ms)}; it goes into quarantine",
                    to_quarantine("schedule", line, value),
                )
            elif kind == KIND_DELIVER and key in self._delayed:
                self._delayed.discard(key)
            elif entry is not None and fits(kind, due_ms, entry) and kind == KIND_EXPIRE:
                self._expiring.pop(key, None)  # later than it says: it was in a consumer's hands
            else:
                yield Finding(
                    "line of the schedule left over",
                    "schedule",
                    line,
                    f"the schedule has a line for {key.hex()}, which is gone or due at another time; it is dropped",
                    (("schedule", line, None),),
                    harmless=True,
                )
        for key, expires_at_ms in sorted(self._expiring.items()):
            yield Finding(
                "expiry not scheduled",
                "entries",
                key,
                f"{self._place(key)} expires, and the schedule does not say so; it is put in",
                (("schedule", *schedule_line(expires_at_ms, KIND_EXPIRE, key)),),
            )
        for key in sorted(self._delayed):
            entry = self._entry(key)
            due_ms = (None if entry is None else delivery_ms(self._formats, self._message(entry))) or 0
            yield Finding(
                "delivery not scheduled",
                "entries",
                key,
                f"{self._place(key)} waits for its time, which the schedule does not have; "
                f"it becomes due {in_words(due_ms)}{', as its message says' if due_ms else ''}",
                (("schedule", *schedule_line(due_ms, KIND_DELIVER, key)),),
            )

    def _contradicted(self, due_ms: int, kind: int, entry: RawEntry) -> int | None:
        """The time that a line of the schedule ought to have; None where it is right, or no better one is known.

        Args:
            due_ms: of the line.
            kind: of the line.
            entry: that it names.
        """
        if kind == KIND_EXPIRE and entry.expires_at_ms and entry.lane != DELAYED_LANE:
            # Where it expired in a consumer's hands, it is due again later.
            return None if due_ms >= entry.expires_at_ms else entry.expires_at_ms
        if kind != KIND_DELIVER or entry.lane != DELAYED_LANE:
            return None
        message = self._message(entry)
        right_ms = delivery_ms(self._formats, message)
        if message is None or right_ms is None or right_ms == due_ms:
            return None
        # A foreign message may name a delay, which counts from its arrival.
        return right_ms if message[0] == ENVELOPE_FORMAT else None

    def _message(self, entry: RawEntry) -> tuple[int, bytes] | None:
        """Format and payload of the message of an entry; None where they cannot be trusted."""
        value = self._tables.get("messages", message_key(entry.number))
        try:
            return None if value is None else decode_message(entry.number, value)
        except StoreCorruptException:
            return None

    def _entry(self, key: bytes) -> RawEntry | None:
        value = self._tables.get("entries", key) if len(key) == ENTRY_KEY_BYTES else None
        try:
            return None if value is None else decode_entry(key, value)
        except StoreCorruptException:
            return None

    def _check_entries_again(self) -> Iterator[Finding]:
        """Check what the messages have shown of their entries, and entries that get another queue."""
        if not (self._lost_messages or self._places.to_share or self._moved):
            return
        for key, value in self._tables.items("entries"):
            entry = self._entry(key)
            if entry is None or key in self._set_aside:
                continue
            if entry.number in self._lost_messages:
                self._uncount(entry)
                yield Finding(
                    "entry without a message",
                    "entries",
                    key,
                    f"message {entry.number} of {self._place(key)} is gone or damaged; the entry goes into quarantine",
                    to_quarantine("entries", key, value),
                )
                continue
            flags = entry.flags
            if entry.number in self._places.to_share and not flags & FLAG_SHARED:
                flags |= FLAG_SHARED
                yield Finding(
                    "entry not marked as shared",
                    "entries",
                    key,
                    f"several queues hold message {entry.number}, and {self._place(key)} does not say so; it is marked",
                    (_entry_change(key, entry, flags),),
                )
            moved = self._moved.get(entry.queue)
            if moved is not None and moved.queue != entry.queue:
                yield self._move(key, entry._replace(flags=flags), moved.queue)
        for moved in self._moved.values():
            yield Finding(
                "entries of an unknown queue",
                "catalog",
                queue_key(moved.queue),
                f"queue {moved.queue} is put into the catalogue as {moved.record.name!r}",
                (("catalog", queue_key(moved.queue), encode_catalog(queue_key(moved.queue), moved.record)),),
            )

    def _uncount(self, entry: RawEntry) -> None:
        moved = self._moved.get(entry.queue)
        queue = self._queues.get(entry.queue if moved is None else moved.queue)
        if queue is not None:
            queue.counted[entry.lane] -= 1
            queue.size -= entry.size
            queue.without_message += 1

    def _move(self, key: bytes, entry: RawEntry, queue: int) -> Finding:
        """Give an entry the queue that is made for it."""
        new_key = entry_key(queue, entry.lane, entry.position)
        changes: list[Change] = [("entries", key, None), _entry_change(new_key, entry, entry.flags)]
        annotations = self._tables.get("annotations", key)
        if annotations is not None and can_decode(decode_annotations, key, annotations):
            again = encode_annotations(new_key, decode_annotations(key, annotations))
            changes += [("annotations", key, None), ("annotations", new_key, again)]
        line = right_line(entry._replace(queue=queue), delivery_ms(self._formats, self._message(entry)))
        if line is not None:
            changes.append(("schedule", *line))
        return Finding(
            "entries of an unknown queue",
            "entries",
            key,
            f"entry {key.hex()} gets the queue {queue}",
            tuple(changes),
        )

    # Regions and durable clients.

    def _check_events(self) -> Iterator[Finding]:
        if not self._tables.persistent:
            return
        kinds = {number: queue.record.kind for number, queue in self._queues.items()}
        regions = {number: self._queues[number].record.name for number, kind in kinds.items() if kind == "region"}
        events = next((number for number, kind in kinds.items() if kind == "events"), None)
        check = EventCheck(self._tables, regions, events)
        yield from check.findings()
        self._set_aside = check.lost

    def _check_gateways(self) -> Iterator[Finding]:
        if self._tables.persistent:
            records = [queue.record for queue in self._queues.values()]
            yield from check_gateways(self._tables, {each.name for each in records if each.kind == "gateway"})

    # Counters.

    def _check_counters(self) -> Iterator[Finding]:
        tables = self._tables
        if not tables.persistent:
            return
        for number, queue in sorted(self._queues.items()):
            key = queue_key(number)
            value = tables.get("queues", key)
            counters: Counters | None = None
            damaged = False
            if value is not None:
                try:
                    counters = decode_counters(key, value)
                except (StoreCorruptException, ValueError, TypeError):
                    damaged = True
            self._note_lack(counters, queue)
            wrong = _differences(counters, queue)
            if not wrong and not damaged:
                continue
            cursors = {lane.lane: lane.cursor for lane in counters.lanes} if counters is not None else {}
            lanes = [
                LaneCounters(lane, max(0, queue.counted[lane]), cursors.get(lane, 0))
                for lane in sorted(_LANES)
                if queue.counted[lane] > 0 or cursors.get(lane)
            ]
            next_position = queue.last + 1 + SKIPPED_POSITIONS
            if counters is not None:
                next_position = max(counters.next_position, queue.last + 1)
            right = Counters(next_position, queue.size, tuple(lanes))
            yield Finding(
                "wrong counters",
                "queues",
                key,
                f"the counters of {queue} {'cannot be trusted' if damaged else 'say ' + wrong};"
                f" they are put right: {sum(queue.counted.values())} messages of {queue.size} bytes",
                (
                    *(to_quarantine("queues", key, value) if damaged and value is not None else ()),
                    ("queues", key, encode_counters(key, right)),
                ),
            )
        for key, value in tables.items("queues"):
            self._seen()
            if len(key) != 4:
                yield damaged_key("queues", key, value)
            elif unpack_queue_key(key)[0] not in self._queues:
                yield Finding(
                    "counters left over",
                    "queues",
                    key,
                    f"there is no queue {int.from_bytes(key)}; its counters go into quarantine",
                    to_quarantine("queues", key, value),
                    harmless=True,
                )

    def _note_lack(self, counters: Counters | None, queue: _Queue) -> None:
        """Note how many entries a queue lacks, where places are lost."""
        said = 0 if counters is None else sum(lane.stored for lane in counters.lanes)
        lacks = said - queue.without_message - sum(queue.counted.values())
        if lacks > 0 and self.summary.lost_places:
            record = queue.record
            self.summary.lacking.append(Lack(record.kind, record.name, record.topic, record.client_id, lacks))


def _differences(counters: Counters | None, queue: _Queue) -> str:
    """Return what the counters say wrongly, in words; empty where they are right."""
    said = counters or Counters(1, 0, ())
    stored = {lane.lane: lane.stored for lane in said.lanes}
    wrong = []
    if any(stored.get(lane, 0) != max(0, queue.counted[lane]) for lane in _LANES):
        wrong.append(f"{sum(stored.values())} messages")
    if said.stored_bytes != queue.size:
        wrong.append(f"{said.stored_bytes} bytes")
    if said.next_position <= queue.last:
        wrong.append(f"that the next position is {said.next_position} where {queue.last} is used")
    return " and ".join(wrong)


def _entry_change(key: bytes, entry: RawEntry, flags: int) -> Change:
    _, _, _, number, count, _, expires_at_ms, size, group = entry
    return "entries", key, encode_entry(key, number, count, flags, expires_at_ms, size, group)
