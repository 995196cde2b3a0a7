"""Errors: what they say, what they are besides, and copies of them for another thread."""

from __future__ import annotations

import pytest

from broker_adapter import errors
from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    Redirect,
    StaleAcknowledgementException,
    copied,
)


def test_an_error_says_its_reason_and_the_code_of_the_broker() -> None:
    assert str(JMSException("no such queue")) == "no such queue"
    error = JMSException("no such queue", error_code="amqp:not-found")
    assert (str(error), error.reason, error.error_code) == (
        "no such queue [amqp:not-found]",
        "no such queue",
        "amqp:not-found",
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("InvalidDestinationException", LookupError),
        ("InvalidSelectorException", ValueError),
        ("InvalidURLException", ValueError),
        ("MessageEOFException", EOFError),
        ("MessageFormatException", TypeError),
        ("NoSuchElementException", LookupError),
        ("ConnectionLostException", ConnectionError),
        ("OperationTimedOutException", TimeoutError),
    ],
)
def test_where_python_has_a_word_for_an_error_it_is_that_too(name: str, kind: type[Exception]) -> None:
    error = getattr(errors, name)("why", error_code="x")
    assert isinstance(error, kind)
    assert isinstance(error, JMSException)
    assert str(error) == "why [x]"


def test_a_copy_for_another_thread_has_everything_but_the_traceback() -> None:
    redirect = Redirect("host", 5672)
    error = ConnectionLostException("gone", error_code="amqp:connection:redirect", redirect=redirect)
    try:
        raise error from OSError("reset")
    except ConnectionLostException:
        twin = copied(error)
    assert isinstance(twin, ConnectionLostException)
    assert twin is not error
    assert (str(twin), twin.redirect) == (str(error), redirect)
    assert twin.__cause__ is error.__cause__
    assert error.__traceback__ is not None
    assert twin.__traceback__ is None


def test_a_copy_of_a_stale_acknowledgement_counts_and_names_the_messages() -> None:
    twin = copied(StaleAcknowledgementException("stale", stale_count=3, message_ids=("ID:1",)))
    assert isinstance(twin, StaleAcknowledgementException)
    assert (twin.reason, twin.stale_count, twin.message_ids) == ("stale", 3, ("ID:1",))
