"""Records for tests of stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.commands.messaging import NewMessage
from broker_adapter.engine.records.layout import (
    FLAG_PERSISTENT,
    RawEntry,
    RunRecord,
    entry_key,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.settings import EngineSettings

SETTINGS = EngineSettings(max_store_bytes=64 * 1024 * 1024)


def entry(queue: int, lane: int, position: int, number: int, **fields: Any) -> tuple[bytes, RawEntry]:
    values = {"delivery_count": 0, "flags": FLAG_PERSISTENT, "expires_at_ms": 0, "size": 1, **fields}
    return entry_key(queue, lane, position), RawEntry(queue, lane, position, number, **values)


def batch_of(*entries: tuple[bytes, RawEntry], body: bytes = b"x") -> StoreBatch:
    batch = StoreBatch()
    for key, found in entries:
        batch.entries[key] = found
        batch.messages[found.number] = NewMessage(7, body + str(found.number).encode())
    return batch


def positions(entries: list[RawEntry]) -> list[int]:
    return [each.position for each in entries]


def reopened(path: Path) -> LmdbStore:
    return LmdbStore(path, SETTINGS)


def damage(path: Path, table: str, key: bytes) -> None:
    with lmdb.open(str(path), max_dbs=20, map_size=1 << 26) as env, env.begin(write=True) as txn:
        handle = env.open_db(table.encode(), txn)
        value = bytearray(txn.get(key, db=handle))
        value[-1] ^= 1
        txn.put(key, bytes(value), db=handle)


BODY = b"x" * 1_000_000


def put(store: LmdbStore, number: int) -> None:
    store.commit(batch_of(entry(1, 5, number, number), body=BODY))


def note(store: LmdbStore, run: RunRecord) -> None:
    """Note a start of the engine at once."""
    store.begin_run(run)
    store.note_run()
