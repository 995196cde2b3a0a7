"""A pair of peers."""

from __future__ import annotations

import pytest

from tests.broker_adapter.amqp.pair import Pair


@pytest.fixture
def pair() -> Pair:
    """An open pair."""
    return Pair().opened()
