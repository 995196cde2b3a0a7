"""How clients connect and disconnect.

What a connection that goes has sent and that is not taken yet is refused, its deliveries are given back, and its
temporary destinations end.  Its queues hand out nothing until all is back, so that the order holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.consumers import Consumers
from broker_adapter.engine.queues.directory import Client, Directory
from broker_adapter.engine.rules.blocked_sends import BlockedSends
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.destinations import Destinations
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.errors import InvalidClientIDException


class Connections:
    """Connects and disconnects clients."""

    def __init__(
        self,
        directory: Directory,
        consumers: Consumers,
        removal: QueueRemoval,
        deliveries: Deliveries,
        destinations: Destinations,
        blocked_sends: BlockedSends,
        lost: Callable[[int], None],
    ) -> None:
        """Connects and disconnects; ``lost`` is told which connection has ended, for its durable client."""
        self._directory = directory
        self._changed = directory.changed
        self._consumers = consumers
        self._removal = removal
        self._deliveries = deliveries
        self._destinations = destinations
        self._blocked = blocked_sends
        self._lost = lost
        self._next_number = 1

    def connect(self, command: c.Connect, now_ms: int, effects: Effects) -> None:
        """Carry out a Connect."""
        client_id = command.client_id
        if client_id is not None and command.exclusive and client_id in self._directory.client_ids:
            raise InvalidClientIDException(
                f"client id {client_id!r} is in use by another connection; close it first, or give another client id"
            )
        number = self._next_number
        self._next_number += 1
        self._directory.clients[number] = Client(number, client_id, command.token)
        if client_id is not None and command.exclusive:
            self._directory.client_ids[client_id] = number
        effects.answer(command, number)

    def disconnect(self, command: c.Disconnect, now_ms: int, effects: Effects) -> None:
        """Carry out a Disconnect."""
        client = self._directory.clients.get(command.client)
        if client is not None:
            # While the client is there: closed consumers may end with what it has sent.
            self._blocked.give_up_client(client.id, effects)
            self._lost(client.id)
            self._leave(client, command.never_delivered, effects)
            del self._directory.clients[client.id]
            if self._directory.client_ids.get(client.client_id or "") == client.id:
                del self._directory.client_ids[client.client_id or ""]
            for consumer in list(client.consumers.values()):
                self._deliveries.give_back(consumer, list(consumer.unsettled), command, effects, client.token)
                self._changed[consumer.queue.id] = consumer.queue
                self._removal.unregister(consumer, client, effects)
            for queue in client.waited_for or ():  # also of consumers that a commit has ended meanwhile
                queue.returning.discard(client.id)
                if queue.id in self._directory.queues:
                    self._changed[queue.id] = queue
            for number in client.browsers:
                self._consumers.end_browser(self._directory.browsers.pop(number), effects)
            for destination in list(client.temporaries):
                self._destinations.end_temporary(client, destination, effects)
        effects.answer(command, None)

    def _leave(self, client: Client, never_delivered: Mapping[int, c.NeverDelivered] | None, effects: Effects) -> None:
        """End all consumers of a client; their queues hand out nothing until what these hold is back."""
        if client.waited_for is not None:
            return
        client.waited_for = []
        for consumer in list(client.consumers.values()):
            consumer.never_delivered = (never_delivered or {}).get(consumer.id, ())
            if consumer.unsettled:
                consumer.queue.returning.add(client.id)
                client.waited_for.append(consumer.queue)
            self._consumers.end(consumer, effects)

    def give_back(self, command: c.GiveBack, now_ms: int, effects: Effects) -> None:
        """Carry out a GiveBack."""
        client = self._directory.clients.get(command.client)
        left = command.limit
        if client is not None:
            self._leave(client, command.never_delivered, effects)
            for consumer in list(client.consumers.values()):
                numbers = list(consumer.unsettled)[:left]
                left -= len(numbers)
                self._deliveries.give_back(consumer, numbers, command, effects, client.token)
        effects.answer(command, None)
