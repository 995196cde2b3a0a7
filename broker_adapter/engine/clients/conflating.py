"""In which regions updates are conflated for a durable client."""

from __future__ import annotations

from collections import Counter

from broker_adapter.engine.clients.durable_client import Conflation
from broker_adapter.engine.regions.region import Region


class Conflating:
    """Counts, by region, what the clients ask for that want something of it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, Conflation]] = Counter()

    def wants(self, region: int, conflation: Conflation, clients: int) -> None:
        """So many clients more (below 0: less) want something of a region, and ask for this."""
        left = self._counts[region, conflation] + clients
        if left:
            self._counts[region, conflation] = left
        else:
            del self._counts[region, conflation]

    def is_asked_for(self, region: Region) -> bool:
        """Return whether updates of a region are conflated for any of them."""
        counts = self._counts
        if not counts:
            return False
        return bool(counts[region.id, Conflation.TRUE] or (region.conflates and counts[region.id, Conflation.SERVER]))
