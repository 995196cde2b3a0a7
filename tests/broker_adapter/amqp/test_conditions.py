"""Error conditions: one table, both directions."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.conditions import CODES, CONDITIONS, AmqpError, error_for, exception_for
from broker_adapter.engine.commands import failures
from broker_adapter.errors import (
    MESSAGE_TOO_LARGE,
    ConnectionLostException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    ProtocolException,
    ResourceAllocationException,
    StoreCorruptException,
    StoreException,
    TransactionRolledBackException,
)


@pytest.mark.parametrize(("condition", "cls"), CONDITIONS)
def test_each_condition_has_its_exception_and_keeps_its_name(condition: str, cls: type[JMSException]) -> None:
    exception = exception_for(AmqpError(condition, "because"), "otherwise")

    assert type(exception) is cls
    assert exception.error_code == condition
    assert str(exception) == f"because [{condition}]"


@pytest.mark.parametrize("cls", sorted({cls for _, cls in CONDITIONS}, key=lambda cls: cls.__name__))
def test_each_exception_comes_back_as_itself(cls: type[JMSException]) -> None:
    back = exception_for(error_for(cls("why")), "otherwise")

    assert type(back) is cls
    assert back.reason == "why"


def test_an_exception_outside_the_table_is_told_as_the_nearest_one_above() -> None:
    assert type(exception_for(error_for(StoreCorruptException("why")), "otherwise")) is StoreException


def test_the_condition_that_an_exception_carries_is_kept() -> None:
    error = error_for(ResourceAllocationException("too long", error_code="amqp:link:message-size-exceeded"))

    assert error.condition == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("code", sorted(CODES))
@pytest.mark.parametrize("cls", [ResourceAllocationException, TransactionRolledBackException])
def test_each_code_of_the_engine_has_its_condition_whatever_the_class_of_the_error(
    code: str, cls: type[JMSException]
) -> None:
    error = error_for(cls("why", error_code=code))
    assert error == AmqpError(CODES[code], "why")
    assert CODES[code] in dict(CONDITIONS)


def test_the_engine_has_codes_of_its_own() -> None:
    assert failures.deleted("q").error_code in CODES
    assert failures.message_too_large(2, 1).error_code in CODES
    assert failures.rolled_back(failures.message_too_large(2, 1)).error_code == MESSAGE_TOO_LARGE


def test_a_client_id_in_use_is_told_by_the_invalid_field() -> None:
    taken = AmqpError("amqp:invalid-field", "in use", {"invalid-field": "container-id"})

    assert type(exception_for(taken, "otherwise")) is InvalidClientIDException
    assert type(exception_for(AmqpError("amqp:invalid-field"), "otherwise")) is ProtocolException
    assert error_for(InvalidClientIDException("in use")) == taken


@pytest.mark.parametrize(
    ("description", "cls"),
    [("AMQ119002: target address x does not exist", InvalidDestinationException), ("AMQ229102: full", JMSException)],
)
def test_artemis_says_by_a_text_that_an_anonymous_send_has_no_destination(
    description: str, cls: type[JMSException]
) -> None:
    """Its condition, ``failed``, stands for anything."""
    exception = exception_for(AmqpError("failed", description), "otherwise")

    assert type(exception) is cls
    assert str(exception) == f"{description} [failed]"


def test_silence_and_unknown_conditions_give_the_default() -> None:
    assert type(exception_for(None, "otherwise", InvalidDestinationException)) is InvalidDestinationException
    assert exception_for(None, "otherwise").reason == "otherwise"
    assert type(exception_for(AmqpError("vendor:odd"), "otherwise", ConnectionLostException)) is ConnectionLostException


@pytest.mark.parametrize(
    ("condition", "cls", "info", "reason"),
    [
        (
            "amqp:connection:redirect",
            ConnectionLostException,
            {"network-host": "other", "port": 5673},
            "moved; it is at other:5673",
        ),
        ("amqp:connection:redirect", ConnectionLostException, {"hostname": "other"}, "moved; it is at other"),
        ("amqp:connection:redirect", ConnectionLostException, None, "moved"),
        (
            "amqp:link:redirect",
            InvalidDestinationException,
            {"network-host": "other", "port": 5673, "address": "q2"},
            "moved; it is 'q2' at other:5673",
        ),
        ("amqp:link:redirect", InvalidDestinationException, {"address": "q2"}, "moved; it is 'q2'"),
    ],
)
def test_a_redirect_says_where_it_leads(
    condition: str, cls: type[JMSException], info: dict[str, Any] | None, reason: str
) -> None:
    error = exception_for(AmqpError(condition, "moved", info), "unsaid")
    assert type(error) is cls
    assert error.reason == reason
