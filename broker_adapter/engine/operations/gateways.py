"""Operations on gateways: at the site that sends, and at the one that receives.

Theory of operation
    A message goes to the other site as :func:`_packed` makes it, and the sender hands on these bytes.  The receiver
    keeps the position of the last message that it has applied, by who sent it, in the commit of the messages.  So what
    comes again is known, whatever became of the answer, and also where the batch is cut otherwise.

    A batch is applied up to the first message that is refused, and those behind that are refused as well are told with
    it; the rest comes in the next batch.  So no message that was refused stands below a position that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, DestinationKind, checked_name
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.commands.selection import Selectable
from broker_adapter.engine.operations.reader import OperationsState, Reader
from broker_adapter.engine.operations.request import Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.staged import GATEWAY_GROUP
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, RANGE_ENTRIES, rows
from broker_adapter.engine.queues.directory import Directory, named_queue
from broker_adapter.engine.queues.gateway_queue import HEAD, SITES, GatewayQueue
from broker_adapter.engine.records.gateway_records import STATES, GatewayRecord, destination_of
from broker_adapter.engine.records.layout import RawEntry, position_of
from broker_adapter.engine.regions.interests import checked_key
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.regions.stamps import Stamp, milliseconds_of
from broker_adapter.engine.rules.gateways import gateway_named, record_is_lost
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.stores import Message
from broker_adapter.envelope import (
    ENVELOPE_FORMAT,
    KEY_PROPERTY,
    OPERATION_PROPERTY,
    SITE_PROPERTY,
    STAMP_PROPERTY,
    Identity,
    check_identity,
    read_head,
)
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.packing import unpacked
from broker_adapter.selectors.language import parse_selector
from broker_adapter.urls.url import FailoverURL, masked, parse_url

#: Destinations of one gateway.
MAX_DESTINATIONS: Final = 1000
#: Messages of one batch.
MAX_BATCH: Final = 10_000
#: The right to hand over what another site has sent.
GATEWAY: Final = "gateway"
#: Sites that a message may have seen.
_MAX_SITES: Final = 255
_MAX_MS: Final = 86_400_000
#: By how much the clock of another site may be ahead: a change that is made later than it says would lose against it.
_MOST_AHEAD_MS: Final = 86_400_000
_OPERATIONS: Final = {"create": Wanted.PUT, "update": Wanted.PUT, "destroy": Wanted.DESTROY}


@request(Threads.SHORT)
class CreateGatewayRequest(Request):
    """True.

    From now on what its destinations take is queued for the other site, unless the gateway is stopped; it is sent while
    it is running.
    """

    name: str = argument()
    url: str = argument(note="of the other site")
    destinations: Sequence[str] = argument(
        most_values=MAX_DESTINATIONS, note='"queue:NAME", "topic:NAME" or "region:NAME" each'
    )
    selector: str | None = argument(None)
    batch_messages: int = argument(100, least=1, most=MAX_BATCH)
    batch_bytes: int = argument(1 << 20, least=1, most=MAX_RANGE_BYTES)
    batch_ms: int = argument(1000, most=_MAX_MS)
    alert_ms: int = argument(0, most=_MAX_MS, note="0: none")
    state: str = argument("created", note='or "running"')

    def steps(self, client: int) -> Steps:
        _check_url(self.url)
        if not self.destinations:
            raise MessageFormatException("a gateway has one destination at least")
        if len(set(self.destinations)) < len(self.destinations):
            raise MessageFormatException("a destination of a gateway is named twice")
        for each in self.destinations:
            _check_destination(each)
        if self.selector is not None:
            parse_selector(self.selector)
        if self.state not in ("created", "running"):
            raise MessageFormatException(f'the state of a new gateway is "created" or "running", not {self.state!r}')
        sizes = self.batch_messages, self.batch_bytes, self.batch_ms, self.alert_ms
        record = GatewayRecord(self.url, list(self.destinations), self.selector, *sizes, self.state)
        yield g.CreateGateway(self.name, record)
        return True


def _check_url(url: str) -> None:
    if not isinstance(parse_url(url), FailoverURL):
        raise MessageFormatException(f"{masked(url)!r} is no server: a gateway sends over the network")


def _check_destination(text: str) -> None:
    try:
        _, name = destination_of(text)
    except ValueError as error:
        raise MessageFormatException(f"a destination of a gateway: {error}") from None
    if named_queue(checked_name(name)).is_temporary:
        raise InvalidDestinationException(f"a gateway cannot take what goes to the temporary destination {name!r}")


@request(Threads.DESCRIBING)
class GatewaysRequest(Request):
    """A map for each gateway, by name.

    ``name``, ``url`` (without user and password), ``destinations``, ``selector``, ``batch_messages``, ``batch_bytes``,
    ``batch_ms``, ``alert_ms``, ``state`` ("created": it queues and was never started, "running", "paused": it queues,
    or "stopped": it does not), ``waiting`` and ``waiting_bytes``, ``applied``: the last position that the other site
    has confirmed; ``is_sending``: whether a batch may be under way, ``trouble``: why the last attempt to send failed,
    or empty.  Counted since it was created: ``received``: messages of its destinations; of these ``filtered``, by the
    selector or since the other site had seen them, ``not_queued``, while it was stopped, and ``queued``; of the last
    ``distributed``, ``refused``, ``expired``, ``dropped`` (by a clean start), ``lost`` (not persistent, or damaged and
    in quarantine), and the rest waits; ``batches``.
    """

    name: str | None = argument(None, note="without it, all")

    def steps(self, client: int) -> Steps:
        return (yield lambda reader: _described(reader.state, self.name))


def _described(state: OperationsState, name: str | None) -> list[dict[str, Any]]:
    directory = state.directory
    names = sorted(directory.gateways) if name is None else [name]
    return [_as_map(each, gateway_named(directory, each)) for each in names]


def _as_map(name: str, queue: GatewayQueue) -> dict[str, Any]:
    record = queue.noted()
    counters = record.counters
    fields = record._asdict() | {"url": masked(record.url), "destinations": list(record.destinations)}
    del fields["counters"]
    counted = counters._asdict() | {"queued": counters.queued, "lost": queue.gone}
    waiting = {"waiting": queue.depth, "waiting_bytes": queue.bytes}
    return {"name": name, **fields, **waiting, **counted, "is_sending": queue.is_sending, "trouble": queue.trouble}


@request(Threads.SHORT)
class ChangeGatewayRequest(Request):
    """What ``gateways`` says of it then; what is not given stays as it is."""

    name: str = argument()
    state: str | None = argument(None, note='"running", "paused" or "stopped"')
    clean: bool = argument(False, note="what waits is dropped first; nothing is queued meanwhile")
    url: str | None = argument(None)
    selector: str | None = argument(None, note='"" takes it away')
    batch_messages: int | None = argument(None, least=1, most=MAX_BATCH)
    batch_bytes: int | None = argument(None, least=1, most=MAX_RANGE_BYTES)
    batch_ms: int | None = argument(None, most=_MAX_MS)
    alert_ms: int | None = argument(None, most=_MAX_MS)
    forget: bool = argument(False, note="the other site need not know what it has confirmed: it lost that")

    def steps(self, client: int) -> Steps:
        if self.url is not None:
            _check_url(self.url)
        if self.selector:
            parse_selector(self.selector)
        if self.state is not None and self.state not in STATES[1:]:
            raise MessageFormatException(f"a gateway cannot be made {self.state!r:.100}: {', '.join(STATES[1:])}")
        if self.clean and self.state != "running":
            raise MessageFormatException("the argument 'clean' needs the state \"running\"")
        name = self.name
        kept = "url", "batch_messages", "batch_bytes", "batch_ms", "alert_ms"
        fields = {each: value for each in kept if (value := getattr(self, each)) is not None}
        if self.selector is not None:
            fields["selector"] = self.selector or None
        if self.forget:
            fields["applied"] = 0
        if self.clean:
            yield g.ChangeGateway(name, {"state": "stopped"})
            number, last = yield lambda reader: _bounds(reader, name)
            left: int | None = last
            while left is not None:
                _, left = yield g.EndBatch(number, last, drops=True)
        if self.state is not None:
            fields["state"] = self.state
        yield g.ChangeGateway(name, fields)
        (found,) = yield lambda reader: _described(reader.state, name)
        return found


def _bounds(reader: Reader, name: str) -> tuple[int, int]:
    """(number of its queue, last position that it gave) of a gateway."""
    queue = gateway_named(reader.state.directory, name)
    return queue.id, queue.next_position - 1


@request(Threads.SHORT)
class DestroyGatewayRequest(Request):
    """The number of messages that waited, and are dropped."""

    name: str = argument()

    def steps(self, client: int) -> Steps:
        return (yield g.DestroyGateway(self.name))


class _Read(NamedTuple):
    """What was read of a gateway's queue."""

    queue: GatewayQueue
    record: GatewayRecord
    sender: str  #: what tells this gateway from any other one
    matching: Matching
    entries: Sequence[RawEntry]
    messages: Sequence[tuple[Message | None, dict[str, Any] | None]]
    damaged: Sequence[int]  #: positions


