"""The rules of the whole engine: each command is decided here, and the queues hand out what they have.

Theory of operation
    ``decide(commands, now_ms)`` changes the state and answers with :class:`Effects`; it does no I/O, reads no clock and
    takes no lock.  One driver (``Broker``) calls it, writes the batches, and then lets the deliveries and
    replies go.  Commands of one call share one commit, and queues hand out messages once, after the last of them.

    Each kind of command has its rule in a file of its own; the table of commands in :class:`BrokerState` says where.
    What exists is in :mod:`broker_adapter.engine.queues.directory`, whether there is room in
    :mod:`broker_adapter.engine.rules.admission`, how messages end in :mod:`broker_adapter.engine.queues.endings`, and
    what one queue does in :mod:`broker_adapter.engine.queues.queue`.

    A send at a limit is *blocked*: it waits in the order of arrival until there is room, and is refused when its time
    is over (:mod:`broker_adapter.engine.rules.blocked_sends`).  Its identity is noted only when it is taken, so that a
    repetition of a refused send is not rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects, Load
from broker_adapter.engine.commands.failures import fault
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.queues.consumers import Consumers
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.dispatch import dispatch
from broker_adapter.engine.queues.endings import Endings, ReadAnnotations
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import BrokerStatistics, QueueStatistics, Totals, by_kind_and_name
from broker_adapter.engine.records.layout import (
    CatalogRecord,
    Counters,
    RawEntry,
    SequencesRecord,
    encode_counters,
    queue_key,
)
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.attachments import Attachments
from broker_adapter.engine.rules.background_commands import BackgroundCommands
from broker_adapter.engine.rules.blocked_sends import BlockedSends
from broker_adapter.engine.rules.claims import Claims
from broker_adapter.engine.rules.connections import Connections
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.destinations import Destinations
from broker_adapter.engine.rules.event_changes import EventChanges
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.engine.rules.gateways import Gateways
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.engine.rules.sends import Sends
from broker_adapter.engine.rules.staged_batches import StagedBatches
from broker_adapter.engine.rules.transactions import Transactions
from broker_adapter.errors import JMSException
from broker_adapter.settings import EngineSettings

#: How often one decision dispatches what its own steps have made available, such as dead letters.
_ROUNDS = 8


class BrokerState:
    """All queues and their clients.

    Attributes:
        settings: the limits.
        totals: what was counted since the engine was opened.
        time: of the decision under way.
        directory: what exists.
        admission: what may still be taken.
        blocked_sends: what waits.
        matching: asks selectors.
        endings: ends messages.
        consumers: attaches and ends consumers.
        deliveries: ends deliveries.
        intake: takes messages in.
        staged_batches: stages and publishes messages.
        commits: the last commit of each session.
        published: the last published number of each group.
        gateways: to other sites.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        durable: bool,
        secret: bytes,
        unique: str = "",
        read_annotations: ReadAnnotations = lambda key, flags, effects: None,
        policies: Policies | None = None,
    ) -> None:
        """A state without queues.

        Args:
            settings: the limits.
            durable: whether there is a durable store; without, nothing is marked as persistent.
            secret: what the names of temporary destinations are made from, up to 64 bytes.  A new one for each run, so
                that no name is used again while a client of an earlier run may reclaim its own; and so that they
                cannot be guessed.
            unique: a word that no other engine has.
            read_annotations: see :class:`broker_adapter.engine.queues.endings.Endings`.
            policies: the settings of queues; None: they have none of their own.
        """
        self.settings = settings
        self.time = time = DecisionTime()
        self.commits = commits = LastNumbers(
            "commits", int(settings.commit_memory_seconds * 1000), time, durable=durable
        )
        self.published = published = LastNumbers(
            "published", int(settings.publish_memory_seconds * 1000), time, durable=durable
        )
        self.totals = totals = Totals()
        self.directory = directory = Directory(
            settings, durable=durable, secret=secret, unique=unique, policies=policies
        )
        self.admission = admission = Admission(settings, directory, time)
        self.endings = endings = Endings(directory, totals, time, read_annotations)
        self.consumers = consumers = Consumers(directory, time)
        self.matching = matching = Matching(directory)
        self.blocked_sends = blocked = BlockedSends(settings, admission, matching, directory.changed, totals, time)
        self._removal = removal = QueueRemoval(directory, consumers, blocked, admission, published, time)
        self.deliveries = deliveries = Deliveries(directory, consumers, removal, endings, totals)
        self.intake = intake = Intake(directory, admission, totals, durable=durable)
        sends = Sends(directory, admission, matching, blocked, intake, totals)
        self.events = events = EventState(directory)
        self._event_changes = event_changes = EventChanges(events, directory, admission, matching, intake, totals, time)
        self._transactions = transactions = Transactions(
            directory, admission, matching, blocked, intake, deliveries, commits, published, totals, event_changes
        )
        blocked.take, blocked.commit, blocked.refuse_commit = sends.take, transactions.commit, transactions.refuse
        blocked.is_known = sends.is_known
        self.staged_batches = staged = StagedBatches(directory, admission, removal, intake, published, totals, time)
        attachments = Attachments(directory, consumers, removal)
        destinations = Destinations(directory, removal, blocked, time, events.regions)
        connections = Connections(directory, consumers, removal, deliveries, destinations, blocked, event_changes.lost)
        background = BackgroundCommands(
            *(directory, admission, endings, deliveries.losses, totals, time), (commits, published), events.clients
        )
        claims = Claims(directory, time)
        self.gateways = gateways = Gateways(directory, admission, intake, removal, endings, totals)
        self._steps: dict[type, Callable[[Any, int, Effects], None]] = {
            c.Connect: connections.connect,
            c.Disconnect: connections.disconnect,
            c.GiveBack: connections.give_back,
            c.Declare: destinations.declare,
            c.DeclareTemporary: destinations.declare_temporary,
            c.DeleteTemporary: destinations.delete_temporary,
            c.Delete: destinations.delete,
            c.DeleteIdle: destinations.delete_idle,
            c.UsePolicies: destinations.use_policies,
            c.Attach: attachments.attach,
            c.Unsubscribe: attachments.unsubscribe,
            c.Credit: consumers.credit,
            c.Drain: consumers.drain,
            c.Detach: deliveries.detach,
            c.Settle: deliveries.settle,
            c.TakeInHand: deliveries.take_in_hand,
            c.Quarantined: deliveries.quarantined,
            c.Uncount: deliveries.uncount,
            c.Seen: deliveries.seen,
            c.SeenRest: deliveries.seen_rest,
            c.UncountRest: deliveries.uncount_rest,
            c.Enqueue: sends.enqueue,
            c.PutBack: sends.put_back,
            c.Commit: transactions.begin,
            c.EndSession: blocked.end_session,
            c.ResolveCommit: transactions.resolve,
            c.Claim: claims.claim,
            c.EndClaim: claims.end_claim,
            c.Stage: staged.stage,
            c.Renew: staged.renew,
            c.Publish: staged.publish,
            c.Discard: staged.discard,
            c.Move: staged.move,
            c.Drop: removal.drop,
            c.Trim: background.trim,
            c.SetAside: background.set_aside,
            c.Due: background.due,
            c.Redrive: background.redrive,
            c.RemoveNames: background.remove_names,
            c.NoteAge: background.note_age,
            c.EndRun: background.end_run,
            c.Statistics: self._statistics,
            **event_changes.steps,
            **gateways.steps,
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
        self.directory.numbers.next = next_queue
        for number, record, counters, lanes in queues:
            queue = self.directory.restore(number, record, counters, lanes)
            if record.kind == "ended":
                ended.append(number)
            elif record.kind == "staged":
                self.staged_batches.restore(queue)
        self.intake.restore(streams, next_message)
        return ended

    # A decision.

    def decide(self, commands: Iterable[c.Command], now_ms: int, elapsed_ms: int | None = None) -> Effects:
        """Carry out commands in order.

        Args:
            commands: what was asked for.
            now_ms: the time of the day, in milliseconds since 1970: what expires and is delayed goes by it.
            elapsed_ms: milliseconds of a clock that is never set: how long something waits goes by it; None:
                ``now_ms``.

        Returns:
            What is to be stored, and what may leave afterwards.  A command that cannot be done changes nothing,
            and its reply is the error.
        """
        effects = Effects()
        steps = self._steps
        self._event_changes.begin(effects)
        self.time.now_ms = now_ms
        self.time.elapsed_ms = now_ms if elapsed_ms is None else elapsed_ms
        if not self.directory.permanent:
            self.directory.make_permanent_queues(effects)
        matching = self.matching
        matching.is_late = matching.new_slice()
        for command in commands:
            try:
                steps[type(command)](command, now_ms, effects)
            except JMSException as error:
                effects.answer(command, error)
            except Exception as error:  # a fault of ours: it is this command's alone
                effects.faults.append((command, error))
                effects.answer(command, fault(command, error))
        if self.blocked_sends.all:
            matching.is_late = matching.new_slice()  # for sends that are blocked already
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
        """Try blocked sends again, hand messages out, answer drains, note the counters and the last stamp.

        It costs what the queues cost that have changed, however many there are.
        """
        touched: dict[int, QueueState] = {}
        changed, memory = self.directory.changed, self.directory.memory
        if self.endings.due:
            self.endings.end_delays(effects)
        for _ in range(_ROUNDS):
            if self.blocked_sends.all:
                self.blocked_sends.resume(now_ms, effects)
            if self.admission.gave_way:
                self._removal.give_way(self.totals, effects)
            if memory.limited:
                for queue in memory.unlimited():
                    changed[queue.id] = queue
            if not changed:
                break
            queues = changed.copy()
            changed.clear()
            touched.update(queues)
            left_out: dict[int, QueueState] = {}
            for queue in queues.values():
                if effects.handouts >= memory.cycle_handouts:
                    left_out[queue.id] = queue
                    continue
                before = queue.depth
                if queue.consumers:
                    for entry in dispatch(queue, now_ms, effects):
                        self.endings.expire(queue, entry, effects)
                    if queue.undeliverable.refusers:
                        self.endings.note_refused(queue)
                    if effects.handouts >= memory.cycle_handouts:
                        changed[queue.id] = queue  # it may have more
                elif queue.ready:
                    self.consumers.keep_window(queue, effects)
                if queue.wait_queue and queue.depth < before:
                    changed[queue.id] = queue  # what was settled at once, or had expired, has made room
            if effects.handouts >= memory.cycle_handouts:
                later = changed.copy()
                changed.clear()
                changed |= left_out  # these are the first ones in the next cycle
                changed |= later
                break
        for each in effects.ended_again:
            self.deliveries.redelivered.ended(*each)
        effects.ended_again.clear()
        consumers = self.consumers
        if consumers.drains:
            consumers.answer_drains(effects)
        if consumers.browsing:
            effects.browsers += consumers.browsing.values()
            consumers.browsing.clear()
        for queue in (*touched.values(), *changed.values()):
            queue.used_ms = self.time.elapsed_ms
            if queue.counters_due and queue.durable:
                queue.counters_due = False
                key = queue_key(queue.id)
                effects.durable.put("queues", key, encode_counters(key, queue.counters()))
        if self.events.noted_stamp != self.events.last_stamp:
            self.events.note_stamp()
        if self.directory.gateways:
            self.gateways.note(effects)

    @property
    def has_more(self) -> bool:
        """Whether another decision is due although nothing is asked for."""
        clients = self.events.clients
        return bool(
            self.directory.changed
            or self.blocked_sends.has_more
            or clients.behind
            or clients.walks.walking
            or clients.walks.answers
            or self.events.waiting
        )

    @property
    def waits_engine_wide(self) -> bool:
        """Whether a blocked send may go on when the whole engine has more room."""
        return bool(self.blocked_sends.engine_wide)

    def next_deadline_ms(self) -> int | None:
        """When a blocked send is to be refused or tried, or a back-off ends, first; by ``elapsed_ms``."""
        due = [self.blocked_sends.next_due_ms(), self.endings.next_due_ms()]
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def waiting(self) -> list[c.Reply]:
        """The replies that are still due, of blocked sends and drains.  For the end of the engine."""
        replies = [blocked.command.reply for blocked in self.blocked_sends.all]
        replies += [reply for _, reply in self.consumers.drains]
        replies += self.events.clients.walks.waiting()
        replies += [command.reply for command in self.events.waiting if command.reply is not None]
        replies += [reply for browser in self.directory.browsers.values() for reply in browser.drains]
        return [reply for reply in replies if reply is not None]

    # Statistics.

    def _statistics(self, command: c.Statistics, now_ms: int, effects: Effects) -> None:
        totals, directory = self.totals, self.directory
        if command.numbers is None:
            found = list(directory.queues.values())
        else:
            found = [directory.queues[number] for number in command.numbers if number in directory.queues]
        queues = [self._statistics_of(queue, command.sent_ms.get(queue.id)) for queue in found]
        if command.numbers is None:
            queues += directory.topic_statistics()
        volatile_bytes = (
            sum([queue.bytes - queue.stored_bytes for queue in directory.queues.values()])
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
            clients=len(directory.clients),
            volatile_bytes=volatile_bytes,
            blocked_because=self.admission.full_because,
            queues=tuple(sorted(queues, key=by_kind_and_name)),
            dropped=totals.dropped,
            subscriptions_ended=totals.subscriptions_ended,
        )
        effects.answer(command, result)

    def _statistics_of(self, queue: QueueState, sent_ms: int | None) -> QueueStatistics:
        return QueueStatistics(
            name=queue.label if queue.record.kind != "subscription" else f"{queue.record.topic}:{queue.label}",
            kind=queue.record.kind,
            messages=queue.depth,
            bytes=queue.bytes,
            in_hand=queue.in_hand,
            delayed=queue.delayed.behind + len(queue.backoff),
            consumers=len(queue.consumers),
            blocked_sends=self.blocked_sends.count_for(queue),
            next_position=queue.next_position,
            client_id=queue.record.client_id,
            oldest_age_ms=None if sent_ms is None else max(0, self.time.now_ms - sent_ms),
            dropped=queue.dropped,
        )
