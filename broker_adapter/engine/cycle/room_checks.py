"""The room in the stores, as it is measured before a decision."""

from __future__ import annotations

from typing import Final

from broker_adapter.engine.cycle.inbox import CYCLE_BYTES
from broker_adapter.engine.rules.admission import Admission
from broker_adapter.engine.store.stores import Stores
from broker_adapter.settings import EngineSettings

#: How often the room on the disk is measured.
ROOM_CHECK_MS: Final = 250


class RoomChecks:
    """Measures the room in the stores, and tells the admission.

    Args:
        settings: the limits of the engine.
        stores: of the engine.
        admission: is told.

    Attributes:
        checked_ms: when the room on the disk was last measured, by the monotonic clock.
    """

    def __init__(self, settings: EngineSettings, stores: Stores, admission: Admission) -> None:
        self.checked_ms = 0
        self._max_volatile_bytes = settings.max_volatile_bytes
        self._memory = stores.memory
        self._disk = stores.disk
        self._snapshots = stores.region_snapshots
        self._admission = admission
        self._bytes_since_check = 0

    @property
    def has_freed_memory(self) -> bool:
        """Whether there is more room for volatile messages than the last decision knew of."""
        known = self._admission.volatile_room
        return known is not None and known < self._max_volatile_bytes - self._memory.bytes

    def measure(self, elapsed_ms: int, incoming: int) -> None:
        """Tell the admission whether producers have to be held back; ``incoming``: bytes of this cycle's messages."""
        if self._snapshots.by_token:
            self._snapshots.expire(elapsed_ms)
        admission = self._admission
        admission.volatile_room = self._max_volatile_bytes - self._memory.bytes
        if self._disk is None:
            return
        self._bytes_since_check += incoming
        if not incoming and admission.room is None:
            return
        # Where it is scarce, what the last cycle has freed counts: a commit would be refused that takes what it sends.
        is_scarce = admission.room is not None and incoming > 0
        if is_scarce or elapsed_ms - self.checked_ms >= ROOM_CHECK_MS or self._bytes_since_check > CYCLE_BYTES // 16:
            self.checked_ms = elapsed_ms
            self._bytes_since_check = 0
            room = admission.room = self._disk.room()
            if room is not None and room.is_used_up:
                self._snapshots.drop_all()  # the pages that were freed meanwhile can be used again
            admission.blocked_because = room.reason if room is not None and room.is_used_up else None
