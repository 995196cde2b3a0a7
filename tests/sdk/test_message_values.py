"""The values that properties and bodies carry, and those that they refuse."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import pytest

from broker_adapter import MAX_BODY_DEPTH, MessageFormatException
from sdk.envelopes import wrapped
from sdk.message_types import ObjectMessage, StreamMessage, TextMessage
from sdk.message_values import copied_body, shortened
from tests.sdk.sent_messages import sent


class Colour(IntEnum):
    RED = 1


class Size(StrEnum):
    LARGE = "large"


def test_mutable_and_derived_values_are_made_plain() -> None:
    assert wrapped(bytearray(b"x")).body == b"x"
    assert wrapped(memoryview(b"x")).body == b"x"
    assert wrapped((1, (2, 3))).body == [1, [2, 3]]
    assert type(wrapped(Size.LARGE).body) is str
    assert type(wrapped([Colour.RED]).body[0]) is int
    assert ObjectMessage(Colour.RED).body == 1


def test_body_nests_to_the_limit_and_no_deeper() -> None:
    body: list[Any] = [1]
    for _ in range(MAX_BODY_DEPTH - 1):
        body = [body]

    assert sent(StreamMessage(body)).body == body
    with pytest.raises(MessageFormatException, match=f"the limit of {MAX_BODY_DEPTH} levels"):
        StreamMessage([body])


def test_body_that_contains_itself_is_refused() -> None:
    body: list[Any] = []
    body.append(body)

    with pytest.raises(MessageFormatException, match="nests deeper"):
        StreamMessage(body)


@pytest.mark.parametrize("value", [b"x", [1], {}, object(), 2**63, 1j])
def test_property_cannot_have_such_a_value(value: Any) -> None:
    with pytest.raises(MessageFormatException, match="property 'name' cannot have the value"):
        TextMessage("x").properties["name"] = value


def test_property_of_a_derived_type_becomes_plain() -> None:
    properties = TextMessage("x").properties
    properties["colour"], properties["size"] = Colour.RED, Size.LARGE

    assert [type(value) for value in properties.values()] == [int, str]


class Weight(float):
    pass


def test_values_of_derived_types_are_copied_as_plain_ones() -> None:
    copied = copied_body({"a": [Weight(1.5), bytearray(b"x")], "b": memoryview(b"y"), "c": (1, None)}, 0)
    assert copied == {"a": [1.5, b"x"], "b": b"y", "c": [1, None]}
    assert type(copied["a"][0]) is float


@pytest.mark.parametrize("value", [2**63, {1: "x"}, [object()], {"k": {1, 2}}])
def test_a_value_that_a_body_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(MessageFormatException, match=r"a message cannot carry|a name in a message's map is a str"):
        copied_body(value, 0)


def test_a_long_value_is_cut_for_the_text_of_an_error() -> None:
    assert shortened("x" * 100) == "x" * 60 + "..."
    assert shortened(b"x" * 100) == b"x" * 60 + b"..."
    assert shortened("x") == "x"
