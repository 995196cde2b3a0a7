"""What one transaction is to change in regions."""

from __future__ import annotations

from collections.abc import Collection

from broker_adapter import RegionChange
from sdk.held_changes import HeldChanges


def change(region: str, key: str, change: int = 0, payload: bytes = b"") -> RegionChange:
    return RegionChange(region, key, change, payload)


def nobody(_keys: Collection[str]) -> None:
    """No region is told."""


def test_changes_are_kept_in_order_and_the_last_one_of_each_key_is_read() -> None:
    held = HeldChanges()
    first, second, third = change("r", "a"), change("s", "a", 2), change("r", "a", 1)
    held.hold([first], nobody)
    held.hold([second], nobody)
    held.hold([change("r", "b"), third], nobody)
    assert held.all == [first, second, change("r", "b"), third]
    assert held.of("r") == {"a": third, "b": change("r", "b")}
    assert held.of("s") == {"a": second}
    assert held.of("none") == {}


def test_each_region_is_told_once_of_the_keys_that_a_commit_has_changed() -> None:
    held = HeldChanges()
    told: list[tuple[str, list[str]]] = []

    def of(region: str) -> None:
        held.hold([change(region, key) for key in "ab"], lambda keys: told.append((region, sorted(keys))))

    for region in ("r", "s", "r"):
        of(region)
    held.tell_committed()
    assert told == [("r", ["a", "b"]), ("s", ["a", "b"])]
