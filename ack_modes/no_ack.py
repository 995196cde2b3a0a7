"""NO_ACK: the broker forgets a message as it sends it; there is nothing to settle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending


class NoAckPolicy:
    """Answers every event with nothing.  What is lost on the way is lost."""

    __slots__ = ()

    transacted = False
    presettled = True
    tells_lost_acknowledgements = False
    settles = "never: the broker forgets messages as it sends them"
    raises_lost_acknowledgements = False
    due_at = None

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        pass

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def withdrawn(self, tag: DeliveryTag) -> bool:
        return True  # the broker has forgotten it, and no other consumer has it

    def listener_raised(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        return NOTHING

    def acknowledge(self, tag: DeliveryTag) -> Ending:
        return NOTHING_ENDS

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        return None

    def sent(self) -> None:
        pass

    def commit(self) -> Ending:
        return NOTHING_ENDS

    def recover(self) -> Sequence[Settlement]:
        return NOTHING

    def due(self, now: float) -> Sequence[Settlement]:
        return NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return NOTHING

    def interrupted(self, epoch: int) -> None:
        pass

    def restored(self, epoch: int) -> None:
        pass

    def link_lost(self, link: int) -> None:
        pass
