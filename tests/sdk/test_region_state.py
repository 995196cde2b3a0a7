"""What a connection knows of a region: what it costs where there are many interests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sdk import ResultPolicy
from sdk.region_cache import RegionCache, RegionOperation
from sdk.region_state import EXPRESSION, KEY, Interest, RegionState, Registered

HOW = Registered(False, ResultPolicy.KEYS_VALUES, True)


class NotWalked(dict[Any, Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("each interest is looked at")


class CacheNotWalked(RegionCache):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("each key of the cache is looked at")


def nothing_asked(operation: str, arguments: object) -> None:
    raise AssertionError(operation)


def test_keys_that_are_changed_and_end_are_looked_at_and_not_all_interests() -> None:
    state = RegionState("quotes", nothing_asked)
    state.interests, state.cache = NotWalked(), CacheNotWalked()
    keys = [Interest(KEY, "a"), Interest(KEY, "b")]
    state.want(keys, HOW)
    for key in "abc":
        state.changed(key, RegionOperation.CREATE, 1, None)
    assert [state.cache.get(key) is not None for key in "abc"] == [True, True, False]
    state.end(keys[:1])
    state.uncovered(keys[:1])
    assert [state.cache.get(key) is not None for key in "abc"] == [False, True, False]


def test_what_an_expression_covers_stays_until_the_expression_ends() -> None:
    state = RegionState("quotes", nothing_asked)
    key, expression = Interest(KEY, "a1"), Interest(EXPRESSION, "a.*")
    state.want([key, expression], HOW)
    for each in ("a1", "a2", "b1"):
        state.changed(each, RegionOperation.CREATE, 1, None)
    state.end([key])
    state.uncovered([key])
    assert sorted(state.cache) == ["a1", "a2"]
    state.end([expression])
    state.uncovered([expression])
    assert list(state.cache) == []
    state.changed("a1", RegionOperation.UPDATE, 2, None)
    assert list(state.cache) == []
