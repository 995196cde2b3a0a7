"""Messages in envelopes: what is sent is what is received."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ack_modes import DeliveryTag, Failure, Outcome
from broker_adapter import Destination, IllegalStateException, InvalidDestinationException, MessageFormatException
from sdk.messages.envelopes import envelope_of, message_of, wrapped
from sdk.messages.message import DeliveryMode, Message
from sdk.messages.types import BytesMessage, MapMessage, ObjectMessage, StreamMessage, TextMessage
from tests.sdk.sent_messages import IDENTITY, QUEUE, TAG, sent


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
    message = sent(wrapped(body))

    assert type(message) is kind
    assert message.body == body


@pytest.mark.parametrize("body", [None, 1, 1.5, object(), {1, 2}])
def test_value_that_no_message_carries_is_refused(body: object) -> None:
    with pytest.raises(MessageFormatException, match="cannot send a value of type"):
        wrapped(body)


def test_what_is_sent_is_not_changed_by_later_changes() -> None:
    body = {"list": [1], "map": {"k": 1}}
    message = MapMessage(body)
    message.properties["p"] = 1
    message.destination = QUEUE
    envelope = envelope_of(message, IDENTITY)

    body["list"].append(2)  # type: ignore[attr-defined]
    message.body["map"]["k"] = 2
    message.properties["p"] = 2

    assert envelope.body == {"list": [1], "map": {"k": 1}}
    assert envelope.properties == {"p": 1}


def test_a_body_that_was_wrapped_for_the_send_is_not_copied_again() -> None:
    body = {"list": [1]}
    message = wrapped(body)
    message.destination = QUEUE
    envelope = envelope_of(message, IDENTITY, is_own=True)

    body["list"].append(2)

    assert envelope.body is message.body
    assert envelope.body == {"list": [1]}


def test_body_changed_to_something_that_cannot_be_carried_is_refused_at_the_send() -> None:
    message = MapMessage({})
    message.body["x"] = object()
    message.destination = QUEUE

    with pytest.raises(MessageFormatException, match="type object"):
        envelope_of(message, IDENTITY)


def test_message_without_a_body_travels() -> None:
    for kind in (Message, TextMessage, BytesMessage, MapMessage, StreamMessage, ObjectMessage):
        message = sent(kind())
        assert type(message) is kind
        assert message.body is None


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

    received = sent(message)

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
    message.destination = QUEUE
    received = message_of(envelope_of(message, IDENTITY), 2)

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
    message.destination = QUEUE
    setattr(message, header, value)

    with pytest.raises(error, match=header):
        envelope_of(message, IDENTITY)


def test_message_acknowledges_by_the_function_it_was_given() -> None:
    called: list[tuple[DeliveryTag, Failure | None]] = []
    message = TextMessage("x")
    with pytest.raises(IllegalStateException, match="not received by a consumer"):
        message.acknowledge()
    message.destination = QUEUE

    received = message_of(envelope_of(message, IDENTITY), 0, lambda *ending: called.append(ending), TAG)
    received.acknowledge()
    received.reject("x" * 2_000)
    received.retry(timedelta(seconds=2))

    rejected, failed = Failure("x" * 1_000, Outcome.REJECTED), Failure("", Outcome.FAILED, 2_000)
    assert called == [(TAG, None), (TAG, rejected), (TAG, failed)]


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
    assert sent(MapMessage(body)).body == body


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for item in value.values() for text in _texts(item))]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []
