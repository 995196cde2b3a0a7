"""The form of records on disk: keys, values and their checksums.

==========  =====================================  ==========================================================
table       key                                    value
==========  =====================================  ==========================================================
messages    number u64                             crc u32, message-format u32, payload
references  number u64                             count u32, crc u32 (only for messages that several queues hold)
entries     queue u32, lane u8, position u64       number u64, delivery count u32, flags u16, group u16,
                                                   expiry u48, size u32, crc u32
annotations as in entries                          crc u32, msgpack map: what was added to the properties
schedule    due u64, kind u8, entry key            crc u32
queues      queue u32                              crc u32, msgpack: next position, bytes, lanes (:class:`Counters`)
catalog     queue u32                              crc u32, msgpack: what the queue is (:class:`CatalogRecord`)
producers   msgpack: the stream's name, or its     last u64, solid i64, last used u64 (ms), crc u32,
            hash where that is long                mask of the numbers seen (:class:`SequencesRecord`)
commits     session, or its hash where that is     last number u64, last used u64 (ms), crc u32
            long
published   group, likewise                        as in commits; of an origin (:mod:`engine.commands.intervals`) its
                                                   intervals follow: first u64, end u64 each
gateways    name                                   :mod:`broker_adapter.engine.records.gateway_records`
quarantine  table name, NUL, key                   the value as it was found
meta        name                                   crc u32 (but for ``version``), msgpack; ``next_message``,
                                                   ``next_queue``, ``next_stream``: the next numbers; ``last_stamp``:
                                                   the time of the last stamp; ``unique``: what the store is known by;
                                                   ``age``: for how long engines have run on it;
                                                   ``run/NUMBER``: a start of the engine (:class:`RunRecord`);
                                                   of a copy ``copy_of``: the URL that it follows, and ``image``: how
                                                   far it is while it is not complete
tail        lsn u64                                :mod:`broker_adapter.engine.records.tail`, where it is followed
==========  =====================================  ==========================================================

The tables of regions and of durable clients are in :mod:`broker_adapter.engine.regions.key_records`,
:mod:`~broker_adapter.engine.regions.event_records` and :mod:`broker_adapter.engine.clients.client_records`.

All integers are big-endian, so that keys sort as numbers.  Entries sort by queue, then by lane (9 - priority),
then by position: the order of delivery.  Lane :data:`DELAYED_LANE` holds what is not due yet.

LMDB pages carry no checksum, so the records that messages depend on carry their own, which covers their keys as well:
a record in the wrong place is as bad as a damaged one.  A record that fails is moved to ``quarantine``: never
delivered, never lost from sight.

Records that are msgpack arrays may get further fields at their end.  A record whose checksum is right and that has more
fields than are known here, or is of an unknown kind, is not damaged: newer software has written it, and the store is
refused as it is (:func:`refuse_newer`).  Another change of the layout needs another :data:`STORE_VERSION`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

import msgpack

from broker_adapter.errors import StoreCorruptException, StoreVersionException

#: Version of the layout above (:mod:`broker_adapter.engine.store.versions`).  Those below were of development versions,
#: and are refused.
STORE_VERSION = 11

#: Lane of messages whose delivery time has not come.
DELAYED_LANE = 255

FLAG_PERSISTENT = 1  #: must survive a restart
FLAG_SHARED = 2  #: other queues hold the same message; it is counted in ``references``
FLAG_ANNOTATED = 4  #: ``annotations`` has a record of the same key, which consumers may have changed as well
FLAG_HANDED = 8  #: may have been delivered, ahead of others that the lane's cursor has not passed
FLAG_JOINED = 16  #: of a gateway: it belongs to the transaction of the entry one position ahead of it
_LANE_SHIFT = 8  #: the upper byte of the flags: the lane that a delayed entry will have

#: Queue numbers from here on are those of staged transactions.  No client knows these by number, so only they are
#: reused.
FIRST_STAGED_QUEUE = 1 << 30
#: Queue numbers from here on are never stored: temporary queues and non-durable subscriptions.
FIRST_VOLATILE_QUEUE = 1 << 31

KIND_EXPIRE = 0
KIND_DELIVER = 1
KIND_DAMAGED = -1  #: of a line that cannot be trusted, as ``due`` gives it; never stored
#: Time after which a message that expired in a consumer's hands is due again.
DUE_AGAIN_MS = 60_000

#: The tables of regions and durable clients, in which records are read in the order of their keys.
EVENT_TABLES = (
    "regions",
    "keys",
    "tombstones",
    "events",
    "runs",
    "postings",
    "audiences",
    "clients",
    "cursors",
    "interests",
)

TABLES = (
    "messages",
    "references",
    "entries",
    "annotations",
    "schedule",
    "queues",
    "catalog",
    "producers",
    "commits",
    "published",
    "gateways",
    "quarantine",
    "meta",
    "tail",
    *EVENT_TABLES,
)

RUN_PREFIX = b"run/"
#: Longest key that LMDB takes.
MAX_KEY_BYTES = 511

#: Keys of ``meta``.  ``VERSION`` alone is plain, so that every version can read it; ``VERSION_CHECK`` has it once more.
VERSION = b"version"
VERSION_CHECK = b"version_check"
UNIQUE = b"unique"
NEXT_MESSAGE = b"next_message"
NEXT_QUEUE = b"next_queue"
NEXT_RUN = b"next_run"  #: the number of the next start of an engine
NEXT_STREAM = b"next_stream"  #: the number of the next audience, or of the next stream of what many want
LAST_STAMP = b"last_stamp"  #: the time of the last stamp of a key's change
AGE = b"age"  #: for how long engines have run on the store, from the time of the day at which it was made (ms)
REBUILT = b"rebuilt"  #: what a repair that has not ended yet found in the pages
COPY_OF = b"copy_of"  #: of a copy: the URL that it follows
IMAGE = b"image"  #: of a copy that is not complete: how far it is
META_NAMES = frozenset(
    (
        *(VERSION, VERSION_CHECK, UNIQUE, NEXT_MESSAGE, NEXT_QUEUE, NEXT_RUN, NEXT_STREAM, LAST_STAMP, AGE, REBUILT),
        *(COPY_OF, IMAGE),
    )
)
#: Positions are 64-bit numbers.
LAST_POSITION = (1 << 64) - 1
#: Numbers of messages do not get there; a key with a greater one is damaged.
LAST_MESSAGE = (1 << 62) - 1

message_key = struct.Struct(">Q").pack
queue_key = struct.Struct(">I").pack
entry_key = struct.Struct(">IBQ").pack
unpack_entry_key = struct.Struct(">IBQ").unpack
unpack_message_key = struct.Struct(">Q").unpack
unpack_queue_key = struct.Struct(">I").unpack

ENTRY_KEY_BYTES = 13
MESSAGE_KEY_BYTES = 8
QUEUE_KEY_BYTES = 4

#: The group of an entry stands above its expiry, which needs no more than 48 bits until the year 10889.
_GROUP_SHIFT = 48
#: Latest expiry that an entry can have; a later one is as good as never.
LATEST_EXPIRY_MS = (1 << _GROUP_SHIFT) - 1

_entry_body = struct.Struct(">QIHQI")
_entry_value = struct.Struct(">QIHQII")
_entry_record = struct.Struct(">IBQQIHQII")  #: key and value
_unpack_entry = _entry_record.unpack
_iter_entries = _entry_record.iter_unpack
_ENTRY_BYTES = _entry_record.size
_ENTRY_CRC = _ENTRY_BYTES - 4  #: where the checksum stands
_iter_checked = struct.Struct(f">{_ENTRY_CRC}sI").iter_unpack  #: what the checksum covers, and the checksum
_message_head = struct.Struct(">II")
_read_message_head = _message_head.unpack_from
_MESSAGE_HEAD_BYTES = _message_head.size
_schedule_head = struct.Struct(">QB")
_reference = struct.Struct(">II")
_sequences = struct.Struct(">QqQ")
_last = struct.Struct(">QQ")
_crc = struct.Struct(">I")
_new = tuple.__new__  #: what a named tuple calls, without a function of Python
#: Longest name that is its own key; LMDB's keys end at 511 bytes.
_MAX_NAME_BYTES = 200
#: Longest producer id that is part of the key of its stream as it is, in ASCII characters.
MAX_SHORT_NAME = 64


class RawEntry(NamedTuple):
    """An entry as the stores hand it over."""

    queue: int
    lane: int
    position: int
    number: int
    delivery_count: int
    flags: int
    expires_at_ms: int  #: 0: never
    size: int  #: bytes of the payload
    group: int = 0  #: number of its message group; 0: none


def position_of(key: bytes) -> int:
    """The position in the key of an entry, also of one whose value is damaged, or whose key has a wrong length."""
    return number_at(key, 5)


def decode_entry_key(key: bytes) -> tuple[int, int, int]:
    """(queue, lane, position) in a key that was read; raises StoreCorruptException where its length is wrong."""
    _check_length("entries", key, ENTRY_KEY_BYTES)
    return unpack_entry_key(key)


def decode_queue_key(table: str, key: bytes) -> int:
    """The queue in a key that was read from a table; raises StoreCorruptException where its length is wrong."""
    _check_length(table, key, QUEUE_KEY_BYTES)
    return int.from_bytes(key)


def decode_message_key(key: bytes) -> int:
    """The message in a key that was read; raises StoreCorruptException where its length is wrong."""
    _check_length("messages", key, MESSAGE_KEY_BYTES)
    return int.from_bytes(key)


def _check_length(table: str, key: bytes, length: int) -> None:
    if len(key) != length:
        raise StoreCorruptException(f"key {key.hex()} of table {table} has {len(key)} bytes, not {length}")


def delayed_flags(flags: int, lane: int) -> int:
    """Flags that remember the lane which a delayed entry will have."""
    return (flags & 0xFF) | lane << _LANE_SHIFT


def lane_of_delayed(flags: int) -> int:
    """The lane that a delayed entry will have."""
    return flags >> _LANE_SHIFT


def encode_entry(
    key: bytes, number: int, delivery_count: int, flags: int, expires_at_ms: int, size: int, group: int = 0
) -> bytes:
    """The value of an entry, with the checksum over key and value."""
    expiry = expires_at_ms | group << _GROUP_SHIFT
    crc = crc32(_entry_body.pack(number, delivery_count, flags, expiry, size), crc32(key))
    return _entry_value.pack(number, delivery_count, flags, expiry, size, crc)


def decode_entry(key: bytes, value: bytes) -> RawEntry:
    """The entry in this record; raises StoreCorruptException where its checksum or length is wrong."""
    record = key + value
    if len(record) != _ENTRY_BYTES or len(key) != ENTRY_KEY_BYTES:
        decode_entry_key(key)  # tells which of them is wrong
        raise StoreCorruptException(f"entry {key.hex()} has {len(value)} bytes, not {_entry_value.size}")
    queue, lane, position, number, count, flags, expires, size, crc = _unpack_entry(record)
    if crc32(record[:_ENTRY_CRC]) != crc:
        raise StoreCorruptException(f"entry {key.hex()} fails its checksum")
    expiry, group = expires & LATEST_EXPIRY_MS, expires >> _GROUP_SHIFT
    return _new(RawEntry, (queue, lane, position, number, count, flags, expiry, size, group))


class EntryColumns(NamedTuple):
    """Fields of many entries, by field.  There is at least one entry."""

    positions: tuple[int, ...]
    numbers: tuple[int, ...]
    delivery_counts: tuple[int, ...]
    flags: tuple[int, ...]
    sizes: tuple[int, ...]


def decode_columns(records: Sequence[tuple[bytes, bytes]]) -> EntryColumns | None:
    """The entries in (key, value) each, at least one, in their order; None where :func:`decode_entry` refuses one.

    A few calls decode all of them, and make no object for an entry.
    """
    joined = b"".join(chain.from_iterable(records))
    if len(joined) != _ENTRY_BYTES * len(records) or any(len(key) != ENTRY_KEY_BYTES for key, _ in records):
        return None
    covered, checksums = zip(*_iter_checked(joined), strict=True)
    if tuple(map(crc32, covered)) != checksums:
        return None
    _, _, positions, numbers, counts, flags, _, sizes, _ = zip(*_iter_entries(joined), strict=True)
    return EntryColumns(positions, numbers, counts, flags, sizes)


def decode_bodies(numbers: Sequence[int], records: Sequence[memoryview]) -> list[memoryview] | None:
    """The payloads of stored messages, as parts of their records; None where :func:`decode_message` refuses one.

    Args:
        numbers: of the messages, which the checksums cover.
        records: the values of their records.
    """
    if min(map(len, records)) < _MESSAGE_HEAD_BYTES:
        return None
    bodies = [record[_MESSAGE_HEAD_BYTES:] for record in records]
    for number, body, (crc, message_format) in zip(numbers, bodies, map(_read_message_head, records), strict=True):
        if crc32(body, (message_format ^ number) & 0xFFFFFFFF) != crc:
            return None
    return bodies


def encode_message(number: int, message_format: int, payload: bytes) -> bytes:
    """A stored message: checksum, format, payload."""
    return _message_head.pack(crc32(payload, (message_format ^ number) & 0xFFFFFFFF), message_format) + payload


def decode_message(number: int, value: bytes) -> tuple[int, bytes]:
    """(message-format, payload) of a stored message; raises StoreCorruptException where its checksum is wrong.

    Args:
        number: the message's, which the checksum covers.
        value: the record.
    """
    if len(value) < _MESSAGE_HEAD_BYTES:
        raise StoreCorruptException(f"message record of {len(value)} bytes is too short")
    crc, message_format = _read_message_head(value)
    payload = value[_MESSAGE_HEAD_BYTES:]
    if crc32(payload, (message_format ^ number) & 0xFFFFFFFF) != crc:
        raise StoreCorruptException("message record fails its checksum")
    return message_format, payload


def encode_reference(key: bytes, count: int) -> bytes:
    """Encode how many entries refer to a message."""
    return _reference.pack(count, crc32(count.to_bytes(4), crc32(key)))


def decode_reference(key: bytes, value: bytes) -> int:
    """Return the count; raises StoreCorruptException where its checksum is wrong."""
    if len(value) != _reference.size:
        raise StoreCorruptException(f"reference record of {len(value)} bytes")
    count, crc = _reference.unpack(value)
    if crc32(value[:4], crc32(key)) != crc:
        raise StoreCorruptException("reference record fails its checksum")
    return int(count)


def schedule_key(due_ms: int, kind: int, key: bytes) -> bytes:
    """Key of the schedule: sorts by due time."""
    return _schedule_head.pack(due_ms, kind) + key


def decode_schedule_key(key: bytes) -> tuple[int, int, bytes]:
    """(due, kind, entry key); raises StoreCorruptException where it is none."""
    _check_length("schedule", key, _schedule_head.size + ENTRY_KEY_BYTES)
    due_ms, kind = _schedule_head.unpack_from(key)
    return due_ms, kind, key[_schedule_head.size :]


def schedule_line(due_ms: int, kind: int, key: bytes) -> tuple[bytes, bytes]:
    """A line of the schedule: its key, and the checksum over that."""
    line = _schedule_head.pack(due_ms, kind) + key
    return line, _crc.pack(crc32(line))


def decode_schedule_line(line: bytes, value: bytes) -> tuple[int, int, bytes]:
    """(due, kind, entry key); raises StoreCorruptException where the checksum or the length of the key is wrong."""
    if value != _crc.pack(crc32(line)):
        raise StoreCorruptException(f"line {line.hex()} of the schedule fails its checksum")
    return decode_schedule_key(line)


def number_at(key: bytes, first: int = 0) -> int:
    """The number of eight bytes in a key, also in one that is too short for it: the place at which the key sorts."""
    return int.from_bytes(key[first : first + 8].ljust(8, b"\0"))


def due_of(line: bytes) -> int:
    """Return when a line of the schedule is due, also one whose key has a wrong length; lines sort by this time."""
    return number_at(line)


def entry_of_line(line: bytes) -> bytes:
    """The key of the entry that a damaged line of the schedule names; empty where it names none."""
    key = line[_schedule_head.size : _schedule_head.size + ENTRY_KEY_BYTES]
    return key if len(key) == ENTRY_KEY_BYTES else b""


class SequencesRecord(NamedTuple):
    """The sequence numbers that were seen of a producer's stream: see :class:`identities.Sequences`."""

    last: int
    solid: int
    used_ms: int  #: when one was last added
    mask: bytes = b""


