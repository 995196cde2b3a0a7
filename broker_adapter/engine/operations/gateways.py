"""Operations on gateways: how they are made, described, changed and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker_adapter.clock import epoch_ms
from broker_adapter.destination import checked_name
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES
from broker_adapter.engine.queues.directory import named_queue
from broker_adapter.engine.queues.gateway_queue import GatewayQueue
from broker_adapter.engine.records.gateway_records import MAX_BATCH, STATES, GatewayRecord, destination_of, name_there
from broker_adapter.engine.rules.gateways import gateway_named
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
)
from broker_adapter.selectors.language import parse_selector
from broker_adapter.urls.url import FailoverURL, masked, parse_url

#: Destinations of one gateway.
MAX_DESTINATIONS: Final = 1000
_MAX_MS: Final = 86_400_000


@request(Threads.SHORT)
class CreateGatewayRequest(Request):
    """True.

    From now on what its destinations take is queued for the other site, unless the gateway is stopped; it is sent while
    it is running.  Of a queue that is moved, it is queued for the other site only.
    """

    name: str = argument()
    url: str = argument(note="of the other site")
    destinations: Sequence[str] = argument(
        most_values=MAX_DESTINATIONS, note='"queue:NAME", "topic:NAME", "region:NAME" or "move:NAME" each'
    )
    selector: str | None = argument(None)
    batch_messages: int = argument(1000, least=1, most=MAX_BATCH)
    batch_bytes: int = argument(1 << 20, least=1, most=MAX_RANGE_BYTES)
    batch_ms: int = argument(1000, most=_MAX_MS)
    alert_ms: int = argument(0, most=_MAX_MS, note="0: none")
    group_transaction_events: bool = argument(
        False, note="a batch has all of each transaction, and is one commit there"
    )
    batch_conflation: bool = argument(False, note="a batch has only the last of the updates of a key")
    fetches: bool = argument(
        False, note="it takes messages of queues and topics there, and puts them into those of the same names here"
    )
    state: str = argument("created", note='or "running"')

    def steps(self, client: int) -> Steps:
        _check_url(self.url)
        if not self.destinations:
            raise MessageFormatException("a gateway has one destination at least")
        if len(set(map(name_there, self.destinations))) < len(self.destinations):
            raise MessageFormatException("a destination of a gateway is named twice")
        for each in self.destinations:
            _check_destination(each, fetches=self.fetches)
        if self.selector is not None:
            parse_selector(self.selector)
        if self.state not in ("created", "running"):
            raise MessageFormatException(f'the state of a new gateway is "created" or "running", not {self.state!r}')
        sizes = self.batch_messages, self.batch_bytes, self.batch_ms, self.alert_ms
        options = *sizes, self.group_transaction_events, self.batch_conflation, self.fetches
        record = GatewayRecord(self.url, list(self.destinations), self.selector, *options, state=self.state)
        if not (yield lambda reader: reader.state.directory.settings.site):
            raise IllegalStateException(
                "a gateway needs a site of its own: serve with --site N, or embedded:DIR?site=N"
            )
        yield g.CreateGateway(self.name, record)
        return True


def _check_url(url: str) -> None:
    if not isinstance(parse_url(url), FailoverURL):
        raise MessageFormatException(f"{masked(url)!r} is no server: a gateway sends over the network")


def _check_destination(text: str, *, fetches: bool) -> None:
    try:
        kind, name = destination_of(text)
    except ValueError as error:
        raise MessageFormatException(f"a destination of a gateway: {error}") from None
    if fetches and kind not in ("queue", "topic"):
        raise MessageFormatException(f"a gateway fetches from queues and topics, and {text!r} is neither")
    if named_queue(checked_name(name)).is_temporary:
        raise InvalidDestinationException(f"a gateway cannot take what goes to the temporary destination {name!r}")


@request(Threads.DESCRIBING)
class GatewaysRequest(Request):
    """A map for each gateway, by name.

    ``name``, ``url`` (without user and password), ``destinations``, ``selector``, ``batch_messages``, ``batch_bytes``,
    ``batch_ms``, ``alert_ms``, ``group_transaction_events``, ``batch_conflation``, ``fetches``, ``selector_from``: the
    position from which on the selector holds, and ``selector_before``: that of what came before; ``state`` ("created":
    it queues and was never started, "running", "paused": it queues, or "stopped": it does not), ``waiting`` and
    ``waiting_bytes``, ``oldest_age_ms``: for how long the oldest of these has waited, or None; ``copied``: those of the
    destinations of which a copy was begun, ``applied``: the last position that the other site has confirmed;
    ``is_sending``: whether a batch may be under way, ``trouble``: why the last attempt to send failed, or empty.
    Counted since it was created: ``received``: messages of its destinations; of these ``filtered``, by the selector or
    since the other site had seen them, ``not_queued``, while it was stopped, and ``queued``; of the last
    ``distributed``, ``refused``, ``conflated``, ``expired``, ``dropped`` (by a clean start), ``lost`` (not persistent,
    or damaged and in quarantine), and the rest waits; ``batches``. One that ``fetches`` has none that wait: what it has
    put into queues here is ``distributed``, what it has left there ``refused``. With ``group_transaction_events``,
    ``batches_with_incomplete_transactions``: those in which a part of a transaction was missing, since it was damaged,
    not persistent, or sent before the option was set; ``divided_transactions``: those of which a part went by other
    gateways.
    """

    name: str | None = argument(None, note="without it, all")

    def steps(self, client: int) -> Steps:
        return (yield lambda reader: _described(reader, self.name))


def _described(reader: Reader, name: str | None) -> list[dict[str, Any]]:
    directory = reader.state.directory
    names = sorted(directory.gateways) if name is None else [name]
    queues = [gateway_named(directory, each) for each in names]
    return [_as_map(each, queue, reader.oldest_came_ms(queue)) for each, queue in zip(names, queues, strict=True)]


def _as_map(name: str, queue: GatewayQueue, came_ms: int | None) -> dict[str, Any]:
    record = queue.noted()
    counters = record.counters
    destinations = list(record.destinations)
    copied = [destinations[number - 1] for number in record.copied]
    fields = record._asdict() | {"url": masked(record.url), "destinations": destinations, "copied": copied}
    del fields["counters"]
    counted = counters._asdict() | {"queued": counters.queued, "lost": queue.gone}
    age_ms = None if came_ms is None else max(0, epoch_ms() - came_ms)
    waiting = {"waiting": queue.depth, "waiting_bytes": queue.bytes, "oldest_age_ms": age_ms}
    return {"name": name, **fields, **waiting, **counted, "is_sending": queue.is_sending, "trouble": queue.trouble}


@request(Threads.SHORT)
class ChangeGatewayRequest(Request):
    """What ``gateways`` says of it then; what is not given stays as it is."""

    name: str = argument()
    state: str | None = argument(None, note='"running", "paused" or "stopped"')
    clean: bool = argument(
        False, note="what waits is dropped first; nothing is queued meanwhile; not while ``is_sending``"
    )
    url: str | None = argument(None)
    selector: str | None = argument(None, note='of what comes in from now on; "" takes it away')
    batch_messages: int | None = argument(None, least=1, most=MAX_BATCH)
    batch_bytes: int | None = argument(None, least=1, most=MAX_RANGE_BYTES)
    batch_ms: int | None = argument(None, most=_MAX_MS)
    alert_ms: int | None = argument(None, most=_MAX_MS)
    group_transaction_events: bool | None = argument(None)
    batch_conflation: bool | None = argument(None)
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
        kept = (
            "url",
            "batch_messages",
            "batch_bytes",
            "batch_ms",
            "alert_ms",
            "group_transaction_events",
            "batch_conflation",
        )
        fields = {each: value for each in kept if (value := getattr(self, each)) is not None}
        if self.selector is not None:
            fields["selector"] = self.selector or None
        if self.forget or self.url is not None:  # it may be another site
            fields["applied"] = 0
        if self.clean:
            yield g.ChangeGateway(name, {"state": "stopped"})
            number, last = yield lambda reader: _bounds_at_rest(reader, name)
            left: int | None = last
            while left is not None:
                _, left = yield g.EndBatch(number, last, drops=True)
        if self.state is not None:
            fields["state"] = self.state
        passed: int = yield lambda reader: _passed(reader, name)
        yield g.ChangeGateway(name, fields, passed)
        (found,) = yield lambda reader: _described(reader, name)
        return found


def _passed(reader: Reader, name: str) -> int:
    """Return the position from which on the selector of a gateway holds, or 0 where what came before it waits."""
    queue = gateway_named(reader.state.directory, name)
    position = queue.gateway.selector_from
    return 0 if position and reader.entries(queue.id, 0, position - 1, 1).entries else position


def _bounds_at_rest(reader: Reader, name: str) -> tuple[int, int]:
    """(number of its queue, last position that it gave) of a gateway of which no batch is under way."""
    queue = gateway_named(reader.state.directory, name)
    if queue.is_sending:
        raise IllegalStateException(
            f"batches of gateway {name!r} are under way; it is stopped now: repeat this shortly"
        )
    return queue.id, queue.next_position - 1


@request(Threads.SHORT)
class DestroyGatewayRequest(Request):
    """The number of messages that waited, and are dropped."""

    name: str = argument()

    def steps(self, client: int) -> Steps:
        return (yield g.DestroyGateway(self.name))
