"""Credit, slices and drains."""

from __future__ import annotations

from typing import Any

from ack_modes import Outcome
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.decisions import Q, Rules


def test_a_drain_is_answered_when_all_that_there_is_was_handed_out() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    consumer = rules.attach(client, Q)
    rules.send(client, Q, *[b"x"] * 25)
    answers: list[int] = []
    rules.do(c.Credit(consumer, 100), c.Drain(consumer, answers.append), c.Due(()))
    assert (len(rules.delivered[consumer]), answers) == (10, [])
    while rules.state.has_more:
        for reply, result in rules.pass_time(0).replies:
            reply(result)
    assert (len(rules.delivered[consumer]), answers) == (25, [75])


def test_a_drain_without_credit_is_answered_however_busy_its_queue_is() -> None:
    rules = Rules()
    rules.state.directory.memory.cycle_handouts = 10
    client = rules.connect()
    busy, drained = rules.attach(client, Q, 10), rules.attach(client, Q)
    answers: list[int] = []
    commands: tuple[Any, ...] = (c.Credit(drained, 1), c.Drain(drained, answers.append))
    for _ in range(3):
        rules.do(*commands, c.Credit(busy, 20), c.Enqueue(client, Q, [c.NewMessage(0, b"x")] * 20))
        commands = ()
    assert rules.state.has_more
    assert (len(rules.delivered[drained]), answers) == (1, [0])


def test_credit_that_is_drained_is_gone_after_the_deliveries() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"x", b"y")
    assert rules.do(c.Drain(consumer)) == 8
    rules.send(client, Q, b"z")
    assert len(rules.delivered[consumer]) == 2


def test_a_consumer_gets_a_slice_of_bytes_at_a_time() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10, slice_bytes=100)
    rules.send(client, Q, *[b"x" * 40] * 20)
    assert len(rules.delivered[consumer]) == 3
    rules.do(c.Settle(consumer, [1, 2, 3], Outcome.ACCEPTED))
    assert len(rules.delivered[consumer]) == 3
    rules.do(c.Credit(consumer, 0))
    assert len(rules.delivered[consumer]) == 6
    assert rules.do(c.Drain(consumer)) == 1
    assert len(rules.delivered[consumer]) == 9
    rules.do(c.Credit(consumer, 2))
    assert len(rules.delivered[consumer]) == 11


def test_a_message_larger_than_a_slice_is_handed_out_alone() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10, slice_bytes=100, presettled=True)
    rules.send(client, Q, b"x" * 1000, b"y" * 99, b"z")
    assert len(rules.delivered[consumer]) == 1
    rules.do(c.Credit(consumer, 0))
    assert len(rules.delivered[consumer]) == 3


def test_a_consumer_whose_slice_is_used_up_blocks_no_other_one() -> None:
    rules = Rules()
    client = rules.connect()
    small = rules.attach(client, Q, 10, slice_bytes=1)
    large = rules.attach(client, Q, 10)
    rules.send(client, Q, *[b"x"] * 9)
    assert [len(rules.delivered[consumer]) for consumer in (small, large)] == [1, 8]
