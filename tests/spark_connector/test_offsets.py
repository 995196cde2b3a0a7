"""Arithmetic on positions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.offsets import Offset, latest, offset_from, split


def test_an_offset_has_one_form_only() -> None:
    offset = Offset("a-1", 7)
    assert json.dumps(offset.to_json()) == '{"incarnation": "a-1", "next": 7}'
    assert offset_from({"next": 7, "incarnation": "a-1"}) == offset


@pytest.mark.parametrize("fields", [{}, {"next": 1}, {"incarnation": "a", "next": "1"}, {"incarnation": 1, "next": 1}])
def test_another_sources_offset_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not an offset of this source"):
        offset_from(fields)


def test_a_batch_goes_to_the_head_or_to_its_limit() -> None:
    start = Offset("a", 10)
    assert latest(start, 10, 25, None).next == 25
    assert latest(start, 10, 25, 5).next == 15
    assert latest(start, 20, 25, 5).next == 25  # what is gone below does not count
    assert latest(start, 10, 10, 5) == start
    assert latest(start, 3, 5, None) == start  # never backwards


@given(first=st.integers(0, 10**6), size=st.integers(-5, 5_000), most=st.integers(1, 6_000))
def test_ranges_cover_everything_once_and_keep_their_limit(first: int, size: int, most: int) -> None:
    ranges = split(first, first + size, most)
    assert sum(high - low + 1 for low, high in ranges) == max(size, 0)
    assert all(1 <= high - low + 1 <= most for low, high in ranges)
    assert [low for low, _ in ranges] == [first, *[high + 1 for _, high in ranges]][: len(ranges)]
