"""Changes of regions between our own client and the coordinator of our own server."""

from __future__ import annotations

import contextlib
from itertools import groupby
from operator import itemgetter

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.region_changes import MOST_CHANGES, pack_changes, unpack_changes
from broker_adapter.errors import MessageFormatException
from broker_adapter.transport import RegionChange

CHANGES = st.builds(RegionChange, st.sampled_from("rs"), st.text(max_size=3), st.integers(0, 2), st.binary(max_size=5))


def unpacked(payloads: list[bytes]) -> list[RegionChange]:
    return [RegionChange(region, *row) for region, rows in map(unpack_changes, payloads) for row in rows]


@given(st.lists(CHANGES, max_size=20))
def test_changes_come_as_they_were_packed_with_a_payload_for_each_run_of_one_region(
    changes: list[RegionChange],
) -> None:
    payloads = list(pack_changes(changes))
    assert unpacked(payloads) == changes
    assert len(payloads) == len(list(groupby(changes, itemgetter(0))))


def test_a_payload_has_as_many_changes_as_it_may_and_ends_where_it_is_large() -> None:
    small = [RegionChange("r", str(number), 0, b"x") for number in range(2 * MOST_CHANGES + 1)]
    assert [len(unpack_changes(each)[1]) for each in pack_changes(small)] == [MOST_CHANGES, MOST_CHANGES, 1]
    large = [RegionChange("r", str(number), 0, b"x" * size) for number, size in enumerate([500_000] * 4 + [2_000_000])]
    payloads = list(pack_changes(large, 3_000_000))
    assert [len(unpack_changes(each)[1]) for each in payloads] == [2, 2, 1]
    assert unpacked(payloads) == large


@given(st.lists(st.integers(0, 150)), st.integers(50, 300), st.sampled_from("rä"))
def test_no_payload_is_larger_than_it_may_be(sizes: list[int], most_bytes: int, region: str) -> None:
    changes = [RegionChange(region, "é" * (size % 3), size % 3, b"x" * size) for size in sizes]
    if max(sizes, default=0) + 50 > most_bytes:
        with contextlib.suppress(MessageFormatException):  # perhaps it fits
            list(pack_changes(changes, most_bytes))
        return
    payloads = list(pack_changes(changes, most_bytes))
    assert unpacked(payloads) == changes
    assert all(len(each) <= most_bytes for each in payloads)


def test_a_change_that_is_larger_than_a_payload_may_be_is_named() -> None:
    changes = [RegionChange("quotes", "IBM", 0, b""), RegionChange("quotes", "SAP", 0, b"x" * 200)]
    with pytest.raises(MessageFormatException, match=r"key 'SAP' of region 'quotes': change of 2\d\d bytes.*100 bytes"):
        list(pack_changes(changes, 100))


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], ["r"], ["r", []], ["r", ["k", 0]], ["r", [["k", 0, b""]]], [b"r", ["k", 0, b""]]),
        *(["r", ["k", True, b""]], ["r", ["k", 0, "text"]], ["r", [b"k", 0, b""]], ["r", ["k", 0, b""], 1]),
        *(["r", ["k", 0, b""] * (MOST_CHANGES + 1)], {"r": 1}, ["r", {"k": 0}]),
    ],
)
def test_what_is_no_change_of_a_region_is_refused(value: object) -> None:
    with pytest.raises(MessageFormatException, match="changes of a region"):
        unpack_changes(msgpack.packb(value))


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x92\xa1r", b"\x92\xa1r\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"]
)
def test_what_is_cut_short_or_claims_too_much_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageFormatException, match="cannot be decoded"):
        unpack_changes(payload)
