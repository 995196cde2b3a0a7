"""What becomes of walks through queues: drains are carried out one by one, and counts are known as they end."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.engine.clients.client_queue import ClientQueue
from broker_adapter.engine.clients.durable_client import DurableClient
from broker_adapter.engine.clients.left_out import Closed
from broker_adapter.engine.clients.queue_walks import QueryDrain
from broker_adapter.engine.clients.walks import Walks
from broker_adapter.engine.regions.audience import Audience

HEAD = 50


class Desk:
    """A client with a queue of 20 events, which stand at the positions 1 to 20, and its walks."""

    def __init__(self) -> None:
        audience = Audience(5, 1, frozenset())
        audience.events = 20
        self.client = DurableClient("desk", ClientQueue(0))
        self.client.seen = {5: 0}
        self.drained: list[DurableClient] = []
        self.walks = Walks({5: audience}, self.drained.append)
        self.answers: list[Any] = []

    def close(self, name: str, through: int) -> QueryDrain:
        drain = QueryDrain(1, [name], through, self.answers.append)
        self.client.drains.append(drain)
        self.walks.go_on(self.client)
        return drain

    def part(self, found: list[int], through: int) -> bool:
        assert self.client.walk is not None
        return self.walks.note_part(self.client, self.client.walk, found, through, HEAD)

    def answer(self) -> list[int | None]:
        """Answer those that wait; returns the answers."""
        found = [count for _, count in self.walks.answers]
        self.walks.answers.clear()
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_drain_takes_out_what_its_walk_has_found_and_answers_how_much(desk: Desk) -> None:
    desk.close("dear", 40)
    assert list(desk.walks.walking) == [desk.client]
    assert not desk.part([3, 8], 30)
    assert desk.answer() == []
    assert not desk.part([33], 40)
    assert desk.answer() == [3]
    assert desk.drained == [desk.client]
    assert desk.client.closed == [Closed(1, ("dear",), 1, 40)]
    assert (desk.client.drained, desk.client.counters.drained) == (3, 3)
    assert (desk.client.walk, list(desk.walks.walking), desk.client.drains) == (None, [], [])


def test_what_was_dispatched_during_the_walk_is_not_taken_out(desk: Desk) -> None:
    desk.close("dear", 40)
    desk.client.queue.dispatched([3], 5)
    desk.part([3, 8], 40)
    assert desk.answer() == [1]
    assert desk.client.closed == [Closed(1, ("dear",), 6, 40)]


def test_nothing_is_noted_of_a_drain_whose_events_were_all_dispatched(desk: Desk) -> None:
    desk.close("dear", 40)
    desk.client.queue.dispatched([3, 8], 45)
    desk.part([3, 8], 40)
    assert desk.answer() == [0]
    assert (desk.client.closed, desk.client.drained) == ([], 0)


def test_drains_follow_one_another(desk: Desk) -> None:
    first, second = desk.close("dear", 40), desk.close("cheap", 45)
    assert desk.client.walk is not None
    assert desk.client.walk.drain is first
    desk.part([3], 40)
    assert desk.client.walk.drain is second
    desk.part([4], 45)
    assert desk.answer() == [1, 1]
    assert [each.names for each in desk.client.closed] == [("dear",), ("cheap",)]


def test_a_walk_that_counts_gives_way_to_a_drain_and_begins_again_for_none(desk: Desk) -> None:
    desk.walks.count(desk.client, HEAD)
    counting = desk.client.walk
    desk.walks.count(desk.client, HEAD)
    assert desk.client.walk is counting is not None
    desk.close("dear", 40)
    assert desk.client.walk is not counting
    assert not desk.walks.note_part(desk.client, counting, [7], HEAD, HEAD), "a part of a walk that is over"
    desk.part([3], 40)
    assert desk.answer() == [1]


@pytest.mark.parametrize(("head", "is_known"), [(HEAD, True), (HEAD + 1, False)])
def test_what_is_conflated_is_known_as_a_walk_that_counts_has_come_to_the_end(
    desk: Desk, head: int, is_known: bool
) -> None:
    desk.walks.count(desk.client, HEAD)
    assert desk.client.walk is not None
    assert desk.walks.note_part(desk.client, desk.client.walk, [4, 9], HEAD, head)
    assert list(desk.client.foreseen) == [4, 9]
    assert desk.client.foreseen_of == (20 if is_known else -1), "more has come meanwhile, and was not examined"


@pytest.mark.parametrize("is_drain", [True, False])
def test_a_walk_begins_again_where_more_is_queued_since_its_connection_was_lost(desk: Desk, is_drain: bool) -> None:
    desk.client.queue.dispatched([1, 2], 10)
    if is_drain:
        desk.close("dear", 40)
    else:
        desk.walks.count(desk.client, HEAD)
    before = desk.client.walk
    desk.client.rewind()
    assert not desk.part([], HEAD)
    assert desk.client.walk is not before
    assert desk.client.walk is not None
    assert (desk.client.walk.first, desk.client.walk.through) == (0, 40 if is_drain else HEAD)
    assert desk.answer() == []


def test_the_drains_of_a_queue_that_is_gone_are_answered(desk: Desk) -> None:
    desk.close("dear", 40)
    desk.close("cheap", 45)
    desk.client.drains.append(QueryDrain(1, ["restored"], 45))
    assert desk.walks.waiting() == [desk.answers.append] * 2
    desk.walks.give_up(desk.client)
    assert desk.walks.waiting() == [desk.answers.append] * 2
    assert desk.answer() == [None, None]
    assert (desk.client.walk, desk.client.drains, list(desk.walks.walking)) == (None, [], [])
    desk.walks.go_on(desk.client)
    assert desk.client.walk is None, "there is nothing to drain"
