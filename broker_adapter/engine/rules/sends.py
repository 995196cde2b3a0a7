"""How a send is carried out, and how messages are put back from quarantine.

The messages of a send are taken one by one.  The first one for which there is no room, and those behind it, wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.commands.identities import Sequences
from broker_adapter.engine.commands.message_runs import run_of
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.limits import refusal
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import short_name
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.blocked_sends import BlockedSend, BlockedSends
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.matching import MATCHING, Matching
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES
from broker_adapter.errors import JMSException


class Sends:
    """Carries out sends."""

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        matching: Matching,
        blocked_sends: BlockedSends,
        intake: Intake,
        totals: Totals,
    ) -> None:
        self._directory = directory
        self._targets = directory.targets
        self._remote = directory.remote
        self._changed = directory.changed
        self._settings = directory.settings
        self._durable = directory.durable
        self._feeds = directory.feeds
        self._admission = admission
        self._matching = matching
        self._blocked = blocked_sends
        self._intake = intake
        self._store = intake.store
        self._streams = intake.streams
        self._totals = totals

    def enqueue(self, command: c.Enqueue, now_ms: int, effects: Effects) -> None:
        """Carry out an Enqueue."""
        targets = self._targets(command.destination, effects)
        blocked = self._blocked.arrived(command)
        if (
            not self._blocked.all
            or all(self.is_known(command.destination, each) for each in command.messages)
            or not self._blocked.waits_behind(blocked, targets, effects)
        ):
            self._take(blocked, targets, now_ms, effects)

    def is_known(self, destination: Destination, message: c.NewMessage) -> bool:
        """Return whether a message is there already, so that a send of it is one that is repeated."""
        identity = message.identity
        if identity is None:
            return False
        producer = short_name(identity.producer_id)
        seen = self._streams.get((destination.name, int(destination.kind), producer, identity.thread_id))
        return seen is not None and identity.sequence in seen

    def take(self, blocked: BlockedSend, now_ms: int, effects: Effects) -> bool:
        """Try a blocked send again; return False where it still waits."""
        assert isinstance(blocked.command, c.Enqueue)
        return self._take(blocked, self._targets(blocked.command.destination, effects), now_ms, effects)

    def _take(self, blocked: BlockedSend, targets: Sequence[QueueState], now_ms: int, effects: Effects) -> bool:
        """Take the messages of a send from ``blocked.index`` on; return False where it waits (again)."""
        command = blocked.command
        assert isinstance(command, c.Enqueue)
        messages = command.messages
        name, kind = command.destination
        admission = self._admission
        max_bytes = self._settings.max_message_bytes
        store, streams = self._store, self._streams
        fed = self._feeds.get(command.destination, ()) if self._feeds else ()
        if self._take_run(blocked, targets, now_ms, effects):
            effects.answer(command, blocked.errors)
            return True
        promised = {queue.id: admission.promised(queue) for queue in targets} if admission.publishing else {}
        local = self._remote(targets, command.client)
        selective = any(queue.selector is not None for queue in local)
        is_matching = False
        wanting: Sequence[QueueState] = local
        all_durable = self._durable and all(queue.durable for queue in local)
        stream: tuple[Any, ...] | None = None
        seen: Sequences | None = None
        producer_id, thread_id = None, None
        taken = 0
        full: QueueState | None = None
        reason = ""
        for index in range(blocked.index, len(messages)):
            message = messages[index]
            if len(message.payload) > max_bytes:
                blocked.note_error(index, message_too_large(len(message.payload), max_bytes))
                continue
            if selective:
                asked = self._matching.wanting(blocked, message, local)
                if asked is None:
                    is_matching, reason = True, MATCHING
                    blocked.index = index
                    break
                wanting = asked
            giving_way: tuple[QueueState, ...] = ()
            for queue in wanting:
                settings = queue.settings
                if (
                    promised
                    or (settings.max_messages is not None and queue.depth >= settings.max_messages)
                    or (settings.max_bytes is not None and queue.bytes >= settings.max_bytes)
                ):  # else it takes the message, without a call for each
                    refused = refusal(queue, *promised.get(queue.id, (0, 0)))
                    if refused is not None and admission.gives_way(queue):
                        giving_way = *giving_way, queue
                    elif refused is not None:
                        full, reason = queue, refused
                        break
            size = 0
            if message.persistent and admission.blocked_because:
                reason = reason or admission.blocked_because
            elif admission.volatile_room is not None and not (message.persistent and all_durable):
                size = len(message.payload) + MESSAGE_BYTES + PLACE_BYTES * len(wanting)
                if size > admission.volatile_room:
                    reason = reason or admission.volatile_full()
            # Last, since a send that waits for something else takes no room.
            if not reason and message.persistent and admission.room is not None:
                reason = (
                    "" if admission.room.take(len(message.payload), len(wanting) + len(fed)) else admission.room.reason
                )
            if reason and self.is_known(command.destination, message):
                self._totals.duplicates_rejected += 1
                full, reason = None, ""
                continue
            if reason:
                blocked.index = index
                break
            if size and admission.volatile_room is not None:
                admission.volatile_room -= size
            identity = message.identity
            if identity is not None:
                if identity.producer_id != producer_id or identity.thread_id != thread_id:
                    if stream is not None and seen is not None:
                        self._intake.note_stream(stream, seen, now_ms, effects)
                    producer_id, thread_id = identity.producer_id, identity.thread_id
                    stream = (name, int(kind), short_name(producer_id), thread_id)
                    seen = streams.get(stream)
                if seen is None:
                    seen = Sequences.begin(identity.sequence)
                elif not seen.add(identity.sequence):
                    self._totals.duplicates_rejected += 1
                    continue
            taken += 1
            if giving_way:
                admission.note_gave_way(giving_way)
            if message.expires_at_ms is None or not self._intake.is_over(message, now_ms):
                takers = admission.takers(giving_way, wanting) if giving_way else wanting
                store(message, takers, now_ms, effects, None, fed)
        else:
            blocked.index = len(messages)
        self._totals.enqueued += taken
        if stream is not None and seen is not None:
            self._intake.note_stream(stream, seen, now_ms, effects)
        for queue in local if taken else ():
            self._changed[queue.id] = queue
        if reason:
            return not self._blocked.block(blocked, full, reason, effects, is_matching=is_matching)
        effects.answer(command, blocked.errors)
        return True

    def _take_run(self, blocked: BlockedSend, targets: Sequence[QueueState], now_ms: int, effects: Effects) -> bool:
        """Take all that is left of a send in one step.

        Returns:
            False where nothing was taken: each message is to be decided on by itself.
        """
        command = blocked.command
        assert isinstance(command, c.Enqueue)
        admission = self._admission
        queues = self._remote(targets, command.client)
        if admission.publishing or any(queue.selector is not None for queue in queues):
            return False
        run = run_of(command.messages[blocked.index :] if blocked.index else command.messages)
        if run is None or max(run.sizes) > self._settings.max_message_bytes:
            return False
        size = sum(run.sizes)
        for queue in queues:
            most, most_bytes = queue.settings.max_messages, queue.settings.max_bytes
            if (most is not None and queue.depth + len(run.messages) > most) or (
                most_bytes is not None and queue.bytes + size > most_bytes
            ):
                return False
        if run.persistent and (admission.blocked_because or admission.room is not None):
            return False
        volatile_bytes = 0
        all_durable = self._durable and all(queue.durable for queue in queues)
        if admission.volatile_room is not None and not (run.persistent and all_durable):
            volatile_bytes = size + (MESSAGE_BYTES + PLACE_BYTES * len(queues)) * len(run.messages)
            if volatile_bytes > admission.volatile_room:
                return False
        if not self._intake.take_run(run, command.destination, queues, now_ms, effects):
            return False
        if admission.volatile_room is not None:
            admission.volatile_room -= volatile_bytes
        blocked.index = len(command.messages)
        for queue in queues:
            self._changed[queue.id] = queue
        return True

    def put_back(self, command: c.PutBack, now_ms: int, effects: Effects) -> None:
        """Carry out a PutBack."""
        messages = [(key, message) for key, message in command.messages if key in command.there]
        known = set(self._directory.queues)
        targets: Sequence[QueueState]
        if command.subscription is None and command.destination.is_topic:
            targets = self._targets(command.destination, effects)
        elif command.subscription is None:
            targets = (self._directory.queue(command.destination, effects),)
        else:
            targets = (self._directory.subscription(command.destination, *command.subscription),)
        try:
            self._admission.take_at_once([(len(each.payload), 1) for _, each in messages])
        except JMSException:
            self._directory.unmake([queue for queue in targets if queue.id not in known], effects)
            raise
        for key, message in messages:
            if not command.keep:
                effects.durable.put("quarantine", key, None)
            self._store(message, targets, now_ms, effects)
        self._totals.enqueued += len(messages)
        for queue in targets:
            self._changed[queue.id] = queue
        effects.answer(command, len(messages))
