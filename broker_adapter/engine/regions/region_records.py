"""The form on disk of what is known of a region beside its name.

==========  ==========================  ===============================================================================
table       key                         value
==========  ==========================  ===============================================================================
regions     number u32                  crc u32 over key and value, :data:`_record`
==========  ==========================  ===============================================================================

The record is written with each change that the counts see, so that they are right after any crash.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from broker_adapter.errors import StoreCorruptException

_record: Final = struct.Struct(">?QQ")
_crc: Final = struct.Struct(">I")
REGION_KEY_BYTES: Final = 4


class RegionRecord(NamedTuple):
    """What is known of a region."""

    conflates: bool = False  #: whether clients that leave it to the region have updates conflated
    keys: int = 0  #: keys that are there, those without a valid value included
    events: int = 0  #: events that are stored


def encode_region(key: bytes, record: RegionRecord) -> bytes:
    """The record of a region."""
    body = _record.pack(*record)
    return _crc.pack(crc32(body, crc32(key))) + body


def decode_region(key: bytes, value: bytes) -> RegionRecord:
    """The record of a region; raises StoreCorruptException where it cannot be trusted."""
    body = value[_crc.size :]
    if len(key) != REGION_KEY_BYTES or len(body) != _record.size or body[0] > 1:  # a record in msgpack has more there
        raise StoreCorruptException(f"record {key.hex()} of a region has a form that is not known")
    if _crc.pack(crc32(body, crc32(key))) != value[: _crc.size]:
        raise StoreCorruptException(f"record {key.hex()} of a region fails its checksum")
    return RegionRecord(*_record.unpack(body))
