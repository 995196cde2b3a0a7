"""The conversion table, cell by cell."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter import MessageFormatException
from sdk.messages.conversion import Type, checked, converted

ALL = set(Type)
INTEGERS = {Type.BYTE, Type.SHORT, Type.INT, Type.LONG}
TABLE: list[tuple[Any, dict[Type, Any]]] = [
    (True, {Type.BOOLEAN: True, Type.STRING: "true"}),
    (False, {Type.BOOLEAN: False, Type.STRING: "false"}),
    (7, {**dict.fromkeys(INTEGERS, 7), Type.STRING: "7"}),
    (127, {**dict.fromkeys(INTEGERS, 127), Type.STRING: "127"}),
    (128, {Type.SHORT: 128, Type.INT: 128, Type.LONG: 128, Type.STRING: "128"}),
    (-(2**15), {Type.SHORT: -(2**15), Type.INT: -(2**15), Type.LONG: -(2**15), Type.STRING: "-32768"}),
    (2**31 - 1, {Type.INT: 2**31 - 1, Type.LONG: 2**31 - 1, Type.STRING: "2147483647"}),
    (2**31, {Type.LONG: 2**31, Type.STRING: "2147483648"}),
    (1.5, {Type.FLOAT: 1.5, Type.DOUBLE: 1.5, Type.STRING: "1.5"}),
    (0.1, {Type.FLOAT: 0.10000000149011612, Type.DOUBLE: 0.1, Type.STRING: "0.1"}),
    (1e300, {Type.FLOAT: math.inf, Type.DOUBLE: 1e300, Type.STRING: "1e+300"}),
    ("x", {Type.BOOLEAN: False, Type.STRING: "x"}),
    ("TRUE", {Type.BOOLEAN: True, Type.STRING: "TRUE"}),
    (
        "-12",
        {Type.BOOLEAN: False, **dict.fromkeys(INTEGERS, -12), Type.FLOAT: -12, Type.DOUBLE: -12, Type.STRING: "-12"},
    ),
    (
        "+300",
        {
            Type.BOOLEAN: False,
            Type.SHORT: 300,
            Type.INT: 300,
            Type.LONG: 300,
            Type.FLOAT: 300,
            Type.DOUBLE: 300,
            Type.STRING: "+300",
        },
    ),
    (" 1.5e3d ", {Type.BOOLEAN: False, Type.FLOAT: 1500, Type.DOUBLE: 1500, Type.STRING: " 1.5e3d "}),
    ("Infinity", {Type.BOOLEAN: False, Type.FLOAT: math.inf, Type.DOUBLE: math.inf, Type.STRING: "Infinity"}),
    ("1_000", {Type.BOOLEAN: False, Type.STRING: "1_000"}),
    ("9" * 30, {Type.BOOLEAN: False, Type.FLOAT: pytest.approx(1e30), Type.DOUBLE: 1e30, Type.STRING: "9" * 30}),
    ("", {Type.BOOLEAN: False, Type.STRING: ""}),
    (None, {Type.BOOLEAN: False, Type.STRING: None, Type.BYTES: None}),
    (b"x", {Type.BYTES: b"x"}),
    ([1], {}),
]


@pytest.mark.parametrize(("value", "wanted"), [(value, wanted) for value, _ in TABLE for wanted in Type])
def test_a_value_is_read_as_the_table_says(value: Any, wanted: Type) -> None:
    (row,) = [row for each, row in TABLE if type(each) is type(value) and each == value]
    if wanted in row:
        assert converted(value, wanted, "it") == row[wanted]
    else:
        with pytest.raises(MessageFormatException, match=f"cannot be read as {wanted.value}"):
            converted(value, wanted, "it")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, Type.BOOLEAN),
        (True, Type.INT),
        (1.0, Type.INT),
        (True, Type.DOUBLE),
        ("1", Type.LONG),
        (1, Type.STRING),
        ("x", Type.BYTES),
        (None, Type.INT),
        (None, Type.BOOLEAN),
    ],
)
def test_what_is_written_has_the_type_it_is_written_as(value: Any, written: Type) -> None:
    with pytest.raises(MessageFormatException, match=f"cannot be written as {written.value}"):
        checked(value, written, "it")


@pytest.mark.parametrize(("written", "bits"), [(Type.BYTE, 8), (Type.SHORT, 16), (Type.INT, 32), (Type.LONG, 64)])
def test_an_integer_fits_its_type(written: Type, bits: int) -> None:
    for value in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1):
        assert checked(value, written, "it") == value
    for value in (-(2 ** (bits - 1)) - 1, 2 ** (bits - 1)):
        with pytest.raises(MessageFormatException, match=f"does not fit in {bits} bits"):
            checked(value, written, "it")


def test_a_float_is_written_with_32_bits_and_a_double_with_64() -> None:
    assert checked(0.1, Type.FLOAT, "it") == 0.10000000149011612
    assert checked(0.1, Type.DOUBLE, "it") == 0.1
    assert checked(1, Type.DOUBLE, "it") == 1.0
    assert checked(bytearray(b"x"), Type.BYTES, "it") == b"x"
    assert checked(None, Type.STRING, "it") is None


@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.none())),
    st.sampled_from(Type),
)
def test_whatever_is_read_is_converted_or_refused(value: Any, wanted: Type) -> None:
    try:
        result = converted(value, wanted, "it")
    except MessageFormatException:
        return
    again = converted(result, wanted, "it")
    assert again == result or (again != again and result != result)