def encode_sequences(key: bytes, record: SequencesRecord) -> bytes:
    """The record of a stream, with a checksum over key and value."""
    head = _sequences.pack(record.last, record.solid, record.used_ms)
    return head + _crc.pack(crc32(record.mask, crc32(head, crc32(key)))) + record.mask


def decode_sequences(key: bytes, value: bytes) -> SequencesRecord:
    """Return the record of a stream; raises StoreCorruptException."""
    if len(value) < _sequences.size + 4:
        raise StoreCorruptException(f"producer record of {len(value)} bytes")
    head, mask = value[: _sequences.size], value[_sequences.size + 4 :]
    if _crc.pack(crc32(mask, crc32(head, crc32(key)))) != value[_sequences.size : _sequences.size + 4]:
        raise StoreCorruptException("producer record fails its checksum")
    last, solid, used_ms = _sequences.unpack(head)
    return SequencesRecord(last, solid, used_ms, mask)


class LastRecord(NamedTuple):
    """The last number of a name, and when it was done."""

    number: int
    used_ms: int  #: by the age of the store
    intervals: bytes = b""  #: of an origin: see :class:`engine.commands.intervals.Intervals`


def encode_last(key: bytes, record: LastRecord) -> bytes:
    """The last number of a name, with a checksum over key and value."""
    head = _last.pack(record.number, record.used_ms)
    return head + _crc.pack(crc32(record.intervals, crc32(head, crc32(key)))) + record.intervals


