"""How consumers and browsers attach to queues and topics, and how subscriptions are made and ended by that."""

from __future__ import annotations

from broker_adapter.destination import Destination, checked_name
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.consumers import Consumers
from broker_adapter.engine.queues.directory import Client, Directory, named_queue, whose
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import CatalogRecord
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.errors import IllegalStateException, InvalidDestinationException
from broker_adapter.refusals import has_consumer, not_browsable, not_durable, of_other_kind, subscribed
from broker_adapter.selectors.language import parse_selector

#: A number that no queue has.
_NO_QUEUE = (1 << 32) - 1


class Attachments:
    """Attaches consumers and browsers."""

    def __init__(self, directory: Directory, consumers: Consumers, removal: QueueRemoval) -> None:
        self._directory = directory
        self._consumers = consumers
        self._removal = removal
        #: for browsers of a queue that does not exist
        self._nowhere = QueueState(
            _NO_QUEUE,
            Destination("nowhere"),
            CatalogRecord("queue", "nowhere"),
            durable=False,
            memory=directory.memory,
            settings=directory.policies.options,
            max_unsettled=1,
        )

    def attach(self, command: c.Attach, now_ms: int, effects: Effects) -> None:
        """Carry out an Attach."""
        client = self._directory.client(command.client)
        selector = parse_selector(command.selector) if command.selector else None
        destination = command.destination
        subscription = command.subscription
        if destination.is_topic:
            if command.browse:
                raise not_browsable(destination)
            if destination.is_temporary and subscription is not None and subscription.durable:
                raise not_durable(destination)
            if destination.is_temporary and destination not in client.temporaries:
                raise InvalidDestinationException(
                    f"temporary topic {destination.name!r} can be consumed only by the connection that made it"
                )
            subscribed = self._subscribe(client, command, effects)
            if isinstance(subscribed, c.WouldReplace):
                effects.answer(command, subscribed)
                return
            queue = subscribed
            selector = None  # the subscription takes in only what it wants
        else:
            if subscription is not None:
                raise InvalidDestinationException(f"cannot subscribe to the queue {destination.name!r}")
            found = self._directory.by_destination.get(destination)
            if found is None and command.browse and not named_queue(destination.name).is_temporary:
                checked_name(destination.name)
                found = self._nowhere
            queue = found if found is not None else self._directory.queue(destination, effects)
            if queue.owner is not None and queue.owner != client.id:
                raise InvalidDestinationException(
                    f"temporary queue {destination.name!r} can be consumed only by the connection that made it"
                )
        if command.browse:
            effects.answer(command, self._consumers.browse(client, queue, command, selector).id)
            return
        effects.answer(command, self._consumers.attach(client, queue, command, selector, effects).id)

    def _subscribe(self, client: Client, command: c.Attach, effects: Effects) -> QueueState | c.WouldReplace:
        """The queue of the subscription that a consumer attaches to; it is made where there is none.

        Returns:
            WouldReplace, and nothing has changed, where it would replace one that the command may not replace.
        """
        topic = command.destination
        subscription = command.subscription
        selector = command.selector or None
        self._directory.topic(topic)
        if subscription is None:
            record = CatalogRecord("subscription", "", topic.name, None, False, command.no_local, selector)
            queue = self._directory.new_subscription(client, topic, record, False, effects)
            queue.owner = client.id
            return queue
        name = checked_name(subscription.name, "subscription")
        if subscription.durable and not subscription.shared and client.client_id is None:
            raise IllegalStateException(
                f"durable subscription {name!r} needs a client id; give one to create_connection(client_id=...)"
            )
        client_id = client.client_id if subscription.of_client else None
        key = (client_id, name, subscription.durable)
        existing = self._directory.subscriptions.get(key)
        if existing is not None:
            record = existing.record
            same = (record.topic, record.no_local, record.selector) == (topic.name, command.no_local, selector)
            if record.shared != subscription.shared:
                raise of_other_kind(name, shared=record.shared)
            if existing.consumers and not subscription.shared:
                raise has_consumer(name)
            if existing.consumers and not same:
                raise IllegalStateException(
                    f"subscription {name!r} is in use on topic {record.topic!r} with selector {record.selector!r};"
                    " ask for the same, or close its consumers first"
                )
            if same:
                return existing
            if command.may_replace is not None and existing.id not in command.may_replace:
                return c.WouldReplace(existing.id)
        else:
            self._directory.check_limit()
        record = CatalogRecord(
            "subscription", name, topic.name, client_id, subscription.shared, command.no_local, selector
        )
        if existing is not None:
            # JMS 3.1 section 8.3.3: with another topic, selector or no_local it is another subscription.
            self._removal.end_subscription(existing, effects)
        queue = self._directory.new_subscription(client, topic, record, subscription.durable, effects, limited=False)
        self._directory.subscriptions[key] = queue
        return queue

    def unsubscribe(self, command: c.Unsubscribe, now_ms: int, effects: Effects) -> None:
        """Carry out an Unsubscribe."""
        client = self._directory.client(command.client)
        client_id = client.client_id if command.of_client else None
        queue = self._directory.subscriptions.get((client_id, command.name, True))
        if queue is None:
            raise InvalidDestinationException(f"there is no durable subscription {command.name!r} {whose(client_id)}")
        if queue.consumers:
            raise subscribed(command.name)
        if queue.leaving:
            raise IllegalStateException(
                f"cannot unsubscribe {command.name!r}: a session holds messages of it; acknowledge or commit them first"
            )
        self._removal.end_subscription(queue, effects)
        effects.answer(command, None)
