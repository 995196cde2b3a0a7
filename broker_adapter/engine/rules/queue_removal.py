"""How queues, subscriptions and consumers are removed.

A queue that ends gives up its consumers and what they hold.  Its entries are trimmed by a background job, and then it
is dropped.  A subscription that is not durable ends with its last consumer.
"""

from __future__ import annotations

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import deleted
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.queues.consumers import Consumers
from broker_adapter.engine.queues.directory import Client, Directory, is_volatile, shown_name
from broker_adapter.engine.queues.limits import drops_oldest
from broker_adapter.engine.queues.queue import Consumer, QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import queue_key
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.blocked_sends import BlockedSends
from broker_adapter.wording import counted


class QueueRemoval:
    """Removes queues and consumers."""

    def __init__(
        self,
        directory: Directory,
        consumers: Consumers,
        blocked_sends: BlockedSends,
        admission: Admission,
        published: LastNumbers,
        time: DecisionTime,
    ) -> None:
        self._directory = directory
        self._changed = directory.changed
        self._consumers = consumers
        self._let_go = consumers.let_go
        self._blocked = blocked_sends
        self._admission = admission
        self._published = published
        self._time = time

    def end_queue(self, queue: QueueState, effects: Effects) -> None:
        """End a queue that no send waits for: what it holds is to be trimmed, then it is dropped.

        Its consumers are told.
        """
        for consumer in (*queue.consumers, *queue.leaving):
            for entry in consumer.unsettled.values():
                queue.give_back(entry, effects)  # so that it can be trimmed
            self._let_go(consumer, len(consumer.unsettled))
            consumer.unsettled.clear()
            if consumer.attached:
                self._consumers.end(consumer, effects)
                if consumer.ended is not None:
                    effects.replies.append((consumer.ended, deleted(queue.label)))
            self._directory.consumers.pop(consumer.id, None)
            client = self._directory.clients.get(consumer.client)
            if client is not None:
                client.consumers.pop(consumer.id, None)
        queue.leaving.clear()
        for entry in queue.backoff.take_all():
            queue.give_back(entry, effects)
        settled = self._directory.settled_group(queue)
        if queue.record.kind != "staged" and (queue.durable or self._published.last(settled) is not None):
            self._published.remove(settled, effects.durable)
        queue.record = queue.record._replace(kind="ended")
        self._directory.put_record(queue, effects)
        effects.ended.append(queue.id)

    def end_subscription(self, queue: QueueState, effects: Effects) -> None:
        """End a subscription; sends that wait for it go on without it."""
        self._directory.remove_subscription(queue)
        self._blocked.release(queue)
        self.end_queue(queue, effects)

    def give_way(self, totals: Totals, effects: Effects) -> None:
        """Carry out what ``full_subscription`` and ``when_full`` say of the queues that gave way in this decision.

        A later command of the decision may have ended one of them, or attached a reader to it.
        """
        for queue, left_out in self._admission.gave_way.items():
            way = self._admission.way_of(queue)
            if queue.record.kind == "queue":
                if drops_oldest(queue):
                    effects.overfull.append(queue.id)
                continue
            if queue.record.kind != "subscription":
                continue
            is_read = queue.consumers or queue.leaving
            if way == "drop_oldest":
                if not is_read:
                    effects.overfull.append(queue.id)  # the driver has to read what is to be dropped
            elif way == "drop_new" or is_read:
                note_dropped(queue, left_out, totals, effects)
            else:
                totals.dropped += left_out + queue.depth
                totals.subscriptions_ended += 1
                effects.warn(
                    ("ended", queue.id),
                    "! subscription %s was full, and nobody read it: it was deleted, with %s (option"
                    " full_subscription)",
                    *(shown_name(queue), counted(queue.depth, "message")),
                )
                self.end_subscription(queue, effects)
        self._admission.gave_way.clear()

    def unregister(self, consumer: Consumer, client: Client, effects: Effects) -> None:
        """Remove a consumer that is detached and holds nothing.

        A subscription that is not durable ends with its last one.
        """
        self._directory.consumers.pop(consumer.id, None)
        client.consumers.pop(consumer.id, None)
        queue = consumer.queue
        queue.leaving.pop(consumer, None)
        if not queue.consumers:
            queue.note_use(self._time.elapsed_ms)
        record = queue.record
        if record.kind != "subscription" or queue.consumers or queue.id not in self._directory.queues:
            return
        if not is_volatile(queue):
            return
        if queue.leaving:
            return
        self.end_subscription(queue, effects)

    def holds_less(self, consumer: Consumer, deliveries: int, effects: Effects) -> None:
        """So many deliveries of a consumer have ended, one by one: it may get others, or was waiting for its end."""
        self._let_go(consumer, deliveries)
        self._changed[consumer.queue.id] = consumer.queue
        if not consumer.attached and not consumer.unsettled:
            self.unregister(consumer, self._directory.clients[consumer.client], effects)

    def drop(self, command: c.Drop, now_ms: int, effects: Effects) -> None:
        """Carry out a Drop."""
        queue = self._directory.queues.pop(command.queue, None)
        if queue is not None:
            self._changed.pop(queue.id, None)
            self._consumers.idle_windows.pop(queue.id, None)
            if self._directory.staged.get(queue.record.name) is queue:
                del self._directory.staged[queue.record.name]
            self._admission.end_publishing(queue)
            queue.counters_due = False
            if queue.durable:
                effects.durable.put("catalog", queue_key(queue.id), None)
                effects.durable.put("queues", queue_key(queue.id), None)
        effects.answer(command, None)


def note_dropped(queue: QueueState, messages: int, totals: Totals, effects: Effects) -> None:
    """Note that messages were dropped of a queue that is full, or of a subscription that nobody reads beside."""
    queue.dropped += messages
    totals.dropped += messages
    is_queue = queue.record.kind == "queue"
    effects.warn(
        ("dropped", queue.id),
        "! %s %s is full%s: %s dropped since the start (%s)",
        *(queue.record.kind, shown_name(queue), "" if is_queue else ", and nobody reads it"),
        counted(queue.dropped, "message", ("was", "were")),
        queue.settings.named("when_full") if is_queue else "option full_subscription",
    )
