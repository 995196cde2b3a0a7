"""Records on disk, in LMDB: atomic transactions over many queues, no recovery code, instant restarts.

A directory holds ``data.mdb`` (the records), ``lock.mdb`` (LMDB's own) and ``owner`` (a file lock, with a line that
says which process has it).  One process owns a store.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, groupby, starmap
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import lmdb

from broker_adapter.clock import epoch_ms
from broker_adapter.engine.check.findings import Change, to_quarantine
from broker_adapter.engine.check.schedule_lines import fits
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    AGE,
    COPY_OF,
    DELAYED_LANE,
    KIND_DAMAGED,
    LAST_POSITION,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    NEXT_RUN,
    TABLES,
    UNIQUE,
    Counters,
    LastRecord,
    RawEntry,
    RunRecord,
    SequencesRecord,
    decode_annotations,
    decode_entry,
    decode_last,
    decode_meta,
    decode_schedule_line,
    decode_sequences,
    decode_stream_key,
    due_of,
    entry_key,
    entry_of_line,
    last_key,
    message_key,
    queue_key,
)
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.engine.records.start_numbers import number_of, with_gaps
from broker_adapter.engine.records.tail import is_sound
from broker_adapter.engine.store.changes import Changes, by_table, changes_of
from broker_adapter.engine.store.files import (
    DATA,
    LOCK,
    PUT_ASIDE,
    allocate_lock,
    check_size,
    existing_store,
    own,
    sync_directory,
)
from broker_adapter.engine.store.lmdb_columns import columns_between
from broker_adapter.engine.store.lmdb_errors import (
    STORE_ERRORS,
    failed,
    opening_failed,
)
from broker_adapter.engine.store.lmdb_reads import (
    by_position_of,
    count_entries,
    decoded_run,
    entries_between,
    items_from,
    last_message,
    messages_of,
    run_items,
    stored_queues,
)
from broker_adapter.engine.store.lmdb_room import measured_room, used_pages
from broker_adapter.engine.store.lmdb_tail import Tail
from broker_adapter.engine.store.lmdb_writes import Writes
from broker_adapter.engine.store.port import Loaded, StoredColumns, StoredQueue
from broker_adapter.engine.store.room import Room, nothing_left
from broker_adapter.engine.store.versions import take_over
from broker_adapter.errors import ResourceAllocationException, StoreCorruptException, StoreException
from broker_adapter.settings import EngineSettings

_log = logging.getLogger(f"holdfast.{__name__}")

#: The tail takes no more than this part of the store.
_OF_STORE = 1 / 8
#: What the file may have beyond ``max_store_bytes``: what was decided must fit, also where its pages are scattered.
_MAP_RESERVE_BYTES = 1 << 30
#: Changes of a repair in one transaction, and their bytes.
_REPAIRED_AT_ONCE = 10_000
_REPAIRED_BYTES = 16 * 1024 * 1024
#: Damaged records that are named in the log, each with a line of its own, where many are found together.
_NAMED = 20
#: How often the log says that nothing can be set aside.
_COMPLAIN_SECONDS = 60.0
#: Lanes that messages can have, in the order of delivery.
_LANES = range(10)


def refuse_copy(store: LmdbStore) -> None:
    """Raise StoreException where a store is a copy that follows a server: else two would go on from one state."""
    if store.copy_of is not None:
        raise StoreException(
            f"the store in {str(store.path)!r} is a copy of {store.copy_of}: go on following (holdfast serve --data"
            f" {store.path}, with --follow or --group as before), or, once that server is stopped, or that group"
            f" dissolved, make it one: holdfast promote {store.path}"
        )


def make_directory(path: Path) -> None:
    """Make the directory of a store where it does not exist; raises StoreException."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in new:
            sync_directory(each.parent)
    except OSError as error:
        file = next((each for each in (path, *path.parents) if each.exists()), path)
        if file.is_dir():
            raise opening_failed(path, error) from error
        raise StoreException(
            f"the store in {str(path)!r} cannot be opened: {str(file)!r} is a file; give a directory, which is made"
            " where there is none"
        ) from error


