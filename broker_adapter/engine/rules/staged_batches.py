"""How messages are staged, and staged transactions published: all of a batch or none, and once for each number.

A staged transaction is a queue that has no consumers.  Publishing says that its messages belong to its target, in one
step.  Few messages are moved in that step; otherwise a background job then moves them there, and what is on its way
counts as there.  Which transactions belong
together, and when they are dropped, is in :mod:`broker_adapter.engine.rules.staging`.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.destination import Destination, checked_name
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.commands.identities import LastNumbers, checked_number
from broker_adapter.engine.queues.directory import Directory, named_queue
from broker_adapter.engine.queues.gateway_queue import origin_of
from broker_adapter.engine.queues.limits import never as never_taken
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import FLAG_PERSISTENT, FLAG_SHARED, CatalogRecord, RawEntry
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.queue_removal import QueueRemoval
from broker_adapter.engine.rules.staging import Staging, batch_of
from broker_adapter.errors import (
    LIMIT_REACHED,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ResourceAllocationException,
)


class StagedBatches:
    """Stages messages and publishes them.

    Attributes:
        staging: the transactions that are not published, by batch.
    """

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        removal: QueueRemoval,
        intake: Intake,
        published: LastNumbers,
        totals: Totals,
        time: DecisionTime,
    ) -> None:
        self._directory = directory
        self._time = time
        self._changed = directory.changed
        self._settings = directory.settings
        self._admission = admission
        self._removal = removal
        self._intake = intake
        self._published = published
        self._totals = totals
        self.staging = Staging(int(directory.settings.staged_timeout_seconds * 1000))
        self._next_publishing = 1

    def restore(self, queue: QueueState) -> None:
        """Take over a staged transaction that the durable store has."""
        record = queue.record
        if not record.publishing:
            # What a crash took of the age of the store must not count for it.
            self.staging.begin(record.name, min(record.created_ms, self._time.age_ms))
        else:
            self._admission.begin_publishing(queue)
        self._next_publishing = max(self._next_publishing, record.publishing + 1)

    def stage(self, command: c.Stage, now_ms: int, effects: Effects) -> None:
        """Carry out a Stage."""
        group, number = batch_of(command.transaction)
        last = self._published.last(group)
        if number is not None and last is not None and number <= last:
            self._totals.duplicates_rejected += len(command.messages)
            self._end(command.transaction, effects)
            effects.answer(command, False)
            return
        queue = self._directory.staged.get(command.transaction)
        new = self._new_of(command, queue)
        self._take_room(command, queue, [len(each.payload) for each in new])
        age_ms = self._time.age_ms
        if queue is None:
            record = CatalogRecord("staged", command.transaction, target=command.target.name, created_ms=age_ms)
            queue = self._directory.staged[command.transaction] = self._directory.new_queue(
                Destination(command.transaction), record, effects
            )
            self._published.is_changed = True  # its age goes by that of the store
            for name in self.staging.begin(command.transaction, age_ms):
                self._end(name, effects)
        elif self.staging.used(command.transaction, age_ms):
            self._note_use(queue, age_ms, effects)
        if queue.durable:
            self._intake.store_behind(new, queue, effects)
        else:
            for message in new:
                self._intake.store(message, (queue,), now_ms, effects)
        self._changed[queue.id] = queue
        effects.answer(command, True)

    def _new_of(self, command: c.Stage, queue: QueueState | None) -> Sequence[c.NewMessage]:
        """The messages that a staged transaction does not have yet; raises where one cannot be staged."""
        if queue is not None and queue.record.publishing:
            raise IllegalStateException(f"staged transaction {command.transaction!r} is published already")
        have = queue.next_position - 1 if queue is not None else 0
        if command.first > have:
            dropped = "" if queue is not None else " (it was never begun, or was discarded, superseded or timed out)"
            raise IllegalStateException(
                f"staged transaction {command.transaction!r} has {have} messages{dropped}, so the next"
                f" cannot be number {command.first}"
            )
        if named_queue(command.target.name).is_temporary:
            raise InvalidDestinationException(f"cannot stage messages for the temporary queue {command.target.name!r}")
        max_bytes = self._settings.max_message_bytes
        for message in command.messages:
            if len(message.payload) > max_bytes:
                raise message_too_large(len(message.payload), max_bytes)
            if message.deliver_at_ms is not None:
                raise JMSException("a staged message cannot have a delivery delay")
        new = command.messages[have - command.first :]
        return new if all(message.persistent for message in new) else [each._replace(persistent=True) for each in new]

    def _take_room(self, command: c.Stage, queue: QueueState | None, sizes: Sequence[int]) -> None:
        """Take the room for messages of these sizes, or raise."""
        if sizes:
            have, before = (0, 0) if queue is None else (queue.next_position - 1, queue.bytes)
            settings = self._directory.policies.settings_of(command.target)
            never = never_taken(settings, "the staged transaction", have + len(sizes), before + sum(sizes[:-1]))
            if never is not None:
                raise ResourceAllocationException(never)
        if queue is None:
            self._directory.check_limit()
            checked_name(command.transaction, "transaction")
        if sizes:
            self._admission.take_at_once([(size, 2) for size in sizes])

    def renew(self, command: c.Renew, now_ms: int, effects: Effects) -> None:
        """Carry out a Renew."""
        age_ms = self._time.age_ms
        name = self.staging.renew(command.group, command.number, age_ms)
        if name is not None:
            self._note_use(self._directory.staged[name], age_ms, effects)
        effects.answer(command, self._settings.staged_timeout_seconds)

    def _note_use(self, queue: QueueState, age_ms: int, effects: Effects) -> None:
        queue.record = queue.record._replace(created_ms=age_ms)
        self._directory.put_record(queue, effects)

    def overdue(self, age_ms: int) -> list[str]:
        """The staged transactions to drop because their batch was not used for the time-out."""
        return self.staging.overdue(age_ms)

    def publish(self, command: c.Publish, now_ms: int, effects: Effects) -> None:
        """Carry out a Publish."""
        last = self._published.last(command.group)
        checked_number(command.number)
        if last is not None and command.number <= last:
            self._drop_published(command, effects)
            effects.answer(command, False)
            return
        found = self._staged_by(command)
        made: list[QueueState] = []
        try:
            self._check_room(found, made, effects)
        except JMSException:
            self._directory.unmake(made, effects)
            raise
        if not self._move_at_once(command.found, found, now_ms, effects):
            for queue in found:
                self._begin_publishing(queue, effects)
        for name in self.staging.through(command.group, command.number):
            self._end(name, effects)  # of attempts that do not count
        self._published.note(command.group, command.number, effects.durable)
        effects.answer(command, True)

    def _drop_published(self, command: c.Publish, effects: Effects) -> None:
        """Drop what is staged for a number that is published already."""
        for name in dict.fromkeys(command.transactions):
            queue = self._directory.staged.get(name)
            if queue is not None and not queue.record.publishing:
                self._totals.duplicates_rejected += queue.depth
        for name in (*command.transactions, *self.staging.through(command.group, command.number)):
            self._end(name, effects)

    def _staged_by(self, command: c.Publish) -> list[QueueState]:
        """The staged transactions that are to be published; raises where one is not as it should be."""
        counts = dict(zip(command.transactions, command.counts or (), strict=False))
        found = []
        for name in dict.fromkeys(command.transactions):
            queue = self._directory.staged.get(name)
            if queue is None:
                raise InvalidDestinationException(
                    f"staged transaction {name!r} does not exist: it was discarded or superseded, dropped after"
                    f" {self._settings.staged_timeout_seconds:g} s (option staged_timeout_seconds), or never made"
                )
            if queue.record.publishing:
                raise IllegalStateException(f"staged transaction {name!r} is published already")
            have = queue.next_position - 1
            if counts.get(name, have) != have:
                raise IllegalStateException(
                    f"staged transaction {name!r} has {have} messages, not {counts[name]}: the store has lost a part of"
                    " it, or was restored from a copy; stage it again"
                )
            found.append(queue)
        return found

    def _check_room(self, found: Sequence[QueueState], made: list[QueueState], effects: Effects) -> None:
        """Raise where some staged transactions find no room; ``made`` gets the queues that are made for them."""
        for target in dict.fromkeys(Destination(queue.record.target or "") for queue in found):
            if target in self._directory.by_destination:
                continue
            made.append(self._directory.queue(target, effects))
        reason = self._admission.ask_for_batches(found)
        if reason is None:
            return
        for queue in found:  # it may be published again until its time-out, counted from now
            if self.staging.used(queue.record.name, self._time.age_ms):
                self._note_use(queue, self._time.age_ms, effects)
        self._totals.refused += 1
        text = f"{reason}; a publication does not wait for room: publish again later"
        raise ResourceAllocationException(text, error_code=LIMIT_REACHED)

    def _move_at_once(
        self, entries: Sequence[RawEntry], found: Sequence[QueueState], now_ms: int, effects: Effects
    ) -> bool:
        """Move what is staged in this decision; returns False, with nothing done, where a job has to do that.

        That is so where there is too much, where it has changed since it was read, and where earlier publications are
        still on their way into a target.
        """
        by_queue: dict[int, list[RawEntry]] = {queue.id: [] for queue in found}
        for raw in entries:
            if raw.queue in by_queue:
                by_queue[raw.queue].append(raw)
        for queue in found:
            own = by_queue[queue.id]
            if len(own) != queue.depth or (queue.record.target or "") in self._admission.publishing:
                return False
            if queue.split_run(own, effects)[1]:
                return False
        for queue in found:
            self.staging.end(queue.record.name)
            self._move_run(by_queue[queue.id], queue, effects)
            self._removal.drop(c.Drop(queue.id), now_ms, effects)
        return True

    def _begin_publishing(self, queue: QueueState, effects: Effects) -> None:
        self.staging.end(queue.record.name)
        self._admission.begin_publishing(queue)
        queue.record = queue.record._replace(publishing=self._next_publishing)
        self._next_publishing += 1
        effects.published.append(queue.id)
        self._directory.put_record(queue, effects)

    def discard(self, command: c.Discard, now_ms: int, effects: Effects) -> None:
        """Carry out a Discard."""
        effects.answer(command, sum(self._end(name, effects) for name in command.transactions))

    def _end(self, name: str, effects: Effects) -> bool:
        """Drop a staged transaction that is not published; returns whether there was one."""
        queue = self._directory.staged.get(name)
        if queue is None or queue.record.publishing:
            return False
        left = self.staging.end(name)
        if left is not None:
            self._note_use(self._directory.staged[left[0]], left[1], effects)
        self._removal.end_queue(queue, effects)
        del self._directory.staged[name]
        return True

    def move(self, command: c.Move, now_ms: int, effects: Effects) -> None:
        """Carry out a Move."""
        source = self._directory.queues.get(command.queue)
        if source is None:
            raise InvalidDestinationException(f"there is no queue of number {command.queue}")
        run, others = source.split_run(command.entries, effects)
        if others:  # all of them, one by one: they keep their order
            self._move_one_by_one(command.entries, source, effects)
        else:
            self._move_run(run, source, effects)
        self._changed[source.id] = source
        effects.answer(command, None)

    def _target_of(self, source: QueueState, effects: Effects) -> QueueState:
        target = self._directory.queue(Destination(source.record.target or ""), effects, limited=False)
        self._changed[target.id] = target
        if self._admission.way_of(target) == "drop_oldest":
            self._admission.note_gave_way((target,))
        return target

    def _move_run(self, run: Sequence[RawEntry], source: QueueState, effects: Effects) -> None:
        target = self._target_of(source, effects)
        if target.settings.time_to_live is not None or target.destination in self._directory.feeds:
            self._move_one_by_one(run, source, effects)
            return
        source.remove_run(run, effects, keep_messages=True)
        target.adopt_run(run, effects)
        self._totals.enqueued += len(run)

    def _move_one_by_one(self, entries: Sequence[RawEntry], source: QueueState, effects: Effects) -> None:
        target = self._target_of(source, effects)
        feeds, is_moved = self._directory.feeds.get(target.destination), self._directory.is_moved(target.destination)
        for raw in entries:
            entry = source.find(raw, effects)
            if entry is not None:
                source.remove(entry, effects, keep_message=True)
                fed = [feed for feed in feeds or () if feed.queue.takes(1, self._time.now_ms)]
                flags = entry.flags
                origin: Sequence[int] | None = None
                if feeds and fed:
                    # It was numbered when it was staged: what was numbered later may have been sent before it.
                    of_origin = self._intake.new_number(effects)
                    origin = origin_of(0, of_origin, feeds.step(of_origin, of_origin), {})
                if len(fed) > is_moved:
                    flags |= FLAG_SHARED
                    batch = effects.durable if flags & FLAG_PERSISTENT else effects.volatile
                    batch.references.append((entry.number, len(fed) + (not is_moved)))
                if not is_moved:
                    expires_at_ms = target.expiry(entry.expires_at_ms, self._time.now_ms)
                    target.adopt(entry, entry.lane, flags, expires_at_ms, entry.delivery_count, effects)
                for gateway, number in fed:
                    gateway.share(entry, flags, number, effects, origin)
                    self._changed[gateway.id] = gateway
                self._totals.enqueued += 1