def decode_last(key: bytes, value: bytes) -> LastRecord:
    """The last number of a name; raises StoreCorruptException."""
    size = _last.size + 4
    head, intervals = value[: _last.size], value[size:]
    crc = _crc.pack(crc32(intervals, crc32(head, crc32(key))))
    if len(value) < size or len(intervals) % 16 or crc != value[_last.size : size]:
        raise StoreCorruptException("record of a last number fails its checksum")
    number, used_ms = _last.unpack(head)
    return LastRecord(number, used_ms, intervals)


def last_key(name: str) -> bytes:
    """Key of a name in ``commits`` and ``published``; that of a long one is made of its hash."""
    key = name.encode(errors="surrogatepass")
    return b"=" + key if len(key) <= _MAX_NAME_BYTES else b"#" + blake2b(key, digest_size=32).digest()


class LaneCounters(NamedTuple):
    """Of one lane: how many entries are on disk, and up to which position they may have been delivered."""

    lane: int
    stored: int
    cursor: int


class Counters(NamedTuple):
    """What a queue remembers beside its entries, so that a restart need not count them."""

    next_position: int
    stored_bytes: int
    lanes: tuple[LaneCounters, ...]


#: What a record of the catalogue may be: "ended" where only the clearing up is left.
CATALOG_KINDS = frozenset(("queue", "subscription", "staged", "region", "events", "gateway", "ended"))


