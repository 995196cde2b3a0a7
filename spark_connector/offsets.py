"""Offsets of a stream: pure arithmetic on positions.

Spark compares offsets as JSON text, so an offset has one form only: its keys in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple


class Offset(NamedTuple):
    """All positions below ``next`` of this incarnation of a queue are read."""

    incarnation: str
    next: int

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return {"incarnation": self.incarnation, "next": self.next}


def offset_from(fields: Mapping[str, Any]) -> Offset:
    """The offset that Spark kept.

    Raises:
        ValueError: it is none of ours.
    """
    incarnation, position = fields.get("incarnation"), fields.get("next")
    if not isinstance(incarnation, str) or type(position) is not int:
        raise ValueError(f"{dict(fields)!r} is not an offset of this source; was the checkpoint made by another one?")
    return Offset(incarnation, position)


def latest(start: Offset, first: int, head: int, most: int | None) -> Offset:
    """How far a batch goes.

    Args:
        start: where it begins.
        first: the lowest position that the queue has.
        head: the next position that the queue will give.
        most: most positions of the batch; None: no limit.
    """
    begin = max(start.next, first)
    end = head if most is None else min(head, begin + most)
    return start._replace(next=max(end, start.next))


def split(first: int, end: int, most: int) -> list[tuple[int, int]]:
    """[first, end) in ranges [first, last] of at most ``most`` positions, alike in size."""
    total = end - first
    if total <= 0:
        return []
    parts = -(-total // most)
    edges = [first + total * part // parts for part in range(parts + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]
