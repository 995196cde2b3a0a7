"""The table ``tail``: what each of the last commits changed, by keys alone, so that a copy can follow.  Pure.

Theory of operation
    Commits of a store that is followed have numbers, one after the other: the *lsn* (log sequence number).  With a
    commit goes a record that has its number as key, and names the keys that the commit changed.  The last record has
    the lsn of the store.

    With it stands a word of whoever wrote the commit: each opening of a store for writing has a word of its own.  So
    a word and an lsn name one commit, and two stores that both have it were equal behind it.  Behind the last commit
    that they have in common, each of them has its own: a store that was restored from a backup, or a server that was
    replaced by its copy while it was away.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgpack

from broker_adapter.engine.records.layout import MESSAGE_KEY_BYTES, message_key
from broker_adapter.errors import StoreCorruptException

#: The name of a copy, or of a node of a group.
NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ADDRESS: Final = re.compile(r"(?=.{3,255}$)(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
#: Bytes of the word of whoever writes.
WRITER_BYTES: Final = 8
_head = struct.Struct(f">I{WRITER_BYTES}s")
lsn_key = message_key  #: the key of a commit: records sort by it

#: Keys by table.
Keys = Mapping[str, Sequence[bytes]]


def is_address(text: str) -> bool:
    """Return whether a text says where a node is: HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[2]) < 65536


class Commit(NamedTuple):
    """One commit: its number, who wrote it, and the keys that it changed, by table."""

    lsn: int
    writer: bytes
    keys: Keys


class Span(NamedTuple):
    """Commits one after the other that one writer wrote."""

    writer: bytes
    first: int
    last: int


def encode_commit(lsn: int, writer: bytes, keys: Keys) -> tuple[bytes, bytes]:
    """The record of a commit: key and value; the checksum covers both."""
    key, body = lsn_key(lsn), msgpack.packb(keys)
    return key, _head.pack(crc32(body, crc32(writer, crc32(key))), writer) + body


def writer_of(value: bytes) -> bytes:
    """Who wrote the commit of a record that was checked before."""
    writer: bytes = _head.unpack_from(value)[1]
    return writer


def is_sound(key: bytes, value: bytes) -> bool:
    """Return whether a record is as it was written."""
    if len(key) != MESSAGE_KEY_BYTES or len(value) <= _head.size:
        return False
    crc: int = _head.unpack_from(value)[0]
    return crc32(memoryview(value)[4:], crc32(key)) == crc


def decode_commit(key: bytes, value: bytes) -> Commit:
    """The commit of a record; raises StoreCorruptException."""
    if not is_sound(key, value):
        raise StoreCorruptException(f"record {key.hex()} of table tail fails its checksum")
    return Commit(int.from_bytes(key), writer_of(value), msgpack.unpackb(value[_head.size :]))


def spans(records: Iterable[tuple[bytes, bytes]]) -> list[Span]:
    """Return who wrote the commits of a tail, behind the last record that is missing or damaged.

    Args:
        records: in order.
    """
    found: list[Span] = []
    writer, first, last = b"", 0, 0
    for key, value in records:  # a hundred thousand, perhaps
        if not is_sound(key, value):
            found.clear()
            writer = b""
            continue
        lsn, wrote = int.from_bytes(key), writer_of(value)
        if writer and last + 1 != lsn:
            found.clear()
            writer = b""
        if wrote != writer:
            if writer:
                found.append(Span(writer, first, last))
            writer, first = wrote, lsn
        last = lsn
    if writer:
        found.append(Span(writer, first, last))
    return found


def common_lsn(ours: Iterable[Span], theirs: Iterable[Span]) -> int | None:
    """Return the last commit that two tails have in common; None: there is none, or no longer."""
    first = {each.writer: each for each in theirs}
    return max(
        (
            min(each.last, other.last)
            for each in ours
            if (other := first.get(each.writer)) is not None
            and max(each.first, other.first) <= min(each.last, other.last)
        ),
        default=None,
    )
