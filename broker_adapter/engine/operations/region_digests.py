"""The operation by which the regions of two sites are compared without sending their values.

Theory of operation
    The digest of a range of keys is the sum of those of its keys, so the digests of two neighbouring ranges add up to
    that of both, wherever an answer ends.  A key that was destroyed counts as one that is not there: how long a
    tombstone stays is a matter of each site.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, up_to
from broker_adapter.engine.regions.key_records import KeyRecord, KeyState
from broker_adapter.engine.store.stores import Message

#: Keys of one answer, and about how many bytes their values have at most; and keys of one step, for which others wait.
MAX_DIGESTED: Final = 10_000
_MOST_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 500
_DIGEST_BYTES: Final = 16
_SUM_MASK: Final = (1 << 8 * _DIGEST_BYTES) - 1
_stamp: Final = struct.Struct(">QB")
_format: Final = struct.Struct(">I")


class _Page(NamedTuple):
    """Keys that were read in one step."""

    found: Sequence[tuple[str, int, int, bytes]]  #: (key, time and site of its stamp, digest) each
    seen: int  #: how many were examined
    size: int  #: bytes of their values
    next: str | None  #: the last one that was; None: there are no more


@request(Threads.READING)
class RegionDigestRequest(Request):
    """``digest``: of the keys behind ``after``, up to ``through``, with their values and the stamps of their changes.

    It is the sum of those of the keys, in 16 bytes, so that digests of ranges add up.  ``count``: how many keys are
    there; ``next``: the last key that was examined, where there are more, else None; ``keys``: with ``each``, (key,
    time of its stamp, site of it, digest) of each, by the keys' bytes.
    """

    region: str = argument(names=Names.TOPIC)
    after: str | None = argument(None, note="a key, of all those behind it")
    through: str | None = argument(None, note="a key, the last one that is wanted")
    limit: int = argument(1000, least=1, most=MAX_DIGESTED, note="keys that are examined")
    each: bool = argument(False)

    def steps(self, client: int) -> Steps:
        digest = count = size = 0
        keys: list[tuple[str, int, int, bytes]] = []
        left, after = self.limit, self.after
        while True:
            page: _Page = yield partial(self._page, after, min(left, _AT_ONCE))
            digest += sum([int.from_bytes(each[3]) for each in page.found])
            count += len(page.found)
            keys += page.found if self.each else ()
            left, size, after = left - page.seen, size + page.size, page.next
            if not left or after is None or size > _MOST_BYTES:
                break
        whole = (digest & _SUM_MASK).to_bytes(_DIGEST_BYTES)
        return {"digest": whole, "count": count, "next": after, "keys": keys if self.each else None}

    def _page(self, after: str | None, limit: int, reader: Reader) -> _Page:
        region = reader.state.events.region(self.region)
        keys = reader.keys_behind(region.id, after, limit)
        has_more = len(keys) == limit
        if self.through is not None:
            last = self.through.encode()
            within = [each for each in keys if each.key.encode() <= last]
            has_more = has_more and len(within) == len(keys) and within[-1].key != self.through
            keys = within
        taken = up_to(MAX_RANGE_BYTES, [each.size for each in keys])
        keys, has_more = keys[:taken], has_more or taken < len(keys)
        found = [
            (stored.key, *stored.record.stamp, _digest(stored.key, stored.record, value))
            for stored, value in zip(keys, reader.values(keys), strict=True)
            if stored.record is not None and stored.record.state is not KeyState.TOMBSTONE
        ]
        size = sum([each.size for each in keys])
        return _Page(found, len(keys), size, keys[-1].key if has_more else None)


def _digest(key: str, record: KeyRecord, value: Message | None) -> bytes:
    """Return the digest of a key and its value; None: it has none, or one that cannot be trusted."""
    made = blake2b(_stamp.pack(*record.stamp), digest_size=_DIGEST_BYTES, person=b"holdfast region")
    name = key.encode(errors="surrogatepass")
    made.update(_format.pack(len(name)) + name)
    if value is not None:
        made.update(_format.pack(value[0]))
        made.update(value[1])
    return made.digest()
