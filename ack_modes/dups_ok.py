"""DUPS_OK: consumed messages are accepted together, when a batch is full or a short time has passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending, settle_all

_ACCEPTED = Outcome.ACCEPTED


class DupsOkPolicy:
    """Keeps consumed messages until their batch goes: a lost connection brings all of them again."""

    __slots__ = ("_batch", "_delay_seconds", "_in_hand", "_messages", "due_at")

    transacted = False
    presettled = False
    tells_lost_acknowledgements = False
    settles = "only while its listener runs"
    raises_lost_acknowledgements = False

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._messages, self._delay_seconds = batch
        self._in_hand: DeliveryTag | None = None
        self._batch: list[Settlement] = []
        self.due_at: float | None = None  #: when the oldest of the batch has waited long enough

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""
        self._in_hand = tag

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        if self._in_hand != tag:  # recovered, or lost with the connection, while it was in hand
            return NOTHING
        self._in_hand = None
        batch = self._batch
        batch.append(Settlement(tag, _ACCEPTED))
        due_at = self.due_at
        if due_at is None:
            due_at = self.due_at = now + self._delay_seconds
        return self._flush() if now >= due_at or len(batch) >= self._messages else NOTHING

    def withdrawn(self, tag: DeliveryTag) -> bool:
        if self._batch and self._batch[-1].tag == tag:
            self._batch.pop()
        elif self._in_hand == tag:
            self._in_hand = None
        else:
            return False
        return True

    def listener_raised(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        if self._in_hand != tag:
            return NOTHING
        self._in_hand = None
        return (Settlement(tag, Outcome.FAILED),)

    def acknowledge(self, tag: DeliveryTag) -> Ending:
        return NOTHING_ENDS

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        if self._in_hand != tag:
            return None
        self._in_hand = None
        return Ending((Settlement(tag, failure),))

    def sent(self) -> None:
        pass

    def commit(self) -> Ending:
        return NOTHING_ENDS

    def recover(self) -> Sequence[Settlement]:
        settlements = [*self._flush()]
        if self._in_hand is not None:
            settlements.append(Settlement(self._in_hand, Outcome.FAILED))
            self._in_hand = None
        return settlements

    def due(self, now: float) -> Sequence[Settlement]:
        return self._flush() if self.due_at is not None and now >= self.due_at else NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return settle_all(tags, outcome)

    def interrupted(self, epoch: int) -> None:
        self._in_hand = None
        self._flush()

    def restored(self, epoch: int) -> None:
        pass

    def link_lost(self, link: int) -> None:
        if self._in_hand is not None and self._in_hand.link == link:
            self._in_hand = None
        self._batch = [each for each in self._batch if each.tag.link != link]
        if not self._batch:
            self.due_at = None

    def _flush(self) -> Sequence[Settlement]:
        batch, self._batch, self.due_at = self._batch, [], None
        return batch
