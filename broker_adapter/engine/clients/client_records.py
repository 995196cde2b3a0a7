"""The form on disk of durable clients and of the audiences that they belong to.

==========  =====================  ====================================================================================
table       key                    value
==========  =====================  ====================================================================================
clients     client id, or its      crc u32, msgpack array of the fields of :class:`ClientRecord`
            hash where it is long
cursors     as in ``clients``      crc u32, msgpack array of the fields of :class:`CursorRecord`
interests   hash of the client     crc u32, msgpack array of the fields of :class:`InterestRecord`
            id, region u32, hash
            of the interest
audiences   number u32             crc u32, msgpack array of the fields of :class:`AudienceRecord`
            number u32, hash of    crc u32, msgpack array of the fields of :class:`SpanRecord`
            an interest
==========  =====================  ====================================================================================

The cursor of a client moves with each acknowledgement.  So only the cursor is written then, in a record of its own,
which counts where it is further than the client's.  A client may have thousands of interests, so each has its record;
and where the client has an audience of its own, each that was added to it or has ended has a record there.

A checksum covers key and value.  A record of a msgpack array may get further fields at its end: one that has more than
are known here was written by newer software, and the store is refused as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import msgpack

from broker_adapter.engine.records.layout import newer
from broker_adapter.errors import StoreCorruptException

_R = TypeVar("_R", "ClientRecord", "AudienceRecord", "InterestRecord", "SpanRecord")
_HASH_BYTES: Final = 16
#: Numbers that the record of a cursor has at least; one with fewer is of another table, as a repair of pages reads it.
_CURSOR_FIELDS: Final = 6
INTEREST_KEY_BYTES: Final = 2 * _HASH_BYTES + 4
SPAN_KEY_BYTES: Final = 4 + _HASH_BYTES


class ClientRecord(NamedTuple):
    """What is known of a durable client, beside the events themselves."""

    client_id: str
    timeout_ms: int | None  #: how long it may be away; None: for ever
    away_ms: int | None  #: since when it is, by the age of the store; None: it was connected
    timed_out: bool  #: it was away for too long: only this is left of it
    cursor: int  #: up to this position it has processed everything
    parts: Sequence[Sequence[Any]] = ()  #: as :class:`client_queue.Part`
    counters: Sequence[int] = ()  #: of :class:`durable_client.Counters`
    drained: int = 0  #: events behind the cursor that were taken out of the queue
    away_at: int | None = None  #: the last position of the log as it went away; None: it was connected
    conflation: int = 0  #: of :class:`durable_client.Conflation`
    closed: Sequence[Sequence[Any]] = ()  #: as :class:`left_out.Closed`
    draining: Sequence[Sequence[Any]] = ()  #: as :class:`queue_walks.Drain`


class InterestRecord(NamedTuple):
    """What a client wants."""

    client_id: str
    region: int
    kind: int
    text: str
    name: str  #: of a query
    durable: bool  #: it outlives the client's connection


class CursorRecord(NamedTuple):
    """How far a durable client has come."""

    cursor: int  #: up to this position it has processed everything
    drained: int  #: events behind the cursor that were taken out of the queue
    counters: Sequence[int]  #: of :class:`durable_client.Counters`


class AudienceRecord(NamedTuple):
    """An audience of a region, or the stream of the region's broad events."""

    region: int
    interests: Sequence[Sequence[Any]] | None  #: (kind, text, name) of each; None: it is the broad stream
    is_own: bool = False  #: of one client: spans may be noted for it


class SpanRecord(NamedTuple):
    """For which positions an audience had an interest: one that was added to it, or has ended."""

    kind: int
    text: str
    name: str  #: of a query
    after: int  #: behind this position
    through: int | None  #: up to this one; None: it still has it


def encode_client(key: bytes, record: ClientRecord) -> bytes:
    """The record of a client."""
    return _encode(key, record)


def decode_client(key: bytes, value: bytes) -> ClientRecord:
    """The record of a client.

    Raises:
        StoreCorruptException: it cannot be trusted.
        StoreVersionException: newer software has written it.
    """
    return _decode(ClientRecord, key, value)


