"""An open connection to a scripted broker."""

from __future__ import annotations

import pytest

from tests.broker_adapter.amqp.client.scripted_broker import Wired


@pytest.fixture
def wired() -> Wired:
    """An open connection to a broker that says it is ours."""
    return Wired().opened()
