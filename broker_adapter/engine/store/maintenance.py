"""What an operator does with a store that no engine has open: check it, repair it, compact it, show its quarantine.

A check reads the pages first (:mod:`pages`), since LMDB ends the process on some damaged ones, then at the records
(:mod:`check`).  A repair of pages writes what can be read into a new file and keeps the damaged one beside it; a repair
of records moves what cannot be trusted into quarantine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import lmdb

from broker_adapter.engine.check.checks import Check
from broker_adapter.engine.check.findings import Finding, Summary
from broker_adapter.engine.check.pages import Damage, File, Meta, contradiction, metas, newest
from broker_adapter.engine.check.record_kinds import tables_of
from broker_adapter.engine.check.salvage import Salvage, Salvaged
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.records.layout import (
    MAX_KEY_BYTES,
    NEXT_RUN,
    REBUILT,
    TABLES,
    VERSION,
    decode_entry,
    decode_message,
    decode_meta,
    encode_meta,
    quarantine_key,
    refuse_newer,
    split_quarantine_key,
    unpack_message_key,
)
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.engine.records.start_numbers import SKIPPED_RUNS, next_run, number_of
from broker_adapter.engine.store.files import (
    DATA,
    PUT_ASIDE,
    existing_store,
    own,
    put_in_place,
    reader_of,
    sync_directory,
)
from broker_adapter.engine.store.lmdb_errors import without_room
from broker_adapter.engine.store.lmdb_reads import run_items
from broker_adapter.engine.store.lmdb_store import LmdbStore, map_bytes
from broker_adapter.engine.store.port import DurableStore
from broker_adapter.errors import (
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
    StoreVersionException,
)
from broker_adapter.settings import EngineSettings

#: Findings of which a report has the text; the others are counted.
MAX_FINDINGS: Final = 1000
#: Damages and findings that are told as plain data.
_SHOWN: Final = 50
#: Records written at once into a new file, and their bytes.
_CHUNK: Final = 10_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
#: Files, and records in quarantine, that may have the same name but for a number.
_MOST_NAMES: Final = 1000
#: Bytes of the key of a message in quarantine: alone, or beside others of its number.
_MESSAGE_KEYS: Final = (8, 10)
#: Where a repair writes the new file.
_REBUILDING: Final = "rebuilding"

#: Called with what is under way, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


def _silent(_what: str, _done: int, _of: int) -> None:
    pass


@attrs.define
class Report:
    """What a check has found.

    Attributes:
        pages: of the file.
        damages: pages that cannot be used.
        damaged_file: where the file with these pages is kept, if they were repaired.
        salvaged: records that were taken from damaged pages, and from pages that no branch leads to.
        free_is_known: whether the list of free pages could be read; where it could not, it is not known which pages
            that nothing leads to have records that were deleted.
        has_lost_root: whether one of the two roots of the file cannot be read, or does not fit the other one.
        missing: table → records that its root counts and that could not be read.
        counted: table → records that its root counts.
        misplaced: how many messages a repair found in no place of theirs, of those that the root counts.
        set_aside: messages that nothing led to, which a repair put into quarantine: some may have been consumed.
        lost: how many messages a repair found in no page, of those that the root counts; None: not known, because
            that count is lost, too, or some of those that are set aside may be these.
        summary: of the records, with the number of problems by kind.
        findings: the first ones of them, without their changes.
        repaired: whether they were repaired.
    """

    pages: int = 0
    damages: list[Damage] = attrs.field(factory=list)
    damaged_file: str | None = None
    salvaged: int = 0
    free_is_known: bool = True
    has_lost_root: bool = False
    missing: Counter[str] = attrs.field(factory=Counter)
    counted: Counter[str] = attrs.field(factory=Counter)
    misplaced: int = 0
    set_aside: int = 0
    lost: int | None = 0
    summary: Summary = attrs.field(factory=Summary)
    findings: list[Finding] = attrs.field(factory=list)
    repaired: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether nothing was wrong, harmless things apart."""
        return not self.damages and self.summary.is_sound


