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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lmdb

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    NEXT_RUN,
    RunRecord,
    decode_reference,
    encode_entry,
    encode_message,
    encode_meta,
    encode_reference,
    encode_run,
    message_key,
    quarantine_key,
    run_key,
)
from broker_adapter.engine.records.start_numbers import SKIPPED_RUNS, next_run, number_of, superfluous
from broker_adapter.engine.store.lmdb_errors import commit_failed, cut_short, failed, may_be_cut_short
from broker_adapter.engine.store.lmdb_reads import run_items
from broker_adapter.engine.store.lmdb_room import can_grow
from broker_adapter.errors import StoreCorruptException, StoreException

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
    """

    def __init__(self, env: Any, tables: Mapping[str, Any], path: Path, max_store_bytes: int) -> None:
        self.unnoted: RunRecord | None = None
        self._env = env
        self._tables = tables
        self._path = path
        self._max_store_bytes = max_store_bytes

    def note(self) -> None:
        """Note a start of the engine now, where that is still to be done; raises as ``carry_out`` does."""
        if self.unnoted is not None:
            self.carry_out(lambda _txn: None)

    def carry_out(self, change: Callable[[Any], None]) -> None:
        """Have a change written in one synced transaction.

        Args:
            change: makes it, in a transaction; called once more where the first one has failed.

        Raises:
            ResourceAllocationException: there is no room for it, and nothing was written.
            StoreException: the store has failed.
        """
        try:
            return self._carry_out_once(change)
        except lmdb.Error as error:
            first = error
        if not may_be_cut_short(first):
            raise commit_failed(self._path, first, self._max_store_bytes) from first
        if not can_grow(self._path):
            raise cut_short(self._path) from first
        try:
            self._carry_out_once(change)
        except lmdb.Error as error:
            if may_be_cut_short(error) and not can_grow(self._path):
                raise cut_short(self._path) from error
            meaning = commit_failed(self._path, error, self._max_store_bytes)
            raise failed(self._path, first) if isinstance(meaning, StoreException) else meaning from first
        _log.warning("! a write to the store in %s failed (%s), and succeeded when it was repeated", self._path, first)

    def _carry_out_once(self, change: Callable[[Any], None]) -> None:
        with self._env.begin(write=True) as txn:
            if self.unnoted is not None:
                _note_run(txn, self._tables, self.unnoted)
            change(txn)
        self.unnoted = None


def _note_run(txn: Any, tables: Mapping[str, Any], record: RunRecord) -> None:
    """Write the record of a start and the number of the next one, and forget the oldest that are too many."""
    meta = tables["meta"]
    sizes = {key: len(value) for key, value in run_items(txn, meta)}
    known = list(sizes)
    noted = txn.get(NEXT_RUN, db=meta)
    number, is_sure = next_run(number_of(known[-1]) if known else 0, noted)
    if not is_sure:
        _log.error("! the number of the next start of an engine is damaged: %d are skipped", SKIPPED_RUNS)
        txn.put(quarantine_key("meta", NEXT_RUN), noted, db=tables["quarantine"])
    key = run_key(number)
    txn.put(key, encode_run(key, record), db=meta)
    txn.put(NEXT_RUN, encode_meta(NEXT_RUN, number + 1), db=meta)
    for old in known[: superfluous(list(sizes.values()))]:
        txn.delete(old, db=meta)


def put_batch(txn: Any, db: Mapping[str, Any], batch: StoreBatch) -> None:
    """Make the changes of a batch, in a transaction; ``db``: the tables by name."""
    if batch.messages:
        with txn.cursor(db=db["messages"]) as cursor:
            records = [
                (message_key(number), encode_message(number, message.format, message.payload))
                for number, message in batch.messages.items()
            ]
            _, appended = cursor.putmulti(records, append=True)
            if appended != len(records):  # a damaged key stands behind them: LMDB leaves them out, and says nothing
                cursor.putmulti(records)
    for number, count in batch.references:
        key = message_key(number)
        txn.put(key, encode_reference(key, count), db=db["references"])
    if batch.entries:
        puts = []
        delete, entries = txn.delete, db["entries"]
        for key, entry in batch.entries.items():
            if entry is None:
                delete(key, db=entries)
            else:
                puts.append(
                    (
                        key,
                        encode_entry(
                            key,
                            entry.number,
                            entry.delivery_count,
                            entry.flags,
                            entry.expires_at_ms,
                            entry.size,
                            entry.group,
                        ),
                    )
                )
        if puts:
            with txn.cursor(db=entries) as cursor:
                cursor.putmulti(puts)
    for number in batch.unreferenced:
        _unreference(txn, db, number)
    if batch.gone:
        delete, messages = txn.delete, db["messages"]
        for number in batch.gone:
            delete(message_key(number), db=messages)
    for table, changes in batch.tables.items():
        handle = db[table]
        for key, value in changes.items():
            if value is None:
                txn.delete(key, db=handle)
            else:
                txn.put(key, value, db=handle)


def _unreference(txn: Any, db: Mapping[str, Any], number: int) -> None:
    key = message_key(number)
    references = db["references"]
    found = txn.get(key, db=references)
    try:
        left = decode_reference(key, found) - 1 if found else 0
    except StoreCorruptException:
        # It is not known how many entries are left: the message stays, and a check counts them.
        _log.error("! the count of references to message %d cannot be trusted; the message is kept", number)
        return
    if left > 0:
        txn.put(key, encode_reference(key, left), db=references)
    else:
        txn.delete(key, db=references)
        txn.delete(key, db=db["messages"])
