"""Operations of the sender of a gateway: what it hands over to the other site, and what becomes of that.

A message goes to the other site as its payload and its numbers, with what it has in common with others: its *kind*,
which is packed once.  Nearly all messages to a destination are of one kind; each change of a key is of its own.

A gateway with ``group_transaction_events`` never divides a transaction.  What is read goes on behind its limits to the
end of the last transaction, and ``joined`` names what belongs to that of the message ahead.  A transaction that is
larger than any batch may be is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.clock import epoch_ms
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Selectable
from broker_adapter.engine.operations.arrivals import message_of
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, RANGE_ENTRIES, rows
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.gateway_queue import HEAD, ORIGIN, SITES, GatewayQueue, origin_of
from broker_adapter.engine.records.gateway_records import MAX_BATCH, MAX_SITE, GatewayRecord, name_there
from broker_adapter.engine.records.layout import FLAG_JOINED, RawEntry, position_of
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.engine.rules.gateways import gateway_named, record_is_lost
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.stores import Message
from broker_adapter.envelope import (
    ENVELOPE_FORMAT,
    KEY_PROPERTY,
    OPERATION_PROPERTY,
    RESOLVED_PROPERTY,
    SITE_PROPERTY,
    STAMP_PROPERTY,
    may_expire,
    read_head,
)
from broker_adapter.errors import (
    InvalidDestinationException,
    MessageFormatException,
)
from broker_adapter.selectors.language import parse_selector

_UPDATE: Final = Operation.UPDATE.name.lower()
#: Entries behind a batch that are looked at together.
_AT_ONCE: Final = 100


class _Read(NamedTuple):
    """What was read of a gateway's queue."""

    queue: GatewayQueue
    record: GatewayRecord
    site: int  #: this one
    sender: str  #: what tells this gateway from any other one
    matching: Matching
    entries: Sequence[RawEntry]
    messages: Sequence[tuple[Message | None, dict[str, Any] | None]]
    damaged: Sequence[int]  #: positions
    refused: Mapping[int, str] = {}  #: position → why, of a transaction ahead of anything else that is too large


@request(Threads.GATEWAY)
class ReadGatewayRequest(Request):
    """What waits, from the front; it stays.

    ``entries``: (position, kind, number, number of the message before it, payload) each, for ``apply_batch``;
    ``through``: the position through which this goes, 0 where nothing waits; ``joined``: positions of those that belong
    to the transaction of the one ahead of them, with ``group_transaction_events``, for which a batch may be larger;
    ``expired`` and ``filtered``: positions up to there that are left out, because their time is over, or the selector
    does not want them or ``remote_site`` has seen them; ``messages`` and ``bytes``: how much of what waits these all
    are; ``sender`` and ``applied``: what ``apply_batch`` takes as ``sender`` and ``after``; ``state``, ``waiting``,
    ``waiting_bytes``.  With ``batch_conflation``, ``conflated``: positions of updates that are left out, since a later
    one of the same key is among the entries, and nothing else of the key in between.
    """

    name: str = argument()
    max_messages: int = argument(100, least=1, most=MAX_BATCH)
    max_bytes: int = argument(1 << 20, least=1, most=MAX_RANGE_BYTES)
    remote_site: int = argument(0, most=MAX_SITE, note="0: it is not known")
    after: int = argument(0, note="a position, of those behind it")

    def steps(self, client: int) -> Steps:
        read: _Read = yield self._read
        while refused := read.refused:
            left: int | None = 0
            while left is not None:
                _, left = yield g.EndBatch(read.queue.id, max(refused), refused=refused, first=min(refused))
            read = yield self._read
        if read.damaged:
            positions = frozenset(read.damaged)
            yield c.SetAside(c.Range(read.queue.id, min(positions), max(positions), RANGE_ENTRIES, positions))
        chosen_by = [
            None if text is None else parse_selector(text)
            for text in (read.record.selector_before, read.record.selector)
        ]
        now_ms, remote = epoch_ms(), self.remote_site
        destinations = [name_there(each) for each in read.record.destinations]
        kinds: dict[Any, bytes] = {}  # by what a kind follows from; that of an annotated message follows from its entry
        entries: list[tuple[int, bytes, int, int, bytes]] = []
        joined: list[int] = []
        expired: list[int] = []
        filtered: list[int] = []
        updates = _Updates()
        last, has_begun = 0, False  # the position ahead, and whether something of its transaction is sent
        for entry, (body, added) in zip(read.entries, read.messages, strict=True):
            if body is None:
                continue
            annotations = added or {}
            has_begun = has_begun and is_joined(entry, last)
            last = entry.position
            selector = chosen_by[entry.position >= read.record.selector_from]
            until_ms = _expires_at_ms(*body, annotations)
            if until_ms is not None and until_ms <= now_ms:
                expired.append(entry.position)
            elif (remote and remote in annotations.get(SITES, ())) or not (
                selector is None or read.matching.is_selected(selector, _fields(read.matching, *body, annotations))
            ):
                filtered.append(entry.position)
            else:
                message_format, payload = body
                site, number, previous = origin_of(read.site, entry.number, entry.delivery_count, annotations)
                alike = entry.position if added else (entry.group, message_format, site)
                kind = kinds.get(alike) or kinds.setdefault(
                    alike, _kind(destinations[entry.group - 1], message_format, annotations, site)
                )
                entries.append((entry.position, kind, number, previous, payload))
                if has_begun:
                    joined.append(entry.position)
                has_begun = read.record.group_transaction_events
                if read.record.batch_conflation and KEY_PROPERTY in annotations:
                    updates.add(entry, annotations)
        if updates.replaced:
            entries = [each for each in entries if each[0] not in updates.replaced]
        return {
            "entries": entries,
            "through": max([*[entry.position for entry in read.entries], *read.damaged], default=0),
            "joined": joined,
            "messages": sum(body is not None for body, _ in read.messages),
            "bytes": sum(entry.size for entry in read.entries),
            "expired": expired,
            "filtered": filtered,
            "conflated": sorted(updates.replaced),
            "sender": read.sender,
            "applied": read.record.applied,
            "state": read.record.state,
            "waiting": read.queue.depth,
            "waiting_bytes": read.queue.bytes,
        }

    def _read(self, reader: Reader) -> _Read:
        directory = reader.state.directory
        queue = gateway_named(directory, self.name)
        if not queue.gateway.destinations:
            raise record_is_lost(self.name)
        record, matching = queue.noted(), reader.state.matching
        of_queue = queue, record, directory.settings.site, _sender(directory, queue), matching
        most = self.max_bytes
        found = reader.entries(queue.id, self.after + 1, queue.next_position - 1, self.max_messages, most)
        entries: list[RawEntry] = []
        for entry in found.entries[: self.max_messages]:
            most -= entry.size
            if entries and most < 0:
                break
            entries.append(entry)
        if record.group_transaction_events and entries:
            refused = _complete(reader, queue, entries)
            if not entries:
                return _Read(*of_queue, (), (), (), refused)
        messages = reader.messages(entries)
        damaged = [entry.position for entry, (body, _) in zip(entries, messages, strict=True) if body is None]
        through = entries[-1].position if entries else queue.next_position
        damaged += [position for position in map(position_of, found.corrupt) if position < through]
        return _Read(*of_queue, entries, messages, damaged)


