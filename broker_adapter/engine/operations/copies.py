"""The operations by which a copy follows a store.

Theory of operation
    A copy asks, and the server that it follows answers from a snapshot of its store, beside the engine
    (:mod:`broker_adapter.engine.store.deltas`).  ``follow`` finds the last commit that both have.  From there on
    ``read_commits`` brings what changed behind the last commit that the copy has on its disk; where there is nothing,
    the answer waits for the next commit.  So each of these requests also says how far the copy is.

    What a copy has beyond the last commit in common it takes back: ``read_records`` brings the present records of the
    keys that it changed.  A copy that has nothing in common with the store takes all records, by ``read_image``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from broker_adapter.engine.operations.copy_states import FollowedEngine, NodeThatAsks
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Beside, Request, Steps, Threads, argument, fields_of, request
from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.engine.records.tail import NODE_NAME, WRITER_BYTES, Span, common_lsn, is_address
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.deltas import (
    IMAGE_TABLES,
    Answer,
    Rest,
    changed_behind,
    changes_behind,
    chunk_behind,
    digest_behind,
    has_commit,
    last_key,
    lsn_of,
    records_of,
    spans_of,
)
from broker_adapter.engine.store.port import StoreSnapshot
from broker_adapter.errors import MessageFormatException, StoreCorruptException

_log = logging.getLogger(f"holdfast.{__name__}")

#: Most bytes of records in an answer, but for one record.
ANSWER_BYTES: Final = 1024 * 1024
#: Keys and spans that one request may name, and bytes of one piece of a record.
MOST_KEYS: Final = 10_000
MOST_SPANS: Final = 1000
PIECE_BYTES: Final = 8 * 1024 * 1024
#: Longest wait for a commit, in milliseconds, and how often it is seen meanwhile whether the copy is still there.
MOST_WAIT_MS: Final = 30_000
_LOOK_SECONDS: Final = 0.5


@request(Threads.SHORT)
class CopiesRequest(Request):
    """``lsn``: the number of the last commit, 0 where no copy has followed this store; ``tail``: that of the first one
    from which a copy can catch up; ``copies``: a list of maps: ``node``, ``lsn``, ``behind`` (commits), ``behind_ms``
    (how long ago it had everything; None: never since the server was started), ``seen_ms`` (how long ago it asked last)
    and ``image`` (None, or how much of one it has, in thousandths); ``group``: None, or a map: ``term``, ``primary``,
    ``in_sync`` and ``nodes`` (their addresses by name), ``min_in_sync`` and ``released`` (the last commit that is
    confirmed).
    """

    def steps(self, client: int) -> Steps:
        def look(engine: FollowedEngine) -> dict[str, Any]:
            with engine.store.snapshot() as records:
                last = lsn_of(records)
                first = next((int.from_bytes(key) for key, _ in records.items("tail")), 0)
            copies, group = engine.copies.described(last, time.monotonic()), engine.copies.group
            return {"lsn": last, "tail": first, "copies": copies, "group": group and group.status()}

        return (yield Beside(look))


@fields_of
class OfCopy(Request):
    """The requests of a copy."""

    def steps(self, client: int) -> Steps:
        def look(engine: FollowedEngine) -> Any:
            try:
                with engine.store.snapshot() as records:
                    return self.read(engine, records)
            except Exception as error:
                if engine.copies.group is not None:
                    engine.copies.group.has_failed(error)
                raise

        return (yield Beside(look))

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        """The answer, from a snapshot."""
        raise NotImplementedError


@request(Threads.FOLLOWING, right="follow")
class FollowRequest(OfCopy):
    """``common``: the last commit that both stores have, None where there is none that both remember; ``lsn``: the last
    commit; ``unique``: what the store is known by; ``version``: of its layout; ``bytes``: about how many an image has;
    ``commit``: the record of the last commit, with which an image begins.
    """

    node: str = argument(note="the name of the copy")
    spans: Sequence[Any] = argument(
        most_values=MOST_SPANS, note="the commits that it remembers: a list of [writer, first, last]"
    )

    def check(self) -> None:
        """Refuse a name that is none."""
        _check_name(self.node)

    def steps(self, client: int) -> Steps:
        # What is read between two cycles waits for its release, and that of a group for this copy.
        if (yield Beside(lambda engine: engine.store.tail is None)):
            yield Reader.begin_tail
        return (yield from super().steps(client))

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        lsn = lsn_of(records)
        common = common_lsn(spans_of(records), map(_span, self.spans))
        return {
            "common": common,
            "lsn": lsn,
            "unique": engine.store.unique,
            "version": STORE_VERSION,
            "bytes": engine.store.used_bytes,
            "commit": records.item_before("tail", b"\xff" * 9),
        }


@request(Threads.FOLLOWING, right="follow")
class ReadCommitsRequest(OfCopy):
    """What changed behind a commit, and is there now: ``lsn``: of the store; ``last``: the last commit of this answer;
    ``records``: msgpack of what is put by table, (key, record) each, of the keys by table that are deleted, and of
    (table, key, bytes, CRC-32) of the records that are to be asked for by themselves, the largest ones in pieces.
    None: the store does not have that commit, or no longer.
    """

    node: str | None = argument(None, note="the name of the copy; without it, its state is not to be noted")
    after: int = argument(note="the last commit that the copy has on its disk")
    writer: bytes = argument(note="who wrote that commit")
    wait_ms: int = argument(0, most=MOST_WAIT_MS, note="longest wait for a commit behind that one")
    image: int | None = argument(None, most=1000, note="how much the copy has of an image, in thousandths")
    term: int | None = argument(None, note="of a node of the group of the server: the term that it knows")
    address: str | None = argument(None, note="of a node of the group: HOST:PORT")

    def check(self) -> None:
        """Refuse names and addresses that are none: those of nodes are told to all others."""
        if self.node is not None:
            _check_name(self.node)
        if self.term is not None and (self.node is None or not is_address(self.address or "")):
            raise MessageFormatException("the argument 'term' needs the arguments 'node', and 'address' as HOST:PORT")

    def steps(self, client: int) -> Steps:
        deadline = time.monotonic() + self.wait_ms / 1000

        def note(engine: FollowedEngine) -> bool:
            tail = engine.store.tail
            with engine.store.snapshot() as records:
                if tail is None or not has_commit(records, self.after, self.writer):
                    return False
            if self.node is not None:
                if engine.copies.group is not None and self.term is not None:
                    asks = NodeThatAsks(self.node, self.address or "", self.term)
                    engine.copies.group.asks(asks, self.after if self.image is None else None)
                engine.copies.asks(self.node, self.after, self.image, tail.lsn, time.monotonic())
            return True

        def wait(engine: FollowedEngine) -> bool:
            left, tail = deadline - time.monotonic(), engine.store.tail
            if tail is None or left <= 0 or tail.lsn > self.after:
                return True
            tail.wait_behind(self.after, min(left, _LOOK_SECONDS))
            if self.node is not None:
                engine.copies.has_waited(self.node, time.monotonic())
            return tail.lsn > self.after

        if not (yield Beside(note)):
            return None
        while not (yield Beside(wait)):
            pass
        return (yield from super().steps(client))

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        if not has_commit(records, self.after, self.writer):
            return None
        try:
            answer, last = changes_behind(records, self.after, ANSWER_BYTES)
        except StoreCorruptException as error:
            _log.error("! the copy %r has to begin again with an image: %s", self.node, error)
            return None
        return {**_plain(answer), "last": last}


@request(Threads.FOLLOWING, right="follow")
class ReadRecordsRequest(OfCopy):
    """The present records of keys: ``lsn`` and ``records``, as ``read_commits`` has them."""

    table: str = argument()
    keys: Sequence[bytes] = argument(most_values=MOST_KEYS)

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        return _plain(records_of(records, {_known(self.table): self.keys}))


@request(Threads.FOLLOWING, right="follow")
class ReadImageRequest(OfCopy):
    """The records of a table behind a key: ``lsn`` and ``records``, as ``read_commits`` has them; ``until``: the last
    key of the table when its first records were read; ``next``: what the next request has as ``after``, None: that was
    all of this table.
    """

    table: str = argument()
    after: bytes = argument(b"", note="a key; empty: from the first one on")
    until: bytes | None = argument(None, note="as the first answer has it")

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        table = _known(self.table)
        until = last_key(records, table) if self.until is None else self.until
        chunk = chunk_behind(records, table, self.after, until, ANSWER_BYTES)
        return {**_plain(chunk.answer), "until": until, "next": chunk.last}


@request(Threads.FOLLOWING, right="follow")
class ReadPieceRequest(OfCopy):
    """A part of a record: ``lsn``, and ``piece``: bytes; less than were asked for at its end, None where there is no
    such record.
    """

    table: str = argument()
    key: bytes = argument()
    offset: int = argument(0)

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        value = records.get(_known(self.table), self.key)
        piece = None if value is None else value[self.offset : self.offset + PIECE_BYTES]
        return {"lsn": lsn_of(records), "piece": piece}


@request(Threads.FOLLOWING, right="follow")
class ReadDigestRequest(OfCopy):
    """What the records of a table behind a key are known by, but for those that commits behind one have changed:
    ``records``, how many, and their ``digest``; ``changed``: the keys of the others, as far as the records were read;
    ``last``: the last key that was read, None: that was all of the table.  None: the store does not have that commit,
    or no longer, or more than 10,000 keys have changed.
    """

    commit: int = argument(note="the last commit of the copy")
    writer: bytes = argument(note="who wrote that commit")
    table: str = argument()
    after: bytes = argument(b"", note="a key; empty: from the first one on")
    most_bytes: int = argument(ANSWER_BYTES, most=ANSWER_BYTES, note="of the records that are read, about")

    def read(self, engine: FollowedEngine, records: StoreSnapshot) -> Any:
        table = _known(self.table)
        if not has_commit(records, self.commit, self.writer):
            return None
        changed = changed_behind(records, self.commit, table, MOST_KEYS)
        if changed is None:
            return None
        found = digest_behind(records, table, self.after, changed, most_bytes=self.most_bytes)
        keys = [key for key in changed if key > self.after and (found.last is None or key <= found.last)]
        return {**found._asdict(), "changed": keys}


def _span(given: Any) -> Span:
    """A span, as a copy has sent it; raises MessageFormatException."""
    if (
        isinstance(given, list | tuple)
        and len(given) == 3
        and isinstance(given[0], bytes)
        and len(given[0]) == WRITER_BYTES
        and type(given[1]) is type(given[2]) is int
    ):
        return Span(*given)
    raise MessageFormatException("the argument 'spans' is no list of [writer, first, last]")


def _check_name(node: str) -> None:
    if not NODE_NAME.fullmatch(node):
        raise MessageFormatException(
            "the argument 'node' is a name of 1 to 64 letters, digits, dots, dashes and underscores"
        )


def _known(table: str) -> str:
    if table not in IMAGE_TABLES:
        raise MessageFormatException(f"there is no table {table!r:.100}")
    return table


def _plain(answer: Answer) -> dict[str, Any]:
    return {"lsn": answer.lsn, "records": pack_records(answer)}


def pack_records(answer: Answer) -> bytes:
    """The records of an answer in one text of bytes: what unpacks an answer looks at each member of its lists."""
    packed: bytes = msgpack.packb((*answer.changes, answer.rest))
    return packed


def unpack_records(packed: bytes) -> tuple[Changes, Rest]:
    """The records of an answer, of a server that is trusted with the whole store."""
    puts, deletes, rest = msgpack.unpackb(packed, use_list=False)
    return (puts, deletes), rest
