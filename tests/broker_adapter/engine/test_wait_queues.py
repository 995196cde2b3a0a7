"""Where blocked sends wait, and which one is next."""

from __future__ import annotations

from collections import deque

from broker_adapter.engine import commands as c
from broker_adapter.engine.queue_state import QueueState
from broker_adapter.engine.wait_queues import BlockedSend, WaitQueues
from tests.broker_adapter.engine.rules import FULL, Q, Rules


def test_a_line_is_in_the_order_of_arrival_wherever_one_comes_back_to_it() -> None:
    holding, line_of = WaitQueues(), QueueState.__new__(QueueState)
    line_of.id, line_of.wait_queue = 1, WaitQueues().engine_wide
    all_held = [
        holding.arrived(c.Enqueue(client, Q, []), 0, 0)  # a connection for each
        for client in range(5)
    ]
    order = [2, 4, 0, 3, 1]
    for index in order:
        holding.wait(all_held[index], line_of)
    assert [held.arrival for held in line_of.wait_queue] == [1, 2, 3, 4, 5]
    assert holding.count == 5
    assert holding.take(line_of.wait_queue) is all_held[0]
    assert holding.end((all_held[0],)) == []
    assert holding.end(all_held) == []
    assert (holding.count, list(holding), list(holding.queues())) == (0, [], [])
    assert (holding.engine_wide, holding.is_matching) == (deque(), False)


def test_what_has_ended_keeps_no_message() -> None:
    rules = Rules(max_queue_messages=1, hold_timeout_seconds=1000)
    first, others = rules.connect(), rules.connect()
    rules.send(first, Q, b"x")
    rules._decide(c.Enqueue(first, Q, [c.NewMessage(0, b"waits")]))
    for number in range(200):
        commit = c.CommitId("session", number)
        rules._decide(c.Commit(others, commit, [(Q, c.NewMessage(0, b"gone"))], []))
    holding = rules.state.wait_queues
    assert holding.count == 2
    assert len(holding._timed) == 2
    assert len(holding._deadlines) <= 2 * 2 + 64


def test_a_connection_with_many_sends_that_wait_goes_in_time_that_grows_as_they_do() -> None:
    """Each of them is looked at a few times, however many there are."""
    looked = 0

    class Counted(BlockedSend):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    holding = WaitQueues()
    all_held = [Counted(c.Enqueue(1, Q, []), number, 0, 1000) for number in range(2000)]
    holding.wait(all_held[0], None)
    for held in all_held[1:]:
        assert holding.first_before(held) is all_held[0]
        holding.wait_behind(held, FULL)
    assert holding.end(holding.of_client(1)) == []
    assert (holding.count, looked) == (0, 0)
    assert (holding._routes, holding._of_clients, holding._timed) == ({}, {}, {})
