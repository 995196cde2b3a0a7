"""Many stored messages of a range as one block: columns of numbers, and the messages one behind the other.  Pure.

A request for a range is answered with a block where the client asks for one: the engine joins the bytes that it stores,
and a client that wants columns, such as the connector for Spark, slices them without an object for each message.

On the wire a block is a map:

===========  ===========================================================================
positions    u64 each, in order
counts       failed deliveries of each before, u32 each (the greatest one: as many or more)
sizes        bytes of each message, u32 each
payloads     the messages as they are stored, one behind the other
annotations  (index, map) of those messages to whose properties the engine has added some
===========  ===========================================================================

All integers are little-endian, as they are in the memory of most machines.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from broker_adapter.errors import MessageFormatException

_MOST_COUNT = (1 << 32) - 1


class RangeBlock(NamedTuple):
    """Messages of a range, by position.

    Attributes:
        positions, counts, sizes: of each message, packed as they are on the wire.
        payloads: the messages as they are stored, one behind the other.
        annotations: what the engine has added to the properties of a message, by its index.
    """

    positions: bytes
    counts: bytes
    sizes: bytes
    payloads: bytes
    annotations: Mapping[int, dict[str, Any]]

    @property
    def length(self) -> int:
        """How many messages there are."""
        return len(self.positions) // 8

    @property
    def last_position(self) -> int:
        """That of the last message; there must be one."""
        return int.from_bytes(self.positions[-8:], "little")

    def rows(self) -> list[tuple[int, int, bytes, dict[str, Any] | None]]:
        """(position, failed deliveries before, message, annotations) of each."""
        count, payloads, annotations = self.length, self.payloads, self.annotations
        sizes = struct.unpack(f"<{count}I", self.sizes)
        ends = accumulate(sizes)
        messages = [payloads[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        positions = struct.unpack(f"<{count}Q", self.positions)
        counts = struct.unpack(f"<{count}I", self.counts)
        found = map(annotations.get, range(count)) if annotations else (None,) * count
        return list(zip(positions, counts, messages, found, strict=True))


def block_of(
    positions: Sequence[int],
    counts: Sequence[int],
    payloads: Sequence[bytes],
    annotations: Mapping[int, dict[str, Any]],
) -> RangeBlock:
    """The block of these messages.

    Args:
        positions, counts, payloads: of each, in order.
        annotations: by index.
    """
    return joined_block(positions, counts, list(map(len, payloads)), b"".join(payloads), annotations)


def joined_block(
    positions: Sequence[int],
    counts: Sequence[int],
    sizes: Sequence[int],
    payloads: bytes,
    annotations: Mapping[int, dict[str, Any]],
) -> RangeBlock:
    """The same of messages that stand one behind the other in ``payloads``, with the size of each."""
    many = f"<{len(positions)}"
    if max(counts, default=0) > _MOST_COUNT:
        counts = [min(count, _MOST_COUNT) for count in counts]
    return RangeBlock(
        struct.pack(f"{many}Q", *positions),
        struct.pack(f"{many}I", *counts),
        struct.pack(f"{many}I", *sizes),
        payloads,
        annotations,
    )


def packed_block(block: RangeBlock) -> dict[str, Any]:
    """A block as an answer carries it."""
    return {**block._asdict(), "annotations": [(index, found) for index, found in block.annotations.items()]}


def unpacked_block(fields: Any) -> RangeBlock:
    """The block in an answer.

    Raises:
        MessageFormatException: it is none.
    """
    try:
        positions, counts, sizes, payloads, annotations = map(fields.__getitem__, RangeBlock._fields)
        block = RangeBlock(positions, counts, sizes, payloads, dict(annotations))
        count = block.length
        if not (len(positions) == 8 * count and len(counts) == len(sizes) == 4 * count):
            raise ValueError("its columns do not have the same length")
        total = sum(struct.unpack(f"<{count}I", sizes))
        if total != len(payloads):
            raise ValueError(f"its sizes make {total} bytes, and it has {len(payloads)}")
    except (TypeError, ValueError, LookupError, AttributeError, struct.error) as error:
        raise MessageFormatException(f"not a block of messages: {error}") from error
    return block
