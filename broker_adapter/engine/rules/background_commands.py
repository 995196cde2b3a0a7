"""The commands of background jobs, which carry what they found in the stores.

They trim entries and set them aside, end what is due, and put dead letters back (redrive).  An entry is ended or moved
only if it is still there in the decision that does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_adapter.engine.clients.durable_clients import DurableClients
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.queues.directory import Directory, named_queue
from broker_adapter.engine.queues.endings import DEAD_LETTER_CLIENT_ID, Endings
from broker_adapter.engine.queues.losses import Losses
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import (
    AGE,
    DUE_AGAIN_MS,
    FLAG_PERSISTENT,
    KIND_DELIVER,
    KIND_EXPIRE,
    encode_meta,
    entry_of_line,
    quarantine_key,
    schedule_line,
)
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.queue_removal import note_dropped
from broker_adapter.envelope import DEAD_LETTER_QUEUE, DEAD_LETTER_SUBSCRIPTION
from broker_adapter.errors import JMSException

#: Property of a message that was put back from the dead-letter or the expiry queue: that queue.
REDRIVEN_FROM = "JMS_HOLDFAST_REDRIVEN_FROM"


class BackgroundCommands:
    """Carries out the commands of background jobs."""

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        endings: Endings,
        losses: Losses,
        totals: Totals,
        time: DecisionTime,
        names: Sequence[LastNumbers],
        clients: DurableClients,
    ) -> None:
        self._directory = directory
        self._changed = directory.changed
        self._durable = directory.durable
        self._admission = admission
        self._endings = endings
        self._losses = losses
        self._totals = totals
        self._time = time
        self._names = names
        self._clients = clients

    def trim(self, command: c.Trim, now_ms: int, effects: Effects) -> None:
        """Carry out a Trim."""
        queue = self._directory.queues.get(command.range.queue)
        dropped = 0
        if queue is not None and (queue.record.kind == "ended") == command.of_ended:
            # What a lost connection had is counted one by one.
            run, others = queue.split_run(command.found, effects) if command.token is None else ([], command.found)
            queue.remove_run(run, effects)
            dropped += len(run)
            for raw in others:
                entry = queue.find(raw, effects)
                if entry is not None:
                    if entry.delivery_count and command.processed:
                        queue.note_ended(entry, effects, entry.delivery_count - command.again)
                    if command.token is not None:
                        self._losses.take_one(command.token, queue.id, entry.position)
                    queue.remove(entry, effects)
                    dropped += 1
            if command.of_full and dropped:
                note_dropped(queue, dropped, self._totals, effects)
            self._changed[queue.id] = queue
        effects.answer(command, (dropped, command.next))

    def set_aside(self, command: c.SetAside, now_ms: int, effects: Effects) -> None:
        """Carry out a SetAside."""
        queue = self._directory.queues.get(command.range.queue)
        count = 0
        if queue is not None:
            for raw in command.found:
                entry = queue.find(raw, effects)
                if entry is not None:
                    queue.remove(entry, effects, keep_message=True)
                    effects.distrusted.append((entry.number, entry.key))
                    count += 1
            self._changed[queue.id] = queue
        self._totals.quarantined += count
        effects.answer(command, count)

    def due(self, command: c.Due, now_ms: int, effects: Effects) -> None:
        """Carry out a Due."""
        for line in command.damaged:
            effects.durable.put("quarantine", quarantine_key("schedule", line.key), line.value)
            effects.durable.put("schedule", line.key, None)
            if line.right is not None:
                effects.durable.put("schedule", *line.right)
        self._totals.quarantined += len(command.damaged)
        for kind, raw, key in command.items:
            for batch in (effects.durable, effects.volatile) if self._durable else (effects.volatile,):
                batch.put("schedule", key, None)
            queue = self._directory.queues.get(raw.queue) if raw is not None else None
            if raw is None or queue is None or queue.record.kind == "staged":
                continue  # what is staged expires in the queue where it is published
            entry = queue.find(raw, effects)
            if entry is None:
                if raw.expires_at_ms and kind == KIND_EXPIRE:
                    # A consumer holds it: it expires if it comes back; due again now and then, for the case of a crash.
                    batch = effects.durable if raw.flags & FLAG_PERSISTENT else effects.volatile
                    batch.put("schedule", *schedule_line(now_ms + DUE_AGAIN_MS, KIND_EXPIRE, entry_of_line(key)))
                continue
            self._changed[queue.id] = queue
            if queue.record.kind == "ended":
                queue.remove(entry, effects)  # the job that trims it may have passed the place that it would get
            elif kind == KIND_DELIVER and not (entry.expires_at_ms and entry.expires_at_ms <= now_ms):
                self._endings.now_due(queue, entry, effects)
            else:
                self._endings.expire(queue, entry, effects)
        effects.answer(command, None)

    def redrive(self, command: c.Redrive, now_ms: int, effects: Effects) -> None:
        """Carry out a Redrive."""
        source = self._directory.queues.get(command.range.queue)
        moved = 0
        if source is None or source.record.kind == "ended":  # deleted meanwhile, with all that was left
            effects.answer(command, (0, 0, None))
        else:
            for raw, annotations in command.found:
                target = self._home(annotations, command.to, effects)
                if target is None or target is source or self._admission.refusal(target):
                    continue
                if raw.flags & FLAG_PERSISTENT and not target.durable:
                    continue  # a temporary queue, or a subscription in memory, keeps nothing on the disk
                entry = source.find(raw, effects)
                if entry is not None:
                    self._endings.move_annotated(source, entry, target, {REDRIVEN_FROM: source.label}, effects)
                    moved += 1
            self._changed[source.id] = source
            effects.answer(command, (moved, len(command.found), command.next))

    def _home(self, annotations: Mapping[str, Any] | None, to: str | None, effects: Effects) -> QueueState | None:
        """The queue that a message goes back to; None where that is not known, or it does not exist any more."""
        name = to
        if name is None:
            if annotations is None or not isinstance(annotations.get(DEAD_LETTER_QUEUE), str):
                return None
            name = annotations[DEAD_LETTER_QUEUE]
            subscription = annotations.get(DEAD_LETTER_SUBSCRIPTION)
            if subscription is not None:
                for durable in (True, False):
                    key = (annotations.get(DEAD_LETTER_CLIENT_ID), subscription, durable)
                    queue = self._directory.subscriptions.get(key)
                    if queue is not None and queue.record.topic == name:
                        return queue
                return None
        try:
            return self._directory.queue(named_queue(name), effects)
        except JMSException:
            return None

    def remove_names(self, command: c.RemoveNames, now_ms: int, effects: Effects) -> None:
        """Carry out a RemoveNames."""
        for key in command.keys:
            effects.durable.put(command.table, key, None)
        effects.answer(command, None)

    def note_age(self, command: c.NoteAge, now_ms: int, effects: Effects) -> None:
        """Carry out a NoteAge."""
        self._note_age(effects)
        effects.answer(command, None)

    def _note_age(self, effects: Effects) -> None:
        is_needed = any(names.is_changed for names in self._names) or self._clients.next_expiry_ms() is not None
        if self._durable and is_needed:
            effects.durable.put("meta", AGE, encode_meta(AGE, self._time.age_ms))
            for names in self._names:
                names.is_changed = False

    def end_run(self, command: c.EndRun, now_ms: int, effects: Effects) -> None:
        """Carry out an EndRun."""
        self._note_age(effects)
        for queue in self._directory.queues.values():
            if queue.end_run():
                self._changed[queue.id] = queue
        effects.answer(command, None)
