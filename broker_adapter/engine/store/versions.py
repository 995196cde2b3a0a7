"""The version of a store: which one wrote it, and how a store of an older version is converted."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.engine.records.layout import (
    AGE,
    NEXT_QUEUE,
    STORE_VERSION,
    UNIQUE,
    VERSION,
    VERSION_CHECK,
    decode_meta,
    encode_meta,
    refuse_newer,
)
from broker_adapter.errors import StoreCorruptException, StoreVersionException

_log = logging.getLogger(f"holdfast.{__name__}")

#: Rewrites the records of a store, in a transaction that writes, with the tables by name.
Conversion = Callable[[Any, Mapping[str, Any]], None]
#: By each version that can be converted, what makes a store of the next version of it.
CONVERSIONS: Final[dict[int, Conversion]] = {}


class TakenOver(NamedTuple):
    """What is known of a store that was taken over."""

    unique: bytes  #: the record of what it is known by
    repaired_version: bytes | None  #: what stood where the version is noted, if that was damaged and is repaired


def take_over(txn: Any, tables: Mapping[str, Any], path: Path, now_ms: int) -> TakenOver:
    """Find out which version wrote a store, convert that of an older version, and write what a new one needs.

    Args:
        txn: a transaction that writes.
        tables: by name.
        path: of the store.
        now_ms: the time of the day, with which the age of a new store begins.

    Raises:
        StoreVersionException: a newer version wrote it, or one of its records, or an older one for which there is no
            conversion; nothing was changed.
        StoreCorruptException: the record of its version is damaged.
    """
    meta = tables["meta"]
    version, repaired = _version(txn, meta, path)
    if version is not None and version < STORE_VERSION:
        _convert(txn, tables, path, version)
    for table in ("catalog", "queues", "meta"):
        for key, value in txn.cursor(db=tables[table]):
            refuse_newer(table, key, value)
    if version is None:
        if any(txn.stat(table)["entries"] for table in tables.values()):
            # Its record is lost, and a repair could not save it.  Records of another version fail their checksums.
            _log.warning("! the store in %s has lost the record of its version", path)
        else:
            txn.put(AGE, encode_meta(AGE, now_ms), db=meta)
        txn.put(NEXT_QUEUE, encode_meta(NEXT_QUEUE, 1), db=meta, overwrite=False)
    again = encode_meta(VERSION_CHECK, STORE_VERSION)
    for key, value in ((VERSION, msgpack.packb(STORE_VERSION)), (VERSION_CHECK, again)):
        if txn.get(key, db=meta) != value:  # nothing is written that is there: the disk may be full
            txn.put(key, value, db=meta)
    unique = txn.get(UNIQUE, db=meta)
    if unique is None:
        if version is not None:
            _log.warning("! the store in %s has lost what it is known by, and gets a new name", path)
        unique = encode_meta(UNIQUE, secrets.token_hex(8))
        txn.put(UNIQUE, unique, db=meta)
    return TakenOver(unique, repaired)


def _version(txn: Any, meta: Any, path: Path) -> tuple[int | None, bytes | None]:
    """Return the version that wrote the store, and its plain record if one of the two was damaged.

    It is there twice, the second time with a checksum.  None: it is not there at all.
    """
    plain, checked = (txn.get(key, db=meta) for key in (VERSION, VERSION_CHECK))
    if plain is None and checked is None:
        return None, None
    version, again = _plain_number(plain), None
    with suppress(StoreCorruptException):
        again = decode_meta(VERSION_CHECK, checked) if checked is not None else None
    sound = version if again is None else again
    if sound is None:
        raise StoreCorruptException(
            f"the store in {str(path)!r} cannot be opened: the record of its version is damaged"
            f" ({(plain or b'').hex()}); restore it from a copy"
        )
    if sound > STORE_VERSION:
        raise StoreVersionException(
            f"the store in {str(path)!r} has version {sound}; this software knows versions up to"
            f" {STORE_VERSION}: upgrade it"
        )
    if version == again:
        return sound, None
    _log.warning("! the record of the version of the store in %s was damaged, and is put right", path)
    return sound, plain or b""


def _convert(txn: Any, tables: Mapping[str, Any], path: Path, version: int) -> None:
    for each in range(version, STORE_VERSION):
        conversion = CONVERSIONS.get(each)
        if conversion is None:
            raise StoreVersionException(
                f"the store in {str(path)!r} has version {version}, and this software cannot convert version {each}:"
                " open it first with a release that can"
            )
        conversion(txn, tables)
    _log.info("the store in %s was converted from version %d to %d", path, version, STORE_VERSION)


def _plain_number(value: bytes | None) -> int | None:
    """Return a number that has no checksum; None where it is none."""
    try:
        number = msgpack.unpackb(value) if value is not None else None
    except (ValueError, msgpack.UnpackException):
        return None
    return number if isinstance(number, int) and number > 0 else None
