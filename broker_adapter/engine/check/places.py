"""The check of messages that several queues hold: whether they have as many places as their counts say.  No I/O.

Theory of operation
    The count of a message and its entries are changed in one transaction, so a count that is higher than the number of
    entries says that entries are lost: each of them was one message to one queue or subscription.  Which queue that was
    is unknown, except by the counters of the queues.  The message itself is there, for the others: a copy of it goes
    into quarantine, from where it can be put into any queue or subscription.

    A copy has a key of its own in quarantine, so that the record of the same number can be set aside as well, if it is
    damaged later.

    A repair changes the counts last.  One that is interrupted before finds the same places missing when it is run
    again, and does not make a second copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from broker_adapter.engine.check.findings import Change, Finding, Summary, Tables
from broker_adapter.engine.records.layout import decode_reference, encode_reference, message_key, quarantine_key
from broker_adapter.errors import StoreCorruptException

#: Counts that one finding puts right.
_AT_ONCE: Final = 1000
#: Copies of one number that may be different ones.
_MOST_COPIES: Final = 1000


class Places:
    """Compares the places of messages with their counts.

    Args:
        tables: of the store.
        summary: gets how many messages are shared, and how many places are lost.

    Attributes:
        to_share: messages whose entries do not say that they are shared.
    """

    def __init__(self, tables: Tables, summary: Summary) -> None:
        self._tables = tables
        self._summary = summary
        self._to_count: array[int] = array("Q")  #: of the messages that have lost places: number, places, in turn
        self.to_share: set[int] = set()

    def lost_with_all(self, number: int) -> int:
        """Note a message that no queue holds, and return how many places it had by its count; 0: it has none."""
        lost = max(0, self._count(number) or 0)
        self._summary.lost_places += lost
        return lost

    def check(self, number: int, value: bytes, entries: int, shared: int) -> Iterator[Finding]:
        """Check the count of a message that queues hold, and whether their entries know of it.

        Args:
            number: of the message.
            value: its record, which is as it was written.
            entries: how many hold it.
            shared: how many of these say that it is shared.
        """
        key = message_key(number)
        count = self._count(number)
        if entries > shared and entries > 1:
            self.to_share.add(number)
        elif not shared:
            if count is not None:
                yield Finding(
                    "count of references left over",
                    "references",
                    key,
                    f"message {number} is not shared; its count of references is dropped",
                    (("references", key, None),),
                    harmless=True,
                )
            return
        self._summary.shared += 1
        if count is not None and count > entries:
            lost = count - entries
            self._summary.lost_places += lost
            self._to_count.extend((number, entries))
            yield Finding(
                "place lost",
                "references",
                key,
                f"{count} queues or subscriptions held message {number}, and {entries} of them still do; a copy of it"
                " goes into quarantine, for the others",
                self._copied(key, value),
            )
        elif count != entries:
            said = "none" if count is None else "one that cannot be trusted" if count < 0 else str(count)
            yield Finding(
                "wrong count of references",
                "references",
                key,
                f"{entries} queues hold message {number}, and its count is {said}; it is put right",
                (("references", key, encode_reference(key, entries)),),
            )

    def counted_again(self) -> Iterator[Finding]:
        """The counts of messages that have lost places; to be asked for when everything else is repaired."""
        for start in range(0, len(self._to_count), 2 * _AT_ONCE):
            part = self._to_count[start : start + 2 * _AT_ONCE]
            counts = [(message_key(number), entries) for number, entries in zip(part[::2], part[1::2], strict=True)]
            yield Finding(
                "wrong count of references",
                "references",
                counts[0][0],
                f"the counts of {len(counts)} messages that have lost places are put right",
                tuple(("references", key, encode_reference(key, entries)) for key, entries in counts),
            )

    def _count(self, number: int) -> int | None:
        """Return what the count of a message says; None: there is none; -1: it cannot be trusted."""
        key = message_key(number)
        value = self._tables.get("references", key)
        try:
            return None if value is None else decode_reference(key, value)
        except StoreCorruptException:
            return -1

    def _copied(self, key: bytes, value: bytes) -> tuple[Change, ...]:
        """The change that puts a copy of a message into quarantine; none where it is there."""
        for number in range(1, _MOST_COPIES):
            name = quarantine_key("messages", key + number.to_bytes(2))
            there = self._tables.get("quarantine", name)
            if there is None:
                return (("quarantine", name, value),)
            if there == value:
                break
        return ()
