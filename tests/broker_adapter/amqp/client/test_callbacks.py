"""Answers that no caller waits for."""

from __future__ import annotations

from broker_adapter.amqp.client.callbacks import ignore
from broker_adapter.errors import JMSException


def test_an_answer_that_no_call_waits_for_is_ignored_be_it_a_result_or_an_error() -> None:
    assert ignore("a result", None)
    assert ignore(None, JMSException("gone"))