def as_answer(report: Report) -> dict[str, Any]:
    """A report as plain data: the answer to the request ``check``, and what ``--json`` prints."""
    summary = report.summary
    return {
        "sound": report.is_sound,
        "repaired": report.repaired,
        "pages": report.pages,
        "damaged_pages": [
            {"page": each.page, "table": each.table, "text": each.text} for each in report.damages[:_SHOWN]
        ],
        "damaged_page_count": len({each.page for each in report.damages}),
        "damage_count": len(report.damages),
        "has_lost_root": report.has_lost_root,
        "damaged_file": report.damaged_file,
        "salvaged": report.salvaged,
        "free_is_known": report.free_is_known,
        "missing": dict(report.missing),
        "misplaced": report.misplaced,
        "set_aside": report.set_aside,
        "lost": report.lost,
        "queues": summary.queues,
        "messages": summary.messages,
        "message_bytes": summary.message_bytes,
        "entries": summary.entries,
        "delayed": summary.delayed,
        "quarantined": summary.quarantined,
        "lost_places": summary.lost_places,
        "lacking": [each._asdict() for each in summary.lacking],
        "problems": dict(summary.problems),
        "harmless": dict(summary.harmless),
        "findings": [
            {"problem": each.problem, "table": each.table, "key": each.key.hex(), "text": each.text}
            for each in report.findings
            if not each.harmless
        ][:_SHOWN],
    }


def check_store(
    path: str | os.PathLike[str],
    settings: EngineSettings,
    *,
    repair: bool = False,
    progress: Progress = _silent,
    formats: Formats | None = None,
) -> Report:
    """Check every page and every record of a store that no engine has open; a second for about 200,000 messages.

    Args:
        path: the directory.
        settings: ``max_store_bytes``.
        repair: whether to repair what is found.  Nothing is deleted that a message could be read from.
        progress: told how far it is.
        formats: reads messages, as :class:`~broker_adapter.engine.check.checks.Check` does.

    Returns:
        What was found.  Where pages are damaged and not repaired, the records are not checked.

    Raises:
        StoreLockedException: an engine has it open.
        StoreException: there is no store, or it cannot be read.
        StoreCorruptException: there is nothing in the file to begin with: both of its roots are damaged.
        StoreVersionException: newer software has written the store, or one of its records; nothing was changed.
    """
    directory = existing_store(path)
    report = Report()
    with own(directory):
        with open(directory / DATA, "rb") as data:
            found = _metas_of(directory, data.fileno())
            root = _check_pages(data.fileno(), found, report, progress)
            if report.damages:
                if not repair:
                    return report
                try:
                    _rebuild(directory, data.fileno(), root, settings, report, progress)
                except StoreVersionException:
                    shutil.rmtree(directory / _REBUILDING, ignore_errors=True)
                    raise
                except (OSError, lmdb.Error) as error:
                    shutil.rmtree(directory / _REBUILDING, ignore_errors=True)
                    raise _not_done(directory, "repaired", error, _AS_IT_WAS) from error
        store = LmdbStore(directory, settings, is_owned=True, is_checked=True, is_kept=not repair)
        try:
            is_taken_up = _take_up(store, report)
            _check_records(store, report, repair, progress, formats)
            if is_taken_up and repair:
                store.apply((("meta", REBUILT, None),))
            if store.repaired_version is not None:
                was = store.repaired_version.hex()
                text = f"the version ({was}) and its copy differ, or one is damaged; it is put right"
                report.findings.append(Finding("damaged record of the version", "meta", VERSION, text))
                report.summary.problems["damaged record of the version"] += 1
        except (OSError, lmdb.Error, ResourceAllocationException) as error:
            if repair:
                raise _not_done(directory, "repaired", error, "some of it may be; repair it again") from error
            raise _not_done(directory, "checked", error, _AS_IT_WAS) from error
        finally:
            store.close()
    report.repaired = repair and (is_taken_up or not report.is_sound)
    return report


def _not_done(directory: Path, what: str, error: Exception, left: str) -> StoreException:
    said = f"the store in {str(directory)!r} could not be {what}"
    full = without_room(directory, error)
    if full is not None:
        return StoreException(f"{said}: {full}, and do it again; {left} ({error})")
    return StoreException(f"{said}: {error}; {left}. Is there room on the disk?")


_AS_IT_WAS: Final = "the file that was there is as it was"


def _metas_of(directory: Path, handle: int) -> Sequence[Meta]:
    found = metas(reader_of(handle))
    if not found:
        raise StoreCorruptException(
            f"{str(directory / DATA)!r} is not an LMDB file, or both of its roots are damaged; restore it from a copy"
        )
    return found