def map_bytes(settings: EngineSettings) -> int:
    """Most bytes that the file of a store may have."""
    return settings.max_store_bytes + max(_MAP_RESERVE_BYTES, settings.max_store_bytes // 4)


@contextmanager
def beside(path: Path, settings: EngineSettings) -> Iterator[Callable[[], Snapshot]]:
    """Read a store that another process may have; gives what makes a snapshot.

    Raises:
        StoreException: there is none, or it cannot be opened or read.
    """
    existing_store(path)
    try:
        env = lmdb.open(str(path), map_size=map_bytes(settings), max_dbs=len(TABLES), max_readers=126, readonly=True)
        env.reader_check()  # one that was killed would keep pages from being used again
    except lmdb.Error as error:
        raise opening_failed(path, error) from error
    try:
        tables = {table: env.open_db(table.encode(), create=False) for table in TABLES}
        opened = (path / DATA).stat().st_ino

        def snapshot() -> Snapshot:
            if (path / DATA).stat().st_ino != opened:
                raise StoreException(f"the store in {str(path)!r} was replaced by an image meanwhile: begin again")
            return Snapshot(env.begin(), tables, is_own=True)

        yield snapshot
    except lmdb.Error as error:
        raise failed(path, error) from error
    finally:
        env.close()


class LmdbStore:
    """The port :class:`~broker_adapter.engine.store.port.DurableStore` on a directory.

    Args:
        path: the directory; made where it does not exist.
        settings: ``max_store_bytes`` and ``min_free_disk_bytes``.
        is_owned: whether the caller has taken its ownership already (:func:`own`), and keeps it.
        is_checked: whether what is damaged is to be found, and need not be right to begin with.
        is_kept: whether nothing is to be changed: only ``snapshot`` is of use then.

    Attributes:
        path: the directory.
        unique: a word that no other store has.
        errors: what a call raises where the disk, or what is on it, has failed.
        repaired_version: what stood where the version is noted, if that was damaged and is repaired.
        refuses_sends: why no messages are taken, as on a full disk; empty: they are.
        gives_way: asked where a record is damaged; whether another node is to go on with its own store, and this one
            fails.

    Raises:
        StoreLockedException: another process owns it (the error says which).
        StoreVersionException: a newer version wrote it.
        StoreCorruptException: it is damaged.
        StoreException: it cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: EngineSettings,
        *,
        is_owned: bool = False,
        is_checked: bool = False,
        is_kept: bool = False,
    ) -> None:
        self.path = Path(path)
        self.errors: tuple[type[Exception], ...] = STORE_ERRORS
        self.repaired_version: bytes | None = None
        self.refuses_sends = ""
        self.gives_way: Callable[[], bool] = lambda: False
        self._settings = settings
        self._is_checked = is_checked
        self._is_kept = is_kept
        self._env: Any = None
        self._trial: Any = None  #: where nothing is to be changed: a transaction that is never committed
        self._complain_at = 0.0  #: by the clock that never goes back
        self._owner: IO[str] | None = None
        if not is_owned:
            make_directory(self.path)
            self._owner = own(self.path)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def as_failure(self, error: Exception) -> StoreException:
        """Return what one of ``errors`` means that a call raised."""
        return failed(self.path, error)

    def as_opening_failure(self, error: Exception) -> StoreException:
        """The same while the engine reads what it needs for its start."""
        return opening_failed(self.path, error)

    def _open(self) -> None:
        try:
            self._open_files()
        except STORE_ERRORS as error:
            raise opening_failed(self.path, error) from error

    def _open_files(self) -> None:
        is_new = not (self.path / DATA).exists()
        left = sorted(each.name for each in self.path.glob(f"{DATA}{PUT_ASIDE}*")) if is_new else []
        if left:
            raise StoreException(
                f"the store in {str(self.path)!r} has no file data.mdb, only {left[-1]}: restore data.mdb from a copy,"
                f" or rename that one and run: holdfast check {str(self.path)!r} --repair"
            )
        check_size(self.path / DATA)
        allocate_lock(self.path / LOCK)
        try:
            self._env = lmdb.open(
                str(self.path),
                map_size=map_bytes(self._settings),
                max_dbs=len(TABLES),
                max_readers=126,
                mode=0o600,
            )
        except lmdb.Error:
            if is_new:  # a part of a file, on a full disk: the next start would take it for a damaged store
                (self.path / DATA).unlink(missing_ok=True)
            raise
        if self._is_kept:
            # A store of an older version is converted there, and seen as it will be.
            self._trial = self._env.begin(write=True)
        self._db = {table: self._env.open_db(table.encode(), txn=self._trial) for table in TABLES}
        self._writes = Writes(self._env, self._db, self.path, self._settings.max_store_bytes)
        if is_new:
            sync_directory(self.path)  # the file is named on the disk before a message is confirmed
        if self._trial is not None:
            self._take_over(self._trial)
            return
        with self._env.begin(write=True) as txn:
            self._take_over(txn)
            with txn.cursor(db=self._db["tail"]) as cursor:
                if cursor.last():
                    self._go_on_with_tail(txn, *cursor.item())

    def _go_on_with_tail(self, txn: Any, key: bytes, value: bytes) -> None:
        """Note what is written from now on behind the last commit that was noted."""
        if is_sound(key, value):
            self._writes.tail = self._tail(int.from_bytes(key))
            return
        _log.warning("! the last commit that copies could follow is damaged: each of them takes an image")
        txn.drop(self._db["tail"], delete=False)

    def _tail(self, lsn: int) -> Tail:
        return Tail(self._db["tail"], self._env.stat()["psize"], self._most_tail_bytes, lsn)

    @property
    def _most_tail_bytes(self) -> int:
        return min(self._settings.tail_bytes, int(self._settings.max_store_bytes * _OF_STORE))

    def _take_over(self, txn: Any) -> None:
        found = take_over(txn, self._db, self.path, epoch_ms())
        self.repaired_version = found.repaired_version
        self.unique = self._noted(UNIQUE, found.unique) or ""  # a store that is refused stays as it was

    def _noted(self, key: bytes, value: bytes | None) -> Any:
        """A number or a name of the store; None where there is none."""
        if value is None:
            return None
        try:
            return decode_meta(key, value)
        except StoreCorruptException as error:
            if self._is_checked:
                return None  # the check of the store reports it
            raise StoreCorruptException(
                f"the record {key.decode()!r} of the store in {str(self.path)!r} is damaged;"
                f" run: holdfast check {str(self.path)!r} --repair"
            ) from error

    # What a start needs.

    def queues(self) -> list[StoredQueue]:
        """Every queue, with its counters."""
        with self._env.begin() as txn:
            found = stored_queues(txn, self._db, self.path)
        self.quarantine("entries", sorted(found.damaged))
        if found.unknown:
            _log.warning(
                "! %d %s entries, and the catalogue of the store in %s does not have %s; these messages cannot be"
                " received; stop the server and run: holdfast check %s",
                *(found.unknown, "queue has" if found.unknown == 1 else "queues have", self.path),
                *("it" if found.unknown == 1 else "them", self.path),
            )
        return found.queues

    def count(self, queue: int) -> Counters:
        """Counters of a queue made from its entries.  Takes a second for about a million of them."""
        with self._env.begin() as txn:
            return count_entries(txn, self._db, queue_key(queue))

    def streams(self) -> list[tuple[bytes, SequencesRecord]]:
        """(key, sequences) of every producer's stream, the least recently used first."""
        found = []
        damaged = []
        with self._env.begin() as txn:
            for key, value in txn.cursor(db=self._db["producers"]):
                try:
                    decode_stream_key(key)
                    found.append((key, decode_sequences(key, value)))
                except StoreCorruptException:
                    damaged.append(key)
        # Without its numbers a producer's next message is new: none is taken for a repetition.
        self.quarantine("producers", damaged)
        return sorted(found, key=lambda each: each[1].used_ms)

    def last_number(self, table: str, name: str) -> LastRecord | None:
        """The record of a name in ``commits`` or ``published``; one that cannot be trusted goes into quarantine."""
        key = last_key(name)
        with self._env.begin() as txn:
            value = txn.get(key, db=self._db[table])
        if value is None:
            return None
        try:
            return decode_last(key, value)
        except StoreCorruptException:
            self.quarantine(table, [key])
            return None

    def last_numbers(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, LastRecord | None]]:
        """Up to ``limit`` records of ``commits`` or ``published`` behind a key; None where one cannot be trusted."""
        found: list[tuple[bytes, LastRecord | None]] = []
        with self._env.begin() as txn, txn.cursor(db=self._db[table]) as cursor:
            for key, value in items_from(cursor, after + b"\0"):
                if len(found) == limit:
                    break
                try:
                    found.append((key, decode_last(key, value)))
                except StoreCorruptException:
                    found.append((key, None))
        return found

    def next_message(self) -> int:
        """The number for the next new message."""
        with self._env.begin() as txn:
            noted = txn.get(NEXT_MESSAGE, db=self._db["meta"])
            with txn.cursor(db=self._db["messages"]) as cursor:
                last, damaged = last_message(cursor)
        self.quarantine("messages", damaged)
        return max(last + 1, self._noted(NEXT_MESSAGE, noted) or 1)

    def next_queue(self) -> int:
        """The number for the next new queue, unless a queue has it: none is used twice, even after a deletion."""
        with self._env.begin() as txn:
            noted = txn.get(NEXT_QUEUE, db=self._db["meta"])
        return self._noted(NEXT_QUEUE, noted) or 1

    def age_ms(self) -> int | None:
        """Return for how long engines have run on the store, as noted last, or else when a name was last used.

        Takes a second or two for a million names where the note is lost.
        """
        with self._env.begin() as txn:
            value = txn.get(AGE, db=self._db["meta"])
            with suppress(StoreCorruptException):
                if value is not None:
                    return int(decode_meta(AGE, value))
            used = []
            for table in ("commits", "published"):
                for key, found in txn.cursor(db=self._db[table]):
                    with suppress(StoreCorruptException):
                        used.append(decode_last(key, found).used_ms)
        # A name that was used while the clock was ahead makes no store older than now: the others would be forgotten.
        return min(max(used), epoch_ms()) if used else None

    def begin_run(self, record: RunRecord) -> None:
        """A start of the engine, which the next commit notes with what it writes; the oldest are forgotten for it."""
        self._writes.unnoted = record

    def note_run(self) -> None:
        """Note the start of the engine now, where no commit has done it.

        Raises:
            ResourceAllocationException: there is no room for it; the next commit notes it with what it writes.
            StoreException: the store has failed.
        """
        self._writes.note()

    def runs(self) -> list[str]:
        """The starts of the engine that are known, in order; empty in place of what is missing or not to be trusted."""
        found = []
        with self._env.begin() as txn:
            noted = txn.get(NEXT_RUN, db=self._db["meta"])
            for key, value in run_items(txn, self._db["meta"]):
                record = decoded_run(key, value)
                if record is None:
                    _log.warning("! the record of a start of the engine fails its checksum: %s", key.hex())
                found.append((number_of(key), "" if record is None else record.run))
        return list(with_gaps(found, noted))

    def run_positions(self, run: str) -> dict[int, int]:
        """The position that each queue would give next when this run began; queues without messages are missing."""
        word = run.encode(errors="replace")
        with self._env.begin() as txn:
            for key, value in run_items(txn, self._db["meta"]):
                record = decoded_run(key, value) if word in value else None
                if record is not None and record.run == run:
                    return record.positions
        return {}

    # A copy, and what it follows.

    @property
    def copy_of(self) -> str | None:
        """The URL of the server that this store is a copy of; None: it is none."""
        with self._env.begin() as txn:
            found: str | None = self._noted(COPY_OF, txn.get(COPY_OF, db=self._db["meta"]))
        return found

    @property
    def tail(self) -> Tail | None:
        """What notes each commit, for those that follow the store; None: nobody does."""
        return self._writes.tail

    def begin_tail(self) -> None:
        """Have each commit noted from now on, also after a restart, so that copies can follow."""
        if self._writes.tail is None:
            self._writes.tail = self._tail(0)
            try:
                self._writes.write(({}, {}))
            except BaseException:
                self._writes.tail = None
                raise

    def write_copied(self, parts: Iterable[Changes]) -> None:
        """Write what a primary has written, all parts in one synced transaction, each as it comes.

        Raises:
            ResourceAllocationException: there is no room for it, and nothing was written.
            StoreException: the store has failed.
        """
        self._writes.copy(parts, self._most_tail_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that all tables have."""
        return int(used_pages(self._env, self._db) * self._env.stat()["psize"])

    # Writing.

    def commit(self, batch: StoreBatch) -> None:
        """Apply the batch in one synced transaction."""
        shared = list(map(message_key, batch.unreferenced))
        self._writes.write(changes_of(batch, self._stored("references", shared) if shared else {}))

    def quarantine(self, table: str, keys: Iterable[bytes]) -> bool:
        """Move records to the table ``quarantine``, as they are.

        Returns:
            False where the store has no room for that: they stay where they are, and the log says so.

        Raises:
            StoreException: the store has failed.
        """
        moved = self._moved_aside([(table, key) for key in keys])
        if moved is None:
            return False
        for _, key in moved[:_NAMED]:
            _log.error("! record %s of table %s is damaged, or its message is; it is in quarantine", key.hex(), table)
        if len(moved) > _NAMED:
            _log.error(
                "! %d more records are damaged, or their messages are; they are in quarantine", len(moved) - _NAMED
            )
        return True

    def quarantine_all(self, records: Sequence[tuple[str, bytes]]) -> bool:
        """The same for (table, key) each, in one transaction; what is moved is left to the caller to log."""
        return self._moved_aside(records) is not None

    def _moved_aside(self, records: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]] | None:
        """Move records to ``quarantine``; returns those that were there, or None where there is no room for them."""
        moved = [
            (table, key, value)
            for table, group in groupby(records, itemgetter(0))
            for key, value in self._stored(table, [key for _, key in group]).items()
        ]
        if not moved:
            return []
        if self.gives_way():
            table, key, _ = moved[0]
            raise StoreException(
                f"record {key.hex()} of table {table} is damaged in the store in {str(self.path)!r}, or its message is:"
                " another node of the group takes over, and this one takes an image when it is started again"
            )
        try:
            self._writes.write(by_table(chain.from_iterable(starmap(to_quarantine, moved))))
        except ResourceAllocationException as meaning:
            if time.monotonic() >= self._complain_at:
                self._complain_at = time.monotonic() + _COMPLAIN_SECONDS
                table, key = records[0]
                _log.error(
                    "! record %s of table %s is damaged, or its message is; it stays where it is, as may others: %s",
                    *(key.hex(), table, meaning),
                )
            return None
        return [(table, key) for table, key, _ in moved]

    def in_quarantine(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Those of these keys of the table ``quarantine`` that are there."""
        return frozenset(self._stored("quarantine", keys))

    def _stored(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those records of a table that have one of these keys; raises StoreException where the store has failed."""
        try:
            with self._env.begin() as txn, txn.cursor(db=self._db[table]) as cursor:
                return dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            raise self.as_failure(error) from error

    def quarantined(self) -> int:
        """Return how many records are in quarantine."""
        with self._env.begin() as txn:
            return int(txn.stat(db=self._db["quarantine"])["entries"])

    def room(self) -> Room | None:
        """Return what messages may still take; None: more than is worth counting before the next check."""
        if self.refuses_sends:
            return nothing_left(self.refuses_sends)
        return measured_room(self._env, self._db, self.path, self._settings)

    # Reading.

    def load(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries of a lane behind ``after``."""
        with self._env.begin() as txn, txn.cursor(db=self._db["entries"]) as cursor:
            return entries_between(
                cursor, entry_key(queue, lane, after + 1), entry_key(queue, lane, LAST_POSITION), limit
            )

    def read_entries(self, queue: int, first: int, last: int, limit: int, most_bytes: int | None = None) -> Loaded:
        """Up to ``limit`` entries of a queue with positions in [first, last], by position, without delayed ones."""
        if last < first:
            return Loaded([], [], True)
        last = min(last, LAST_POSITION)
        with self._env.begin() as txn, txn.cursor(db=self._db["entries"]) as cursor:
            lanes = [
                entries_between(cursor, entry_key(queue, lane, first), entry_key(queue, lane, last), limit, most_bytes)
                for lane in _LANES
            ]
        return by_position_of(lanes, limit)

    def browse(self, queue: int, lane: int, after: int, limit: int) -> Loaded:
        """Up to ``limit`` entries in the order of delivery, behind (lane, position), without delayed ones."""
        with self._env.begin() as txn, txn.cursor(db=self._db["entries"]) as cursor:
            return entries_between(
                cursor, entry_key(queue, lane, after + 1), entry_key(queue, DELAYED_LANE - 1, LAST_POSITION), limit
            )

    def read_messages(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes] | None]:
        """(format, payload) of each; None where there is none or its checksum is wrong."""
        with self._env.begin() as txn, txn.cursor(db=self._db["messages"]) as cursor:
            yield from messages_of(cursor, numbers)

    def read_columns(self, queue: int, first: int, last: int, limit: int, most_bytes: int) -> StoredColumns | None:
        """The same messages fast, without annotations; None: ``read_entries`` and ``read_messages`` are to be asked."""
        if last < first:
            return StoredColumns((), (), (), b"", is_complete=True)
        last = min(last, LAST_POSITION)
        entries, messages = self._db["entries"], self._db["messages"]
        with (
            self._env.begin() as txn,
            self._env.begin(buffers=True) as of_bodies,
            txn.cursor(db=entries) as cursor,
            of_bodies.cursor(db=messages) as bodies,
        ):
            return columns_between(cursor, bodies, queue, first, last, limit, most_bytes)

    def annotations(self, key: bytes) -> dict[str, Any] | None:
        """The annotations of an entry."""
        with self._env.begin() as txn:
            value = txn.get(key, db=self._db["annotations"])
        try:
            return None if value is None else decode_annotations(key, value)
        except (StoreCorruptException, ValueError):
            return None

    def due(self, now_ms: int, limit: int) -> list[tuple[int, RawEntry | None, bytes]]:
        """Up to ``limit`` (kind, entry, schedule key) whose time has come."""
        items: list[tuple[int, RawEntry | None, bytes]] = []
        with self._env.begin() as txn, txn.cursor(db=self._db["schedule"]) as cursor:
            for key, checksum in cursor:
                due_ms = due_of(key)
                if due_ms > now_ms or len(items) == limit:
                    break
                try:
                    _, kind, of_entry = decode_schedule_line(key, checksum)
                except StoreCorruptException:
                    kind, of_entry = KIND_DAMAGED, entry_of_line(key)
                value = txn.get(of_entry, db=self._db["entries"]) if of_entry else None
                try:
                    entry = None if value is None else decode_entry(of_entry, value)
                except StoreCorruptException:
                    entry = None  # found and quarantined when it is loaded
                if entry is not None and not fits(kind, due_ms, entry):
                    kind = KIND_DAMAGED
                items.append((kind, entry, key))
        return items

    def first_due_ms(self) -> int | None:
        """Return when the next line of the schedule is due, also one that cannot be trusted."""
        with self._env.begin() as txn, txn.cursor(db=self._db["schedule"]) as cursor:
            return due_of(cursor.key()) if cursor.first() else None

    def snapshot(self) -> Snapshot:
        """All records as of the last commit; writing goes on meanwhile, in pages that this one does not use."""
        txn = self._env.begin() if self._trial is None else self._trial
        return Snapshot(txn, self._db, is_own=self._trial is None)

    def copy(self, path: Path) -> None:
        """Write all records into a new file in another directory, without free pages."""
        self._env.copy(str(path), compact=True)

    def apply(self, changes: Iterable[Change]) -> None:
        """Write the changes of a repair, in transactions of bounded size.

        Raises:
            ResourceAllocationException: there is no room for one of them; those before it are written.
            StoreException: the store has failed.
        """
        for part in in_parts(changes, lambda change: len(change[2] or b""), _REPAIRED_AT_ONCE, _REPAIRED_BYTES):
            self._writes.write(by_table(part))

    def close(self) -> None:
        """Close the files and give up the ownership."""
        if self._trial is not None:
            self._trial.abort()
        if self._env is not None:
            self._env.close()
        if self._owner is not None:
            self._owner.close()


class Snapshot:
    """The records of a store at one moment; see :class:`broker_adapter.engine.check.findings.Tables`.

    A context manager, and no generator: those are ended where they are collected, and a child made by fork would let
    go of the records for its parent.
    """

    persistent = True

    def __init__(self, txn: Any, tables: Mapping[str, Any], *, is_own: bool) -> None:
        self._txn = txn
        self._tables = tables
        self._is_own = is_own

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._txn.abort()

    def items(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table, in the order of their keys."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            yield from cursor

    def items_from(self, table: str, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The records of a table from a key on, in the order of their keys."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            yield from items_from(cursor, first)

    def item_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """The last record of a table whose key is lower than this one."""
        with self._txn.cursor(db=self._tables[table]) as cursor:
            if not (cursor.prev() if cursor.set_range(key) else cursor.last()):
                return None
            found: tuple[bytes, bytes] = cursor.item()
            return found

    def get(self, table: str, key: bytes) -> bytes | None:
        """One record."""
        found: bytes | None = self._txn.get(key, db=self._tables[table])
        return found

    def count(self, table: str) -> int:
        """Return how many records a table has."""
        return int(self._txn.stat(self._tables[table])["entries"])
