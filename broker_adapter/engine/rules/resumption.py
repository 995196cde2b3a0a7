"""How blocked sends go on: when they are tried again, and when their time is over.

Theory of operation
    After the commands of a decision, the sends that wait for a queue that has changed are tried again in their order,
    then those that wait for the whole engine, then those whose selectors are still to be asked.  A send that is taken
    lets the next one of its route go on.  One whose time is over is refused, and smaller ones behind it are tried.

    A large commit or publication that is tried without success costs time each time.  So a commit is not tried while
    the queue that it waits for has no room for all that goes into it; and each try without success is followed by a
    pause in proportion to what it has cost, in which none of its size is tried.  After the pause those that were put
    off come first, in the order in which that happened.  Small ones have a pause of their own, and need not wait for
    large ones.

    Commits that make room do not wait for each other.  Each is tried again when there is more room than when it was
    last tried, and they take turns (:class:`broker_adapter.engine.rules.wait_queues.MakingRoom`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import fault
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.rules.blocked_sends import BlockedSends
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.rules.sends import Sends
from broker_adapter.engine.rules.staged_batches import StagedBatches
from broker_adapter.engine.rules.transactions import Transactions
from broker_adapter.engine.rules.wait_queues import (
    SMALL_MS,
    BlockedSend,
    MakingRoom,
    WaitQueues,
    failed_try_ms,
    is_large,
)
from broker_adapter.errors import IllegalStateException, JMSException

#: Stands for the whole engine where a queue has its number.
_ENGINE_WIDE = 0
#: So many commits that make room are examined in one decision.
_MOST_EXAMINED = 64
#: So many commits that make room are tried when there is more room, and have to wait all the same.
_MOST_FAILED_TRIES = 16
#: How far the end of a pause may be ahead of the clock, in milliseconds, where something may be tried all the same.
_TRY_AHEAD_MS = SMALL_MS
#: The longest pause, in milliseconds.
_LONGEST_PAUSE_MS = 2_000


class _Pause:
    """The pause after an attempt without success, in which nothing else is attempted.

    Attributes:
        put_off: queues, in this order, where something waits for the end of the pause; of :data:`_ENGINE_WIDE` what
            waits for the whole engine.
    """

    __slots__ = ("_until_ms", "put_off")

    def __init__(self) -> None:
        self._until_ms = 0.0
        self.put_off: dict[int, QueueState | None] = {}

    @property
    def next_try_ms(self) -> int:
        """When something may be tried again."""
        return math.ceil(self._until_ms) - _TRY_AHEAD_MS

    def is_over(self, elapsed_ms: int) -> bool:
        """Whether something may be tried now."""
        return self._until_ms <= elapsed_ms + _TRY_AHEAD_MS

    def extend(self, elapsed_ms: int, cost_ms: float) -> None:
        """Something was tried without success."""
        self._until_ms = min(max(self._until_ms, elapsed_ms) + cost_ms, elapsed_ms + _LONGEST_PAUSE_MS)


class Resumption:
    """Tries blocked sends again."""

    def __init__(
        self,
        directory: Directory,
        admission: Admission,
        wait_queues: WaitQueues,
        blocked_sends: BlockedSends,
        matching: Matching,
        sends: Sends,
        transactions: Transactions,
        staged_batches: StagedBatches,
        deliveries: Deliveries,
        time: DecisionTime,
    ) -> None:
        self._directory = directory
        self._changed = directory.changed
        self._admission = admission
        self._wait_queues = wait_queues
        self._blocked = blocked_sends
        self._matching = matching
        self._sends = sends
        self._transactions = transactions
        self._staged_batches = staged_batches
        self._deliveries = deliveries
        self._time = time
        self._pauses = _Pause(), _Pause()  #: of what is small, and of what is large

    def next_try_ms(self) -> int | None:
        """When something that was put off is tried again, or a subscription gives way; None where there is nothing."""
        if not self._wait_queues.count:
            return None  # what was put off has ended
        due_ms = [pause.next_try_ms for pause in self._pauses if pause.put_off]
        if self._admission.may_give_way:
            from_ms = map(self._admission.gives_way_from_ms, self._wait_queues.queues())
            due_ms += [each for each in from_ms if each is not None and each > self._time.elapsed_ms]
        return min(due_ms, default=None)

    def end_session(self, command: c.EndSession, now_ms: int, effects: Effects) -> None:
        """Carry out an EndSession."""
        reason = "the session was closed while the commit waited for room"
        self.give_up_session(command.session, reason, now_ms, effects)
        effects.answer(command, None)

    def give_up_session(self, session: str, reason: str, now_ms: int, effects: Effects) -> None:
        """Refuse the commits of a session that wait, for this reason."""
        if self._wait_queues.count:
            self._give_up(self._wait_queues.of_session(session), IllegalStateException(reason), now_ms, effects)

    def resume(self, now_ms: int, effects: Effects) -> dict[int, tuple[int, int]]:
        """Try the sends again that wait for a queue that has changed, for the whole engine, or whose time is over.

        Returns:
            How many messages and bytes a queue had when those that wait for it had been tried.
        """
        wait_queues = self._wait_queues
        tried: dict[int, tuple[int, int]] = {}
        for pause in self._pauses:
            if pause.put_off and pause.is_over(self._time.elapsed_ms):
                put_off, pause.put_off = pause.put_off, {}
                for number, put_off_queue in put_off.items():
                    if number not in tried:
                        tried[number] = self._resume_place(put_off_queue, now_ms, effects)
        for queue in list(self._changed.values()):
            if queue.wait_queue and queue.id not in tried:
                tried[queue.id] = self._resume_place(queue, now_ms, effects)
        for queue in list(wait_queues.queues()) if self._admission.may_give_way else ():
            if queue.id not in tried and self._admission.gives_way(queue):
                tried[queue.id] = self._resume_place(queue, now_ms, effects)
        if _ENGINE_WIDE not in tried:
            self._resume_place(None, now_ms, effects)
        self._resume_matching(now_ms, effects)
        for blocked in wait_queues.overdue(self._time.elapsed_ms):
            if blocked.wait_queue is not None:  # else it has ended with another one
                self._end_overdue(blocked, now_ms, effects)
        return tried

    def _resume_place(self, queue: QueueState | None, now_ms: int, effects: Effects) -> tuple[int, int]:
        """Try the sends again that wait for a queue; None: for the whole engine.

        Returns:
            The messages and bytes that the queue has then.
        """
        if queue is not None:
            self._resume_queue(queue.wait_queue, now_ms, effects)
            return queue.depth, queue.bytes
        for making_room, pause in zip(self._wait_queues.making_room, self._pauses, strict=True):
            if making_room.wait_queue:
                self._resume_making_room(making_room, pause, now_ms, effects)
        self._resume_queue(self._wait_queues.engine_wide, now_ms, effects)
        return 0, 0

    def _resume_making_room(self, making_room: MakingRoom, pause: _Pause, now_ms: int, effects: Effects) -> None:
        """Try commits of one size again that make room, as far as they are due."""
        room = self._admission.engine_wide_room()
        if not making_room.may_have_due(room):
            return
        left = _MOST_FAILED_TRIES
        for blocked in making_room.next_candidates(_MOST_EXAMINED):
            if blocked.wait_queue is not making_room.wait_queue:
                continue  # it has ended with another one
            if making_room.is_due(blocked, room):
                if not left or not pause.is_over(self._time.elapsed_ms):
                    break
                self._wait_queues.withdraw(blocked)
                if self._retry(blocked, now_ms, effects):
                    self._end((blocked,), now_ms, effects)
                else:
                    left -= 1
                room = self._admission.engine_wide_room()
            making_room.note_examined(blocked)
        if making_room.may_have_due(room):
            pause.put_off[_ENGINE_WIDE] = None  # the next decision goes on

    def _resume_queue(self, wait_queue: deque[BlockedSend], now_ms: int, effects: Effects) -> None:
        """Try the sends of a wait queue again, in their order, until one of them has to wait."""
        for _ in range(len(wait_queue)):
            if not wait_queue:
                return
            first = wait_queue[0]
            queue, needs = first.queue, first.needs
            if (
                queue is not None
                and needs is not None
                and self._admission.is_too_small(queue, needs)
                and not self._transactions.is_stale(first.command)
            ):
                return
            if not isinstance(first.command, c.Enqueue) and self._is_put_off(first):
                return
            blocked = self._wait_queues.take(wait_queue)
            if self._retry(blocked, now_ms, effects):
                self._end((blocked,), now_ms, effects)
            elif wait_queue and wait_queue[0] is blocked:
                return

    def _is_put_off(self, blocked: BlockedSend) -> bool:
        """Whether a commit or publication is not to be tried now: failing tries may take only a part of the time."""
        pause = self._pause_of(blocked)
        if pause.is_over(self._time.elapsed_ms):
            return False
        queue = blocked.queue
        pause.put_off[_ENGINE_WIDE if queue is None else queue.id] = queue
        return True

    def _pause_of(self, blocked: BlockedSend) -> _Pause:
        return self._pauses[is_large(blocked.command)]

    def _resume_matching(self, now_ms: int, effects: Effects) -> None:
        """Match more of the blocked sends, as far as there is time in this decision.

        A send that is still to be matched when the slice is over has had its turn.  No turn begins when there is no
        time left, or it would be over before it has begun.
        """
        wait_queues = self._wait_queues
        is_late = self._matching.used_up is self._matching.is_late
        while not is_late and (blocked := wait_queues.take_matching()) is not None:
            if self._retry(blocked, now_ms, effects):
                self._end((blocked,), now_ms, effects)
                is_late = self._matching.is_late()
            else:
                is_late = blocked.is_matching
        if is_late:
            self._matching.used_up = self._matching.is_late

    def _end(self, ended: Sequence[BlockedSend], now_ms: int, effects: Effects) -> None:
        """Take out sends that have ended, and try those that waited for these only."""
        free = deque(self._wait_queues.end(ended))
        while free:
            blocked = free.popleft()
            if self._retry(blocked, now_ms, effects):
                free += self._wait_queues.end((blocked,))

    def _end_overdue(self, blocked: BlockedSend, now_ms: int, effects: Effects) -> None:
        """The time of a blocked send is over: it is refused, unless there is room now."""
        left = [blocked.wait_queue]
        self._wait_queues.withdraw(blocked)
        if not self._retry(blocked, now_ms, effects, is_last=True):
            left.append(blocked.wait_queue)
            if blocked.is_matching:
                return
            if blocked.wait_queue is not None:
                self._wait_queues.withdraw(blocked)
            self._blocked.refuse(
                blocked,
                f"{blocked.reason}; held back for {(self._time.elapsed_ms - blocked.since_ms) / 1000:.1f} s",
                effects,
            )
        self._end((blocked,), now_ms, effects)
        for wait_queue in left:
            if wait_queue:
                self._resume_queue(wait_queue, now_ms, effects)  # a smaller one may find room

    def _retry(self, blocked: BlockedSend, now_ms: int, effects: Effects, *, is_last: bool = False) -> bool:
        """Try a blocked send again; returns False where it waits (again).

        Args:
            blocked: the send, commit or publication.
            now_ms: the time of the day.
            effects: of the decision.
            is_last: whether it is not tried again, so that no other one waits for what it has cost.
        """
        try:
            if isinstance(blocked.command, c.Enqueue):
                return self._sends.take(
                    blocked, self._directory.targets(blocked.command.destination, effects), now_ms, effects
                )
            if isinstance(blocked.command, c.Commit):
                done = self._transactions.commit(blocked, now_ms, effects)
            else:
                done = self._staged_batches.try_to_publish(blocked, now_ms, effects)
            if not done and not blocked.is_matching and not is_last:
                self._pause_of(blocked).extend(self._time.elapsed_ms, failed_try_ms(blocked.command))
            return done
        except JMSException as error:
            if isinstance(blocked.command, c.Commit):
                self._deliveries.roll_back(blocked.command, error, effects)
            else:
                effects.answer(blocked.command, error)
            return True
        except Exception as error:  # a fault of ours: it is this command's alone, as in ``decide``
            effects.faults.append((blocked.command, error))
            if isinstance(blocked.command, c.Commit):
                self._transactions.fail(blocked.command, error, effects)
            else:
                self._blocked.fail(blocked, fault(blocked.command, error), effects)
            return True

    def give_up_client(self, client: int, now_ms: int, effects: Effects) -> None:
        """Refuse what a connection that is gone has sent and that is not taken yet."""
        if self._wait_queues.count:
            closed = IllegalStateException("the connection was closed while this was held back at a limit")
            self._give_up(self._wait_queues.of_client(client), closed, now_ms, effects)

    def _give_up(self, over: Sequence[BlockedSend], error: JMSException, now_ms: int, effects: Effects) -> None:
        """Answer some blocked sends with an error."""
        for blocked in over:
            if blocked.queue is not None:
                self._changed[blocked.queue.id] = blocked.queue
            self._blocked.fail(blocked, error, effects)
        self._end(over, now_ms, effects)
