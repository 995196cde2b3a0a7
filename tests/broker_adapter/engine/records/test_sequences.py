"""Parts are bounded by count and by bytes, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.records.sequences import in_parts


@given(st.lists(st.integers(0, 20)), st.integers(1, 5), st.integers(1, 30))
def test_parts_are_bounded_and_all_that_there_is(sizes: list[int], most: int, most_bytes: int) -> None:
    parts = list(in_parts(sizes, lambda size: size, most, most_bytes))
    assert [size for part in parts for size in part] == sizes
    for part in parts:
        assert 1 <= len(part) <= most
        assert sum(part[:-1]) < most_bytes


def test_no_more_is_read_than_a_part_needs() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    assert next(in_parts(items(), lambda _: 1000, 50, 3000)) == [0, 1, 2]
    assert read == [0, 1, 2]
