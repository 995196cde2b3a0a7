"""The errors that failover makes of others."""

from __future__ import annotations

import pytest

from broker_adapter.errors import ConnectionLostException, JMSException, ResourceAllocationException, StoreException
from broker_adapter.failover.failures import as_lost, out_of_time, says_why, without_thread


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JMSException("too many links", error_code="amqp:resource-limit-exceeded"), True),
        (JMSException("too many links"), False),
        (ConnectionLostException("forced", error_code="amqp:connection:forced"), False),
        (StoreException("the disk is full", error_code="amqp:internal-error"), False),
    ],
)
def test_a_broker_says_why_it_ends_a_connection_where_it_names_a_fault(error: JMSException, expected: bool) -> None:
    assert says_why(error) is expected


def test_any_error_of_a_lost_connection_is_one_of_a_lost_connection() -> None:
    lost = ConnectionLostException("cut")
    assert as_lost(lost) is lost
    other = JMSException("no", error_code="amqp:not-allowed")
    made = as_lost(other)
    assert (made.reason, made.error_code, made.__cause__) == ("the connection is lost: no", "amqp:not-allowed", other)


def test_a_wait_that_is_over_says_what_it_was_for() -> None:
    assert out_of_time("the send", None).reason == "the send"
    last = JMSException("busy")
    error = out_of_time("the send", last)
    assert error.reason == "the send; the last error: busy"
    assert isinstance(error.__cause__, JMSException)
    assert error.__cause__ is not last, "the traceback of the last error stays its own"


def test_a_thread_that_cannot_start_is_named() -> None:
    error = without_thread("the link is lost", RuntimeError("can't start new thread"))
    assert isinstance(error, ResourceAllocationException)
    assert error.reason == "the link is lost, for the process has no thread for that: can't start new thread"
