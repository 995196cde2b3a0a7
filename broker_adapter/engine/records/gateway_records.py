"""The form on disk of a gateway: where it sends, what it takes, and what it has counted.

==========  ==========================  ===============================================================================
table       key                         value
==========  ==========================  ===============================================================================
gateways    name, in UTF-8              crc u32 over key and value, msgpack array of :data:`_FORM` and the fields of
                                        :class:`GatewayRecord` but for those of the next line
gateways    NUL, name                   the same with its ``applied`` and ``counters``
==========  ==========================  ===============================================================================

The counters are written with each commit that they see, so that they are right after any crash; the rest, in which the
URL may have a password, only when it changes.  An entry of its queue has the number of its destination, from 1 on, in
place of that of a message group, and a step in place of a count of deliveries (:mod:`engine.queues.gateway_queue`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgpack

from broker_adapter.engine.records.layout import newer
from broker_adapter.errors import StoreCorruptException

_FORM: Final = 1
#: Messages of one batch.
MAX_BATCH: Final = 10_000
#: The greatest number of a site; the least is 1.
MAX_SITE: Final = 255
#: What a gateway may be doing; while it is stopped, nothing is queued for it.
STATES: Final = ("created", "running", "paused", "stopped")
#: What the name of a destination begins with, by what it is; a queue that is moved goes to the other site only.
DESTINATION_KINDS: Final = ("queue", "topic", "region", "move")
_MOVED: Final = "move:"


class GatewayCounters(NamedTuple):
    """What was counted since the gateway was created.

    received = queued + filtered + not_queued, and queued = distributed + refused + conflated + expired + dropped + lost
    + waiting.
    """

    received: int = 0  #: messages of its destinations
    filtered: int = 0  #: left out: the selector did not want them, or the other site had seen them
    not_queued: int = 0  #: came while it was stopped
    distributed: int = 0  #: confirmed by the other site
    refused: int = 0  #: the other site did not want them
    expired: int = 0  #: while they waited
    dropped: int = 0  #: by a clean start
    batches: int = 0  #: that were ended
    batches_with_incomplete_transactions: int = 0  #: in which a part of a transaction was missing, with grouping
    divided_transactions: int = 0  #: of which a part went by other gateways, with grouping
    conflated: int = 0  #: updates that were not sent, since a later one of the same key was, with conflation

    @property
    def queued(self) -> int:
        """Messages that came in to be sent."""
        return self.received - self.filtered - self.not_queued


class GatewayRecord(NamedTuple):
    """What a restart must know of a gateway."""

    url: str  #: of the other site, with its password
    destinations: Sequence[str]  #: kind and name of each, divided by a colon
    selector: str | None = None
    batch_messages: int = 1000
    batch_bytes: int = 1 << 20
    batch_ms: int = 1000  #: for how long a batch may be waited for
    alert_ms: int = 0  #: for how long a message may wait before the log says so; 0: any time
    group_transaction_events: bool = False  #: whether a batch has all of each transaction
    batch_conflation: bool = False  #: whether a batch has only the last of the updates of a key
    fetches: bool = False  #: whether it takes messages from the other site, and sends none there
    selector_from: int = 0  #: the position of the first message that the selector chooses among
    selector_before: str | None = None  #: the selector of those ahead of it
    state: str = "stopped"  #: one of :data:`STATES`
    first_message: int = 0  #: messages of its queues with a number from this one on came while it was there
    copied: Sequence[int] = ()  #: numbers of the destinations of which a copy was begun
    applied: int = 0  #: the last position that the other site has confirmed
    counters: GatewayCounters = GatewayCounters()

    @property
    def options(self) -> Sequence[Any]:
        """Where it sends what, and how."""
        return self[: self._fields.index("state")]


#: What is known of a gateway whose record is lost: it sends nothing, and keeps what it has.
UNKNOWN: Final = GatewayRecord("", ())
_KINDS: Final[tuple[Any, ...]] = (
    *(str, list, (str, type(None)), int, int, int, int, bool, bool, bool),
    *(int, (str, type(None)), str, int, list),
)
_PROGRESS_KINDS: Final[tuple[Any, ...]] = (int, list)
_STATE: Final = GatewayRecord._fields.index("state")


def gateway_key(name: str) -> bytes:
    """The key of a record."""
    return name.encode()


def progress_key(name: str) -> bytes:
    """The key of the record of the counters; no name has a NUL."""
    return b"\0" + name.encode()


def is_progress(key: bytes) -> bool:
    """Return whether a key is that of a record of counters."""
    return key[:1] == b"\0"


def kept_of(record: GatewayRecord) -> Sequence[Any]:
    """Return what the first of the two records has."""
    return record[: len(_KINDS)]


def encode_gateway(key: bytes, record: GatewayRecord) -> bytes:
    """The record of a gateway, without its counters."""
    return _encoded(key, kept_of(record))


def encode_progress(key: bytes, record: GatewayRecord) -> bytes:
    """The record of the counters of a gateway."""
    return _encoded(key, record[len(_KINDS) :])


def _encoded(key: bytes, fields: Sequence[Any]) -> bytes:
    body: bytes = msgpack.packb([_FORM, *fields])
    return crc32(body, crc32(key)).to_bytes(4) + body


def decode_gateway(key: bytes, value: bytes) -> GatewayRecord:
    """The record of a gateway, whose counters stand elsewhere.

    Raises:
        StoreCorruptException: it cannot be trusted.
        StoreVersionException: newer software has written it.
    """
    fields = _decoded(key, value, _KINDS)
    if fields[_STATE] not in STATES:
        raise StoreCorruptException(f"record {key.hex()} of a gateway has a state that none can have")
    return GatewayRecord(*fields)


def decode_progress(key: bytes, value: bytes) -> tuple[int, GatewayCounters]:
    """``applied`` and ``counters`` of a gateway; raises as ``decode_gateway``."""
    applied, counters = _decoded(key, value, _PROGRESS_KINDS)
    if len(counters) > len(GatewayCounters._fields):
        raise newer(f"record {key.hex()} of a gateway has more counters than this software knows")
    return applied, GatewayCounters(*counters)


def _decoded(key: bytes, value: bytes, kinds: Sequence[Any]) -> Sequence[Any]:
    body = value[4:]
    if not body or int.from_bytes(value[:4]) != crc32(body, crc32(key)):
        raise StoreCorruptException(f"record {key.hex()} of a gateway fails its checksum")
    found: Any = msgpack.unpackb(body)
    fields: list[Any] = found[1 : 1 + len(kinds)] if type(found) is list and found[:1] == [_FORM] else []
    if len(fields) < len(kinds) or not all(map(_is_of, fields, kinds)):
        raise StoreCorruptException(f"record {key.hex()} of a gateway has fields that do not fit")
    if len(found) > 1 + len(kinds):
        raise newer(f"record {key.hex()} of a gateway has more fields than this software knows")
    return fields


def _is_of(value: Any, kind: Any) -> bool:
    return isinstance(value, kind)


def destination_of(text: str) -> tuple[str, str]:
    """(kind, name) of a destination of a gateway; raises ValueError where it is none."""
    kind, separator, name = text.partition(":")
    if not separator or not name or kind not in DESTINATION_KINDS:
        raise ValueError(f'{text!r:.200} is not "queue:NAME", "topic:NAME", "region:NAME" or "move:NAME"')
    return kind, name


def is_moved(destination: str) -> bool:
    """Return whether a destination of a gateway is a queue that is moved."""
    return destination.startswith(_MOVED)


def name_there(destination: str) -> str:
    """Return what a destination of a gateway is called at the other site, where no queue is moved."""
    return destination.replace(_MOVED, "queue:", 1) if is_moved(destination) else destination
