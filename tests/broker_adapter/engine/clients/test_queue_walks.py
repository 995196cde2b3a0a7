"""A walk through a queue, in parts."""

from __future__ import annotations

from array import array

from broker_adapter.engine.clients.queue_walks import QueryDrain, Walk, count_behind


def test_a_walk_is_done_when_its_parts_have_come_to_its_end() -> None:
    walk = Walk(10, 30)
    walk.note_part([12, 19], 20)
    assert not walk.is_done
    walk.note_part([], 25)
    walk.note_part([30], 30)
    assert walk.is_done
    assert (walk.first, list(walk.found)) == (10, [12, 19, 30])
    assert Walk(7, 7).is_done, "there is nothing to walk through"


def test_what_stands_behind_a_position_is_counted() -> None:
    found = array("Q", [3, 5, 9])
    assert [count_behind(found, position) for position in (0, 3, 4, 9, 10)] == [3, 2, 2, 0, 0]


def test_a_drain_is_stored_without_who_asked_for_it() -> None:
    drain = QueryDrain(4, ["dear", "cheap"], 99, lambda _count: None)
    assert drain.record() == (4, ("dear", "cheap"), 99)
    assert QueryDrain(*drain.record()).answer is None
