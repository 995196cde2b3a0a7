"""How destinations are declared and deleted: queues, topics with their subscriptions, temporary ones, idle ones."""

from __future__ import annotations

from collections.abc import Container

from broker_adapter.destination import (
    TEMPORARY_QUEUE_PREFIX,
    TEMPORARY_TOPIC_PREFIX,
    Destination,
    DestinationKind,
    checked_name,
)
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.directory import Client, Directory, attached, shown_name
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import FIRST_VOLATILE_QUEUE, CatalogRecord
from broker_adapter.engine.rules.blocked_sends import BlockedSends
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.errors import IllegalStateException, InvalidDestinationException
from broker_adapter.refusals import consumed, no_destination, not_own
from broker_adapter.wording import counted

#: Queues that one DeleteIdle checks.
_IDLE_STEP = 1000


class Destinations:
    """Declares and deletes destinations; ``regions``: their names, for errors."""

    def __init__(
        self,
        directory: Directory,
        removal: QueueRemoval,
        blocked_sends: BlockedSends,
        time: DecisionTime,
        regions: Container[str],
    ) -> None:
        self._directory = directory
        self._regions = regions
        self._removal = removal
        self._blocked = blocked_sends
        self._time = time
        self._swept = 0  #: how many of the queues were checked for being idle

    def declare(self, command: c.Declare, now_ms: int, effects: Effects) -> None:
        """Carry out a Declare."""
        destination = command.destination
        if destination.is_topic:
            self._directory.topic(destination)
        else:
            self._directory.queue(destination, effects).note_use(self._time.elapsed_ms)
        effects.answer(command, None)

    def declare_temporary(self, command: c.DeclareTemporary, now_ms: int, effects: Effects) -> None:
        """Carry out a DeclareTemporary."""
        client = self._directory.client(command.client)
        if command.kind not in (DestinationKind.TEMPORARY_QUEUE, DestinationKind.TEMPORARY_TOPIC):
            raise InvalidDestinationException(f"{command.kind!r} is not a temporary kind")
        is_topic = command.kind is DestinationKind.TEMPORARY_TOPIC
        prefix = TEMPORARY_TOPIC_PREFIX if is_topic else TEMPORARY_QUEUE_PREFIX
        name = self._directory.temporary_name(prefix)
        name = command.name or name
        destination = Destination(checked_name(name), command.kind)
        if destination in self._directory.by_destination or destination in self._directory.topics:
            raise InvalidDestinationException(f"temporary destination {name!r} exists already")
        self._directory.check_limit()
        if destination.is_topic:
            self._directory.topics[destination] = []
        else:
            queue = self._directory.new_volatile_queue(destination, CatalogRecord("queue", name))
            queue.owner = client.id
            self._directory.by_destination[destination] = queue
        client.temporaries[destination] = None
        effects.answer(command, destination)

    def delete_temporary(self, command: c.DeleteTemporary, now_ms: int, effects: Effects) -> None:
        """Carry out a DeleteTemporary."""
        client = self._directory.client(command.client)
        destination = command.destination
        if destination not in client.temporaries:
            raise not_own(destination)
        directory = self._directory
        users = directory.topics[destination] if destination.is_topic else [directory.by_destination[destination]]
        if any(queue.consumers for queue in users):
            raise consumed(destination)
        self.end_temporary(client, destination, effects)
        effects.answer(command, None)

    def end_temporary(self, client: Client, destination: Destination, effects: Effects) -> None:
        """End a temporary destination of a client."""
        del client.temporaries[destination]
        if destination.is_topic:
            self._directory.topics.pop(destination, None)
        else:
            queue = self._directory.by_destination.pop(destination)
            self._blocked.refuse_waiting_for(queue, effects)
            self._removal.end_queue(queue, effects)

    def delete(self, command: c.Delete, now_ms: int, effects: Effects) -> None:
        """Carry out a Delete."""
        destination = command.destination
        if destination.is_topic:
            found = list(self._directory.topic(destination))
            if command.subscription is not None:
                found = [
                    queue
                    for queue in found
                    if (queue.record.name, queue.record.client_id) == (command.subscription, command.client_id)
                ]
            if not found:
                if command.subscription is None:
                    raise no_destination("topic", destination.name, is_region=destination.name in self._regions)
                raise self._directory.no_such_subscription(destination, command.subscription, command.client_id)
        else:
            if destination in self._directory.permanent:
                raise InvalidDestinationException(
                    f"{destination.name!r} takes what is set aside, and always exists; it can be purged"
                )
            queue = self._directory.by_destination.get(destination)
            if queue is None:
                raise no_destination("queue", destination.name, is_region=destination.name in self._regions)
            found = [queue]
        if command.queue is not None and [queue.id for queue in found] != [command.queue]:
            raise InvalidDestinationException(
                f"{found[0].label!r} was deleted and made again meanwhile; check it again"
            )
        if destination.is_temporary:
            raise InvalidDestinationException(
                f"temporary destination {destination.name!r} is deleted by the connection that made it"
            )
        for queue in found:
            used = self._used_by(queue)
            if used is not None and not command.force:
                raise IllegalStateException(
                    f"cannot delete {queue.label!r}: {used}; end that first, or force it (holdfast delete --force)"
                )
        messages = sum([queue.depth for queue in found])
        for queue in found:
            self._end(queue, effects)
        effects.answer(command, messages)

    def _used_by(self, queue: QueueState) -> str | None:
        """What uses a queue, in words; None: nothing does."""
        if queue.consumers:
            return attached(queue)
        if queue.leaving:
            return f"sessions hold {counted(queue.in_hand, 'message')} of it"
        if queue.wait_queue:
            return f"{counted(len(queue.wait_queue), 'send', ('waits', 'wait'))} for room in it"
        if any(browser.queue is queue for browser in self._directory.browsers.values()):
            return "a browser reads it"
        if any(
            each.record.target == queue.record.name and queue.record.kind == "queue"
            for each in self._directory.staged.values()
        ):
            return "staged transactions are to be published to it"
        return None

    def _end(self, queue: QueueState, effects: Effects) -> None:
        """End a queue or subscription."""
        if queue.record.kind == "subscription":
            self._removal.end_subscription(queue, effects)
        else:
            del self._directory.by_destination[queue.destination]
            self._blocked.refuse_waiting_for(queue, effects)
            self._removal.end_queue(queue, effects)

    def delete_idle(self, command: c.DeleteIdle, now_ms: int, effects: Effects) -> None:
        """Carry out a DeleteIdle."""
        numbers = list(self._directory.queues)[self._swept : self._swept + _IDLE_STEP]
        self._swept = self._swept + _IDLE_STEP if len(numbers) == _IDLE_STEP else 0
        deleted: list[tuple[str, str, int, str]] = []
        for number in numbers:
            queue = self._directory.queues[number]
            if self._is_idle(queue) and self._used_by(queue) is None:
                deleted.append((queue.record.kind, shown_name(queue), queue.depth, self._idle_because(queue)))
                self._end(queue, effects)
        effects.answer(command, deleted)

    def _idle_because(self, queue: QueueState) -> str:
        """Say for how long a queue or subscription that is idle was not used, and which setting that is."""
        seconds, named = queue.settings.delete_idle_seconds, queue.settings.named("delete_idle_seconds")
        if queue.record.kind == "subscription":
            seconds = self._directory.settings.delete_idle_subscriptions_seconds
            named = "option delete_idle_subscriptions_seconds"
        return f"{seconds:g} s ({named})"

    def use_policies(self, command: c.UsePolicies, now_ms: int, effects: Effects) -> None:
        """Carry out a UsePolicies."""
        effects.answer(command, self._directory.use_policies(command.policies, command.after, effects))

    def _is_idle(self, queue: QueueState) -> bool:
        """Whether an option says that a queue or subscription is to be deleted, if nothing uses it now."""
        if queue.id >= FIRST_VOLATILE_QUEUE or queue.consumers:
            return False
        kind = queue.record.kind
        # The time before a restart does not count: clients that used it need time to come back.
        queue.used_ms = queue.used_ms or self._time.elapsed_ms
        if kind == "queue":
            seconds, since_ms = queue.settings.delete_idle_seconds, queue.used_ms
            if queue.depth or queue.destination in self._directory.permanent:
                return False
        elif kind == "subscription":
            seconds = self._directory.settings.delete_idle_subscriptions_seconds
            since_ms = queue.left_since(self._time.elapsed_ms)
        else:
            return False
        return seconds is not None and since_ms + int(seconds * 1000) <= self._time.elapsed_ms
