"""What a connection knows of one region, over an engine that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sdk import ResultPolicy
from sdk.region_cache import KeyState, RegionOperation
from sdk.region_state import ALL_KEYS, EXPRESSION, KEY, Interest, RegionState, Registered

HOW = Registered(False, ResultPolicy.KEYS, True)
ALL = Interest(ALL_KEYS, "")


def state_of(entries: Callable[[], list[Any]] = list) -> RegionState:
    def ask(_operation: str, _arguments: Mapping[str, Any]) -> Any:
        return {"entries": entries(), "next": None}

    return RegionState("quotes", ask)


def test_results_of_an_interest_that_has_ended_meanwhile_are_not_kept() -> None:
    def entries() -> list[Any]:
        state.end([ALL])
        return [("k", 1, 1, None, None)]

    state = state_of(entries)
    state.want({ALL: HOW})
    state.fill([ALL], ResultPolicy.KEYS)
    assert state.cache.known() == []


def test_a_mark_of_what_was_destroyed_ends_with_its_interest() -> None:
    state = state_of()
    state.want({ALL: HOW})
    state.cache.change("k", RegionOperation.DESTROY, 5)
    state.end([ALL])
    assert state.cache.get("k") is None


def test_a_key_is_kept_while_another_interest_covers_it() -> None:
    state = state_of()
    interests = [Interest(KEY, "ab"), Interest(EXPRESSION, "a.*")]
    state.want(dict.fromkeys(interests, HOW))
    state.cache.add_result("ab", 1, KeyState.UNREAD)
    state.end(interests[:1])
    assert state.cache.known() == ["ab"]
    state.end(interests[1:])
    assert state.cache.known() == []


def test_many_interests_end_at_once() -> None:
    state = state_of()
    interests = [Interest(KEY, f"k{number}") for number in range(20_000)]
    state.want(dict.fromkeys(interests, HOW))
    for each in interests:
        state.cache.add_result(each.text, 1, KeyState.UNREAD)
    state.end(interests[:10_000])  # compared with each one that is left, these would take very long
    assert len(state.cache) == 10_000
