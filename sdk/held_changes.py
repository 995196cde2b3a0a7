"""Changes of regions in a transaction that is not committed yet.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from broker_adapter import RegionChange

#: Told of the keys of a region that a commit has changed.
Committed = Callable[[Collection[str]], None]


class HeldChanges:
    """What one transaction is to change.

    Attributes:
        all: the changes, in order.
    """

    __slots__ = ("_committed", "_last", "all")

    def __init__(self) -> None:
        self.all: list[RegionChange] = []
        self._last: dict[str, dict[str, RegionChange]] = {}
        self._committed: dict[str, Committed] = {}

    def hold(self, changes: Sequence[RegionChange], committed: Committed) -> None:
        """Hold changes of one region.

        Args:
            changes: at least one, in order.
            committed: called once they are done, or may be.
        """
        region = changes[0].region
        self.all += changes
        self._committed[region] = committed
        self._last.setdefault(region, {}).update({each.key: each for each in changes})

    def of(self, region: str) -> Mapping[str, RegionChange]:
        """Return the last change of each key of a region, as it grows."""
        return self._last.get(region, {})

    def tell_committed(self) -> None:
        """Tell each region of the keys that have changed."""
        for region, committed in self._committed.items():
            committed(self._last[region].keys())
