"""A durable client's own figures, without the engine around it."""

from __future__ import annotations

import pytest

from broker_adapter.engine.clients.client_queue import ClientQueue
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind

DURABLE = Interest(InterestKind.KEY, "a")
PASSING = Interest(InterestKind.KEY, "b")


@pytest.mark.parametrize(
    ("interests", "durable", "expected"),
    [
        ([DURABLE, PASSING], False, True),
        ([DURABLE], True, True),
        ([DURABLE, PASSING], True, False),
        ([DURABLE, ALL_KEYS], False, False),
    ],
)
def test_what_a_client_has_already_is_known_with_its_durability(
    interests: list[Interest], durable: bool, expected: bool
) -> None:
    client = DurableClient("desk", ClientQueue(0))
    client.want(1, {DURABLE: True, PASSING: False})
    assert client.has(1, interests, durable=durable) is expected
    assert not client.has(2, interests, durable=durable)
