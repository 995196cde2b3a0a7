"""What exists: queues, topics, subscriptions and staged transactions, and the clients and consumers that use them.

Theory of operation
    A topic is the list of its subscriptions, each a queue.  Destinations are made when they are first used, up to a
    limit.  The queues for what is set aside always exist, and do not count towards that limit.  A temporary queue, and
    a subscription that is not durable, is in memory only.

    Something may have to be handed out of a queue to which something has happened: it is then put among those that have
    *changed*.  The end of the decision goes through these, and leaves the other queues alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from broker_adapter.destination import TEMPORARY_QUEUE_PREFIX, Destination, DestinationKind, checked_name
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.gateway_queue import Feeds, GatewayQueue
from broker_adapter.engine.queues.numbers import QueueNumbers
from broker_adapter.engine.queues.policies import Policies, QueueSettings
from broker_adapter.engine.queues.queue import Browser, Consumer, Memory, QueueState
from broker_adapter.engine.queues.statistics import QueueStatistics
from broker_adapter.engine.records.layout import (
    FIRST_VOLATILE_QUEUE,
    CatalogRecord,
    Counters,
    encode_catalog,
    queue_key,
)
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, ResourceAllocationException
from broker_adapter.selectors.language import parse_selector
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import counted

#: What the groups begin with by which the engine notes how far queues were settled by ranges.
SETTLED_GROUP: Final = "settled/"
#: Queues that get the settings of other policies in one decision.
_QUEUES_AT_ONCE: Final = 100


class Client:
    """A connection: its consumers and its temporary destinations.

    Attributes:
        waited_for: queues that hand out nothing until all is back that it held of them; None: it does not leave yet.
    """

    __slots__ = ("browsers", "client_id", "consumers", "id", "temporaries", "token", "waited_for")

    def __init__(self, number: int, client_id: str | None, token: str | None = None) -> None:
        self.id = number
        self.client_id = client_id
        self.token = token
        self.consumers: dict[int, Consumer] = {}
        self.browsers: dict[int, Browser] = {}
        self.temporaries: dict[Destination, None] = {}
        self.waited_for: list[QueueState] | None = None


class Directory:
    """All destinations, and the clients and consumers that use them.

    Attributes:
        settings: the limits.
        durable: whether there is a durable store.
        memory: what all queues together may keep in memory.
        numbers: of the queues.
        queues: by number.
        by_destination: queues that are destinations.
        topics: the subscriptions of each.
        subscriptions: (client id, name, durable) → queue: one name may be that of a durable subscription and of
            another one.
        staged: staged transactions by name.
        clients: by number.
        client_ids: the clients that have an id for themselves.
        consumers: by number.
        browsers: by number.
        gateways: by name.
        feeds: what gateways take of each destination; regions are by name and ``REGION_KIND``.
        permanent: queues that always exist.
        policies: what holds for each queue.
        changed: queues to which something has happened since they were last dispatched, by number.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        durable: bool,
        secret: bytes,
        unique: str,
        policies: Policies | None = None,
    ) -> None:
        """A directory that is empty; the arguments are those of ``BrokerState``."""
        self.settings = settings
        self.policies = Policies(settings) if policies is None else policies
        checked_name(settings.dead_letter_queue)
        self.durable = durable
        self._secret = secret
        self._unique = unique
        self._run_word = blake2b(b"run", key=secret, digest_size=6).hexdigest()
        self.memory = Memory(settings.window_messages, settings.max_window_messages, settings.max_in_hand_messages)
        self.numbers = QueueNumbers(secret, durable=durable)
        self.queues: dict[int, QueueState] = {}
        self.by_destination: dict[Destination, QueueState] = {}
        self.topics: dict[Destination, list[QueueState]] = {}
        self.subscriptions: dict[tuple[str | None, str, bool], QueueState] = {}
        self.staged: dict[str, QueueState] = {}
        self.clients: dict[int, Client] = {}
        self.client_ids: dict[str, int] = {}
        self.consumers: dict[int, Consumer] = {}
        self.browsers: dict[int, Browser] = {}
        self.gateways: dict[str, GatewayQueue] = {}
        self.feeds: dict[tuple[str, int], Feeds] = {}
        self.permanent: set[Destination] = set()
        self.changed: dict[int, QueueState] = {}
        self._next_name = 1

    def restore(
        self, number: int, record: CatalogRecord, counters: Counters | None, lanes: Sequence[int]
    ) -> QueueState:
        """Take over a queue that the durable store has."""
        self.numbers.restore(number)
        destination = Destination(record.name)
        if record.kind == "subscription":
            destination = Destination(record.topic or "", DestinationKind.TOPIC)
        queue = self._make_queue(number, destination, record, counters, lanes)
        if record.kind == "staged":
            self.staged[record.name] = queue
        elif record.kind == "subscription":
            self.subscriptions[record.client_id, record.name, True] = queue
            self.topics.setdefault(destination, []).append(queue)
        elif record.kind == "queue":
            self.by_destination[destination] = queue
        elif isinstance(queue, GatewayQueue):
            self.gateways[record.name] = queue
        return queue

    # Clients.

    def client(self, number: int) -> Client:
        """The client of a number; raises IllegalStateException where it is not connected."""
        client = self.clients.get(number)
        if client is None:
            raise IllegalStateException(f"client {number} is not connected")
        return client

    def in_hand_of(self, client: int) -> int:
        """Return how many deliveries the consumers of a client hold."""
        found = self.clients.get(client)
        return 0 if found is None else sum([len(each.unsettled) for each in found.consumers.values()])

    def in_hand_of_consumer(self, consumer: int) -> int:
        """Return how many deliveries a consumer holds."""
        found = self.consumers.get(consumer)
        return 0 if found is None else len(found.unsettled)

    # Queues.

    def make_permanent_queues(self, effects: Effects) -> None:
        """Make the queues for what is set aside, which always exist and count towards no limit."""
        self.permanent.clear()
        for name in sorted(self.policies.set_aside):
            if not named_queue(checked_name(name)).is_temporary:
                destination = Destination(name)
                self.permanent.add(destination)
                if destination not in self.by_destination:
                    record = CatalogRecord("queue", name)
                    self.by_destination[destination] = self.new_queue(destination, record, effects)

    def topic(self, destination: Destination) -> Sequence[QueueState]:
        """The subscriptions of a topic, which need not have any."""
        subscriptions = self.topics.get(destination)
        if subscriptions is not None:
            return subscriptions
        if destination.is_temporary:
            raise InvalidDestinationException(f"temporary topic {destination.name!r} does not exist any more")
        checked_name(destination.name)
        return ()

    def queue(self, destination: Destination, effects: Effects, *, limited: bool = True) -> QueueState:
        """A queue, which is made where there is none; beyond the limit as well, if it is not ``limited``."""
        queue = self.by_destination.get(destination)
        if queue is not None:
            return queue
        if destination.is_temporary:
            raise InvalidDestinationException(f"temporary queue {destination.name!r} does not exist any more")
        if (named := named_queue(destination.name)).is_temporary:
            return self.queue(named, effects)  # not every client knows the kind of a name
        checked_name(destination.name)
        if limited:
            self.check_limit()
        queue = self.new_queue(destination, CatalogRecord("queue", destination.name), effects)
        self.by_destination[destination] = queue
        return queue

    def targets(self, destination: Destination, effects: Effects) -> Sequence[QueueState]:
        """The queues that messages to a destination go into; a queue is made where there is none.

        What is sent to a queue that a gateway moves goes into none.
        """
        if destination.is_topic:
            return tuple(self.topic(destination))
        if self.feeds and self.is_moved(destination):
            return ()
        queue = self.by_destination.get(destination)
        return (queue if queue is not None else self.queue(destination, effects),)

    def is_moved(self, destination: Destination) -> bool:
        """Return whether a gateway takes what is sent to a queue away from here."""
        return any(feed.moves for feed in self.feeds.get(destination, ()))

    def new_queue(self, destination: Destination, record: CatalogRecord, effects: Effects) -> QueueState:
        """Make a queue, a durable subscription or a staged transaction, and store its record."""
        numbers = self.numbers
        number = numbers.new_staged(self.queues) if record.kind == "staged" else numbers.new(effects)
        made = self._make_queue(number, destination, record, None)
        self.put_record(made, effects)
        return made

    def new_volatile_queue(self, destination: Destination, record: CatalogRecord) -> QueueState:
        """Make a queue or subscription in memory."""
        return self._make_queue(self.numbers.new_volatile(), destination, record, None)

    @staticmethod
    def put_record(queue: QueueState, effects: Effects) -> None:
        """Store the record of a queue."""
        if queue.durable:
            key = queue_key(queue.id)
            effects.durable.put("catalog", key, encode_catalog(key, queue.record))

    def incarnation(self, queue: QueueState) -> str:
        """Tells a queue from any other that had, has or will have its name."""
        word = f"-{self._run_word}" if is_volatile(queue) else ""  # their numbers start again with each run
        return f"{self._unique}-{queue.id}{word}"

    def settled_group(self, queue: QueueState) -> str:
        """The group whose last published number is the last position of a queue that was settled by a range."""
        return SETTLED_GROUP + self.incarnation(queue)

    def _make_queue(
        self,
        number: int,
        destination: Destination,
        record: CatalogRecord,
        counters: Counters | None,
        lanes: Sequence[int] = (),
    ) -> QueueState:
        queue = (GatewayQueue if record.kind == "gateway" else QueueState)(
            number,
            destination,
            record,
            durable=self.durable and number < FIRST_VOLATILE_QUEUE,
            memory=self.memory,
            settings=self.settings_of(destination, record),
            max_unsettled=self.settings.max_unsettled_messages,
            counters=counters,
            lanes=lanes,
        )
        if record.selector is not None:
            queue.selector = parse_selector(record.selector)
        self.queues[number] = queue
        return queue

    def settings_of(self, destination: Destination, record: CatalogRecord) -> QueueSettings:
        """Return what holds for a queue or subscription; what else is kept in one has no settings of its own."""
        is_named = record.kind in ("queue", "subscription")
        return self.policies.settings_of(destination) if is_named else self.policies.options

    def use_policies(self, policies: Policies, after: int, effects: Effects) -> int | None:
        """Have other policies, and give some queues their settings; see ``UsePolicies``."""
        if not after:
            self.policies = policies
            self.make_permanent_queues(effects)
        elif self.policies is not policies:
            return None
        numbers = sorted([number for number in self.queues if number > after])
        for number in numbers[:_QUEUES_AT_ONCE]:
            queue = self.queues[number]
            queue.settings = self.settings_of(queue.destination, queue.record)
            if queue.wait_queue:
                self.changed[number] = queue  # there may be room for what waits
        return numbers[_QUEUES_AT_ONCE - 1] if len(numbers) > _QUEUES_AT_ONCE else None

    def check_limit(self) -> None:
        """Raise ResourceAllocationException where there are as many destinations as there may be."""
        if len(self.queues) + len(self.topics) - len(self.permanent) >= self.settings.max_destinations:
            raise ResourceAllocationException(
                f"no more than {self.settings.max_destinations} destinations (option max_destinations); delete those"
                " that are not in use (holdfast delete, or option delete_idle_queues_seconds), or raise the option"
            )

    def temporary_name(self, prefix: str) -> str:
        """A name for a temporary destination that no other one has, and that cannot be guessed."""
        word = blake2b(b"%d" % self._next_name, key=self._secret, digest_size=12).hexdigest()
        self._next_name += 1
        return prefix + word

    def unmake(self, made: Sequence[QueueState], effects: Effects) -> None:
        """Remove queues that were made for something that was not taken."""
        for queue in made:
            if not queue.depth and not queue.wait_queue:
                del self.queues[queue.id]
                del self.by_destination[queue.destination]
                self.changed.pop(queue.id, None)
                if queue.durable:
                    effects.durable.put("catalog", queue_key(queue.id), None)

    # Topics and subscriptions.

    def new_subscription(
        self,
        client: Client,
        topic: Destination,
        record: CatalogRecord,
        durable: bool,
        effects: Effects,
        *,
        limited: bool = True,
    ) -> QueueState:
        """Make a subscription of a topic; beyond the limit as well, if it is not ``limited``.

        One without a name gets one that no other has.
        """
        if limited:
            self.check_limit()
        record = record._replace(name=record.name or f"subscription/{client.id}/{self._next_name}")
        self._next_name += 1
        queue = self.new_queue(topic, record, effects) if durable else self.new_volatile_queue(topic, record)
        self.topics.setdefault(topic, []).append(queue)
        return queue

    def subscription(
        self, topic: Destination, name: str, client_id: str | None, durable: bool | None = None
    ) -> QueueState:
        """The queue of a subscription; raises InvalidDestinationException where there is none.

        Args:
            topic: of the subscription.
            name: of the subscription.
            client_id: whose it is; None: it belongs to no client.
            durable: which of two that may have this name; None: a durable one rather than another.
        """
        for each in (True, False) if durable is None else (durable,):
            queue = self.subscriptions.get((client_id, name, each))
            if queue is not None and queue.destination == topic:
                return queue
        raise self.no_such_subscription(topic, name, client_id)

    def no_such_subscription(self, topic: Destination, name: str, client_id: str | None) -> InvalidDestinationException:
        """The error for a subscription that does not exist."""
        others = [
            f"one {whose(record.client_id)}"
            for record in (queue.record for queue in self.topic(topic))
            if record.name == name
        ]
        hint = f"there is {' and '.join(others[:10])} (--client-id)" if others else "a durable consumer makes one"
        return InvalidDestinationException(
            f"there is no subscription {name!r} {whose(client_id)} on {topic.name!r}; {hint}"
        )

    def remove_subscription(self, queue: QueueState) -> None:
        """A subscription ends: its name and its topic do not know it any more."""
        self.subscriptions.pop((queue.record.client_id, queue.record.name, not is_volatile(queue)), None)
        siblings = self.topics.get(queue.destination, [])
        if queue in siblings:
            siblings.remove(queue)
        if not siblings and not queue.destination.is_temporary:
            self.topics.pop(queue.destination, None)

    def remote(self, queues: Sequence[QueueState], client: int) -> Sequence[QueueState]:
        """Those of some queues that may get what a client sends."""
        return [queue for queue in queues if not (queue.record.no_local and self._is_local(queue, client))]

    def _is_local(self, queue: QueueState, client: int) -> bool:
        if queue.record.client_id is None:
            return queue.owner == client
        return self.client(client).client_id == queue.record.client_id

    def fan_out(self, destination: Destination) -> int:
        """Return how many places a message to a destination may take."""
        return max(1, len(self.topics.get(destination, ()))) if destination.is_topic else 1

    def topic_statistics(self) -> list[QueueStatistics]:
        """The topics that have subscriptions."""
        return [
            QueueStatistics(destination.name, "topic", 0, 0, 0, 0, len(subscriptions), 0, 0)
            for destination, subscriptions in self.topics.items()
        ]


def is_volatile(queue: QueueState) -> bool:
    """Return whether a queue or subscription is in memory only."""
    return queue.id >= FIRST_VOLATILE_QUEUE


def whose(client_id: str | None) -> str:
    """Whose a subscription is, as errors say it."""
    return "without a client id" if client_id is None else f"of client id {client_id!r}"


def named_queue(name: str) -> Destination:
    """The queue of a name: temporary ones can be told by it."""
    temporary = name.startswith(TEMPORARY_QUEUE_PREFIX)
    return Destination(name, DestinationKind.TEMPORARY_QUEUE if temporary else DestinationKind.QUEUE)


def attached(queue: QueueState) -> str:
    """Return how many consumers a queue has, in words."""
    return f"{counted(len(queue.consumers), 'consumer', ('is', 'are'))} attached to it"


def shown_name(queue: QueueState) -> str:
    """Return the name of a queue, or of a subscription with its topic and client id, for the log."""
    if queue.record.kind != "subscription":
        return f"{queue.label!r}"
    client_id = queue.record.client_id
    return f"{queue.label!r}{'' if client_id is None else f' {whose(client_id)}'} on {queue.destination.name!r}"
