"""How messages end or come back: failed, given back, dead-lettered, expired.

Theory of operation
    A delivery that is not accepted makes its message available again, at its place in the queue.  A message whose
    listener raised a second time waits for a while before (redelivery *back-off*).  A message that failed too often, or
    that a consumer rejects, goes into the dead-letter queue.  One that expires is dropped, or goes into the expiry
    queue.  Messages in these two queues stay there: they do not expire any more, and have properties that say why they
    are there and where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from ack_modes import Failure, Outcome
from broker_adapter.annotations import ANNOTATION_PREFIX, EXCEPTION_ANNOTATION, with_annotations
from broker_adapter.destination import Destination
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.messaging import LATEST_MS, Ending, Modified
from broker_adapter.engine.queues.backoff import redelivery_delay_ms
from broker_adapter.engine.queues.directory import Directory, shown_name
from broker_adapter.engine.queues.entries import Entry, Lane
from broker_adapter.engine.queues.queue import Consumer, QueueState
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
TOO_OFTEN = "delivered {} times without success (option max_deliveries)"
#: Why a message is a dead letter that its consumers do not take.
NOT_HERE = "undeliverable at its consumers"
#: Properties that the engine adds to a message that it puts into the dead-letter or the expiry queue, beside why and
#: where it was: the client id of its subscription, and how often the delivery had failed.
DEAD_LETTER_CLIENT_ID = f"{DEAD_LETTER_PREFIX}CLIENT_ID"
DEAD_LETTER_COUNT = f"{DEAD_LETTER_PREFIX}COUNT"


class Endings:
    """Ends messages, or makes them available again.

    Attributes:
        backing_off: a heap of (due, queue number): when the first message of a queue is due whose delivery is delayed.
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
        self._dead_letters = directory.dead_letters
        self._settings = directory.settings
        self._totals = totals
        self._time = time
        self._read = read
        self.backing_off: list[tuple[int, int]] = []

    def not_accepted(
        self, queue: QueueState, entry: Entry, ending: Ending, effects: Effects, by: Consumer | None = None
    ) -> None:
        """A delivery has ended, and not in an acceptance.

        Args:
            queue: of the message.
            entry: of the message.
            ending: how the delivery has ended.
            effects: of the decision.
            by: the consumer that failed to process the message, and gets it again.
        """
        self._changed[queue.id] = queue
        modified = None
        if not isinstance(ending, Outcome):
            modified = ending if isinstance(ending, Modified) else _failed(ending)
            ending = modified.outcome
            if modified.annotations:
                added = with_annotations(self._annotations(entry, effects), modified.annotations)
                self._annotate(entry, added, effects)
        released = ending is Outcome.RELEASED
        counted = bool(queue.suspects) and queue.out_of_hand(entry, seen=not released)
        if entry.expires_at_ms and entry.expires_at_ms <= self._time.now_ms:
            entry.delivery_count += (not released) - counted  # who lost this delivery may ask what became of it
            self.expire(queue, entry, effects)
            return
        if released:
            if counted:
                queue.count(entry, -1, effects)
        else:
            self._totals.redelivered += 1
            limit = queue.max_deliveries
            failures = entry.delivery_count + (not counted)
            if ending is Outcome.REJECTED and not self._is_for_dead_letters(queue):
                self.dead_letter(queue, entry, "rejected by a consumer", effects)
                return
            if limit is not None and failures >= limit:
                entry.delivery_count = failures
                self.dead_letter(queue, entry, TOO_OFTEN.format(limit), effects)
                return
            if not counted:
                queue.count(entry, 1, effects)
        if modified is not None and self._goes_elsewhere(queue, entry, modified, by, effects):
            return
        if released:
            queue.release(entry, effects)
        elif ending is Outcome.MODIFIED:
            queue.give_back(entry, effects)
        else:  # its listener raised, or what was set aside is rejected again, which keeps no other from coming
            self._back_off(queue, entry, None if ending is Outcome.REJECTED else by, effects)

    def _goes_elsewhere(
        self, queue: QueueState, entry: Entry, modified: Modified, by: Consumer | None, effects: Effects
    ) -> bool:
        """Carry out what a consumer asks for that gives a message back; returns whether that is its place now."""
        if modified.undeliverable:
            if by is None or not by.attached:
                return False
            if queue.undeliverable.refuse(entry.position, by, self._wait_for_others(queue)):
                queue.give_back(entry, effects)
            else:
                self.dead_letter(queue, entry, f"{NOT_HERE}, and so are many others, or at many consumers", effects)
            return True
        due_ms = modified.deliver_at_ms
        if due_ms is None:
            due_ms = self._time.now_ms + modified.delay_ms
        # A message that is delayed gets another position, at which it would not be known who has refused it.
        if due_ms <= self._time.now_ms or entry.position in queue.undeliverable.refusers:
            return False
        self._move(entry, lambda: queue.put_off(entry, min(due_ms, LATEST_MS), effects), effects)
        return True

    def _wait_for_others(self, queue: QueueState) -> int:
        """When a message of a queue that a consumer has refused has waited long enough for another one."""
        due_ms = self._time.elapsed_ms + max(1, round(self._settings.max_redelivery_delay_seconds * 1000))
        heappush(self.backing_off, (due_ms, queue.id))
        return due_ms

    def _end_waiting(self, queue: QueueState, position: int, effects: Effects) -> None:
        """A message that consumers have refused has waited for others."""
        undeliverable = queue.undeliverable
        refusers = undeliverable.refusers[position]
        others = [each for each in queue.consumers if each not in refusers and each.search is None]
        entry = queue.ready.get(position)
        if (
            entry is None
            or position in queue.kept_for
            or self._is_for_dead_letters(queue)
            or any(queue.is_served(each) for each in others)
        ):
            undeliverable.wait_until(position, self._wait_for_others(queue))
            return
        del queue.ready[position]
        seconds = self._settings.max_redelivery_delay_seconds
        reason = f"{NOT_HERE}, and no other took it within {seconds:g} s (option max_redelivery_delay_seconds)"
        self.dead_letter(queue, entry, reason, effects)
        self._changed[queue.id] = queue

    def _is_for_dead_letters(self, queue: QueueState) -> bool:
        return queue.destination == self._dead_letters

    def _back_off(self, queue: QueueState, entry: Entry, consumer: Consumer | None, effects: Effects) -> None:
        """Have a message delivered again, at once or after a while."""
        most = self._settings.max_delayed_redeliveries
        delay_ms = redelivery_delay_ms(queue.backoff.failed(entry.position, most), self._settings)
        if consumer is not None and not (consumer.attached and queue.is_served(consumer)):
            consumer = None
        if not delay_ms or len(queue.backoff) >= most:
            queue.give_back_to(entry, consumer, effects)
            return
        due_ms = self._time.elapsed_ms + delay_ms
        first_ms = queue.backoff.first_due_ms()
        queue.backoff.add(entry, due_ms, consumer)
        if first_ms is None or due_ms < first_ms:
            heappush(self.backing_off, (due_ms, queue.id))

    def end_back_off(self, effects: Effects) -> None:
        """Make the messages available again whose back-off is over, and end the waiting of refused ones."""
        backing_off = self.backing_off
        while backing_off and backing_off[0][0] <= self._time.elapsed_ms:
            queue = self._directory.queues.get(heappop(backing_off)[1])
            if queue is None:
                continue
            for entry, consumer in queue.backoff.due(self._time.elapsed_ms):
                queue.give_back_to(entry, consumer, effects)
                self._changed[queue.id] = queue
            for position in queue.undeliverable.due(self._time.elapsed_ms):
                self._end_waiting(queue, position, effects)
            next_ms = queue.backoff.first_due_ms()
            if next_ms is not None:
                heappush(backing_off, (next_ms, queue.id))

    def next_due_ms(self) -> int | None:
        """When the next back-off is over, by ``elapsed_ms``; None where there is none."""
        backing_off = self.backing_off
        while backing_off:
            queue = self._directory.queues.get(backing_off[0][1])
            if queue is not None and (queue.backoff or queue.undeliverable.refusers):
                return backing_off[0][0]
            heappop(backing_off)
        return None

    def dead_letter(self, queue: QueueState, entry: Entry, reason: str, effects: Effects) -> None:
        """Put a message that no consumer holds into the dead-letter queue."""
        self._totals.dead_lettered += 1
        name = self._settings.dead_letter_queue
        self._set_aside(queue, entry, name, reason, effects)
        effects.warn(
            ("dead letters", queue.id),
            "! a message of %s %s went to the dead-letter queue %r: %s",
            *(queue.record.kind, shown_name(queue), name, reason),
        )

    def expire(self, queue: QueueState, entry: Entry, effects: Effects) -> None:
        """End a message that no consumer holds and whose time is over."""
        self._totals.expired += 1
        name = self._settings.expiry_queue
        if name is None or queue.destination == Destination(name):
            queue.remove(entry, effects)
        else:
            self._set_aside(queue, entry, name, "expired", effects)

    def _set_aside(self, queue: QueueState, entry: Entry, name: str, reason: str, effects: Effects) -> None:
        """Put a message into the dead-letter or the expiry queue, where it stays; with the reason."""
        if entry.delivery_count:
            queue.note_ended(entry, effects)
        target = self._directory.queue(Destination(name), effects, limited=False)
        annotations = {
            DEAD_LETTER_REASON: reason,
            DEAD_LETTER_QUEUE: queue.destination.name,
            DEAD_LETTER_COUNT: entry.delivery_count,
        }
        raised = self._annotations(entry, effects).get(EXCEPTION_ANNOTATION)
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

        Of what was added to it before, it keeps the annotations of consumers.
        """
        kept = self._annotations(entry, effects)
        annotations |= {name: value for name, value in kept.items() if name.startswith(ANNOTATION_PREFIX)}
        queue.remove(entry, effects, keep_message=True)
        lane = entry.lane if entry.lane is not queue.delayed else Lane(lane_of_delayed(entry.flags))
        self._annotate(target.adopt(entry, lane, entry.flags & 0xFF, 0, 0, effects), annotations, effects)
        self._changed[target.id] = target

    def now_due(self, queue: QueueState, entry: Entry, effects: Effects) -> None:
        """Give a delayed message its place at the end of its lane."""
        self._move(entry, lambda: queue.now_due(entry, effects), effects)

    def _move(self, entry: Entry, move: Callable[[], Entry], effects: Effects) -> None:
        """Give a message another place, with what was added to it."""
        kept = self._annotations(entry, effects)
        moved = move()
        if kept:
            self._annotate(moved, kept, effects)

    def _annotations(self, entry: Entry, effects: Effects) -> dict[str, Any]:
        """What was added to the properties of a message."""
        return (self._read(entry.key, entry.flags, effects) if entry.flags & FLAG_ANNOTATED else None) or {}

    @staticmethod
    def _annotate(entry: Entry, annotations: dict[str, Any], effects: Effects) -> None:
        """Replace what was added to the properties of a message."""
        entry.flags |= FLAG_ANNOTATED
        batch = effects.durable if entry.flags & FLAG_PERSISTENT else effects.volatile
        batch.entries[entry.key] = entry
        batch.put("annotations", entry.key, encode_annotations(entry.key, annotations))


def _failed(failure: Failure) -> Modified:
    return Modified(Outcome.FAILED, annotations={EXCEPTION_ANNOTATION: failure.reason[:MAX_REASON]})
