"""How many bytes the events may take that are under way to a durable client."""

from __future__ import annotations

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.regions.interests import Interest, InterestKind
from tests.broker_adapter.engine.desks import Desk, make, put


@pytest.mark.parametrize("is_behind", [False, True])
def test_events_under_way_take_so_many_bytes_and_one_event_more(broker: Broker, is_behind: bool) -> None:
    make(broker, "quotes")
    desk = Desk(broker, window_bytes=10_000)
    desk.want("quotes")
    versions: list[int] = []

    def fill() -> None:
        versions.extend(put(broker, "quotes", f"k{number}", b"x" * 4_000) for number in range(6))

    if is_behind:
        fill()
        desk.ready()
    else:
        desk.ready()
        assert desk.events() == ["marker"]
        fill()

    def keys() -> list[str]:
        desk.events()
        return [each.key for each in desk.handouts()]

    assert keys() == ["k0", "k1", "k2"]
    desk.acknowledge(versions[0])
    assert keys() == ["k0", "k1", "k2", "k3"]
    desk.acknowledge(versions[3])
    assert keys() == ["k0", "k1", "k2", "k3", "k4", "k5"]
    desk.lose()
    again = Desk(broker, window_bytes=1)
    again.ready()
    assert [each.key for each in again.handouts()] == ["k4"]
    assert again.acknowledge(versions[4]) == 1
    assert [each.key for each in again.handouts()] == ["k4", "k5"]


def test_expressions_count_in_the_bytes_under_way(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, window_bytes=5_000)
    desk.want("quotes", *[Interest(InterestKind.EXPRESSION, f"k.*|{number}") for number in range(500)])
    desk.ready()
    for number in range(3):
        put(broker, "quotes", f"k{number}")
    assert [each.key for each in desk.handouts()] == ["k0"]
