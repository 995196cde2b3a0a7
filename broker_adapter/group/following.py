"""A copy follows a server: what it asks, and what it does with the answers.

Theory of operation
    The server answers from its store as it is (:mod:`broker_adapter.engine.operations.copies`).  What the copy lacks
    may take several answers, each as of another moment.  It has a state that the server had once it has all commits up
    to the last moment of these, and all of that is one transaction here.

    An image is all records, one table after the other.  It is written in many transactions, each with the place that it
    has got to and with what the commits meanwhile have changed up to there, and goes on there after a break, also with
    another server that has its last commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol
from zlib import crc32

import attrs

from broker_adapter.engine.operations.copies import MOST_KEYS, MOST_SPANS, MOST_WAIT_MS, unpack_records
from broker_adapter.engine.records.tail import writer_of
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.deltas import IMAGE_TABLES, LARGE_BYTES
from broker_adapter.group.copy_files import CopyFiles, CopyStore, ImagePlace
from broker_adapter.wording import in_bytes

_log = logging.getLogger(f"holdfast.{__name__}")

#: Bytes of an image in one transaction, and for how long they are gathered, in seconds.
_WRITTEN_BYTES: Final = 64 * 1024 * 1024
_WRITTEN_SECONDS: Final = 2.0
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
        wrote: called with the last commit on the disk of the copy: once it follows, and as there is a later one.
    """

    node: str
    term: int | None = None
    address: str | None = None
    wait_ms: int = MOST_WAIT_MS // 3
    wrote: Callable[[int], None] = lambda _lsn: None

    @property
    def said(self) -> dict[str, Any]:
        """Who asks."""
        return {"node": self.node, "term": self.term, "address": self.address}


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
                lsn = store.lsn
                self._standing.wrote(lsn)
                while not self._stopping.is_set():
                    lsn = self._advance(store, lsn)
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
                "! the copy takes an image: the server has no commit of the copy that both remember (option tail_bytes)"
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
        spans = [] if store is None else [tuple(each) for each in store.spans()[-MOST_SPANS:]]
        found: dict[str, Any] = self._ask("follow", {"node": self._standing.node, "spans": spans})
        is_known = store is self._files.store and found["common"] is not None
        self._files.follows(found["unique"], found["version"], is_known=is_known)
        self._image_bytes = found["bytes"]
        return found

    def _advance(self, store: CopyStore, after: int, *, waits: bool = True, image: ImagePlace | None = None) -> int:
        """Bring a store to a state of the server that has one commit more at least, or wait for one for a while.

        Args:
            store: of the copy, or an image.
            after: a commit that both have; what the store has behind it is taken back.
            waits: whether to wait where there is nothing yet.
            image: how far an image is; None: the store is none.

        Returns:
            The last commit that it has then.
        """
        pull = _Pull(self._ask)
        writer, own, keys = store.behind(after)
        # What is to be taken back is on its disk still.
        said = {} if own else {**self._standing.said, "image": None if image is None else self._thousandths(image)}
        answer = self._commits(after, writer, wait_ms=self._standing.wait_ms if waits else 0, **said)
        if not own and answer["last"] == after:
            return after

        def parts() -> Iterator[Changes]:
            if own:
                yield {}, {"tail": own}
                for table, some in keys.items():
                    yield from pull.records(table, some)
            yield from self._until_seen(pull, answer, after)

        store.write(parts() if image is None else map(image.due, parts()))
        lsn = store.lsn
        if image is None:
            self._standing.wrote(lsn)
        return lsn

    def _commits(self, after: int, writer: bytes, **said: Any) -> Mapping[str, Any]:
        """What is behind a commit; raises NotFollowed where the server does not have that one.

        Args:
            after: the commit.
            writer: who wrote it.
            said: who asks, where the commit is on the disk of the copy.
        """
        answer: Mapping[str, Any] | None = self._ask("read_commits", {"after": after, "writer": writer, **said})
        if answer is None:
            raise NotFollowed
        return answer

    def _until_seen(self, pull: _Pull, answer: Mapping[str, Any], after: int) -> Iterator[Changes]:
        """What is behind a commit, up to the latest moment of all answers; ``answer``: the first one."""
        while True:
            yield from pull.answered(answer)
            if answer["last"] >= pull.seen:
                return
            if answer["last"] == after:
                raise NotFollowed
            after = answer["last"]
            answer = self._commits(after, pull.writer)

    def _image(self) -> CopyStore:
        """Take an image, from where it was broken off; returns the store of the copy."""
        image = self._files.image
        found = self._follow(image)
        place = None if image is None or found["common"] is None else image.place()
        if image is None or place is None:
            _log.info("= image: begins, of about %s", in_bytes(self._image_bytes))
            place = ImagePlace(0, b"", None, 0)
            image = self._files.begin_image(tuple(found["commit"]))
        else:
            _log.info("= image: goes on, at %.0f %%", self._thousandths(place) / 10)
            self._advance(image, found["common"], waits=False, image=place)
        told = began = time.monotonic()
        while not place.is_whole:
            if self._stopping.is_set():
                raise NotFollowed
            image.write(self._records(place, image.lsn, image.writer(image.lsn)))
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                size, whole = in_bytes(place.bytes), in_bytes(self._image_bytes)
                _log.info("= image: %.0f %% (%s of about %s)", self._thousandths(place) / 10, size, whole)
        store = self._files.complete_image()
        _log.info("= image: complete, %s in %.0f s; the copy follows", in_bytes(place.bytes), time.monotonic() - began)
        return store

    def _thousandths(self, place: ImagePlace) -> int:
        return max(1, min(999, 1000 * place.bytes // max(1, self._image_bytes)))

    def _records(self, place: ImagePlace, after: int, writer: bytes) -> Iterator[Changes]:
        """The next records of an image, the place behind them, and what is behind the last commit of the image."""
        size = 0
        pull = _Pull(self._ask)
        until = time.monotonic() + _WRITTEN_SECONDS
        while not place.is_whole and not self._stopping.is_set():
            began = time.monotonic()
            if size >= _WRITTEN_BYTES or (size and began >= until):
                break
            table = IMAGE_TABLES[place.table]
            arguments = {"table": table, "after": place.after, "until": place.until}
            found = self._ask("read_image", arguments)
            got = 0
            for changes in pull.answered(found):
                got += sum(len(key) + len(value) for key, value in changes[0].get(table, ()))
                yield changes
            place.bytes += got
            size += got
            place.after = found["next"]
            if found["next"] is None:
                place.table, place.after, place.until = place.table + 1, b"", None
            elif place.until is None and place.bytes > self._image_bytes:
                place.until = found["until"]
            if self._image_rate is not None:
                self._stopping.wait(max(0.0, got / self._image_rate - (time.monotonic() - began)))
        yield place.record()
        found = self._commits(after, writer, image=self._thousandths(place), **self._standing.said)
        yield from map(place.due, self._until_seen(pull, found, after))


class _Pull:
    """Answers that make one state: it has all commits up to the latest moment of these.

    What an answer has no room for is asked for by itself.  That is of a later moment, unless it is as it was.  So where
    much is written all the time, a state is reached all the same.

    Args:
        ask: asks the server.

    Attributes:
        seen: the latest moment so far.
        writer: who wrote the last commit in them; empty: there is none.
    """

    def __init__(self, ask: Ask) -> None:
        self.seen = 0
        self.writer = b""
        self._ask = ask

    def answered(self, answer: Mapping[str, Any]) -> Iterator[Changes]:
        """The changes in an answer, and what it had no room for."""
        self.seen = max(self.seen, answer["lsn"])
        changes, rest = unpack_records(answer["records"])
        if "tail" in changes[0]:
            self.writer = writer_of(changes[0]["tail"][-1][1])
        yield changes
        yield from self._read(rest)

    def records(self, table: str, keys: Sequence[bytes]) -> Iterator[Changes]:
        """The present records of keys."""
        return self._read([(table, key, 0, None) for key in keys])

    def _read(self, wanted: Iterable[tuple[str, bytes, int, int | None]]) -> Iterator[Changes]:
        """Ask for records; ``wanted``: table, key, bytes, and the checksum at the latest moment, if it is known."""
        left: deque[tuple[str, bytes, int, int | None]] = deque(wanted)
        while left:
            table, key, size, checksum = left.popleft()
            if size >= LARGE_BYTES:
                value = self._whole(table, key, checksum)
                yield ({}, {table: [key]}) if value is None else ({table: [(key, value)]}, {})
                continue
            checksums = {key: checksum}
            while left and left[0][0] == table and left[0][2] < LARGE_BYTES and len(checksums) < MOST_KEYS:
                _, key, _, checksum = left.popleft()
                checksums[key] = checksum
            found = self._ask("read_records", {"table": table, "keys": list(checksums)})
            changes, rest = unpack_records(found["records"])
            now = {key: crc32(value) for key, value in changes[0].get(table, ())}
            now.update((key, checksum) for _, key, _, checksum in rest)
            if now != checksums:
                self.seen = max(self.seen, found["lsn"])
            yield changes
            left.extend(rest)

    def _whole(self, table: str, key: bytes, checksum: int | None) -> bytes | None:
        """A record in pieces; None: it has gone meanwhile."""
        pieces: list[bytes] = []
        size = lsn = 0
        while True:
            found = self._ask("read_piece", {"table": table, "key": key, "offset": size})
            lsn, piece = max(lsn, found["lsn"]), found["piece"]
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
        value = None if piece is None else b"".join(pieces)
        if value is None or crc32(value) != checksum:
            self.seen = max(self.seen, lsn)
        return value
