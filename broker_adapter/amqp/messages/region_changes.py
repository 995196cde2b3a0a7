"""Changes of regions as our own client gives them to the coordinator of our own server, within a transaction.  Pure.

A payload has changes of one region, in order, in msgpack: the region, and a list of key, change and packed envelope of
each.  The server commits them with the discharge of the transaction.  Everything that comes in is untrusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgpack

from broker_adapter.errors import MESSAGE_TOO_LARGE, MessageFormatException
from broker_adapter.packing import unpacked
from broker_adapter.settings import MIB
from broker_adapter.transport import RegionChange

#: Most changes of one payload, and bytes that it has where a single change is not larger.
MOST_CHANGES: Final = 1000
FULL_BYTES: Final = MIB
#: What stands in the list for one change.
_FIELDS: Final = (str, int, bytes)
#: Most bytes of a change beside those of its key and its envelope, and of a payload beside its changes and its region.
_CHANGE_BYTES: Final = 16
_HEAD_BYTES: Final = 16


def pack_changes(changes: Iterable[RegionChange], most_bytes: int = FULL_BYTES) -> Iterator[bytes]:
    """Changes, in order, as the payloads that they go in.

    Args:
        changes: the changes.
        most_bytes: that a payload may have.

    Raises:
        MessageFormatException: a change is larger by itself.
    """
    full_bytes = min(FULL_BYTES, most_bytes)
    for region, of_region in groupby(changes, itemgetter(0)):
        head = _HEAD_BYTES + len(region.encode())
        fields: list[Any] = []
        size = head
        for _, key, change, payload in of_region:
            more = _CHANGE_BYTES + len(key.encode()) + len(payload)
            if head + more > most_bytes:
                raise MessageFormatException(
                    f"key {key!r} of region {region!r}: change of {head + more} bytes is larger than the limit of"
                    f" {most_bytes} bytes (option max_message_bytes)",
                    error_code=MESSAGE_TOO_LARGE,
                )
            if fields and (size + more > full_bytes or len(fields) == MOST_CHANGES * len(_FIELDS)):
                yield msgpack.packb([region, fields])
                fields, size = [], head
            fields += key, change, payload
            size += more
        yield msgpack.packb([region, fields])


def unpack_changes(payload: bytes) -> tuple[str, Sequence[tuple[Any, ...]]]:
    """The region of a payload, and (key, change, envelope) of each change.

    Raises:
        MessageFormatException: it has something else, or too much.
    """
    try:
        found = unpacked(payload, most_members=2 + MOST_CHANGES * len(_FIELDS))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"changes of a region cannot be decoded: {error}") from error
    if isinstance(found, list) and len(found) == 2 and type(found[0]) is str and isinstance(found[1], list):
        region, fields = found
        if fields and len(fields) % len(_FIELDS) == 0 and len(fields) <= MOST_CHANGES * len(_FIELDS):
            rows = list(zip(fields[0::3], fields[1::3], fields[2::3], strict=True))
            if all(tuple(map(type, row)) == _FIELDS for row in rows):
                return region, rows
    raise MessageFormatException("changes of a region are its name, and a list of key, change and envelope of each")
