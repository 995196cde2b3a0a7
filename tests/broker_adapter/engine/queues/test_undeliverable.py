"""Messages that some consumers do not take (undeliverable-here), and others may."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.undeliverable import MOST_CONSUMERS, MOST_MESSAGES, Undeliverable
from broker_adapter.engine.records.layout import KIND_DELIVER, RawEntry
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, pack
from tests.broker_adapter.engine.decisions import Q, Rules, commit, positions
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    come_to_rest,
    connect,
    depth,
    eventually,
    lettered,
    send,
)

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


def test_it_waits_for_another_consumer_with_a_selector_that_has_failed_on_it_and_has_no_credit() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 1)
    rules.do(c.Enqueue(client, Q, [c.NewMessage(ENVELOPE_FORMAT, pack(Envelope(Q)))]))
    rules.do(c.Settle(first, [1], NOT_HERE))
    other = rules.attach(client, Q, 1, selector="TRUE")
    rules.do(c.Settle(other, [1], Outcome.FAILED))
    rules.pass_time(WAIT_MS + 1000)
    assert (rules.depth("q"), rules.depth("DLQ")) == (1, 0)
    rules.do(c.Credit(other, 1))
    assert positions(rules, other) == [1, 1]


def test_it_comes_to_an_idle_consumer_where_another_failed_on_it_and_has_no_room() -> None:
    rules = Rules()
    client = rules.connect()
    first, failing = rules.attach(client, Q, 1), rules.attach(client, Q)
    rules.send(client, Q, b"a", b"b")
    rules.do(c.Settle(first, [1], NOT_HERE), c.Credit(failing, 2))
    assert positions(rules, failing) == [1, 2]
    rules.do(c.Settle(failing, [1], Outcome.FAILED))
    assert positions(rules, rules.attach(client, Q, 1)) == [1]


def test_a_failure_at_another_consumer_does_not_bring_it_back_to_the_first_one() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    for number, outcome in enumerate((Outcome.RELEASED, Outcome.MODIFIED, Outcome.FAILED, Outcome.FAILED), start=1):
        rules.do(c.Settle(other, [number], outcome))
        rules.pass_time(2000)
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


def test_beyond_the_limit_of_messages_it_counts_as_a_failed_delivery() -> None:
    rules = Rules(max_deliveries=3)
    client = rules.connect()
    consumer = rules.attach(client, Q, 10 + MOST_MESSAGES)
    rules.send(client, Q, *[b"x"] * (1 + MOST_MESSAGES))
    not_here = c.Modified(Outcome.RELEASED, undeliverable=True)
    rules.do(c.Settle(consumer, list(range(1, 2 + MOST_MESSAGES)), not_here))
    assert rules.depth("DLQ") == 0
    assert rules.delivered[consumer][1 + MOST_MESSAGES :] == [(2 + MOST_MESSAGES, 1)], "it comes again"
    other = rules.attach(client, Q, 10 + MOST_MESSAGES)
    assert positions(rules, other) == list(range(1, 1 + MOST_MESSAGES))
    for number in (2, 3):
        rules.do(c.Settle(consumer, [number + MOST_MESSAGES], not_here))
        rules.pass_time(1000)
    (added,) = rules.added("DLQ")
    assert added[REASON] == "delivered 3 times without success (option max_deliveries)"


def test_beyond_the_limit_of_consumers_it_counts_as_a_failed_delivery() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a")
    for _ in range(MOST_CONSUMERS + 1):
        consumer = rules.attach(client, Q, 10)
        rules.do(c.Settle(consumer, [1], NOT_HERE))
    assert positions(rules, consumer) == [1, 1]
    assert rules.depth("DLQ") == 0


def test_the_dead_letter_queue_sets_nothing_aside_however_many_messages_are_refused() -> None:
    rules = Rules()
    client = rules.connect()
    dead = queue("DLQ")
    rules.send(client, dead, *[b"x"] * (2 * MOST_MESSAGES))
    consumer = rules.attach(client, dead, 1000)
    for _ in range(20):
        rules.do(c.Settle(consumer, list(rules.state.directory.consumers[consumer].unsettled), NOT_HERE))
    assert rules.do(c.Statistics()).dead_lettered == 0
    assert rules.added("DLQ") == []
    assert len(rules.delivered[consumer]) == 3 * MOST_MESSAGES, "each further one comes once more, and then is delayed"


# The waiting.


def test_it_begins_when_the_last_consumer_that_may_have_it_has_gone() -> None:
    rules = Rules()
    first, busy = two(rules)
    rules.do(c.Drain(busy))
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    rules.pass_time(3 * WAIT_MS - 1)
    rules.do(c.Detach(busy))
    rules.pass_time(WAIT_MS - 1)
    assert rules.depth("DLQ") == 0
    rules.pass_time(1)
    assert rules.depth("DLQ") == 1


def test_it_begins_when_a_consumer_ends_that_had_it_in_hand() -> None:
    rules = Rules()
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    rules.pass_time(2 * WAIT_MS - 100)
    assert positions(rules, other) == [1]
    rules.do(c.Detach(other, give_back=True))
    rules.pass_time(WAIT_MS - 1)
    assert rules.depth("DLQ") == 0
    rules.pass_time(1)
    assert rules.depth("DLQ") == 1


def test_it_begins_again_with_each_consumer_that_has_come_and_gone() -> None:
    rules = Rules()
    first, other = two(rules)
    rules.do(c.Detach(other))
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    rules.pass_time(WAIT_MS - 1)
    rules.do(c.Detach(rules.attach(rules.connect(), Q)))
    rules.pass_time(WAIT_MS - 1)
    assert rules.depth("DLQ") == 0
    rules.pass_time(1)
    assert rules.depth("DLQ") == 1


def test_without_a_pause_it_is_over_at_once() -> None:
    rules = Rules(max_redelivery_delay_seconds=0)
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"a")
    rules.do(c.Settle(consumer, [1], NOT_HERE))
    rules.pass_time(0)
    assert rules.depth("DLQ") == 1


def test_what_is_noted_of_it_does_not_grow_with_the_refusals() -> None:
    rules = Rules()
    client = rules.connect()
    keeps = rules.attach(client, Q)
    rules.send(client, Q, b"a")
    for _ in range(1000):
        consumer = rules.attach(client, Q, 1)
        rules.pass_time(1)
        rules.do(c.Settle(consumer, [1], c.Modified(Outcome.RELEASED, undeliverable=True)))
        rules.do(c.Detach(keeps))
        keeps = rules.attach(client, Q)
        rules.do(c.Detach(consumer))
    assert len(rules.state.endings.due) < 100


# With a delay.


def test_a_delay_that_comes_with_it_is_obeyed_and_it_does_not_come_to_the_same_consumer_again() -> None:
    rules = Rules()
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE._replace(delay_ms=1000)))
    assert positions(rules, other) == []
    become_due(rules, 1000)
    assert (len(positions(rules, first)), len(positions(rules, other))) == (1, 1)


def test_a_delay_that_another_consumer_asks_for_is_obeyed() -> None:
    rules = Rules()
    first, other = two(rules)
    rules.send(rules.connect(), Q, b"a")
    rules.do(c.Settle(first, [1], NOT_HERE))
    for number in range(1, 4):
        assert len(positions(rules, other)) == number
        rules.do(c.Settle(other, [number], c.Modified(Outcome.RELEASED, delay_ms=1000)))
        assert len(positions(rules, other)) == number
        become_due(rules, 1000)
    assert len(positions(rules, first)) == 1


def become_due(rules: Rules, ms: int) -> None:
    """What the schedule does once a delayed message of the queue is due."""
    state = rules.state.directory.by_destination[Q]
    (entry,) = [each for each in rules.effects.durable.entries.values() if each is not None]
    rules.now_ms += ms
    fields = entry.number, entry.delivery_count, entry.flags, entry.expires_at_ms, entry.size, entry.group
    raw = RawEntry(state.id, entry.lane.number, entry.position, *fields)
    rules.do(c.Due([(KIND_DELIVER, raw, b"")], []))


# Selectors, with stores.


def test_a_busy_consumer_counts_as_another_if_its_selector_matches(engines: Engines) -> None:
    broker = engines.start(max_redelivery_delay_seconds=0.05)
    client = connect(broker)
    (body,) = lettered(1)
    for name, selector in (("q", "third = TRUE"), ("not for it", "third = FALSE")):
        send(broker, client, name, body)
        refuser, inbox = attach(broker, client, name, 1)
        (got,) = inbox.wait_for(1)
        busy, its = attach(broker, client, name, 1, selector=selector)
        broker.call(c.Settle(refuser, [got.number], NOT_HERE), WAIT)
        if name == "q":
            its.wait_for(1)
            broker.call(c.Settle(busy, [1], Outcome.RELEASED), WAIT)  # it has no credit now
    eventually(lambda: depth(broker, "not for it") == 0)  # as its consumer has looked at it
    assert (depth(broker, "q"), depth(broker, "DLQ")) == (1, 1)


def test_what_came_into_memory_for_a_selector_comes_to_those_that_may_have_it(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    bodies = lettered(60)
    send(broker, client, "q", *bodies)
    chooser, chosen = attach(broker, client, "q", 60, selector="third = TRUE")
    far = chosen.wait_for(20)[-1]
    broker.call(c.Settle(chooser, [far.number], NOT_HERE), WAIT)
    fresh, inbox = attach(broker, client, "q", 100)
    assert far.position in [each.position for each in inbox.wait_for(41)]
    broker.call(c.Settle(fresh, [each.number for each in inbox.handouts if each.position == far.position], NOT_HERE), 9)
    broker.call(c.Detach(chooser, give_back=True), WAIT)
    _, its = attach(broker, client, "q", 100)
    assert far.position in [each.position for each in its.wait_for(1)]
    come_to_rest(broker)
    assert broker.check() == []


# The table by itself.


def test_at_its_limits_it_notes_nothing_more() -> None:
    table: Undeliverable[int] = Undeliverable()
    assert all(table.refuse(1, consumer) for consumer in range(MOST_CONSUMERS))
    assert not table.refuse(1, MOST_CONSUMERS)
    assert all(table.refuse(position, 0) for position in range(2, MOST_MESSAGES + 1))
    assert not table.refuse(MOST_MESSAGES + 1, 0)
    table.remove(1)
    assert table.refuse(MOST_MESSAGES + 1, 0)
    assert table.consumer_gone(0) == list(range(2, MOST_MESSAGES + 2))
    assert table.refusers == {}
