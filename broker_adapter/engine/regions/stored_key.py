"""A key of a region as the store has it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.regions.key_records import KeyRecord, decode_key_record, region_key, region_prefix
from broker_adapter.errors import StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")


class StoredKey(NamedTuple):
    """What the store knows of a key of a region."""

    key: str
    record: KeyRecord | None  #: None: nothing
    entry: RawEntry | None  #: the place of its value

    @property
    def size(self) -> int:
        """Bytes of its value."""
        return 0 if self.entry is None else self.entry.size


def key_text(region: int, name: bytes) -> str:
    """The key of a region whose record has this name."""
    return name[len(region_prefix(region)) :].decode(errors="replace")


def records_behind(
    items_from: Callable[[bytes], Iterator[tuple[bytes, bytes]]], region: int, after: str | None, limit: int
) -> Iterator[tuple[bytes, bytes]]:
    """Up to ``limit`` records of a region's keys, in order.

    Args:
        items_from: the records of table ``keys`` from a name on.
        region: its number.
        after: those behind this key; None: from the first on.
        limit: of them.
    """
    prefix = region_prefix(region)
    first = prefix if after is None else region_key(region, after) + b"\0"
    for name, value in islice(items_from(first), limit):
        if not name.startswith(prefix):
            return
        yield name, value


def stored_key(region: int, name: bytes, value: bytes, entry_at: Callable[[int], RawEntry | None] | None) -> StoredKey:
    """Return what a record says of a key; nothing, where it cannot be trusted.

    Args:
        region: number of its region.
        name: of the record.
        value: of the record.
        entry_at: looks a place up; None: it is not wanted.
    """
    key = key_text(region, name)
    try:
        record = decode_key_record(name, value)
    except StoreCorruptException as error:
        _log.error("! record %s of table keys cannot be trusted: %s; it is passed over", name.hex(), error)
        return StoredKey(key, None, None)
    return StoredKey(key, record, entry_at(record.place) if record.place and entry_at is not None else None)
