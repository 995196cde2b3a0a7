"""How a delivery ends, in AMQP's own words.

The lowest idea of the project: transports, the engine and the acknowledge modes all speak it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

#: Most bytes of the reason of a failure, in UTF-8.
MAX_REASON_BYTES: Final = 1000


class Outcome(IntEnum):
    """What becomes of a delivered message (AMQP 1.0 section 3.4)."""

    ACCEPTED = 1
    """Processed: the broker forgets the message."""
    REJECTED = 2
    """Can never be processed by any consumer: the broker moves it to the dead-letter queue."""
    RELEASED = 3
    """Was not processed: the broker redelivers it, the delivery count unchanged."""
    MODIFIED = 4
    """Was undone (``delivery-failed``): redelivered, at its place, the delivery count raised.  Where that happens again
    our own engine redelivers it after a pause that grows each time, for which its consumer waits."""
    FAILED = 5
    """Was processed and failed, as a listener that raised: as ``MODIFIED``, and where that happens again others pass it
    during the pause, unless it is of a message group or its consumer keeps order.  To AMQP both are ``modified``."""
    UNDELIVERABLE = 6
    """Cannot be processed by this consumer, perhaps by another (``modified`` with ``delivery-failed`` and
    ``undeliverable-here``): not redelivered to this one.  Our own engine redelivers it as ``FAILED``, after a pause."""


class Failure(NamedTuple):
    """An outcome other than ``ACCEPTED``, with what is said about it.

    Every broker is told why a message is rejected; why its listener failed, our own alone, which keeps it with the
    message.
    """

    reason: str  #: up to :data:`MAX_REASON_BYTES`; empty: none is given
    outcome: Outcome = Outcome.FAILED
    delay_ms: int = 0  #: of ``FAILED``: not redelivered before; our own broker alone can do that

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Make one from what a listener has raised: the type and the text, up to :data:`MAX_REASON_BYTES`."""
        try:
            reason = f"{type(error).__name__}: {error}"
        except Exception:  # raised by the application's ``__str__``
            reason = type(error).__name__
        return cls(shortened_reason(reason))


def shortened_reason(reason: str) -> str:
    """Cut a reason to :data:`MAX_REASON_BYTES`; what UTF-8 cannot encode is replaced."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")


class DeliveryTag(NamedTuple):
    """Names one delivery of one connection.

    ``epoch`` counts the times that the connection was restored: a tag of an earlier epoch is stale,
    which is one comparison.  ``link`` and ``number`` are the transport's own.
    """

    epoch: int
    link: int
    number: int


class Settlement(NamedTuple):
    """A delivery and how it ends.  Each delivery is settled exactly once."""

    tag: DeliveryTag
    outcome: Outcome | Failure
