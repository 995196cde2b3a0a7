"""What is handed out, to which consumer, and how much in one cycle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policy
from broker_adapter.engine.queues.queue import Consumer, QueueState
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, pack
from tests.broker_adapter.engine.decisions import Q, Rules, positions

_BODY = pack(Envelope(Q))


def send_in_groups(rules: Rules, client: int, *groups: int) -> None:
    """Send a message in each of these groups; 0: in none."""
    rules.do(c.Enqueue(client, Q, [c.NewMessage(ENVELOPE_FORMAT, _BODY, group=group) for group in groups]))


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


def test_a_consumer_is_idle_although_a_message_of_its_only_group_waits() -> None:
    rules = Rules()
    client = rules.connect()
    failing = rules.attach(client, Q, 1)
    send_in_groups(rules, client, 1, 1)
    for number in (1, 2):
        rules.do(c.Settle(failing, [number], Outcome.FAILED), c.Credit(failing, 1))
    busy = rules.attach(client, Q, 1)
    send_in_groups(rules, client, 2)
    assert positions(rules, failing)[2:] == [3]
    rules.do(c.Settle(failing, [3], Outcome.ACCEPTED))
    send_in_groups(rules, client, 3, 0, 3)
    assert positions(rules, busy) == [4]
    rules.do(c.Settle(busy, [1], Outcome.ACCEPTED), c.Credit(busy, 1))
    assert positions(rules, busy) == [4, 5]
    rules.do(c.Credit(failing, 1))
    assert positions(rules, failing)[3:] == [6], "of the group 3, of which nothing is in hand"


def test_what_has_ended_is_kept_for_no_group() -> None:
    """Else an idle consumer would wait for what is not there any more."""
    rules = Rules(window_messages=10)
    client = rules.connect()
    busy = rules.attach(client, Q, 1)
    send_in_groups(rules, client, 1)
    other = rules.attach(client, Q, 10)
    for _ in range(3):
        send_in_groups(rules, client, *[1] * 5)
        found = rules.attach(client, Q, 10, presettled=True, selector="TRUE")
        assert len(positions(rules, found)) == 5
        rules.do(c.Detach(found))
    send_in_groups(rules, client, 1, 0, 1, 0)
    assert positions(rules, other) == [18, 20]
    rules.do(c.Settle(busy, [1], Outcome.ACCEPTED), c.Credit(busy, 3))
    assert positions(rules, busy) == [1, 17, 19]


def test_what_waited_because_too_many_were_kept_comes_as_they_go_to_another_consumer() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 3)
    send_in_groups(rules, client, 1, 2, 3)
    busy = rules.attach(client, Q, 3)
    send_in_groups(rules, client, 4, 5, *[1] * 4)
    rules.do(c.Settle(first, [1], Outcome.ACCEPTED))
    send_in_groups(rules, client, 0, *[1] * 8, 0)
    assert positions(rules, busy) == [4, 5, 10]
    rules.state.directory.memory.window = 10
    assert positions(rules, rules.attach(client, Q, 20)) == [6, 7, 8, 9, *range(11, 20)]


def test_what_waited_because_too_many_were_kept_comes_as_a_selector_finds_some_of_them() -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, Q, 1)
    send_in_groups(rules, client, 1)
    other = rules.attach(client, Q)
    send_in_groups(rules, client, *[1] * 12, 0)
    rules.state.directory.memory.window = 10
    rules.do(c.Credit(other, 20))
    assert positions(rules, other) == []
    assert positions(rules, rules.attach(client, Q, 5, selector="TRUE")) == [2, 3, 4, 5, 6]
    assert positions(rules, other) == [14]


def test_of_what_has_ended_in_a_group_no_more_is_noted_than_is_kept() -> None:
    rules = Rules()
    client = rules.connect()
    rules.attach(client, Q, 1)
    rules.attach(client, Q, 1)
    for _ in range(20):
        send_in_groups(rules, client, *[1] * 11)
        found = rules.attach(client, Q, 10, presettled=True, selector="TRUE")
        rules.do(c.Detach(found))
    (group,) = rules.state.directory.by_destination[Q].groups.values()
    assert len(group.kept) <= 64 + 2 * rules.depth("q")


def test_what_a_consumer_of_many_groups_gets_costs_the_same_as_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules()
    client = rules.connect()
    consumers = [rules.attach(client, Q, 2)]
    send_in_groups(rules, client, *range(1, 401))
    for number in range(1, 401):
        rules.do(c.Settle(consumers[0], [number], Outcome.ACCEPTED), c.Credit(consumers[0], 1))
    consumers.append(rules.attach(client, Q, 3))
    send_in_groups(rules, client, *[401] * 4, *range(1, 401))
    assert len(rules.state.directory.by_destination[Q].kept_for) > 300
    looked = 0
    is_owed = QueueState._is_owed

    def counted(*arguments: Any) -> bool:
        nonlocal looked
        looked += 1
        return is_owed(*arguments)

    monkeypatch.setattr(QueueState, "_is_owed", counted)
    number, _ = rules.delivered[consumers[0]][-1]
    for each in range(number, number + 100):
        rules.do(c.Settle(consumers[0], [each], Outcome.ACCEPTED), c.Credit(consumers[0], 1))
    assert looked < 1000


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
