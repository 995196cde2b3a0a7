"""How gateways are made, changed and removed, and how what they have sent ends.

What a gateway takes comes in with the message itself (:mod:`broker_adapter.engine.rules.intake`), and is read by
requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgpack

from broker_adapter.destination import Destination, DestinationKind, checked_name
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.endings import DEAD_LETTER_COUNT, Endings
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.gateway_queue import HEAD, ORIGIN, REGION_KIND, SITES, Feed, Feeds, GatewayQueue
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.gateway_records import (
    GatewayCounters,
    GatewayRecord,
    decode_gateway,
    decode_progress,
    destination_of,
    encode_gateway,
    encode_progress,
    gateway_key,
    is_progress,
    kept_of,
    progress_key,
)
from broker_adapter.engine.records.layout import FLAG_JOINED, CatalogRecord, RawEntry
from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.envelope import DEAD_LETTER_REASON, MAX_REASON
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    ResourceAllocationException,
    StoreCorruptException,
)

_log = logging.getLogger(f"holdfast.{__name__}")

#: Gateways of a server: each that is running has a thread.
MAX_GATEWAYS: Final = 100
_KINDS: Final = {
    **{"queue": DestinationKind.QUEUE, "move": DestinationKind.QUEUE},
    **{"topic": DestinationKind.TOPIC, "region": REGION_KIND},
}
_DAMAGE: Final = (StoreCorruptException, ValueError, TypeError, msgpack.UnpackException)


class Gateways:
    """Carries out the commands of :mod:`broker_adapter.engine.commands.gateways`.

    Attributes:
        listeners: are called after each commit with the names of the gateways that have taken something or are changed.
    """

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        intake: Intake,
        removal: QueueRemoval,
        endings: Endings,
        totals: Totals,
    ) -> None:
        self._directory = directory
        self._admission = admission
        self._intake = intake
        self._gateways = directory.gateways
        self._removal = removal
        self._endings = endings
        self._totals = totals
        self.listeners: list[Callable[[Any], None]] = []
        self.steps: dict[type, Callable[[Any, int, Effects], None]] = {
            g.CreateGateway: self._create,
            g.ChangeGateway: self._change,
            g.DestroyGateway: self._destroy,
            g.EndBatch: self._end_batch,
            g.CopyToGateway: self._copy,
            g.CountFetched: self._count_fetched,
        }

    def restore(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over what the store has, key and value of each record; the queues are there."""
        found: dict[str, GatewayRecord] = {}
        progress: dict[str, tuple[int, GatewayCounters]] = {}
        for key, value in records:
            try:
                if is_progress(key):
                    progress[key[1:].decode()] = decode_progress(key, value)
                else:
                    found[key.decode()] = decode_gateway(key, value)
            except _DAMAGE as error:
                _log.error("! record %s of table gateways cannot be trusted: %s", key.hex(), error)
        for name, queue in self._gateways.items():
            if name not in progress:
                _log.error("! the counters of gateway %r are missing or damaged: they begin anew", name)
            if name in found:
                queue.gateway = queue.stored = found[name]
                self._feed(queue)
            else:
                _log.error(
                    "! the record of gateway %r is missing or damaged: it takes and sends nothing; destroy it", name
                )
            applied, counters = progress.get(name, (0, GatewayCounters(received=queue.depth)))
            queue.gateway = queue.gateway._replace(applied=applied, counters=counters)

    def note(self, effects: Effects) -> None:
        """Have the commit of this decision keep what has changed, and tell afterwards who has something to do."""
        concerned: list[str] = []
        for name, queue in self._gateways.items():
            if queue.is_changed:
                queue.is_changed = False
                if queue.durable:
                    self._store(name, queue, effects)
            if queue.wakes:
                queue.wakes = False
                concerned.append(name)
        if concerned:
            self._tell(concerned, effects)

    def _store(self, name: str, queue: GatewayQueue, effects: Effects) -> None:
        record, key = queue.noted(), progress_key(name)
        effects.durable.put("gateways", key, encode_progress(key, record))
        if kept_of(record) != kept_of(queue.stored):
            key = gateway_key(name)
            effects.durable.put("gateways", key, encode_gateway(key, record))
            queue.stored = record

    def _tell(self, names: Sequence[str], effects: Effects) -> None:
        effects.replies += [(listener, names) for listener in self.listeners]

    def _create(self, command: g.CreateGateway, now_ms: int, effects: Effects) -> None:
        name, directory = command.name, self._directory
        _check_options(command.record)
        checked_name(name, "gateway")
        checked_name(refused_queue(name), "gateway's queue of refused messages:")
        if name in self._gateways:
            raise IllegalStateException(f"there is a gateway {name!r} already")
        if len(self._gateways) >= MAX_GATEWAYS:
            raise ResourceAllocationException(
                f"no more than {MAX_GATEWAYS} gateways; destroy those that are not in use"
            )
        directory.check_limit()
        catalogued, destination = CatalogRecord("gateway", name), Destination(name)
        if directory.durable:
            queue = directory.new_queue(destination, catalogued, effects)
        else:
            queue = directory.new_volatile_queue(destination, catalogued)
        assert isinstance(queue, GatewayQueue)
        queue.gateway = command.record._replace(first_message=self._intake.next_message)
        queue.is_changed = queue.wakes = True
        self._gateways[name] = queue
        self._feed(queue)
        effects.answer(command, queue.id)

    def _feed(self, queue: GatewayQueue) -> None:
        if queue.gateway.fetches:
            return
        for number, text in enumerate(queue.gateway.destinations, 1):
            kind, name = destination_of(text)
            self._directory.feeds.setdefault((name, _KINDS[kind]), Feeds()).append(Feed(queue, number))

    def _change(self, command: g.ChangeGateway, now_ms: int, effects: Effects) -> None:
        queue = gateway_named(self._directory, command.name)
        if not queue.gateway.destinations:
            raise record_is_lost(command.name)
        changed = queue.noted()._replace(**command.fields)
        _check_options(changed)
        if changed.selector != queue.gateway.selector:
            # What waits may be at the other site already, so the choice among it stays.
            if command.passed != changed.selector_from:
                raise IllegalStateException(
                    f"messages of gateway {command.name!r} wait that came before the last change of its selector;"
                    " change it again when they are sent"
                )
            before = queue.gateway.selector
            changed = changed._replace(selector_from=queue.next_position, selector_before=before)
        queue.gateway = changed
        queue.is_changed = queue.wakes = True
        effects.answer(command, None)

    def _destroy(self, command: g.DestroyGateway, now_ms: int, effects: Effects) -> None:
        queue = gateway_named(self._directory, command.name)
        del self._gateways[command.name]
        feeds = self._directory.feeds
        for key in list(feeds):
            feeds[key][:] = [feed for feed in feeds[key] if feed.queue is not queue]
            if not feeds[key]:
                del feeds[key]
        if queue.durable:
            for stored in (gateway_key(command.name), progress_key(command.name)):
                effects.durable.put("gateways", stored, None)
        effects.answer(command, queue.depth)
        self._removal.end_queue(queue, effects)
        self._tell([command.name], effects)

    def _copy(self, command: g.CopyToGateway, now_ms: int, effects: Effects) -> None:
        queue = gateway_named(self._directory, command.name)
        feed = Feed(queue, destination_number(queue, command.destination))
        if queue.gateway.state == "stopped":
            raise IllegalStateException(
                f"gateway {command.name!r} is stopped, and takes nothing; start or pause it first"
            )
        if command.is_first and feed.number in queue.gateway.copied:
            raise IllegalStateException(
                f"a copy of {command.destination} by gateway {command.name!r} was begun already, and a second one may"
                " put its messages there again: name what else is to be copied, or give the argument 'again' of"
                " operation 'copy_to_gateway'"
            )
        sizes = [(len(each.payload), each.persistent and queue.durable) for each, _ in command.messages]
        self._admission.take_at_once([(size, 1) for size, is_stored in sizes if is_stored])
        self._admission.take_in_memory([(size, 1) for size, is_stored in sizes if not is_stored])
        for message, added in command.messages:
            self._intake.store(message, (), now_ms, effects, added, (feed,))
        noted = queue.noted()
        queue.gateway = noted._replace(copied=sorted({*noted.copied, feed.number}))
        queue.is_changed = True
        effects.answer(command, None)

    def _end_batch(self, command: g.EndBatch, now_ms: int, effects: Effects) -> None:
        queue = self._directory.queues.get(command.queue)
        if not isinstance(queue, GatewayQueue) or queue.record.kind == "ended":
            raise InvalidDestinationException("the gateway was destroyed meanwhile")
        if command.url is not None and command.url != queue.gateway.url:
            raise InvalidDestinationException("the gateway sends to another URL by now")
        aside = command.refused.keys() | command.kept.keys()
        # What is to be kept here, and could not be read, waits on.
        moved = queue.moved
        stays = {raw.position for raw in command.found if raw.group in moved and raw.position in command.filtered}
        sent = [raw for raw in command.found if raw.position not in aside and raw.position not in stays]
        run, others = queue.split_run(sent, effects)
        queue.remove_run(run, effects)
        gone = {raw.position for raw in run}
        refused = 0
        for raw in (*others, *[raw for raw in command.found if raw.position in aside]):
            entry = queue.find(raw, effects)
            if entry is None:
                continue
            if raw.position in command.refused:
                self._refuse(queue, entry, command.refused[raw.position], effects)
                refused += 1
            else:
                if raw.position in command.kept:
                    self._keep(queue, entry, command.kept[raw.position], now_ms, effects)
                queue.remove(entry, effects)
                gone.add(raw.position)
        noted = queue.noted()
        counters = noted.counters
        is_incomplete = noted.group_transaction_events and self._is_incomplete(queue, command.found, effects)
        expired, filtered = len(gone & command.expired), len(gone & command.filtered)
        conflated = len(gone & command.conflated)
        rest = len(gone) - expired - filtered - conflated
        counters = counters._replace(
            distributed=counters.distributed + (0 if command.drops else rest),
            dropped=counters.dropped + (rest if command.drops else 0),
            refused=counters.refused + refused,
            expired=counters.expired + expired,
            filtered=counters.filtered + filtered,
            conflated=counters.conflated + conflated,
            batches=counters.batches + (not command.drops),
            batches_with_incomplete_transactions=counters.batches_with_incomplete_transactions + is_incomplete,
        )
        queue.gateway = noted._replace(counters=counters, applied=max(noted.applied, command.applied))
        queue.is_changed = True
        self._directory.changed[queue.id] = queue
        effects.answer(command, (len(gone) + refused, command.next))

    def _is_incomplete(self, queue: GatewayQueue, found: Sequence[RawEntry], effects: Effects) -> bool:
        """Note what is ended of a gateway's queue; return whether a part of a transaction is missing in it."""
        is_incomplete = False
        for raw in found:
            if raw.flags & FLAG_JOINED and raw.position != queue.ended_through + 1:
                is_incomplete = True
                effects.warn(
                    ("incomplete", queue.id),
                    "! gateway %r: a part of a transaction is missing ahead of position %d; the rest was sent",
                    *(queue.record.name, raw.position),
                )
            queue.ended_through = raw.position
        return is_incomplete

    def _keep(self, queue: GatewayQueue, entry: Entry, message: NewMessage, now_ms: int, effects: Effects) -> None:
        """Put a message of a queue that is moved into that queue, since it does not go to the other site."""
        _, name = destination_of(queue.gateway.destinations[entry.group - 1])
        target = self._directory.queue(Destination(name), effects, limited=False)
        self._intake.store(message, (target,), now_ms, effects)
        self._directory.changed[target.id] = target

    def _count_fetched(self, command: g.CountFetched, now_ms: int, effects: Effects) -> None:
        queue = gateway_named(self._directory, command.name)
        noted, taken, refused = queue.noted(), command.taken, command.refused
        counters = noted.counters
        counters = counters._replace(
            received=counters.received + taken + refused,
            distributed=counters.distributed + taken,
            refused=counters.refused + refused,
            batches=counters.batches + 1,
        )
        queue.gateway = noted._replace(counters=counters)
        queue.is_changed = True
        self._directory.changed[queue.id] = queue
        effects.answer(command, None)

    def _refuse(self, queue: GatewayQueue, entry: Entry, reason: str, effects: Effects) -> None:
        """Put a message that the other site does not want into the queue of those, with the reason."""
        name, number = queue.record.name, entry.group
        destinations = queue.gateway.destinations
        added = self._endings.annotations(entry, effects)
        added = {each: value for each, value in added.items() if each not in (SITES, HEAD, ORIGIN)}
        # It has no queue to which a redrive could put it back: it is there.
        added[DEAD_LETTER_REASON] = f"{destinations[number - 1]}: {reason}"[:MAX_REASON]
        added[DEAD_LETTER_COUNT] = 0
        entry.group = 0  # it was the number of the destination
        entry.flags &= ~FLAG_JOINED
        target = self._directory.queue(Destination(refused_queue(name)), effects, limited=False)
        self._endings.move_annotated(queue, entry, target, added, effects)
        self._totals.dead_lettered += 1
        effects.warn(
            ("refused", queue.id),
            "! a message of gateway %r went to the queue %r, since the other site has refused it: %s",
            *(name, target.label, reason),
        )