def is_joined(entry: RawEntry, last: int) -> bool:
    """Return whether an entry belongs to the transaction of the one ahead; ``last``: the position of that."""
    return bool(entry.flags & FLAG_JOINED) and entry.position == last + 1


def _complete(reader: Reader, queue: GatewayQueue, entries: list[RawEntry]) -> Mapping[int, str]:
    """Add the rest of the last transaction to some entries, or leave it out where the batch would be too large.

    Args:
        reader: of the engine.
        queue: of the gateway.
        entries: that were read of it.

    Returns:
        What was left out: position → why that can be in no batch, if it was all there is.
    """
    begins = len(entries) - 1
    while begins and is_joined(entries[begins], entries[begins - 1].position):
        begins -= 1
    rest = list(_rest(reader, queue, entries[-1].position))
    size = sum([entry.size for entry in (*entries, *rest)])
    most = reader.state.directory.settings.max_gateway_batch_bytes
    if not rest or (size <= most and len(entries) + len(rest) <= MAX_BATCH):
        entries += rest
        return {}
    left_out = [*entries[begins:], *rest]
    del entries[begins:]
    reason = (
        f"its transaction has {len(left_out)} messages of {sum([entry.size for entry in left_out])} bytes; no more than"
        f" {MAX_BATCH} messages of {most} bytes (max_gateway_batch_bytes) go to another site together"
    )
    return {entry.position: reason for entry in left_out}


def _rest(reader: Reader, queue: GatewayQueue, last: int) -> Iterator[RawEntry]:
    """Yield the entries behind a position that belong to the transaction of the one there."""
    while found := reader.entries(queue.id, last + 1, queue.next_position - 1, _AT_ONCE).entries:
        for entry in found:
            if not is_joined(entry, last):
                return
            yield entry
            last = entry.position


class _Updates:
    """The updates of keys in a batch.

    Attributes:
        replaced: positions of those that a later one makes needless.
    """

    def __init__(self) -> None:
        self.replaced: set[int] = set()
        #: region and key → position and stamp of its last event, if that is an update
        self._last: dict[tuple[int, str], tuple[int, Stamp]] = {}

    def add(self, entry: RawEntry, annotations: Mapping[str, Any]) -> None:
        """Note the next event of the batch."""
        key = entry.group, annotations[KEY_PROPERTY]
        stamp = Stamp(annotations[STAMP_PROPERTY], annotations[SITE_PROPERTY])
        before = self._last.pop(key, None)
        if annotations[OPERATION_PROPERTY] != _UPDATE:
            return
        if before is not None and before[1] <= stamp:  # what was copied may be older
            self.replaced.add(before[0])
        self._last[key] = entry.position, stamp


