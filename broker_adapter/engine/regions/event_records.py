"""The form on disk of events, and of who wants them.

==========  ============================  =====================================================================
table       key                           value
==========  ============================  =====================================================================
events      position u64                  crc u32, head (:data:`_head`), numbers of the audiences u32 each, of each
                                          distinct selector and query that is true of it a digest and what it is for
                                          that u8, key of the region (UTF-8)
superseded  position u64 of an update     crc u32, position u64 of the next update of its key, with no other event of
                                          the key between the two
postings    stream u32, position u64      crc u32, ordinal u64: how many postings the stream had up to this one
==========  ============================  =====================================================================

Keys are big-endian, so that they sort as numbers; the numbers in a value are little-endian, as an array has them in
memory.  A checksum covers key and value.

An event that few audiences want has a *posting* in the stream of each of them, so that the queue of a client is read
without passing over what is for others.  One that many want has one posting in the *broad* stream of its region, and
its record says who wants it: it takes four bytes for each of them.  The position of an event is the version that its
key has from then on.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from broker_adapter.errors import StoreCorruptException

#: The lane of all events and values: they are not delivered by priority.
LANE: Final = 5
#: Audiences of an event that have a posting each; of an event with more, all are in its record only.
FEW: Final = 8

#: Bytes of the digest of a selector or query.
DIGEST_BYTES: Final = 8

#: Region, operation, message, size, audiences, selectors and queries, bytes of the key.
_head: Final = struct.Struct("<IBQIIIH")
_ANSWER_BYTES: Final = DIGEST_BYTES + 1
_posting: Final = struct.Struct(">IQ")
_superseded: Final = struct.Struct(">IQ")
_crc: Final = struct.Struct(">I")
_NUMBER_BYTES: Final = 4
_swapped: Final = sys.byteorder != "little"

position_key: Final = struct.Struct(">Q").pack
posting_key: Final = struct.Struct(">IQ").pack
_unpack_posting_key: Final = struct.Struct(">IQ").unpack
POSTING_KEY_BYTES: Final = 12
POSITION_KEY_BYTES: Final = 8


class Operation(IntEnum):
    """What has happened to a key; the numbers are stored."""

    CREATE = 0  #: it has a value, and had none
    UPDATE = 1  #: it has another value
    INVALIDATE = 2  #: it is there, without a value
    DESTROY = 3  #: it is not there any more


#: Digest of a selector or query that is true of an event, and what the event is for it.
Answer = tuple[bytes, Operation]


class EventRecord(NamedTuple):
    """An event of a region, beside its message."""

    region: int  #: number of the region
    operation: Operation
    message: int  #: number of its message
    size: int  #: bytes of the payload
    key: str
    audiences: Sequence[int]  #: who wants it, in order
    answers: Sequence[Answer] = ()  #: of the distinct selectors and queries that are true of it

    @property
    def is_broad(self) -> bool:
        """Whether it has one posting for all who want it."""
        return len(self.audiences) > FEW


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Numbers below 2**32, four bytes each."""
    packed = array("I", numbers)
    if _swapped:
        packed.byteswap()
    return packed.tobytes()


def decode_numbers(body: bytes) -> array[int]:
    """The numbers that ``encode_numbers`` has packed."""
    numbers = array("I")
    numbers.frombytes(body)
    if _swapped:
        numbers.byteswap()
    return numbers


def encode_event(key: bytes, event: EventRecord, audiences: bytes | None = None) -> bytes:
    """The record of an event.

    Args:
        key: of the record.
        event: the event.
        audiences: its audiences as ``encode_numbers`` packs them, where that is known; None: it is done here.
    """
    name = event.key.encode()
    packed = encode_numbers(event.audiences) if audiences is None else audiences
    head = _head.pack(
        event.region,
        event.operation,
        event.message,
        event.size,
        len(packed) // _NUMBER_BYTES,
        len(event.answers),
        len(name),
    )
    answers = [each + bytes((operation,)) for each, operation in event.answers]
    body = b"".join((head, packed, *answers, name))
    return _crc.pack(crc32(body, crc32(key))) + body


def decode_event(key: bytes, value: bytes) -> EventRecord:
    """The event of a record; raises StoreCorruptException where it cannot be trusted."""
    body = value[_crc.size :]
    if len(body) < _head.size or _crc.pack(crc32(body, crc32(key))) != value[: _crc.size]:
        raise StoreCorruptException(f"event {key.hex()} fails its checksum")
    region, operation, message, size, audiences, asked, key_bytes = _head.unpack_from(body)
    answers = _head.size + audiences * _NUMBER_BYTES
    end = answers + asked * _ANSWER_BYTES
    if len(key) != POSITION_KEY_BYTES or end + key_bytes != len(body) or operation >= len(Operation):
        raise StoreCorruptException(f"event {key.hex()} has a form that is not known")
    return EventRecord(
        region,
        Operation(operation),
        message,
        size,
        body[end:].decode(),
        decode_numbers(body[_head.size : answers]),
        _decode_answers(body[answers:end]),
    )


def _decode_answers(body: bytes) -> Sequence[Answer]:
    """The answers of an event; raises StoreCorruptException where one is none."""
    try:
        return [
            (body[first : first + DIGEST_BYTES], Operation(body[first + DIGEST_BYTES]))
            for first in range(0, len(body), _ANSWER_BYTES)
        ]
    except ValueError as error:
        raise StoreCorruptException(f"an event has an answer of a form that is not known: {error}") from None


def encode_superseded(key: bytes, by: int) -> bytes:
    """The record of an update that position ``by`` supersedes."""
    return _superseded.pack(crc32(by.to_bytes(8), crc32(key)), by)


def decode_superseded(key: bytes, value: bytes) -> int:
    """By which position an update is superseded; raises StoreCorruptException where that cannot be trusted."""
    if len(key) != POSITION_KEY_BYTES or len(value) != _superseded.size:
        raise StoreCorruptException(f"record {key.hex()} of table superseded has a form that is not known")
    crc, by = _superseded.unpack(value)
    if crc != crc32(by.to_bytes(8), crc32(key)) or by <= int.from_bytes(key):
        raise StoreCorruptException(f"record {key.hex()} of table superseded fails its checksum")
    return int(by)


def encode_posting(key: bytes, ordinal: int) -> bytes:
    """The value of a posting, which is the ``ordinal``-th of its stream."""
    return _posting.pack(crc32(ordinal.to_bytes(8), crc32(key)), ordinal)


def decode_posting(key: bytes, value: bytes) -> tuple[int, int, int]:
    """(stream, position, ordinal) of a posting; raises StoreCorruptException where it cannot be trusted."""
    if len(key) != POSTING_KEY_BYTES or len(value) != _posting.size:
        raise StoreCorruptException(f"posting {key.hex()} has a form that is not known")
    crc, ordinal = _posting.unpack(value)
    if crc != crc32(ordinal.to_bytes(8), crc32(key)):
        raise StoreCorruptException(f"posting {key.hex()} fails its checksum")
    stream, position = _unpack_posting_key(key)
    return stream, position, ordinal
