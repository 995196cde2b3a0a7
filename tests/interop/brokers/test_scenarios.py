"""Our SDK against brokers that we did not write, and against our own: one suite for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.brokers.brokers import STARTS, Broker
from tests.interop.brokers.scenarios import SCENARIOS
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=STARTS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker, started for all the scenarios."""
    start = STARTS[request.param]
    found = installed(lambda: start(tmp_path_factory.mktemp("broker")))
    yield found
    found.process.stop()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_broker_does_it_or_our_sdk_says_that_it_cannot(broker: Broker, scenario: str) -> None:
    limit = broker.cannot.get(scenario)
    if limit is None:
        SCENARIOS[scenario](broker)
    else:
        with pytest.raises(limit.exception, match=limit.match):
            SCENARIOS[scenario](broker)
