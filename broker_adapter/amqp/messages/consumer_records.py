"""What our own client tells our own server about its consumers: credit, drains and settlements.  Pure.

They go on one link of the connection, many in a transfer, as a msgpack list of records.  A record names a consumer by
the number that the client gave it in its attach, and deliveries by their numbers within the consumer:

- ``[0, consumer, messages]``: the server may send so many messages more,
- ``[1, consumer]``: it is to send what it can for the credit that it has, and to say when that is over,
- ``[2, consumer, outcome, first, last, first, last, ...]``: these deliveries have ended so, in this order,
- ``[3, consumer, outcome, delay, reason, first, last, ...]``: the same, with milliseconds before which they are not
  redelivered, and why they failed.

A discharge has records of the third kind for what is settled in its transaction.  Everything that comes in is
untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from ack_modes import Failure, Outcome
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import unpacked
from broker_adapter.settings import KIB

#: Target of the link, and the key of the attach of a consumer under which its number stands.
RECORDS_ADDRESS: Final = "$holdfast-consumers"
CONSUMER_NUMBER: Final = "holdfast-consumer"
#: Largest number of a consumer or delivery, and most messages of a credit.
_MOST: Final = 2**63 - 1
_MOST_CREDIT: Final = 2**31 - 1
_CREDIT, _DRAIN, _SETTLE, _FAIL = range(4)
#: How a delivery may end that has failed.
_FAILURES: Final = Outcome.REJECTED, Outcome.MODIFIED, Outcome.FAILED
#: Most ranges, and other records, of one payload, and most bytes of it.  proton takes so few bytes at once, so that
#: nothing that is sent later overtakes them.
_MOST_RANGES: Final = 200
MOST_RECORD_BYTES: Final = 4 * KIB


class Credited(NamedTuple):
    """The server may send so many messages more to a consumer."""

    consumer: int
    messages: int


class DrainAsked(NamedTuple):
    """The server is to use up the credit of a consumer, or to give it up."""

    consumer: int


class Settled(NamedTuple):
    """Deliveries of a consumer have ended, all alike."""

    consumer: int
    outcome: Outcome | Failure
    ranges: Sequence[tuple[int, int]]  #: (first, last) numbers, in order


Record = Credited | DrainAsked | Settled


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges (first, last), in their order."""
    found: list[tuple[int, int]] = []
    first = last = -1
    for number in numbers:
        if number == last + 1 and first >= 0:
            last = number
            continue
        if first >= 0:
            found.append((first, last))
        first = last = number
    if first >= 0:
        found.append((first, last))
    return found


def split_records(records: Iterable[Record]) -> list[list[Record]]:
    """Records, in order, as the payloads that they go in: a record with many ranges is several."""
    found: list[list[Record]] = []
    room = 0
    for record in records:
        parts = [record]
        has_reason = isinstance(record, Settled) and isinstance(record.outcome, Failure)
        most = _MOST_RANGES // 2 if has_reason else _MOST_RANGES
        if isinstance(record, Settled) and len(record.ranges) > most:
            ranges = record.ranges
            parts = [record._replace(ranges=ranges[begin : begin + most]) for begin in range(0, len(ranges), most)]
        for part in parts:
            size = len(part.ranges) + 1 if isinstance(part, Settled) else 1
            if has_reason:  # it fills a payload
                size = _MOST_RANGES + 1
            if size > room:
                found.append([])
                room = _MOST_RANGES + 1
            found[-1].append(part)
            room -= size
    return found


def pack_records(records: Iterable[Record]) -> bytes:
    """Records as the payload of a transfer."""
    packed: bytes = msgpack.packb([_packable(record) for record in records])
    return packed


def _packable(record: Record) -> list[int | str]:
    if isinstance(record, Settled):
        places = [number for first_and_last in record.ranges for number in first_and_last]
        if isinstance(record.outcome, Failure):
            reason, outcome, delay_ms = record.outcome
            return [_FAIL, record.consumer, int(outcome), delay_ms, reason, *places]
        return [_SETTLE, record.consumer, int(record.outcome), *places]
    if isinstance(record, Credited):
        return [_CREDIT, record.consumer, record.messages]
    return [_DRAIN, record.consumer]


def unpack_records(payload: bytes) -> list[Record]:
    """The records of a payload.

    Raises:
        MessageFormatException: it has something else, or too much.
    """
    if len(payload) > MOST_RECORD_BYTES:
        raise MessageFormatException(f"records of consumers take {len(payload)} bytes; {MOST_RECORD_BYTES} at most")
    try:
        rows: Any = unpacked(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"records of consumers cannot be decoded: {error}") from error
    if not isinstance(rows, list):
        raise MessageFormatException("records of consumers are a list")
    return [_record_of(row) for row in rows]


def _record_of(row: Any) -> Record:
    reason, delay_ms = None, 0
    if isinstance(row, list) and len(row) >= 5 and row[0] == _FAIL and row[2] in _FAILURES and type(row[4]) is str:
        delay_ms, reason = row[3:5]
        if type(delay_ms) is int and 0 <= delay_ms <= _MOST:
            row = [_SETTLE, *row[1:3], *row[5:]]
    if isinstance(row, list) and len(row) >= 2 and all(type(each) is int and 0 <= each <= _MOST for each in row):
        kind, consumer, *rest = row
        if kind == _SETTLE and len(rest) >= 3 and len(rest) % 2 and 1 <= rest[0] <= len(Outcome):
            ranges = list(_pairs(rest[1:]))
            if all(first <= last for first, last in ranges):
                outcome = Outcome(rest[0])
                return Settled(consumer, outcome if reason is None else Failure(reason, outcome, delay_ms), ranges)
        elif kind == _CREDIT and len(rest) == 1 and 1 <= rest[0] <= _MOST_CREDIT:
            return Credited(consumer, rest[0])
        elif kind == _DRAIN and not rest:
            return DrainAsked(consumer)
    raise MessageFormatException(f"there is no such record of a consumer: {row!r:.100}")


def _pairs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    found = iter(numbers)
    return zip(found, found, strict=True)
