"""CLIENT: ``acknowledge()`` accepts everything that the session has received."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ack_modes.outcome import DeliveryTag, Failure, Outcome, Settlement
from ack_modes.policy import NOTHING, NOTHING_ENDS, BatchLimits, Ending, settle_all

#: Most links that were lost, while the connection lived, and are remembered one by one.
MAX_LOST_LINKS: Final = 1_000


class ClientPolicy:
    """Holds what was delivered; remembers how much of it was lost with a connection.

    What came on a link that was lost acknowledges nothing that came since.  Of the oldest losses only the greatest link
    is remembered, since the numbers of links count up: what came on one up to that acknowledges only if it is held.
    """

    __slots__ = ("_epoch", "_forgotten_link", "_held", "_lost_links", "_stale_count")

    transacted = False
    presettled = False
    tells_lost_acknowledgements = False
    settles = "until it is acknowledged or recovered"
    raises_lost_acknowledgements = True
    due_at = None

    def __init__(self, batch: BatchLimits = BatchLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._held: list[DeliveryTag] = []
        self._epoch = 0
        self._lost_links: dict[int, None] = {}  #: the oldest first
        self._forgotten_link = -1  #: the greatest of those that are not remembered any more
        self._stale_count = 0

    def delivered(self, tag: DeliveryTag) -> None:
        """See :class:`ack_modes.policy.AckPolicy`, as for all methods here."""
        if tag.epoch < self._epoch:  # was on its way to the application when the connection was lost
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
        if self._stale_count:
            stale_count = self._stale_count
            return Ending(self.recover(), True, stale_count)
        if not self._held or (tag.epoch >= 0 and self._is_lost(tag)):
            return NOTHING_ENDS  # what came since is not what the caller means
        held, self._held = self._held, []
        return Ending(settle_all(held, Outcome.ACCEPTED))

    def _is_lost(self, tag: DeliveryTag) -> bool:
        if tag.epoch < self._epoch or tag.link in self._lost_links:
            return True
        return tag.link <= self._forgotten_link and tag not in self._held

    def settle(self, tag: DeliveryTag, failure: Failure) -> Ending | None:
        if self._stale_count:
            return self.acknowledge(tag)
        if tag not in self._held:
            return None
        self._held.remove(tag)
        return Ending((Settlement(tag, failure),))

    def sent(self) -> None:
        pass

    def commit(self) -> Ending:
        return NOTHING_ENDS

    def recover(self) -> Sequence[Settlement]:
        held, self._held, self._stale_count = self._held, [], 0
        return settle_all(held, Outcome.MODIFIED)

    def due(self, now: float) -> Sequence[Settlement]:
        return NOTHING

    def passed_over(self, tags: Iterable[DeliveryTag], outcome: Outcome) -> Sequence[Settlement]:
        return settle_all(tags, outcome)

    def interrupted(self, epoch: int) -> None:
        self._epoch = epoch
        self._lost_links.clear()
        self._forgotten_link = -1  # each connection numbers its links from the start
        self._stale_count += len(self._held)
        self._held = []

    def restored(self, epoch: int) -> None:
        self._epoch = epoch

    def link_lost(self, link: int) -> None:
        self._lost_links[link] = None
        if len(self._lost_links) > MAX_LOST_LINKS:
            oldest = next(iter(self._lost_links))
            del self._lost_links[oldest]
            self._forgotten_link = max(self._forgotten_link, oldest)
        kept = [tag for tag in self._held if tag.link != link]
        self._stale_count += len(self._held) - len(kept)
        self._held = kept
