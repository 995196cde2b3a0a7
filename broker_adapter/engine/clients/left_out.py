"""Which events of a client's queue are left out.

Theory of operation
    Nothing is stored for an event that is left out.  What decides it is stored: which queries of the client have ended
    so that their events were taken out (:class:`Closed`), and of which run an update is.  So it is asked as a queue is
    read, and has the same answer after a restart.

    *Drained* is an event that was wanted by such queries only, of what the client wanted as the event came.

    *Conflated* is an update, of a client that has updates conflated, of which a newer one is in the client's queue,
    with nothing else of the key between the two: the newest stays, at its own place.  A newer one that is not for the
    client (a selector) supersedes nothing.  For a query, too, only an update supersedes an update: where a key has
    appeared or disappeared for it meanwhile, both stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from broker_adapter.engine.clients.client_queue import ClientQueue, EventLog, LeftOut, contains
from broker_adapter.engine.regions.audience import NOTHING, Audience, Matched
from broker_adapter.engine.regions.event_records import EventRecord, Operation

#: How many newer updates of a run are examined for one that supersedes an update, at most.
NEWER: Final = 100


class Closed(NamedTuple):
    """Queries that have ended, whose events were taken out of the queue from one position up to another."""

    region: int
    names: Sequence[str]
    first: int
    through: int


class LeavingOut:
    """Says of the events of one client which are left out; of a log as it is now.

    Args:
        log: of the engine.
        queue: of the client.
        audiences: by number.
        closed: its queries that have ended.
        conflates: whether the client has the updates of a region conflated, by number.
    """

    def __init__(
        self,
        log: EventLog,
        queue: ClientQueue,
        audiences: Callable[[int], Audience | None],
        closed: Sequence[Closed],
        conflates: Callable[[int], bool],
    ) -> None:
        self._log = log
        self._queue = queue
        self._audiences = audiences
        self._closed = closed
        self._conflates = conflates

    def __call__(self, position: int, event: EventRecord, audience: int) -> LeftOut | None:
        """Why an event is left out; None: it is not."""
        if self._closed and self.is_drained(position, event, audience):
            return LeftOut.DRAINED
        if event.run and self._conflates(event.region) and self._is_conflated(position, event, audience):
            return LeftOut.CONFLATED
        return None

    def is_drained(self, position: int, event: EventRecord, audience: int) -> bool:
        """Return whether an event was wanted by queries only that have ended, and whose events were taken out."""
        names = {
            name
            for closed in self._closed
            if closed.region == event.region and closed.first <= position <= closed.through
            for name in closed.names
        }
        if not names:
            return False
        found = self._matched(position, event, audience)
        return not found.interests and bool(found.queries) and all(name in names for name, _ in found.queries)

    def _is_conflated(self, position: int, event: EventRecord, audience: int) -> bool:
        of = self._audiences(audience)
        wants_all = of is not None and of.gets_all and not self._closed  # each event of the key
        mine = self._matched(position, event, audience) if not wants_all else None
        if mine is not None and any(operation is not Operation.UPDATE for _, operation in mine.queries):
            return False
        for at in islice(self._log.updates_behind(event.run, position), NEWER):
            number = self._queue.audience_at(event.region, at)
            if wants_all and number == audience:
                return True
            newer = None if number is None else self._log.event(at)
            if newer is None or number is None or not contains(newer.audiences, number):
                continue  # it is not for this client
            if self._closed and self.is_drained(at, newer, number):
                continue
            return _supersedes(self._matched(at, newer, number), mine or self._matched(position, event, audience))
        return False

    def _matched(self, position: int, event: EventRecord, number: int) -> Matched:
        audience = self._audiences(number)
        return NOTHING if audience is None else audience.matched(event.key, event.answers, position)


def _supersedes(newer: Matched, older: Matched) -> bool:
    """Return whether an update tells a client everything that an older one of the same key would tell it."""
    if older.interests and not newer.interests:
        return False
    return all((name, Operation.UPDATE) in newer.queries for name, _ in older.queries)
