"""The events of a connection's regions, over an engine that a test speaks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from broker_adapter import (
    ClientSettings,
    ConnectionLostException,
    EventDelivery,
    Identity,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    LinkLost,
    ResourceAllocationException,
    Transport,
    UnconnectedException,
)
from sdk import Region, RegionEvent, RegionListener, ResultPolicy
from sdk.redundancy import Redundancy
from sdk.regions.cache import KeyState
from sdk.regions.events import ClientEvents
from sdk.regions.state import ALL_KEYS, EXPRESSION, KEY, QUERY, Interest, RegionState, Registered
from tests.sdk.region_connections import WAIT, Told

ALL = Interest(ALL_KEYS, "")
DESTROY = 3
LINK = 7


class Scripted:
    """A transport whose answers a test gives, and which says what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.pending: Any = 0
        self.kept = 1 << 62  #: positions below it are known to be those of the same events
        self.entries: list[tuple[Any, ...]] = []  #: of the keys of the region
        self.failures: dict[str, list[JMSException]] = {}  #: by operation, what the next requests raise
        self.answers: dict[str, Callable[[], Any]] = {}  #: by operation, what makes the answer
        self.link = LINK  #: the number of the next link
        self.while_attaching: Callable[[], None] = lambda: None
        self.refusal: Callable[[], JMSException] | None = None  #: gives what further requests raise
        self.sink: Any = None
        self._changed = threading.Condition()

    def attach(self, _spec: object, sink: Any, _timeout: object) -> int:
        self.sink = sink
        self.while_attaching()
        return self.link

    def request(self, operation: str, arguments: Mapping[str, Any], _timeout: object) -> Any:
        with self._changed:
            self.asked.append((operation, arguments))
            self._changed.notify_all()
            failures = self.failures.get(operation)
        if failures:
            raise failures.pop(0)
        if operation in self.answers:
            return self.answers[operation]()
        if self.refusal is not None:
            raise self.refusal()
        if operation == "event_positions":
            return {"run": "run", "kept": self.kept}
        if operation == "read_keys":
            return {"entries": self.entries, "next": None}
        return self.pending if operation == "pending_events" else True

    def count(self, operation: str) -> int:
        return sum(each == operation for each, _ in self.asked)

    def wait_for(self, operation: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count(operation) >= times, WAIT), self.asked


