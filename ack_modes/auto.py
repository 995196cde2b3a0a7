"""AUTO: a message is accepted when ``receive`` returns it, or when its listener has returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending, settle_all

_ACCEPTED = Outcome.ACCEPTED


class AutoPolicy:
    """Remembers the one message in hand, nothing else: so only the last one can be redelivered."""

    __slots__ = ("_in_hand",)

    transacted = False
    presettled = False
    tells_lost_acknowledgements = True
    settles = "only while its listener runs"
    raises_lost_acknowledgements = False
    due_at = None

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._in_hand: DeliveryTag | None = None

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""
        self._in_hand = tag

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        if self._in_hand != tag:  # recovered, or lost with the connection, while it was in hand
            return NOTHING
        self._in_hand = None
        return (Settlement(tag, _ACCEPTED),)

    def withdrawn(self, tag: DeliveryTag) -> bool:
        if self._in_hand != tag:
            return False
        self._in_hand = None
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
        tag, self._in_hand = self._in_hand, None
        return NOTHING if tag is None else (Settlement(tag, Outcome.FAILED),)

    def due(self, now: float) -> Sequence[Settlement]:
        return NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return settle_all(tags, outcome)

    def interrupted(self, epoch: int) -> None:
        self._in_hand = None

    def restored(self, epoch: int) -> None:
        pass

    def link_lost(self, link: int) -> None:
        if self._in_hand is not None and self._in_hand.link == link:
            self._in_hand = None