def interest_key(record: InterestRecord) -> bytes:
    """The key of an interest's record."""
    of = blake2b(record.client_id.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
    return of + record.region.to_bytes(4) + _hash_of_wish(record)


def _hash_of_wish(record: InterestRecord | SpanRecord) -> bytes:
    wish = msgpack.packb((record.kind, record.text, record.name), unicode_errors="surrogatepass")
    return blake2b(wish, digest_size=_HASH_BYTES).digest()


def encode_interest(key: bytes, record: InterestRecord) -> bytes:
    """The record of an interest."""
    return _encode(key, record)


def decode_interest(key: bytes, value: bytes) -> InterestRecord:
    """The record of an interest; raises as ``decode_client``."""
    found = _decode(InterestRecord, key, value)
    if interest_key(found) != key:
        raise StoreCorruptException(f"record {key.hex()} of an interest stands in a wrong place")
    return found


def encode_cursor(key: bytes, record: CursorRecord) -> bytes:
    """The record of a client's cursor."""
    body: bytes = msgpack.packb((record.cursor, record.drained, *record.counters))
    return crc32(body, crc32(key)).to_bytes(4) + body


def decode_cursor(key: bytes, value: bytes) -> CursorRecord:
    """The record of a client's cursor; raises StoreCorruptException where it cannot be trusted."""
    body = value[4:]
    if not body or int.from_bytes(value[:4]) != crc32(body, crc32(key)):
        raise StoreCorruptException(f"record {key.hex()} of a cursor fails its checksum")
    fields = msgpack.unpackb(body)
    if not isinstance(fields, list) or len(fields) < _CURSOR_FIELDS or any(type(each) is not int for each in fields):
        raise StoreCorruptException(f"record {key.hex()} of a cursor has a form that is not known")
    cursor, drained, *counters = fields
    return CursorRecord(cursor, drained, tuple(counters))


def moved(client: ClientRecord, cursor: CursorRecord) -> ClientRecord:
    """The record of a client with its cursor's, where that is further."""
    return client._replace(**cursor._asdict()) if cursor.cursor >= client.cursor else client


def encode_audience(key: bytes, record: AudienceRecord) -> bytes:
    """Encode the record of an audience."""
    return _encode(key, record)


def decode_audience(key: bytes, value: bytes) -> AudienceRecord:
    """The record of an audience; raises as ``decode_client``."""
    return _decode(AudienceRecord, key, value)


def span_key(audience: int, record: SpanRecord) -> bytes:
    """The key of a span's record."""
    return audience.to_bytes(4) + _hash_of_wish(record)


def encode_span(key: bytes, record: SpanRecord) -> bytes:
    """The record of a span."""
    return _encode(key, record)


def decode_span(key: bytes, value: bytes) -> tuple[int, SpanRecord]:
    """The number of the audience, and the record of a span; raises as ``decode_client``."""
    found = _decode(SpanRecord, key, value)
    audience = int.from_bytes(key[:4])
    if span_key(audience, found) != key:
        raise StoreCorruptException(f"record {key.hex()} of a span stands in a wrong place")
    return audience, found


def _encode(key: bytes, record: tuple[Any, ...]) -> bytes:
    body: bytes = msgpack.packb(tuple(record))
    return crc32(body, crc32(key)).to_bytes(4) + body


def _decode(kind: type[_R], key: bytes, value: bytes) -> _R:
    body = value[4:]
    if not body or int.from_bytes(value[:4]) != crc32(body, crc32(key)):
        raise StoreCorruptException(f"record {key.hex()} ({kind.__name__}) fails its checksum")
    fields = msgpack.unpackb(body, use_list=False)
    if not isinstance(fields, tuple) or len(fields) > len(kind._fields):
        raise newer(f"record {key.hex()} ({kind.__name__}) has fields that this software does not know")
    if len(fields) < len(kind._fields) - len(kind._field_defaults):
        raise StoreCorruptException(f"record {key.hex()} ({kind.__name__}) has only {len(fields)} fields")
    return kind(*fields)
