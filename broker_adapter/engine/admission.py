"""Is there room?  The one answer to a send, a commit, a staged or published batch, and what is put back.

The answer is one of three: it is taken; it has to wait, for the queue that is :class:`Full` or for the whole engine;
or it is refused with an error, since it would not fit into what is empty.

Theory of operation
    Three things limit what is taken: the messages and bytes of each queue, what the store on the disk can still take
    (:mod:`broker_adapter.engine.room`), and what volatile messages may take of the memory.  What was published to a
    queue and is still on its way into it counts as there.  What a commit ends makes room for what it sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_adapter.destination import Destination
from broker_adapter.engine.directory import Directory
from broker_adapter.engine.limits import QueueLimits
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.room import Room
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings


class Full(NamedTuple):
    """Why something has to wait: what has no room for it.

    Attributes:
        queue: that has none; None: the whole engine has none.
        reason: for the error, if it waits in vain.
    """

    queue: QueueState | None
    reason: str


class Admission:
    """What the queues and the whole engine may still take.

    Attributes:
        limits: of each queue.
        has_queue_limits: whether there are such limits.
        held_because: why the whole engine takes no durable message, if it does not.
        room: what the store on disk may still take; None: more than is worth counting.
        volatile_room: bytes of volatile messages that may still be taken; None: no limit.
        publishing: published transactions whose messages are still to be moved, by their target's name.
    """

    def __init__(self, settings: EngineSettings, directory: Directory) -> None:
        self._directory = directory
        self._max_volatile_bytes = settings.max_volatile_bytes
        self.limits = QueueLimits(settings.max_queue_messages, settings.max_queue_bytes)
        self.has_queue_limits = settings.max_queue_messages is not None or settings.max_queue_bytes is not None
        self.held_because: str | None = None
        self.room: Room | None = None
        self.volatile_room: int | None = None
        self.publishing: dict[str, dict[int, QueueState]] = {}

    def promised(self, queue: QueueState) -> tuple[int, int]:
        """Messages and bytes that were published to a queue, and are on their way into it."""
        moving = self.publishing.get(queue.destination.name) if self.publishing else None
        if not moving or queue.record.kind != "queue":
            return 0, 0
        return sum([each.depth for each in moving.values()]), sum([each.bytes for each in moving.values()])

    def refusal(self, queue: QueueState) -> str | None:
        """Why a queue takes no further message; None where it takes one."""
        return self.limits.refusal(queue, *self.promised(queue))

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
        if self.held_because:
            raise ResourceAllocationException(self.held_because)
        if self.room is not None:
            left = self.room.taken(messages)
            if left is None:
                raise ResourceAllocationException(self.room.reason)
            self.room = left

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
        return self.held_because or (self.volatile_full() if is_volatile_full else None)

    def engine_wide_room(self) -> tuple[float, ...]:
        """How much room there is for what waits for no queue in particular, of each kind."""
        volatile = math.inf if self.volatile_room is None else self.volatile_room
        return self.held_because is None, volatile, *((math.inf,) * 4 if self.room is None else self.room.pages)

    def ask_for_batches(self, staged: Sequence[QueueState]) -> Full | None:
        """Whether some staged transactions can be published: the first queue that has no room for what goes into it.

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
            never = self.limits.never("the batch", count, size - each.bytes // each.depth)
            if never is not None:
                raise ResourceAllocationException(never)
            promised, promised_bytes = self.promised(target)
            refusal = self.limits.refusal(
                target, promised + count - 1, promised_bytes + size - max(1, each.bytes // each.depth)
            )
            if refusal is not None:
                return Full(target, refusal)
        return None
