"""The connections that a worker process keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdk import IllegalStateException, JMSException
from spark_connector import connections
from spark_connector.connections import MAX_CONNECTIONS, connection_for, drop_connection, with_retries
from spark_connector.options import ConnectionOptions


def _options(number: int) -> ConnectionOptions:
    return ConnectionOptions(url=f"embedded:?prefetch_messages={number + 10}")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for number in range(MAX_CONNECTIONS + 2):
        drop_connection(_options(number))


def test_a_connection_is_kept_between_tasks() -> None:
    assert connection_for(_options(0)) is connection_for(_options(0))


def test_the_one_that_was_not_used_for_the_longest_time_is_closed_at_the_limit() -> None:
    kept = [connection_for(_options(number)) for number in range(MAX_CONNECTIONS)]
    assert connection_for(_options(0)) is kept[0]
    connection_for(_options(MAX_CONNECTIONS))
    with pytest.raises(IllegalStateException):
        kept[1].create_session()
    kept[0].create_session().close()
    assert len(connections._connections) == MAX_CONNECTIONS


def test_an_error_that_another_attempt_does_not_repair_is_raised_at_once_and_drops_the_connection() -> None:
    first = connection_for(_options(0))
    calls = []

    def act(connection: object) -> None:
        calls.append(connection)
        raise JMSException("no")

    with pytest.raises(JMSException, match="no"):
        with_retries(_options(0), act, 60)
    assert calls == [first]
    assert connection_for(_options(0)) is not first
