"""The rules of a region's cache: which source says what a key is."""

from __future__ import annotations

import random

import pytest

from sdk import RegionOperation, TextMessage
from sdk.regions.cache import CachedKey, KeyState, RegionCache

CREATE, UPDATE, INVALIDATE, DESTROY = RegionOperation
VALID, UNREAD, INVALID, DESTROYED = KeyState
OLD, NEW = TextMessage("old"), TextMessage("new")


def cache(*known: CachedKey, requests: int = 0) -> RegionCache:
    """A cache in which key k is known so."""
    made = RegionCache()
    for _ in range(requests):
        made.begin_request()
    for each in known:
        made.add_result("k", each.version, each.state, each.message)
    return made


def live(made: RegionCache, operation: RegionOperation, version: int, message: TextMessage | None = None) -> None:
    made.apply("k", operation, version, message, VALID)


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("known", [VALID, UNREAD, INVALID, DESTROYED, None])
def test_a_result_of_a_registration_gives_way_unless_it_is_newer(known: KeyState | None, version: int) -> None:
    before = None if known is None else CachedKey(known, 5, OLD if known is VALID else None)
    made = cache(requests=1)
    if before is not None:
        made.apply(
            "k", {INVALID: INVALIDATE, DESTROYED: DESTROY}.get(before.state, UPDATE), 5, before.message, before.state
        )
    taken = version > 5 or before is None or (before.state is UNREAD and version == 5)
    assert made.add_result("k", version, VALID, NEW) is taken
    assert made.get("k") == (CachedKey(VALID, version, NEW) if taken else before)


def test_a_value_that_ended_after_the_result_was_read_does_not_come_back() -> None:
    made = cache(CachedKey(INVALID, 9), requests=1)
    assert not made.add_result("k", 7, VALID, NEW)
    assert made.get("k") == CachedKey(INVALID, 9)


def test_a_result_without_a_value_takes_no_value_away() -> None:
    made = cache(CachedKey(VALID, 5, OLD), requests=1)
    assert not made.add_result("k", 5, UNREAD)
    assert made.get("k") == CachedKey(VALID, 5, OLD)


def test_what_is_destroyed_stays_marked_until_the_last_request_ends() -> None:
    made = cache(CachedKey(VALID, 5, OLD), requests=2)
    live(made, DESTROY, 6)
    made.end_request(6)
    assert made.get("k") == CachedKey(DESTROYED, 6)
    assert len(made) == 0
    assert list(made) == []
    made.end_request(6)
    assert made.get("k") is None


def test_what_the_application_destroyed_stays_marked_until_its_own_event() -> None:
    made = cache(CachedKey(VALID, 5, OLD), requests=1)
    made.change("k", DESTROY, 8)
    made.end_request(5)
    live(made, UPDATE, 7, NEW)  # before it, on its way
    assert made.get("k") == CachedKey(DESTROYED, 8)
    live(made, DESTROY, 8)
    assert made.get("k") is None


def test_a_key_that_is_created_again_is_there() -> None:
    made = cache(CachedKey(VALID, 5, OLD), requests=1)
    made.change("k", DESTROY, 8)
    made.change("k", CREATE, 9, NEW)
    made.end_request(20)
    assert made.get("k") == CachedKey(VALID, 9, NEW)
    assert list(made) == ["k"]


def test_an_own_change_is_not_taken_back_by_an_older_event() -> None:
    made = cache()
    made.change("k", CREATE, 8, NEW)
    live(made, UPDATE, 7, OLD)
    live(made, CREATE, 8, NEW)
    assert made.get("k") == CachedKey(VALID, 8, NEW)


def test_the_value_before_an_event_is_never_that_of_the_event_or_a_newer_one() -> None:
    made = cache(CachedKey(VALID, 5, OLD))
    assert made.value_before("k", 6) is OLD
    assert made.value_before("k", 5) is None
    assert made.value_before("k", 4) is None
    assert made.value_before("other", 9) is None


def test_the_value_before_an_own_change_is_what_the_events_have_told_by_then() -> None:
    made = cache(CachedKey(VALID, 5, OLD))
    middle = TextMessage("middle")
    made.change("k", UPDATE, 7, NEW)  # ahead of its event, and of that of somebody else's change
    made.change("k", UPDATE, 8, NEW)
    found = []
    for version, message in ((6, middle), (7, NEW), (8, NEW)):
        found.append(made.value_before("k", version))
        live(made, UPDATE, version, message)
    assert found == [OLD, middle, NEW]
    assert made.value_before("k", 8) is None  # nothing is kept of what was before


def test_a_value_that_was_read_fills_a_key_of_the_same_version() -> None:
    made = cache(CachedKey(UNREAD, 5))
    made.add_result("k", 5, VALID, NEW)
    assert made.get("k") == CachedKey(VALID, 5, NEW)
    made.add_result("k", 5, UNREAD)
    assert made.get("k") == CachedKey(VALID, 5, NEW)


def test_what_is_dropped_is_not_known() -> None:
    made = cache(CachedKey(VALID, 5, OLD), requests=1)
    made.drop("k")
    made.drop("k")
    assert made.get("k") is None
    live(made, DESTROY, 6)
    made.drop("k")
    made.end_request(9)
    assert made.get("k") is None


@pytest.mark.parametrize("seed", range(300))
def test_any_order_of_sources_ends_with_the_newest(seed: int) -> None:
    """A server's history comes in order as events, and out of order as answers; at the end all that came agrees."""
    chance = random.Random(seed)
    history: list[CachedKey] = []
    for version in range(1, chance.randrange(2, 12)):
        alive = bool(history) and history[-1].state in (VALID, INVALID)
        after = chance.choice([VALID, INVALID, DESTROYED] if alive else [VALID])
        history.append(CachedKey(after, version, TextMessage(str(version)) if after is VALID else None))
    made, events, running = RegionCache(), 0, []
    while events < len(history) or running:
        if running and chance.random() < 0.3:
            at, is_change = running.pop(chance.randrange(len(running)))
            known = history[at]
            if is_change:
                made.change("k", operation(history, at), known.version, known.message)
            elif known.state is not DESTROYED:
                made.add_result("k", known.version, known.state, known.message)
            made.end_request(events)
        elif chance.random() < 0.4:
            made.begin_request()  # what is answered is as new as the server is now, and no older than the events told
            running.append((chance.randrange(max(0, events - 1), len(history)), chance.random() < 0.5))
        elif events < len(history):
            known = history[events]
            live(made, operation(history, events), known.version, known.message)
            events += 1
    last = history[-1]
    assert made.get("k") == (None if last.state is DESTROYED else last)


def operation(history: list[CachedKey], at: int) -> RegionOperation:
    """What has made the key so."""
    known = history[at]
    if known.state is INVALID:
        return INVALIDATE
    if known.state is DESTROYED:
        return DESTROY
    return UPDATE if at and history[at - 1].state in (VALID, INVALID) else CREATE
