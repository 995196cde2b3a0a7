"""Which events of a queue are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from broker_adapter.engine.clients import left_out
from broker_adapter.engine.clients.client_queue import ClientQueue, LeftOut
from broker_adapter.engine.clients.left_out import Closed, LeavingOut
from broker_adapter.engine.regions.audience import Audience
from broker_adapter.engine.regions.event_records import Answer, EventRecord, Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind, digest
from broker_adapter.engine.regions.routing import Routing

REGION, BROAD = 1, 100
DEAR = Interest(InterestKind.QUERY, "price > 5", "dear")
CHEAP = Interest(InterestKind.QUERY, "price < 3", "cheap")
SELECTOR = Interest(InterestKind.SELECTOR, "price > 7")


def says(*answers: tuple[Interest, Operation]) -> list[Answer]:
    """What selectors and queries say of an event, as it is stored."""
    return [(digest(each.question), operation) for each, operation in answers]


class World:
    """A client that wants some things of a region, and the updates of one key."""

    def __init__(self, *wanted: Interest) -> None:
        routing = Routing(REGION, count(5).__next__)
        self.mine = routing.audience(frozenset(wanted))
        self.audiences = {self.mine.id: self.mine}
        self.queue = ClientQueue(0)
        self.queue.belong(REGION, BROAD, self.mine.id, 0)
        self.events: dict[int, EventRecord] = {}
        self.closed: list[Closed] = []
        self.conflates = True

    def add(self, *answers: tuple[Interest, Operation], audiences: Sequence[int] | None = None, run: int = 1) -> int:
        """An update of the key; returns its position."""
        position = len(self.events) + 1
        wanting = [self.mine.id] if audiences is None else audiences
        self.events[position] = EventRecord(REGION, Operation.UPDATE, 7, 10, "a", wanting, says(*answers), run)
        return position

    def event(self, position: int) -> EventRecord | None:
        return self.events.get(position)

    def updates_behind(self, run: int, position: int) -> Iterator[int]:
        return iter([at for at, event in self.events.items() if event.run == run and at > position])

    def postings(self, stream: int, first: int, last: int) -> Iterator[int]:
        return iter(())

    def postings_through(self, stream: int, position: int) -> int:
        return 0

    def why(self, position: int) -> LeftOut | None:
        leave_out = LeavingOut(self, self.queue, self.audiences.get, self.closed, lambda _region: self.conflates)
        return leave_out(position, self.events[position], self.mine.id)


def test_an_update_is_left_out_if_a_newer_one_of_its_run_is_queued_and_the_newest_stays() -> None:
    world = World(ALL_KEYS)
    first, second, third = world.add(), world.add(), world.add()
    assert [world.why(each) for each in (first, second, third)] == [LeftOut.CONFLATED, LeftOut.CONFLATED, None]


def test_an_update_of_another_run_supersedes_nothing() -> None:
    world = World(ALL_KEYS)
    first = world.add()
    world.add(run=2)
    assert world.why(first) is None


def test_a_client_that_does_not_ask_for_it_gets_all_updates() -> None:
    world = World(ALL_KEYS)
    world.conflates = False
    first = world.add()
    world.add()
    assert world.why(first) is None


@pytest.mark.parametrize("other", [(), (99,)])
def test_a_newer_update_that_is_not_for_the_client_supersedes_nothing(other: tuple[int, ...]) -> None:
    world = World(SELECTOR)
    first = world.add((SELECTOR, Operation.UPDATE))
    world.add(audiences=other)
    assert world.why(first) is None
    world.add((SELECTOR, Operation.UPDATE))
    assert world.why(first) is LeftOut.CONFLATED


def test_a_newer_update_that_cannot_be_read_supersedes_nothing() -> None:
    world = World(SELECTOR)
    first, second = world.add((SELECTOR, Operation.UPDATE)), world.add((SELECTOR, Operation.UPDATE))
    leave_out = LeavingOut(world, world.queue, world.audiences.get, [], lambda _region: True)
    event = world.events[first]
    world.updates_behind = lambda run, position: iter([second])  # type: ignore[method-assign]
    del world.events[second]
    assert leave_out(first, event, world.mine.id) is None


def test_a_newer_update_from_before_the_client_wanted_the_region_supersedes_nothing() -> None:
    world = World(SELECTOR)
    first = world.add((SELECTOR, Operation.UPDATE))
    world.queue.belong(REGION, BROAD, None, first)
    world.add((SELECTOR, Operation.UPDATE))
    assert world.why(first) is None


def test_for_a_query_only_an_update_is_superseded_and_supersedes() -> None:
    world = World(DEAR)
    appeared = world.add((DEAR, Operation.CREATE))
    changed = world.add((DEAR, Operation.UPDATE))
    assert world.why(appeared) is None, "the key appears for the query"
    disappeared = world.add((DEAR, Operation.DESTROY))
    assert [world.why(each) for each in (changed, disappeared)] == [None, None]
    again = World(DEAR)
    older = again.add((DEAR, Operation.UPDATE))
    again.add((DEAR, Operation.UPDATE))
    assert again.why(older) is LeftOut.CONFLATED


def test_an_update_for_interest_is_not_superseded_by_one_for_a_query_only() -> None:
    world = World(SELECTOR, DEAR)
    first = world.add((SELECTOR, Operation.UPDATE), (DEAR, Operation.UPDATE))
    world.add((DEAR, Operation.UPDATE))
    assert world.why(first) is None


def test_no_more_newer_updates_are_examined_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "NEWER", 2)
    world = World(SELECTOR)
    first = world.add((SELECTOR, Operation.UPDATE))
    second, _, _ = (world.add(audiences=()) for _ in range(3))
    assert second == 2
    world.add((SELECTOR, Operation.UPDATE))
    assert world.why(first) is None


def test_an_event_that_only_queries_wanted_which_have_ended_is_drained_within_their_positions() -> None:
    world = World(DEAR, CHEAP)
    world.conflates = False
    for _ in range(4):
        world.add((DEAR, Operation.UPDATE), run=0)
    world.closed = [Closed(REGION, ("dear",), 2, 3), Closed(REGION + 1, ("dear",), 1, 4)]
    assert [world.why(position) for position in (1, 2, 3, 4)] == [None, LeftOut.DRAINED, LeftOut.DRAINED, None]


@pytest.mark.parametrize("also", [CHEAP, SELECTOR])
def test_an_event_that_something_else_wanted_too_is_not_drained(also: Interest) -> None:
    world = World(DEAR, also)
    position = world.add((DEAR, Operation.UPDATE), (also, Operation.UPDATE), run=0)
    world.closed = [Closed(REGION, ("dear",), 1, 9)]
    assert world.why(position) is None
    if also is CHEAP:
        world.closed = [Closed(REGION, ("dear", "cheap"), 1, 9)]
        assert world.why(position) is LeftOut.DRAINED


def test_a_newer_update_that_is_drained_supersedes_nothing() -> None:
    world = World(DEAR, CHEAP)
    first = world.add((DEAR, Operation.UPDATE), (CHEAP, Operation.UPDATE))
    world.add((DEAR, Operation.UPDATE))
    last = world.add((DEAR, Operation.UPDATE), (CHEAP, Operation.UPDATE))
    world.closed = [Closed(REGION, ("dear",), 1, 9)]
    assert [world.why(position) for position in (first, 2, last)] == [LeftOut.CONFLATED, LeftOut.DRAINED, None]


def test_an_event_of_an_audience_that_is_gone_is_left_to_the_client() -> None:
    world = World(DEAR)
    first = world.add((DEAR, Operation.UPDATE))
    world.closed = [Closed(REGION, ("dear",), 1, 9)]
    audiences: dict[int, Audience] = {}
    leave_out = LeavingOut(world, world.queue, audiences.get, world.closed, lambda _region: True)
    assert leave_out(first, world.events[first], world.mine.id) is None
