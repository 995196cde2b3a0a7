"""Long sequences in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_parts(items: Iterable[Item], size_of: Callable[[Item], int], most: int, most_bytes: int) -> Iterator[list[Item]]:
    """The items in lists, in order.

    Args:
        items: read as far as the next list needs.
        size_of: the bytes of one.
        most: items in one list at most.
        most_bytes: a list ends with the item that reaches this.
    """
    part: list[Item] = []
    size = 0
    for item in items:
        part.append(item)
        size += size_of(item)
        if len(part) >= most or size >= most_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part
