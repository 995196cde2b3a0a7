"""Requests and answers as bytes: round trips, limits, errors that keep their class."""

from __future__ import annotations

import msgpack
import pytest

from broker_adapter.amqp.management import (
    DESTINATIONS,
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_MANAGEMENT_BYTES,
    ManagementAnswer,
    ManagementRequest,
    Outline,
    error_fields,
    error_from_fields,
    outline_of,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)
from broker_adapter.errors import (
    MESSAGE_TOO_LARGE,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
    StaleAcknowledgementException,
)
from broker_adapter.packing import MAX_CONTAINERS, Unread


def test_a_request_of_more_lists_than_the_limit_or_with_other_keys_than_strings_is_refused() -> None:
    for arguments, reason in (({"x": [[]] * MAX_CONTAINERS}, "more lists and maps"), ({1: 2}, "int is not allowed")):
        with pytest.raises(MessageFormatException, match=reason):
            unpack_request(pack_request(ManagementRequest(1, "x", arguments)))
    with pytest.raises(MessageFormatException, match="more lists and maps"):
        unpack_answer(pack_answer(ManagementAnswer(1, None, [[]] * MAX_CONTAINERS)))
    assert unpack_answer(pack_answer(ManagementAnswer(1, None, {1: 2}))).result == {1: 2}


def test_requests_and_answers_come_back_as_they_went() -> None:
    request = ManagementRequest(5, "statistics", {"queue": "q", "raw": b"\x00"})
    assert unpack_request(pack_request(request)) == request

    for answer in (ManagementAnswer(5, None, {"depth": 3}), ManagementAnswer(6, ("JMSException", "why", None), None)):
        assert unpack_answer(pack_answer(answer)) == answer


def test_requests_have_a_greatest_size() -> None:
    at_limit = MAX_MANAGEMENT_BYTES - len(pack_request(ManagementRequest(1, "x", {"a": b"\0" * 70_000}))) + 70_000

    unpack_request(pack_request(ManagementRequest(1, "x", {"a": b"\0" * at_limit})))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        pack_request(ManagementRequest(1, "x", {"a": b"\0" * (at_limit + 1)}))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        unpack_answer(b"\x93" + b"\0" * MAX_MANAGEMENT_BYTES)


def test_errors_of_answers_keep_their_class() -> None:
    error = error_from_fields(error_fields(InvalidDestinationException("gone", error_code="amqp:not-found")))
    large = error_from_fields(error_fields(ResourceAllocationException("too large", error_code=MESSAGE_TOO_LARGE)))
    stale = error_from_fields(("StaleAcknowledgementException", "old", None))
    unknown = error_from_fields(("SomethingNew", "why", None))

    assert (type(error), error.reason, error.error_code) == (InvalidDestinationException, "gone", "amqp:not-found")
    assert (type(large), large.error_code) == (ResourceAllocationException, "amqp:link:message-size-exceeded")
    assert type(stale) is StaleAcknowledgementException
    assert type(unknown) is JMSException
    assert unknown.reason == "SomethingNew: why"


def test_the_outline_of_a_request_has_its_values_and_the_sizes_of_its_lists() -> None:
    arguments = {
        **{"text": "q", "raw": b"\0", "number": -5, "real": 1.5, "flag": True, "nothing": None},
        **{"list": [["a", {"b": 1}]] * 20, "empty": [], "map": {"a": 1, "b": []}, "many": [0] * 70_000},
    }
    arguments |= {f"long {size}": "x" * size for size in (31, 32, 255, 256, MAX_ARGUMENT_BYTES - 3)}
    outline = outline_of(pack_request(ManagementRequest(7, "stage", arguments)))
    assert outline == Outline(
        *(7, "stage"),
        {
            **arguments,
            **{"list": Unread("list", 20), "empty": Unread("list", 0), "map": Unread("map", 2)},
            **{"many": Unread("list", 70_000)},
        },
    )


def test_names_of_destinations_are_read_where_they_are_texts_and_not_too_long() -> None:
    names = ["x" * 1020] * (MAX_ARGUMENT_BYTES // 1024)  # with two octets for the list, and three for each text
    assert outline_of(pack_request(ManagementRequest(1, "x", {DESTINATIONS: names}))).arguments == {DESTINATIONS: names}
    for other in ([*names, "x" * 40], ["a", 5], ["a", b"b"], ["a", ["b"]], [None]):
        found = outline_of(pack_request(ManagementRequest(1, "x", {DESTINATIONS: other, "more": 1}))).arguments
        assert found == {DESTINATIONS: Unread("list", len(other)), "more": 1}
    for no_list in ("a", 5, None):
        assert outline_of(pack_request(ManagementRequest(1, "x", {DESTINATIONS: no_list}))).arguments == {
            DESTINATIONS: no_list
        }


def test_what_is_long_or_no_plain_value_is_not_read() -> None:
    arguments = {"text": "x" * MAX_ARGUMENT_BYTES, "raw": bytes(MAX_ARGUMENT_BYTES), "other": msgpack.ExtType(1, b"x")}
    found = outline_of(pack_request(ManagementRequest(1, "x", arguments))).arguments
    assert {name: value.kind for name, value in found.items()} == {"text": "text", "raw": "bytes", "other": "extension"}
    assert found["text"].size > MAX_ARGUMENT_BYTES
    assert found["other"].size == 3


@pytest.mark.parametrize(
    "fields",
    [
        *(5, [], [1], [1, "x"], [1, "x", {}, 5], {"a": 1}, ["1", "x", {}], [1, 5, {}], [1, "x", []], [True, "x", {}]),
        *([[1], "x", {}], [1, ["x"], {}], [1, "x" * 2 * MAX_ARGUMENT_BYTES, {}], [1, "x", {5: 6}], [1, "x", {b"a": 6}]),
        [1, "x", {str(number): 0 for number in range(MAX_ARGUMENTS + 1)}],
    ],
)
def test_what_is_no_request_has_no_outline(fields: object) -> None:
    with pytest.raises(MessageFormatException):
        outline_of(msgpack.packb(fields))


def test_an_outline_is_of_all_bytes_and_of_each_name_once() -> None:
    packed = pack_request(ManagementRequest(1, "x", {"a": [[1, 2], "text"], "b": 2}))
    for end in range(len(packed)):
        with pytest.raises(MessageFormatException, match="not a request"):
            outline_of(packed[:end])
    with pytest.raises(MessageFormatException, match="not a request"):
        outline_of(packed + b"\0")
    with pytest.raises(MessageFormatException, match="'a' twice"):
        outline_of(b"\x93\x01\xa1x\x82\xa1a\x01\xa1a\x02")
    with pytest.raises(MessageFormatException, match="not a request"):
        outline_of(b"\x93\x01\xa1x\x81\xa1a" + b"\x91" * 100_000 + b"\0")
    at_limit = {str(number): 0 for number in range(MAX_ARGUMENTS)}
    assert len(outline_of(pack_request(ManagementRequest(1, "x", at_limit))).arguments) == MAX_ARGUMENTS


def test_a_request_has_as_many_members_as_its_operation_may_have() -> None:
    packed = pack_request(ManagementRequest(1, "x", {"a": [0] * 10}))
    assert unpack_request(packed, 3 + 2 + 10).arguments == {"a": [0] * 10}
    with pytest.raises(MessageFormatException, match="more members of lists and maps than the limit of 14"):
        unpack_request(packed, 3 + 2 + 9)
