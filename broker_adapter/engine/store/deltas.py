"""What a copy asks of the store that it follows: the present records of keys, and of ranges of keys.  Pure.

Theory of operation
    What a copy lacks is read in one snapshot: the keys that the commits behind its last one changed
    (:mod:`~broker_adapter.engine.records.tail`), and the present records of these keys.  So it gets the state of the
    snapshot, whatever its own was, and nothing of what came and went in between.

    That may take several answers, each with an lsn as of its own snapshot; so may an image, which is all records by
    ranges of keys.  A record that was read too early or too late is among those that the commits in between changed.
    So a copy has a state that the store had as soon as it has all commits up to the highest lsn of all its answers.

    Of large records, and of all that is too much for one answer, an answer has the checksums.  Where a record that is
    asked for by itself still has this one, it is as of the answer's snapshot.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from broker_adapter.engine.records.layout import COPY_OF, IMAGE, TABLES
from broker_adapter.engine.records.tail import Keys, Span, decode_commit, lsn_key, spans, writer_of
from broker_adapter.engine.store.changes import Changes
from broker_adapter.engine.store.port import StoreSnapshot
from broker_adapter.errors import StoreCorruptException

#: Bytes of a record from which on it is asked for in pieces.
LARGE_BYTES: Final = 4 * 1024 * 1024
#: Bytes of records that an answer has at most; few commits have more.
_FULL_BYTES: Final = 24 * 1024 * 1024
#: A record needs room for so many of its size: the small ones, which change often, are in the answer all the same.
_SHARE: Final = 4
#: What a record takes beside its bytes, about.
_RECORD_BYTES: Final = 16
#: The tables of an image, in order.  The tail is none: a copy has the commits since its image began.
IMAGE_TABLES: Final = tuple(table for table in TABLES if table != "tail")
#: What a store notes of itself in the table ``meta``.
_OWN: Final = frozenset({COPY_OF, IMAGE})
_LAST_KEY: Final = b"\xff" * 9  #: behind all keys of the tail


#: (table, key, bytes, CRC-32) of records that are to be asked for by themselves.
Rest = Sequence[tuple[str, bytes, int, int]]


class Answer(NamedTuple):
    """Records as of one snapshot."""

    lsn: int  #: of the snapshot
    changes: Changes
    rest: Rest


class Digest(NamedTuple):
    """What some records of a table in the order of their keys are known by."""

    records: int
    digest: bytes
    last: bytes | None  #: the last key that was read; None: nothing is behind these


class Chunk(NamedTuple):
    """Records of a table in the order of their keys."""

    answer: Answer
    last: bytes | None  #: the last key that was read; None: nothing is behind these


def lsn_of(records: StoreSnapshot) -> int:
    """The lsn of a store; 0: it is not followed."""
    last = records.item_before("tail", _LAST_KEY)
    return 0 if last is None else int.from_bytes(last[0])


def spans_of(records: StoreSnapshot) -> list[Span]:
    """Who wrote the commits that a store remembers."""
    return spans(records.items("tail"))


def has_commit(records: StoreSnapshot, lsn: int, writer: bytes) -> bool:
    """Return whether a store has this commit of this writer."""
    value = records.get("tail", lsn_key(lsn))
    return value is not None and writer_of(value) == writer


def changes_behind(records: StoreSnapshot, lsn: int, most_bytes: int) -> tuple[Answer, int]:
    """What the commits behind one of a store have changed, as it is now.

    Args:
        records: of the store, which remembers that commit.
        lsn: of it.
        most_bytes: about; one commit at least is answered.

    Returns:
        The records, with those of the tail itself, and the lsn of the last commit that was answered.

    Raises:
        StoreCorruptException: a record of the tail is damaged.
    """
    seen: dict[str, set[bytes]] = {}
    reads = _Reads(records)
    tail, last, expected = [], lsn, lsn + 1
    for key, value in records.items_from("tail", lsn_key(lsn + 1)):
        if reads.bytes > most_bytes:
            break
        commit = decode_commit(key, value)
        if commit.lsn != expected:
            raise StoreCorruptException(f"commit {expected} is missing in the table tail")
        expected += 1
        for table, keys in commit.keys.items():
            known = seen.setdefault(table, set())
            for each in keys:
                if each not in known:
                    known.add(each)
                    reads.read(table, each)
        tail.append((key, value))
        reads.bytes += len(value)
        last = commit.lsn
    if tail:
        reads.puts["tail"] = tail
    return reads.answer(), last


def records_of(records: StoreSnapshot, keys: Keys) -> Answer:
    """The present records of these keys; those that are not there are deleted."""
    reads = _Reads(records)
    for table, some in keys.items():
        for key in some:
            reads.read(table, key)
    return reads.answer()


def chunk_behind(records: StoreSnapshot, table: str, after: bytes, until: bytes, most_bytes: int) -> Chunk:
    """The records of a table behind a key.

    Args:
        records: of the store.
        table: its name.
        after: a key; empty: from the first one on.
        until: the last key of interest: what came behind it is in the commits since.
        most_bytes: about; one record at least is answered.
    """
    reads = _Reads(records)
    for key, value in records.items_from(table, after + b"\0" if after else b""):
        if key > until:
            break
        reads.take(table, key, value)
        if reads.bytes > most_bytes and key < until:
            return Chunk(reads.answer(), key)
    return Chunk(reads.answer(), None)


def changed_behind(records: StoreSnapshot, lsn: int, table: str, most_keys: int) -> set[bytes] | None:
    """The keys of a table that the commits behind one have changed.

    Args:
        records: of the store.
        lsn: of the commit.
        table: its name.
        most_keys: of all tables that these commits may have; None is returned where they have more.

    Raises:
        StoreCorruptException: a record of the tail is damaged.
    """
    found: set[bytes] = set()
    for key, value in records.items_from("tail", lsn_key(lsn + 1)):
        keys = decode_commit(key, value).keys
        most_keys -= sum(map(len, keys.values()))
        if most_keys < 0:
            return None
        found.update(keys.get(table, ()))
    return found


def digest_behind(
    records: StoreSnapshot,
    table: str,
    after: bytes,
    without: Container[bytes],
    *,
    until: bytes | None = None,
    most_bytes: int | None = None,
) -> Digest:
    """What the records of a table behind a key are known by, but for what each store notes of itself.

    Args:
        records: of the store.
        table: its name.
        after: a key; empty: from the first one on.
        without: keys that do not count.
        until: the last key that counts; None: there is none.
        most_bytes: about; one record at least is read.
    """
    digest, count, size = blake2b(digest_size=16), 0, 0
    for key, value in records.items_from(table, after + b"\0" if after else b""):
        if until is not None and key > until:
            break
        if key not in without and not (table == "meta" and key in _OWN):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
            count += 1
        size += len(key) + len(value) + _RECORD_BYTES
        if most_bytes is not None and size > most_bytes:
            return Digest(count, digest.digest(), key)
    return Digest(count, digest.digest(), None)


def last_key(records: StoreSnapshot, table: str) -> bytes:
    """The last key of a table; empty: it has none."""
    last = records.item_before(table, b"\xff" * 512)
    return b"" if last is None else last[0]


def tail_keys(records: StoreSnapshot, behind: int) -> tuple[list[bytes], Keys]:
    """The keys of the tail's own records behind a commit, and the keys that these commits changed, by table."""
    own: list[bytes] = []
    keys: dict[str, dict[bytes, None]] = {}
    for key, value in records.items_from("tail", lsn_key(behind + 1)):
        own.append(key)
        for table, some in decode_commit(key, value).keys.items():
            keys.setdefault(table, {}).update(dict.fromkeys(some))
    return own, {table: list(some) for table, some in keys.items()}


class _Reads:
    """Records that are read for one answer."""

    def __init__(self, records: StoreSnapshot) -> None:
        self.puts: dict[str, list[tuple[bytes, bytes]]] = {}
        self.bytes = 0
        self._records = records
        self._answered = 0
        self._deletes: dict[str, list[bytes]] = {}
        self._rest: list[tuple[str, bytes, int, int]] = []

    def read(self, table: str, key: bytes) -> None:
        value = self._records.get(table, key)
        if value is None:
            self._deletes.setdefault(table, []).append(key)
            self.bytes += len(key) + _RECORD_BYTES
        else:
            self.take(table, key, value)

    def take(self, table: str, key: bytes, value: bytes) -> None:
        size = len(value)
        if size >= LARGE_BYTES or self._answered + _SHARE * size > _FULL_BYTES:
            self._rest.append((table, key, size, crc32(value)))
        else:
            self.puts.setdefault(table, []).append((key, value))
            self._answered += len(key) + size
        self.bytes += len(key) + size + _RECORD_BYTES

    def answer(self) -> Answer:
        return Answer(lsn_of(self._records), (self.puts, self._deletes), self._rest)
