"""Versions of a store: which version wrote it, and how what an older version wrote is taken over."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.engine.records.layout import (
    AGE,
    HAS_OLD,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    QUEUE_KEY_BYTES,
    RUN_PREFIX,
    STORE_VERSION,
    UNIQUE,
    VERSION,
    VERSION_CHECK,
    LastRecord,
    decode_meta,
    decode_sequences,
    decode_stream_key,
    encode_last,
    encode_meta,
    last_key,
    refuse_newer,
    with_key_covered,
)
from broker_adapter.errors import StoreCorruptException, StoreVersionException

_log = logging.getLogger(f"holdfast.{__name__}")

#: The first version that notes itself with a checksum.
_FIRST_CHECKED: Final = 4
#: Bytes of what a store is known by, as versions before that wrote it.
_PLAIN_NAME_BYTES: Final = 16


class TakenOver(NamedTuple):
    """What is known of a store that was taken over."""

    unique: bytes  #: the record of what it is known by
    has_old: bool  #: whether there may be messages that a version before 3 has written
    repaired_version: bytes | None  #: what stood where the version is noted, if that was damaged and is repaired


def take_over(txn: Any, tables: Mapping[str, Any], path: Path, now_ms: int) -> TakenOver:
    """Find out which version wrote a store, upgrade what an older version wrote, and write what a new one needs.

    Args:
        txn: a transaction that writes.
        tables: by name.
        path: of the store.
        now_ms: the time of the day, with which the age of a new store begins.

    Raises:
        StoreVersionException: a newer version wrote it, or one of its records; nothing was changed.
        StoreCorruptException: the record of its version is damaged.
    """
    return _TakeOver(txn, tables, path, now_ms).carry_out()


class _TakeOver:
    def __init__(self, txn: Any, tables: Mapping[str, Any], path: Path, now_ms: int) -> None:
        self._txn = txn
        self._tables = tables
        self._path = path
        self._now_ms = now_ms
        self._repaired_version: bytes | None = None

    def carry_out(self) -> TakenOver:
        """See :func:`take_over`."""
        meta = self._tables["meta"]
        version = self._version()
        for table in ("catalog", "queues", "meta"):
            for key, value in self._txn.cursor(db=self._tables[table]):
                refuse_newer(table, key, value)
        if version is None:
            if any(self._txn.stat(table)["entries"] for table in self._tables.values()):
                # Its record is lost, and a repair could not save it: what any version may have written is taken over.
                _log.warning("! the store in %s has lost the record of its version", self._path)
                self._upgrade(0)
            else:
                self._txn.put(AGE, encode_meta(AGE, self._now_ms), db=meta)
            self._txn.put(NEXT_QUEUE, encode_meta(NEXT_QUEUE, 1), db=meta, overwrite=False)
        elif version < _FIRST_CHECKED:
            self._upgrade(version)
        again = encode_meta(VERSION_CHECK, STORE_VERSION)
        for key, value in ((VERSION, msgpack.packb(STORE_VERSION)), (VERSION_CHECK, again)):
            if self._txn.get(key, db=meta) != value:  # nothing is written that is there: the disk may be full
                self._txn.put(key, value, db=meta)
        unique = self._txn.get(UNIQUE, db=meta)
        if unique is None:
            if version is not None:
                _log.warning("! the store in %s has lost what it is known by, and gets a new name", self._path)
            unique = encode_meta(UNIQUE, secrets.token_hex(8))
            self._txn.put(UNIQUE, unique, db=meta)
        return TakenOver(unique, self._txn.get(HAS_OLD, db=meta) is not None, self._repaired_version)

    def _version(self) -> int | None:
        """The version that wrote the store; None where it has none.

        It is there twice, the second time with a checksum.  A store of a newer version is closed.
        """
        plain, checked = (self._txn.get(key, db=self._tables["meta"]) for key in (VERSION, VERSION_CHECK))
        if plain is None and checked is None:
            return None
        version, again = _plain_number(plain), None
        with suppress(StoreCorruptException):
            again = decode_meta(VERSION_CHECK, checked) if checked is not None else None
        if again is None and (version is None or (checked is not None and version < _FIRST_CHECKED)):
            raise StoreCorruptException(
                f"the store in {str(self._path)!r} cannot be opened: the record of its version is damaged"
                f" ({(plain or b'').hex()}); restore it from a copy"
            )
        sound = again if again is not None else version
        assert sound is not None
        if sound != version or (again is None and sound >= _FIRST_CHECKED):
            _log.warning("! the record of the version of the store in %s was damaged, and is put right", self._path)
            self._repaired_version = plain or b""
        version = sound
        if version > STORE_VERSION:
            raise StoreVersionException(
                f"the store in {str(self._path)!r} has version {version}; this software knows versions up to"
                f" {STORE_VERSION}: upgrade it"
            )
        return version

    def _upgrade(self, version: int) -> None:
        """Take over a store that an older version has written; most records are read as they are.

        Records of this version are left alone.  Where the version is unknown (0) some may be.
        """
        meta = self._tables["meta"]
        if version < 3:
            self._txn.put(HAS_OLD, b"\1", db=meta)
            if version:
                with self._txn.cursor(db=self._tables["catalog"]) as cursor:
                    keys = cursor.iterprev(keys=True, values=False)
                    highest = next((int.from_bytes(key) for key in keys if len(key) == QUEUE_KEY_BYTES), 0)
                self._txn.put(NEXT_QUEUE, msgpack.packb(highest + 1), db=meta)
            for key, value in list(self._txn.cursor(db=self._tables["producers"])):
                with suppress(StoreCorruptException):  # it is set aside when it is read
                    self._upgrade_producer(key, value)
        for key in (NEXT_QUEUE, NEXT_MESSAGE):
            value = self._txn.get(key, db=meta)
            with suppress(StoreCorruptException):
                decode_meta(key, value or b"")
                continue  # it is of this version, whose record is lost
            number = _plain_number(value)
            if number is not None:
                self._txn.put(key, encode_meta(key, number), db=meta)
        unique = self._txn.get(UNIQUE, db=meta)
        if unique is not None and (version or len(unique) == _PLAIN_NAME_BYTES):
            self._txn.put(UNIQUE, encode_meta(UNIQUE, unique.decode(errors="replace")), db=meta)
        for table in ("catalog", "queues", "annotations", "meta"):
            with self._txn.cursor(db=self._tables[table]) as cursor:
                for key, value in cursor.iternext():
                    covered = with_key_covered(key, value) if table != "meta" or key.startswith(RUN_PREFIX) else None
                    if covered is not None:
                        cursor.put(key, covered)

    def _upgrade_producer(self, key: bytes, value: bytes) -> None:
        name = decode_stream_key(key)
        if len(name) == 2:  # a session's commits, or a group's published batches: nothing tells which
            record = LastRecord(*decode_sequences(key, value)[:3:2])
            for table in ("commits", "published"):
                new_key = last_key(name[1])
                self._txn.put(new_key, encode_last(new_key, record), db=self._tables[table])
            self._txn.delete(key, db=self._tables["producers"])


def _plain_number(value: bytes | None) -> int | None:
    """A number that has no checksum; None where it is none."""
    try:
        number = msgpack.unpackb(value) if value is not None else None
    except (ValueError, msgpack.UnpackException):
        return None
    return number if isinstance(number, int) and number > 0 else None
