"""How a delivery ends, in AMQP's own words.

The lowest idea of the project: transports, the engine and the acknowledge modes all speak it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Outcome(IntEnum):
    """What becomes of a delivered message (AMQP 1.0 section 3.4)."""

    ACCEPTED = 1
    """Processed: the broker forgets the message."""
    REJECTED = 2
    """Can never be processed by any consumer: the broker moves it to the dead-letter queue."""
    RELEASED = 3
    """Was not processed: the broker redelivers it, the delivery count unchanged."""
    MODIFIED = 4
    """Was processed and failed (``delivery-failed``): redelivered, at its place, the delivery count raised."""
    FAILED = 5
    """Its listener raised: as ``MODIFIED``, and where that happens again it comes after a pause that grows each time.
    To AMQP this is a ``modified`` with an annotation."""
    UNDELIVERABLE = 6
    """Cannot be processed by this consumer, perhaps by another (``modified`` with ``delivery-failed`` and
    ``undeliverable-here``): not redelivered to this one.  Our own engine redelivers it as ``FAILED``, after a pause."""


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
    outcome: Outcome
