"""Where blocked sends wait, and which one is next."""

from __future__ import annotations

from collections import deque

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.rules.wait_queues import BlockedSend, WaitQueues
from tests.broker_adapter.engine.decisions import FULL, Q, Rules


def test_a_line_is_in_the_order_of_arrival_wherever_one_comes_back_to_it() -> None:
    wait_queues, full = WaitQueues(), QueueState.__new__(QueueState)
    full.id, full.wait_queue = 1, WaitQueues().engine_wide
    all_blocked = [
        wait_queues.arrived(c.Enqueue(client, Q, []), 0, 0)  # a connection for each
        for client in range(5)
    ]
    order = [2, 4, 0, 3, 1]
    for index in order:
        wait_queues.wait(all_blocked[index], full)
    assert [blocked.arrival for blocked in full.wait_queue] == [1, 2, 3, 4, 5]
    assert wait_queues.count == 5
    assert wait_queues.take(full.wait_queue) is all_blocked[0]
    assert wait_queues.end((all_blocked[0],)) == []
    assert wait_queues.end(all_blocked) == []
    assert (wait_queues.count, list(wait_queues), list(wait_queues.queues())) == (0, [], [])
    assert (wait_queues.engine_wide, wait_queues.is_matching) == (deque(), False)


def test_what_has_ended_keeps_no_message() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=1000)
    first, others = rules.connect(), rules.connect()
    rules.send(first, Q, b"x")
    rules._decide(c.Enqueue(first, Q, [c.NewMessage(0, b"waits")]))
    for number in range(200):
        commit = c.CommitId("session", number)
        rules._decide(c.Commit(others, commit, [(Q, c.NewMessage(0, b"gone"))], []))
    wait_queues = rules.state.wait_queues
    assert wait_queues.count == 2
    assert len(wait_queues._timed) == 2
    assert len(wait_queues._deadlines) <= 2 * 2 + 64


def test_a_connection_with_many_sends_that_wait_goes_in_time_that_grows_as_they_do() -> None:
    """Each of them is examined a few times, however many there are."""
    looked = 0

    class Counted(BlockedSend):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    wait_queues = WaitQueues()
    all_blocked = [Counted(c.Enqueue(1, Q, []), number, 0, 1000) for number in range(2000)]
    wait_queues.wait(all_blocked[0], None)
    for blocked in all_blocked[1:]:
        assert wait_queues.first_before(blocked) is all_blocked[0]
        wait_queues.wait_behind(blocked, FULL)
    assert wait_queues.end(wait_queues.of_client(1)) == []
    assert (wait_queues.count, looked) == (0, 0)
    assert (wait_queues._routes, wait_queues._of_clients, wait_queues._timed) == ({}, {}, {})
