"""Reading ahead: the next item is fetched while the last one is worked on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items; a thread fetches the next one while the consumer has the last one, and no further one.

    Whatever fetching an item raises comes in its place.  Where the consumer stops before the end, closing this waits
    for the item that is being fetched.

    Args:
        items: used in one thread at a time.
    """
    with ThreadPoolExecutor(1, "holdfast-ahead") as thread:
        end = object()
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
