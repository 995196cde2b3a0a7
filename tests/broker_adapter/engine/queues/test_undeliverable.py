"""Messages that some consumers do not take (undeliverable-here), and others may."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.undeliverable import MOST_CONSUMERS, MOST_MESSAGES, Undeliverable
from tests.broker_adapter.engine.decisions import Q, Rules, commit, positions

NOT_HERE = c.Modified(Outcome.MODIFIED, undeliverable=True)
REASON = "JMS_HOLDFAST_DEAD_LETTER_REASON"
WAIT_MS = 30_000


def two(rules: Rules, **fields: object) -> tuple[int, int]:
    """Two consumers of the queue, with credit for many; the first one has what is there."""
    client = rules.connect()
    return rules.attach(client, Q, 10, **fields), rules.attach(client, Q, 10, **fields)


def test_another_consumer_gets_it_at_once_ahead_of_later_messages() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 1)
    rules.send(client, Q, b"a", b"b")
    other = rules.attach(client, Q)
    rules.do(c.Settle(first, [1], NOT_HERE), c.Credit(other, 2))

    assert positions(rules, other) == [1, 2]
    assert rules.delivered[other] == [(1, 1), (2, 0)], "its failed delivery counts"


@pytest.mark.parametrize(("outcome", "count"), [(Outcome.RELEASED, 0), (Outcome.MODIFIED, 1)])
def test_it_does_not_come_to_the_same_consumer_again_while_later_messages_do(outcome: Outcome, count: int) -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, b"a", b"b", b"c")
    rules.do(c.Settle(consumer, [1], c.Modified(outcome, undeliverable=True)), c.Credit(consumer, 5))

    assert positions(rules, consumer) == [1, 2, 3]
    assert rules.depth("q") == 3
    newcomer = rules.attach(client, Q, 5)
    assert rules.delivered[newcomer] == [(1, count)]


def test_the_next_one_that_comes_gets_it_when_its_only_consumer_has_gone() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, b"a")
    rules.do(c.Settle(consumer, [1], NOT_HERE))
    rules.do(c.Detach(consumer))
    assert not rules.state.directory.by_destination[Q].undeliverable.refusers

    newcomer = rules.attach(client, Q, 5)
    assert positions(rules, newcomer) == [1]
    rules.pass_time(2 * WAIT_MS)
    assert rules.depth("DLQ") == 0


def test_it_is_a_dead_letter_with_the_reason_when_no_other_has_come_in_time() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"a")
    rules.do(c.Settle(consumer, [1], NOT_HERE))
    assert rules.state.next_deadline_ms() == rules.now_ms + WAIT_MS
    rules.pass_time(WAIT_MS - 1)
    assert (rules.depth("q"), rules.depth("DLQ")) == (1, 0)
    rules.pass_time(1)

    assert (rules.depth("q"), rules.depth("DLQ")) == (0, 1)
    (added,) = rules.added("DLQ")
    assert added[REASON] == (
        "undeliverable at its consumers, and no other took it within 30 s (option max_redelivery_delay_seconds)"
    )
    assert positions(rules, consumer) == [1]
    assert rules.state.next_deadline_ms() is None


def test_each_consumer_gets_it_once_and_the_waiting_begins_again_with_each() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a")
    consumers = [rules.attach(client, Q, 10) for _ in range(3)]
    for consumer in consumers:
        rules.pass_time(WAIT_MS - 1)
        assert positions(rules, consumer) == [1]
        rules.do(c.Settle(consumer, [1], NOT_HERE))
    rules.pass_time(WAIT_MS - 1)
    assert rules.depth("DLQ") == 0
    rules.pass_time(1)
    assert rules.depth("DLQ") == 1
    assert [positions(rules, each) for each in consumers] == [[1]] * 3


def test_it_waits_for_a_consumer_that_is_there_and_has_no_credit() -> None:
    rules = Rules()
    first, busy = two(rules)
    rules.do(c.Drain(busy))
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    rules.pass_time(3 * WAIT_MS)
    assert rules.depth("DLQ") == 0
    rules.do(c.Credit(busy, 1))
    assert positions(rules, busy) == [1]


def test_a_failure_at_another_consumer_does_not_bring_it_back_to_the_first_one() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    for number, outcome in enumerate((Outcome.RELEASED, Outcome.MODIFIED, Outcome.FAILED, Outcome.FAILED), start=1):
        rules.do(c.Settle(other, [number], outcome))
    rules.pass_time(1000)
    assert positions(rules, first) == [1]
    assert positions(rules, other) == [1] * 5
    rules.do(c.Detach(other, give_back=True))
    assert positions(rules, first) == [1]
    rules.pass_time(WAIT_MS)
    assert rules.depth("DLQ") == 1


def test_beyond_the_limit_of_deliveries_it_is_a_dead_letter_at_once() -> None:
    rules = Rules(max_deliveries=1)
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    assert positions(rules, other) == []
    assert rules.depth("DLQ") == 1


def test_an_exclusive_consumer_that_refuses_it_shuts_out_the_others() -> None:
    rules = Rules()
    first, other = two(rules, exclusive=True)
    rules.send(rules.connect(), Q, b"a", b"b")
    rules.do(c.Settle(first, [1], NOT_HERE))
    assert (positions(rules, first), positions(rules, other)) == ([1, 2], [])
    rules.pass_time(WAIT_MS)
    assert rules.depth("DLQ") == 1


def test_a_message_of_a_group_goes_to_another_consumer_than_the_one_that_has_the_group() -> None:
    rules = Rules()
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a", b"b", group=c.group_number("g"))
    assert positions(rules, first) == [1, 2]
    rules.do(c.Settle(first, [1], NOT_HERE))
    assert positions(rules, other) == [1]


def test_in_a_commit_it_has_the_same_effect() -> None:
    rules = Rules()
    client = rules.connect()
    first, other = rules.attach(client, Q, 10), rules.attach(client, Q, 10)
    rules.send(client, Q, b"a")
    rules.do(commit(client, 1, [], [(first, 1, NOT_HERE)]))
    assert (positions(rules, first), positions(rules, other)) == ([1], [1])


def test_after_its_consumer_has_detached_it_is_like_any_other() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 10)
    rules.send(client, Q, b"a")
    rules.do(c.Detach(first))
    rules.do(c.Settle(first, [1], NOT_HERE))
    again = rules.attach(client, Q, 10)
    assert positions(rules, again) == [1]


def test_what_is_refused_in_the_dead_letter_queue_stays_there() -> None:
    rules = Rules()
    client = rules.connect()
    dead = queue("DLQ")
    rules.send(client, dead, b"x")
    consumer = rules.attach(client, dead, 10)
    rules.do(c.Settle(consumer, [1], NOT_HERE))
    rules.pass_time(3 * WAIT_MS)
    assert rules.depth("DLQ") == 1
    assert rules.added("DLQ") == []


def test_a_message_that_ends_meanwhile_is_forgotten() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 10)
    rules.send(client, Q, b"a", expires_at_ms=rules.now_ms + 10)
    rules.do(c.Settle(first, [1], NOT_HERE))
    rules.now_ms += 20
    other = rules.attach(client, Q, 10)
    assert positions(rules, other) == []
    assert not rules.state.directory.by_destination[Q].undeliverable.refusers
    rules.pass_time(WAIT_MS)
    assert rules.depth("DLQ") == 0


def test_too_many_messages_or_consumers_are_dead_letters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.queues.undeliverable.MOST_MESSAGES", 2)
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"a", b"b", b"c")
    rules.do(c.Settle(consumer, [1, 2, 3], NOT_HERE))
    assert (rules.depth("q"), rules.depth("DLQ")) == (2, 1)


# The table by itself.


def test_at_its_limits_it_notes_nothing_more() -> None:
    table: Undeliverable[int] = Undeliverable()
    assert all(table.refuse(1, consumer, 0) for consumer in range(MOST_CONSUMERS))
    assert not table.refuse(1, MOST_CONSUMERS, 0)
    assert all(table.refuse(position, 0, 0) for position in range(2, MOST_MESSAGES + 1))
    assert not table.refuse(MOST_MESSAGES + 1, 0, 0)
    table.remove(1)
    assert table.refuse(MOST_MESSAGES + 1, 0, 0)


def test_messages_that_others_have_taken_without_a_look_at_it_do_not_pile_up() -> None:
    table: Undeliverable[int] = Undeliverable()
    for position in range(10_000):
        assert table.refuse(position, 0, position)
        table.add(4, position)
        table.remove(position)
    assert sum(map(len, table.waiting.values())) < 100
    assert table.take(1) is None
    assert table.first_due_ms() is None


def test_a_waiting_that_was_set_twice_for_the_same_time_ends_once() -> None:
    table: Undeliverable[int] = Undeliverable()
    for consumer in range(2):
        assert table.refuse(1, consumer, 10)
    assert table.due(9) == []
    assert table.due(10) == [1]
    assert table.due(10) == []
    table.wait_until(1, 20)
    assert table.first_due_ms() == 20
