"""The form on disk of what is known of a region's keys, and the rules by which a key changes.

==========  ==========================  ===============================================================================
table       key                         value
==========  ==========================  ===============================================================================
keys        region u32, key (UTF-8)     crc u32 over key and value, :data:`_record` with the stamp of the last change,
                                        and where it is known the digest u64 of who made it
tombstones  due u64, key in ``keys``    crc u32 over key and value, version u64
==========  ==========================  ===============================================================================

The value of a key is a message, which has its place in the region's own queue: its record says at which position.
A key that was destroyed leaves a *tombstone* for a while, so that what comes late is known to be older: its record,
which is forgotten when the age of the store is ``due``, in milliseconds, unless the key has another version by then.
It keeps the stamp of the change.

The digest is that of the last change's identity.  By it, who asks for the same change again, since the answer was lost,
gets that answer, also after a restart, as long as nothing else has changed the key (:func:`answer_again`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.stamps import NO_STAMP, Stamp
from broker_adapter.envelope import Identity
from broker_adapter.errors import StoreCorruptException

_record: Final = struct.Struct(">QQQBQQB")
_maker: Final = struct.Struct(">Q")
_identity: Final = struct.Struct(">QQ")
_tombstone: Final = struct.Struct(">IQ")
_due: Final = struct.Struct(">Q")
_crc: Final = struct.Struct(">I")
_region: Final = struct.Struct(">I")


class KeyState(IntEnum):
    """Whether a key has a value; the numbers are stored."""

    VALID = 0  #: it has one
    INVALID = 1  #: it is there, and its value is not to be used
    TOMBSTONE = 2  #: it is not there any more


class KeyRecord(NamedTuple):
    """What is known of a key."""

    version: int  #: the position of its last event: greater than any that it had before
    place: int  #: position of its value in the region's queue; 0: it has none
    changed_ms: int  #: when that event happened, by the age of the store
    state: KeyState
    run: int = 0  #: position of the first of its last updates, behind which nothing else happened to it; 0: none
    maker: int = 0  #: digest of the identity of its last change; 0: that had none, or it is not known
    stamp: Stamp = NO_STAMP  #: of its last change


class Wanted(IntEnum):
    """What is wanted of a key."""

    PUT = 0  #: give it a value
    INVALIDATE = 1  #: take its value away, and keep the key
    DESTROY = 2  #: take the key away


def region_key(region: int, key: str) -> bytes:
    """The key of a record."""
    return _region.pack(region) + key.encode()


def region_prefix(region: int) -> bytes:
    """Return what the keys of a region's records begin with."""
    return _region.pack(region)


def encode_key_record(key: bytes, record: KeyRecord) -> bytes:
    """The record of a key."""
    *fields, maker, stamp = record
    body = _record.pack(*fields, *stamp) + (_maker.pack(maker) if maker else b"")
    return _crc.pack(crc32(body, crc32(key))) + body


def decode_key_record(key: bytes, value: bytes) -> KeyRecord:
    """The record of a key; raises StoreCorruptException where it cannot be trusted."""
    body = value[_crc.size :]
    if (
        len(body) not in (_record.size, _record.size + _maker.size)
        or _crc.pack(crc32(body, crc32(key))) != value[: _crc.size]
    ):
        raise StoreCorruptException(f"record of key {key.hex()} fails its checksum")
    version, place, changed_ms, state, run, time, site = _record.unpack_from(body)
    (maker,) = _maker.unpack_from(body, _record.size) if len(body) > _record.size else (0,)
    if state >= len(KeyState):
        raise StoreCorruptException(f"record of key {key.hex()} has a state that is not known")
    return KeyRecord(version, place, changed_ms, KeyState(state), run, maker, Stamp(time, site))


def maker_of(identity: Identity | None) -> int:
    """Return what the record of a key has of the identity of its last change."""
    if identity is None:
        return 0
    text = identity.producer_id.encode(errors="surrogatepass") + _identity.pack(identity.thread_id, identity.sequence)
    (maker,) = _maker.unpack(blake2b(text, digest_size=_maker.size).digest())
    return int(maker) or 1


def answer_again(record: KeyRecord | None, identity: Identity | None) -> tuple[Operation | None, int]:
    """(operation, version) for a change that was made before, and is asked for again.

    Args:
        record: what is known of the key; None: nothing.
        identity: of the change.

    Returns:
        What was answered then, if it was the key's last change; else no operation, and the version of the key.
    """
    if record is None:
        return None, 0
    if not record.maker or record.maker != maker_of(identity):
        return None, record.version
    if record.state is KeyState.VALID:
        return Operation.UPDATE if record.run else Operation.CREATE, record.version
    return (Operation.INVALIDATE if record.state is KeyState.INVALID else Operation.DESTROY), record.version


def tombstone(due_ms: int, key: bytes, version: int) -> tuple[bytes, bytes]:
    """The record by which a key is forgotten: its key and value.

    Args:
        due_ms: when, by the age of the store.
        key: of the key's own record.
        version: that the key has as long as it is not there.
    """
    line = _due.pack(due_ms) + key
    return line, _tombstone.pack(crc32(_due.pack(version), crc32(line)), version)


def decode_tombstone(line: bytes, value: bytes) -> tuple[int, bytes, int]:
    """(due, key of the key's own record, version); raises StoreCorruptException where it cannot be trusted."""
    if len(line) <= _due.size + _region.size or len(value) != _tombstone.size:
        raise StoreCorruptException(f"tombstone {line.hex()} has a form that is not known")
    crc, version = _tombstone.unpack(value)
    if crc != crc32(_due.pack(version), crc32(line)):
        raise StoreCorruptException(f"tombstone {line.hex()} fails its checksum")
    (due_ms,) = _due.unpack_from(line)
    return due_ms, line[_due.size :], version


def operation_of(wanted: Wanted, before: KeyRecord | None) -> Operation | None:
    """Return what a wish does to a key.

    A value for a key that is there, also for one without a valid value, is an update.  What changes nothing is no
    event.

    Args:
        wanted: the wish.
        before: what is known of the key; None: nothing.

    Returns:
        What happens to it; None: nothing, because it is so already.
    """
    exists = before is not None and before.state is not KeyState.TOMBSTONE
    if wanted is Wanted.PUT:
        return Operation.UPDATE if exists else Operation.CREATE
    if before is None or not exists:
        return None
    if wanted is Wanted.DESTROY:
        return Operation.DESTROY
    return Operation.INVALIDATE if before.state is KeyState.VALID else None


#: The state of a key after what has happened to it.
STATE_AFTER: Final = {
    Operation.CREATE: KeyState.VALID,
    Operation.UPDATE: KeyState.VALID,
    Operation.INVALIDATE: KeyState.INVALID,
    Operation.DESTROY: KeyState.TOMBSTONE,
}
