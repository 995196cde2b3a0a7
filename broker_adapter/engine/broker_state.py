"""The rules of the whole engine: clients, destinations, subscriptions, identities, limits, transactions.

Theory of operation
    ``decide(commands, now_ms)`` changes the state and answers with :class:`Effects`; it does no I/O, reads no clock and
    takes no lock.  One driver (``Broker``) calls it, writes the batches, and then lets the deliveries and
    replies go.  Commands of one call share one commit, and queues hand out messages once, after the last of them.

    A message gets one number and one stored copy, whatever the number of queues that hold it.  A topic is the list of
    its subscriptions, each a queue.  Destinations come into being when they are first used.

    A send at a limit is *blocked*: it waits in the order of arrival until there is room, and is refused when its time
    is over (:mod:`broker_adapter.engine.wait_queues`).  Its identity is noted only when it is taken, so that a
    repetition of a refused send is not rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker_adapter.destination import (
    TEMPORARY_QUEUE_PREFIX,
    TEMPORARY_TOPIC_PREFIX,
    Destination,
    DestinationKind,
    checked_name,
)
from broker_adapter.engine import commands as c
from broker_adapter.engine.admission import Admission
from broker_adapter.engine.blocked_sends import BlockedSends
from broker_adapter.engine.consumers import Consumers
from broker_adapter.engine.decision_time import DecisionTime
from broker_adapter.engine.deliveries import Deliveries
from broker_adapter.engine.directory import Client, Directory, attached, named_queue
from broker_adapter.engine.effects import Effects, Load
from broker_adapter.engine.endings import DEAD_LETTER_CLIENT_ID, DEAD_LETTER_QUEUE, DEAD_LETTER_SUBSCRIPTION, Endings
from broker_adapter.engine.failures import fault, rolled_back
from broker_adapter.engine.identities import LastNumbers, Sequences
from broker_adapter.engine.intake import Intake
from broker_adapter.engine.matching import Matching
from broker_adapter.engine.queue_removal import QueueRemoval
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.records import (
    FIRST_VOLATILE_QUEUE,
    FLAG_PERSISTENT,
    KIND_DELIVER,
    KIND_EXPIRE,
    CatalogRecord,
    Counters,
    RawEntry,
    SequencesRecord,
    decode_stream_key,
    encode_counters,
    queue_key,
    schedule_key,
)
from broker_adapter.engine.resumption import Resumption
from broker_adapter.engine.sends import Sends
from broker_adapter.engine.staged_batches import StagedBatches
from broker_adapter.engine.statistics import BrokerStatistics, QueueStatistics, Totals, by_kind_and_name
from broker_adapter.engine.transactions import Transactions
from broker_adapter.engine.wait_queues import WaitQueues
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
)
from broker_adapter.selectors.language import parse_selector
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import counted

#: A number that no queue has.
_NO_QUEUE = (1 << 32) - 1
#: Queues that are looked at in one step for not being used any more.
_IDLE_STEP = 1000
#: Time after which a message that expired in a consumer's hands is looked at again.
_LOOK_AGAIN_MS = 60_000
#: How often one decision lets go out what its own steps have made available, such as dead letters.
_ROUNDS = 8

#: Property of a message that was put back from there: the queue that it was in meanwhile.
REDRIVEN_FROM = "JMS_HOLDFAST_REDRIVEN_FROM"


class BrokerState:
    """All queues and who uses them.

    Args:
        settings: the limits.
        durable: whether there is a durable store; without, nothing is marked as persistent.
        secret: what the names of temporary destinations are made from, up to 64 bytes.  A new one for each run, so that
            no name comes again while a client of an earlier run may want its own back; and so that nobody guesses
            them.
        unique: a word that no other engine has.
    """

    def __init__(self, settings: EngineSettings, *, durable: bool, secret: bytes, unique: str = "") -> None:
        self.settings = settings
        self.durable = durable
        self.totals = Totals()
        self.wait_queues = WaitQueues()
        self.commits = LastNumbers("commits", int(settings.commit_memory_seconds * 1000), durable=durable)
        self.published = LastNumbers("published", int(settings.publish_memory_seconds * 1000), durable=durable)
        self.directory = Directory(settings, durable=durable, secret=secret, unique=unique)
        self.admission = Admission(settings, self.directory)
        self.time = DecisionTime()
        self.endings = Endings(self.directory, self.totals, self.time)
        self.consumers = Consumers(self.directory, self.time)
        self.removal = QueueRemoval(
            self.directory, self.consumers, self.wait_queues, self.admission, self.published, self.time
        )
        self.deliveries = Deliveries(self.directory, self.consumers, self.removal, self.endings, self.totals)
        self.matching = Matching(self.directory)
        self.blocked_sends = BlockedSends(settings, self.wait_queues, self.deliveries, self.totals, self.time)
        self.intake = Intake(settings, self.totals, durable=durable)
        self.sends = Sends(self.directory, self.admission, self.matching, self.blocked_sends, self.intake, self.totals)
        self._next_client = 1
        self._swept_idle = 0  #: how many of the queues were looked at for being idle
        #: what those browse who browse a queue that does not exist
        self._nowhere = QueueState(
            _NO_QUEUE,
            Destination("nowhere"),
            CatalogRecord("queue", "nowhere"),
            durable=False,
            memory=self.directory.memory,
            max_deliveries=None,
            max_unsettled=1,
        )
        self.transactions = Transactions(
            self.directory,
            self.admission,
            self.matching,
            self.blocked_sends,
            self.intake,
            self.deliveries,
            self.commits,
            self.totals,
        )
        self.staged_batches = StagedBatches(
            self.directory,
            self.admission,
            self.removal,
            self.blocked_sends,
            self.wait_queues,
            self.intake,
            self.published,
            self.totals,
        )
        self.resumption = Resumption(
            self.directory,
            self.admission,
            self.wait_queues,
            self.blocked_sends,
            self.matching,
            self.sends,
            self.transactions,
            self.staged_batches,
            self.deliveries,
            self.time,
        )
        self._steps: dict[type, Callable[[Any, int, Effects], None]] = {
            c.Connect: self._connect,
            c.Disconnect: self._disconnect,
            c.GiveBack: self._give_back,
            c.Declare: self._declare,
            c.DeclareTemporary: self._declare_temporary,
            c.DeleteTemporary: self._delete_temporary,
            c.Attach: self._attach,
            c.Detach: self.deliveries.detach,
            c.Delete: self._delete,
            c.DeleteIdle: self._delete_idle,
            c.PutBack: self.sends.put_back,
            c.EndRun: self._end_run,
            c.Unsubscribe: self._unsubscribe,
            c.Credit: self.consumers.credit,
            c.Drain: self.consumers.drain,
            c.Enqueue: self.sends.enqueue,
            c.Settle: self.deliveries.settle,
            c.Commit: self._commit,
            c.ResolveCommit: self.transactions.resolve,
            c.Trim: self._trim,
            c.Forgive: self.deliveries.uncount,
            c.Seen: self.deliveries.seen,
            c.ForgiveRest: self.deliveries.uncount_rest,
            c.Drop: self.removal.drop,
            c.Due: self._due,
            c.Quarantined: self.deliveries.quarantined,
            c.TakeInHand: self.deliveries.take_in_hand,
            c.Stage: self.staged_batches.stage,
            c.Renew: self.staged_batches.renew,
            c.Publish: self.staged_batches.publish,
            c.Discard: self.staged_batches.discard,
            c.ForgetNames: self._forget_names,
            c.Move: self.staged_batches.move,
            c.Redrive: self._redrive,
            c.SetAside: self._set_aside_damaged,
            c.Statistics: self._statistics,
        }

    # What a restart finds.

    def restore(
        self,
        queues: Iterable[tuple[int, CatalogRecord, Counters | None, Sequence[int]]],
        streams: Iterable[tuple[bytes, SequencesRecord]],
        next_message: int,
        next_queue: int = 1,
    ) -> list[int]:
        """Take over what the durable store has.  Returns the queues that are still to be trimmed and dropped."""
        ended = []
        self.intake.next_message = next_message
        self.directory.numbers.next = next_queue
        for number, record, counters, lanes in queues:
            queue = self.directory.restore(number, record, counters, lanes)
            if record.kind == "ended":
                ended.append(number)
            elif record.kind == "staged":
                self.staged_batches.restore(queue)
        for key, sequences in streams:
            self.intake.streams[decode_stream_key(key)] = Sequences.of(sequences)
        return ended

    # The one entrance.

    def decide(self, commands: Iterable[c.Command], now_ms: int, elapsed_ms: int | None = None) -> Effects:
        """Carry out commands in order.

        Args:
            commands: what was asked for.
            now_ms: the time of the day, in milliseconds since 1970: what expires and is delayed goes by it.
            elapsed_ms: milliseconds of a clock that nobody sets: how long something waits goes by it; None:
                ``now_ms``.

        Returns:
            What is to be stored, and what may leave afterwards.  A command that cannot be done changes nothing,
            and its reply is the error.
        """
        effects = Effects()
        steps = self._steps
        self.time.now_ms = now_ms
        self.time.elapsed_ms = now_ms if elapsed_ms is None else elapsed_ms
        if not self.directory.permanent:
            self.directory.make_permanent_queues(effects)
        self.matching.is_late = self.matching.new_slice()
        for command in commands:
            try:
                steps[type(command)](command, now_ms, effects)
            except JMSException as error:
                effects.answer(command, error)
            except Exception as error:  # a fault of ours: it is this command's alone
                effects.faults.append((command, error))
                effects.answer(command, fault(command, error))
        self.matching.is_late = self.matching.new_slice()  # of those that wait already
        self.settle_down(now_ms, effects)
        return effects

    def loaded(self, load: Load, entries: Sequence[RawEntry], corrupt: int, complete: bool) -> str | None:
        """Entries that a ``Load`` asked for: all that the stores have, with the changes of this cycle.

        ``settle_down`` must follow.

        Returns:
            What was wrong with the counters of the queue, where something was.
        """
        queue = self.directory.queues.get(load.queue)
        if queue is None:
            return None
        self.directory.changed[queue.id] = queue
        self.totals.quarantined += corrupt
        wrong = queue.loaded(load, entries, corrupt, complete)
        if not wrong:
            return None
        self.totals.miscounted += abs(wrong)
        more = f"{wrong} messages more" if wrong > 0 else f"{-wrong} messages less"
        return f"the counters of {queue.label!r} had {more} than its store has in lane {load.lane}"

    def lost(self, queue: int, lane: int, entries: int) -> None:
        """Entries behind the window of a lane could not be trusted, and are in quarantine now."""
        self.totals.quarantined += entries
        if found := self.directory.queues.get(queue):
            found.lost(lane, entries)
            self.directory.changed[queue] = found

    def recounted(self, queue: QueueState, counters: Counters, entries: int) -> None:
        """Entries of a queue could not be trusted and are in quarantine now; its others were counted.

        ``decide`` must follow, and nothing that was decided before may be on its way to the store.
        """
        self.totals.quarantined += entries
        queue.recounted(counters)
        self.directory.changed[queue.id] = queue

    def settle_down(self, now_ms: int, effects: Effects) -> None:
        """Let what was held go on, hand messages out, answer drains, note the counters.

        It costs what the queues cost that something happened to, however many there are.
        """
        touched: dict[int, QueueState] = {}
        changed = self.directory.changed
        if self.endings.backing_off:
            self.endings.end_back_off(effects)
        for _ in range(_ROUNDS):
            if self.wait_queues.count:
                self.resumption.resume(now_ms, effects)
            if self.directory.memory.limited:
                for queue in self.directory.memory.unlimited():
                    self.directory.changed[queue.id] = queue
            if not changed:
                break
            awake = changed.copy()
            changed.clear()
            touched.update(awake)
            left_out: dict[int, QueueState] = {}
            for queue in awake.values():
                if effects.handouts >= self.directory.memory.cycle_handouts:
                    left_out[queue.id] = queue
                    continue
                depth = queue.depth
                if queue.consumers:
                    for entry in queue.dispatch(now_ms, effects):
                        self.endings.expire(queue, entry, effects)
                    if effects.handouts >= self.directory.memory.cycle_handouts:
                        self.directory.changed[queue.id] = queue  # it may have more
                elif queue.ready:
                    self.consumers.keep_window(queue, effects)
                if queue.wait_queue and queue.depth < depth:
                    self.directory.changed[queue.id] = queue  # what was taken at once has made room
            if effects.handouts >= self.directory.memory.cycle_handouts:
                later = changed.copy()
                changed.clear()
                changed |= left_out  # these are the first ones in the next cycle
                changed |= later
                break
        if self.consumers.drains:
            self.consumers.answer_drains(effects)
        if self.consumers.browsing:
            effects.browsers += self.consumers.browsing.values()
            self.consumers.browsing.clear()
        for queue in (*touched.values(), *self.directory.changed.values()):
            queue.used_ms = self.time.elapsed_ms
            if queue.counters_due and queue.durable:
                queue.counters_due = False
                key = queue_key(queue.id)
                effects.durable.put("queues", key, encode_counters(key, queue.counters()))

    @property
    def has_more(self) -> bool:
        """Whether another decision is due although nothing is asked for."""
        return bool(self.directory.changed or self.wait_queues.is_matching)

    @property
    def waits_engine_wide(self) -> bool:
        """Whether somebody may go on when the whole engine has more room."""
        return self.wait_queues.waits_engine_wide

    def next_deadline_ms(self) -> int | None:
        """When the first held send is to be refused or tried, or a resting message delivered; by ``elapsed_ms``."""
        due = [self.wait_queues.next_deadline_ms(), self.endings.next_due_ms(), self.resumption.next_try_ms()]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def waiting(self) -> list[c.Reply]:
        """Those who have no answer yet: held sends and drains.  For the end of the engine."""
        replies = [blocked.command.reply for blocked in self.wait_queues]
        replies += [reply for _, reply in self.consumers.drains]
        replies += [reply for browser in self.directory.browsers.values() for reply in browser.drains]
        return [reply for reply in replies if reply is not None]

    # Clients.

    def _connect(self, command: c.Connect, now_ms: int, effects: Effects) -> None:
        client_id = command.client_id
        if client_id is not None and command.exclusive and client_id in self.directory.client_ids:
            raise InvalidClientIDException(f"client id {client_id!r} is in use by another connection")
        number = self._next_client
        self._next_client += 1
        self.directory.clients[number] = Client(number, client_id, command.token)
        if client_id is not None and command.exclusive:
            self.directory.client_ids[client_id] = number
        effects.answer(command, number)

    def _disconnect(self, command: c.Disconnect, now_ms: int, effects: Effects) -> None:
        client = self.directory.clients.get(command.client)
        if client is not None:
            self.resumption.give_up_client(
                client.id, now_ms, effects
            )  # while it is there: closed consumers may end with it
            self._leave(client, command.unseen, effects)
            del self.directory.clients[client.id]
            if self.directory.client_ids.get(client.client_id or "") == client.id:
                del self.directory.client_ids[client.client_id or ""]
            for consumer in list(client.consumers.values()):
                self.deliveries.give_back(consumer, list(consumer.unsettled), command, effects, client.token)
                self.directory.changed[consumer.queue.id] = consumer.queue
                self.removal.unregister(consumer, client, effects)
            for queue in client.waited_for or ():  # also of consumers that a commit has ended meanwhile
                queue.returning.discard(client.id)
                if queue.id in self.directory.queues:
                    self.directory.changed[queue.id] = queue
            for number in client.browsers:
                self.consumers.end_browser(self.directory.browsers.pop(number), effects)
            for destination in list(client.temporaries):
                self._end_temporary(client, destination, effects)
        effects.answer(command, None)

    def _leave(self, client: Client, unseen: Mapping[int, c.Unseen] | None, effects: Effects) -> None:
        """End all consumers of a client; their queues wait for what they hold."""
        if client.waited_for is not None:
            return
        client.waited_for = []
        for consumer in list(client.consumers.values()):
            consumer.unseen = (unseen or {}).get(consumer.id, ())
            if consumer.unsettled:
                consumer.queue.returning.add(client.id)
                client.waited_for.append(consumer.queue)
            self.consumers.end(consumer, effects)

    def in_hand_of(self, client: int) -> int:
        """How many deliveries the consumers of a client hold."""
        found = self.directory.clients.get(client)
        return 0 if found is None else sum([len(each.unsettled) for each in found.consumers.values()])

    def in_hand_of_consumer(self, consumer: int) -> int:
        """How many deliveries a consumer holds."""
        found = self.directory.consumers.get(consumer)
        return 0 if found is None else len(found.unsettled)

    def _give_back(self, command: c.GiveBack, now_ms: int, effects: Effects) -> None:
        client = self.directory.clients.get(command.client)
        left = command.limit
        if client is not None:
            self._leave(client, command.unseen, effects)
            for consumer in list(client.consumers.values()):
                numbers = list(consumer.unsettled)[:left]
                left -= len(numbers)
                self.deliveries.give_back(consumer, numbers, command, effects, client.token)
        effects.answer(command, None)

    # Destinations.

    def _declare(self, command: c.Declare, now_ms: int, effects: Effects) -> None:
        destination = command.destination
        if destination.is_topic:
            self.directory.topic(destination)
        else:
            self.directory.queue(destination, effects).note_use(self.time.elapsed_ms)
        effects.answer(command, None)

    def _declare_temporary(self, command: c.DeclareTemporary, now_ms: int, effects: Effects) -> None:
        client = self.directory.client(command.client)
        if command.kind not in (DestinationKind.TEMPORARY_QUEUE, DestinationKind.TEMPORARY_TOPIC):
            raise InvalidDestinationException(f"{command.kind!r} is not a temporary kind")
        is_topic = command.kind is DestinationKind.TEMPORARY_TOPIC
        prefix = TEMPORARY_TOPIC_PREFIX if is_topic else TEMPORARY_QUEUE_PREFIX
        name = self.directory.temporary_name(prefix)
        name = command.name or name
        destination = Destination(checked_name(name), command.kind)
        if destination in self.directory.by_destination or destination in self.directory.topics:
            raise InvalidDestinationException(f"temporary destination {name!r} exists already")
        self.directory.check_limit()
        if destination.is_topic:
            self.directory.topics[destination] = []
        else:
            queue = self.directory.new_volatile_queue(destination, CatalogRecord("queue", name))
            queue.owner = client.id
            self.directory.by_destination[destination] = queue
        client.temporaries[destination] = None
        effects.answer(command, destination)

    def _delete_temporary(self, command: c.DeleteTemporary, now_ms: int, effects: Effects) -> None:
        client = self.directory.client(command.client)
        destination = command.destination
        if destination not in client.temporaries:
            raise InvalidDestinationException(f"{destination.name!r} is no temporary destination of this connection")
        users = (
            self.directory.topics[destination] if destination.is_topic else [self.directory.by_destination[destination]]
        )
        if any(queue.consumers for queue in users):
            raise IllegalStateException(f"cannot delete {destination.name!r}: a consumer uses it; close it first")
        self._end_temporary(client, destination, effects)
        effects.answer(command, None)

    def _end_temporary(self, client: Client, destination: Destination, effects: Effects) -> None:
        del client.temporaries[destination]
        if destination.is_topic:
            self.directory.topics.pop(destination, None)
        else:
            queue = self.directory.by_destination.pop(destination)
            self.blocked_sends.refuse_waiting_for(queue, effects)
            self.removal.end_queue(queue, effects)

    # Consumers.

    def _attach(self, command: c.Attach, now_ms: int, effects: Effects) -> None:
        client = self.directory.client(command.client)
        selector = parse_selector(command.selector) if command.selector else None
        destination = command.destination
        subscription = command.subscription
        if destination.is_topic:
            if command.browse:
                raise InvalidDestinationException(f"cannot browse {destination.name!r}: it is a topic")
            if destination.is_temporary and destination not in client.temporaries:
                raise InvalidDestinationException(
                    f"temporary topic {destination.name!r} can be consumed only by the connection that made it"
                )
            queue = self._subscribe(client, command, effects)
            selector = None  # the subscription takes in only what it wants
        else:
            if subscription is not None:
                raise InvalidDestinationException(f"cannot subscribe to the queue {destination.name!r}")
            found = self.directory.by_destination.get(destination)
            if found is None and command.browse and not named_queue(destination.name).is_temporary:
                checked_name(destination.name)
                found = self._nowhere
            queue = found if found is not None else self.directory.queue(destination, effects)
            if queue.owner is not None and queue.owner != client.id:
                raise InvalidDestinationException(
                    f"temporary queue {destination.name!r} can be consumed only by the connection that made it"
                )
        if command.browse:
            effects.answer(command, self.consumers.browse(client, queue, command, selector).id)
            return
        effects.answer(command, self.consumers.attach(client, queue, command, selector, effects).id)

    def _subscribe(self, client: Client, command: c.Attach, effects: Effects) -> QueueState:
        topic = command.destination
        subscription = command.subscription
        selector = command.selector or None
        self.directory.topic(topic)
        if subscription is None:
            record = CatalogRecord("subscription", "", topic.name, None, False, command.no_local, selector)
            queue = self.directory.new_subscription(client, topic, record, False, effects)
            queue.owner = client.id
            return queue
        name = checked_name(subscription.name, "subscription")
        if subscription.durable and topic.is_temporary:
            raise InvalidDestinationException(
                f"temporary topic {topic.name!r} cannot have a durable subscription: it ends with its connection"
            )
        if subscription.durable and not subscription.shared and client.client_id is None:
            raise IllegalStateException(
                f"durable subscription {name!r} needs a client id; give one to create_connection(client_id=...)"
            )
        client_id = client.client_id if subscription.of_client else None
        key = (client_id, name, subscription.durable)
        existing = self.directory.subscriptions.get(key)
        if existing is not None:
            record = existing.record
            same = (record.topic, record.no_local, record.selector) == (topic.name, command.no_local, selector)
            if record.shared != subscription.shared:
                kind = "a shared" if record.shared else "an unshared"
                raise IllegalStateException(f"subscription {name!r} is {kind} durable one; unsubscribe it first")
            if existing.consumers and not subscription.shared:
                raise IllegalStateException(f"subscription {name!r} is in use by another consumer")
            if existing.consumers and not same:
                raise IllegalStateException(
                    f"subscription {name!r} is in use on topic {record.topic!r} with selector {record.selector!r}"
                )
            if same:
                return existing
        else:
            self.directory.check_limit()
        record = CatalogRecord(
            "subscription", name, topic.name, client_id, subscription.shared, command.no_local, selector
        )
        if existing is not None:
            # JMS 3.1 section 8.3.3: another topic, selector or no_local is as unsubscribing and subscribing anew.
            self.removal.end_subscription(existing, effects)
        queue = self.directory.new_subscription(client, topic, record, subscription.durable, effects, limited=False)
        self.directory.subscriptions[key] = queue
        return queue

    def _delete(self, command: c.Delete, now_ms: int, effects: Effects) -> None:
        destination = command.destination
        if destination.is_topic:
            found = list(self.directory.topic(destination))
            if command.subscription is not None:
                found = [
                    queue
                    for queue in found
                    if (queue.record.name, queue.record.client_id) == (command.subscription, command.client_id)
                ]
            if not found:
                if command.subscription is None:
                    raise InvalidDestinationException(f"there is no topic {destination.name!r}")
                raise self.directory.no_such_subscription(destination, command.subscription, command.client_id)
        else:
            if destination in self.directory.permanent:
                raise InvalidDestinationException(
                    f"{destination.name!r} takes what is set aside, and always exists; it can be purged"
                )
            queue = self.directory.by_destination.get(destination)
            if queue is None:
                raise InvalidDestinationException(f"there is no queue {destination.name!r}")
            found = [queue]
        if command.queue is not None and [queue.id for queue in found] != [command.queue]:
            raise InvalidDestinationException(
                f"{found[0].label!r} was deleted and made again meanwhile; look at it once more"
            )
        if destination.is_temporary:
            raise InvalidDestinationException(
                f"temporary destination {destination.name!r} is deleted by the connection that made it"
            )
        for queue in found:
            used = self._used_by(queue)
            if used is not None and not command.force:
                raise IllegalStateException(
                    f"cannot delete {queue.label!r}: {used}; end that first, or delete it by force"
                )
        messages = sum([queue.depth for queue in found])
        for queue in found:
            self._end_any(queue, effects)
        effects.answer(command, messages)

    def _used_by(self, queue: QueueState) -> str | None:
        """Who uses a queue, in words; None: nobody."""
        if queue.consumers:
            return attached(queue)
        if queue.leaving:
            return f"sessions hold {counted(queue.in_hand, 'message')} of it"
        if queue.wait_queue:
            return f"{counted(len(queue.wait_queue), 'send', ('waits', 'wait'))} for room in it"
        if any(browser.queue is queue for browser in self.directory.browsers.values()):
            return "a browser looks at it"
        if any(
            each.record.target == queue.record.name and queue.record.kind == "queue"
            for each in self.directory.staged.values()
        ):
            return "staged transactions are to be published to it"
        return None

    def _end_any(self, queue: QueueState, effects: Effects) -> None:
        if queue.record.kind == "subscription":
            self.removal.end_subscription(queue, effects)
        else:
            del self.directory.by_destination[queue.destination]
            self.blocked_sends.refuse_waiting_for(queue, effects)
            self.removal.end_queue(queue, effects)

    def _end_run(self, command: c.EndRun, now_ms: int, effects: Effects) -> None:
        for queue in self.directory.queues.values():
            if queue.end_run():
                self.directory.changed[queue.id] = queue
        effects.answer(command, None)

    def _delete_idle(self, command: c.DeleteIdle, now_ms: int, effects: Effects) -> None:
        numbers = list(self.directory.queues)[self._swept_idle : self._swept_idle + _IDLE_STEP]
        self._swept_idle = self._swept_idle + _IDLE_STEP if len(numbers) == _IDLE_STEP else 0
        deleted: list[tuple[str, str, int]] = []
        for number in numbers:
            queue = self.directory.queues[number]
            if self._is_idle(queue) and self._used_by(queue) is None:
                deleted.append((queue.record.kind, _name_of(queue), queue.depth))
                self._end_any(queue, effects)
        effects.answer(command, deleted)

    def _is_idle(self, queue: QueueState) -> bool:
        """Whether an option says that a queue or subscription is to be deleted, if nobody uses it now."""
        settings = self.settings
        if queue.id >= FIRST_VOLATILE_QUEUE or queue.consumers:
            return False
        kind = queue.record.kind
        # The time before a restart does not count: whoever used it needs time to come back.
        queue.used_ms = queue.used_ms or self.time.elapsed_ms
        queue.left_ms = queue.left_ms or self.time.elapsed_ms
        if kind == "queue":
            seconds, since_ms = settings.delete_idle_queues_seconds, queue.used_ms
            if queue.depth or queue.destination in self.directory.permanent:
                return False
        elif kind == "subscription":
            seconds, since_ms = settings.delete_idle_subscriptions_seconds, queue.left_ms
        else:
            return False
        return seconds is not None and since_ms + int(seconds * 1000) <= self.time.elapsed_ms

    def _unsubscribe(self, command: c.Unsubscribe, now_ms: int, effects: Effects) -> None:
        client = self.directory.client(command.client)
        client_id = client.client_id if command.of_client else None
        queue = self.directory.subscriptions.get((client_id, command.name, True))
        if queue is None:
            raise InvalidDestinationException(
                f"there is no durable subscription {command.name!r} of client {client_id!r}"
            )
        if queue.consumers:
            raise IllegalStateException(f"cannot unsubscribe {command.name!r}: a consumer uses it; close it first")
        if queue.leaving:
            raise IllegalStateException(
                f"cannot unsubscribe {command.name!r}: a session holds messages of it; acknowledge or commit them first"
            )
        self.removal.end_subscription(queue, effects)
        effects.answer(command, None)

    # Sending.

    # Holding back.

    # Settling.

    # Transactions.

    def _commit(self, command: c.Commit, now_ms: int, effects: Effects) -> None:
        if self.wait_queues.count and command.commit_id is not None:
            self.resumption.give_up_session(command.commit_id.session, now_ms, effects)
        blocked = self.blocked_sends.arrived(command)
        try:
            self.transactions.commit(blocked, now_ms, effects)
        except JMSException as error:
            self.deliveries.roll_back(command, error, effects)
        except Exception as error:  # a fault of ours, as in ``decide``
            effects.faults.append((command, error))
            self.deliveries.roll_back(command, rolled_back(fault(command, error)), effects)

    # Staged transactions.

    def _forget_names(self, command: c.ForgetNames, now_ms: int, effects: Effects) -> None:
        for key in command.keys:
            effects.durable.put(command.table, key, None)
        effects.answer(command, None)

    def _redrive(self, command: c.Redrive, now_ms: int, effects: Effects) -> None:
        source = self.directory.queues.get(command.range.queue)
        moved = 0
        if source is None or source.record.kind == "ended":  # deleted meanwhile, with all that was left
            effects.answer(command, (0, 0, None))
        else:
            for raw, annotations in command.found:
                target = self._home(annotations, command.to, effects)
                if target is None or target is source or self.admission.refusal(target):
                    continue
                if raw.flags & FLAG_PERSISTENT and not target.durable:
                    continue  # a temporary queue, or a subscription in memory, keeps nothing on the disk
                entry = source.find(raw, effects)
                if entry is not None:
                    self.endings.move_annotated(source, entry, target, {REDRIVEN_FROM: source.label}, effects)
                    moved += 1
            self.directory.changed[source.id] = source
            effects.answer(command, (moved, len(command.found), command.next))

    def _home(self, annotations: Mapping[str, Any] | None, to: str | None, effects: Effects) -> QueueState | None:
        """The queue that a message goes back to; None where nobody knows, or it does not exist any more."""
        name = to
        if name is None:
            if annotations is None or not isinstance(annotations.get(DEAD_LETTER_QUEUE), str):
                return None
            name = annotations[DEAD_LETTER_QUEUE]
            subscription = annotations.get(DEAD_LETTER_SUBSCRIPTION)
            if subscription is not None:
                for durable in (True, False):
                    key = (annotations.get(DEAD_LETTER_CLIENT_ID), subscription, durable)
                    queue = self.directory.subscriptions.get(key)
                    if queue is not None and queue.record.topic == name:
                        return queue
                return None
        try:
            return self.directory.queue(named_queue(name), effects)
        except JMSException:
            return None

    # What the store has found.

    def _trim(self, command: c.Trim, now_ms: int, effects: Effects) -> None:
        queue = self.directory.queues.get(command.range.queue)
        dropped = 0
        if queue is not None and (queue.record.kind == "ended") == command.of_ended:
            for raw in command.found:
                entry = queue.find(raw, effects)
                if entry is not None:
                    queue.forget(entry, effects)
                    dropped += 1
            self.directory.changed[queue.id] = queue
        effects.answer(command, (dropped, command.next))

    def _set_aside_damaged(self, command: c.SetAside, now_ms: int, effects: Effects) -> None:
        queue = self.directory.queues.get(command.range.queue)
        count = 0
        if queue is not None:
            for raw in command.found:
                entry = queue.find(raw, effects)
                if entry is not None:
                    queue.forget(entry, effects, keep_message=True)
                    effects.distrusted.append((entry.number, entry.key))
                    count += 1
            self.directory.changed[queue.id] = queue
        self.totals.quarantined += count
        effects.answer(command, count)

    def _due(self, command: c.Due, now_ms: int, effects: Effects) -> None:
        for kind, raw, key in command.items:
            for batch in (effects.durable, effects.volatile) if self.durable else (effects.volatile,):
                batch.put("schedule", key, None)
            queue = self.directory.queues.get(raw.queue) if raw is not None else None
            if raw is None or queue is None or queue.record.kind == "staged":
                continue  # what is staged expires in the queue where it is published
            entry = queue.find(raw, effects)
            if entry is None:
                if raw.expires_at_ms and kind == KIND_EXPIRE:
                    # In a consumer's hands: looked at if it comes back, and now and then, for the case of a crash.
                    batch = effects.durable if raw.flags & FLAG_PERSISTENT else effects.volatile
                    batch.put("schedule", schedule_key(now_ms + _LOOK_AGAIN_MS, KIND_EXPIRE, key[-13:]), b"")
                continue
            self.directory.changed[queue.id] = queue
            if queue.record.kind == "ended":
                queue.forget(entry, effects)  # those who clear it up may have passed the place that it would get
            elif kind == KIND_DELIVER and not (entry.expires_at_ms and entry.expires_at_ms <= now_ms):
                queue.now_due(entry, effects)
            else:
                self.endings.expire(queue, entry, effects)
        effects.answer(command, None)

    def _statistics(self, command: c.Statistics, now_ms: int, effects: Effects) -> None:
        totals = self.totals
        if command.numbers is None:
            found = list(self.directory.queues.values())
        else:
            found = [self.directory.queues[number] for number in command.numbers if number in self.directory.queues]
        queues = [
            QueueStatistics(
                name=queue.label if queue.record.kind != "subscription" else f"{queue.record.topic}:{queue.label}",
                kind=queue.record.kind,
                messages=queue.depth,
                bytes=queue.bytes,
                in_hand=queue.in_hand,
                delayed=queue.delayed.behind + len(queue.resting),
                consumers=len(queue.consumers),
                held_producers=sum(
                    [1 + self.wait_queues.behind(blocked, queue.destination) for blocked in queue.wait_queue]
                ),
                next_position=queue.next_position,
                client_id=queue.record.client_id,
            )
            for queue in found
        ]
        if command.numbers is None:
            queues += self.directory.topic_statistics()
        volatile_bytes = (
            sum([queue.bytes - queue.stored_bytes for queue in self.directory.queues.values()])
            if self.admission.volatile_room is None
            else self.settings.max_volatile_bytes - self.admission.volatile_room
        )
        result = BrokerStatistics(
            enqueued=totals.enqueued,
            delivered=totals.delivered,
            settled=totals.settled,
            redelivered=totals.redelivered,
            expired=totals.expired,
            dead_lettered=totals.dead_lettered,
            duplicates_rejected=totals.duplicates_rejected,
            refused=totals.refused,
            quarantined=totals.quarantined,
            miscounted=totals.miscounted,
            commits=totals.commits,
            clients=len(self.directory.clients),
            volatile_bytes=volatile_bytes,
            held_because=self.admission.full_because,
            queues=tuple(sorted(queues, key=by_kind_and_name)),
        )
        effects.answer(command, result)


def _name_of(queue: QueueState) -> str:
    """The name of a queue, or of a subscription with its topic and client id."""
    if queue.record.kind != "subscription":
        return f"{queue.label!r}"
    whose = "" if queue.record.client_id is None else f" of client id {queue.record.client_id!r}"
    return f"{queue.record.name!r}{whose} on {queue.destination.name!r}"
