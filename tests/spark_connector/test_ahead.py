"""Items are fetched one ahead, and no further."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_connector.ahead import one_ahead

WAIT = 60


class Source:
    """Items that say when they are fetched."""

    def __init__(self, count: int) -> None:
        self.fetched = threading.Semaphore(0)
        self.total = 0
        self.items = self._items(count)

    def _items(self, count: int) -> Iterator[int]:
        for number in range(count):
            self.total += 1
            self.fetched.release()
            yield number


def test_the_same_items_come_in_the_same_order() -> None:
    assert list(one_ahead(iter(range(100)))) == list(range(100))
    assert list(one_ahead(iter(()))) == []


def test_one_item_is_fetched_while_the_last_one_is_worked_on_and_no_second_one() -> None:
    source = Source(10)
    items = one_ahead(source.items)
    for number in range(5):
        assert next(items) == number
        for _ in range(2 if number == 0 else 1):  # this one, and the next
            assert source.fetched.acquire(timeout=WAIT)
        assert source.total == number + 2
    items.close()
    assert source.total == 6


def test_an_error_comes_where_its_item_would() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("gone")

    items = one_ahead(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(ValueError, match="gone"):
        next(items)


def test_no_thread_is_left_when_the_consumer_stops_early() -> None:
    items = one_ahead(Source(10).items)
    next(items)
    items.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-ahead")]
