"""Claims: which streaming query may remove messages of a queue by position.

Theory of operation
    A range of positions is read without taking anything, and removed when the reader has processed it.  So two readers
    of one queue would remove what the other has not read.  A streaming query therefore *claims* its queue, under an id
    that it keeps with its offsets.  The claim is part of the queue's record: it has no lease, and outlives the query,
    its connection and the engine.  It ends by a request of its holder, or passes to a query that takes the queue over.

    A request that names no claim is not asked for one, and consumers are not: they take messages one by one.
"""

from __future__ import annotations

from broker_adapter.destination import checked_name
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.errors import InvalidDestinationException, QueueClaimedException
from broker_adapter.wording import in_seconds


def check_claim(queue: QueueState, claim: str | None, elapsed_ms: int) -> None:
    """Refuse a request under a claim where the queue has another one.

    Args:
        queue: of the request.
        claim: of the request; None: it names none.
        elapsed_ms: of the clock that is never set.

    Raises:
        QueueClaimedException: another query has claimed the queue.
    """
    record = queue.record
    if claim is None or record.claim is None:
        return
    if claim == record.claim:
        queue.claim_used_ms = elapsed_ms
        return
    what = f"queue {queue.label!r}"
    if record.kind == "subscription":
        what = f"subscription {queue.label!r} on topic {queue.destination.name!r}"
    seen = "no request since the broker started"
    if queue.claim_used_ms is not None:
        seen = f"last request {in_seconds((elapsed_ms - queue.claim_used_ms) / 1000)} ago"
    raise QueueClaimedException(
        f"{what} is claimed by another streaming query ({record.claim!r} of {record.holder!r}; {seen}). Two queries"
        " would remove messages that the other has not read: give each a queue of its own, or a subscription on a"
        " topic. If that query is not to run any more, start this one with takeOver=true"
    )


class Claims:
    """Makes and ends claims."""

    def __init__(self, directory: Directory, time: DecisionTime) -> None:
        self._directory = directory
        self._time = time

    def claim(self, command: c.Claim, now_ms: int, effects: Effects) -> None:
        """Carry out a Claim."""
        queue = self._directory.queues.get(command.queue)
        if queue is None or queue.record.kind == "ended":
            raise InvalidDestinationException("the queue was deleted before it was claimed")
        if not command.take_over:
            check_claim(queue, command.claim, self._time.elapsed_ms)
        if (queue.record.claim, queue.record.holder) != (command.claim, command.holder):
            claim, holder = checked_name(command.claim, "claim"), checked_name(command.holder, "holder")
            queue.record = queue.record._replace(claim=claim, holder=holder)
            self._directory.put_record(queue, effects)
        queue.claim_used_ms = self._time.elapsed_ms
        effects.answer(command, None)

    def end_claim(self, command: c.EndClaim, now_ms: int, effects: Effects) -> None:
        """Carry out an EndClaim."""
        queue = self._directory.queues.get(command.queue)
        if queue is not None and queue.record.claim == command.claim:
            queue.record = queue.record._replace(claim=None, holder=None)
            queue.claim_used_ms = None
            self._directory.put_record(queue, effects)
        effects.answer(command, None)
