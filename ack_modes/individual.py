"""INDIVIDUAL: ``acknowledge()`` accepts that one message, in any order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending, settle_all

#: Most messages that were lost with a connection or link, and are remembered one by one.
MAX_STALE: Final = 10_000


class IndividualPolicy:
    """Holds what was delivered, and remembers which of it was lost with a connection.

    Since each message is acknowledged by itself, a stale one is refused by itself: acknowledging a good one goes
    through, whatever else was lost.

    A program may never acknowledge what was lost, so of the oldest losses only the connection is remembered: all of its
    messages count as lost then, also what was acknowledged, and each time that they are acknowledged.
    """

    __slots__ = ("_epoch", "_held", "_lost_epoch", "_stale")

    transacted = False
    presettled = False
    tells_lost_acknowledgements = False
    settles = "until it is acknowledged or recovered"
    raises_lost_acknowledgements = True
    due_at = None

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._held: dict[DeliveryTag, None] = {}
        self._epoch = 0
        self._stale: dict[DeliveryTag, None] = {}  #: the oldest first
        self._lost_epoch = -1  #: the last one of which something stale was forgotten

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""
        if tag.epoch < self._epoch:  # was on its way to the application when the connection was lost
            self._add_stale((tag,))
        else:
            self._held[tag] = None

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def withdrawn(self, tag: DeliveryTag) -> bool:
        return self._held.pop(tag, tag) is None

    def listener_raised(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def acknowledge(self, tag: DeliveryTag) -> Ending:
        if self._held.pop(tag, tag) is None:
            return Ending((Settlement(tag, Outcome.ACCEPTED),))
        if self._stale.pop(tag, tag) is None or 0 <= tag.epoch <= self._lost_epoch:
            return Ending(NOTHING, dirty=True, stale_count=1)
        return NOTHING_ENDS

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        ending = self.acknowledge(tag)
        if ending.settlements:
            return Ending((Settlement(tag, failure),))
        return ending if ending.dirty else None

    def sent(self) -> None:
        pass

    def commit(self) -> Ending:
        return NOTHING_ENDS

    def recover(self) -> Sequence[Settlement]:
        held, self._held = self._held, {}
        self._stale, self._lost_epoch = {}, -1
        return settle_all(held, Outcome.FAILED)

    def due(self, now: float) -> Sequence[Settlement]:
        return NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return settle_all(tags, outcome)

    def interrupted(self, epoch: int) -> None:
        self._epoch = epoch
        self._add_stale(self._held)
        self._held = {}

    def restored(self, epoch: int) -> None:
        self._epoch = epoch

    def link_lost(self, link: int) -> None:
        lost = [tag for tag in self._held if tag.link == link]
        self._add_stale(lost)
        for tag in lost:
            del self._held[tag]

    def _add_stale(self, tags: Iterable[DeliveryTag]) -> None:
        self._stale.update(dict.fromkeys(tags))
        for tag in list(islice(self._stale, max(0, len(self._stale) - MAX_STALE))):
            del self._stale[tag]
            self._lost_epoch = max(self._lost_epoch, tag.epoch)
