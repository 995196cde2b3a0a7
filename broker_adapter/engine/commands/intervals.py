"""Which numbers of a destination of another site have come, by whichever way.  Pure.

Theory of operation
    A message has a number at the site where it was sent, and says which one the message before it to the same
    destination had there.  So there is none between these two, and where the one before has come, everything up to the
    new one has.  What has come by one way is one interval of numbers, however long ago the last message of a slower way
    was sent.  There are more intervals while the beginning of something has not come: what a gateway leaves out, or
    what was sent before the other site was started again, of which nothing is said.

    Beyond a limit, the second interval is forgotten: messages of it would be taken once more.  The first one stays,
    which is what all ways have brought.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Final

#: Intervals of one destination of a site.
MOST_INTERVALS: Final = 256


class Intervals:
    """The numbers that have come.

    Args:
        encoded: as ``encoded`` returned them.
    """

    __slots__ = ("_bounds",)

    def __init__(self, encoded: bytes = b"") -> None:
        #: where each interval begins, and the first number behind it; they grow
        self._bounds = list(struct.unpack(f">{len(encoded) // 8}Q", encoded))

    def __len__(self) -> int:
        return len(self._bounds) // 2

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    @property
    def last(self) -> int:
        """The highest number; 0: none has come."""
        return self._bounds[-1] - 1 if self._bounds else 0

    def encoded(self) -> bytes:
        """Return them for the store: 16 bytes for each interval."""
        return struct.pack(f">{len(self._bounds)}Q", *self._bounds)

    def add(self, number: int, previous: int) -> bool:
        """Note that a message has come.

        Args:
            number: of the message, at the site where it was sent.
            previous: the number of the message before it to the same destination; 0: it is not known.

        Returns:
            Whether it is new.
        """
        bounds = self._bounds
        if bounds and bounds[-2] <= previous < bounds[-1] <= number:  # the usual case: it follows the last one
            bounds[-1] = number + 1
            return True
        is_new = number not in self
        first = previous if 0 < previous < number and previous in self else number
        low, high = bisect_left(bounds, first), bisect_right(bounds, number + 1)
        bounds[low:high] = [*([] if low % 2 else [first]), *([] if high % 2 else [number + 1])]
        if len(bounds) > 2 * MOST_INTERVALS:
            del bounds[2:4]
        return is_new
