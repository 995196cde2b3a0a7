"""A copy follows a server: what it asks, and what it does with the answers.

Theory of operation
    The server answers from its store as it is (:mod:`broker_adapter.engine.operations.copies`).  What the copy lacks
    may take several answers, each as of another moment.  It has a state that the server had once it has all commits up
    to the last moment of these, and all of that is one transaction here.

    An image is all records, one table after the other, with the commits meanwhile between them.  It is written in many
    transactions, with the place that it has got to, and goes on there after a break.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import attrs

from broker_adapter.engine.operations.copies import MOST_KEYS, MOST_WAIT_MS, unpack_records
from broker_adapter.engine.records.tail import writer_of
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.deltas import IMAGE_TABLES
from broker_adapter.group.copy_files import CopyFiles, CopyStore, ImagePlace
from broker_adapter.wording import in_bytes

_log = logging.getLogger(f"holdfast.{__name__}")

#: Bytes of an image in one transaction.
_WRITTEN_BYTES: Final = 64 * 1024 * 1024
#: How often the log says how far an image is.
_TELL_SECONDS: Final = 10.0


@attrs.frozen
class Standing:
    """What a copy is to the server that it follows.

    Attributes:
        node: the name of the copy.
        term: of a node of the server's group: the term of that primary; None: it is only a copy.
        address: of a node of the group: HOST:PORT.
        wait_ms: longest wait of the server for a commit, in one question.
        wrote: called with the last commit on the disk of the copy, as there is a later one.
    """

    node: str
    term: int | None = None
    address: str | None = None
    wait_ms: int = MOST_WAIT_MS // 3
    wrote: Callable[[int], None] = lambda _lsn: None


class NoAnswer(Exception):
    """The connection is lost, or the server has refused something."""


class Ask(Protocol):
    """Asks the server for an operation, and waits for the answer; raises NoAnswer."""

    def __call__(self, operation: str, arguments: Mapping[str, Any]) -> Any: ...


class NotFollowed(Exception):
    """The server does not have the last commit of the copy, or no longer."""


class Following:
    """Keeps a copy of the store of one server, over one connection.

    Args:
        files: of the copy.
        standing: what the copy is to the server.
        ask: asks the server.
        image_rate: bytes of an image a second, at most; None: as fast as it comes.
        stopping: set where nothing more is to be asked.
        pause: seconds ahead of each question what is new: of what came and went meanwhile, nothing has to come.
    """

    def __init__(
        self,
        files: CopyFiles,
        standing: Standing,
        ask: Ask,
        image_rate: float | None,
        stopping: threading.Event,
        pause: float = 0.0,
    ) -> None:
        self._files = files
        self._standing = standing
        self._ask = ask
        self._image_rate = image_rate
        self._stopping = stopping
        self._pause = pause
        self._image_bytes = 0  #: that a whole image has, about

    def __repr__(self) -> str:
        return f"<Following {self._standing.node!r}>"

    def run(self) -> None:
        """Follow the server until it is to be stopped.

        Raises:
            NoAnswer: another attempt may succeed.
            ResourceAllocationException: there is no room on the disk of the copy.
            StoreException: the store of the copy has failed, or is no copy of that of the server.
        """
        while not self._stopping.is_set():
            try:
                store = self._joined() or self._image()
                while not self._stopping.is_set():
                    self._advance(store, store.lsn)
                    self._stopping.wait(self._pause)
            except NotFollowed:
                _log.info("= the server has begun anew: looking for what is in common")

    def _joined(self) -> CopyStore | None:
        """Bring the store of the copy to a state of the server; None where they have nothing in common."""
        store = self._files.store
        if store is None:
            return None
        found = self._follow(store)
        common = found["common"]
        if common is None:
            _log.warning(
                "! the copy is %d commits behind, and the server no longer has what it lacks: it takes an image (option"
                " tail_bytes of the server)",
                max(0, found["lsn"] - store.lsn),
            )
            return None
        if common < store.lsn:
            _log.warning("! %d commits that the server does not have are taken back", store.lsn - common)
        try:
            self._advance(store, common, waits=False)
        except NotFollowed:
            return None
        self._files.drop_image()
        _log.info("= the copy has commit %d, and follows", store.lsn)
        return store

    def _follow(self, store: CopyStore | None) -> dict[str, Any]:
        spans = [] if store is None else [tuple(each) for each in store.spans()]
        found: dict[str, Any] = self._ask("follow", {"node": self._standing.node, "spans": spans})
        self._files.follows(found["unique"], found["version"])
        self._image_bytes = found["bytes"]
        return found

    def _advance(self, store: CopyStore, after: int, *, waits: bool = True, seen: int = 0, image: int = 0) -> None:
        """Bring a store to a state of the server that has one commit more at least, or wait for one for a while.

        Args:
            store: of the copy, or an image.
            after: a commit that both have; what the store has behind it is taken back.
            waits: whether to wait where there is nothing yet.
            seen: the state has all commits up to this one at least.
            image: how much of an image the store has, in thousandths; 0: it is none.
        """
        pull = _Pull(self._ask, seen)
        writer = store.writer(after)
        standing = self._standing
        said = {"node": standing.node, "term": standing.term, "address": standing.address, "image": image or None}
        wait_ms = standing.wait_ms if waits else 0
        answer = self._ask("read_commits", {"after": after, "writer": writer, "wait_ms": wait_ms, **said})
        if answer is None:
            raise NotFollowed
        own, keys = store.keys_behind(after)
        if not own and answer["last"] == after and after >= seen:
            return

        def parts() -> Iterator[Changes]:
            if own:
                yield {}, {"tail": own}
                for table, some in keys.items():
                    for at in range(0, len(some), MOST_KEYS):
                        yield from pull.answered(
                            self._ask("read_records", {"table": table, "keys": some[at : at + MOST_KEYS]})
                        )
            found = answer
            while True:
                yield from pull.answered(found)
                last = found["last"]
                if last >= pull.seen:
                    return
                written_by = pull.writer or writer
                # It is not on the disk yet, so this does not say who asks.
                found = self._ask("read_commits", {"after": last, "writer": written_by})
                if found is None or found["last"] == last < pull.seen:
                    raise NotFollowed

        store.write(parts())
        if not image:
            standing.wrote(store.lsn)

    def _image(self) -> CopyStore:
        """Take an image, from where it was broken off; returns the store of the copy."""
        image = self._files.image
        found = self._follow(image)
        if image is None or found["common"] != image.lsn:
            image = self._files.begin_image(tuple(found["commit"]))
            _log.info("= image: begins, of about %s", in_bytes(self._image_bytes))
        else:
            _log.info("= image: goes on, at %.0f %%", self._thousandths(image.place()) / 10)
        told = began = time.monotonic()
        place = image.place()
        self._advance(image, image.lsn, waits=False, seen=place.seen, image=self._thousandths(place))
        while not place.is_whole:
            if self._stopping.is_set():
                raise NotFollowed
            image.write(self._records(place))
            self._advance(image, image.lsn, waits=False, seen=place.seen, image=self._thousandths(place))
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                size, whole = in_bytes(place.bytes), in_bytes(self._image_bytes)
                _log.info("= image: %.0f %% (%s of about %s)", self._thousandths(place) / 10, size, whole)
        store = self._files.complete_image()
        _log.info("= image: complete, %s in %.0f s; the copy follows", in_bytes(place.bytes), time.monotonic() - began)
        return store

    def _thousandths(self, place: ImagePlace) -> int:
        return max(1, min(999, 1000 * place.bytes // max(1, self._image_bytes)))

    def _records(self, place: ImagePlace) -> Iterator[Changes]:
        """The next records of an image, and the place behind them."""
        size = 0
        pull = _Pull(self._ask, place.seen)
        while size < _WRITTEN_BYTES and not place.is_whole and not self._stopping.is_set():
            began = time.monotonic()
            table = IMAGE_TABLES[place.table]
            arguments = {"table": table, "after": place.after, "until": place.until}
            found = self._ask("read_image", arguments)
            got = 0
            for changes in pull.answered(found):
                got += sum(len(key) + len(value) for key, value in changes[0].get(table, ()))
                yield changes
            place.until, place.after = found["until"], found["next"]
            if found["next"] is None:
                place.table, place.after, place.until = place.table + 1, b"", None
            place.bytes += got
            size += got
            if self._image_rate is not None:
                self._stopping.wait(max(0.0, got / self._image_rate - (time.monotonic() - began)))
        place.seen = pull.seen
        yield place.record()


class _Pull:
    """Answers that make one state: it has all commits up to the latest moment of these.

    Args:
        ask: asks the server.
        seen: the latest moment so far.

    Attributes:
        seen: as it is now.
        writer: who wrote the last commit in them; empty: there is none.
    """

    def __init__(self, ask: Ask, seen: int) -> None:
        self.seen = seen
        self.writer = b""
        self._ask = ask

    def answered(self, answer: Mapping[str, Any]) -> Iterator[Changes]:
        """The changes in an answer, with the records that are to be asked for in pieces."""
        self.seen = max(self.seen, answer["lsn"])
        changes, large = unpack_records(answer["records"])
        if "tail" in changes[0]:
            self.writer = writer_of(changes[0]["tail"][-1][1])
        yield changes
        for table, key, _ in large:
            value = self._whole(table, key)
            yield ({}, {table: [key]}) if value is None else ({table: [(key, value)]}, {})

    def _whole(self, table: str, key: bytes) -> bytes | None:
        pieces: list[bytes] = []
        size = 0
        while True:
            found = self._ask("read_piece", {"table": table, "key": key, "offset": size})
            self.seen = max(self.seen, found["lsn"])
            if found["piece"] is None:
                return None  # it has gone meanwhile, which is among what is seen
            if not found["piece"]:
                return b"".join(pieces)
            pieces.append(found["piece"])
            size += len(found["piece"])
