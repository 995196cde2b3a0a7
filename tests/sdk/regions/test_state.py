"""What a connection knows of one region, over an engine that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_adapter import BodyKind, Envelope, EventDelivery, JMSException
from broker_adapter.destination import topic
from sdk import ResultPolicy
from sdk.regions.cache import KeyState, RegionOperation
from sdk.regions.state import ALL_KEYS, EXPRESSION, KEY, Interest, RegionState, Registered
from tests.sdk.region_connections import Told

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


def put(key: str, position: int) -> EventDelivery:
    envelope = Envelope(topic("quotes"), BodyKind.TEXT, f"{key} {position}")
    return EventDelivery(
        position, "quotes", RegionOperation.CREATE, key, ((ALL_KEYS, ""),), (), False, envelope, lambda each: each
    )


def test_an_event_of_a_former_registration_brings_back_no_key_that_was_destroyed_meanwhile() -> None:
    state, told = state_of(), Told()
    state.listeners = (told,)
    state.want({ALL: HOW})
    state.process(put("early", 3), is_live=True)  # ahead of the answer: what is read behind it knows better
    state.registered([ALL], 5)
    state.process(put("gone", 4), is_live=True)
    state.process(put("gone too", 5), is_live=False)
    state.process(put("new", 6), is_live=True)
    assert state.cache.known() == ["new"]
    assert told.words == [
        "create early=early 3",
        "create gone=gone 4",
        "create gone too=gone too 5",
        "create new=new 6",
    ]


def test_an_event_of_a_former_registration_is_applied_to_a_key_that_is_known() -> None:
    state = state_of()
    state.want({ALL: HOW})
    state.registered([ALL], 5)
    state.cache.add_result("k", 3, KeyState.UNREAD)
    state.process(put("k", 4), is_live=True)
    state.process(put("k", 2), is_live=True)
    found = state.cache.get("k")
    assert found is not None
    assert found.version == 4


def test_only_durable_interest_that_the_engine_had_before_the_first_loss_misses_nothing() -> None:
    state = RegionState("quotes", lambda operation, arguments: None)
    had, asked, ended, later = (Interest(KEY, each) for each in ("had", "asked", "ended", "later"))
    durable = Registered(True, ResultPolicy.KEYS, True)
    state.want(dict.fromkeys([had, asked, ended], durable))
    state.want({Interest(KEY, "passing"): Registered(False, ResultPolicy.KEYS, True)})
    state.registered([had, ended, Interest(KEY, "passing")], 3)
    state.lost()
    state.end([ended])
    state.want(dict.fromkeys([ended, later], durable))
    state.registered([asked, ended, later], 7)
    assert state.kept() == {had}
    state.lost()
    assert state.kept() == {had}
    state.restored()
    state.lost()
    assert state.kept() == {had, asked, ended, later}


def test_an_own_change_ahead_of_a_registration_is_kept_by_what_that_reads_only() -> None:
    state = state_of()
    state.want({ALL: HOW})
    state.changed(state.cache, "ahead", RegionOperation.CREATE, 5, None)
    state.registered([ALL], 6)  # somebody else has destroyed it in between
    state.fill([ALL], ResultPolicy.KEYS)
    state.changed(state.cache, "late", RegionOperation.CREATE, 4, None)
    state.changed(state.cache, "behind", RegionOperation.CREATE, 7, None)
    assert state.cache.known() == ["behind"]


def test_an_event_that_was_on_its_way_brings_back_no_key_that_a_commit_has_destroyed() -> None:
    state = RegionState("quotes", lambda *_: {"entries": [("kept", 8, 1, None, None)], "next": None, "position": 9})
    state.want({ALL: HOW})
    state.registered([ALL], 1)
    state.cache.add_result("gone", 3, KeyState.UNREAD)
    state.committed(["gone", "kept", "never there"])
    assert list(state.cache) == ["kept"]
    state.process(put("gone", 6), is_live=True)  # of the commit, which has destroyed the key behind it
    assert list(state.cache) == ["kept"]
    state.process(put("gone", 12), is_live=True)
    assert sorted(state.cache) == ["gone", "kept"]


def test_keys_that_a_commit_has_changed_leave_the_cache_where_they_cannot_be_read() -> None:
    def ask(*_: object) -> Any:
        raise JMSException("the engine is away")

    state = RegionState("quotes", ask)
    state.want({ALL: HOW})
    state.cache.is_whole = True
    for key in ("changed", "other"):
        state.cache.add_result(key, 3, KeyState.UNREAD)
    state.committed(["changed"])
    assert (list(state.cache), state.cache.is_whole) == (["other"], False)
