"""How blocked sends go on: when they are tried again, and when their time is over.

Theory of operation
    After the commands of a decision, the sends that wait for a queue that has changed are tried again in their order,
    then those that wait for the whole engine, then those whose selectors are still to be asked.  A send that is taken
    lets the next one of its route go on.  One whose time is over is refused, and smaller ones behind it are tried.

    A large commit that is tried in vain costs time each time.  So commits are tried again only after a pause that is in
    proportion to what the last ones have cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import gt

from broker_adapter.engine import commands as c
from broker_adapter.engine.admission import Admission
from broker_adapter.engine.blocked_sends import BlockedSends
from broker_adapter.engine.decision_time import DecisionTime
from broker_adapter.engine.deliveries import Deliveries
from broker_adapter.engine.directory import Directory
from broker_adapter.engine.effects import Effects
from broker_adapter.engine.failures import fault
from broker_adapter.engine.matching import Matching
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.sends import Sends
from broker_adapter.engine.staged_batches import StagedBatches
from broker_adapter.engine.transactions import Transactions
from broker_adapter.engine.wait_queues import BlockedSend, WaitQueues
from broker_adapter.errors import IllegalStateException, JMSException

#: So many commits that make room are tried when there is more room, and have to wait all the same.
_MOST_VAIN_TRIES = 16
#: What a commit that was tried again in vain may cost, in milliseconds for each of its sends and settlements: so long
#: the others are not tried.
_VAIN_TRY_MS = 0.02
#: How far these times may be ahead of the clock, in milliseconds: small commits are tried whenever they may go on.
_TRY_AHEAD_MS = 5


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
        #: the engine-wide room when commits that make room were last tried
        self._room_before: tuple[float, ...] = (-math.inf,) * 6
        self._tried_until_ms = 0.0  #: commits are tried again from then on
        #: queues whose commits wait for that; 0: those that wait engine-wide
        self._put_off: dict[int, QueueState | None] = {}

    def next_try_ms(self) -> int | None:
        """When commits that were put off are tried again; None where there are none."""
        return math.ceil(self._tried_until_ms) - _TRY_AHEAD_MS if self._put_off else None

    def give_up_session(self, session: str, now_ms: int, effects: Effects) -> None:
        """Refuse the commits of a session that wait: it has gone on, and must not overtake them."""
        if self._wait_queues.count:
            error = IllegalStateException("the session has gone on while the commit was held back at a limit")
            self._give_up(self._wait_queues.of_session(session), error, now_ms, effects)

    def resume(self, now_ms: int, effects: Effects) -> None:
        """Try the sends again that wait for a queue that has changed, for the whole engine, or whose time is over."""
        wait_queues = self._wait_queues
        if self._put_off and self._may_try():
            put_off, self._put_off = self._put_off, {}
            self._changed.update(
                (each.id, each) for each in put_off.values() if each is not None and each.id in self._directory.queues
            )
        for queue in list(self._changed.values()):
            if queue.wait_queue:
                self._resume_queue(queue.wait_queue, now_ms, effects)
        if wait_queues.making_room:
            self._resume_making_room(now_ms, effects)
        self._resume_queue(wait_queues.engine_wide, now_ms, effects)
        self._resume_matching(now_ms, effects)
        for blocked in wait_queues.overdue(self._time.elapsed_ms):
            if blocked.wait_queue is not None:  # else it has ended with another one
                self._end_overdue(blocked, now_ms, effects)

    def _resume_making_room(self, now_ms: int, effects: Effects) -> None:
        """Try commits again that make room: not only the first of them, which may need more than there is."""
        wait_queue = self._wait_queues.making_room
        left = _MOST_VAIN_TRIES if any(map(gt, self._admission.engine_wide_room(), self._room_before)) else 0
        for blocked in list(wait_queue) if left else ():
            if not self._may_try():
                self._put_off[0] = None
                return  # there is still more room than at the last try
            if blocked.wait_queue is wait_queue:  # else it has ended with another one
                self._wait_queues.withdraw(blocked)
                if self._retry(blocked, now_ms, effects):
                    self._end((blocked,), now_ms, effects)
                else:
                    left -= 1
                    if not left:
                        break
        self._room_before = self._admission.engine_wide_room()

    def _resume_queue(self, wait_queue: deque[BlockedSend], now_ms: int, effects: Effects) -> None:
        """Try the sends of a wait queue again, in their order, until one of them has to wait."""
        for _ in range(len(wait_queue)):
            if not wait_queue:
                return
            if isinstance(wait_queue[0].command, c.Commit) and not self._may_try():
                queue = wait_queue[0].queue
                self._put_off[0 if queue is None else queue.id] = queue
                return
            blocked = self._wait_queues.take(wait_queue)
            if self._retry(blocked, now_ms, effects):
                self._end((blocked,), now_ms, effects)
            elif wait_queue and wait_queue[0] is blocked:
                return

    def _may_try(self) -> bool:
        """Whether commits may be tried again now: trying them in vain may take a part of the time only."""
        return self._tried_until_ms <= self._time.elapsed_ms + _TRY_AHEAD_MS

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
        if not self._retry(blocked, now_ms, effects):
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

    def _retry(self, blocked: BlockedSend, now_ms: int, effects: Effects) -> bool:
        """Try a blocked send again; returns False where it waits (again)."""
        try:
            if isinstance(blocked.command, c.Commit):
                done = self._transactions.commit(blocked, now_ms, effects)
                if not done and not blocked.is_matching:
                    cost_ms = _VAIN_TRY_MS * (len(blocked.command.sends) + len(blocked.command.settlements))
                    self._tried_until_ms = max(self._tried_until_ms, self._time.elapsed_ms) + cost_ms
                return done
            if isinstance(blocked.command, c.Publish):
                return self._staged_batches.try_to_publish(blocked, now_ms, effects)
            return self._sends.take(
                blocked, self._directory.targets(blocked.command.destination, effects), now_ms, effects
            )
        except JMSException as error:
            if isinstance(blocked.command, c.Commit):
                self._deliveries.roll_back(blocked.command, error, effects)
            else:
                effects.answer(blocked.command, error)
            return True
        except Exception as error:  # a fault of ours: it is this command's alone, as in ``decide``
            effects.faults.append((blocked.command, error))
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
