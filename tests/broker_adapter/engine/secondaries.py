"""Copies of the stores in a test: they follow by what a copy follows with, and all tables stay equal.

Of each store one copy follows from its opening on.  Now and then it is made a primary of its own for a few commits,
which it takes back as it follows again.  Another one takes one image after the other, in answers of a few records, with
commits in between.  What is written past :meth:`Writes.write` makes a difference, and fails the test.

A copy runs in a thread, but only between two commits: each of its requests waits until the test gives the answer.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.operations import copies
from broker_adapter.engine.operations.copies import OfCopy
from broker_adapter.engine.operations.copy_states import Copies
from broker_adapter.engine.operations.request import request_of
from broker_adapter.engine.records.layout import COPY_OF, TABLES
from broker_adapter.engine.store import deltas
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.lmdb_writes import Writes
from broker_adapter.engine.store.maintenance import check_records
from broker_adapter.errors import IllegalStateException
from broker_adapter.group import comparing, following
from broker_adapter.group.comparing import Comparison, Difference
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.following import Following, NoAnswer, Standing
from broker_adapter.settings import EngineSettings

#: Bytes of an answer between two commits and in all, of a large record and its pieces, and of the records of an image
#: that are written at once.
ANSWER_BYTES, FULL_BYTES = 300, 1000
LARGE_BYTES, PIECE_BYTES = 250, 100
WRITTEN_BYTES = 1000
#: How often a copy has the answers to a few requests after a commit, and how often it has them all and is compared.
ANSWERED, COMPARED = 0.4, 0.04
#: How often a copy that is equal is made a primary for a few commits, or its image is taken anew.
BEGUN_ANEW = 0.5
#: Behind all keys of the tail.
LAST = b"\xff" * 9
#: Answers after which a copy has to have everything.
ENOUGH = 100_000


class Secondary:
    """A copy of a store.

    Args:
        path: its directory.
        store: that it follows.
        by_images: whether it takes an image again as soon as it has one; else it diverges now and then.
    """

    def __init__(self, path: Path, store: LmdbStore, *, by_images: bool) -> None:
        self.path = path
        self.store = store
        self.copies = Copies()
        self._by_images = by_images
        self._chance = random.Random(0)
        self._error: BaseException | None = None
        self._begin()

    def _begin(self) -> None:
        self._files = CopyFiles(self.path, EngineSettings(), "amqp://primary")
        self._stopping = threading.Event()
        self._asks, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._asks.acquire(timeout=60)

    def _run(self) -> None:
        try:
            Following(self._files, Standing("secondary"), self._ask, None, self._stopping).run()
        except NoAnswer:
            pass
        except BaseException as error:
            self._error = error
        self._asks.release()

    def _ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        self._asks.release()
        self._answered.acquire()
        if self._stopping.is_set():
            raise NoAnswer
        request = request_of(operation, arguments)
        assert isinstance(request, OfCopy)
        with self.store.snapshot() as records:
            return request.read(self, records)

    @property
    def follows(self) -> bool:
        """Whether it has a whole state."""
        return self._files.store is not None

    def answer(self) -> None:
        """Let it have one answer, and do what it does with it."""
        if self._error is None:
            self._answered.release()
            assert self._asks.acquire(timeout=60)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._answered.release()
            self._thread.join(60)
            self._files.close()

    def catch_up(self) -> None:
        for _ in range(ENOUGH):
            if self._has_everything():
                return
            self.answer()
        raise AssertionError(f"{self.path.name} does not catch up")

    def _has_everything(self) -> bool:
        if self._files.image is not None or self._files.store is None:
            return False
        with self._files.store._store.snapshot() as ours, self.store.snapshot() as theirs:
            return ours.item_before("tail", LAST) == theirs.item_before("tail", LAST)

    def differences(self) -> list[str]:
        assert self._files.store is not None
        found = []
        with self._files.store._store.snapshot() as ours, self.store.snapshot() as theirs:
            for table in TABLES:
                here, there = dict(ours.items(table)), dict(theirs.items(table))
                here.pop(COPY_OF, None)
                if table == "tail":  # which begins with the image
                    there = {key: value for key, value in there.items() if key >= min(here)}
                found += [f"{table} {key!r}" for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
        return found

    def compared(self) -> list[Difference]:
        """What a comparison finds of a copy that follows, however far it is."""
        assert self._files.store is not None

        def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
            request = request_of(operation, arguments)
            assert isinstance(request, OfCopy)
            with self.store.snapshot() as records:
                return request.read(self, records)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparing, "_PAUSE_SECONDS", 0.0)
            try:
                return list(Comparison(ask, self._files.store._store.snapshot).differences())
            except IllegalStateException:
                return []  # it has commits of its own, or is being replaced

    def findings(self) -> list[str]:
        assert self._files.store is not None
        return [each.text for each in check_records(self._files.store._store).findings]

    def begin_anew(self) -> None:
        """Stop it, and have it begin with commits of its own, or with nothing."""
        self.stop()
        if self._by_images:
            shutil.rmtree(self.path)
        else:
            self._diverge()
        self._begin()

    def _diverge(self) -> None:
        store = LmdbStore(self.path, EngineSettings())
        chance = self._chance
        for _ in range(chance.randint(1, 4)):
            puts: dict[str, list[tuple[bytes, bytes]]] = {}
            deletes: dict[str, list[bytes]] = {}
            with store.snapshot() as records:
                for table in chance.sample([each for each in TABLES if each not in ("tail", "meta")], 4):
                    known = [key for key, _ in records.items(table)][:50]
                    deletes[table] = chance.sample(known, min(len(known), 2))
                    puts[table] = [(key, b"of its own") for key in (*chance.sample(known, min(len(known), 2)), b"new")]
            store._writes.write((puts, deletes))
        store.close()


class Followers:
    """The copies of one store."""

    def __init__(self, path: Path, store: LmdbStore) -> None:
        path.mkdir()
        self.of = store.path, store.unique
        self.wrong: list[str] = []
        self.compared = 0
        self._chance = random.Random(0)
        self._commits = 0
        self._copies = [
            Secondary(path / "whole", store, by_images=False),
            Secondary(path / "image", store, by_images=True),
        ]
        self._copies[0].catch_up()

    def open(self, store: LmdbStore) -> None:
        """Follow a store that was opened again."""
        for each in self._copies:
            each.store = store

    def follow(self) -> None:
        """A commit was made."""
        self._commits += 1
        for each in self._copies:
            if self._chance.random() < ANSWERED:
                for _ in range(self._chance.randint(1, 3)):
                    each.answer()
            if self._chance.random() < COMPARED:
                self._compare(each)
                if self._chance.random() < BEGUN_ANEW:
                    each.begin_anew()

    def end(self, store: LmdbStore) -> None:
        """Compare all, and what a check finds in them."""
        found = [each.text for each in check_records(store).findings]
        for each in self._copies:
            self._compare(each)
            if each.findings() != found:
                self.wrong.append(f"{each.path.name} of {self.of[0]}: a check finds something else")

    def stop(self) -> None:
        for each in self._copies:
            each.stop()

    def _compare(self, copy: Secondary) -> None:
        self.compared += 1
        if copy.follows:
            self.wrong += [f"{copy.path.name} of {self.of[0]} compared: {each}" for each in copy.compared()]
        copy.catch_up()
        found = copy.differences()
        if found:
            which = f"{copy.path.name} of {self.of[0]} after {self._commits} commits"
            self.wrong.append(f"{which}: {len(found)} differ: {found[:5]}")


@contextmanager
def followed() -> Iterator[list[Followers]]:
    """Have every store that is opened meanwhile followed; raises AssertionError at the end where one was not equal."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "ANSWER_BYTES", ANSWER_BYTES)
        patch.setattr(copies, "PIECE_BYTES", PIECE_BYTES)
        patch.setattr(deltas, "_FULL_BYTES", FULL_BYTES)
        for each in (deltas, following):
            patch.setattr(each, "LARGE_BYTES", LARGE_BYTES)
        patch.setattr(following, "_WRITTEN_BYTES", WRITTEN_BYTES)
        stores = _following(Path(directory), patch)
        try:
            yield stores
        finally:
            for found in stores:
                found.stop()
    wrong = [each for found in stores for each in found.wrong]
    assert not wrong, wrong[:10]


