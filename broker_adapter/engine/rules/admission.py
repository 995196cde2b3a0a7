"""Is there room?  The one answer to a send, a commit, a staged or published batch, and what is put back.

A send that finds none waits (:mod:`broker_adapter.engine.rules.blocked_sends`); everything else is refused with the
reason.

Theory of operation
    Three things limit what is taken: the messages and bytes of each queue, what the store on the disk can still take
    (:mod:`broker_adapter.engine.store.room`), and what volatile messages may take of the memory.  What was published to
    a queue and is still on its way into it counts as there.  What a commit ends makes room for what it sends: a queue
    takes a message while what the commit has ended there outweighs what it has put there.

    A durable subscription that is full and that nobody reads may *give way* (option ``full_subscription``), so that it
    does not block its topic: it is left out of what is sent, or takes it and its oldest messages are dropped.  The last
    is so for a queue whose setting ``when_full`` says it, also while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ack_modes import Outcome
from broker_adapter.destination import Destination
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.failures import rolled_back
from broker_adapter.engine.commands.messaging import Ending
from broker_adapter.engine.queues.directory import Directory, is_volatile
from broker_adapter.engine.queues.limits import OVER_BYTES, OVER_MESSAGES, refusal
from broker_adapter.engine.queues.limits import never as never_taken
from broker_adapter.engine.queues.queue import Consumer, QueueState
from broker_adapter.engine.records.layout import FLAG_PERSISTENT
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES
from broker_adapter.engine.store.room import Room
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings


class Admission:
    """What the queues and the whole engine may still take.

    Attributes:
        blocked_because: why the whole engine takes no durable message, if it does not.
        room: what the store on disk may still take; None: more than is worth counting.
        volatile_room: bytes of volatile messages that may still be taken; None: no limit.
        publishing: published transactions whose messages are still to be moved, by their target's name.
        may_give_way: whether a subscription may give way.
        gave_way: the queues that gave way in this decision, with how many messages they were left out of.
    """

    def __init__(self, settings: EngineSettings, directory: Directory, time: DecisionTime) -> None:
        self._directory = directory
        self._time = time
        self._way = settings.full_subscription
        self.may_give_way = self._way != "block"
        self._unread_ms = int(settings.blocked_send_timeout_seconds * 1000)
        self._max_volatile_bytes = settings.max_volatile_bytes
        self.blocked_because: str | None = None
        self.room: Room | None = None
        self.volatile_room: int | None = None
        self.publishing: dict[str, dict[int, QueueState]] = {}
        self.gave_way: dict[QueueState, int] = {}

    @property
    def has_queue_limits(self) -> bool:
        """Whether queues have limits."""
        return self._directory.policies.has_limits

    def promised(self, queue: QueueState) -> tuple[int, int]:
        """Messages and bytes that were published to a queue, and are on their way into it."""
        moving = self.publishing.get(queue.destination.name) if self.publishing else None
        if not moving or queue.record.kind != "queue":
            return 0, 0
        return sum([each.depth for each in moving.values()]), sum([each.bytes for each in moving.values()])

    def refusal(self, queue: QueueState) -> str | None:
        """Why a queue takes no further message; None where it takes one."""
        return refusal(queue, *self.promised(queue))

    def way_of(self, queue: QueueState) -> str:
        """Return what gives way where a queue is full, as ``full_subscription`` and ``when_full`` say it."""
        return self._way if queue.record.kind == "subscription" else queue.settings.when_full

    def gives_way(self, queue: QueueState, more: int = 0, more_bytes: int = 0) -> bool:
        """Whether a queue that is full gives way to a message.

        Args:
            queue: that is full.
            more: messages that it will have beside those that it has.
            more_bytes: the same in bytes.
        """
        way = self.way_of(queue)
        if queue.record.kind == "subscription" or way != "drop_oldest":
            from_ms = self.gives_way_from_ms(queue)
            if from_ms is None or self._time.elapsed_ms < from_ms:
                return False
        return way != "drop_oldest" or refusal(queue, more - OVER_MESSAGES, more_bytes - OVER_BYTES) is None

    def gives_way_from_ms(self, queue: QueueState) -> int | None:
        """Return from when on a subscription gives way if nobody comes to read it, by ``elapsed_ms``; None: never."""
        if self._way == "block" or queue.record.kind != "subscription" or is_volatile(queue):
            return None
        if queue.consumers or queue.leaving:
            return None
        return queue.left_since(self._time.elapsed_ms) + self._unread_ms

    def takers(self, full: Sequence[QueueState], queues: Sequence[QueueState]) -> Sequence[QueueState]:
        """Return those of some queues that take a message to which these, which are full, give way."""
        return [queue for queue in queues if queue not in full or self.way_of(queue) == "drop_oldest"]

    def note_gave_way(self, full: Iterable[QueueState]) -> None:
        """Note that queues have given way to a message."""
        for queue in full:
            self.gave_way[queue] = self.gave_way.get(queue, 0) + (self.way_of(queue) != "drop_oldest")

    def begin_publishing(self, staged: QueueState) -> None:
        """The messages of a staged transaction are on their way to their queue."""
        self.publishing.setdefault(staged.record.target or "", {})[staged.id] = staged

    def end_publishing(self, staged: QueueState) -> None:
        """A staged transaction is dropped: if it was published, its messages are in their queue now."""
        target = staged.record.target
        if target is not None and target in self.publishing:
            self.publishing[target].pop(staged.id, None)
            if not self.publishing[target]:
                del self.publishing[target]

    def take_at_once(self, messages: Iterable[tuple[int, int]]) -> None:
        """Take the room on the disk for some messages, of (bytes, queues) each, or raise and take none."""
        if self.blocked_because:
            raise ResourceAllocationException(self.blocked_because)
        if self.room is not None:
            left = self.room.taken(messages)
            if left is None:
                raise ResourceAllocationException(self.room.reason)
            self.room = left

    def take_in_memory(self, messages: Iterable[tuple[int, int]]) -> None:
        """Take the room for some volatile messages, of (bytes, queues) each, or raise and take none."""
        if self.volatile_room is not None:
            left = self.volatile_room - sum([size + MESSAGE_BYTES + places * PLACE_BYTES for size, places in messages])
            if left < 0:
                raise ResourceAllocationException(self.volatile_full())
            self.volatile_room = left

    def volatile_full(self) -> str:
        """Why a volatile message is not taken."""
        return (
            f"non-persistent messages take all of the {self._max_volatile_bytes} bytes that they may"
            " (option max_volatile_bytes)"
        )

    @property
    def full_because(self) -> str | None:
        """Why the whole engine takes no messages of some kind; None where it does."""
        is_volatile_full = self.volatile_room is not None and self.volatile_room <= 0
        return self.blocked_because or (self.volatile_full() if is_volatile_full else None)

    def ask_for_batches(self, staged: Sequence[QueueState]) -> str | None:
        """Return why some staged transactions cannot be published now; None where they can.

        Raises:
            ResourceAllocationException: it would have none if it were empty.
        """
        more: dict[str, tuple[int, int]] = {}
        for each in staged if self.has_queue_limits else ():
            name = each.record.target or ""
            target = self._directory.by_destination[Destination(name)]
            count, size = more.get(name, (0, 0))
            count, size = count + each.depth, size + each.bytes
            more[name] = count, size
            if not each.depth:
                continue
            never = never_taken(target.settings, "the batch", count, size - each.bytes // each.depth)
            if never is not None:
                raise ResourceAllocationException(never)
            promised, promised_bytes = self.promised(target)
            refused = refusal(target, promised + count - 1, promised_bytes + size - max(1, each.bytes // each.depth))
            if refused is not None and self.way_of(target) != "drop_oldest":
                return refused
        return None


class CommitRoom:
    """The room that one commit finds, where what it takes from a queue or from the disk makes room for what it sends.

    Attributes:
        is_open: whether there is room for any persistent message that goes into durable queues only.
        queues: those that take the message that was asked for last.
    """

    __slots__ = (
        "_admission",
        "_engine_reason",
        "_gave_way",
        "_more",
        "_promised",
        "_room",
        "_volatile_bytes",
        "is_open",
        "queues",
    )

    def __init__(self, admission: Admission, settled: Iterable[tuple[Consumer, Mapping[int, Ending]]]) -> None:
        """What there is before any message is sent.

        Args:
            admission: of the engine.
            settled: the deliveries that the commit ends, by consumer.
        """
        self._admission = admission
        #: by queue: messages and bytes that it will have beside those that it has
        self._more: dict[int, tuple[int, int]] = {}
        self._promised: dict[int, tuple[int, int]] = {}
        self._volatile_bytes = 0  #: that it needs; below 0: that it frees
        self.queues: Sequence[QueueState] = ()
        self._gave_way: list[Sequence[QueueState]] = []  #: by message: the subscriptions that give way to it
        ended: list[tuple[int, int]] = []  #: what goes from the disk: bytes, and in how many queues
        for consumer, outcomes in settled:
            queue = consumer.queue
            entries = [consumer.unsettled[each] for each, outcome in outcomes.items() if outcome is Outcome.ACCEPTED]
            count, size = self._more.get(queue.id, (0, 0))
            self._more[queue.id] = count - len(entries), size - sum([entry.size for entry in entries])
            if admission.room is None and admission.volatile_room is None:
                continue
            whole = queue.record.kind == "queue"  # what a subscription has, others may have as well
            for entry in entries:
                if not (queue.durable and entry.flags & FLAG_PERSISTENT):
                    self._volatile_bytes -= PLACE_BYTES + (entry.size + MESSAGE_BYTES if whole else 0)
                elif admission.room is not None:
                    ended.append((entry.size if whole else 0, 1))
        #: by itself, until the commit is certain
        self._room = None if admission.room is None else admission.room.lent(ended)
        self._engine_reason = None if ended else admission.blocked_because
        self.is_open = not (self._engine_reason or self._room is not None or admission.has_queue_limits)

    def ask(
        self, persistent: bool, length: int, queues: Sequence[QueueState], all_durable: bool, fed: int = 0
    ) -> str | None:
        """Ask for the room for one message; return why there is none.

        Args:
            persistent: whether the message is.
            length: of its payload, in bytes.
            queues: those that get it.
            all_durable: whether all of these keep persistent messages on the disk.
            fed: how many gateways get it as well.

        Raises:
            TransactionRolledBackException: the commit would find no room in a queue that is empty.
        """
        admission, room = self._admission, self._room
        reason = self._engine_reason
        self.queues = queues
        if persistent and room is not None and not room.take(length, len(queues) + fed):
            reason = room.reason
        if not (persistent and all_durable):
            self._volatile_bytes += length + MESSAGE_BYTES + PLACE_BYTES * len(queues)
            if not (persistent and any(queue.durable for queue in queues)):
                reason = None  # nothing of it goes to the disk
            if admission.volatile_room is not None and self._volatile_bytes > max(0, admission.volatile_room):
                reason = admission.volatile_full()
        if reason:
            return reason
        if not admission.has_queue_limits:
            return None
        giving_way: tuple[QueueState, ...] = ()
        more = self._more
        for queue in queues:
            settings = queue.settings
            most, most_bytes = settings.max_messages, settings.max_bytes
            number = queue.id
            count, size = more.get(number, (0, 0))
            more[number] = count + 1, size + length
            if count < 0 and size < 0:
                continue  # the queue does not grow
            moving, moving_bytes = self._promised_to(queue) if admission.publishing else (0, 0)
            if (most is None or (count < most and queue.depth + count + moving < most)) and (
                most_bytes is None or (size < most_bytes and queue.bytes + size + moving_bytes < most_bytes)
            ):
                continue  # most come here, without a call for each
            if admission.gives_way(queue, count, size):
                giving_way = *giving_way, queue
                continue
            never = never_taken(settings, "the transaction", count + 1, size)
            if never is not None:
                raise rolled_back(ResourceAllocationException(never))
            refused = refusal(queue, count + moving, size + moving_bytes)
            if refused is not None:
                return refused
        if giving_way:
            self._gave_way.append(giving_way)
            self.queues = admission.takers(giving_way, queues)
        return None

    def ask_for_value(self, size: int, places: int, *, durable: bool) -> str | None:
        """Ask for the room for the value of a key; return why there is none.

        Args:
            size: bytes that it takes.
            places: that it takes in queues.
            durable: whether these are on the disk.
        """
        if durable:
            if self._room is not None and not self._room.take(size, places):
                return self._room.reason
            return self._engine_reason
        self._volatile_bytes += size + MESSAGE_BYTES + PLACE_BYTES * places
        room = self._admission.volatile_room
        return None if room is None or self._volatile_bytes <= max(0, room) else self._admission.volatile_full()

    def ask_for_events(self, queue: QueueState, sizes: Sequence[int]) -> str | None:
        """Ask for the room for events in a subscription of their region's topic; return why there is none.

        Args:
            queue: the subscription, which may give way.
            sizes: bytes of their messages.
        """
        count, size = self._more.get(queue.id, (0, 0))
        self._more[queue.id] = count + len(sizes), size + sum(sizes)
        more = count + len(sizes) - 1, size + sum(sizes[:-1])
        refused = refusal(queue, *more)
        return None if refused is None or self._admission.gives_way(queue, *more) else refused

    def _promised_to(self, queue: QueueState) -> tuple[int, int]:
        promised = self._promised.get(queue.id)
        if promised is None:
            promised = self._promised[queue.id] = self._admission.promised(queue)
        return promised

    def take(self) -> None:
        """The commit is certain: take its room from that of the engine."""
        admission = self._admission
        if self._room is not None and admission.room is not None:
            admission.room = self._room.repaid(admission.room)
        if admission.volatile_room is not None:
            admission.volatile_room -= max(0, self._volatile_bytes)
        for full in self._gave_way:
            admission.note_gave_way(full)
