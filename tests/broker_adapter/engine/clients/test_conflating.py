"""In which regions updates are conflated, by what the clients ask for that want something of them."""

from __future__ import annotations

from broker_adapter.engine.clients.conflating import Conflating
from broker_adapter.engine.clients.durable_client import Conflation
from broker_adapter.engine.regions.event_log import BroadStream
from broker_adapter.engine.regions.region import Region


def region(number: int, *, conflates: bool) -> Region:
    made = Region(number, f"region {number}", BroadStream(100 + number), lambda: 1)
    made.conflates = conflates
    return made


def test_a_client_that_asks_for_it_has_updates_conflated_whatever_the_region_says() -> None:
    conflating = Conflating()
    conflating.wants(1, Conflation.TRUE, 1)
    assert conflating.is_asked_for(region(1, conflates=False))
    assert not conflating.is_asked_for(region(2, conflates=False)), "of another region"


def test_a_client_that_leaves_it_to_the_region_has_what_that_says() -> None:
    conflating = Conflating()
    conflating.wants(1, Conflation.SERVER, 2)
    assert conflating.is_asked_for(region(1, conflates=True))
    assert not conflating.is_asked_for(region(1, conflates=False))


def test_a_client_that_asks_for_none_has_none_in_a_region_that_conflates() -> None:
    conflating = Conflating()
    conflating.wants(1, Conflation.FALSE, 1)
    assert not conflating.is_asked_for(region(1, conflates=True))


def test_it_ends_with_the_last_client_that_asks_for_it() -> None:
    conflating = Conflating()
    conflating.wants(1, Conflation.TRUE, 2)
    conflating.wants(1, Conflation.TRUE, -1)
    assert conflating.is_asked_for(region(1, conflates=False))
    conflating.wants(1, Conflation.TRUE, -1)
    assert not conflating.is_asked_for(region(1, conflates=True))