def _check_options(record: GatewayRecord) -> None:
    """Raise IllegalStateException where two options of a gateway contradict each other."""
    if record.group_transaction_events and record.batch_conflation:
        raise IllegalStateException(
            "a gateway that keeps transactions whole leaves out none of their updates: take away"
            " group_transaction_events, or batch_conflation"
        )


def gateway_named(directory: Directory, name: str) -> GatewayQueue:
    """The queue of a gateway; raises InvalidDestinationException where there is none of this name."""
    found = directory.gateways.get(name)
    if found is None:
        raise InvalidDestinationException(f"there is no gateway {name!r} (holdfast gateway list)")
    return found


def destination_number(queue: GatewayQueue, destination: str) -> int:
    """The number that a destination has among those of a gateway; raises InvalidDestinationException."""
    destinations = queue.gateway.destinations
    if not destinations:
        raise record_is_lost(queue.record.name)
    if queue.gateway.fetches:
        raise IllegalStateException(f"gateway {queue.record.name!r} fetches, and sends nothing")
    if destination not in destinations:
        raise InvalidDestinationException(
            f"gateway {queue.record.name!r} does not send {destination!r}; it sends {', '.join(destinations)}"
        )
    return list(destinations).index(destination) + 1


def record_is_lost(name: str) -> IllegalStateException:
    """The error for a gateway of which nothing is known."""
    return IllegalStateException(
        f"the record of gateway {name!r} is lost, and with it where its messages are to go; destroy it"
        f" (holdfast gateway destroy {name})"
    )


def refused_queue(name: str) -> str:
    """The name of the queue that gets what the other site of a gateway has refused."""
    return f"$gateway/{name}/refused"
