"""How a send, commit or publication that finds no room is blocked, or refused.

Where it waits is in :mod:`broker_adapter.engine.rules.wait_queues`, how it goes on in
:mod:`broker_adapter.engine.rules.resumption`.
"""

from __future__ import annotations

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.commands.failures import rolled_back
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.wait_queues import BlockedSend, WaitQueues
from broker_adapter.errors import LIMIT_REACHED, JMSException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import counted


class BlockedSends:
    """Blocks sends, commits and publications, or refuses them."""

    def __init__(
        self,
        settings: EngineSettings,
        wait_queues: WaitQueues,
        deliveries: Deliveries,
        totals: Totals,
        time: DecisionTime,
    ) -> None:
        self._most = settings.max_blocked_sends
        self._timeout_ms = int(settings.blocked_send_timeout_seconds * 1000)
        self._wait_queues = wait_queues
        self._deliveries = deliveries
        self._totals = totals
        self._time = time

    def arrived(self, command: c.Enqueue | c.Commit | c.Publish) -> BlockedSend:
        """A send, commit or publication has come; it does not wait yet."""
        since_ms = self._time.elapsed_ms
        return self._wait_queues.arrived(command, since_ms, since_ms + self._timeout_ms)

    def waits_behind(self, blocked: BlockedSend, effects: Effects) -> bool:
        """Whether an earlier send of its connection to the same destination waits, which must not be overtaken."""
        first = self._wait_queues.first_before(blocked)
        if first is None:
            return False
        if self._may_wait(blocked, first.reason, effects):
            self._wait_queues.wait_behind(blocked, first.reason)
        return True

    def _may_wait(self, blocked: BlockedSend, reason: str, effects: Effects) -> bool:
        """Whether it may wait; otherwise it is refused."""
        if blocked.routes is not None or self._wait_queues.count < self._most:
            return True
        waiting = f"{counted(self._wait_queues.count, 'send', ('waits', 'wait'))} already (the limit max_blocked_sends)"
        self.refuse(blocked, f"{reason}, and {waiting}", effects)
        return False

    def block(
        self,
        blocked: BlockedSend,
        queue: QueueState | None,
        reason: str,
        effects: Effects,
        *,
        is_matching: bool = False,
        needs: tuple[int, int] | None = None,
    ) -> bool:
        """Let a send wait.

        Args:
            blocked: the send, commit or publication.
            queue: that has no room; None: the whole engine has none.
            reason: for the error, if its wait times out.
            effects: of the decision.
            is_matching: whether it waits for selectors, and not for room.
            needs: what it needs of the queue, as :class:`broker_adapter.engine.rules.admission.Full` says.

        Returns:
            False where it is refused instead.
        """
        if not blocked.reason and not is_matching:  # it has not waited before
            ahead = queue.wait_queue[0].reason if queue is not None and queue.wait_queue else reason
            effects.warn(("blocked", 0 if queue is None else queue.id), "! producers are blocked: %s", ahead)
        blocked.reason, blocked.needs = reason, needs
        if not self._may_wait(blocked, reason, effects):
            return False
        self._wait_queues.wait(blocked, queue, is_matching=is_matching)
        return True

    def refuse(self, blocked: BlockedSend, reason: str, effects: Effects) -> None:
        """Answer a send with the error that it finds no room."""
        error = ResourceAllocationException(reason, error_code=LIMIT_REACHED)
        self._totals.refused += 1
        self.fail(blocked, error, effects)

    def fail(self, blocked: BlockedSend, error: JMSException, effects: Effects) -> None:
        """Answer a send with an error for what of it is not taken yet."""
        command = blocked.command
        if isinstance(command, c.Commit):
            self._deliveries.roll_back(command, rolled_back(error), effects)
            return
        if isinstance(command, c.Publish):
            effects.answer(command, error)
            return
        for index in range(blocked.index, len(command.messages)):
            blocked.note_error(index, error)
        effects.answer(command, blocked.errors)

    def refuse_waiting_for(self, queue: QueueState, effects: Effects) -> None:
        """Refuse the sends that wait for a queue that ends."""
        wait_queues = self._wait_queues
        over = [each for blocked in list(queue.wait_queue) for each in wait_queues.of_route(blocked, queue.destination)]
        for blocked in over:
            self.refuse(blocked, f"{queue.label!r} was deleted", effects)
        for blocked in wait_queues.end(over):
            wait_queues.wait(blocked, None)
