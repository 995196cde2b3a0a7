"""TRANSACTED: ``commit()`` accepts what was received, together with what was sent; ``rollback()`` undoes both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending, settle_all


class TransactedPolicy:
    """Holds what was delivered in this transaction, and knows whether its work was lost with a connection."""

    __slots__ = ("_dirty", "_epoch", "_failures", "_held", "_sent", "_stale_count")

    transacted = True
    presettled = False
    tells_lost_acknowledgements = False
    settles = "until the transaction ends"
    raises_lost_acknowledgements = False
    due_at = None

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._held: list[DeliveryTag] = []
        self._failures: dict[DeliveryTag, Failure] = {}  #: how those of them end that are not accepted
        self._sent = False
        self._epoch = 0
        self._dirty = False
        self._stale_count = 0

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""
        if tag.epoch < self._epoch:  # was on its way to the application when the connection was lost
            self._dirty = True
            self._stale_count += 1
        else:
            self._held.append(tag)

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def withdrawn(self, tag: DeliveryTag) -> bool:
        if not self._held or self._held[-1] != tag:
            return False
        self._held.pop()
        return True

    def listener_raised(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def acknowledge(self, tag: DeliveryTag) -> Ending:
        return NOTHING_ENDS

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        if not self._dirty:  # else the commit says so, and what came on a lost connection is not held any more
            if tag not in self._held:
                return None
            self._failures[tag] = failure
        return NOTHING_ENDS

    def sent(self) -> None:
        self._sent = True

    def commit(self) -> Ending:
        # A loss while the commit is under way makes nothing dirty: all that it takes is part of this commit.
        dirty, stale_count, failures = self._dirty, self._stale_count, self._failures
        held = self._begin()
        if failures and not dirty:
            return Ending([Settlement(tag, failures.get(tag, Outcome.ACCEPTED)) for tag in held])
        return Ending(settle_all(held, Outcome.MODIFIED if dirty else Outcome.ACCEPTED), dirty, stale_count)

    def recover(self) -> Sequence[Settlement]:
        return settle_all(self._begin(), Outcome.MODIFIED)

    def _begin(self) -> list[DeliveryTag]:
        """Begin the next transaction; returns what this one holds."""
        held, self._held = self._held, []
        self._failures = {}
        self._sent = self._dirty = False
        self._stale_count = 0
        return held

    def due(self, now: float) -> Sequence[Settlement]:
        return NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return settle_all(tags, outcome)

    def interrupted(self, epoch: int) -> None:
        self._epoch = epoch
        if self._held or self._sent:
            self._dirty = True
            self._stale_count += len(self._held)
            self._held = []
            self._sent = False

    def restored(self, epoch: int) -> None:
        self._epoch = epoch

    def link_lost(self, link: int) -> None:
        kept = [tag for tag in self._held if tag.link != link]
        self._stale_count += len(self._held) - len(kept)
        self._dirty = self._dirty or len(kept) < len(self._held)
        self._held = kept
