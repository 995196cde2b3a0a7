"""AMQP values: our codec by itself, and against proton's."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.values import (
    MAX_DEPTH,
    MAX_OTHER_KEYS,
    Byte,
    Described,
    Float,
    Int,
    Reader,
    Short,
    Symbol,
    Symbols,
    Timestamp,
    TypedReader,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from broker_adapter.packing import MAX_NUMBER_KEYS

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=400)
    | st.uuids()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back_as_they_went(value: Any) -> None:
    assert decode(encode(value)) == value


TYPED = st.one_of(
    *(st.integers(0, 2**bits - 1).map(kind) for kind, bits in ((UByte, 8), (UShort, 16), (UInt, 32), (ULong, 64))),
    *(st.integers(-(2**bits), 2**bits - 1).map(kind) for kind, bits in ((Byte, 7), (Short, 15), (Int, 31))),
    st.floats(width=32, allow_nan=False).map(Float),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text().map(str),
)


@given(st.dictionaries(TYPED, st.lists(TYPED, max_size=5), max_size=40))
def test_numbers_are_encoded_again_as_they_were(value: dict[Any, Any]) -> None:
    encoded = encode(value)
    again = decode(encoded, TypedReader)
    assert again == value
    assert encode(again) == encoded


@given(st.lists(SCALARS, max_size=5))
def test_proton_reads_what_we_write(values: list[Any]) -> None:
    data = proton.Data()

    data.decode(encode(values))
    data.rewind()
    data.next()

    assert data.get_object() == values


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(), lambda s: st.lists(s), max_leaves=9
    )
)
def test_we_read_what_proton_writes(value: Any) -> None:
    data = proton.Data()
    data.put_object(value)

    assert decode(bytes(data.encode())) == value


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (UByte(7), "5007"),
        (UShort(7), "600007"),
        (UInt(0), "43"),
        (UInt(255), "52ff"),
        (UInt(256), "7000000100"),
        (ULong(0), "44"),
        (ULong(0x24), "5324"),
        (Byte(-1), "51ff"),
        (Int(-1), "71ffffffff"),
        (5, "5505"),
        (True, "41"),
        (Timestamp(1), "830000000000000001"),
        (Symbol("ab"), "a3026162"),
        (b"\x01", "a00101"),
        ([], "45"),
        (Described(ULong(0x24), []), "00532445"),
    ],
)
def test_values_have_the_encoding_of_the_standard(value: Any, encoded: str) -> None:
    assert encode(value).hex() == encoded
    assert decode(bytes.fromhex(encoded)) == value


@given(st.binary(max_size=40))
def test_what_can_be_read_is_skipped_by_its_size(data: bytes) -> None:
    reader, skipping = Reader(data), Reader(data)
    try:
        reader.value()
    except ValueError:
        try:
            skipping.skip()
        except ValueError:
            return
        assert 0 < skipping.position <= len(data)
        return
    skipping.skip()
    assert skipping.position == reader.position


def test_symbols_are_an_array() -> None:
    data = proton.Data()
    data.decode(encode(Symbols(("queue", "topic"))))
    data.rewind()
    data.next()

    assert list(data.get_py_array().elements) == ["queue", "topic"]
    assert decode(encode(Symbols(("queue", "topic")))) == ["queue", "topic"]


def test_nesting_is_limited_in_both_directions() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    bottomless = b"\x45"
    for _ in range(60):
        bottomless = b"\xc0" + bytes((len(bottomless) + 1, 1)) + bottomless

    with pytest.raises(ValueError, match="nested deeper"):
        encode(deep)
    with pytest.raises(ValueError, match="nested deeper"):
        decode(bottomless)
    with pytest.raises(ValueError, match="nested deeper"):
        decode(b"\x00" * 5000)


def test_nesting_at_the_limit_is_carried() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert decode(encode(deep)) == deep


@pytest.mark.parametrize("element", ["40", "41", "43", "44", "45"])
def test_arrays_of_values_without_bytes_are_refused(element: str) -> None:
    with pytest.raises(ValueError, match="without bytes"):
        decode(bytes.fromhex("f000000005ffffffff" + element))


def test_counts_beyond_the_data_are_refused_before_anything_is_made() -> None:
    for code in ("d0", "d1"):
        with pytest.raises(ValueError, match="do not fit"):
            decode(bytes.fromhex(code + "00000004fffffffe"))
    with pytest.raises(ValueError, match="do not fit"):
        decode(bytes.fromhex("f000000005ffffffff50"))


def test_values_beyond_the_budget_are_refused() -> None:
    data = encode([0] * 100)

    with pytest.raises(ValueError, match=r"more values than the limit of 100$"):
        Reader(data, 0, len(data), 100).value()
    assert Reader(data, 0, len(data), 101).value() == [0] * 100


def test_values_without_an_amqp_form_are_refused() -> None:
    for value in (object(), 1 << 64, -(1 << 63) - 1, UByte(256), UInt(-1), "\ud800", Symbol("ä")):
        with pytest.raises(ValueError, match=r"."):
            encode(value)


def test_arrays_and_rare_types_are_read() -> None:
    assert decode(bytes.fromhex("e006026100010002")) == [1, 2]
    assert decode(b"\x98" + UUID(int=5).bytes) == UUID(int=5)
    assert decode(bytes.fromhex("7300000041")) == "A"
    with pytest.raises(ValueError, match="no Unicode character"):
        decode(bytes.fromhex("73ffffffff"))


def test_keys_whose_hashes_a_sender_can_choose_are_limited() -> None:
    numbers: dict[Any, Any] = dict.fromkeys(range(MAX_NUMBER_KEYS), 0)
    identifiers: dict[Any, Any] = {UUID(int=number): 0 for number in range(MAX_OTHER_KEYS)}
    texts: dict[Any, Any] = dict.fromkeys(map(str, range(5_000)), 0)
    assert decode(encode({**numbers, **identifiers, **texts})) == {**numbers, **identifiers, **texts}
    with pytest.raises(ValueError, match="more keys of type int than the limit of 1000"):
        decode(encode([{**numbers, -1: 0}]))
    with pytest.raises(ValueError, match="more keys of type UUID than the limit of 32"):
        decode(encode([{**identifiers, UUID(int=99): 0}]))
