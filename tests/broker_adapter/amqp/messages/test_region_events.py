"""The link for events as bytes: round trips, and what a hostile end sends."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.amqp.messages.region_events import (
    MAX_WINDOW,
    EventsRequest,
    as_properties,
    decode,
    encode_event,
    encode_marker,
    request_of,
)
from broker_adapter.destination import topic
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import MAX_CONTAINERS

MESSAGE = pack(Envelope(topic("r"), BodyKind.TEXT, "x"))
EVENT = [7, "r", 1, "k", [[2, "k.*"]], [["q", 3]], True, MESSAGE]


def test_an_event_comes_back_as_it_went() -> None:
    found = decode(encode_event(2**64 - 1, "r", 3, "k", [(0, "k"), (2, ".*")], [("q", 0)], False, MESSAGE))
    assert (found.position, found.region, found.operation, found.key) == (2**64 - 1, "r", 3, "k")
    assert (found.interests, found.queries, found.is_history) == ([(0, "k"), (2, ".*")], [("q", 0)], False)
    assert found.envelope == decode_payload(MESSAGE)


def test_the_marker_comes_back_as_it_went() -> None:
    found = decode(encode_marker(0))
    assert (found.position, found.region, found.is_history) == (0, None, True)


def test_each_begins_with_an_octet_that_no_message_begins_with() -> None:
    assert encode_event(*EVENT)[0] == 0x98  # type: ignore[arg-type]
    assert encode_marker(1)[0] == 0x91
    for payload in (encode_event(*EVENT), encode_marker(1)):  # type: ignore[arg-type]
        with pytest.raises(MessageFormatException, match="is not a message"):
            decode_payload(payload)


def test_a_message_that_cannot_be_decoded_is_told_as_it_is_read() -> None:
    found = decode(encode_event(1, "r", 0, "k", (), (), False, b"\xff"))
    with pytest.raises(MessageFormatException):
        _ = found.envelope


def _with(index: int, value: Any) -> list[Any]:
    return [*EVENT[:index], value, *EVENT[index + 1 :]]


@pytest.mark.parametrize(
    "fields",
    [
        *([], [None], ["7"], [True], [-1], [7, "r"], EVENT[:7], [*EVENT, 1], {}, 7, None, "event"),
        *(_with(0, value) for value in (-1, 1.0, True, None)),
        *(_with(1, value) for value in ("", None, b"r", 1)),
        *(_with(2, value) for value in (-1, 4, True, "1", None)),
        *(_with(3, value) for value in ("", None, b"k")),
        *(
            _with(4, value)
            for value in (None, {}, [1], [[1]], [[1, "x", ""]], [["1", "x"]], [[True, "x"]], [[1, b"x"]])
        ),
        *(_with(5, value) for value in (None, [[1, "x"]], [["x", None]], [["x", 4]], [["x", -1]])),
        *(_with(6, value) for value in (None, 1, "")),
        *(_with(7, value) for value in (None, "x", [])),
        _with(4, [[]] * MAX_CONTAINERS),
        _with(4, dict.fromkeys(range(10))),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_no_event_is_refused(fields: Any) -> None:
    with pytest.raises(MessageFormatException, match="not an event of a region"):
        decode(msgpack.packb(fields))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x98", msgpack.packb(EVENT)[:-1], msgpack.packb(EVENT) + b"\x00"])
def test_what_is_cut_short_or_too_long_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageFormatException, match="not an event of a region"):
        decode(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_event_or_refused(payload: bytes) -> None:
    try:
        decode(payload)
    except MessageFormatException:
        pass


@pytest.mark.parametrize("timeout_ms", [None, 0, 300_000])
def test_what_a_client_asks_for_comes_back_as_it_went(timeout_ms: int | None) -> None:
    request = EventsRequest(timeout_ms, MAX_WINDOW, "true")
    assert request_of(as_properties(request)) == request


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"window": 0}, "from 1 to 10000, not 0"),
        ({"window": MAX_WINDOW + 1}, "from 1 to 10000, not 10001"),
        ({"window": "many"}, "not 'many'"),
        ({"window": True}, "not True"),
        ({"window": None}, "not None"),
        ({"timeout-ms": -1}, "from 0 on, or None, not -1"),
        ({"timeout-ms": 2**63}, "not 9223372036854775808"),
        ({"timeout-ms": 1.5}, "not 1.5"),
        ({"conflation": "sometimes"}, "one of server, true, false, not 'sometimes'"),
        ({"conflation": True}, "not True"),
        ({"conflation": ["true"]}, r"not \['true'\]"),
    ],
)
def test_what_a_client_cannot_ask_for_is_refused(changed: dict[str, Any], reason: str) -> None:
    properties = as_properties(EventsRequest(None, 10)) | changed
    with pytest.raises(MessageFormatException, match=reason):
        request_of(properties)


@pytest.mark.parametrize("missing", ["window", "conflation"])
def test_what_a_client_must_ask_for_is_not_left_out(missing: str) -> None:
    properties = as_properties(EventsRequest(None, 10))
    del properties[missing]
    with pytest.raises(MessageFormatException):
        request_of(properties)
