"""When and where a change of a key was made: of two changes of a key, its stamp says which one is newer.  Pure.

Theory of operation
    Sites change the same keys, and their clocks differ, or are set.  So the time of a stamp is that of a hybrid logical
    clock: milliseconds of the time of day, and below them a count.  It is greater than any that the store has seen.  So
    a change that was made after another one was seen is newer, whatever the clocks say, and of one store no two changes
    have the same stamp, but for an invalidation, which keeps that of the value.  After the clock was set back, the
    milliseconds stay, and the count grows, until the clock has come there again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: The site of a store that has no number.
NO_SITE: Final = 0
#: Bits of the count; with more than 65,536 changes in a millisecond, stamps would run ahead of the clock.
_COUNT_BITS: Final = 16


class Stamp(NamedTuple):
    """When and where a change was made; the greater one is newer, and equal ones are those of the same change."""

    time: int  #: milliseconds since 1970 in the upper 48 bits, a count in the lower 16
    site: int  #: 1 to 255; 0: the store has no number


#: Older than every change.
NO_STAMP: Final = Stamp(0, NO_SITE)


def milliseconds_of(stamp: Stamp) -> int:
    """Return when a change was made, by the clock of its site: in milliseconds since 1970."""
    return stamp.time >> _COUNT_BITS


def next_time(last: int, now_ms: int) -> int:
    """Return the time of the next change's stamp.

    Args:
        last: the greatest that the store has seen.
        now_ms: the time of the day, in milliseconds since 1970.
    """
    return max(now_ms << _COUNT_BITS, last + 1)
