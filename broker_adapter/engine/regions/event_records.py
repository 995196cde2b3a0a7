"""The form on disk of events, and of who wants them.

==========  ============================  =====================================================================
table       key                           value
==========  ============================  =====================================================================
events      position u64                  crc u32, head (:data:`_head`), what its flags say, numbers of the audiences
                                          u32 each, of each distinct selector and query that is true of it a digest
                                          and what it is for that u8, key of the region (UTF-8)
runs        number of a run u64,          crc u32
            position u64
postings    stream u32, position u64      crc u32, ordinal u64: how many postings the stream had up to this one
==========  ============================  =====================================================================

Keys are big-endian, so that they sort as numbers; the numbers in a value are little-endian, as an array has them in
memory.  A checksum covers key and value.

The updates of a key between which nothing else happened to it are a *run*, whose number is the position of the first
one.  As long as a client has updates of the region conflated, each update that is stored has a record in ``runs``, so
that the newer ones of its run are found.

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

#: Region, operation and flags, message, size, audiences, bytes of the key.
_head: Final = struct.Struct("<IBQIIH")
#: Flags beside the operation: numbers that follow the head, in this order.
_HAS_ANSWERS: Final = 0x10  #: how many selectors and queries are true of it
_HAS_RUN: Final = 0x20  #: the number of its run
_FLAGS: Final = _HAS_ANSWERS | _HAS_RUN
_answers: Final = struct.Struct("<I")
_run: Final = struct.Struct("<Q")
_ANSWER_BYTES: Final = DIGEST_BYTES + 1
_posting: Final = struct.Struct(">IQ")
_crc: Final = struct.Struct(">I")
_NUMBER_BYTES: Final = 4
_swapped: Final = sys.byteorder != "little"

position_key: Final = struct.Struct(">Q").pack
posting_key: Final = struct.Struct(">IQ").pack
_unpack_posting_key: Final = struct.Struct(">IQ").unpack
run_key: Final = struct.Struct(">QQ").pack
_unpack_run_key: Final = struct.Struct(">QQ").unpack
POSTING_KEY_BYTES: Final = 12
POSITION_KEY_BYTES: Final = 8
RUN_KEY_BYTES: Final = 16


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
    run: int = 0  #: of an update that has a record in ``runs``: the number of its run

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
    flags = (_HAS_ANSWERS if event.answers else 0) | (_HAS_RUN if event.run else 0)
    head = _head.pack(
        event.region,
        event.operation | flags,
        event.message,
        event.size,
        len(packed) // _NUMBER_BYTES,
        len(name),
    )
    if flags:
        numbers = _answers.pack(len(event.answers)) if event.answers else b""
        head += numbers + (_run.pack(event.run) if event.run else b"")
        packed += b"".join([each + bytes((operation,)) for each, operation in event.answers])
    body = b"".join((head, packed, name))
    return _crc.pack(crc32(body, crc32(key))) + body


def decode_event(key: bytes, value: bytes) -> EventRecord:
    """The event of a record; raises StoreCorruptException where it cannot be trusted."""
    body = value[_crc.size :]
    if len(body) < _head.size or _crc.pack(crc32(body, crc32(key))) != value[: _crc.size]:
        raise StoreCorruptException(f"event {key.hex()} fails its checksum")
    region, operation, message, size, audiences, key_bytes = _head.unpack_from(body)
    first = _head.size
    asked = run = 0
    if operation & _HAS_ANSWERS:
        asked, first = _number(_answers, body, first)
    if operation & _HAS_RUN:
        run, first = _number(_run, body, first)
    operation &= ~_FLAGS
    answers = first + audiences * _NUMBER_BYTES
    end = answers + asked * _ANSWER_BYTES
    if len(key) != POSITION_KEY_BYTES or end + key_bytes != len(body) or operation >= len(Operation):
        raise StoreCorruptException(f"event {key.hex()} has a form that is not known")
    return EventRecord(
        region,
        Operation(operation),
        message,
        size,
        body[end:].decode(),
        decode_numbers(body[first:answers]),
        _decode_answers(body[answers:end]),
        run,
    )


def _number(form: struct.Struct, body: bytes, first: int) -> tuple[int, int]:
    """A number behind the head, and where the next one stands; raises StoreCorruptException where it is cut short."""
    if len(body) < first + form.size:
        raise StoreCorruptException("an event has a form that is not known")
    return form.unpack_from(body, first)[0], first + form.size


def _decode_answers(body: bytes) -> Sequence[Answer]:
    """The answers of an event; raises StoreCorruptException where one is none."""
    try:
        return [
            (body[first : first + DIGEST_BYTES], Operation(body[first + DIGEST_BYTES]))
            for first in range(0, len(body), _ANSWER_BYTES)
        ]
    except ValueError as error:
        raise StoreCorruptException(f"an event has an answer of a form that is not known: {error}") from None


def encode_run(key: bytes) -> bytes:
    """The value of a record that says of which run an update is."""
    return _crc.pack(crc32(key))


def decode_run(key: bytes, value: bytes) -> tuple[int, int]:
    """(run, position) of an update; raises StoreCorruptException where it cannot be trusted."""
    if len(key) != RUN_KEY_BYTES or value != _crc.pack(crc32(key)):
        raise StoreCorruptException(f"record {key.hex()} of a run of updates fails its checksum")
    run, position = _unpack_run_key(key)
    return run, position


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
