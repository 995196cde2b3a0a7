"""What an acknowledge mode is to a session: it is passed events, and answers with settlements.

Theory of operation
    A session has one policy and tells it everything that becomes of its deliveries; what the policy answers goes to
    the transport as it is.  A policy has no clock, no thread and no lock: instants are passed in, in seconds of any
    steady clock, and the session makes its calls one at a time.

    The session promises: ``delivered`` comes first for each delivery, and once; between ``delivered`` and ``consumed``
    or ``listener_raised`` no other delivery is delivered.  What the application never saw goes through
    ``passed_over`` alone.

    The policy promises the law of the package: each delivery is settled exactly once, unless the connection was lost
    meanwhile, in which case it is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement

#: The answer of a policy that has nothing to settle.
NOTHING: Final[tuple[Settlement, ...]] = ()


class BatchLimits(NamedTuple):
    """How long a mode that acknowledges lazily may wait."""

    messages: int = 100
    delay_seconds: float = 0.1


class Ending(NamedTuple):
    """What ``acknowledge()`` or ``commit()`` comes to.

    Where ``dirty`` is set, work was lost with the connection: the settlements then give back what is left of it and
    what was delivered since, and the application must be told.
    """

    settlements: Sequence[Settlement]
    dirty: bool = False
    stale_count: int = 0  #: deliveries that were held when the connection was lost


NOTHING_ENDS: Final = Ending(NOTHING)


class AckPolicy(Protocol):
    """One acknowledge mode at work in one session."""

    @property
    def transacted(self) -> bool:
        """Whether the session has ``commit`` and ``rollback`` in place of ``recover``."""

    @property
    def presettled(self) -> bool:
        """Whether the broker forgets messages as it sends them, so that there is nothing to settle."""

    @property
    def tells_lost_acknowledgements(self) -> bool:
        """Whether the exception listener is told where a consumed message could not be accepted.

        The connection was lost, that is, and perhaps another consumer has the message by now.
        """

    @property
    def raises_lost_acknowledgements(self) -> bool:
        """Whether the next ``acknowledge()`` raises where an earlier one was in vain, since it was lost.

        Other consumers have the messages by now, that is, or they are dead letters.
        """

    @property
    def settles(self) -> str:
        """When ``settle`` ends a message, for errors."""

    @property
    def due_at(self) -> float | None:
        """The instant at which ``due`` wants to be called; None: there is nothing to wait for."""

    def delivered(self, tag: DeliveryTag) -> None:
        """The application is about to see this delivery."""

    def consumed(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        """``receive`` is about to return it, or its listener has returned."""

    def withdrawn(self, tag: DeliveryTag) -> bool:
        """The application did not get the last delivery: it may be delivered again, or passed over.

        It was closed meanwhile, or the SDK has received for itself.  Returns whether that is so; False: it is another
        one, settled, or lost with the connection.
        """

    def listener_raised(self, tag: DeliveryTag, now: float) -> Sequence[Settlement]:
        """Its listener has raised.  What this gives back as failed is redelivered next, before anything prefetched."""

    def acknowledge(self, tag: DeliveryTag) -> Ending:
        """The application called ``acknowledge()`` on it."""

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        """The application called ``reject()`` or ``retry()`` on it; None: it has nothing more to say about it here."""

    def sent(self) -> None:
        """The session sent a message."""

    def commit(self) -> Ending:
        """What a commit is to settle: it ends the transaction."""

    def recover(self) -> Sequence[Settlement]:
        """``rollback()``, ``recover()`` or ``close()``: what is to be given back.  Then the session is clean."""

    def due(self, now: float) -> Sequence[Settlement]:
        """What has waited long enough."""

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        """These never reached the application."""

    def interrupted(self, epoch: int) -> None:
        """The connection was lost: deliveries of epochs before this one can no longer be settled."""

    def restored(self, epoch: int) -> None:
        """The connection works again: what is delivered from here on is of this epoch."""

    def link_lost(self, link: int) -> None:
        """The broker took back what came on this link of the connection, which lives: it can no longer be settled."""


#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__


def settle_all(tags: Iterable[DeliveryTag], outcome: Outcome) -> tuple[Settlement, ...]:
    """Settlements that end all of these alike, in order."""
    return tuple([_new(Settlement, (tag, outcome)) for tag in tags])
