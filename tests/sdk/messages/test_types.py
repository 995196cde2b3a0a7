"""The kinds of messages: how their bodies are set, written and read."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter import (
    MessageEOFException,
    MessageFormatException,
    MessageNotReadableException,
    MessageNotWriteableException,
)
from sdk.messages.message import Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage
from tests.sdk.sent_messages import received


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


def test_text_and_bytes_convert_in_the_manner_of_python() -> None:
    assert str(TextMessage("hi")) == "hi"
    assert TextMessage("hi").text == "hi"
    assert str(TextMessage()) == ""
    assert bytes(BytesMessage(b"hi")) == b"hi"
    assert len(BytesMessage(b"hi")) == 2
    assert BytesMessage(b"")  # a message is true, also an empty one


def test_a_map_is_written_and_read_by_name() -> None:
    message = MapMessage()
    message.set_short("short", 300)
    message.set_bytes("bytes", bytearray(b"x"))
    message["list"] = [1, 2]
    found = received(message)
    assert isinstance(found, MapMessage)
    assert found.map_names == ["short", "bytes", "list"]
    assert (found.get_int("short"), found.get_string("short"), found.get_bytes("bytes")) == (300, "300", b"x")
    assert found["list"] == [1, 2]
    assert "short" in found
    assert "other" not in found
    assert found.get_string("other") is None
    for name, read in (("short", found.get_byte), ("bytes", found.get_string), ("other", found.get_int)):
        with pytest.raises(MessageFormatException, match=f"item '{name}'"):
            read(name)
    with pytest.raises(MessageNotWriteableException):
        found.set_int("new", 1)
    found.clear_body()
    found.set_int("new", 1)
    assert found.body == {"new": 1}


@pytest.mark.parametrize("name", ["", 5])
def test_an_item_of_a_map_has_a_name(name: Any) -> None:
    with pytest.raises(MessageFormatException, match="the name"):
        MapMessage()[name] = 1


def test_a_stream_is_written_and_read_one_after_the_other() -> None:
    message = StreamMessage()
    message.write_int(1)
    message.write_string("2")
    message.write_float(0.5)
    message.write_bytes(b"x")
    message.write_object(None)
    with pytest.raises(MessageNotReadableException, match=r"reset\(\)"):
        message.read_int()
    found = received(message)
    assert isinstance(found, StreamMessage)
    assert list(found) == [1, "2", 0.5, b"x", None]
    assert found.read_string() == "1"
    with pytest.raises(MessageFormatException):
        found.read_bytes()
    assert found.read_int() == 2  # what cannot be read as one type can still be read as another
    assert found.read_double() == 0.5
    assert found.read_bytes() == b"x"
    assert found.read_object() is None
    with pytest.raises(MessageEOFException):
        found.read_boolean()
    found.reset()
    assert found.read_long() == 1
    with pytest.raises(MessageNotWriteableException):
        found.write_int(1)
    found.clear_body()
    found.write_boolean(True)
    found.reset()
    assert found.read_boolean() is True


def test_bytes_are_written_and_read_as_java_does() -> None:
    message = BytesMessage()
    message.write_boolean(True)
    message.write_byte(-1)
    message.write_short(1)
    message.write_int(-2)
    message.write_long(2**40)
    message.write_float(1.5)
    message.write_double(0.1)
    message.write_utf("grüße")
    message.write_bytes(b"rest")
    with pytest.raises(MessageNotReadableException):
        message.read_byte()
    found = received(message)
    assert isinstance(found, BytesMessage)
    assert found.body_length == len(found) == 1 + 1 + 2 + 4 + 8 + 4 + 8 + 2 + 7 + 4
    assert bytes(found)[:4] == b"\x01\xff\x00\x01"
    assert (found.read_boolean(), found.read_byte(), found.read_short()) == (True, -1, 1)
    assert (found.read_int(), found.read_long(), found.read_float(), found.read_double()) == (-2, 2**40, 1.5, 0.1)
    assert found.read_utf() == "grüße"
    assert found.read_bytes(2) == b"re"
    with pytest.raises(MessageEOFException, match="cannot read 4 bytes"):
        found.read_int()
    assert found.read_bytes() == b"st"
    assert found.read_bytes() == b""
    found.reset()
    assert found.read_boolean() is True
    with pytest.raises(MessageNotWriteableException):
        found.write_byte(1)
    found.clear_body()
    found.write_byte(1)
    assert found.body == b"\x01"


def test_a_string_in_bytes_is_whole_or_not_read() -> None:
    message = BytesMessage(b"\x00\x05ab" + b"\xff")
    message.reset()
    with pytest.raises(MessageEOFException):
        message.read_utf()
    message = BytesMessage(b"\x00\x01\xff")
    message.reset()
    with pytest.raises(MessageFormatException, match="not UTF-8"):
        message.read_utf()
    assert message.read_short() == 1
    with pytest.raises(MessageFormatException, match="limit of 65535"):
        BytesMessage().write_utf("x" * 65536)


def test_bytes_are_written_after_what_was_set() -> None:
    message = BytesMessage(b"a")
    message.write_byte(98)
    message.body = message.body + b"c"
    message.write_bytes(b"d")
    assert message.body == b"abcd"
