"""Up to which event a client was told everything, in each store."""

from __future__ import annotations

import pytest

from sdk.regions import event_positions
from sdk.regions.event_positions import EventPositions


def test_positions_are_remembered_for_each_store() -> None:
    positions = EventPositions()
    assert not positions.move("a"), "nothing is known of another one"
    positions.told(7)
    positions.told(5)
    assert not positions.check(8, "run 1")
    assert not positions.move("a")
    assert positions.is_elsewhere("b")
    assert positions.move("b")
    assert (positions.through, positions.run) == (0, None)
    positions.told(3)
    assert positions.move("a")
    assert (positions.through, positions.run) == (7, "run 1")
    assert positions.move("b")
    assert positions.through == 3


def test_a_copy_of_the_store_that_is_older_starts_over() -> None:
    positions = EventPositions()
    positions.told(7)
    assert not positions.check(8, "one")
    assert positions.check(7, None)
    assert (positions.through, positions.run) == (0, "one")
    assert not positions.check(1, "two")
    assert positions.run == "two"


def test_a_copy_that_is_older_than_what_was_read_takes_back_nothing_that_was_told_before() -> None:
    positions = EventPositions()
    positions.told(3)
    positions.registered(7)
    assert not positions.check(8, "one")
    assert positions.check(6, "two")
    assert (positions.through, positions.known) == (3, 3)
    positions.registered(7)
    positions.move("a")
    assert positions.move("b")
    assert not positions.check(1, "one"), "what is known of one store says nothing of another one"


def test_so_many_stores_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_positions, "MOST_STORES", 2)
    positions = EventPositions()
    for store in "abcd":
        positions.move(store)
        positions.told(9)
    assert positions.move("a")
    assert positions.through == 0, "the oldest one was forgotten"
    assert positions.move("d")
    assert positions.through == 9