def _sender(directory: Directory, queue: GatewayQueue) -> str:
    """What tells a gateway from any other one of its site."""
    return f"{queue.label}/{directory.incarnation(queue)}"


def _fields(matching: Matching, message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> Selectable:
    """What a selector can name in a message."""
    added = {name: value for name, value in annotations.items() if name not in (SITES, HEAD, ORIGIN)}
    return Selectable(matching.formats, message_format, payload, annotations=added)


def _expires_at_ms(message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> int | None:
    """Return when a message expires; None: never.  The value of a key does not."""
    if KEY_PROPERTY in annotations:
        return None
    if HEAD in annotations:
        until_ms: int | None = annotations[HEAD][2]
        return until_ms
    if message_format == ENVELOPE_FORMAT and may_expire(payload):
        with suppress(MessageFormatException):  # the other site says so
            return read_head(payload).expires_at_ms
    return None


def _kind(destination: str, message_format: int, annotations: Mapping[str, Any], site: int) -> bytes:
    """What a message says beside its payload and its numbers, as it goes to the other site.

    Args:
        destination: where it goes.
        message_format: of the payload.
        annotations: of the message.
        site: where it was sent; 0: it is not known.
    """
    found = {"to": destination, "format": message_format, SITES: annotations.get(SITES, []), ORIGIN: site}
    if KEY_PROPERTY in annotations:
        found["key"] = annotations[KEY_PROPERTY]
        found["operation"] = annotations[OPERATION_PROPERTY]
        found["stamp"] = [annotations[STAMP_PROPERTY], annotations[SITE_PROPERTY]]
        if RESOLVED_PROPERTY in annotations:
            found["resolved"] = True
    elif HEAD in annotations:
        found[HEAD] = annotations[HEAD]
    packed: bytes = msgpack.packb(found)
    return packed


@request(Threads.GATEWAY)
class EndGatewayBatchRequest(Request):
    """The number of messages removed: those up to ``through``.

    What was refused goes into the queue ``$gateway/NAME/refused``, with the reason, as a dead letter; what was filtered
    of a queue that is moved goes into that queue.
    """

    name: str = argument()
    through: int = argument(note="a position")
    expired: Sequence[int] = argument((), most_values=MAX_BATCH, note="as ``read_gateway`` has answered")
    filtered: Sequence[int] = argument((), most_values=MAX_BATCH, note="likewise")
    conflated: Sequence[int] = argument((), most_values=MAX_BATCH, note="likewise")
    refused: Sequence[Any] = argument((), most_values=MAX_BATCH, note="(position, reason) each")
    applied: int = argument(0, note="as ``apply_batch`` has answered")
    sender: str | None = argument(None, note="as ``read_gateway`` has answered; or None")
    url: str | None = argument(None, note="to which the batch was sent; or None")

    def steps(self, client: int) -> Steps:
        refused: dict[int, str] = {each[0]: each[1] for each in rows("refused", self.refused, (int, str))}
        number: int = yield self._queue
        kept = (yield self._kept) if self.filtered else {}
        left_out = frozenset(self.expired), frozenset(self.filtered), frozenset(self.conflated)
        removed, left = 0, 0
        while left is not None:
            some, left = yield g.EndBatch(number, self.through, *left_out, refused, kept, self.applied, url=self.url)
            removed += some
        return removed

    def _queue(self, reader: Reader) -> int:
        directory = reader.state.directory
        queue = gateway_named(directory, self.name)
        if self.sender is not None and self.sender != _sender(directory, queue):
            raise InvalidDestinationException(f"gateway {self.name!r} was destroyed, and is another one by now")
        return queue.id

    def _kept(self, reader: Reader) -> dict[int, c.NewMessage]:
        """Position and message of those that were filtered, of queues that are moved."""
        queue = gateway_named(reader.state.directory, self.name)
        moved = queue.moved
        if not moved:
            return {}
        first, last = min(self.filtered), max(self.filtered)
        found = reader.entries(queue.id, first, last, last - first + 1).entries
        wanted = [each for each in found if each.group in moved and each.position in self.filtered]
        return {
            entry.position: _as_it_came(*body, added or {})
            for entry, (body, added) in zip(wanted, reader.messages(wanted), strict=True)
            if body is not None
        }


def _as_it_came(message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> c.NewMessage:
    """A message that a gateway took, as it came in."""
    try:
        return message_of(message_format, payload, annotations.get(HEAD))
    except MessageFormatException:
        return c.NewMessage(message_format, payload)
