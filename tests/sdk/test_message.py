"""Messages: what they carry, what they refuse, and what cannot be changed any more."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ack_modes import DeliveryTag
from broker_adapter import (
    MAX_BODY_DEPTH,
    Destination,
    Identity,
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    MessageNotWriteableException,
    pack,
    unpack,
)
from sdk.message import (
    BytesMessage,
    DeliveryMode,
    MapMessage,
    Message,
    ObjectMessage,
    StreamMessage,
    TextMessage,
    envelope_of,
    message_of,
    wrapped,
)

_QUEUE = Destination("orders")
_IDENTITY = Identity("producer", 1, 7)
_TAG = DeliveryTag(0, 1, 1)


def _sent(message: Message) -> Message:
    """The message as a receiver gets it."""
    message.destination = _QUEUE
    return message_of(unpack(pack(envelope_of(message, _IDENTITY))), 0, lambda tag: None, _TAG)


class Colour(IntEnum):
    RED = 1


class Size(StrEnum):
    LARGE = "large"


# Bodies.


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("text", TextMessage),
        ("", TextMessage),
        (b"bytes", BytesMessage),
        (b"", BytesMessage),
        ({"k": 1, "b": b"x", "n": None, "f": 1.5, "t": True, "nested": {"l": [1, "2"]}}, MapMessage),
        ([1, "a", None, b"x", [2]], StreamMessage),
    ],
)
def test_plain_value_travels_in_the_fitting_message(body: Any, kind: type[Message]) -> None:
    message = _sent(wrapped(body))

    assert type(message) is kind
    assert message.body == body


def test_mutable_and_derived_values_are_made_plain() -> None:
    assert wrapped(bytearray(b"x")).body == b"x"
    assert wrapped(memoryview(b"x")).body == b"x"
    assert wrapped((1, (2, 3))).body == [1, [2, 3]]
    assert type(wrapped(Size.LARGE).body) is str
    assert type(wrapped([Colour.RED]).body[0]) is int
    assert ObjectMessage(Colour.RED).body == 1


@pytest.mark.parametrize("body", [None, 1, 1.5, object(), {1, 2}])
def test_value_that_no_message_carries_is_refused(body: object) -> None:
    with pytest.raises(MessageFormatException, match="cannot send a value of type"):
        wrapped(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Message, "x"),
        (TextMessage, b"x"),
        (BytesMessage, "x"),
        (MapMessage, [1]),
        (MapMessage, {1: "x"}),
        (MapMessage, {"x": object()}),
        (StreamMessage, {"x": 1}),
        (StreamMessage, [2**63]),
        (StreamMessage, [{1, 2}]),
        (ObjectMessage, object()),
        (ObjectMessage, -(2**63) - 1),
    ],
)
def test_body_of_another_type_is_refused(kind: type[Message], body: Any) -> None:
    with pytest.raises(MessageFormatException):
        kind(body)
    message = kind()
    with pytest.raises(MessageFormatException):
        message.body = body


def test_body_nests_to_the_limit_and_no_deeper() -> None:
    body: list[Any] = [1]
    for _ in range(MAX_BODY_DEPTH - 1):
        body = [body]

    assert _sent(StreamMessage(body)).body == body
    with pytest.raises(MessageFormatException, match=f"the limit of {MAX_BODY_DEPTH} levels"):
        StreamMessage([body])


def test_body_that_contains_itself_is_refused() -> None:
    body: list[Any] = []
    body.append(body)

    with pytest.raises(MessageFormatException, match="nests deeper"):
        StreamMessage(body)


def test_what_is_sent_is_not_changed_by_later_changes() -> None:
    body = {"list": [1], "map": {"k": 1}}
    message = MapMessage(body)
    message.properties["p"] = 1
    message.destination = _QUEUE
    envelope = envelope_of(message, _IDENTITY)

    body["list"].append(2)  # type: ignore[attr-defined]
    message.body["map"]["k"] = 2
    message.properties["p"] = 2

    assert envelope.body == {"list": [1], "map": {"k": 1}}
    assert envelope.properties == {"p": 1}


def test_body_changed_to_something_that_cannot_be_carried_is_refused_at_the_send() -> None:
    message = MapMessage({})
    message.body["x"] = object()
    message.destination = _QUEUE

    with pytest.raises(MessageFormatException, match="type object"):
        envelope_of(message, _IDENTITY)


def test_message_without_a_body_travels() -> None:
    for kind in (Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage):
        message = _sent(kind())
        assert type(message) is kind
        assert message.body is None


def test_text_and_bytes_convert_in_the_manner_of_python() -> None:
    assert str(TextMessage("hi")) == "hi"
    assert TextMessage("hi").text == "hi"
    assert str(TextMessage()) == ""
    assert bytes(BytesMessage(b"hi")) == b"hi"
    assert len(BytesMessage(b"hi")) == 2
    assert BytesMessage(b"")  # a message is true, also an empty one


# Properties.


@pytest.mark.parametrize("value", [True, False, 0, -(2**63), 2**63 - 1, 1.5, "text", "", None])
def test_property_travels(value: Any) -> None:
    message = TextMessage("x")
    message.properties["name"] = value

    received = _sent(message).properties["name"]

    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize("name", ["a", "_b", "$c", "é", "JMS_vendor", "camelCase9"])
def test_property_can_be_named_so(name: str) -> None:
    message = TextMessage("x")
    message.properties[name] = 1

    assert dict(_sent(message).properties) == {name: 1}


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "a.b", "null", "TRUE", "Between", "JMSXGroupID", 7, None])
def test_property_cannot_be_named_so(name: Any) -> None:
    with pytest.raises(MessageFormatException, match="property name"):
        TextMessage("x").properties[name] = 1


@pytest.mark.parametrize("value", [b"x", [1], {}, object(), 2**63, 1j])
def test_property_cannot_have_such_a_value(value: Any) -> None:
    with pytest.raises(MessageFormatException, match="property 'name' cannot have the value"):
        TextMessage("x").properties["name"] = value


def test_property_of_a_derived_type_becomes_plain() -> None:
    properties = TextMessage("x").properties
    properties["colour"], properties["size"] = Colour.RED, Size.LARGE

    assert [type(value) for value in properties.values()] == [int, str]


def test_properties_are_a_mapping() -> None:
    properties = TextMessage("x").properties
    properties.update(a=1, b=2)
    del properties["a"]

    assert (len(properties), list(properties), "b" in properties, properties.get("z")) == (1, ["b"], True, None)
    assert repr(properties) == "{'b': 2}"
    with pytest.raises(KeyError):
        properties["z"]
    with pytest.raises(KeyError):
        TextMessage("x").properties["z"]


# What was received.


def test_received_message_is_read_only_until_cleared() -> None:
    message = _sent(TextMessage("x"))

    with pytest.raises(MessageNotWriteableException, match=r"clear_body\(\)"):
        message.body = "y"
    with pytest.raises(MessageNotWriteableException, match=r"clear_properties\(\)"):
        message.properties["a"] = 1
    with pytest.raises(MessageNotWriteableException):
        del message.properties["a"]

    message.clear_body()
    message.clear_properties()
    message.body = "y"
    message.properties["a"] = 1
    assert (message.body, dict(message.properties)) == ("y", {"a": 1})


def test_headers_travel() -> None:
    message = TextMessage("x")
    message.message_id = "ID:1"
    message.correlation_id = "c"
    message.reply_to = Destination("answers")
    message.type = "order"
    message.group_id, message.group_sequence = "g", 3
    message.sent_at_ms, message.expires_at_ms, message.deliver_at_ms = 1, 2, 3
    message.priority = 9
    message.delivery_mode = DeliveryMode.NON_PERSISTENT

    received = _sent(message)

    for name in [
        "message_id",
        "correlation_id",
        "reply_to",
        "type",
        "group_id",
        "group_sequence",
        "sent_at_ms",
        "expires_at_ms",
        "deliver_at_ms",
        "priority",
        "delivery_mode",
        "destination",
        "body",
    ]:
        assert getattr(received, name) == getattr(message, name), name
    assert (received.delivery_count, received.redelivered) == (1, False)


def test_delivery_count_is_one_more_than_the_failures() -> None:
    message = TextMessage("x")
    message.destination = _QUEUE
    received = message_of(envelope_of(message, _IDENTITY), 2)

    assert (received.delivery_count, received.redelivered) == (3, True)


@pytest.mark.parametrize(
    ("header", "value", "error"),
    [
        ("correlation_id", 7, MessageFormatException),
        ("reply_to", "answers", InvalidDestinationException),
        ("type", 7, MessageFormatException),
        ("group_id", b"x", MessageFormatException),
        ("group_sequence", -1, MessageFormatException),
        ("group_sequence", True, MessageFormatException),
    ],
)
def test_header_of_a_wrong_type_is_refused_at_the_send(header: str, value: Any, error: type[Exception]) -> None:
    message = TextMessage("x")
    message.destination = _QUEUE
    setattr(message, header, value)

    with pytest.raises(error, match=header):
        envelope_of(message, _IDENTITY)


def test_message_acknowledges_by_the_function_it_was_given() -> None:
    called: list[DeliveryTag] = []
    message = TextMessage("x")
    with pytest.raises(IllegalStateException, match="not received by a consumer"):
        message.acknowledge()
    message.destination = _QUEUE

    message_of(envelope_of(message, _IDENTITY), 0, called.append, _TAG).acknowledge()

    assert called == [_TAG]


def test_repr_shows_what_matters_and_is_short() -> None:
    message = TextMessage("x" * 1000)
    message.destination = _QUEUE
    message.message_id = "ID:1"
    message.properties["k"] = 1

    assert repr(message) == (
        f"<TextMessage message_id='ID:1' destination='orders' body='{'x' * 60}...' properties={{'k': 1}}>"
    )
    assert repr(Message()) == "<Message>"
    assert "..." in repr(BytesMessage(b"x" * 100))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4))
def test_any_map_arrives_as_it_was_sent(body: dict[str, Any]) -> None:
    try:
        pack_able = "".join(_texts(body)).encode()
    except UnicodeEncodeError:
        return  # a lone surrogate, which is refused at the send
    assert pack_able is not None
    assert _sent(MapMessage(body)).body == body


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in _texts(item))]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []
