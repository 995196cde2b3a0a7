"""What several of these tests begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.server.protocol_client import Client


@pytest.fixture
def broker() -> Iterator[Broker]:
    """An engine in memory."""
    broker = Broker(EngineSettings())
    yield broker
    broker.close()


@pytest.fixture
def make_broker() -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(**settings: Any) -> Broker:
        made.append(Broker(EngineSettings(**settings)))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def client(broker: Broker) -> Client:
    return Client(broker).open()
