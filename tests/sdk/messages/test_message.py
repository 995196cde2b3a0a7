"""The headers and properties of messages, and what cannot be changed any more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter import MessageFormatException, MessageNotWriteableException, pack
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from sdk.messages.envelopes import envelope_of
from sdk.messages.message import Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage
from tests.sdk.sent_messages import IDENTITY, QUEUE, received, sent


@pytest.mark.parametrize("value", [True, False, 0, -(2**63), 2**63 - 1, 1.5, "text", "", None])
def test_property_travels(value: Any) -> None:
    message = TextMessage("x")
    message.properties["name"] = value

    received = sent(message).properties["name"]

    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize("name", ["a", "_b", "$c", "é", "JMS_vendor", "camelCase9"])
def test_property_can_be_named_so(name: str) -> None:
    message = TextMessage("x")
    message.properties[name] = 1

    assert dict(sent(message).properties) == {name: 1}


@pytest.mark.parametrize(
    "name",
    [
        *("", "1a", "a-b", "a b", "a.b", "JMSXGroupID", "JMSFoo", "JMS", "JMSPriority", 7, None),
        *("null", "TRUE", "False", "NOT", "and", "Or", "Between", "LIKE", "in", "IS", "escape"),
    ],
)
def test_property_cannot_be_named_so(name: Any) -> None:
    with pytest.raises(MessageFormatException, match="property name"):
        TextMessage("x").properties[name] = 1


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


def test_properties_are_iterated_and_cleared() -> None:
    message = TextMessage("x")
    message.properties.update(a=1, b=None, c="3")

    assert list(message.properties) == ["a", "b", "c"]
    assert list(message.properties.items()) == [("a", 1), ("b", None), ("c", "3")]
    message.clear_properties()
    assert (dict(message.properties), message.body) == ({}, "x")
    found = sent(message)
    assert (dict(found.properties), found.body) == ({}, "x")


def test_received_message_is_read_only_until_cleared() -> None:
    message = TextMessage("x")
    message.properties["before"] = True
    message = sent(message)

    with pytest.raises(MessageNotWriteableException, match=r"clear_body\(\)"):
        message.body = "y"
    with pytest.raises(MessageNotWriteableException, match=r"clear_properties\(\)"):
        message.properties["a"] = 1
    with pytest.raises(MessageNotWriteableException):
        del message.properties["before"]

    message.clear_body()
    assert (message.body, dict(message.properties)) == (None, {"before": True})
    with pytest.raises(MessageNotWriteableException):
        message.properties["a"] = 1  # the one is not the other
    message.clear_properties()
    assert dict(message.properties) == {}
    message.body = "y"
    message.properties["a"] = 1
    assert (message.body, dict(message.properties)) == ("y", {"a": 1})


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (MapMessage({"a": [1]}), lambda message: message.body.update(b=2)),
        (MapMessage({"a": [1]}), lambda message: message.body["a"].append(2)),
        (MapMessage({"a": [1]}), lambda message: message["a"].append(2)),
        (StreamMessage([[1], {"a": 1}]), lambda message: message.body.append(2)),
        (StreamMessage([[1], {"a": 1}]), lambda message: [each.clear() for each in message]),
        (StreamMessage([[1], {"a": 1}]), lambda message: message.read_object().append(2)),
        (ObjectMessage({"a": {"b": [1]}}), lambda message: message.body["a"]["b"].append(2)),
        (ObjectMessage([1]), lambda message: message.get_body(list).append(2)),
    ],
)
def test_what_is_changed_in_a_received_body_is_a_copy(message: Message, change: Callable[[Any], object]) -> None:
    written = copy.deepcopy(message.body)
    found = sent(message)
    change(found)
    assert found.body == written


def test_repr_shows_what_matters_and_is_short() -> None:
    message = TextMessage("x" * 1000)
    message.destination = QUEUE
    message.message_id = "ID:1"
    message.properties["k"] = 1

    assert repr(message) == (
        f"<TextMessage message_id='ID:1' destination='orders' body='{'x' * 60}...' properties={{'k': 1}}>"
    )
    assert repr(Message()) == "<Message>"
    assert "..." in repr(BytesMessage(b"x" * 100))


def test_properties_are_read_as_another_type() -> None:
    message = Message()
    message.properties.set_byte("byte", -7)
    message.properties.set_string("number", "12")
    message.properties["flag"] = True
    found = received(message).properties
    assert found.get_long("byte") == -7
    assert found.get_string("byte") == "-7"
    assert (found.get_int("number"), found.get_double("number"), found.get_boolean("number")) == (12, 12.0, False)
    assert found.get_string("flag") == "true"
    assert (found.get_string("nothing"), found.get_boolean("nothing")) == (None, False)
    with pytest.raises(MessageFormatException, match="property 'flag' with the value True cannot be read as int"):
        found.get_int("flag")
    with pytest.raises(MessageFormatException):
        found.get_long("nothing")
    with pytest.raises(MessageNotWriteableException):
        found.set_int("new", 1)


def test_a_body_is_given_as_a_type_that_it_has() -> None:
    assert TextMessage("x").get_body(str) == "x"
    assert TextMessage().get_body(int) is None
    assert MapMessage({"a": 1}).is_body_assignable_to(dict)
    assert not MapMessage({"a": 1}).is_body_assignable_to(str)
    with pytest.raises(MessageFormatException, match="the body is a str, not a bytes"):
        TextMessage("x").get_body(bytes)


def test_a_received_message_has_whatever_properties_its_sender_gave_it() -> None:
    """Also those that only a provider may set: a broker of another make may."""
    message = TextMessage("x")
    message._property_values = {"JMSFoo": 1, "JMSXRcvTimestamp": 2, "JMS_AMQP_TTL": 3}
    found = sent(message)
    assert dict(sent(found).properties) == dict(found.properties) == message._property_values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("priority", value) for value in (-1, 10, True, None, object())),
        ("delivery_count", "oo"),
        ("delivery_count", -1),
    ],
)
def test_a_header_cannot_have_such_a_value(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        setattr(Message(), name, value)


@pytest.mark.parametrize("message", [TextMessage("x"), MapMessage({"a": 1})])
def test_the_type_of_a_body_is_a_type(message: Message) -> None:
    for call in (message.get_body, message.is_body_assignable_to):
        with pytest.raises(TypeError, match=r"^5 is not the type of a body, such as str"):
            call(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["body", "property", "correlation_id"])
def test_a_text_that_is_not_valid_unicode_is_named_where_it_is_sent(change: str) -> None:
    message = TextMessage("x")
    if change == "property":
        message.properties["a"] = "\ud800"
    else:
        setattr(message, change, "\ud800")
    message.destination = QUEUE
    envelope = envelope_of(message, IDENTITY)
    for encode in (pack, encode_amqp):
        with pytest.raises(MessageFormatException, match=r"cannot be encoded: '.ud800' is not valid Unicode$"):
            encode(envelope)
