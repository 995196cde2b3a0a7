"""Blocks of messages, as they are joined and carried."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.errors import MessageFormatException
from broker_adapter.range_block import RangeBlock, block_of, packed_block, unpacked_block

ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=20),
        st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
    ),
    max_size=6,
)


def block(rows: list[tuple[int, int, bytes, dict[str, Any] | None]]) -> RangeBlock:
    notes = {index: found for index, (_, _, _, found) in enumerate(rows) if found is not None}
    return block_of([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], notes)


@given(ROWS)
def test_a_block_that_was_carried_has_its_messages(rows: list[tuple[int, int, bytes, dict[str, Any] | None]]) -> None:
    carried = unpacked_block(msgpack.unpackb(msgpack.packb(packed_block(block(rows)))))
    assert carried.rows() == rows
    assert carried.length == len(rows)
    if rows:
        assert carried.last_position == rows[-1][0]


def test_a_count_beyond_32_bits_is_the_greatest_one() -> None:
    assert [row[1] for row in block([(1, 2**32, b"", None), (2, 7, b"", None)]).rows()] == [2**32 - 1, 7]


GOOD = packed_block(block([(1, 0, b"one", None), (2, 0, b"two", {"a": 1})]))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "not subscriptable|has no"),
        ([], "list indices"),
        ({}, "positions"),
        ({**GOOD, "positions": GOOD["positions"][:-1]}, "same length"),
        ({**GOOD, "counts": b""}, "same length"),
        ({**GOOD, "sizes": bytes(4)}, "same length"),
        ({**GOOD, "payloads": b"onetw"}, "its sizes make 6 bytes, and it has 5"),
        ({**GOOD, "annotations": [1]}, ""),
        ({**GOOD, "positions": 5}, ""),
    ],
)
def test_what_is_no_block_is_refused(fields: Any, reason: str) -> None:
    with pytest.raises(MessageFormatException, match=f"not a block of messages: .*({reason})"):
        unpacked_block(fields)
