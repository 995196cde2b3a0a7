"""One region: a keyed destination, of which the engine keeps the last value of each key."""

from __future__ import annotations

from collections.abc import Callable

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.regions.event_log import BroadStream
from broker_adapter.engine.regions.region_records import RegionRecord
from broker_adapter.engine.regions.routing import Routing


class Region:
    """Who wants the events of a region.

    Attributes:
        id: its number, which is that of the queue in which the values of its keys have their places.
        name: of the region.
        topic: whose subscriptions get its events as messages.
        routing: who wants its events.
        broad: its events that many audiences want.
        conflates: whether clients that leave it to the region have updates conflated.
        keys: how many keys are there, those without a valid value included.
        events: how many events are stored.
    """

    __slots__ = ("broad", "conflates", "events", "id", "keys", "name", "routing", "topic")

    def __init__(self, number: int, name: str, broad: BroadStream, new_number: Callable[[], int]) -> None:
        self.id = number
        self.name = name
        self.topic = Destination(name, DestinationKind.TOPIC)
        self.broad = broad
        self.routing = Routing(number, new_number)
        self.conflates = False
        self.keys = 0
        self.events = 0

    @property
    def questions(self) -> int:
        """How many selectors and queries are asked of each change."""
        return len(self.routing.selectors) + len(self.routing.queries)

    def record(self) -> RegionRecord:
        """For the store."""
        return RegionRecord(self.conflates, self.keys, self.events)

    def __repr__(self) -> str:
        return f"<Region {self.name!r}, number {self.id}>"
