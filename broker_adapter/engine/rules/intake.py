"""How a message that is taken comes in: its number, its one stored copy, and the identity by which it comes in once.

A message gets one number and one stored copy, whatever the number of queues that hold it.  No number is given a second
time, also not that of a message that no store keeps: the store notes a number, and those below it count as given.  It
is noted ahead, so that few commits have it.

What a transaction brings in belongs together in the queues of gateways.  They know it by a number that is never used
again: two transactions may follow each other there.

Other sites know messages by their numbers.  So a site whose store is replaced by an older copy of itself must not give
numbers again: at each start they go on at the time of the day.

The identities of each producer are a *stream*; of the streams that were not used for longest, those beyond a limit are
forgotten.

The store keeps with each stream when it was used last, only for this order.  The clock may be set back, and has one
value for many messages.  So each use gets a later time than the last one, whatever the clock says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.identities import Sequences
from broker_adapter.engine.commands.message_runs import MessageRun
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.gateway_queue import Feed, Feeds, Way
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import (
    FLAG_PERSISTENT,
    LAST_MESSAGE,
    LATEST_EXPIRY_MS,
    NEXT_MESSAGE,
    RawEntry,
    SequencesRecord,
    decode_stream_key,
    encode_meta,
    encode_sequences,
    short_name,
    stream_key,
)
from broker_adapter.engine.rules.admission import Admission

#: Bits of the numbers that a site may give in a millisecond without running ahead of the clock.
_NUMBER_BITS: Final = 16
#: The store notes so many numbers at once, and a restart skips those that were not given.
NUMBER_RESERVE: Final = 65_536


class Intake:
    """Takes messages in.

    Attributes:
        streams: (destination's name and kind, producer, thread) → what was seen of it; the least recently used first.
        next_message: the number of the next message.
        reserved: the number that the store notes: those below it count as given.
        transaction: the number of the transaction that comes in; 0: what comes in is of none.
    """

    def __init__(self, directory: Directory, admission: Admission, totals: Totals, *, durable: bool) -> None:
        self._directory = directory
        self._admission = admission
        self._feeds = directory.feeds
        self._settings = directory.settings
        self._totals = totals
        self._durable = durable
        self.streams: OrderedDict[tuple[Any, ...], Sequences] = OrderedDict()
        self.next_message = 1
        self.reserved = self.next_message if durable else LAST_MESSAGE
        self.transaction = self._transactions = 0
        self._used_ms = 0  #: the time that the last use of a stream got

    def restore(self, streams: Iterable[tuple[bytes, SequencesRecord]], next_message: int) -> None:
        """Take over what the store has.

        Args:
            streams: (key, sequences) of each, the least recently used first.
            next_message: the number that it notes.
        """
        self.next_message = self.reserved = next_message
        for key, sequences in streams:
            self.streams[decode_stream_key(key)] = Sequences.of(sequences)
            self._used_ms = max(self._used_ms, sequences.used_ms)

    def begin(self, now_ms: int) -> None:
        """The engine starts; ``now_ms`` is the time of the day."""
        if self._settings.site:
            self.next_message = max(self.next_message, now_ms << _NUMBER_BITS)

    def begin_transaction(self) -> None:
        """Have what comes in from here on belong to a new transaction, until ``end_transaction``."""
        self.transaction = self._transactions = self._transactions + 1

    def end_transaction(self) -> None:
        """Have what comes in from here on belong to no transaction."""
        self.transaction = 0

    def is_over(self, message: c.NewMessage, now_ms: int) -> bool:
        """Whether a message has expired already, and is to be dropped; with expiry queues it expires in its queue."""
        if message.expires_at_ms is None or message.expires_at_ms > now_ms:
            return False
        if self._directory.policies.has_expiry_queues:
            return False
        self._totals.expired += 1
        return True

    def store(
        self,
        message: c.NewMessage,
        queues: Sequence[QueueState],
        now_ms: int,
        effects: Effects,
        annotations: dict[str, Any] | None = None,
        fed: Sequence[Feed] = (),
        sites: Sequence[int] = (),
        origin: c.Origin | None = None,
    ) -> None:
        """Store one copy, and an entry for each queue.

        Args:
            message: the message.
            queues: that get it.
            now_ms: the time of the day.
            effects: of the decision.
            annotations: properties that the engine adds in those of the queues that are subscriptions; None: none.
            fed: the gateways that take it as well, unless they are stopped.
            sites: that have seen it.
            origin: where it was sent; None: here.
        """
        number = self.next_message
        if number >= self.reserved:
            self._reserve(1, effects)
        taking = self._taking(fed, 1, message.persistent, now_ms, effects) if fed else ()
        if len(queues) == 1 and not taking:
            queue = queues[0]
            self.next_message = number + 1
            store = effects.durable if message.persistent and queue.durable else effects.volatile
            store.messages[number] = message
            added = annotations if annotations is not None and _is_subscription(queue) else None
            queue.append(number, message, False, now_ms, effects, added)
            return
        every: Sequence[QueueState] = [*queues, *[feed.queue for feed in taking]] if taking else queues
        if not every:
            return
        self.next_message = number + 1
        durable = sum(1 for queue in every if queue.durable) if message.persistent else 0
        volatile = len(every) - durable
        for batch, count in ((effects.durable, durable), (effects.volatile, volatile)):
            if count:
                batch.messages[number] = message
                if count > 1:
                    batch.references.append((number, count))
        for queue in queues:
            in_durable = message.persistent and queue.durable
            is_shared = (durable if in_durable else volatile) > 1
            added = annotations if annotations is not None and _is_subscription(queue) else None
            queue.append(number, message, is_shared, now_ms, effects, added)
        if taking:
            is_from_here = annotations is None and origin is None
            step = fed.step(number, number) if is_from_here and isinstance(fed, Feeds) else 0
            way = Way(sites, origin, step, self.transaction)
            for gateway, destination in taking:
                is_shared = (durable if message.persistent and gateway.durable else volatile) > 1
                gateway.take(number, message, is_shared, destination, effects, annotations, way)
                self._directory.changed[gateway.id] = gateway

    def take_run(
        self,
        run: MessageRun,
        destination: Destination,
        queues: Sequence[QueueState],
        now_ms: int,
        effects: Effects,
    ) -> bool:
        """Take messages in one step.

        Args:
            run: the messages, for which there is room.
            destination: that they are sent to.
            queues: that get all of them.
            now_ms: the time of the day.
            effects: of the decision.

        Returns:
            False where they have to be taken one by one; nothing was changed.
        """
        feeds = self._feeds.get(destination) if self._feeds else None
        if not (queues or feeds) or not all(queue.takes_runs(persistent=run.persistent) for queue in queues):
            return False
        identity = run.identity
        if identity is not None:
            stream = (destination.name, int(destination.kind), short_name(identity.producer_id), identity.thread_id)
            seen = self.streams.get(stream)
            if seen is None:
                seen = Sequences(run.last_sequence, identity.sequence)
            elif not seen.add_run(identity.sequence, run.last_sequence):
                return False
            self.note_stream(stream, seen, now_ms, effects)
        numbers = range(self.next_message, self.next_message + len(run.messages))
        self._reserve(len(numbers), effects)
        self.next_message = numbers.stop
        fed = self._taking(feeds, len(run.messages), run.persistent, now_ms, effects) if feeds else ()
        every = [*queues, *[feed.queue for feed in fed]]
        durable = sum(1 for queue in every if queue.durable) if run.persistent else 0
        volatile = len(every) - durable
        for batch, count in ((effects.durable, durable), (effects.volatile, volatile)):
            if count:
                batch.messages.update(zip(numbers, run.messages, strict=True))
            if count > 1:
                batch.references += [(number, count) for number in numbers]
        for queue in queues:
            if run.persistent and queue.durable:
                queue.append_run(numbers.start, run, durable > 1, effects.durable)
            else:
                queue.append_run(numbers.start, run, volatile > 1, effects.volatile)
        if feeds and fed:
            way = Way(step=feeds.step(numbers.start, numbers[-1]), transaction=self.transaction)
            for gateway, destination_number in fed:
                is_shared = (durable if run.persistent and gateway.durable else volatile) > 1
                gateway.take_run(numbers.start, run, is_shared, destination_number, effects, way)
                self._directory.changed[gateway.id] = gateway
        self._totals.enqueued += len(run.messages)
        return True

    def _taking(
        self, fed: Sequence[Feed], messages: int, persistent: bool, now_ms: int, effects: Effects
    ) -> Sequence[Feed]:
        """The gateways that take messages, which count them.

        What is not persistent is in memory.  Of that, half is left to what does not wait for another site.
        """
        room = self._admission.volatile_room
        loses = self._durable and not persistent and room is not None and 2 * room < self._settings.max_volatile_bytes
        taking = [feed for feed in fed if feed.queue.takes(messages, now_ms)]
        if not loses:
            return taking
        for feed in taking:
            name = feed.queue.record.name
            effects.warn(
                ("loses", feed.queue.id),
                "! gateway %r does not take non-persistent messages: more than half of max_volatile_bytes is used",
                name,
            )
        return ()

    def store_behind(self, messages: Sequence[c.NewMessage], queue: QueueState, effects: Effects) -> None:
        """Store persistent messages in a durable queue from which nobody consumes them: none comes into memory."""
        first = self.next_message
        self._reserve(len(messages), effects)
        self.next_message = last = first + len(messages)
        batch = effects.durable
        batch.messages.update(zip(range(first, last), messages, strict=True))
        batch.behind.append(range(first, last))
        run = [
            _new(RawEntry, (0, 9 - priority, 0, number, 0, FLAG_PERSISTENT, _expiry(until_ms), len(payload), group))
            for number, (_, payload, priority, _, until_ms, _, _, group) in enumerate(messages, first)
        ]
        queue.add_behind(run, effects)

    def new_number(self, effects: Effects) -> int:
        """Give a number to nothing that is stored."""
        self._reserve(1, effects)
        self.next_message += 1
        return self.next_message - 1

    def _reserve(self, count: int, effects: Effects) -> None:
        """Note the numbers of new messages as given, and those up to the next full reserve."""
        last = self.next_message + count - 1
        if last >= self.reserved:
            self.reserved = (last // NUMBER_RESERVE + 1) * NUMBER_RESERVE
            effects.durable.put("meta", NEXT_MESSAGE, encode_meta(NEXT_MESSAGE, self.reserved))

    def note_stream(self, stream: tuple[Any, ...], seen: Sequences, now_ms: int, effects: Effects) -> None:
        """Store which sequence numbers of a stream were seen; beyond the limit, streams are forgotten, two at most.

        Where the limit is lower than it was, they become fewer with each use.
        """
        streams = self.streams
        streams[stream] = seen
        streams.move_to_end(stream)
        if self._durable:
            self._used_ms = max(now_ms, self._used_ms + 1)
            key = stream_key(*stream)
            effects.durable.put("producers", key, encode_sequences(key, seen.record(self._used_ms)))
        for _ in range(min(2, len(streams) - self._settings.max_producers)):
            oldest, _ = streams.popitem(last=False)
            if self._durable:
                effects.durable.put("producers", stream_key(*oldest), None)


def _expiry(expires_at_ms: int | None) -> int:
    """The expiry that an entry has: 0 is never, and a very late one is the latest."""
    return min(expires_at_ms, LATEST_EXPIRY_MS) if expires_at_ms else 0


_new: Final = tuple.__new__  #: what a named tuple calls, without a function of Python


def _is_subscription(queue: QueueState) -> bool:
    return queue.record.kind == "subscription"