class Held(Told):
    """A listener that returns from its first call when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_in = threading.Event()
        self.may_return = threading.Event()

    def after_destroy(self, event: RegionEvent) -> None:
        super().after_destroy(event)
        self._hold()

    def after_region_live(self, region: str) -> None:
        super().after_region_live(region)
        self._hold()

    def _hold(self) -> None:
        self.is_in.set()
        assert self.may_return.wait(WAIT)


def destroyed(position: int, key: str = "k") -> EventDelivery:
    return EventDelivery(position, "quotes", DESTROY, key, [(ALL_KEYS, "")], [], False)


@pytest.fixture
def engine() -> Scripted:
    return Scripted()


@pytest.fixture
def reports() -> list[JMSException]:
    return []


@pytest.fixture
def events(engine: Scripted, reports: list[JMSException]) -> Iterator[ClientEvents]:
    """Those of a durable client of engine "one"."""
    settings = ClientSettings(event_acknowledge_seconds=0)
    made = ClientEvents(
        "c", cast(Transport, engine), settings, 1, 1000, reports.append, Redundancy(0, is_required=False)
    )
    made.connected("one")
    made.start()
    yield made
    made.close(time.monotonic() + WAIT, keep=True)


def followed(events: ClientEvents, listener: RegionListener) -> RegionState:
    """A region with all keys wanted, of a client that is ready and live."""
    state = events.region("quotes")
    state.listeners = (listener,)
    with state.lock:
        state.want({ALL: Registered(True, ResultPolicy.KEYS, True)})
    events.ready()
    return state


def made(events: ClientEvents, state: RegionState) -> Region:
    """The region as the application has it."""
    return Region(None, events, state, Identity("p", 1, 0))


def test_a_change_while_the_connection_is_restored_says_who_tells_when_it_is(events: ClientEvents) -> None:
    events.interrupted()
    with pytest.raises(UnconnectedException, match=r"when connection\.event_listener has got Restored"):
        made(events, events.region("quotes")).destroy("k")


def test_a_cache_of_which_only_a_part_was_read_does_not_answer_for_all_keys(
    engine: Scripted, events: ClientEvents
) -> None:
    state = followed(events, Told())
    region = made(events, state)
    events.interrupted()
    for read in (region.keys, region.get_all, lambda: region.get("k"), lambda: "k" in region):
        with pytest.raises(UnconnectedException):
            read()
    state.fill([ALL], ResultPolicy.KEYS)
    assert (region.keys(), region.get("k"), "k" in region) == ([], None, False)
    state.refresh([ALL])  # a loss by which nothing was missed
    assert region.keys() == []
    state.refresh()
    assert region.keys() == []


def test_a_value_that_was_not_read_is_none_of_all_values(engine: Scripted, events: ClientEvents) -> None:
    state = followed(events, Told())
    state.want({ALL: Registered(True, ResultPolicy.KEYS_VALUES, False)})
    state.fill([ALL], ResultPolicy.KEYS_VALUES)
    state.add_result(state.cache, "k", 1, KeyState.UNREAD)
    region = made(events, state)
    events.interrupted()
    for read in (region.get_all, lambda: region.get("k")):
        with pytest.raises(UnconnectedException):
            read()
    assert region.keys() == ["k"]


def test_events_of_another_engine_are_told_though_a_listener_ran_as_it_was_found(
    engine: Scripted, events: ClientEvents
) -> None:
    held = Held()
    followed(events, held)
    engine.sink([destroyed(100)])
    assert held.is_in.wait(WAIT)
    events.interrupted()
    events.restored("two")
    held.may_return.set()
    engine.wait_for("ready_for_events", 2)
    engine.sink([destroyed(3)])
    held.wait_for(2)
    assert [event.version for event in held.events] == [100, 3]
    engine.wait_for("acknowledge_events")
    assert [arguments["through"] for each, arguments in engine.asked if each == "acknowledge_events"] == [3]


def test_what_an_engine_tells_again_is_known_though_another_one_was_between(
    engine: Scripted, events: ClientEvents
) -> None:
    told = Told()
    followed(events, told)
    engine.sink([destroyed(100)])
    told.wait_for(1)
    for number, store in enumerate(("two", "one"), 2):
        events.interrupted()
        events.restored(store)
        engine.wait_for("ready_for_events", number)
    engine.sink([destroyed(100), destroyed(101)])
    told.wait_for(2)
    assert [event.version for event in told.events] == [100, 101]


def test_events_and_caches_start_over_where_the_store_is_an_older_copy(
    engine: Scripted, events: ClientEvents, reports: list[JMSException]
) -> None:
    told = Told()
    state = followed(events, told)
    engine.sink([destroyed(100)])
    told.wait_for(1)
    with state.lock:
        state.cache.add_result("k", 100, KeyState.UNREAD)
    engine.kept = 100
    events.interrupted()
    events.restored("one")
    engine.wait_for("ready_for_events", 2)
    assert list(state.cache) == []
    engine.sink([destroyed(60)])
    told.wait_for(2)
    assert [event.version for event in told.events] == [100, 60]
    assert "older copy" in str(reports[0])
    assert [arguments for each, arguments in engine.asked if each == "event_positions"] == [
        {"run": None},
        {"run": "run"},
    ]


def test_a_link_that_is_attached_to_an_older_copy_has_missed_nothing_at_the_next_loss(
    engine: Scripted, events: ClientEvents, reports: list[JMSException]
) -> None:
    told = Told()
    followed(events, told)
    engine.sink([destroyed(100)])
    told.wait_for(1)
    events.came(LinkLost(LINK, ResourceAllocationException("the queue is dropped")))
    engine.kept = 100
    followed(events, told)  # what the regions knew is forgotten with the link that was lost
    engine.kept = 1 << 62
    events.interrupted()
    events.restored("one")
    engine.wait_for("ready_for_events", 3)
    assert reports == []


def test_what_a_close_ends_is_not_reported(engine: Scripted, events: ClientEvents, reports: list[JMSException]) -> None:
    followed(events, Told())
    ending = threading.Event()

    def refused() -> JMSException:
        assert ending.wait(WAIT)
        return IllegalStateException("the connection is closed")

    engine.refusal = refused
    events.interrupted()
    events.restored("one")
    engine.wait_for("pending_events", 2)
    closing = threading.Thread(target=events.close, args=(time.monotonic() + WAIT,), kwargs={"keep": True})
    closing.start()
    while not events._is_ending:
        time.sleep(0.001)
    ending.set()
    closing.join(WAIT)
    assert not reports


def test_caches_are_read_again_from_another_engine_that_knows_the_client(
    engine: Scripted, events: ClientEvents, reports: list[JMSException]
) -> None:
    state = followed(events, Told())
    with state.lock:
        state.cache.add_result("k", 100, KeyState.UNREAD)
    engine.entries = [("k", 3, 1, None, None)]
    engine.pending = 5
    events.interrupted()
    events.restored("two")
    engine.wait_for("ready_for_events", 2)
    found = state.cache.get("k")
    assert found is not None
    assert (found.version, found.state) == (3, KeyState.INVALID)
    assert isinstance(reports[0], ResourceAllocationException)


def test_caches_are_read_again_where_the_connection_is_lost_as_that_begins(
    engine: Scripted, events: ClientEvents
) -> None:
    state = followed(events, Told())
    with state.lock:
        state.cache.add_result("old", 1, KeyState.UNREAD)
    engine.pending = -1
    engine.failures["register_interest"] = [ConnectionLostException("again")]
    events.interrupted()
    events.restored("one")
    engine.wait_for("register_interest")
    events.interrupted()
    engine.pending = 0  # the first attempt has made a new queue
    events.restored("one")
    engine.wait_for("ready_for_events", 2)
    assert list(state.cache) == []


def test_a_link_that_is_lost_as_it_is_attached_can_be_attached_again(engine: Scripted, events: ClientEvents) -> None:
    error = ResourceAllocationException("the queue is dropped")
    engine.while_attaching = lambda: (events.came(LinkLost(LINK, error)), None)[1]
    with pytest.raises(ResourceAllocationException, match="dropped"):
        events.attach()
    engine.while_attaching = lambda: None
    engine.pending = -1
    assert events.attach() == -1


def test_a_stop_waits_for_a_listener_that_is_told_of_the_marker_again(engine: Scripted, events: ClientEvents) -> None:
    held = Held()
    state = followed(events, held)
    with state.lock:
        state._touched["k"] = None
    engine.failures["read_keys"] = [ConnectionLostException("for a moment")]
    engine.sink([EventDelivery(9)])
    assert held.is_in.wait(WAIT)
    assert not events.stop(time.monotonic() + 0.05)
    held.may_return.set()
    assert events.stop(time.monotonic() + WAIT)


def test_a_listener_that_ends_its_thread_does_not_end_the_events(engine: Scripted, events: ClientEvents) -> None:
    class Ending(Told):
        def after_destroy(self, event: RegionEvent) -> None:
            super().after_destroy(event)
            raise SystemExit

    ending = Ending()
    followed(events, ending)
    engine.sink([destroyed(1), destroyed(2)])
    assert len(ending.wait_for(2)) == 2


def test_a_fault_of_our_own_does_not_end_the_events(
    engine: Scripted, events: ClientEvents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    state = followed(events, told)

    def fail(_delivery: object, *, is_live: bool) -> None:
        monkeypatch.undo()
        raise RuntimeError(f"a fault, {is_live}")

    monkeypatch.setattr(state, "process", fail)
    engine.sink([destroyed(1)])
    engine.sink([destroyed(2)])
    told.wait_for(1)
    assert "a fault, False" in caplog.text


def test_a_query_of_a_link_that_is_lost_is_not_registered_again(engine: Scripted, events: ClientEvents) -> None:
    state = followed(events, Told())
    wanted = Interest(QUERY, "price < 10", "cheap")
    with state.lock:
        state.want({wanted: Registered(True, ResultPolicy.NONE, True)})
        state.queries["cheap"] = lambda _event: None
    events.came(LinkLost(LINK, ResourceAllocationException("the queue is dropped")))
    assert (state.interests, state.queries) == ({}, {})


def test_an_interest_that_ends_while_all_are_registered_again_stays_ended(
    engine: Scripted, events: ClientEvents
) -> None:
    region = made(events, followed(events, Told()))
    wanted: list[str] = []
    ender = threading.Thread(target=lambda: region.unregister_interest(all_keys=True), daemon=True)
    has_ended = threading.Event()

    def registers() -> bool:
        ender.start()
        has_ended.wait(0.5)  # where nothing holds it back, it comes first
        wanted.append("all")
        return True

    def unregisters() -> bool:
        wanted.clear()
        has_ended.set()
        return True

    engine.answers |= {"register_interest": registers, "unregister_interest": unregisters}
    events.interrupted()
    events.restored("one")
    engine.wait_for("unregister_interest")
    engine.wait_for("ready_for_events", 2)
    ender.join(WAIT)
    assert (wanted, region.interests) == ([], [])


def test_an_answer_of_the_last_engine_is_not_kept_behind_what_was_read_of_this_one(
    engine: Scripted, events: ClientEvents
) -> None:
    told = Told()
    state = followed(events, told)
    engine.entries = [("k", 3, 1, None, None)]

    def answer() -> Any:
        events.interrupted()
        events.restored("two")
        engine.wait_for("ready_for_events", 2)
        return [(0, 1000)]

    engine.answers["change_keys"] = answer
    assert made(events, state).put("k", "of one") == 1000
    found = state.cache.get("k")
    assert found is not None
    assert (found.version, found.state) == (3, KeyState.INVALID)


def test_what_was_read_of_the_last_engine_is_not_kept_behind_what_was_read_of_this_one(
    engine: Scripted, events: ClientEvents
) -> None:
    state = followed(events, Told())

    def answer() -> Any:
        engine.answers["read_keys"] = lambda: {"entries": [("k", 3, 1, None, None)], "next": None}
        events.interrupted()
        events.restored("two")
        engine.wait_for("ready_for_events", 2)
        return {"entries": [("k", 1000, 1, None, None)], "next": None}

    engine.answers["read_keys"] = answer
    assert made(events, state).get("k") is None
    found = state.cache.get("k")
    assert found is not None
    assert found.version == 3


def test_an_interest_that_is_registered_as_the_cache_is_read_again_fills_it(
    engine: Scripted, events: ClientEvents
) -> None:
    state = followed(events, Told())
    engine.pending = -1

    def answer() -> Any:
        del engine.answers["read_keys"]
        engine.entries = [("k", 3, 1, None, None)]
        events.interrupted()
        events.restored("one")
        engine.wait_for("ready_for_events", 2)
        with state.lock:
            state.cache.drop("k")  # as if it was read by nothing else
        return {"entries": [("k", 2, 1, None, None)], "next": None}

    engine.answers["read_keys"] = answer
    made(events, state).register_interest("k", durable=True)
    found = state.cache.get("k")
    assert found is not None
    assert found.version == 3


def test_what_only_interest_that_is_not_durable_covers_is_read_again_after_a_loss(
    engine: Scripted, events: ClientEvents
) -> None:
    state = events.region("quotes")
    kept, ended = Interest(KEY, "kept"), (Interest(KEY, "gone"), Interest(EXPRESSION, "b.*"))
    with state.lock:
        state.want({kept: Registered(True, ResultPolicy.KEYS, True)})
        state.want(dict.fromkeys(ended, Registered(False, ResultPolicy.KEYS, True)))
        for key in ("kept", "gone", "bid"):
            state.cache.add_result(key, 1, KeyState.UNREAD)
    state.registered([kept], 0)
    events.ready()
    engine.pending = 5
    engine.entries = [("bid", 2, 1, None, None)]
    events.interrupted()
    events.restored("one")
    engine.wait_for("ready_for_events", 2)
    read = [(each["keys"], each["expression"]) for operation, each in engine.asked if operation == "read_keys"]
    assert read == [(["gone"], None), (None, "b.*")]
    assert {key: found.version for key in state.cache if (found := state.cache.get(key))} == {"kept": 1, "bid": 2}


def test_a_region_is_created_at_another_engine_that_is_asked_for_it_first(
    engine: Scripted, events: ClientEvents
) -> None:
    region = made(events, events.region("quotes", conflates=True))
    missing = InvalidDestinationException("there is no region 'quotes'")
    for operation in ("change_keys", "read_keys", "register_interest"):
        engine.failures[operation] = [missing]
    engine.answers["change_keys"] = lambda: [(0, 1)]
    assert region.put("k", "v") == 1
    assert region.keys() == []
    region.register_interest("k", result_policy=ResultPolicy.NONE)
    created = [arguments for each, arguments in engine.asked if each == "create_region"]
    assert created == [{"region": "quotes", "conflates": True}] * 4


def test_a_region_that_cannot_be_created_at_another_engine_is_an_error(engine: Scripted, events: ClientEvents) -> None:
    region = made(events, events.region("quotes"))
    engine.failures["change_keys"] = [InvalidDestinationException("there is no region 'quotes'")]
    engine.failures["create_region"] = [ResourceAllocationException("full")]
    with pytest.raises(ResourceAllocationException):
        region.put("k", "v")


def test_events_of_the_next_link_wait_for_a_listener_that_was_told_by_the_last_one(
    engine: Scripted, events: ClientEvents
) -> None:
    threads: set[threading.Thread] = set()

    class InThreads(Held):
        def after_destroy(self, event: RegionEvent) -> None:
            threads.add(threading.current_thread())
            super().after_destroy(event)

    held = InThreads()
    followed(events, held)
    engine.sink([destroyed(5)])
    assert held.is_in.wait(WAIT)
    events.came(LinkLost(LINK, ResourceAllocationException("the queue is dropped")))
    engine.link = LINK + 1
    followed(events, held)
    engine.sink([destroyed(6), destroyed(7)])
    held.may_return.set()
    held.wait_for(3)
    assert [event.version for event in held.events] == [5, 6, 7]
    assert len(threads) == 1
    engine.wait_for("acknowledge_events")
    assert all(arguments["through"] >= 6 for each, arguments in engine.asked if each == "acknowledge_events")


def test_a_link_that_is_lost_in_the_middle_of_a_marker_leaves_the_next_one_its_own(
    engine: Scripted, events: ClientEvents
) -> None:
    held = Held()
    followed(events, held)
    engine.sink([EventDelivery(9)])
    assert held.is_in.wait(WAIT)
    events.came(LinkLost(LINK, ResourceAllocationException("the queue is dropped")))
    engine.link = LINK + 1
    followed(events, held)
    held.may_return.set()
    engine.sink([EventDelivery(12)])
    assert held.wait_for(2) == ["live quotes"] * 2


def test_a_link_that_is_attached_first_to_another_engine_has_events_from_the_first_position_on(
    engine: Scripted, events: ClientEvents
) -> None:
    told = Told()
    followed(events, told)
    engine.sink([destroyed(100)])
    told.wait_for(1)
    events.came(LinkLost(LINK, ResourceAllocationException("the queue is dropped")))
    events.interrupted()
    events.restored("two")
    engine.link = LINK + 1
    followed(events, told)
    engine.sink([destroyed(3)])
    told.wait_for(2)
    assert [event.version for event in told.events] == [100, 3]


def test_a_value_that_was_asked_for_ahead_of_a_registration_is_not_kept(engine: Scripted, events: ClientEvents) -> None:
    state = events.region("quotes")
    region = made(events, state)

    def answer() -> Any:
        engine.answers["read_keys"] = lambda: {"entries": [], "next": None}  # it is destroyed
        region.register_interest("k")
        return {"entries": [("k", 2, 1, None, None)], "next": None}

    engine.answers["read_keys"] = answer
    assert region.get("k", "none") == "none"
    assert state.cache.known() == []
