"""A connection to a broker in memory that waits for minutes when it closes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdk import Connection
from tests.sdk.small_broker import SmallBroker
from tests.sdk.threads.calls import WAIT


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10, close_timeout_seconds=WAIT)


@pytest.fixture
def connection(broker: SmallBroker) -> Iterator[Connection]:
    with broker.connect() as connection:
        connection.start()
        yield connection