def _following(directory: Path, patch: pytest.MonkeyPatch) -> list[Followers]:
    """Have stores followed until a patch is undone; returns what fills with who follows."""
    every: list[Followers] = []
    live: dict[int, tuple[LmdbStore, Followers]] = {}  #: those that are open, by their writes
    opened, write, close = LmdbStore.__init__, Writes.write, LmdbStore.close

    def open_store(store: LmdbStore, path: Any, settings: EngineSettings, **options: Any) -> None:
        opened(store, path, settings, **options)
        if store._trial is not None or directory in store.path.parents:
            return
        store.begin_tail()
        found = next((each for each in every if each.of == (store.path, store.unique)), None)
        if found is None:
            found = Followers(directory / str(len(every)), store)
            every.append(found)
        else:
            found.open(store)
        live[id(store._writes)] = store, found

    def write_followed(writes: Writes, changes: Changes) -> None:
        write(writes, changes)
        if id(writes) in live:
            live[id(writes)][1].follow()

    def close_store(store: LmdbStore) -> None:
        if hasattr(store, "_writes") and id(store._writes) in live:
            _, found = live.pop(id(store._writes))
            found.end(store)
        close(store)

    patch.setattr(LmdbStore, "__init__", open_store)
    patch.setattr(LmdbStore, "close", close_store)
    patch.setattr(Writes, "write", write_followed)
    return every
