"""A key of a region as the store has it."""

from __future__ import annotations

from typing import NamedTuple

from broker_adapter.engine.records import RawEntry
from broker_adapter.engine.regions.key_records import KeyRecord


class StoredKey(NamedTuple):
    """What the store knows of a key of a region."""

    key: str
    record: KeyRecord | None  #: None: nothing
    entry: RawEntry | None  #: the place of its value

    @property
    def size(self) -> int:
        """Bytes of its value."""
        return 0 if self.entry is None else self.entry.size
