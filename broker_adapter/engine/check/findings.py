"""What a check of a store reads and finds, and the changes that repair it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import attrs

from broker_adapter.engine.records.layout import quarantine_key
from broker_adapter.errors import StoreCorruptException

Change = tuple[str, bytes, bytes | None]  #: table, key, value (None: delete)


class Tables(Protocol):
    """The records of a store at one moment.

    Attributes:
        persistent: whether the records survive a restart: those of the store in memory do not.
    """

    persistent: bool

    def items(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table, in the order of their keys."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """One record."""

    def count(self, table: str) -> int:
        """Return how many records a table has."""


@attrs.frozen
class Finding:
    """Something that does not fit.

    Attributes:
        problem: its kind, in a few words that are always the same.
        table: where it was found.
        key: of the record.
        text: what is wrong, and what a repair does.
        changes: the repair.
        harmless: whether nothing depends on it, as a line of the schedule whose message is gone.
    """

    problem: str
    table: str
    key: bytes
    text: str
    changes: tuple[Change, ...] = ()
    harmless: bool = False


class Lack(NamedTuple):
    """A queue or subscription that has fewer entries than its counters say."""

    kind: str  #: as in the catalogue
    name: str
    topic: str | None
    client_id: str | None
    messages: int  #: how many are not there


@attrs.define
class Summary:
    """What a check has seen.

    Attributes:
        queues: of the catalogue.
        entries: of all queues.
        messages: that are stored.
        message_bytes: their bytes.
        delayed: entries that are not due yet.
        shared: messages that several queues hold or have held.
        lost_places: how many more places than there are the counts of such messages say.
        lacking: where these may be missing, as far as counters say so; empty where no place is lost.
        producers: records of the numbers that they have sent.
        quarantined: records in quarantine, before a repair.
        problems: kind of finding → how many.
        harmless: likewise, of what nothing depends on.
    """

    queues: int = 0
    entries: int = 0
    messages: int = 0
    message_bytes: int = 0
    delayed: int = 0
    shared: int = 0
    lost_places: int = 0
    lacking: list[Lack] = attrs.field(factory=list)
    producers: int = 0
    quarantined: int = 0
    problems: Counter[str] = attrs.field(factory=Counter)
    harmless: Counter[str] = attrs.field(factory=Counter)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong, harmless things apart."""
        return not self.problems


def damaged_key(table: str, key: bytes, value: bytes) -> Finding:
    """The finding for a record whose key has the wrong length."""
    return Finding(
        "damaged key",
        table,
        key,
        f"the key {key.hex()} has {len(key)} bytes; its record goes into quarantine",
        to_quarantine(table, key, value),
    )


def to_quarantine(table: str, key: bytes, value: bytes) -> tuple[Change, Change]:
    """The changes that move a record into quarantine, as it is."""
    return (table, key, None), ("quarantine", quarantine_key(table, key), value)


def can_decode(decode: Callable[[bytes, bytes], object], key: bytes, value: bytes) -> bool:
    """Return whether a record can be decoded."""
    try:
        decode(key, value)
    except (StoreCorruptException, ValueError, TypeError):
        return False
    return True
