"""The time of the decision under way."""

from __future__ import annotations


class DecisionTime:
    """What the clocks say while a decision is made.

    Attributes:
        now_ms: the time of the day, in milliseconds since 1970.
        elapsed_ms: milliseconds of a clock that is never set.
    """

    __slots__ = ("_young_ms", "elapsed_ms", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self.elapsed_ms = 0
        self._young_ms = 0

    def begin(self, age_ms: int, elapsed_ms: int) -> None:
        """The engine starts, with a store of this age."""
        self.elapsed_ms = elapsed_ms
        self._young_ms = age_ms - elapsed_ms

    def age_at(self, elapsed_ms: int) -> int:
        """The age of the store at a moment of the clock that is never set.

        It counts only while an engine runs on the store.  So it never goes ahead of the time that has passed for a
        client, whatever was done to the clocks, and for how long the store was closed.
        """
        return self._young_ms + elapsed_ms

    @property
    def age_ms(self) -> int:
        """The age of the store, in milliseconds."""
        return self._young_ms + self.elapsed_ms