class CatalogRecord(NamedTuple):
    """What a queue is."""

    kind: str  #: one of ``CATALOG_KINDS``
    name: str
    topic: str | None = None
    client_id: str | None = None
    shared: bool = False
    no_local: bool = False
    selector: str | None = None
    target: str | None = None  #: staged: the queue that it will go to
    created_ms: int = 0
    publishing: int = 0  #: staged: 0, or its place among those that were published with it, from 1 on
    claim: str | None = None  #: of the streaming query that alone settles it by position
    holder: str | None = None  #: who that is, for people


def encode_counters(key: bytes, counters: Counters) -> bytes:
    """Counters behind a checksum over key and value."""
    return _with_crc(key, msgpack.packb(counters))


def decode_counters(key: bytes, value: bytes) -> Counters:
    """Return the counters; raises StoreCorruptException."""
    counters = Counters(*_fields(Counters, key, _checked(key, value)))
    lanes = (LaneCounters(*_fields(LaneCounters, key, lane)) for lane in counters.lanes)
    return counters._replace(lanes=tuple(lanes))


def encode_catalog(key: bytes, record: CatalogRecord) -> bytes:
    """A catalog record behind a checksum over key and value."""
    return _with_crc(key, msgpack.packb(record))


def decode_catalog(key: bytes, value: bytes) -> CatalogRecord:
    """The catalog record.

    Args:
        key: of the record.
        value: of the record.

    Raises:
        StoreCorruptException: it cannot be trusted.
        StoreVersionException: newer software has written it.
    """
    record = CatalogRecord(*_fields(CatalogRecord, key, _checked(key, value)))
    if not isinstance(record.kind, str) or record.kind not in CATALOG_KINDS:
        raise newer(f"queue {record.name!r} is of the kind {record.kind!r}, which this software does not know")
    if not isinstance(record.name, str):
        raise StoreCorruptException(f"queue {key.hex()} has the name {record.name!r}")
    return record


