"""Requests and answers as bytes: round trips, limits, errors that keep their class."""

from __future__ import annotations

import pytest

from broker_adapter.amqp.management import (
    MAX_MANAGEMENT_BYTES,
    Answer,
    Request,
    error_fields,
    error_from_fields,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    StaleAcknowledgementException,
)
from broker_adapter.packing import MAX_CONTAINERS


def test_a_request_of_more_lists_than_the_limit_or_with_other_keys_than_strings_is_refused() -> None:
    for arguments, reason in (({"x": [[]] * MAX_CONTAINERS}, "more lists and maps"), ({1: 2}, "int is not allowed")):
        with pytest.raises(MessageFormatException, match=reason):
            unpack_request(pack_request(Request(1, "x", arguments)))
    with pytest.raises(MessageFormatException, match="more lists and maps"):
        unpack_answer(pack_answer(Answer(1, None, [[]] * MAX_CONTAINERS)))
    assert unpack_answer(pack_answer(Answer(1, None, {1: 2}))).result == {1: 2}


def test_requests_and_answers_come_back_as_they_went() -> None:
    request = Request(5, "statistics", {"queue": "q", "raw": b"\x00"})
    assert unpack_request(pack_request(request)) == request

    for answer in (Answer(5, None, {"depth": 3}), Answer(6, ("JMSException", "why", None), None)):
        assert unpack_answer(pack_answer(answer)) == answer


def test_requests_have_a_greatest_size() -> None:
    at_limit = MAX_MANAGEMENT_BYTES - len(pack_request(Request(1, "x", {"a": b"\0" * 70_000}))) + 70_000

    unpack_request(pack_request(Request(1, "x", {"a": b"\0" * at_limit})))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        pack_request(Request(1, "x", {"a": b"\0" * (at_limit + 1)}))
    with pytest.raises(MessageFormatException, match="larger than the limit"):
        unpack_answer(b"\x93" + b"\0" * MAX_MANAGEMENT_BYTES)


def test_errors_of_answers_keep_their_class() -> None:
    error = error_from_fields(error_fields(InvalidDestinationException("gone", error_code="amqp:not-found")))
    stale = error_from_fields(("StaleAcknowledgementException", "old", None))
    unknown = error_from_fields(("SomethingNew", "why", None))

    assert (type(error), error.reason, error.error_code) == (InvalidDestinationException, "gone", "amqp:not-found")
    assert type(stale) is StaleAcknowledgementException
    assert type(unknown) is JMSException
    assert unknown.reason == "SomethingNew: why"
