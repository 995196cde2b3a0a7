"""What consumers hold, and how their deliveries end.

A delivery is settled by its consumer, fails with the commit that was to settle it, or is given back when its consumer
or connection goes.  Deliveries that count as failed since their connection was lost are uncounted once its client
says that it never saw them: whether their messages wait by then, in memory or behind it, or others have them in hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ack_modes import Outcome
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.consumers import Consumers
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.endings import Endings
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.losses import Losses, Place
from broker_adapter.engine.queues.queue import Consumer
from broker_adapter.engine.queues.redelivered import Redelivered
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.errors import JMSException

P = TypeVar("P", Place, RawEntry)

_FAILURES = (Outcome.MODIFIED, Outcome.FAILED)


class Deliveries:
    """Ends deliveries.

    Attributes:
        losses: deliveries that count as failed since their connection was lost.
        redelivered: messages that were processed, or set aside, after an earlier delivery had failed.
    """

    def __init__(
        self, directory: Directory, consumers: Consumers, removal: QueueRemoval, endings: Endings, totals: Totals
    ) -> None:
        self._directory = directory
        self._consumers_by_number = directory.consumers
        self._changed = directory.changed
        self._consumers = consumers
        self._removal = removal
        self._holds_less = removal.holds_less
        self._endings = endings
        self._totals = totals
        self.losses = Losses()
        self.redelivered = Redelivered()

    def settle(self, command: c.Settle, now_ms: int, effects: Effects) -> None:
        """Carry out a Settle."""
        consumer = self._consumers_by_number.get(command.consumer)
        if consumer is not None:
            queue = consumer.queue
            unsettled = consumer.unsettled
            outcome = command.outcome
            settled = 0
            first: Entry | None = None
            for number in command.numbers:
                entry = unsettled.pop(number, None)
                if entry is None:
                    continue
                settled += 1
                if outcome == 1:  # Outcome.ACCEPTED, without the look-up of an enumeration member per message
                    if entry.group:
                        queue.leave_hand(entry)
                    if entry.delivery_count:
                        self._note_ended(consumer, entry, effects)
                    queue.remove(entry, effects)
                else:
                    first = first or entry
                    self._endings.not_accepted(queue, entry, outcome, effects, consumer)
            if first is not None:
                if outcome is Outcome.MODIFIED:
                    self._endings.undone(consumer, effects)
                if _is_failure(outcome):
                    self._endings.consumer_failed(consumer, first)
            elif consumer.failed_on and settled:
                self._endings.processed_one(consumer)
            self._totals.settled += settled
            self._holds_less(consumer, settled, effects)
        if command.reply is not None:
            effects.replies.append((command.reply, None))

    def settle_committed(self, settled: Iterable[tuple[Consumer, Mapping[int, c.Ending]]], effects: Effects) -> None:
        """Settle the deliveries of a commit, which are all held, by consumer."""
        not_accepted = self._endings.not_accepted
        for consumer, outcomes in settled:
            queue, unsettled = consumer.queue, consumer.unsettled
            for number, outcome in outcomes.items():
                entry = unsettled.pop(number)
                if outcome is Outcome.ACCEPTED:
                    if entry.group:
                        queue.leave_hand(entry)
                    if entry.delivery_count:
                        self._note_ended(consumer, entry, effects)
                    queue.remove(entry, effects)
                else:
                    not_accepted(queue, entry, outcome, effects, consumer)
            if consumer.failed_on and Outcome.ACCEPTED in outcomes.values():
                self._endings.processed_one(consumer)
            self._holds_less(consumer, len(outcomes), effects)

    def _note_ended(self, consumer: Consumer, entry: Entry, effects: Effects) -> None:
        """A message is processed of which a delivery had failed.

        That of another connection, say, which may have acknowledged it in vain; what this one had lost of it before
        does not matter any more.
        """
        queue = consumer.queue
        queue.note_ended(entry, effects)
        token = self._directory.clients[consumer.client].token
        if token is not None:
            self.losses.take_one(token, queue.id, entry.position)

    def give_back(
        self,
        consumer: Consumer,
        numbers: Sequence[int],
        why: c.Disconnect | c.GiveBack | c.Detach,
        effects: Effects,
        token: str | None = None,
    ) -> None:
        """Make the deliveries of a consumer that goes available again.

        Args:
            consumer: the consumer.
            numbers: of the deliveries.
            why: says which of them count as failed.
            effects: of the decision.
            token: of its lost connection.
        """
        once = not isinstance(why, c.Detach) and why.stops
        self._consumers.let_go(consumer, len(numbers))
        for number in numbers:
            entry = consumer.unsettled.pop(number)
            counts = why.failed and not consumer.has_not_seen(number) and not (once and entry.delivery_count)
            if counts and token is not None:
                self.losses.note(token, Place(consumer.queue.id, entry.lane.number, entry.position))
            self._endings.not_accepted(consumer.queue, entry, Outcome.MODIFIED if counts else Outcome.RELEASED, effects)

    def detach(self, command: c.Detach, now_ms: int, effects: Effects) -> None:
        """Carry out a Detach."""
        consumer = self._consumers_by_number.get(command.consumer)
        if consumer is not None and (consumer.attached or command.give_back):
            self._consumers.end(consumer, effects)
            consumer.never_delivered = command.never_delivered
            numbers = [each for each in consumer.unsettled if command.give_back or consumer.has_not_seen(each)]
            self.give_back(consumer, numbers, command, effects)
            if not consumer.unsettled:
                self._removal.unregister(consumer, self._directory.clients[consumer.client], effects)
        browser = self._directory.browsers.pop(command.consumer, None)
        if browser is not None:
            del self._directory.clients[browser.client].browsers[browser.id]
            self._consumers.end_browser(browser, effects)
        effects.answer(command, 0 if consumer is None else len(consumer.unsettled))

    def take_in_hand(self, command: c.TakeInHand, now_ms: int, effects: Effects) -> None:
        """Carry out a TakeInHand."""
        consumer = self._consumers_by_number.get(command.consumer)
        entry = None if consumer is None else consumer.unsettled.get(command.number)
        may_be_given = True
        if consumer is not None and entry is not None:
            queue = consumer.queue
            may_be_given = queue.take_in_hand(entry, effects)
            if not may_be_given:
                del consumer.unsettled[command.number]
                queue.leave_hand(entry)
                self._endings.failed_too_often(queue, entry, effects)
                self._holds_less(consumer, 1, effects)
        effects.answer(command, may_be_given)

    def quarantined(self, command: c.Quarantined, now_ms: int, effects: Effects) -> None:
        """Carry out a Quarantined."""
        consumer = self._consumers_by_number.get(command.consumer)
        if command.stays:
            if consumer is not None and consumer.attached and command.number in consumer.unsettled:
                self._changed[consumer.queue.id] = consumer.queue
                consumer.credit += 1
                consumer.queue.offer(consumer)
            effects.answer(command, None)
            return
        entry = consumer.unsettled.pop(command.number, None) if consumer is not None else None
        if consumer is not None and entry is not None:
            consumer.queue.leave_hand(entry)
            consumer.queue.remove(entry, effects, keep_message=True)
            consumer.credit += 1 if consumer.attached else 0
            self._holds_less(consumer, 1, effects)
            self._totals.quarantined += 1
        effects.answer(command, None)

    def roll_back(self, command: c.Commit, error: JMSException, effects: Effects) -> None:
        """Answer a commit with an error; its client has released the deliveries, so these have failed."""
        failed: dict[Consumer, Entry] = {}
        for consumer_number, number, _ in command.settlements:
            consumer = self._consumers_by_number.get(consumer_number)
            entry = consumer.unsettled.pop(number, None) if consumer is not None else None
            if consumer is not None and entry is not None:
                self._consumers.let_go(consumer, 1)
                self._endings.not_accepted(consumer.queue, entry, Outcome.MODIFIED, effects, consumer)
                failed.setdefault(consumer, entry)
                if not consumer.attached and not consumer.unsettled:
                    self._removal.unregister(consumer, self._directory.clients[consumer.client], effects)
        for consumer, entry in failed.items():
            self._endings.undone(consumer, effects)
            self._endings.consumer_failed(consumer, entry)
        effects.answer(command, error)

    def seen(self, command: c.Seen, now_ms: int, effects: Effects) -> None:
        """Carry out a Seen."""
        self.losses.seen(command.token, command.queue, command.positions)
        effects.answer(command, None)

    def seen_rest(self, command: c.SeenRest, now_ms: int, effects: Effects) -> None:
        """Carry out a SeenRest."""
        self.losses.remove(command.token)
        effects.answer(command, None)

    def uncount(self, command: c.Uncount, now_ms: int, effects: Effects) -> None:
        """Carry out a Uncount."""
        token, number = command.token, command.queue
        wanted = dict(command.positions)
        if token is not None and self.losses.knows(token):
            wanted = {each: None for each in wanted if self.losses.take_one(token, number, each)}
        effects.answer(command, self._uncount(number, wanted, command.found, effects))

    def uncount_rest(self, command: c.UncountRest, now_ms: int, effects: Effects) -> None:
        """Carry out a UncountRest."""
        lost = self.losses.take(command.token, command.most)
        found = _by_queue(command.found)
        uncounted = 0
        for number, places in _by_queue(lost).items():
            wanted = {each.position: None for each in places}
            uncounted += self._uncount(number, wanted, found.get(number, ()), effects)
        effects.answer(command, (uncounted, len(lost) == command.most))

    def _uncount(
        self, number: int, wanted: Mapping[int, int | None], found: Iterable[RawEntry], effects: Effects
    ) -> int:
        """Take a failed delivery back of each of some messages, wherever these are; returns of how many.

        Args:
            number: of the queue.
            wanted: position → how many deliveries had failed before that one; None: any number.
            found: what the stores have of those that are not in memory.
            effects: of the decision.
        """
        queue = self._directory.queues.get(number)
        if queue is None:
            return 0
        entries = queue.all_in_memory(wanted)
        for raw in found:
            if raw.position in wanted and raw.position not in entries:
                entry = queue.behind(raw, effects)
                if entry is not None:
                    entries[raw.position] = entry
        uncounted = 0
        for position, entry in entries.items():
            if entry.delivery_count and wanted[position] in (None, entry.delivery_count - 1):
                queue.count(entry, -1, effects)
                uncounted += 1
        return uncounted

    def ended_elsewhere(self, token: str | None, queue: int, given: Mapping[int, int | None]) -> list[int]:
        """Which messages of a lost connection its client had acknowledged in vain.

        Others have processed them since, or they are dead letters or in the expiry queue.

        Args:
            token: of the connection; None: not known.
            queue: of the messages.
            given: position → the failures before the delivery that was acknowledged; None: not known.  That tells
                where it is not known what the connection had.
        """
        if token is not None and self.losses.knows(token):
            has, has_ended = self.losses.has, self.redelivered.has_ended
            return [each for each in given if has_ended(queue, each) and has(token, queue, each)]
        was = self.redelivered.ended_later
        return [each for each, failures in given.items() if failures is not None and was(queue, each, failures)]

    def lost_elsewhere(self, command: c.Uncount | c.UncountRest) -> list[Place]:
        """What such a command is about that is not in memory: where it may be in the stores."""
        if isinstance(command, c.UncountRest):
            places = self.losses.places(command.token, command.most)
        elif command.token is not None:
            positions = [position for position, _ in command.positions]
            places = self.losses.places_of(command.token, command.queue, positions)
        else:
            places = []
        found: list[Place] = []
        for number, part in _by_queue(places).items():
            queue = self._directory.queues.get(number)
            if queue is not None:
                there = queue.all_in_memory([each.position for each in part])
                found += [each for each in part if each.position not in there]
        return found


def _is_failure(ending: c.Ending) -> bool:
    """Return whether a consumer that ends a delivery so has failed: one that says when it is to come has decided."""
    if isinstance(ending, Outcome):
        return ending in _FAILURES
    return (
        ending.outcome in _FAILURES
        and not ending.delay_ms
        and not (isinstance(ending, c.Modified) and (ending.undeliverable or ending.deliver_at_ms))
    )


def _by_queue(places: Iterable[P]) -> dict[int, list[P]]:
    found: dict[int, list[P]] = {}
    for each in places:
        found.setdefault(each.queue, []).append(each)
    return found
