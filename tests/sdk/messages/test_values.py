"""The values that properties and bodies carry, and those that they refuse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from broker_adapter import MAX_BODY_DEPTH, InvalidDestinationException, MessageFormatException, queue
from sdk.messages.envelopes import wrapped
from sdk.messages.types import ObjectMessage, StreamMessage, TextMessage
from sdk.messages.values import (
    check_correlation_id,
    check_reply_to,
    check_text_header,
    checked_delay_ms,
    checked_ms,
    checked_priority,
    copied_body,
    shortened,
)
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


def test_a_priority_is_an_int_from_0_to_9() -> None:
    assert [checked_priority(value) for value in (0, 9)] == [0, 9]
    for value in (-1, 10, True, 4.0, "4", None):
        with pytest.raises(ValueError, match=r"priority=.* is not an int from 0 to 9"):
            checked_priority(value)


def test_seconds_become_milliseconds_that_are_not_too_few_and_not_too_many() -> None:
    assert [checked_ms("ttl", value, 1) for value in (0.001, 1, 2.5)] == [1, 1000, 2500]
    assert checked_ms("delay", 0, 0) == 0
    for value in (0, 0.0001, -1, True, "1", None, float("inf"), float("nan"), 10**300, timedelta(0), timedelta.max):
        with pytest.raises(
            ValueError, match=r"ttl=.* is not a number of seconds, or a timedelta, from 0.001 to .*no lim"
        ):
            checked_ms("ttl", value, 1)
    with pytest.raises(ValueError, match=r"delay=-1 is not a number of seconds, or a timedelta, from 0 to .*no delay"):
        checked_ms("delay", -1, 0)
    assert checked_ms("delay", timedelta(minutes=1, milliseconds=5), 0) == 60_005


def test_a_delivery_delay_may_be_an_instant() -> None:
    now = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    now_ms = round(now.timestamp() * 1000)
    assert checked_delay_ms(now + timedelta(seconds=5), now_ms) == 5_000
    assert checked_delay_ms((now + timedelta(seconds=5)).astimezone(timezone(timedelta(hours=3))), now_ms) == 5_000
    assert checked_delay_ms(now.astimezone().replace(tzinfo=None) + timedelta(seconds=5), now_ms) == 5_000, "local"
    assert checked_delay_ms(now - timedelta(days=5), now_ms) == 0
    assert checked_delay_ms(2, now_ms) == 2_000
    with pytest.raises(ValueError, match="delivery_delay="):
        checked_delay_ms(now + timedelta(days=200 * 366), now_ms)


def test_a_header_that_a_message_cannot_have_is_named_with_its_value() -> None:
    for accepted in (None, "x", b"x"):
        check_correlation_id(accepted)
    for text in (None, "x"):
        check_text_header("type", text)
    for destination in (None, queue("q")):
        check_reply_to(destination)
    with pytest.raises(MessageFormatException, match="correlation_id=7 is neither str nor bytes"):
        check_correlation_id(7)
    with pytest.raises(MessageFormatException, match="type=7 is not a str"):
        check_text_header("type", 7)
    with pytest.raises(InvalidDestinationException, match=r"reply_to='q' is not a destination; session.create_queue"):
        check_reply_to("q")
