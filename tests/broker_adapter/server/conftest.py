"""What several of these tests begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.server import listener
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.server.protocol_client import Client
from tests.broker_adapter.server.served import Served


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


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener reads the clock so often that no test waits for it."""
    monkeypatch.setattr(listener, "TICK_SECONDS", 0.05)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(*arguments: Any, **settings: Any) -> Served:
        made.append(Served(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
