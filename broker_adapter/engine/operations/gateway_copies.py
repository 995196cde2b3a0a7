"""The operation that copies to another site what a queue or region had before its gateway.

Theory of operation
    What is copied is put behind all else in the gateway's queue, as messages of its own.  A value goes with the stamp
    of its change, so the other site drops it where it has a newer one, whatever came first.  Of a queue only messages
    from before the gateway are copied, which their numbers say: it took the others as they came.

    Who asks knows how far a copy has come; here is known only that it was begun.  A message that is copied twice is
    there twice, as the other site knows only its position in the gateway's queue; a key is not, by its stamp.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, up_to
from broker_adapter.engine.records.gateway_records import MAX_BATCH, name_there
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    LAST_POSITION,
    RawEntry,
    lane_of_delayed,
    position_of,
)
from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.key_records import KeyState
from broker_adapter.engine.regions.stored_key import StoredKey
from broker_adapter.engine.rules.event_changes import event_annotations
from broker_adapter.engine.rules.gateways import destination_number, gateway_named
from broker_adapter.engine.store.stores import Message
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack, read_head
from broker_adapter.errors import MessageFormatException

#: Where the next part of a queue begins: a position, of what is delayed, or else of the rest.
_PLACE: Final = re.compile(r"(d?)([0-9]{1,19})")


class _Part(NamedTuple):
    """A part of what a queue or region has."""

    destination: str  #: what it is of, as the gateway has it
    messages: Sequence[tuple[NewMessage, dict[str, Any] | None]]  #: with the annotations of its entry each
    left_out: int  #: cannot be copied
    next: str | None  #: where the next part begins; None: there is none


@request(Threads.LONG, once=True)
class CopyToGatewayRequest(Request):
    """A map: what was put into the gateway's queue of the next part of what a queue or region has.

    ``copied``: how many messages; ``left_out``: how many could not be, since they are damaged, or a key without a
    value; ``next``: what the next request has as ``after``, None: that was all; ``waiting``: messages that wait for the
    gateway then.
    """

    name: str = argument()
    region: str | None = argument(None, names=Names.TOPIC, note="of the gateway")
    queue: str | None = argument(None, names=Names.QUEUE, note="of the gateway; or a region")
    after: str | None = argument(None, note="``next`` of the last answer; without it, from the first one on")
    limit: int = argument(1000, least=1, most=MAX_BATCH)
    again: bool = argument(False, note="a queue of which a copy was begun already is copied from its front once more")

    def check(self) -> None:
        """Refuse what names neither a region nor a queue, or both."""
        if (self.region is None) == (self.queue is None):
            raise MessageFormatException("operation 'copy_to_gateway' needs the argument 'region', or 'queue'")

    def steps(self, client: int) -> Steps:
        part: _Part = yield self._read
        is_first = self.queue is not None and self.after is None and not self.again
        if part.messages or is_first:
            yield g.CopyToGateway(self.name, part.destination, part.messages, is_first)
        waiting = yield lambda reader: gateway_named(reader.state.directory, self.name).depth
        return {"copied": len(part.messages), "left_out": part.left_out, "next": part.next, "waiting": waiting}

    def _read(self, reader: Reader) -> _Part:
        gateway = gateway_named(reader.state.directory, self.name)
        destination = f"queue:{self.queue}" if self.region is None else f"region:{self.region}"
        for each in gateway.gateway.destinations:
            if name_there(each) == destination:
                destination = each
        destination_number(gateway, destination)
        if self.region is not None:
            return self._keys(reader, destination, self.region)
        return self._messages(reader, destination, gateway.gateway.first_message)

    def _keys(self, reader: Reader, destination: str, name: str) -> _Part:
        region = reader.state.events.region(name)
        keys = reader.keys_behind(region.id, self.after, self.limit)
        taken = up_to(MAX_RANGE_BYTES, [each.size for each in keys])
        has_more = len(keys) == self.limit or taken < len(keys)
        keys = keys[:taken]
        found = [_of_key(name, *each) for each in zip(keys, reader.values(keys), strict=True)]
        messages = [each for each in found if each is not None]
        return _Part(destination, messages, len(found) - len(messages), keys[-1].key if has_more else None)

    def _messages(self, reader: Reader, destination: str, before: int) -> _Part:
        queue = reader.state.directory.by_destination.get(Destination(self.queue or ""))
        if queue is None:
            return _Part(destination, [], 0, None)
        found = _PLACE.fullmatch("d0" if self.after is None else self.after)
        if found is None:
            raise MessageFormatException(f"the argument 'after' is no answer of a copy of a queue: {self.after!r:.100}")
        of_delayed, first = found[1], int(found[2]) + 1
        if of_delayed:
            read = reader.delayed_entries(queue.id, first, self.limit)
        else:
            read = reader.entries(queue.id, first, LAST_POSITION, self.limit, MAX_RANGE_BYTES)
        entries = read.entries[: up_to(MAX_RANGE_BYTES, [each.size for each in read.entries])]
        positions = [each.position for each in entries]
        damaged = [position_of(key) for key in read.corrupt]
        if len(entries) < len(read.entries):
            damaged = [each for each in damaged if each < positions[-1]]
        is_last = read.complete and len(entries) == len(read.entries)
        following = f"{of_delayed}{max(positions + damaged)}" if not is_last else ("0" if of_delayed else None)
        wanted = [each for each in entries if each.number < before]
        formats = reader.state.matching.formats
        messages: list[tuple[NewMessage, dict[str, Any] | None]] = [
            (_of_entry(formats, entry, *body), None)
            for entry, (body, _) in zip(wanted, reader.messages(wanted), strict=True)
            if body is not None
        ]
        return _Part(destination, messages, len(wanted) - len(messages) + len(damaged), following)


def _of_key(region: str, stored: StoredKey, value: Message | None) -> tuple[NewMessage, dict[str, Any]] | None:
    """The message by which another site gets what is known of a key; None: it has no value, or none to be trusted."""
    record = stored.record
    if record is None or (value is None and record.state is not KeyState.TOMBSTONE):
        return None
    if value is None:
        operation = Operation.DESTROY
        topic = Destination(region, DestinationKind.TOPIC)
        value = ENVELOPE_FORMAT, pack(Envelope(topic, BodyKind.NONE, None))
    else:
        operation = Operation.UPDATE
    return NewMessage(*value), event_annotations(region, stored.key, operation, record.version, record.stamp)


def _of_entry(formats: Formats, entry: RawEntry, message_format: int, payload: bytes) -> NewMessage:
    """The message of an entry as it came in."""
    with suppress(MessageFormatException):
        if message_format == ENVELOPE_FORMAT:
            return c.from_head(payload, read_head(payload))
        of = formats.read(message_format, payload)
        times = of.expires_at_ms, of.deliver_at_ms
        return c.incoming(message_format, payload, of.priority, of.persistent, *times, of.identity, of.group_id)
    lane = lane_of_delayed(entry.flags) if entry.lane == DELAYED_LANE else entry.lane
    return NewMessage(message_format, payload, 9 - lane, expires_at_ms=entry.expires_at_ms or None)
