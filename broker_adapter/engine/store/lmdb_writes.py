"""Transactions of LMDB that write: a disk that is full is told from one that has failed.

Theory of operation
    LMDB says "Input/output error" of a disk that has failed, and also of a write that was cut short because there was
    room for a part of it only.  A write that was cut short has taken what room there was.  So after such an error the
    file is made longer (:func:`~broker_adapter.engine.store.lmdb_room.can_grow`).  Where the disk has no room for that,
    it is full.  Where it has, the transaction is repeated once: either it was cut short, and room has been made since,
    or the disk has failed, and does so once more.

    A transaction that failed has changed nothing, and one that is repeated writes all of its pages again.  So what is
    on the disk is known in either case.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lmdb

from broker_adapter.engine.records.layout import NEXT_RUN, RunRecord
from broker_adapter.engine.store.changes import Changes, joined, start_noted
from broker_adapter.engine.store.lmdb_errors import commit_failed, cut_short, failed, may_be_cut_short
from broker_adapter.engine.store.lmdb_reads import run_items
from broker_adapter.engine.store.lmdb_room import can_grow
from broker_adapter.engine.store.lmdb_tail import Tail, trim
from broker_adapter.errors import StoreException

_log = logging.getLogger(f"holdfast.{__name__}")


class Writes:
    """Writes to a store, each in one synced transaction.

    Args:
        env: the environment of LMDB.
        tables: of it, by name.
        path: of the store.
        max_store_bytes: the option, for an error that names it.

    Attributes:
        unnoted: a start of the engine that the next transaction notes.
        tail: notes what is written, for those that follow the store; None: nobody does.
    """

    def __init__(self, env: Any, tables: Mapping[str, Any], path: Path, max_store_bytes: int) -> None:
        self.unnoted: RunRecord | None = None
        self.tail: Tail | None = None
        self._env = env
        self._tables = tables
        self._path = path
        self._max_store_bytes = max_store_bytes

    def note(self) -> None:
        """Note a start of the engine now, where that is still to be done; raises as ``write`` does."""
        if self.unnoted is not None:
            self.write(({}, {}))

    def write(self, changes: Changes) -> None:
        """Write changes in one synced transaction, which is repeated once where the first one has failed.

        Raises:
            ResourceAllocationException: there is no room for them, and nothing was written.
            StoreException: the store has failed.
        """
        try:
            return self._write_once(changes)
        except lmdb.Error as error:
            first = error
        if not may_be_cut_short(first):
            raise commit_failed(self._path, first, self._max_store_bytes) from first
        if not can_grow(self._path):
            raise cut_short(self._path) from first
        try:
            self._write_once(changes)
        except lmdb.Error as error:
            if may_be_cut_short(error) and not can_grow(self._path):
                raise cut_short(self._path) from error
            meaning = commit_failed(self._path, error, self._max_store_bytes)
            raise failed(self._path, first) if isinstance(meaning, StoreException) else meaning from first
        _log.warning("! a write to the store in %s failed (%s), and succeeded when it was repeated", self._path, first)

    def _write_once(self, changes: Changes) -> None:
        if self.unnoted is not None:
            changes = joined(changes, self._start_noted(self.unnoted))
        tail = self.tail
        with self._env.begin(write=True) as txn:
            put_changes(txn, self._tables, changes)
            if tail is not None:
                tail.put(txn, changes)
        self.unnoted = None
        if tail is not None:
            tail.advance()

    def _start_noted(self, record: RunRecord) -> Changes:
        meta = self._tables["meta"]
        with self._env.begin() as txn:
            known = {key: len(value) for key, value in run_items(txn, meta)}
            return start_noted(record, known, txn.get(NEXT_RUN, db=meta))

    def copy(self, parts: Iterable[Changes], most_tail_bytes: int) -> None:
        """Write what a primary has written, all parts in one synced transaction, each as it comes.

        Raises:
            ResourceAllocationException: there is no room for it, and nothing was written.
            StoreException: the store has failed.
        """
        try:
            with self._env.begin(write=True) as txn:
                for each in parts:
                    put_changes(txn, self._tables, each)
                    added = sum(len(value) for _, value in each[0].get("tail", ()))
                    trim(txn, self._tables["tail"], most_tail_bytes // self._env.stat()["psize"], added)
        except lmdb.Error as error:
            if may_be_cut_short(error) and not can_grow(self._path):
                raise cut_short(self._path) from error
            raise commit_failed(self._path, error, self._max_store_bytes) from error


def put_changes(txn: Any, tables: Mapping[str, Any], changes: Changes) -> None:
    """Put records and delete others, in a transaction that writes; ``tables``: by name."""
    puts, deletes = changes
    for table, records in puts.items():
        handle = tables[table]
        if len(records) == 1:
            txn.put(*records[0], db=handle)
        elif records:
            with txn.cursor(db=handle) as cursor:
                # New messages are behind all others, unless a damaged key is: LMDB leaves them out, and says nothing.
                if table != "messages" or cursor.putmulti(records, append=True)[1] < len(records):
                    cursor.putmulti(records)
    delete = txn.delete
    for table, keys in deletes.items():
        handle = tables[table]
        for key in keys:
            delete(key, db=handle)