def refuse_newer(table: str, key: bytes, value: bytes) -> None:
    """Refuse a record of a table that only newer software writes; one that is damaged is none.

    Raises:
        StoreVersionException: newer software has written it.
    """
    decode: Callable[..., object]
    if table == "catalog":
        decode = decode_catalog
    elif table == "queues":
        decode = decode_counters
    elif table == "meta" and is_run_key(key):
        decode = decode_run
    else:
        return
    with suppress(StoreCorruptException, TypeError, ValueError, msgpack.UnpackException):
        decode(key, value)


def encode_annotations(key: bytes, annotations: dict[str, Any]) -> bytes:
    """Annotations behind a checksum over key and value."""
    return _with_crc(key, msgpack.packb(annotations))


def decode_annotations(key: bytes, value: bytes) -> dict[str, Any]:
    """Return the annotations; raises StoreCorruptException."""
    annotations: dict[str, Any] = _checked(key, value)
    return annotations


class RunRecord(NamedTuple):
    """A start of the engine on this store, and the position that each queue would give next at that moment."""

    run: str
    positions: dict[int, int]


def is_run_key(key: bytes) -> bool:
    """Return whether this key in ``meta`` is that of a start; one that begins like it and has another length is
    damaged.
    """
    return key.startswith(RUN_PREFIX) and len(key) == len(RUN_PREFIX) + 8


