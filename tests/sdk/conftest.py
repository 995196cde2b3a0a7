"""A connection to a broker in memory, and what its exception listener is told."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from sdk import Connection, JMSException
from tests.sdk.small_broker import SmallBroker


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10)


@pytest.fixture
def told() -> queue.SimpleQueue[JMSException]:
    return queue.SimpleQueue()


@pytest.fixture
def connection(broker: SmallBroker, told: queue.SimpleQueue[JMSException]) -> Iterator[Connection]:
    with broker.connect() as connection:
        connection.exception_listener = told.put
        connection.start()
        yield connection
