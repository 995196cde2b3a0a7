"""The form on disk of durable clients and of the audiences that they belong to.

==========  =====================  ====================================================================================
table       key                    value
==========  =====================  ====================================================================================
clients     client id, or its      crc u32, msgpack array of the fields of :class:`ClientRecord`
            hash where it is long
cursors     as in ``clients``      crc u32, the fields of :class:`CursorRecord`, u64 each
audiences   number u32             crc u32, msgpack array of the fields of :class:`AudienceRecord`
==========  =====================  ====================================================================================

The record of a client may be large, and its cursor moves with each acknowledgement.  So only the cursor is written
then, in a record of its own, which counts where it is further than the client's.

A checksum covers key and value.  A record of a msgpack array may get further fields at its end: one that has more than
are known here was written by newer software, and the store is refused as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import msgpack

from broker_adapter.engine.records import newer
from broker_adapter.errors import StoreCorruptException

_R = TypeVar("_R", "ClientRecord", "AudienceRecord")


class ClientRecord(NamedTuple):
    """What is known of a durable client, beside the events themselves."""

    client_id: str
    timeout_ms: int | None  #: how long it may be away; None: for ever
    away_ms: int | None  #: since when it is, by the age of the store; None: it was connected
    timed_out: bool  #: it was away for too long: only this is left of it
    cursor: int  #: up to this position it has processed everything
    parts: Sequence[Sequence[Any]] = ()  #: as :class:`client_queue.Part`
    #: (region, kind, text, whether it is durable) of each of its interests
    interests: Sequence[Sequence[Any]] = ()
    counters: Sequence[int] = ()  #: of :class:`durable_clients.Counters`


class CursorRecord(NamedTuple):
    """How far a durable client has come."""

    cursor: int  #: up to this position it has processed everything
    counters: Sequence[int]  #: of :class:`durable_clients.Counters`


class AudienceRecord(NamedTuple):
    """An audience of a region, or the stream of the region's broad events."""

    region: int
    interests: Sequence[Sequence[Any]] | None  #: (kind, text) of each; None: it is the broad stream


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


def encode_cursor(key: bytes, record: CursorRecord) -> bytes:
    """The record of a client's cursor."""
    body = b"".join([number.to_bytes(8) for number in (record.cursor, *record.counters)])
    return crc32(body, crc32(key)).to_bytes(4) + body


def decode_cursor(key: bytes, value: bytes) -> CursorRecord:
    """The record of a client's cursor; raises StoreCorruptException where it cannot be trusted."""
    body = value[4:]
    if len(body) < 8 or len(body) % 8 or int.from_bytes(value[:4]) != crc32(body, crc32(key)):
        raise StoreCorruptException(f"record {key.hex()} of a cursor fails its checksum")
    cursor, *counters = (int.from_bytes(body[first : first + 8]) for first in range(0, len(body), 8))
    return CursorRecord(cursor, tuple(counters))


def moved(client: ClientRecord, cursor: CursorRecord) -> ClientRecord:
    """The record of a client with its cursor's, where that is further."""
    return client._replace(**cursor._asdict()) if cursor.cursor >= client.cursor else client


def encode_audience(key: bytes, record: AudienceRecord) -> bytes:
    """The record of an audience."""
    return _encode(key, record)


def decode_audience(key: bytes, value: bytes) -> AudienceRecord:
    """The record of an audience; raises as ``decode_client``."""
    return _decode(AudienceRecord, key, value)


def _encode(key: bytes, record: ClientRecord | AudienceRecord) -> bytes:
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
