"""A pair of peers, once by the C functions and once by the public classes of proton."""

from __future__ import annotations

import pytest

from tests.broker_adapter.amqp.pair import Pair


@pytest.fixture(params=[False, True], ids=["c", "public"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """An open pair, once by each engine."""
    return Pair(public_classes=request.param).opened()
