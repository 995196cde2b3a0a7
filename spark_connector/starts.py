"""Where a read of a queue begins and ends, as its options say and its broker answers."""

from __future__ import annotations

import logging

from broker_adapter import MessageFormatException, StoreCorruptException
from sdk.range_reader import CHUNK_BYTES, Bounds, RangeReader, messages_of
from spark_connector.options import SourceOptions
from spark_connector.positions import EARLIEST, LATEST, Instant, Position, first_since, hint_of_instant, position_of

_log = logging.getLogger(f"holdfast.{__name__}")

#: Bytes of messages that the first answer of a look for an instant brings, about; each further one brings so many times
#: more, up to that of other reads, since messages may say no time at all.
_LOOK_BYTES = 1024
_GROWTH = 4
#: Messages without a time that are looked at before the log says so.
_MANY = 100_000


def start_of(reader: RangeReader, options: SourceOptions, queue: str, bounds: Bounds) -> int:
    """The first position to read, by the option ``startingPosition``.

    Args:
        reader: of the queue.
        options: with the option.
        queue: its name.
        bounds: what it has.

    Raises:
        ValueError: the queue has not given this position yet.
    """
    wanted = position_of("startingPosition", options.starting_position, queue, EARLIEST)
    return _number(reader, wanted, "startingPosition", queue, bounds)


def end_of(reader: RangeReader, options: SourceOptions, queue: str, bounds: Bounds) -> int:
    """The position behind the last one to read, by the option ``endingPosition``; as ``start_of``."""
    wanted = position_of("endingPosition", options.ending_position, queue, LATEST)
    return _number(reader, wanted, "endingPosition", queue, bounds)


def _number(reader: RangeReader, wanted: Position, option: str, queue: str, bounds: Bounds) -> int:
    if wanted == EARLIEST:
        return bounds.first
    if wanted == LATEST:
        return bounds.next
    if isinstance(wanted, Instant):
        return first_since(
            wanted, bounds.first, bounds.next, lambda first, last: _sent(reader, first, last, bounds.incarnation)
        )
    assert isinstance(wanted, int)
    if wanted > bounds.next:
        raise ValueError(
            f"{option}={wanted} is ahead of the queue {queue!r}: its next message gets position"
            f" {bounds.next}{hint_of_instant(wanted)}"
        )
    return wanted


def _sent(reader: RangeReader, first: int, last: int, incarnation: str) -> tuple[int, int] | None:
    """The first message of a range that says when it was sent: its position, and that time."""
    position, end, size, count = first, last, _LOOK_BYTES, 0
    while position <= last:
        try:
            block, position = next(reader.read_answers(position, end, incarnation, size))
        except StoreCorruptException:
            # What is damaged says no time.  It is passed by ever shorter ranges, since a request that leaves it out
            # would have the broker set it aside, and the one who reads it is to be told.
            position, end = (position, (position + end) // 2) if position < end else (position + 1, last)
            size = _LOOK_BYTES
            continue
        end = last
        for message in messages_of(block):
            try:
                sent_at_ms = message.envelope().sent_at_ms
            except MessageFormatException:
                continue
            if sent_at_ms is not None:
                return message.position, sent_at_ms
        size = min(_GROWTH * size, CHUNK_BYTES)
        if count < _MANY <= count + block.length:
            _log.warning("the messages from position %d to %d do not say when they were sent", first, position - 1)
        count += block.length
    return None
