"""How far a consumer with a selector has searched its queue.

Theory of operation
    A selector holds over the whole backlog, of which only a window is in memory.  So each consumer with a selector
    *searches* its queue lane by lane, in the order of delivery: where it has nothing found and may have more, the state
    asks for a :class:`~broker_adapter.engine.commands.effects.Scan` of the next entries.  Once a lane is searched to
    its end (``complete``), each message that comes in or comes back is matched as it comes.  A consumer that has found
    enough leaves new arrivals for a later scan, so what is found is bounded.

    What was found may be gone when its turn comes (another consumer took it): it is then passed over.  If it comes back
    it is matched again.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappush

from broker_adapter.selectors.language import Selector


class LaneSearch:
    """The search of one lane.

    Attributes:
        through: everything up to this position has been examined.
        complete: so has everything behind it.
        scanning: a scan is on its way.
        stale: the search was restarted while it was: what it has examined does not count.
        found: a heap of the positions that were found.
    """

    __slots__ = ("complete", "found", "scanning", "stale", "through")

    def __init__(self) -> None:
        self.through = 0
        self.complete = False
        self.scanning = False
        self.stale = False
        self.found: list[int] = []

    def has_passed(self, position: int) -> bool:
        """Return whether no scan will come to this position any more."""
        return self.complete or position <= self.through

    def look(self, position: int, most: int) -> bool:
        """Return whether this arrival is to be examined now; with ``most`` found a new one is left for a scan."""
        if not self.has_passed(position):
            return False
        if position > self.through:
            if len(self.found) >= most:
                self.complete = False
                return False
            self.through = position
        return True

    def scanned(self, through: int, complete: bool) -> None:
        """A scan has come to this position, and to the end of the lane if it is ``complete``."""
        self.scanning = False
        if self.stale:
            self.stale = False
            return
        self.through = max(self.through, through)
        self.complete = complete

    def restart(self) -> None:
        """Examine everything again."""
        self.through = 0
        self.complete = False
        self.stale = self.scanning

    def put_off(self) -> None:
        """Something came in behind what is in memory: a scan will find it."""
        self.complete = False


class Search:
    """The search of one consumer.

    Attributes:
        selector: what it looks for.
        shelved: the positions that it has found on the shelf of the back-off, the first one first.
    """

    __slots__ = ("_lanes", "selector", "shelved")

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self._lanes: dict[int, LaneSearch] = {}
        self.shelved: OrderedDict[int, None] = OrderedDict()

    def lane(self, number: int) -> LaneSearch:
        """The search of a lane; begun where it was not."""
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = LaneSearch()
        return lane

    @property
    def is_scanning(self) -> bool:
        """Whether a scan is on its way."""
        return any(lane.scanning for lane in self._lanes.values())

    def add(self, lane: int, position: int) -> None:
        """Note what was found."""
        heappush(self.lane(lane).found, position)

    def restart(self) -> None:
        """Examine everything again, because other consumers released what they had reserved."""
        for lane in self._lanes.values():
            lane.restart()
