"""The memory of the messages that proton has sent, and that their receiver has not settled."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from broker_adapter.settings import KIB, MIB

#: Parts of a message when there is no room for larger ones.  Parts of so few bytes are not counted.
SMALL_BYTES: Final = 4 * KIB
#: What all buffers of a connection may keep together, those of small parts apart.
MAX_KEPT_BYTES: Final = 64 * MIB


class DeliveryBuffers:
    """How much of a message proton may be given at once.

    Each object that proton has for a delivery keeps the largest buffer that it ever needed, until the connection ends:
    after the delivery is settled, another one gets the object and its buffer.  Nothing frees a buffer.  So what is
    given at once is bounded by what all of them keep together.
    """

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._capacities: dict[Hashable, int] = {}

    def is_room(self, size: int) -> bool:
        """Return whether a message of so many bytes may be given at once, whichever object it gets."""
        return size <= SMALL_BYTES or self.kept_bytes + _capacity(size) <= MAX_KEPT_BYTES

    def part_bytes(self, delivery: Hashable, most: int) -> int:
        """The bytes of its next part, at most.

        Args:
            delivery: the object.
            most: bytes of a part where there is room.
        """
        if self.is_room(most):
            return most
        return min(most, max(SMALL_BYTES, self._capacities.get(delivery, 0)))

    def note(self, delivery: Hashable, size: int) -> None:
        """So many bytes are in an object's buffer."""
        if size > SMALL_BYTES:
            before, now = self._capacities.get(delivery, 0), _capacity(size)
            if now > before:
                self._capacities[delivery] = now
                self.kept_bytes += now - before


def _capacity(size: int) -> int:
    """The bytes of a buffer for so many: proton doubles them."""
    return 1 << (size - 1).bit_length()
