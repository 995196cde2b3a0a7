"""Whether the store of a copy is as that of the server that it follows, while both are written.

Theory of operation
    A snapshot of the copy has a commit that the server has as well.  What has changed at the server since is named by
    its tail.  All other records must be equal, whenever they are read.  So the two compare digests of these, for one
    range of keys after the other, and where they differ, of smaller ranges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from broker_adapter.engine.operations.copies import ANSWER_BYTES
from broker_adapter.engine.records.tail import lsn_key, writer_of
from broker_adapter.engine.store.deltas import IMAGE_TABLES, digest_behind, lsn_of
from broker_adapter.engine.store.port import StoreSnapshot
from broker_adapter.errors import IllegalStateException

#: A range that differs is compared again in so many parts.
_PARTS: Final = 32
#: How often a server may not have the commit of the copy, one after the other, and the pause in between in seconds.
_TRIES: Final = 50
_PAUSE_SECONDS: Final = 0.2
#: Records that differ, after which the rest is not looked at.
MOST_DIFFERENCES: Final = 100

Ask = Callable[[str, Mapping[str, Any]], Any]


class Difference(NamedTuple):
    """A record that is at one of both only, or is not the same; other ones may be there just ahead of it."""

    table: str
    key: bytes


class Comparison:
    """Compares a copy with its server.

    Args:
        ask: asks the server.
        snapshot: makes one of the store of the copy.

    Attributes:
        records: that were compared so far.
        commit: the last commit of the copy in the last snapshot.
    """

    def __init__(self, ask: Ask, snapshot: Callable[[], AbstractContextManager[StoreSnapshot]]) -> None:
        self.records = self.commit = 0
        self._ask = ask
        self._snapshot = snapshot

    def differences(self, progress: Callable[[str], None] = lambda _table: None) -> Iterator[Difference]:
        """Compare all tables.

        Args:
            progress: called with the name of each table.

        Raises:
            IllegalStateException: the two have no commit in common, or not for long enough.
            JMSException: the server does not answer.
        """
        for table in IMAGE_TABLES:
            progress(table)
            after: bytes | None = b""
            while after is not None:
                last, is_equal, _ = self._range(table, after, ANSWER_BYTES)
                if not is_equal:
                    yield from self._within(table, after, last, ANSWER_BYTES // _PARTS)
                after = last

    def _within(self, table: str, first: bytes, until: bytes | None, size: int) -> Iterator[Difference]:
        """Compare a range once more, in smaller parts."""
        after: bytes | None = first
        while after is not None and (until is None or after < until):
            last, is_equal, own = self._range(table, after, size)
            if not is_equal and size > 0:
                yield from self._within(table, after, last, size // _PARTS)
            elif not is_equal:
                yield Difference(table, last if last is not None else own or after)
            after = last

    def _range(self, table: str, after: bytes, size: int) -> tuple[bytes | None, bool, bytes | None]:
        """Compare records of about so many bytes; returns their last key, whether they are equal, and the first one."""
        for _ in range(_TRIES):
            with self._snapshot() as records:
                lsn = self.commit = lsn_of(records)
                value = records.get("tail", lsn_key(lsn))
                if value is not None:
                    known = {"commit": lsn, "writer": writer_of(value), "most_bytes": size}
                    answer = self._ask("read_digest", {"table": table, "after": after, **known})
                    if answer is not None:
                        last = answer["last"]
                        own = digest_behind(records, table, after, frozenset(answer["changed"]), until=last)
                        self.records += own.records if size == ANSWER_BYTES else 0
                        is_equal = (own.records, own.digest) == (answer["records"], answer["digest"])
                        first = next(iter(records.items_from(table, after + b"\0")), (None,))[0]
                        return last, is_equal, first
            time.sleep(_PAUSE_SECONDS)
        raise IllegalStateException(
            "the server does not have the last commit of this copy: it is no copy of it, or is too far behind"
        )
