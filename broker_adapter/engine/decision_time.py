"""The time of the decision under way."""

from __future__ import annotations


class DecisionTime:
    """What the clocks say while a decision is made.

    Attributes:
        now_ms: the time of the day, in milliseconds since 1970.
        elapsed_ms: milliseconds of a clock that is never set.
    """

    __slots__ = ("elapsed_ms", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self.elapsed_ms = 0
