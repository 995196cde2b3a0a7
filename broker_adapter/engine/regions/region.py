"""One region: a keyed destination, of which the engine keeps the last value of each key."""

from __future__ import annotations

from collections.abc import Callable

from broker_adapter.engine.regions.event_log import BroadStream
from broker_adapter.engine.regions.routing import Routing


class Region:
    """Who wants the events of a region.

    Attributes:
        id: its number, which is that of the queue in which the values of its keys have their places.
        name: of the region.
        routing: who wants its events.
        broad: its events that many audiences want.
    """

    __slots__ = ("broad", "id", "name", "routing")

    def __init__(self, number: int, name: str, broad: BroadStream, new_number: Callable[[], int]) -> None:
        self.id = number
        self.name = name
        self.broad = broad
        self.routing = Routing(number, new_number)

    def __repr__(self) -> str:
        return f"<Region {self.name!r}, number {self.id}>"
