"""Regions by ranges of keys, and changes of many keys: what connectors build on.  Needs a Holdfast broker.

A snapshot is a region as of one position of its events.  It reads the same from any process, whatever others put, until
it is gone: it may never be closed, so the broker drops those that are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from broker_adapter import Envelope, UnsupportedOperationException, decode_payload, pack
from sdk.connection import Connection
from sdk.range_reader import CHUNK_BYTES

#: Changes that one request may have.
CHANGES_AT_ONCE = 10_000


class RegionSnapshot(NamedTuple):
    """A region as of one position.

    Attributes:
        token: names it at the broker.
        position: of its last event; the version of none of its keys is greater.
        splits: keys, in the order of their bytes, that divide it into parts of about the size that was asked for.
    """

    token: str
    position: int
    splits: list[str]


class RegionKey(NamedTuple):
    """A key of a region; ``payload`` is its value as it is stored; None where it has none, or none was asked for."""

    key: str
    version: int
    is_valid: bool
    payload: bytes | None

    def envelope(self) -> Envelope | None:
        """The message that carries the value; raises MessageFormatException where it cannot be decoded."""
        return None if self.payload is None else decode_payload(self.payload)


def open_snapshot(connection: Connection, region: str, keys_per_part: int = 0) -> RegionSnapshot:
    """Open a snapshot of a region, as of now.

    Args:
        connection: to a Holdfast broker.
        region: its name.
        keys_per_part: about how many keys a part is to have; 0: it is not divided.

    Raises:
        InvalidDestinationException: there is no such region.
        UnsupportedOperationException: the broker has no regions.
        ResourceAllocationException: too many snapshots are being read.
    """
    _require_regions(connection)
    answer = connection.request("open_snapshot", {"region": region, "keys_per_part": keys_per_part})
    return RegionSnapshot(answer["snapshot"], answer["position"], list(answer["splits"]))


def close_snapshot(connection: Connection, region: str, snapshot: str) -> bool:
    """Close a snapshot of a region, by its token; returns whether it was open."""
    was_open: bool = connection.request("close_snapshot", {"region": region, "snapshot": snapshot})
    return was_open


def read_keys(
    connection: Connection,
    region: str,
    snapshot: str | None = None,
    after: str | None = None,
    through: str | None = None,
    *,
    values: bool = True,
    expression: str | None = None,
    selector: str | None = None,
    max_bytes: int = CHUNK_BYTES,
    on_damaged: Callable[[list[str]], None] | None = None,
) -> Iterator[tuple[list[RegionKey], str | None]]:
    """The keys of a range, in order, a list for each answer of the broker.

    Args:
        connection: to a Holdfast broker.
        region: its name.
        snapshot: token of one; None: what is there as each answer is made.
        after: the keys behind this one; None: from the first on.
        through: the last key that is wanted; None: the last there is.
        values: whether their values are wanted.
        expression: the keys that match this regular expression (RE2) as a whole; None: all.
        selector: those whose values match it; None: all.
        max_bytes: of values that one answer brings, about.
        on_damaged: called with the keys whose values have a wrong checksum, which are then left out; None: such a value
            is an error.

    Yields:
        Keys, and behind which key reading goes on; None: there are no more.

    Raises:
        InvalidDestinationException: there is no such region; or the snapshot is gone, and there were events since.
        StoreCorruptException: a value cannot be trusted, and there is no ``on_damaged``.
    """
    while True:
        arguments = {
            "region": region,
            "snapshot": snapshot,
            "after": after,
            "through": through,
            "values": values,
            "expression": expression,
            "selector": selector,
            "max_bytes": max_bytes,
            "skip_damaged": on_damaged is not None,
        }
        answer = connection.request("read_keys", arguments)
        found = [RegionKey(key, version, state == 0, payload) for key, version, state, _, payload in answer["entries"]]
        if on_damaged is not None and answer["damaged"]:
            on_damaged(answer["damaged"])
        after = answer["next"]
        yield found, after
        if after is None:
            return


def create_region(connection: Connection, region: str) -> None:
    """Make sure that a region exists.

    Raises:
        UnsupportedOperationException: the broker has no regions.
        InvalidDestinationException: it cannot have this name.
    """
    _require_regions(connection)
    connection.request("create_region", {"region": region})


def change_keys(connection: Connection, region: str, changes: Sequence[tuple[str, int, Envelope]]) -> Any:
    """Change keys, in order; what is asked for again, under the same identities, is done once.

    Args:
        connection: to a Holdfast broker.
        region: its name.
        changes: key, what is wanted of it, and the message that tells of it; of a put its value.

    Returns:
        (operation, version) of each; the operation is None where nothing has changed.

    Raises:
        MessageFormatException, ResourceAllocationException: some may have been done, the first ones first.
    """
    packed = [(key, wanted, pack(envelope)) for key, wanted, envelope in changes]
    return connection.request("change_keys", {"region": region, "changes": packed})


def _require_regions(connection: Connection) -> None:
    if not connection.is_holdfast:
        raise UnsupportedOperationException("only a Holdfast broker has regions")
