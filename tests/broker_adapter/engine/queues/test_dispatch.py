"""What is handed out, to which consumer, and how much in one cycle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policy
from broker_adapter.engine.queues.queue import Consumer
from tests.broker_adapter.engine.decisions import Q, Rules, positions


def test_commands_of_one_cycle_are_handed_out_after_the_last_of_them() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q)
    rules.do(c.Credit(consumer, 5), c.Enqueue(client, Q, [c.NewMessage(0, b"x")] * 3), c.Credit(consumer, 1))
    assert len(rules.delivered[consumer]) == 3


@pytest.mark.parametrize("fields", [{}, {"selector": "TRUE"}, {"exclusive": True}], ids=["next", "found", "exclusive"])
def test_a_cycle_hands_out_a_bounded_number_and_the_next_one_goes_on(fields: dict[str, Any]) -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    consumers = [rules.attach(client, Q, **fields) for _ in range(3)]
    rules.send(client, Q, *[b"x"] * 45)
    rules.do(*[c.Credit(each, 100) for each in consumers])
    sizes = [sum(map(len, rules.delivered.values()))]
    while rules.state.has_more:
        rules.pass_time(0)
        sizes.append(sum(map(len, rules.delivered.values())))
    if "selector" not in fields:  # the search reads messages in steps of its own
        assert sizes[:5] == [10, 20, 30, 40, 45]
        assert sizes[-1] == 45
    assert all(after - before <= 10 for before, after in itertools.pairwise(sizes))


def test_a_queue_that_a_cycle_left_out_is_the_first_in_the_next_one() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    busy, quiet = rules.attach(client, queue("busy")), rules.attach(client, queue("quiet"))
    for name, count in (("busy", 60), ("quiet", 3)):
        rules.send(client, queue(name), *[b"x"] * count)
    rules.do(c.Credit(busy, 100), c.Credit(quiet, 100))
    assert (len(rules.delivered.get(busy, ())), len(rules.delivered.get(quiet, ()))) == (10, 0)
    rules.send(client, queue("busy"), b"y")
    assert (len(rules.delivered[busy]), len(rules.delivered[quiet])) == (17, 3)


def test_consumers_take_turns() -> None:
    rules = Rules()
    client = rules.connect()
    consumers = [rules.attach(client, Q, 10) for _ in range(3)]
    rules.send(client, Q, *[b"x"] * 9)
    assert [len(rules.delivered[consumer]) for consumer in consumers] == [3, 3, 3]


def test_a_consumer_holds_no_more_than_its_limit() -> None:
    rules = Rules(max_unsettled_messages=2)
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, *[b"x"] * 5)
    assert len(rules.delivered[consumer]) == 2
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert len(rules.delivered[consumer]) == 3


def test_consumers_are_compared_only_where_the_one_whose_turn_it_is_has_less_to_do() -> None:
    """With hundreds of consumers it costs more than all the rest of a delivery."""
    rules = Rules()
    client = rules.connect()
    for _ in range(3):
        rules.attach(client, Q, 10)
    for group in range(1, 7):
        rules.send(client, Q, b"x", group=group)
    state = rules.state.directory.by_destination[Q]
    first, second, third = state.consumers
    assert [each.busy for each in state.consumers] == [2, 2, 2]
    entry = next(iter(first.unsettled.values()))
    asked: list[Consumer] = []

    def least_busy() -> Consumer:
        asked.append(third)
        return third

    assert state.owner_of(entry, second, least_busy) is first
    assert asked == []
    rules.do(c.Settle(second.id, list(second.unsettled), Outcome.ACCEPTED))
    assert state.owner_of(entry, second, least_busy) is first
    assert asked == [third], "it has no less to do than the owner: the group stays"


def test_an_idle_consumer_gets_a_group_of_which_a_busy_one_has_nothing_in_hand() -> None:
    rules = Rules()
    client = rules.connect()
    busy, idle = rules.attach(client, Q, 1), rules.attach(client, Q)
    for group in "abcab":
        rules.send(client, Q, b"x", group=ord(group))
    assert len(rules.delivered[busy]) == 1
    for _ in range(3):
        rules.do(c.Credit(idle, 1))
        (number, _), *_ = reversed(rules.delivered[idle])
        rules.do(c.Settle(idle, [number], Outcome.ACCEPTED))
    assert positions(rules, idle) == [2, 3, 5], "of the groups b and c; a is in hand"
    rules.do(c.Credit(idle, 1))
    assert positions(rules, idle) == [2, 3, 5]
    rules.do(c.Settle(busy, [1], Outcome.ACCEPTED))
    assert positions(rules, idle) == [2, 3, 5, 4]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.MODIFIED])
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_consumer_failed_on_is_for_others_while_it_works_on_something(outcome: Outcome, times: int) -> None:
    rules = Rules(redelivery_delay_seconds=0)
    client = rules.connect()
    busy = rules.attach(client, Q)
    rules.send(client, Q, *[b"x"] * 2)
    number = 0
    for _ in range(times):
        rules.do(c.Credit(busy, 2))
        rules.do(c.Settle(busy, [number + 1, number + 2], outcome))
        number += 2
    rules.do(c.Credit(busy, 1))
    assert positions(rules, busy)[-1] == 1
    idle = rules.attach(client, Q, 10)
    assert positions(rules, idle) == [2]


def test_what_a_consumer_failed_on_is_not_for_others_where_the_queue_keeps_order() -> None:
    rules = Rules(policies=[Policy("q", {"keep_order": True})])
    client = rules.connect()
    busy = rules.attach(client, Q, 2)
    rules.send(client, Q, b"1", b"2")
    rules.do(c.Settle(busy, [1], Outcome.FAILED))
    idle = rules.attach(client, Q, 1)
    assert positions(rules, idle) == []
    rules.do(c.Credit(busy, 1))
    assert positions(rules, busy) == [1, 2, 1]


def test_several_consumers_take_turns_with_what_waited_alone() -> None:
    rules = Rules()
    client = rules.connect()
    failing = rules.attach(client, Q, 2)
    rules.send(client, Q, *[b"x"] * 2)
    rules.do(c.Settle(failing, [1, 2], Outcome.FAILED), c.Credit(failing, 2))
    rules.do(c.Settle(failing, [3, 4], Outcome.FAILED))
    consumers = [rules.attach(client, Q, 10) for _ in range(2)]
    rules.pass_time(250)
    assert [positions(rules, each) for each in consumers] == [[1], [2]]


def test_what_a_consumer_failed_on_is_not_for_others_while_more_is_on_its_way_into_memory() -> None:
    rules = Rules(window_messages=10)
    client = rules.connect()
    busy = rules.attach(client, Q, 2)
    rules.send(client, Q, *[b"x"] * 30)
    rules.do(c.Settle(busy, [1], Outcome.FAILED))
    idle = rules.attach(client, Q, 20)
    assert positions(rules, idle) == list(range(3, 11)), "11 and those behind it come first"
