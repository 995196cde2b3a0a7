"""Secondaries of the stores in a test: what each commit changes is applied to them, and all tables stay equal.

Of each store one secondary has followed since it was opened first.  The other one gets an image in chunks of a few
records, each behind the commit whose state it has, and once it is complete the next image.  So images begin at any
commit.  What is written past :meth:`Writes.write` makes a difference, and fails the test.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import pytest

from broker_adapter.engine.records.layout import TABLES
from broker_adapter.engine.store import lmdb_writes
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.lmdb_writes import Writes, put_changes
from broker_adapter.engine.store.maintenance import check_records, check_store
from broker_adapter.engine.store.port import StoreSnapshot
from broker_adapter.settings import EngineSettings

#: Records of an image that follow a commit.
CHUNKS = (1, 3, 20)
#: How often all records are compared after a commit: they are many.
COMPARED = 0.05


class Secondary:
    """A directory with the records of a store, written without syncs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=1 << 30, sync=False)
        self._tables = {table: self.env.open_db(table.encode()) for table in TABLES}

    def apply(self, *changes: Changes) -> None:
        with self.env.begin(write=True) as txn:
            for each in changes:
                put_changes(txn, self._tables, each)

    def clear(self) -> None:
        with self.env.begin(write=True) as txn:
            for table in self._tables.values():
                txn.drop(table, delete=False)

    def differences(self, primary: StoreSnapshot) -> list[str]:
        found = []
        with self.env.begin() as txn:
            for name, table in self._tables.items():
                here, there = dict(txn.cursor(db=table)), dict(primary.items(name))
                found += [f"{name} {key!r}" for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
        return found


class Image:
    """All records of a store, a few at a time.

    What comes behind the end of a table, once that has been reached, is in a commit: else the image of a queue that
    grows would not end.
    """

    def __init__(self) -> None:
        self._left = list(reversed(TABLES))
        self._after = b""

    @property
    def is_complete(self) -> bool:
        return not self._left

    def chunk(self, store: LmdbStore, most: int) -> Changes:
        """Put the next records."""
        puts: dict[str, list[tuple[bytes, bytes]]] = {}
        with store.snapshot() as tables:
            while self._left and most:
                table = self._left[-1]
                puts[table] = found = list(islice(tables.items_from(table, self._after + b"\0"), most))
                most -= len(found)
                if most:
                    self._left.pop()
                self._after = b"" if most else found[-1][0]
        return puts, {}


class Followers:
    """The secondaries of one store."""

    def __init__(self, path: Path, store: LmdbStore) -> None:
        path.mkdir()
        self.of = store.path, store.unique
        self.wrong: list[str] = []
        self.images = 0
        self._path = path
        self._chance = random.Random(0)
        self._commits = 0
        self._open()
        self._whole.apply(Image().chunk(store, sys.maxsize))

    def _open(self) -> None:
        self._whole, self._by_image = Secondary(self._path / "whole"), Secondary(self._path / "image")
        self._begin_image()

    def open(self, store: LmdbStore) -> None:
        """Follow a store that was opened again."""
        self._open()
        self._compare(self._whole, store)

    def follow(self, store: LmdbStore, changes: Changes) -> None:
        """Take over what a commit has changed."""
        self._commits += 1
        self._whole.apply(changes)
        self._by_image.apply(changes, self._image.chunk(store, self._chance.choice(CHUNKS)))
        if self._image.is_complete:
            self._compare(self._by_image, store)
            self._begin_image()
        if self._chance.random() < COMPARED:
            self._compare(self._whole, store)

    def end(self, store: LmdbStore) -> None:
        """Compare all, and what a check finds in them, and close them."""
        self._compare(self._whole, store)
        self._by_image.apply(self._image.chunk(store, sys.maxsize))
        self._compare(self._by_image, store)
        found = [each.text for each in check_records(store).findings]
        for each in (self._whole, self._by_image):
            each.env.close()
            if [finding.text for finding in check_store(each.path, EngineSettings()).findings] != found:
                self.wrong.append(f"{each.path.name} of {self.of[0]}: a check finds something else")

    def _begin_image(self) -> None:
        self._by_image.clear()
        self._image = Image()

    def _compare(self, secondary: Secondary, store: LmdbStore) -> None:
        self.images += secondary is self._by_image
        with store.snapshot() as primary:
            found = secondary.differences(primary)
        if found:
            which = f"{secondary.path.name} of {self.of[0]} after {self._commits} commits"
            self.wrong.append(f"{which}: {len(found)} differ: {found[:5]}")


@contextmanager
def followed() -> Iterator[list[Followers]]:
    """Have every store that is opened meanwhile followed; raises AssertionError at the end where one was not equal."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        stores = _following(Path(directory), patch)
        yield stores
    wrong = [each for found in stores for each in found.wrong]
    assert not wrong, wrong[:10]


def _following(directory: Path, patch: pytest.MonkeyPatch) -> list[Followers]:
    """Have stores followed until a patch is undone; returns what fills with who follows."""
    every: list[Followers] = []
    live: dict[int, tuple[LmdbStore, Followers]] = {}  #: those that are open, by their tables
    written: dict[int, Changes] = {}
    opened, write, close = LmdbStore.__init__, Writes.write, LmdbStore.close

    def open_store(store: LmdbStore, path: Any, settings: EngineSettings, **options: Any) -> None:
        opened(store, path, settings, **options)
        if store._trial is not None or directory in store.path.parents:
            return
        found = next((each for each in every if each.of == (store.path, store.unique)), None)
        if found is None:
            found = Followers(directory / str(len(every)), store)
            every.append(found)
        else:
            found.open(store)
        live[id(store._db)] = store, found

    def put(txn: Any, tables: Mapping[str, Any], changes: Changes) -> None:
        put_changes(txn, tables, changes)
        written[id(tables)] = changes

    def write_followed(writes: Writes, changes: Changes) -> None:
        write(writes, changes)
        if id(writes._tables) in live:
            store, found = live[id(writes._tables)]
            found.follow(store, written.pop(id(writes._tables)))

    def close_store(store: LmdbStore) -> None:
        if hasattr(store, "_db") and id(store._db) in live:
            _, found = live.pop(id(store._db))
            found.end(store)
        close(store)

    patch.setattr(LmdbStore, "__init__", open_store)
    patch.setattr(LmdbStore, "close", close_store)
    patch.setattr(Writes, "write", write_followed)
    patch.setattr(lmdb_writes, "put_changes", put)
    return every
