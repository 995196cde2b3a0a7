"""How many further nodes of a group have what its primary confirms, where a connection wants some.  Pure."""

from __future__ import annotations

from collections import deque

import attrs

from broker_adapter import ResourceAllocationException, TransportEvent


@attrs.frozen
class RedundancyLost:
    """Fewer further nodes of the group have what is confirmed than the option ``redundancy`` says."""

    wanted: int  #: as the option says
    has: int  #: how many there are


@attrs.frozen
class RedundancyRestored:
    """As many further nodes of the group have what is confirmed as the option ``redundancy`` says, or more."""

    wanted: int  #: as the option says
    has: int  #: how many there are


#: What the event listener of a connection is called with.
ConnectionEvent = TransportEvent | RedundancyLost | RedundancyRestored


class Redundancy:
    """How many further nodes have what is confirmed on one connection, and how many are to.

    Attributes:
        untold: the last change, until an event listener is told of it.
    """

    __slots__ = ("_has", "_is_required", "_wanted", "untold")

    def __init__(self, wanted: int, *, is_required: bool) -> None:
        """Nothing is announced yet.

        Args:
            wanted: how many there are to be.
            is_required: whether sends are refused while there are fewer.
        """
        self._wanted = wanted
        self._is_required = is_required
        self._has = wanted
        self.untold: deque[RedundancyLost | RedundancyRestored] = deque(maxlen=1)

    def __str__(self) -> str:
        return f"{self._has} of {self._wanted} further nodes have what is confirmed"

    def announced(self, has: int) -> RedundancyLost | RedundancyRestored | None:
        """Note how many there are now; returns what has changed by that, which is ``untold``."""
        was_met, is_met = self._has >= self._wanted, has >= self._wanted
        self._has = has
        if was_met == is_met:
            return None
        event = (RedundancyRestored if is_met else RedundancyLost)(self._wanted, has)
        self.untold.append(event)
        return event

    def require(self) -> None:
        """Raise where sends are refused now.

        Raises:
            ResourceAllocationException: there are too few.
        """
        if self._is_required and self._has < self._wanted:
            raise ResourceAllocationException(
                f"{self}, and require_redundancy is set: nothing was sent; try again once the event listener has got"
                " RedundancyRestored; 'holdfast group status' shows which nodes are missing"
            )
