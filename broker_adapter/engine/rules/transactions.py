"""How a commit is carried out: its sends, settlements and changes of regions, all or nothing, once for each number.

Theory of operation
    A commit is first checked, matched with the selectors of the topics that it sends to and of the regions that it
    changes, and given room.  Until then it may be refused, and nothing has changed but that queues were made for it,
    which are removed again.  It waits for selectors that take long, and never for room.
    Afterwards nothing can fail: its messages are stored, its deliveries settled and its keys changed.  Where something
    does, which is a fault in the engine, the commit is in doubt.

    The number of the last commit of each session is remembered, so that a commit that is made again is not carried out
    again, and a client that lost its connection can ask what became of one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import fault, message_too_large, rolled_back
from broker_adapter.engine.commands.identities import LastNumbers, Sequences, checked_number
from broker_adapter.engine.commands.intervals import Intervals
from broker_adapter.engine.commands.message_runs import run_of
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.gateway_queue import REGION_KIND, GatewayQueue
from broker_adapter.engine.queues.queue import Consumer, QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import short_name
from broker_adapter.engine.rules.admission import Admission, CommitRoom
from broker_adapter.engine.rules.blocked_sends import BlockedSend, BlockedSends
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.event_changes import EventChanges
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.matching import MATCHING, CommitMatches, Matching, still_subscribed
from broker_adapter.errors import (
    LIMIT_REACHED,
    IllegalStateException,
    JMSException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)

#: A message of a commit, with the queues that take it.
_Routed = tuple[Sequence[QueueState], Destination, c.NewMessage]


class Transactions:
    """Carries out commits."""

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        matching: Matching,
        blocked_sends: BlockedSends,
        intake: Intake,
        deliveries: Deliveries,
        commits: LastNumbers,
        published: LastNumbers,
        totals: Totals,
        event_changes: EventChanges,
    ) -> None:
        self._directory = directory
        self._changed = directory.changed
        self._settings = directory.settings
        self._durable = directory.durable
        self._admission = admission
        self._matching = matching
        self._blocked = blocked_sends
        self._intake = intake
        self._streams = intake.streams
        self._deliveries = deliveries
        self._commits = commits
        self._published = published
        self._totals = totals
        self._event_changes = event_changes
        self._has_begun = False  #: whether the last commit that was tried has changed something

    def resolve(self, command: c.ResolveCommit, now_ms: int, effects: Effects) -> None:
        """Carry out a ResolveCommit."""
        session, number = command.commit_id
        last = self._commits.last(session)
        done: bool | None = last is not None and number <= last
        if last is None and self._commits.may_be_removed(command.age_ms):
            done = None
        effects.answer(command, done)

    def begin(self, command: c.Commit, now_ms: int, effects: Effects) -> None:
        """Carry out a Commit."""
        if self._blocked.all and command.commit_id is not None:
            overtaken = "the session made a further commit while this one waited for the selectors of subscriptions"
            self._blocked.give_up_session(command.commit_id.session, overtaken, effects)
        if command.changes:
            asked: dict[str, e.Asked] = {}  # of each region, whose selectors the answers are of
            parts = [part._replace(asked=asked.setdefault(part.region, {})) for part in command.changes]
            command = command._replace(changes=parts)
        self.commit(self._blocked.arrived(command), now_ms, effects)

    def commit(self, blocked: BlockedSend, now_ms: int, effects: Effects) -> bool:
        """Carry out a commit, or roll it back; return False where it waits for selectors (again)."""
        command = blocked.command
        assert isinstance(command, c.Commit)
        made: list[QueueState] = []
        self._has_begun = False
        try:
            try:
                return self._commit(made, blocked, command, now_ms, effects)
            finally:
                self._directory.unmake(made, effects)
        except JMSException as error:
            cause = error if command.batch is None else error.__cause__
            self._deliveries.roll_back(command, cause if isinstance(cause, JMSException) else error, effects)
        except Exception as error:  # a fault of ours: it is this command's alone, as in ``decide``
            effects.faults.append((command, error))
            self._fail(command, error, effects)
        return True

    def refuse(self, command: c.Commit, error: JMSException, effects: Effects) -> None:
        """Roll a commit back that waits for selectors."""
        self._deliveries.roll_back(command, rolled_back(error), effects)

    def _fail(self, command: c.Commit, cause: Exception, effects: Effects) -> None:
        """Roll back the commit that a fault of the engine has ended; it is in doubt if it had begun."""
        failure = fault(command, cause)
        if self._has_begun:
            doubt = TransactionInDoubtException(f"{failure.reason}; a part of it may have been done")
            doubt.__cause__ = cause
            self._deliveries.roll_back(command, doubt, effects)  # what is not settled yet is redelivered
        else:
            self._deliveries.roll_back(command, rolled_back(failure), effects)

    def _no_room(self, reason: str) -> TransactionRolledBackException:
        """Return the error for a commit that finds no room, or would overtake a send that finds none."""
        self._totals.refused += 1
        text = f"{reason}; a commit does not wait for room: do the transaction again later"
        return rolled_back(ResourceAllocationException(text, error_code=LIMIT_REACHED))

    def _commit(
        self, made: list[QueueState], blocked: BlockedSend, command: c.Commit, now_ms: int, effects: Effects
    ) -> bool:
        """As ``commit``; raises where it is to be rolled back, and notes the queues that are made for it."""
        commit_id = command.commit_id
        if commit_id is not None and checked_number(commit_id.number) <= (self._commits.last(commit_id.session) or 0):
            effects.answer(command, None)
            return True
        batch = command.batch
        if batch is not None and batch.known != (known := self._published.last(batch.group) or 0):
            effects.answer(command, c.Applied(known))
            return True
        settings = self._settings
        changes = command.changes
        messages = len(command.sends) + len(command.settlements) + sum([len(part.changes) for part in changes])
        if messages > settings.max_transaction_messages:
            raise _too_many_messages(messages, settings.max_transaction_messages)
        first = self._blocked.first_before(blocked, command) if self._blocked.all else None
        if first is not None and not first.is_matching:
            raise self._no_room(first.reason)
        places = self._checked_places(changes) if changes and blocked.is_current else 0
        is_asked = first is None and self._match(blocked, command)
        if is_asked and changes:
            blocked.asked_parts = self._event_changes.ask(changes, blocked.asked_parts)
            is_asked = blocked.is_current and blocked.asked_parts == len(changes)
        if not is_asked:
            return not self._blocked.block(blocked, None, MATCHING, effects, is_matching=True)
        size = sum([len(message.payload) for _, message in command.sends]) + sum([part.size for part in changes])
        if size > settings.max_transaction_bytes and (batch is None or messages > 1):  # what was sent alone is none
            raise _too_many_bytes(size, settings.max_transaction_bytes)
        settled = self._settled_by(command)
        unchanged = repeated = 0
        if command.sends or changes:
            room = CommitRoom(self._admission, settled)
            routed = self._find_room(room, made, blocked, command, effects, places)
            reason = self._event_changes.find_room(changes, room)
            if reason is not None:
                raise self._no_room(reason)
            room.take()
            self._has_begun = True
            if self._directory.feeds and batch is None and messages > 1:
                self._intake.begin_transaction()
                self._note_gateways(command, effects)
            try:
                if routed:
                    repeated = self._take(routed, batch, now_ms, effects)
                joined = () if batch is None else batch.joined[len(command.sends) :]
                unchanged = self._event_changes.carry_out(changes, now_ms, effects, joined)
            finally:
                self._intake.end_transaction()
        self._has_begun = True
        self._deliveries.settle_committed(settled, effects)
        self._totals.settled += len(command.settlements)
        if commit_id is not None:
            self._commits.note(commit_id.session, commit_id.number, effects.durable)
        if batch is not None:
            self._published.note(batch.group, batch.position, effects.durable)
        effects.answer(command, None if batch is None else c.Applied(batch.position, unchanged, repeated))
        return True

    def _checked_places(self, changes: Sequence[e.ChangeKeys]) -> int:
        """Check the changes of a commit; return as how many places in queues and subscriptions they count."""
        try:
            places = self._event_changes.check(changes)
        except JMSException as error:
            raise rolled_back(error) from error
        if places > self._settings.max_transaction_entries:
            raise _too_many_places(self._settings.max_transaction_entries)
        return places

    def _match(self, blocked: BlockedSend, command: c.Commit) -> bool:
        """Find out which subscriptions want each message of a commit.

        Returns False where that takes longer than this decision may.
        """
        matches = blocked.matches
        if matches is None:
            directory = self._directory
            topics = {each for each, _ in command.sends if each.is_topic}
            queues = {topic: directory.remote(directory.topics.get(topic, ()), command.client) for topic in topics}
            if not any(queue.selector is not None for each in queues.values() for queue in each):
                return True
            matches = blocked.matches = CommitMatches(queues)
        most_places = self._settings.max_transaction_entries
        for index in range(len(matches.wanting), len(command.sends)):
            destination, message = command.sends[index]
            topic = matches.queues.get(destination)
            wanting = () if topic is None else self._matching.wanting(blocked, message, topic)
            if wanting is None:
                return False
            matches.wanting.append(wanting)
            matches.places += len(wanting)
            if matches.places > most_places:
                raise _too_many_places(most_places)
        blocked.match = None
        return True

    def _settled_by(self, command: c.Commit) -> list[tuple[Consumer, dict[int, c.Ending]]]:
        """What a commit settles, by consumer; raises where one is not held, or settled twice."""
        consumers = self._directory.consumers
        settled: dict[int, dict[int, c.Ending]] = {}
        in_hand: dict[int, Entry] = {}
        last, outcomes = -1, dict[int, c.Ending]()
        for consumer_number, number, outcome in command.settlements:
            if consumer_number != last:
                last = consumer_number
                consumer = consumers.get(last)
                in_hand = {} if consumer is None else consumer.unsettled
                outcomes = settled.setdefault(last, {})
            if number in outcomes or number not in in_hand:
                raise rolled_back(
                    IllegalStateException(f"delivery {number} of consumer {consumer_number} is not held any more")
                )
            outcomes[number] = outcome
        return [(consumers[each], outcomes) for each, outcomes in settled.items()]

    def _find_room(
        self,
        room: CommitRoom,
        made: list[QueueState],
        blocked: BlockedSend,
        command: c.Commit,
        effects: Effects,
        places: int,
    ) -> list[_Routed]:
        """Find the queues of each message, and room in them.

        Args:
            room: of the commit.
            made: gets the queues that are made for it.
            blocked: says which subscriptions match its messages.
            command: the commit.
            effects: of the decision.
            places: that the commit takes in queues beside those of its messages.

        Returns:
            The messages with their queues.

        Raises:
            TransactionRolledBackException: there is no room for them.
        """
        settings = self._settings
        max_bytes, most_places = settings.max_message_bytes, settings.max_transaction_entries
        durable, is_open, feeds = self._durable, room.is_open, self._directory.feeds
        matches = blocked.matches
        routed: list[_Routed] = []
        last: Destination | None = None
        remote: Sequence[QueueState] = ()
        all_durable = durable
        for destination, message in command.sends:
            length = len(message.payload)
            if length > max_bytes:
                raise rolled_back(message_too_large(length, max_bytes))
            if destination is not last:
                last = destination
                remote = self._route(destination, command.client, made, effects)
                lasting = [queue.durable for queue in remote]
                all_durable = durable and all(lasting)
            queues = remote
            if matches is not None and destination.is_topic:
                queues = still_subscribed(matches.wanting[len(routed)])
                lasting = [queue.durable for queue in queues]
                all_durable = durable and all(lasting)
            routed.append((queues, destination, message))
            places += len(queues)
            if places > most_places:
                raise _too_many_places(most_places)
            if is_open and all_durable and message.persistent:
                continue
            fed = len(feeds.get(destination, ())) if feeds else 0
            reason = room.ask(message.persistent, length, queues, all_durable, fed)
            if reason is not None:
                raise self._no_room(reason)
            if room.queues is not queues:
                routed[-1] = room.queues, destination, message
        return routed

    def _route(
        self, destination: Destination, client: int, made: list[QueueState], effects: Effects
    ) -> Sequence[QueueState]:
        """The queues that get what a client sends to a destination."""
        directory = self._directory
        next_number = directory.numbers.next
        try:
            targets = directory.targets(destination, effects)
        except JMSException as error:
            raise rolled_back(error) from error
        if directory.numbers.next != next_number:
            made += targets
        return directory.remote(targets, client)

    def _note_gateways(self, command: c.Commit, effects: Effects) -> None:
        """Warn of a transaction of which a part goes by a gateway that keeps transactions whole, and a part by others.

        What no gateway takes does not count: it is for this site only.
        """
        feeds = self._directory.feeds
        places: set[tuple[str, int]] = {destination for destination, _ in command.sends}
        places |= {(part.region, REGION_KIND) for part in command.changes}
        ways = {
            frozenset(feed.queue for feed in feeds[place] if feed.queue.gateway.group_transaction_events)
            for place in places
            if place in feeds
        }
        if len(ways) < 2:
            return
        gateways = frozenset[GatewayQueue]().union(*ways)
        for queue in gateways:
            queue.divided_transactions += 1
        names = ", ".join(sorted(repr(queue.record.name) for queue in gateways))
        effects.warn(
            ("divided", gateways),
            "! not all messages of a transaction go by the same gateways: %s; each keeps together what it carries,"
            " and the other site may see that without the rest",
            names,
        )

    def _take(self, routed: list[_Routed], batch: c.SiteBatch | None, now_ms: int, effects: Effects) -> int:
        """Store the messages of a commit; those whose identity or origin is known already are left out.

        Args:
            routed: the messages.
            batch: of another site; None: they were sent here.
            now_ms: the time of the day.
            effects: of the decision.

        Returns:
            How many have a known origin.
        """
        sites, origins, joined = ((), (), ()) if batch is None else (batch.sites, batch.origins, batch.joined)
        repeated: Set[int] = frozenset() if batch is None else self._repeated(routed, batch, effects)
        queues, destination, _ = routed[0]
        feeds = self._directory.feeds
        if not (repeated or (sites and feeds)) and all(each[0] is queues and each[1] == destination for each in routed):
            run = run_of([message for _, _, message in routed])
            if run is not None and self._intake.take_run(run, destination, queues, now_ms, effects):
                for queue in queues:
                    self._changed[queue.id] = queue
                return 0
        all_streams, changed, totals = self._streams, self._changed, self._totals
        store, is_over = self._intake.store, self._intake.is_over
        streams: dict[tuple[Any, ...], Sequences] = {}
        stream: tuple[Any, ...] = ()
        sender: tuple[Any, ...] = ()
        seen: Sequences | None = None
        for index, (queues, destination, message) in enumerate(routed):
            if joined and not joined[index]:
                self._intake.begin_transaction()
            if index in repeated:
                continue
            identity = message.identity
            if identity is not None:
                producer_id, thread_id, sequence = identity
                if sender != (destination, producer_id, thread_id):
                    sender = destination, producer_id, thread_id
                    stream = (destination.name, int(destination.kind), short_name(producer_id), thread_id)
                    seen = all_streams.get(stream)
                if seen is None:
                    seen = all_streams[stream] = Sequences.begin(sequence)
                elif not seen.add(sequence):
                    totals.duplicates_rejected += 1
                    continue
                streams[stream] = seen
            totals.enqueued += 1
            if message.expires_at_ms is None or not is_over(message, now_ms):
                fed = feeds.get(destination, ()) if feeds else ()
                marks = (sites[index], origins[index] if origins else None) if sites else ()
                store(message, queues, now_ms, effects, None, fed, *marks)
            for queue in queues:
                changed[queue.id] = queue
        for stream, sequences in streams.items():
            self._intake.note_stream(stream, sequences, now_ms, effects)
        return len(repeated)

    def _repeated(self, routed: Sequence[_Routed], batch: c.SiteBatch, effects: Effects) -> Set[int]:
        """Note the origins of messages; return the indexes of those that have come before, by another way."""
        known: set[int] = set()
        come: dict[str, Intervals] = {}
        groups = batch.groups([destination for _, destination, _ in routed])
        for index, (group, origin) in enumerate(zip(groups, batch.origins, strict=False)):
            if origin is None:
                continue
            intervals = come.get(group)
            if intervals is None:
                intervals = come[group] = self._published.intervals(group)
            if not intervals.add(origin.number, origin.previous):
                known.add(index)
        for group, intervals in come.items():
            self._published.note_intervals(group, intervals, effects.durable)
        self._totals.duplicates_rejected += len(known)
        return known


def _too_many_messages(messages: int, limit: int) -> TransactionRolledBackException:
    return rolled_back(
        ResourceAllocationException(
            f"transaction of {messages} messages is larger than the limit of {limit} messages"
            " (option max_transaction_messages)"
        )
    )


def _too_many_bytes(size: int, limit: int) -> TransactionRolledBackException:
    return rolled_back(
        ResourceAllocationException(
            f"transaction of {size} bytes is larger than the limit of {limit} bytes (option max_transaction_bytes)"
        )
    )


def _too_many_places(limit: int) -> TransactionRolledBackException:
    return rolled_back(
        ResourceAllocationException(
            f"the messages and changes of the transaction take more than {limit} places in queues and subscriptions; a"
            " change of a region counts as four (the limit max_transaction_entries)"
        )
    )
