"""What several of these tests begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings


@pytest.fixture
def broker() -> Iterator[Broker]:
    """An engine in memory."""
    broker = Broker(EngineSettings())
    yield broker
    broker.close()