@request(Threads.GATEWAY)
class ReadGatewayRequest(Request):
    """What waits, from the front; it stays.

    ``entries``: (position, message as ``apply_batch`` takes it) each; ``through``: the position through which this
    goes, 0 where nothing waits; ``expired`` and ``filtered``: positions up to there that are left out, because their
    time is over, or the selector does not want them or ``remote_site`` has seen them; ``sender`` and ``applied``: what
    ``apply_batch`` takes as ``sender`` and ``after``; ``state``, ``waiting``, ``waiting_bytes``.
    """

    name: str = argument()
    max_messages: int = argument(100, least=1, most=MAX_BATCH)
    max_bytes: int = argument(1 << 20, least=1, most=MAX_RANGE_BYTES)
    remote_site: int = argument(0, most=_MAX_SITES, note="0: it is not known")
    after: int = argument(0, note="a position, of those behind it")

    def steps(self, client: int) -> Steps:
        read: _Read = yield self._read
        if read.damaged:
            positions = frozenset(read.damaged)
            yield c.SetAside(c.Range(read.queue.id, min(positions), max(positions), RANGE_ENTRIES, positions))
        selector = None if read.record.selector is None else parse_selector(read.record.selector)
        now_ms, destinations, remote = epoch_ms(), read.record.destinations, self.remote_site
        entries: list[tuple[int, bytes]] = []
        expired: list[int] = []
        filtered: list[int] = []
        for entry, (body, added) in zip(read.entries, read.messages, strict=True):
            if body is None:
                continue
            annotations = added or {}
            until_ms = _expires_at_ms(*body, annotations)
            if until_ms is not None and until_ms <= now_ms:
                expired.append(entry.position)
            elif (remote and remote in annotations.get(SITES, ())) or not (
                selector is None or read.matching.is_selected(selector, _fields(read.matching, *body, annotations))
            ):
                filtered.append(entry.position)
            else:
                entries.append((entry.position, _packed(destinations[entry.group - 1], *body, annotations)))
        return {
            "entries": entries,
            "through": max([*[entry.position for entry in read.entries], *read.damaged], default=0),
            "expired": expired,
            "filtered": filtered,
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
        most = self.max_bytes
        found = reader.entries(queue.id, self.after + 1, queue.next_position - 1, self.max_messages, most)
        entries: list[RawEntry] = []
        for entry in found.entries[: self.max_messages]:
            most -= entry.size
            if entries and most < 0:
                break
            entries.append(entry)
        messages = reader.messages(entries)
        damaged = [entry.position for entry, (body, _) in zip(entries, messages, strict=True) if body is None]
        through = entries[-1].position if entries else queue.next_position
        damaged += [position for position in map(position_of, found.corrupt) if position < through]
        return _Read(queue, queue.noted(), _sender(directory, queue), reader.state.matching, entries, messages, damaged)


def _sender(directory: Directory, queue: GatewayQueue) -> str:
    """What tells a gateway from any other one of its site."""
    return f"{queue.label}/{directory.incarnation(queue)}"


def _fields(matching: Matching, message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> Selectable:
    """What a selector can name in a message."""
    added = {name: value for name, value in annotations.items() if name not in (SITES, HEAD)}
    return Selectable(matching.formats, message_format, payload, annotations=added)


def _expires_at_ms(message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> int | None:
    """Return when a message expires; None: never.  The value of a key does not."""
    if KEY_PROPERTY in annotations:
        return None
    if HEAD in annotations:
        until_ms: int | None = annotations[HEAD][2]
        return until_ms
    if message_format == ENVELOPE_FORMAT:
        with suppress(MessageFormatException):  # the other site says so
            return read_head(payload).expires_at_ms
    return None


def _packed(destination: str, message_format: int, payload: bytes, annotations: Mapping[str, Any]) -> bytes:
    """A message as it goes to the other site."""
    found = {"to": destination, "format": message_format, "payload": payload, SITES: annotations.get(SITES, [])}
    if KEY_PROPERTY in annotations:
        found["key"] = annotations[KEY_PROPERTY]
        found["operation"] = annotations[OPERATION_PROPERTY]
        found["stamp"] = [annotations[STAMP_PROPERTY], annotations[SITE_PROPERTY]]
    elif HEAD in annotations:
        found[HEAD] = annotations[HEAD]
    packed: bytes = msgpack.packb(found)
    return packed


@request(Threads.GATEWAY)
class EndGatewayBatchRequest(Request):
    """The number of messages removed: those up to ``through``.

    What was refused goes into the queue ``$gateway/NAME/refused``, with the reason, as a dead letter.
    """

    name: str = argument()
    through: int = argument(note="a position")
    expired: Sequence[int] = argument((), most_values=MAX_BATCH, note="as ``read_gateway`` has answered")
    filtered: Sequence[int] = argument((), most_values=MAX_BATCH, note="likewise")
    refused: Sequence[Any] = argument((), most_values=MAX_BATCH, note="(position, reason) each")
    applied: int = argument(0, note="as ``apply_batch`` has answered")
    sender: str | None = argument(None, note="as ``read_gateway`` has answered; or None")

    def steps(self, client: int) -> Steps:
        refused: dict[int, str] = {each[0]: each[1] for each in rows("refused", self.refused, (int, str))}
        number: int = yield self._queue
        left_out = frozenset(self.expired), frozenset(self.filtered)
        removed, left = 0, 0
        while left is not None:
            some, left = yield g.EndBatch(number, self.through, *left_out, refused, self.applied)
            removed += some
        return removed

    def _queue(self, reader: Reader) -> int:
        directory = reader.state.directory
        queue = gateway_named(directory, self.name)
        if self.sender is not None and self.sender != _sender(directory, queue):
            raise InvalidDestinationException(f"gateway {self.name!r} was destroyed, and is another one by now")
        return queue.id


@request(Threads.SHORT, right=GATEWAY)
class SiteRequest(Request):
    """The number of the server's site; 0: it has none."""

    def steps(self, client: int) -> Steps:
        return (yield lambda reader: reader.state.directory.settings.site)


class _Arrived(NamedTuple):
    """A message of another site."""

    position: int
    place: tuple[Destination, bool]  #: where it goes; a region, if that is True
    message: c.NewMessage
    key: str
    wanted: Wanted
    stamp: Stamp
    sites: Sequence[int]  #: that have seen it
    unfit: str | None  #: why it cannot be read; None: it can


@request(Threads.GATEWAY, right=GATEWAY)
class ApplyBatchRequest(Request):
    """What a gateway of another site sends, in the order of its positions; a message is taken once.

    ``through``: the position of the last message that is done; what stands behind it was not looked at.  ``refused``:
    (position, reason) of the last ones of those.  ``applied``: the position that is known from now on: those up to it
    are not taken again.  ``repeated``: how many were known.  A change of a key is made if its stamp is newer than that
    of the key; ``unchanged``: of those that were taken, how many were not.

    Where there is no room, nothing is taken, and the request may be repeated later.  It is refused where the server has
    no site, or the same one, or does not know ``after``.
    """

    site: int = argument(least=1, most=_MAX_SITES, note="of the sender")
    sender: str = argument(note="which gateway of the site")
    after: int = argument(note="a position that the sender was told as ``applied``, or 0")
    positions: Sequence[int] = argument(most_values=MAX_BATCH, note="of the messages, each greater than the last one")
    messages: Sequence[bytes] = argument(most_values=MAX_BATCH, note="as ``read_gateway`` has them")

    def steps(self, client: int) -> Steps:
        if len(self.positions) != len(self.messages):
            raise MessageFormatException("operation 'apply_batch' needs a position for each message")
        if any(one >= other for one, other in zip(self.positions, self.positions[1:], strict=False)):
            raise MessageFormatException("the positions of a batch do not grow")
        arrived = [_arrived(*each, self.site) for each in zip(self.positions, self.messages, strict=True)]
        group = f"{GATEWAY_GROUP}{self.site}/{self.sender}"

        def look(reader: Reader) -> tuple[int, list[str | None]]:
            settings = reader.state.directory.settings
            _check_site(settings.site, self.site)
            size = sum(map(len, self.messages))
            if size > settings.max_gateway_batch_bytes and len(arrived) > 1:
                raise MessageFormatException(
                    f"batch of {size} bytes is larger than the limit of {settings.max_gateway_batch_bytes} bytes"
                    " (max_gateway_batch_bytes)"
                )
            known = reader.last_published(group) or 0
            if known < self.after:
                raise IllegalStateException(
                    f"gateway {self.sender!r} of site {self.site} was told position {self.after}, and {known} is known"
                    " here: this store was restored from an older copy, or has forgotten it; messages may be missing"
                    " (holdfast gateway alter --forget goes on)"
                )
            places = {each.place for each in arrived}
            unfit = {place: _unfit(reader.state, *place) for place in places}
            return known, [_refusal(each, unfit[each.place], settings.max_message_bytes) for each in arrived]

        while True:
            known, refusals = yield look
            first = sum(each.position <= known for each in arrived)
            last = next((index for index in range(first, len(arrived)) if refusals[index] is not None), len(arrived))
            taken = arrived[first:last]
            most = yield partial(_at_once, taken)
            taken = taken[:most]
            last = first + len(taken)
            unchanged = 0
            if taken:
                done: c.Applied = yield _commit(client, group, known, taken)
                if done.known != taken[-1].position:
                    continue  # another connection has brought some of them meanwhile
                known, unchanged = done
            end = next((index for index in range(last, len(arrived)) if refusals[index] is None), len(arrived))
            return {
                "through": arrived[end - 1].position if end else 0,
                "refused": [(arrived[index].position, refusals[index]) for index in range(last, end)],
                "applied": known,
                "repeated": first,
                "unchanged": unchanged,
            }


def _at_once(arrived: Sequence[_Arrived], reader: Reader) -> int:
    """Return how many of some messages one commit may take, by the limits of a transaction."""
    directory = reader.state.directory
    settings = directory.settings
    places = questions = size = 0
    for count, each in enumerate(arrived):
        destination, is_region = each.place
        places += (e.PLACES_IN_COMMIT if is_region else 1) + directory.fan_out(destination)
        questions += reader.state.events.region(destination.name).questions if is_region else 0
        size += len(each.message.payload)
        is_too_much = places > settings.max_transaction_entries or questions > e.QUESTIONS_IN_COMMIT
        if count and (
            is_too_much or count == settings.max_transaction_messages or size > settings.max_transaction_bytes
        ):
            return count
    return len(arrived)


def _commit(client: int, group: str, known: int, arrived: Sequence[_Arrived]) -> c.Commit:
    """The commit of some messages: those of queues and topics, and the changes of keys, both in order."""
    sends = [each for each in arrived if not each.place[1]]
    changed = [each for each in arrived if each.place[1]]
    parts = [
        e.ChangeKeys(
            region.name,
            [e.KeyChange(each.key, each.wanted, each.message, stamp=each.stamp, sites=each.sites) for each in run],
        )
        for (region, _), run in groupby(changed, key=lambda each: each.place)
    ]
    batch = c.SiteBatch(group, known, arrived[-1].position, [each.sites for each in sends])
    return c.Commit(client, None, [(each.place[0], each.message) for each in sends], [], changes=parts, batch=batch)


def _check_site(own: int, other: int) -> None:
    if not own:
        raise IllegalStateException("this server takes nothing from other sites: it has no site (option site)")
    if own == other:
        raise IllegalStateException(f"site {other} sends to itself: each site needs a number of its own (option site)")


def _arrived(position: int, packed: bytes, site: int) -> _Arrived:
    """A message of another site; raises MessageFormatException where it has not the form that such a one has."""
    try:
        found = unpacked(packed)
        kind, name = destination_of(found["to"])
        payload, message_format = found["payload"], found["format"]
        sites = sorted({site, *found[SITES]})
        if type(payload) is not bytes or type(message_format) is not int or not 0 <= message_format < 1 << 32:
            raise ValueError("it has a payload or a format that none can have")
        if not 0 < sites[0] <= sites[-1] <= _MAX_SITES or not all(type(each) is int for each in sites):
            raise ValueError("it has a site that none can be")
        key, wanted, stamp = "", Wanted.PUT, Stamp(0, 0)
        if kind == "region":
            key, wanted, stamp = found["key"], _OPERATIONS[found["operation"]], Stamp(*found["stamp"])
            if not (0 < stamp.time < 1 << 63 and 0 <= stamp.site <= _MAX_SITES) or {*map(type, stamp)} != {int}:
                raise ValueError("it has a stamp that none can have")
            checked_key(key)
        unfit = None
        try:
            message = _message(message_format, payload, found.get(HEAD))
        except MessageFormatException as error:
            message, unfit = c.NewMessage(message_format, payload), error.reason
        if milliseconds_of(stamp) > epoch_ms() + _MOST_AHEAD_MS:
            unfit = "the stamp of the change is more than a day ahead of the clock of this site"
    except (LookupError, TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"the message at position {position} of a batch is none: {error}") from error
    destination = Destination(name, DestinationKind.QUEUE if kind == "queue" else DestinationKind.TOPIC)
    return _Arrived(position, (destination, kind == "region"), message, key, wanted, stamp, sites, unfit)


def _message(message_format: int, payload: bytes, head: Sequence[Any] | None) -> c.NewMessage:
    """A message that comes in; ``head``: see :func:`~broker_adapter.engine.queues.gateway_queue.head_of`."""
    if message_format == ENVELOPE_FORMAT:
        return c.from_head(payload, read_head(payload))
    if head is None:
        return c.NewMessage(message_format, payload)
    priority, persistent, expires_at_ms, deliver_at_ms, group, of = head
    numbers = priority, expires_at_ms or 0, deliver_at_ms or 0, group
    if not all(type(each) is int for each in numbers):
        raise ValueError("it has a head that none can have")
    identity = None
    if of is not None:
        check_identity(*of)
        identity = Identity(*of)
    times = expires_at_ms, deliver_at_ms
    made = c.incoming(message_format, payload, priority, persistent is True, *times, identity, None)
    return made._replace(group=group % (c.MAX_GROUP_NUMBER + 1))


def _unfit(state: OperationsState, destination: Destination, is_region: bool) -> str | None:
    """Why nothing can go to a place; None: something can."""
    try:
        if is_region:
            state.events.region(destination.name)
        elif named_queue(checked_name(destination.name)).is_temporary:
            return f"{destination.name!r} is a temporary destination"
    except JMSException as error:
        return error.reason
    return None


def _refusal(arrived: _Arrived, unfit: str | None, most_bytes: int) -> str | None:
    """Why a message cannot be taken for good; None: it can.

    Args:
        arrived: the message.
        unfit: why nothing can go to its place.
        most_bytes: of a message.
    """
    size = len(arrived.message.payload)
    if size > most_bytes:
        return message_too_large(size, most_bytes).reason
    return unfit or arrived.unfit
