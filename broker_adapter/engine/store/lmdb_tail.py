"""The tail of a store that is followed: each commit is numbered, and noted with the keys that it changed."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.engine.records.tail import WRITER_BYTES, encode_commit
from broker_adapter.engine.store.changes import Changes

#: What is removed of the oldest commits, in bytes for each byte that is added, while there is too much.
_REMOVED: Final = 2


class Tail:
    """The last commits of a store.

    Args:
        table: of the tail.
        page_bytes: of the file.
        most_bytes: of the pages that the table may have; at least the last commit is kept.
        lsn: of the store.

    Attributes:
        lsn: of the last commit.
        on_commit: called with the lsn of each commit, in the thread that writes.
    """

    def __init__(self, table: Any, page_bytes: int, most_bytes: int, lsn: int) -> None:
        self.lsn = lsn
        self.on_commit: Callable[[int], None] | None = None
        self._table = table
        self._most_pages = most_bytes // page_bytes
        self._writer = secrets.token_bytes(WRITER_BYTES)
        self._committed = threading.Condition()

    def put(self, txn: Any, changes: Changes) -> None:
        """Note the next commit in its own transaction."""
        puts, deletes = changes
        keys = {table: [key for key, _ in records] for table, records in puts.items()}
        for table, gone in deletes.items():
            keys[table] = keys.get(table, []) + gone
        key, value = encode_commit(self.lsn + 1, self._writer, keys)
        txn.put(key, value, db=self._table, append=True)
        trim(txn, self._table, self._most_pages, len(value))

    def advance(self) -> None:
        """The next commit is on the disk."""
        with self._committed:
            self.lsn += 1
            self._committed.notify_all()
        if self.on_commit is not None:
            self.on_commit(self.lsn)

    def wait_behind(self, lsn: int, seconds: float) -> None:
        """Wait until there is a commit behind this one, in any thread; no longer than so many seconds."""
        with self._committed:
            self._committed.wait_for(lambda: self.lsn > lsn, seconds)


def trim(txn: Any, table: Any, most_pages: int, added: int) -> None:
    """Remove the oldest commits from a tail that has too many pages, in a transaction that has added so many bytes."""
    stat = txn.stat(table)
    if stat["leaf_pages"] + stat["overflow_pages"] <= most_pages:
        return
    left, removable = _REMOVED * added, stat["entries"] - 1
    with txn.cursor(db=table) as cursor:
        there = cursor.first()
        while there and left > 0 and removable > 0:
            left -= len(cursor.value())
            removable -= 1
            there = cursor.delete()
