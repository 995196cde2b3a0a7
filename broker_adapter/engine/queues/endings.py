"""How messages end or come back: failed, given back, dead-lettered, expired.

Theory of operation
    A delivery that is not accepted makes its message available again, at its place in the queue.  A message that has
    failed a second time waits for a while before (redelivery *back-off*).  A message that failed too often, or
    that a consumer rejects, goes into the dead-letter queue.  One that expires is dropped, or goes into the expiry
    queue.  Messages in these two queues stay there: they do not expire any more, and have properties that say why they
    are there and where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from ack_modes import Failure, Outcome
from broker_adapter.annotations import ANNOTATION_PREFIX, EXCEPTION_ANNOTATION, with_annotations
from broker_adapter.destination import Destination
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.messaging import LATEST_MS, Ending, Modified
from broker_adapter.engine.queues.backoff import FEW, Waits, redelivery_delay_ms, who_waits
from broker_adapter.engine.queues.directory import Directory, shown_name
from broker_adapter.engine.queues.entries import Entry, Lane
from broker_adapter.engine.queues.limits import drops_oldest
from broker_adapter.engine.queues.queue import Consumer, QueueState, in_group
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import FLAG_ANNOTATED, FLAG_PERSISTENT, encode_annotations, lane_of_delayed
from broker_adapter.envelope import (
    DEAD_LETTER_EXCEPTION,
    DEAD_LETTER_PREFIX,
    DEAD_LETTER_QUEUE,
    DEAD_LETTER_REASON,
    DEAD_LETTER_SUBSCRIPTION,
    MAX_REASON,
)

#: See :class:`Endings`.
ReadAnnotations = Callable[[bytes, int, Effects], dict[str, Any] | None]

#: Why a message is a dead letter that has been delivered as often as may be.
TOO_OFTEN = "delivered {} times without success ({})"
#: Why a message is a dead letter that a consumer has rejected; what the consumer says follows.
REJECTED = "rejected by a consumer"
#: Why a message is a dead letter that its consumers do not take.
NOT_HERE = "undeliverable at its consumers"
#: Properties that the engine adds to a message that it puts into the dead-letter or the expiry queue, beside why and
#: where it was: the client id of its subscription, and how often the delivery had failed.
DEAD_LETTER_CLIENT_ID = f"{DEAD_LETTER_PREFIX}CLIENT_ID"
DEAD_LETTER_COUNT = f"{DEAD_LETTER_PREFIX}COUNT"


class Endings:
    """Ends messages, or makes them available again.

    Attributes:
        due: a heap of (due, queue number): when the first back-off, or waiting of a refused message, of a queue is
            over; those that are not so any more are skipped.
    """

    def __init__(self, directory: Directory, totals: Totals, time: DecisionTime, read: ReadAnnotations) -> None:
        """Nothing has ended.

        Args:
            directory: what exists.
            totals: counts what is ended.
            time: of the decision under way.
            read: returns what was added to a message, by the key and flags of its entry, with what is decided already.
        """
        self._directory = directory
        self._changed = directory.changed
        self._settings = directory.settings
        self._totals = totals
        self._time = time
        self._read = read
        self._refused_ms = round(directory.settings.max_redelivery_delay_seconds * 1000)
        self.due: list[tuple[int, int]] = []
        self._due_ms: dict[int, int] = {}  #: queue number → what is so

    def not_accepted(
        self, queue: QueueState, entry: Entry, ending: Ending, effects: Effects, by: Consumer | None = None
    ) -> None:
        """A delivery has ended, and not in an acceptance.

        Args:
            queue: of the message.
            entry: of the message.
            ending: how the delivery has ended.
            effects: of the decision.
            by: the consumer that failed to process the message; None: nobody did.
        """
        self._changed[queue.id] = queue
        if entry.group:
            queue.leave_hand(entry)
        modified, reason = None, ""
        if not isinstance(ending, Outcome):
            if isinstance(ending, Failure):
                reason = ending.reason[:MAX_REASON]
            modified = ending if isinstance(ending, Modified) else _failed(ending)
            ending = modified.outcome
            if modified.annotations:
                added = with_annotations(self.annotations(entry, effects), modified.annotations)
                self._annotate(entry, added, effects)
            if modified.undeliverable and by is not None and by.attached:
                if not queue.undeliverable.refuse(entry.position, by):
                    ending, by = Outcome.FAILED, None  # too many are noted: it may come to any consumer again
                elif ending is not Outcome.RELEASED:
                    ending, by = Outcome.MODIFIED, None  # the others may have it at once
        released = ending is Outcome.RELEASED
        counted = bool(queue.suspects) and queue.out_of_hand(entry, seen=not released)
        if entry.expires_at_ms and entry.expires_at_ms <= self._time.now_ms:
            entry.delivery_count += (not released) - counted  # who lost this delivery may ask what became of it
            self.expire(queue, entry, effects)
            return
        waits = Waits.MESSAGE
        counts = True
        if released:
            if counted:
                queue.count(entry, -1, effects)
        else:
            if by is not None:
                undone, is_in_group = ending is Outcome.MODIFIED, in_group(entry, by)
                waits = who_waits(undone=undone, keeps_order=queue.keeps_order(by), in_group=is_in_group)
                # Marked it has to be: the first failure is counted.
                counts = not entry.delivery_count or waits is not Waits.MESSAGE or by not in queue.backoff.rests
            self._totals.redelivered += 1
            limit = queue.settings.max_deliveries
            failures = entry.delivery_count + (counts and not counted)
            if ending is Outcome.REJECTED and not queue.settings.takes_dead_letters:
                self.failed(queue, entry, REJECTED + (f": {reason}" if reason else ""), effects)
                return
            if limit is not None and failures >= limit and counts:
                entry.delivery_count = failures
                self.failed_too_often(queue, entry, effects)
                return
            if counts and not counted:
                queue.count(entry, 1, effects)
        if modified is not None and self._is_put_off(queue, entry, modified, effects):
            return
        if released:
            queue.release(entry, effects)
        elif by is None and ending is Outcome.MODIFIED:  # its connection was lost, say
            queue.give_back(entry, effects)
        else:  # it failed, or what was set aside is rejected again
            self._back_off(queue, entry, ending, waits, by, counts, effects)

    def _is_put_off(self, queue: QueueState, entry: Entry, modified: Modified, effects: Effects) -> bool:
        """Delay a message if a consumer that gives it back asks for that; return whether it does."""
        due_ms = modified.deliver_at_ms
        if due_ms is None:
            due_ms = self._time.now_ms + modified.delay_ms
        if due_ms <= self._time.now_ms:
            return False
        self._move(queue, entry, lambda: queue.put_off(entry, min(due_ms, LATEST_MS), effects), effects)
        return True

    def note_refused(self, queue: QueueState) -> None:
        """Note since when the messages that consumers have refused wait, and none of the others may have them."""
        if queue.settings.takes_dead_letters:
            return  # they stay
        undeliverable = queue.undeliverable
        since_ms = undeliverable.since_ms
        for position, refusers in undeliverable.refusers.items():
            entry = queue.ready.get(position)
            others = [each for each in queue.consumers if each not in refusers]
            if entry is None or position in queue.kept_for or any(queue.may_have(each, entry) for each in others):
                since_ms.pop(position, None)
            else:
                since_ms.setdefault(position, self._time.elapsed_ms)
        self._note_due(queue)

    def _end_waiting(self, queue: QueueState, effects: Effects) -> None:
        """Set aside what consumers have refused and no other could have for long enough."""
        self.note_refused(queue)
        for position, since_ms in list(queue.undeliverable.since_ms.items()):
            if since_ms + self._refused_ms <= self._time.elapsed_ms:
                seconds = self._settings.max_redelivery_delay_seconds
                reason = f"{NOT_HERE}, and no other took it within {seconds:g} s (option max_redelivery_delay_seconds)"
                self.dead_letter(queue, queue.ready.pop(position), reason, effects)
                self._changed[queue.id] = queue

    def _back_off(
        self,
        queue: QueueState,
        entry: Entry,
        ending: Outcome,
        waits: Waits,
        by: Consumer | None,
        counts: bool,
        effects: Effects,
    ) -> None:
        """Have a message delivered again, at once or after a while."""
        backoff, most = queue.backoff, self._settings.max_delayed_redeliveries
        backoff.on_trial.discard(entry.position)
        if by is not None and by in backoff.rests and waits is Waits.MESSAGE:
            failures = max(2, backoff.failures.get(entry.position) or backoff.failed(entry.position, most))
        else:
            failures = backoff.failed(entry.position, most)
        delay_ms = redelivery_delay_ms(failures, self._settings, queue.settings.redelivery_delay_seconds)
        if by is not None and not (by.attached and queue.is_served(by)):
            by = None
        # What would keep a consumer waiting that has gone, or an exclusive one that came first, comes at once.
        waits_for_nobody = by is None and (waits is Waits.CONSUMER or bool(queue.exclusive))
        if not delay_ms or waits_for_nobody or len(backoff) >= most:
            queue.give_back_to(entry, by, effects)
            return
        holders: list[Consumer | int] = []
        if waits is Waits.CONSUMER and by is not None:
            holders.append(by)
        if waits is Waits.GROUP or (holders and in_group(entry, by)):
            holders.append(entry.group)
        backoff.add(entry, self._time.elapsed_ms + delay_ms, *holders)
        self._note_due(queue)

    def processed_one(self, consumer: Consumer) -> None:
        """A consumer that had failed has processed a message: it need not rest."""
        consumer.failed_on = ()
        consumer.queue.backoff.processed_one(consumer)

    def undone(self, consumer: Consumer, effects: Effects) -> None:
        """A consumer has undone messages together: where it waits for none of them, all are at their places again."""
        queue = consumer.queue
        if consumer not in queue.backoff.holders and not queue.keeps_order(consumer):
            queue.give_to_others(consumer, effects)

    def consumer_failed(self, consumer: Consumer, entry: Entry) -> None:
        """A consumer has failed on a message, or on several at once, of which this is the first.

        It rests where its last few different messages all failed.
        """
        queue, failed_on = consumer.queue, consumer.failed_on
        if len(failed_on) < FEW and entry.position not in failed_on:
            failed_on = consumer.failed_on = (*failed_on, entry.position)
        delay = queue.settings.redelivery_delay_seconds
        if len(failed_on) == FEW and consumer.attached and delay:
            queue.backoff.rest(consumer, self._time.elapsed_ms, self._settings, delay)
            self._note_due(queue)

    def _note_due(self, queue: QueueState) -> None:
        """Note when a back-off or a waiting of a queue is over next, if that is earlier than what is noted."""
        since_ms = queue.undeliverable.since_ms
        refused_ms = min(since_ms.values()) + self._refused_ms if since_ms else LATEST_MS
        backoff_ms = queue.backoff.first_due_ms()
        due_ms = refused_ms if backoff_ms is None else min(refused_ms, backoff_ms)
        if due_ms >= self._due_ms.get(queue.id, LATEST_MS):
            return
        self._due_ms[queue.id] = due_ms
        heappush(self.due, (due_ms, queue.id))
        if len(self.due) > 2 * len(self._due_ms) + 64:
            self.due = [(due_ms, number) for number, due_ms in self._due_ms.items()]
            heapify(self.due)

    def end_delays(self, effects: Effects) -> None:
        """Make the messages available again whose back-off is over, and end the waiting of refused ones."""
        while (due_ms := self.next_due_ms()) is not None and due_ms <= self._time.elapsed_ms:
            number = heappop(self.due)[1]
            del self._due_ms[number]
            queue = self._directory.queues[number]
            for entry, holders in queue.backoff.due(self._time.elapsed_ms):
                if not holders:
                    queue.show_on_shelf(entry, effects)
                    continue
                queue.give_back_to(entry, holders[0] if isinstance(holders[0], Consumer) else None, effects)
            self._changed[queue.id] = queue
            self._end_waiting(queue, effects)
            self._note_due(queue)

    def next_due_ms(self) -> int | None:
        """Return when the next back-off or waiting is over, by ``elapsed_ms``; None where there is none."""
        while self.due:
            due_ms, number = self.due[0]
            if self._due_ms.get(number) == due_ms:
                queue = self._directory.queues.get(number)
                if queue is not None and (queue.backoff.is_waiting or queue.undeliverable.refusers):
                    return due_ms
                del self._due_ms[number]
            heappop(self.due)
        return None

    def failed_too_often(self, queue: QueueState, entry: Entry, effects: Effects) -> None:
        """Put a message into the dead-letter queue after as many failures as may be."""
        settings = queue.settings
        self.failed(queue, entry, TOO_OFTEN.format(settings.max_deliveries, settings.named("max_deliveries")), effects)

    def failed(self, queue: QueueState, entry: Entry, reason: str, effects: Effects) -> None:
        """Put a message into the dead-letter queue that consumers could not process, with what was raised last."""
        raised = self.annotations(entry, effects).get(EXCEPTION_ANNOTATION)
        self.dead_letter(queue, entry, reason, effects, raised)

    def dead_letter(self, queue: QueueState, entry: Entry, reason: str, effects: Effects, raised: Any = None) -> None:
        """Put a message that no consumer holds into the dead-letter queue."""
        self._totals.dead_lettered += 1
        name = queue.settings.dead_letter_queue
        self._set_aside(queue, entry, name, reason, effects, raised)
        effects.warn(
            ("dead letters", queue.id),
            "! a message of %s %s went to the dead-letter queue %r: %s",
            *(queue.record.kind, shown_name(queue), name, reason),
        )

    def expire(self, queue: QueueState, entry: Entry, effects: Effects) -> None:
        """End a message that no consumer holds and whose time is over."""
        self._totals.expired += 1
        name = queue.settings.expiry_queue
        if name is None or queue.destination == Destination(name):
            queue.remove(entry, effects)
        else:
            self._set_aside(queue, entry, name, "expired", effects)

    def _set_aside(
        self, queue: QueueState, entry: Entry, name: str, reason: str, effects: Effects, raised: Any = None
    ) -> None:
        """Put a message into the dead-letter or the expiry queue, where it stays; with the reason."""
        if entry.delivery_count:
            queue.note_ended(entry, effects)
        target = self._directory.queue(Destination(name), effects, limited=False)
        annotations = {
            DEAD_LETTER_REASON: reason,
            DEAD_LETTER_QUEUE: queue.destination.name,
            DEAD_LETTER_COUNT: entry.delivery_count,
        }
        if raised is not None:
            annotations[DEAD_LETTER_EXCEPTION] = raised[0] if type(raised) is list else raised
        if queue.record.kind == "subscription":
            annotations[DEAD_LETTER_SUBSCRIPTION] = queue.record.name
            annotations[DEAD_LETTER_CLIENT_ID] = queue.record.client_id
        self.move_annotated(queue, entry, target, annotations, effects)

    def move_annotated(
        self, queue: QueueState, entry: Entry, target: QueueState, annotations: dict[str, Any], effects: Effects
    ) -> None:
        """Move a message to the end of another queue, where it does not expire, with properties added.

        Of what was added to it before, it keeps the annotations of consumers, but for what one has raised.
        """
        kept = self.annotations(entry, effects)
        kept.pop(EXCEPTION_ANNOTATION, None)
        annotations |= {name: value for name, value in kept.items() if name.startswith(ANNOTATION_PREFIX)}
        queue.remove(entry, effects, keep_message=True)
        lane = entry.lane if entry.lane is not queue.delayed else Lane(lane_of_delayed(entry.flags))
        self._annotate(target.adopt(entry, lane, entry.flags & 0xFF, 0, 0, effects), annotations, effects)
        self._changed[target.id] = target
        if drops_oldest(target):
            effects.overfull.append(target.id)

    def now_due(self, queue: QueueState, entry: Entry, effects: Effects) -> None:
        """Give a delayed message its place at the end of its lane."""
        self._move(queue, entry, lambda: queue.now_due(entry, effects), effects)

    def _move(self, queue: QueueState, entry: Entry, move: Callable[[], Entry], effects: Effects) -> None:
        """Give a message another place in its queue, with what was added to it and who has refused it."""
        kept = self.annotations(entry, effects)
        refusers = queue.undeliverable.refusers.get(entry.position)
        moved = move()
        if refusers:
            queue.undeliverable.refusers[moved.position] = refusers
        if kept:
            self._annotate(moved, kept, effects)

    def annotations(self, entry: Entry, effects: Effects) -> dict[str, Any]:
        """Return what was added to the properties of a message."""
        return (self._read(entry.key, entry.flags, effects) if entry.flags & FLAG_ANNOTATED else None) or {}

    @staticmethod
    def _annotate(entry: Entry, annotations: dict[str, Any], effects: Effects) -> None:
        """Replace what was added to the properties of a message."""
        entry.flags |= FLAG_ANNOTATED
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry
        batch.put("annotations", entry.key, encode_annotations(entry.key, annotations))


def _failed(failure: Failure) -> Modified:
    raised = failure.reason if failure.outcome is Outcome.FAILED else ""
    annotations = {EXCEPTION_ANNOTATION: raised[:MAX_REASON]} if raised else None
    return Modified(failure.outcome, annotations=annotations, delay_ms=failure.delay_ms)
