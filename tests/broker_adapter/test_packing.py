"""msgpack from untrusted senders: what is checked, and where the limits are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter import packing
from broker_adapter.packing import (
    MAX_CONTAINERS,
    MAX_MEMBERS,
    MAX_NUMBER_KEYS,
    check,
    check_depth,
    map_members,
    unpacked,
)


def test_lists_and_maps_up_to_the_limit_are_decoded_and_one_more_is_refused() -> None:
    value: list[Any] = [[] for _ in range(MAX_CONTAINERS - 1)]
    assert unpacked(msgpack.packb([b"x" * MAX_CONTAINERS, *value[1:]]))[1:] == value[1:]
    assert unpacked(msgpack.packb(value)) == value
    for more in ([], {}):
        with pytest.raises(ValueError, match="more lists and maps than the limit"):
            unpacked(msgpack.packb([*value, more]))


@pytest.mark.parametrize("member", [0, "ab", None, 1.5, b"x"])
def test_members_up_to_the_limit_are_decoded_and_one_more_is_refused(member: Any) -> None:
    assert len(unpacked(msgpack.packb([member] * MAX_MEMBERS))) == MAX_MEMBERS
    with pytest.raises(ValueError, match="more members of lists and maps than the limit"):
        unpacked(msgpack.packb([member] * (MAX_MEMBERS + 1)))


def test_members_count_over_all_lists_and_a_map_has_two_for_each_key() -> None:
    half = MAX_MEMBERS // 2
    assert check(msgpack.packb([[0] * half, [0] * (half - 2)])) is None
    with pytest.raises(ValueError, match="members"):
        check(msgpack.packb([[0] * half, [0] * (half - 1)]))
    head = b"\xdf" + half.to_bytes(4)
    assert check(head + bytes(MAX_CONTAINERS)) is None
    with pytest.raises(ValueError, match="members"):
        check(b"\xdf" + (half + 1).to_bytes(4) + bytes(MAX_CONTAINERS))


def test_a_count_that_the_data_cannot_hold_is_refused_before_anything_is_made_of_it() -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(ValueError):
            unpacked(head + b"\x90" * 1_000)
        with pytest.raises(ValueError, match="members"):
            unpacked(head + b"\x90" * 300_000)


@pytest.mark.parametrize("more", [b"\xd9\x00", b"\xc4\x00", b"\xc7\x00\x01", b"\xd9\xff" + bytes(255), b"\xc0"])
def test_what_stands_behind_the_end_is_not_checked(more: bytes) -> None:
    class Looked(bytes):
        looks = 0

        def __getitem__(self, key: Any) -> Any:
            Looked.looks += 1
            return super().__getitem__(key)

    data = Looked(b"\x92\x01" + more * 300_000)
    assert check(data) is None
    assert Looked.looks < 20
    with pytest.raises(ValueError, match="extra data"):
        unpacked(bytes(data))


def test_short_values_are_told_by_the_regular_expression_however_their_size_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 5_000  # lists and maps are counted one by one
    monkeypatch.setattr(packing, "MAX_CONTAINERS", limit)
    monkeypatch.setattr(packing, "UNCHECKED_BYTES", limit)
    sizes = [(b"\xd9", 1), (b"\xda", 2), (b"\xdb", 4), (b"\xc4", 1), (b"\xc5", 2), (b"\xc6", 4)]
    values = [head + size.to_bytes(length) + bytes(size) for head, length in sizes for size in (0, 1, 31, 32)]
    values += [
        head + size.to_bytes(length) + b"\x05" + bytes(size)
        for head, length in zip((b"\xc7", b"\xc8", b"\xc9"), (1, 2, 4), strict=True)
        for size in (0, 31, 32)
    ]
    lists = limit - 1
    for value in values:
        data = b"\xdd" + (lists + 1).to_bytes(4) + value + b"\x90" * lists
        check(data)
        with pytest.raises(ValueError, match="lists and maps"):
            check(b"\xdd" + (lists + 2).to_bytes(4) + value + b"\x90" * (lists + 1))


def test_keys_that_are_no_strings_are_refused_where_they_must_be() -> None:
    packed = msgpack.packb({1: 2, "a": 3})
    assert unpacked(packed, strict_map_key=False) == {1: 2, "a": 3}
    with pytest.raises(ValueError):
        unpacked(packed)


def test_nesting_has_a_limit() -> None:
    deep: Any = []
    for _ in range(9):
        deep = [deep]
    check_depth(deep, 10)
    with pytest.raises(ValueError, match="nested deeper"):
        check_depth(deep, 9)
    with pytest.raises(ValueError, match="nested deeper"):
        check_depth({"a": [0, {"b": [1, []]}]}, 4)
    check_depth({"a": [0, {"b": [1, []]}]}, 5)
    check_depth("text", 0)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=60,
)


def counted(value: Any) -> tuple[int, int]:
    """The lists and maps in a value, and their members."""
    if isinstance(value, list):
        inner = [counted(each) for each in value]
        own = len(value)
    elif isinstance(value, dict):
        inner = [counted(each) for each in value.values()]
        own = 2 * len(value)
    else:
        return 0, 0
    return 1 + sum(each[0] for each in inner), own + sum(each[1] for each in inner)


@given(VALUES)
def test_lists_maps_and_members_are_counted_as_they_are(value: Any) -> None:
    containers, members = counted(value)
    packed = msgpack.packb(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "UNCHECKED_BYTES", 0)
        patch.setattr(packing, "MAX_CONTAINERS", containers)
        patch.setattr(packing, "MAX_MEMBERS", members)
        check(packed)
        check(memoryview(packed))
        if containers:
            patch.setattr(packing, "MAX_CONTAINERS", containers - 1)
            with pytest.raises(ValueError, match="lists and maps"):
                check(packed)
            patch.setattr(packing, "MAX_CONTAINERS", containers)
        if members:
            patch.setattr(packing, "MAX_MEMBERS", members - 1)
            with pytest.raises(ValueError, match="members"):
                check(packed)


@given(st.binary(max_size=200))
def test_any_octets_are_checked_to_their_end_or_refused(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "UNCHECKED_BYTES", 0)
        with suppress(ValueError):
            assert check(data) is None


@pytest.mark.parametrize("key", [1, 1.5, -(2**62)])
def test_number_keys_up_to_the_limit_are_decoded_and_one_more_is_refused(key: float) -> None:
    """Hashes of numbers are not salted: a sender can choose numbers that take a long time to tell apart."""
    keys = [key + number for number in range(MAX_NUMBER_KEYS)]
    value = [dict.fromkeys(keys, 0), {**dict.fromkeys(keys, 0), "text": 1, b"bytes": 2}]
    assert unpacked(msgpack.packb(value), strict_map_key=False) == value
    with pytest.raises(ValueError, match="more than the limit of 1000"):
        unpacked(msgpack.packb([{"inside": dict.fromkeys([*keys, key - 1], 0)}]), strict_map_key=False)


def test_text_keys_are_as_many_as_there_may_be_members() -> None:
    value = dict.fromkeys(map(str, range(MAX_NUMBER_KEYS * 10)), 0)
    assert unpacked(msgpack.packb({1: value}), strict_map_key=False) == {1: value}


@pytest.mark.parametrize("key", [msgpack.Timestamp(1, 1), msgpack.ExtType(5, b"x")])
@pytest.mark.parametrize("strict", [True, False])
def test_extensions_are_no_keys(key: Any, strict: bool) -> None:
    with pytest.raises(ValueError, match="is not allowed for map key"):
        unpacked(msgpack.packb({"a": {key: 1}}), strict_map_key=strict)


def test_the_members_of_a_map_are_known_without_decoding_it() -> None:
    for count in (0, 1, 15, 16, 70_000):
        assert map_members(msgpack.packb(dict.fromkeys(range(count)))) == count
    assert [map_members(data) for data in (b"", b"\xc0", b"\x93\x01", b"\xde")] == [0, 0, 0, 0]
