"""Several messages as the payload of one transfer, between our own ends.  Pure.

A batch of messages that are sent is

    octet 0x42 · number of messages · the size of each message, in octets · the messages      (integers: 4 octets each)

Its transfer is one delivery, which is answered once: accepted where all of its messages were taken, and otherwise
rejected with a table of those that were not.  Everything that comes in is untrusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import unpacked
from broker_adapter.settings import KIB

#: First octet of a batch, and of no message.
BATCH_OCTET: Final = 0x42
#: Most messages of a batch, and most bytes of it with more than one message.
MOST_MESSAGES: Final = 256
MOST_BYTES: Final = 64 * KIB
#: Condition of a rejection that has a table, and the key of the table in its info.
PARTLY_REFUSED: Final = "holdfast:partly-refused"
_TABLE: Final = "refused"
#: Most bytes of a table; in one that would have more, descriptions are shortened to so many characters.
_MOST_TABLE_BYTES: Final = 48 * KIB
_SHORT_DESCRIPTIONS: Final = (None, 100, 25, 0)
#: Longest condition in a table, in characters.
_LONGEST_CONDITION: Final = 40

#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__
_START: Final = bytes([BATCH_OCTET])
_HEAD: Final = struct.Struct(">BI")
#: What a batch has beside its messages and their sizes, at most.
_HEAD_BYTES: Final = 14


def is_batch(payload: bytes) -> bool:
    """Return whether a payload is that of a batch."""
    return payload[:1] == _START


def pack_batch(messages: Sequence[bytes]) -> bytes:
    """Messages as one payload."""
    count = len(messages)
    return b"".join((struct.pack(f">BI{count}I", BATCH_OCTET, count, *map(len, messages)), *messages))


def unpack_batch(payload: bytes) -> list[bytes]:
    """The messages of a batch.

    Raises:
        MessageFormatException: it is not what ``pack_batch`` returns, or has too many messages.
    """
    try:
        _, count = _HEAD.unpack_from(payload)
        if not 1 <= count <= MOST_MESSAGES:
            raise MessageFormatException(f"a batch has 1 to {MOST_MESSAGES} messages, not {count}")
        start = _HEAD.size + 4 * count
        sizes = struct.unpack_from(f">{count}I", payload, _HEAD.size)
    except struct.error as error:
        raise MessageFormatException(f"a batch of {len(payload)} bytes is cut short") from error
    places = list(accumulate(sizes, initial=start))
    if places[-1] != len(payload):
        raise MessageFormatException(f"the messages of a batch take {places[-1]} bytes, and it has {len(payload)}")
    return [payload[begin:end] for begin, end in pairwise(places)]


def batch_size(sizes: Iterable[int], most_bytes: int) -> int:
    """Return how many messages go into the next batch: as many as there is room for, and at least one.

    Args:
        sizes: of the messages that wait, in bytes, in order; at least one.
        most_bytes: of a batch.
    """
    left = min(most_bytes, MOST_BYTES) - _HEAD_BYTES
    count = 0
    for size in sizes:
        left -= size + 4
        if count == MOST_MESSAGES or (left < 0 and count):
            break
        count += 1
        if left < 0:
            break
    return count


def refusal_of_some(refused: Mapping[int, AmqpError]) -> AmqpError:
    """Return what says which messages of a batch were refused.

    Args:
        refused: why, by the message's place in the batch, from 0.
    """
    table = b""
    for most in _SHORT_DESCRIPTIONS:
        table = msgpack.packb(
            [
                [place, error.condition[:_LONGEST_CONDITION], (error.description or "")[:most]]
                for place, error in refused.items()
            ]
        )
        if len(table) <= _MOST_TABLE_BYTES:
            break
    return AmqpError(PARTLY_REFUSED, f"{len(refused)} messages were refused", {_TABLE: table})


def refused_in(error: AmqpError | None, count: int) -> dict[int, AmqpError]:
    """Return which messages of a batch were refused, and why.

    Args:
        error: of the rejection.
        count: how many messages the batch has.

    Returns:
        The errors by the message's place in the batch; all have the same one where there is no table.
    """
    if error is not None and error.condition == PARTLY_REFUSED:
        table = _read_table((error.info or {}).get(_TABLE))
        if table and all(0 <= place < count for place in table):
            return table
    return dict.fromkeys(range(count), error or AmqpError("", None))


def _read_table(packed: Any) -> dict[int, AmqpError]:
    if not isinstance(packed, bytes):
        return {}
    try:
        rows = unpacked(packed)
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    found = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, list) or len(row) != 3:
            return {}
        place, condition, description = row
        if type(place) is not int or not isinstance(condition, str) or not isinstance(description, str):
            return {}
        found[place] = AmqpError(condition, description or None)
    return found


class Delivered(NamedTuple):
    """A message of a batch that our own server delivers."""

    position: int  #: in its queue
    delivery_count: int  #: failed deliveries before this one
    annotations: bytes  #: packed properties that the engine adds, if any
    payload: bytes  #: the message as it is stored


class DeliveryBatch(NamedTuple):
    """Messages that our own server delivers on a link; their numbers follow each other."""

    first: int  #: number of the first one
    messages: list[Delivered]
    is_drained: bool  #: behind them comes nothing more for the credit that the client had given


_DELIVERY_HEAD: Final = struct.Struct(">BBIQ")
_DELIVERED_BYTES: Final = 20
_DRAINED: Final = 1


def pack_deliveries(first: int, messages: Sequence[Delivered], *, is_drained: bool = False) -> bytes:
    """Messages that are delivered as one payload.

    It is octet 0x42 · flags · how many (4 octets) · number of the first one (8) · of each its position (8), delivery
    count, size of its annotations, and size (4 each) · the annotations and the message of each.
    """
    flags = _DRAINED if is_drained else 0
    fields: list[int] = []
    parts: list[bytes] = [b""]
    for position, delivery_count, added, payload in messages:
        fields += (position, delivery_count & 0xFFFFFFFF, len(added), len(payload))
        if added:
            parts.append(added)
        parts.append(payload)
    parts[0] = struct.pack(f">BBIQ{'QIII' * len(messages)}", BATCH_OCTET, flags, len(messages), first, *fields)
    return b"".join(parts)


def delivered_size(message: Delivered) -> int:
    """Bytes that a message takes in a batch."""
    return _DELIVERED_BYTES + len(message.annotations) + len(message.payload)


def unpack_deliveries(payload: bytes) -> DeliveryBatch:
    """The messages of a batch that is delivered.

    Raises:
        MessageFormatException: it is not what ``pack_deliveries`` returns, or has too many messages.
    """
    try:
        octet, flags, count, first = _DELIVERY_HEAD.unpack_from(payload)
        if octet != BATCH_OCTET or count > MOST_MESSAGES:
            raise MessageFormatException(f"a delivery of {len(payload)} bytes is no batch of ours")
        fields = struct.unpack_from(">" + "QIII" * count, payload, _DELIVERY_HEAD.size)
    except struct.error as error:
        raise MessageFormatException(f"a batch of {len(payload)} bytes is cut short") from error
    messages = []
    begin = _DELIVERY_HEAD.size + _DELIVERED_BYTES * count
    fours = iter(fields)
    for position, delivery_count, more, size in zip(fours, fours, fours, fours, strict=True):
        middle = begin + more
        end = middle + size
        messages.append(_new(Delivered, (position, delivery_count, payload[begin:middle], payload[middle:end])))
        begin = end
    if begin != len(payload):
        raise MessageFormatException(f"the messages of a batch take {begin} bytes, and it has {len(payload)}")
    return DeliveryBatch(first, messages, bool(flags & _DRAINED))