def run_key(number: int) -> bytes:
    """Key of a start in ``meta``: they sort by their number."""
    return RUN_PREFIX + message_key(number)


def encode_run(key: bytes, record: RunRecord) -> bytes:
    """A start of the engine behind a checksum over key and value."""
    return _with_crc(key, msgpack.packb(record))


def decode_run(key: bytes, value: bytes) -> RunRecord:
    """Return the start of the engine; raises StoreCorruptException."""
    return RunRecord(*_fields(RunRecord, key, _checked(key, value)))


def encode_meta(key: bytes, value: int | str | dict[str, Any]) -> bytes:
    """A number or a name of ``meta`` behind a checksum over key and value."""
    return _with_crc(key, msgpack.packb(value))


def decode_meta(key: bytes, value: bytes) -> Any:
    """A number or a name of ``meta``; raises StoreCorruptException."""
    return _checked(key, value)


def stream_key(*name: Any) -> bytes:
    """Key of a producer's stream in ``producers``."""
    return bytes(msgpack.packb(name))


def decode_stream_key(key: bytes) -> tuple[Any, ...]:
    """The name of a stream; raises StoreCorruptException where the key is none."""
    try:
        name = msgpack.unpackb(key, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        name = None
    if not isinstance(name, tuple):
        raise StoreCorruptException(f"key {key.hex()} of table producers is not the name of a stream")
    return name


def short_name(name: str) -> str:
    """A name that may be part of a key: a long one is replaced by its hash."""
    if len(name) <= MAX_SHORT_NAME and name.isascii():
        return name
    return "#" + blake2b(name.encode(errors="surrogatepass"), digest_size=24).hexdigest()


def quarantine_key(table: str, key: bytes) -> bytes:
    """Key of a record of a table in ``quarantine``; where it would be too long, its end is replaced by a hash."""
    whole = table.encode() + b"\0" + key
    if len(whole) <= MAX_KEY_BYTES:
        return whole
    return whole[: MAX_KEY_BYTES - 16] + blake2b(key, digest_size=16).digest()


def split_quarantine_key(key: bytes) -> tuple[str, bytes]:
    """The table that a record in ``quarantine`` was in, and its key there."""
    table, _, of_record = key.partition(b"\0")
    return table.decode(errors="replace"), of_record


def _with_crc(key: bytes, body: bytes) -> bytes:
    return crc32(body, crc32(key)).to_bytes(4, "big") + body


def _fields(kind: type[Counters | LaneCounters | CatalogRecord | RunRecord], key: bytes, found: Any) -> Sequence[Any]:
    """The fields of a record of this kind, whose checksum is right.

    Raises:
        StoreCorruptException: there are too few.
        StoreVersionException: there are more than are known, or it has no fields.
    """
    known = kind._fields
    if not isinstance(found, list):
        raise newer(f"record {key.hex()} ({kind.__name__}) is no array")
    if len(found) > len(known):
        raise newer(
            f"record {key.hex()} ({kind.__name__}) has {len(found)} fields, and this software knows {len(known)}"
        )
    if len(found) < len(known) - len(kind._field_defaults):
        raise StoreCorruptException(f"record {key.hex()} ({kind.__name__}) has only {len(found)} fields")
    return found


def newer(what: str) -> StoreVersionException:
    """The error for a record of newer software; ``what`` says how it is known."""
    return StoreVersionException(
        f"{what}: newer software has written it to the store; use that software, or upgrade this one"
    )


def _checked(key: bytes, value: bytes) -> Any:
    body = value[4:]
    if not body or int.from_bytes(value[:4]) != crc32(body, crc32(key)):
        raise StoreCorruptException("record fails its checksum")
    return msgpack.unpackb(body, strict_map_key=False)
