"""How many connections a limit of open files allows."""

from __future__ import annotations

import resource

import pytest

from broker_adapter.errors import IllegalStateException
from broker_adapter.server.open_files import (
    RESERVE,
    TOLD_AT_ONCE,
    ConnectionPlaces,
    open_now,
    places_for,
    raise_soft_limit,
    soft_limit,
)


@pytest.mark.parametrize(
    ("wanted", "limit", "places"),
    [
        (10_000, 1_000_000, ConnectionPlaces(10_000, 10_000 + TOLD_AT_ONCE)),
        (50, 1024, ConnectionPlaces(50, 50 + TOLD_AT_ONCE)),
        (10_000, 1024, ConnectionPlaces(1024 - 10 - RESERVE - 98, 1024 - 10 - RESERVE)),
        (950, 1024, ConnectionPlaces(884, 982)),
        (10_000, 142, ConnectionPlaces(90, 100)),
        (95, 142, ConnectionPlaces(90, 100)),
        (10_000, 43, ConnectionPlaces(1, 1)),
    ],
)
def test_connections_are_as_many_as_are_wanted_and_the_limit_allows(
    wanted: int, limit: int, places: ConnectionPlaces
) -> None:
    assert places_for(wanted, limit, 10) == places


def test_a_limit_that_leaves_no_place_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(IllegalStateException, match=r"may have 42 files open and has 10.*ulimit -n"):
        places_for(10_000, 42, 10)


def test_the_limit_is_raised_as_far_as_the_process_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, 512)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
        assert soft_limit() == lower
        assert raise_soft_limit() == (lower, hard)
        assert soft_limit() == hard
        assert raise_soft_limit() == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_files_are_counted() -> None:
    before = open_now()
    with open(__file__):
        assert open_now() == before + 1
