"""Up to which event a client has been told everything, in each store that its connection has led to.

Positions are those of one store.  A store that was replaced by an older copy of itself gives some of them again; so the
run of the engine in which one was seen is kept beside it, and the engine says which positions of that run still mean
the same events.
"""

from __future__ import annotations

from typing import Final

#: Other stores of which it is remembered which events were told.
MOST_STORES: Final = 100


class EventPositions:
    """The positions of one client.

    Attributes:
        store: names the store; None: it is not known.
        through: everything up to this position was told.
        known: what was read, or was told, is of a store that had its events up to this position.
        run: of the engine, in which that was seen; None: it is not known.
    """

    def __init__(self) -> None:
        self.store: str | None = None
        self.through = 0
        self.known = 0
        self.run: str | None = None
        self._others: dict[str | None, tuple[int, str | None]] = {}  #: position and run, by store

    def is_elsewhere(self, store: str | None) -> bool:
        """Return whether a store is known to be another one."""
        return self.store is not None and store != self.store

    def move(self, store: str | None) -> bool:
        """Go on in a store, with what was told of it; returns whether it is another one."""
        is_elsewhere = self.is_elsewhere(store)
        if is_elsewhere:
            self._others[self.store] = self.through, self.run
            self.through, self.run = self._others.pop(store, (0, None))
            self.known = self.through
            if len(self._others) > MOST_STORES:
                del self._others[next(iter(self._others))]
        self.store = store
        return is_elsewhere

    def told(self, position: int) -> None:
        """An event was told."""
        self.through = max(self.through, position)
        self.known = max(self.known, position)

    def registered(self, position: int) -> None:
        """Interest was registered behind an event, whether that was told or not; what it covers is read from then."""
        self.known = max(self.known, position)

    def check(self, kept: int, run: str | None) -> bool:
        """Start over where positions do not mean what they meant; returns whether they do not.

        Args:
            kept: positions below this one, seen in ``run``, are those of the same events.
            run: in which run of the engine events have their positions from now on; None: it has noted none.
        """
        is_wrong = self.known >= kept
        if is_wrong:
            self.through = self.known = self.through if self.through < kept else 0
        self.run = run or self.run
        return is_wrong