def _check_pages(handle: int, found: Sequence[Meta], report: Report, progress: Progress) -> Meta:
    """Check every page; returns the root of the last commit."""
    read, size = reader_of(handle), os.fstat(handle).st_size
    meta = newest(read, found, size)
    file = File(read, meta, size, lambda done, of: progress("pages", done, of))
    wrong = contradiction(found)
    report.has_lost_root = len(found) < 2 or wrong is not None
    report.pages = max(file.pages, size // meta.free.page_bytes) if report.has_lost_root else file.pages
    if wrong is not None:
        other = next(each for each in found if each is not meta)
        report.damages.append(
            Damage(other.page, "", f"{wrong}; page {meta.page} has the last commit of these two, and this one may be an"
                   " older copy that a later root should have replaced: a later commit is lost then")
        )  # fmt: skip
    elif report.has_lost_root:
        report.damages.append(
            Damage(1 - found[0].page, "", "it is one of the two roots of the file, and cannot be read; the other may be"
                   " one commit older")
        )  # fmt: skip
    trees = file.tables()
    for table in TABLES:
        if table not in trees:
            continue  # its record is damaged: the main tree says so
        report.counted[table] = trees[table].entries
        count = sum(1 for _ in file.records(table, trees[table]))
        if count < trees[table].entries:
            report.missing[table] = trees[table].entries - count
    report.damages += file.damages
    return meta


def _rebuild(
    directory: Path, handle: int, root: Meta, settings: EngineSettings, report: Report, progress: Progress
) -> None:
    """Write what can be read into a new file, and put it in the place of the damaged one, which is kept."""
    target = directory / _REBUILDING
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    size = os.fstat(handle).st_size
    # Pages may be filled less than they were; what is not written takes no room.
    map_size = max(map_bytes(settings), 2 * size)
    env = lmdb.open(str(target), map_size=map_size, max_dbs=len(TABLES), sync=False, mode=0o600)
    try:
        salvage = Salvage(
            reader_of(handle),
            root,
            size,
            tables_of,
            TABLES,
            has_lost_root=report.has_lost_root,
            progress=lambda done, of: progress("records", done, of),
        )
        handles = {table: env.open_db(table.encode()) for table in TABLES}
        # A copy of a store that lacks commits takes an image.
        report.salvaged = _write(env, handles, (each for each in salvage.records() if each.table != "tail"))
        report.free_is_known = salvage.free_is_known
        report.damaged_file = str(_put_beside(directory / DATA))
        with env.begin(write=True) as txn:
            _count_lost(txn, handles, report)
            if txn.stat(handles["meta"])["entries"] != report.counted.get("meta"):
                _skip_runs(txn, handles["meta"])
            noted = {name: getattr(report, name) for name in _NOTED}
            txn.put(REBUILT, encode_meta(REBUILT, noted), db=handles["meta"])
        env.sync(True)
    finally:
        env.close()
    sync_directory(directory)
    put_in_place(target / DATA, directory)
    shutil.rmtree(target, ignore_errors=True)


def _skip_runs(txn: Any, meta: Any) -> None:
    """Where the number of the next start is lost or old, the records of the last starts may be lost as well."""
    known = [number_of(key) for key, _ in run_items(txn, meta)]
    noted = txn.get(NEXT_RUN, db=meta)
    if known and (noted is None or next_run(0, noted).number <= known[-1]):
        txn.put(NEXT_RUN, encode_meta(NEXT_RUN, known[-1] + 1 + SKIPPED_RUNS), db=meta)


def _count_lost(txn: Any, handles: dict[str, Any], report: Report) -> None:
    """Compare the messages of a rebuilt file with what the root of the damaged one counts."""
    quarantine, messages = handles["quarantine"], handles["messages"]
    prefix = quarantine_key("messages", b"")
    found = txn.stat(quarantine)["entries"] - report.counted["quarantine"]
    if found > 0:
        with txn.cursor(db=quarantine) as cursor:
            keys = cursor.iternext(values=False) if cursor.set_range(prefix) else iter(())
            of_messages = itertools.takewhile(lambda key: key.startswith(prefix), keys)
            set_aside = sum(1 for key in of_messages if txn.get(key[len(prefix) :], db=messages) is None)
        report.set_aside = min(found, set_aside)
    report.lost = None
    if "messages" in report.counted:
        report.misplaced = max(0, report.counted["messages"] - txn.stat(messages)["entries"])
        report.lost = None if report.misplaced and report.set_aside else report.misplaced


#: What a repair that is run again cannot find out a second time, once the rebuilt file is in its place.
_NOTED: Final = ("damaged_file", "salvaged", "free_is_known", "has_lost_root", "misplaced", "set_aside", "lost")


def _take_up(store: LmdbStore, report: Report) -> bool:
    """Take over what a repair that did not come to its end has noted; returns whether there was one."""
    with store.snapshot() as tables:
        value = tables.get("meta", REBUILT)
    if value is None:
        return False
    with contextlib.suppress(StoreCorruptException, KeyError, ValueError, TypeError):
        noted = decode_meta(REBUILT, value)
        for name in _NOTED:
            setattr(report, name, noted[name])
    return True


def _put_beside(data: Path) -> Path:
    """Give a damaged file one more name, of its own."""
    stem = f"{data.name}{PUT_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
    for name in (stem, *(f"{stem}-{number}" for number in range(2, _MOST_NAMES))):
        try:
            os.link(data, data.with_name(name))
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            with open(data.with_name(name), "xb") as copy, open(data, "rb") as file:
                shutil.copyfileobj(file, copy)
                os.fsync(copy.fileno())
        return data.with_name(name)
    raise FileExistsError(f"{_MOST_NAMES} files are named {stem!r}")


def _write(env: Any, handles: dict[str, Any], records: Iterator[Salvaged]) -> int:
    """Put records that are not there yet; returns how many of them were not where their tree has them.

    Of two with the same key, of which one is as it was written, the other one goes into quarantine: its key was
    changed.  Where both are, the second one is an older copy.
    """
    count = 0
    for chunk in in_parts(records, lambda each: len(each.value), _CHUNK, _CHUNK_BYTES):
        with env.begin(write=True) as txn:
            for each in chunk:
                table, key, value = each.table, each.key, each.value
                refuse_newer(table, key, value)
                if table == "quarantine" and _is_there(txn, handles, key):
                    continue
                if txn.put(key, value, db=handles[table], overwrite=False):
                    count += not each.is_regular
                    continue
                there = bytes(txn.get(key, db=handles[table]))
                if there == value or (
                    table != "quarantine"
                    and table in tables_of(key, value)
                    and _swap(txn, handles, table, key, there, value)
                ):
                    continue
                _set_aside(
                    txn, handles["quarantine"], key if table == "quarantine" else quarantine_key(table, key), value
                )
    return count


def _swap(txn: Any, handles: dict[str, Any], table: str, key: bytes, there: bytes, value: bytes) -> bool:
    """Put a trusted record in the place of one that is not trusted, which is set aside."""
    if table not in tables_of(key, there):
        txn.put(key, value, db=handles[table])
        _set_aside(txn, handles["quarantine"], quarantine_key(table, key), there)
    return True


def _set_aside(txn: Any, quarantine: Any, key: bytes, value: bytes) -> None:
    """Put a record into quarantine beside others of the same key."""
    for number in range(_MOST_NAMES):
        name = key if not number else key[: MAX_KEY_BYTES - 2] + number.to_bytes(2)
        if txn.put(name, value, db=quarantine, overwrite=False) or bytes(txn.get(name, db=quarantine)) == value:
            return


def _is_there(txn: Any, handles: dict[str, Any], quarantined: bytes) -> bool:
    """Return whether what is to be set aside is in its table."""
    table, key = split_quarantine_key(quarantined)
    return table in handles and txn.get(key, db=handles[table]) is not None


def check_records(store: DurableStore, progress: Progress = _silent) -> Report:
    """Check the records of a store that an engine has open, as of its last commit; its pages are not checked.

    The engine goes on meanwhile.  Pages that it frees are not used again until the check is done, so the file grows.
    """
    report = Report()
    _check_records(store, report, False, progress)
    return report


def _check_records(
    store: DurableStore, report: Report, repair: bool, progress: Progress, formats: Formats | None = None
) -> None:
    with store.snapshot() as tables:
        check = Check(tables, lambda done, of: progress("records", done, of), formats)
        changes = _noted(check.findings(), report)
        if repair:
            store.apply(changes)
        else:
            for _ in changes:
                pass
    report.summary = check.summary


def _noted(findings: Iterator[Finding], report: Report) -> Iterator[Any]:
    for finding in findings:
        if len(report.findings) < MAX_FINDINGS:
            # Without its changes, which have whole bodies in them.
            report.findings.append(attrs.evolve(finding, changes=()))
        yield from finding.changes


# Compacting.


def compact_store(
    path: str | os.PathLike[str], settings: EngineSettings, progress: Progress = _silent
) -> tuple[int, int]:
    """Write the records of a store that no engine has open into a new file without free pages.

    Args:
        path: the directory; its disk needs room for the new file beside the old one.
        settings: ``max_store_bytes``.
        progress: told how far it is.

    Returns:
        The bytes of the file before and after.

    Raises:
        StoreLockedException: an engine has it open.
        StoreException: it is damaged (a check tells more), or the disk has no room.
    """
    directory = existing_store(path)
    with own(directory):
        # LMDB copies damaged pages without an error, and then what was on them cannot be found out.
        _check_pages_are_sound(directory, progress)
        store = LmdbStore(directory, settings, is_owned=True)
        target = directory / "compacting"
        before = (directory / DATA).stat().st_size
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(mode=0o700)
            progress("compacting", 0, 1)
            store.copy(target)
        except (OSError, lmdb.Error) as error:
            shutil.rmtree(target, ignore_errors=True)
            raise _not_done(directory, "compacted", error, _AS_IT_WAS) from error
        finally:
            store.close()
        with open(target / DATA, "rb") as data:
            os.fchmod(data.fileno(), 0o600)
            os.fsync(data.fileno())
        put_in_place(target / DATA, directory)
        shutil.rmtree(target, ignore_errors=True)
        progress("compacting", 1, 1)
        return before, (directory / DATA).stat().st_size


def _check_pages_are_sound(directory: Path, progress: Progress) -> None:
    """Raise StoreCorruptException where they are not: LMDB may end the process that uses them."""
    pages = Report()
    with open(directory / DATA, "rb") as data:
        _check_pages(data.fileno(), _metas_of(directory, data.fileno()), pages, progress)
    if pages.damages:
        raise StoreCorruptException(
            f"{len(pages.damages)} pages of the store in {str(directory)!r} are damaged; run first: holdfast check"
            f" {directory} --repair"
        )


# The quarantine.


class QuarantinedRecord(NamedTuple):
    """A record that was set aside because it could not be trusted."""

    table: str
    key: bytes
    value: bytes

    @property
    def name(self) -> str:
        """By which a person names it: the table and the key in hexadecimal."""
        return f"{self.table}/{self.key.hex()}"

    @property
    def payload(self) -> bytes | None:
        """Of a message: its body as it was found, whose checksum is wrong or whose entry was lost."""
        is_message = self.table == "messages" and len(self.key) in _MESSAGE_KEYS and len(self.value) >= 8
        return self.value[8:] if is_message else None

    @property
    def number(self) -> int:
        """Of a message."""
        number: int = unpack_message_key(self.key[:8])[0]
        return number

    @property
    def entry_of(self) -> int | None:
        """The number of the message whose place it was; None: it is no entry, or is damaged itself."""
        try:
            return decode_entry(self.key, self.value).number if self.table == "entries" else None
        except StoreCorruptException:
            return None

    @property
    def is_sound(self) -> bool:
        """Whether it is a message that is as it was written, and only its entry was lost."""
        try:
            return self.payload is not None and bool(decode_message(self.number, self.value))
        except StoreCorruptException:
            return False


@contextlib.contextmanager
def sound_store(
    path: str | os.PathLike[str], settings: EngineSettings, progress: Progress = _silent, *, is_kept: bool = False
) -> Iterator[LmdbStore]:
    """A store that no engine has open, and whose pages are sound.

    Args:
        path: the directory.
        settings: ``max_store_bytes``.
        progress: told how far the check of its pages is.
        is_kept: whether nothing is to be changed.

    Raises:
        StoreLockedException: an engine has it open.
        StoreException: there is no store, or it cannot be read.
        StoreCorruptException: pages of it are damaged.
    """
    directory = existing_store(path)
    with own(directory):
        _check_pages_are_sound(directory, progress)
        store = LmdbStore(directory, settings, is_owned=True, is_checked=is_kept, is_kept=is_kept)
        try:
            yield store
        finally:
            store.close()


def quarantined(store: LmdbStore) -> list[QuarantinedRecord]:
    """All records in quarantine."""
    with store.snapshot() as tables:
        return [QuarantinedRecord(*split_quarantine_key(key), value) for key, value in tables.items("quarantine")]


def drop_quarantined(store: LmdbStore, records: Sequence[QuarantinedRecord]) -> None:
    """Drop records from quarantine, for good; raises as ``LmdbStore.apply``."""
    store.apply(("quarantine", quarantine_key(each.table, each.key), None) for each in records)
