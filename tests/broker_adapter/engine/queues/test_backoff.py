"""Pauses between redeliveries: how long, and what is due when."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ack_modes import Failure, Outcome
from broker_adapter.destination import DestinationKind
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.backoff import Backoff, Waits, redelivery_delay_ms, who_waits
from broker_adapter.engine.queues.policies import Policy
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.decisions import Q, Rules, positions
from tests.broker_adapter.engine.driving import WAIT, attach, come_to_rest, connect, send


@attrs.frozen
class Placed:
    position: int


@pytest.mark.parametrize(
    ("failures", "delay_ms"), [(0, 0), (1, 0), (2, 250), (3, 500), (4, 1000), (8, 16_000), (9, 30_000), (5000, 30_000)]
)
def test_each_pause_is_twice_the_one_before_up_to_the_longest(failures: int, delay_ms: int) -> None:
    assert redelivery_delay_ms(failures, EngineSettings()) == delay_ms


def test_a_message_is_tried_for_a_minute_before_it_becomes_a_dead_letter() -> None:
    """So that a database may be away for as long, in modes that keep order."""
    settings = EngineSettings()
    assert settings.max_deliveries is not None
    assert sum(redelivery_delay_ms(failures, settings) for failures in range(settings.max_deliveries)) > 60_000


@pytest.mark.parametrize(
    ("undone", "keeps_order", "in_group", "waits"),
    [
        (True, False, False, Waits.CONSUMER),
        (True, False, True, Waits.CONSUMER),
        (True, True, True, Waits.CONSUMER),
        (False, True, False, Waits.CONSUMER),
        (False, True, True, Waits.CONSUMER),
        (False, False, True, Waits.GROUP),
        (False, False, False, Waits.MESSAGE),
    ],
)
def test_who_waits_for_what_has_failed_again(undone: bool, keeps_order: bool, in_group: bool, waits: Waits) -> None:
    assert who_waits(undone=undone, keeps_order=keeps_order, in_group=in_group) is waits


def test_without_a_delay_there_is_no_pause() -> None:
    assert redelivery_delay_ms(9, EngineSettings(redelivery_delay_seconds=0)) == 0


def test_with_a_multiplier_of_one_all_pauses_are_alike() -> None:
    settings = EngineSettings(redelivery_delay_seconds=2, redelivery_multiplier=1)
    assert redelivery_delay_ms(1_000_000_000, settings) == 2000


def test_no_pause_is_longer_than_the_longest() -> None:
    settings = EngineSettings(redelivery_delay_seconds=60, max_redelivery_delay_seconds=1.5)
    assert redelivery_delay_ms(2, settings) == 1500


def test_what_is_taken_out_is_not_due_any_more() -> None:
    backoff: Backoff[Placed, str] = Backoff()
    first, second = Placed(1), Placed(2)
    backoff.add(first, 100, "h")
    backoff.add(second, 200, "h")
    assert backoff.take(1) is first
    assert backoff.take(1) is None
    assert backoff.first_due_ms() == 200
    backoff.add(first, 300, "h")
    assert backoff.due(250) == [(second, ("h",))]
    assert backoff.due(299) == []
    assert backoff.due(300) == [(first, ("h",))]
    assert len(backoff) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.booleans()), max_size=30))
def test_everything_is_due_at_its_last_time_and_once(steps: list[tuple[int, int, bool]]) -> None:
    backoff: Backoff[Placed, str] = Backoff()
    model: dict[int, int] = {}
    for position, due_ms, taken in steps:
        if taken:
            assert (backoff.take(position) is None) is (model.pop(position, None) is None)
        elif position not in model:
            backoff.add(Placed(position), due_ms, "h")
            model[position] = due_ms
    for now_ms in range(21):
        assert backoff.first_due_ms() == min(model.values(), default=None)
        due = [entry.position for entry, _ in backoff.due(now_ms)]
        assert sorted(due) == sorted(position for position, due_ms in model.items() if due_ms <= now_ms)
        for position in due:
            del model[position]


def test_a_consumer_waits_until_the_last_of_its_messages_is_due_or_taken() -> None:
    backoff: Backoff[Placed, str] = Backoff()
    for position, due_ms, holder in ((1, 100, "a"), (2, 200, "a"), (3, 300, "b"), (4, 50, "c")):
        backoff.add(Placed(position), due_ms, holder)
    assert backoff.holders == {"a": 2, "b": 1, "c": 1}
    assert [(each.position, holders) for each, holders in backoff.due(100)] == [(4, ("c",)), (1, ("a",))]
    assert (backoff.take_released(), backoff.holders) == (["c"], {"a": 1, "b": 1})
    backoff.take(2)
    assert (backoff.take_released(), backoff.holders) == (["a"], {"b": 1})
    assert backoff.take_released() == []
    assert [each.position for each in backoff.take_of("b")] == [3]
    assert backoff.take_of("nobody") == []
    assert backoff.holders == {}


def test_a_consumer_that_waits_again_is_not_released() -> None:
    backoff: Backoff[Placed, str] = Backoff()
    backoff.add(Placed(1), 100, "a")
    backoff.due(100)
    backoff.add(Placed(1), 200, "a")
    assert backoff.take_released() == []


def test_what_waited_alone_is_on_the_shelf_until_it_is_tried() -> None:
    backoff: Backoff[Placed, str] = Backoff()
    for position, due_ms in ((1, 200), (2, 100), (3, 300)):
        backoff.add(Placed(position), due_ms)
    assert [each.position for each, _ in backoff.due(200)] == [2, 1]
    assert (list(backoff.shelf), len(backoff)) == ([2, 1], 3)
    assert backoff.take_for_trial(3) is None, "it is not due"
    tried = backoff.take_for_trial(2)
    assert tried is not None
    assert (tried.position, list(backoff.shelf), backoff.on_trial) == (2, [1], {2})
    backoff.put_back(tried)
    assert (list(backoff.shelf), backoff.on_trial, len(backoff)) == ([1, 2], set(), 3)
    assert backoff.take(1) is not None
    assert list(backoff.shelf) == [2]
    assert backoff.first_due_ms() == 300


def test_failures_are_counted_by_message_up_to_a_limit() -> None:
    backoff: Backoff[Placed, str] = Backoff()
    assert [backoff.failed(1, 2), backoff.failed(2, 2), backoff.failed(1, 2)] == [1, 1, 2]
    assert [backoff.failed(3, 2), backoff.failed(3, 2)] == [1, 1], "there is no room for a third"
    backoff.stop_counting(1)
    assert [backoff.failed(3, 2), backoff.failed(3, 2)] == [1, 2]


def test_failures_of_a_message_are_forgotten_with_it_although_they_were_uncounted() -> None:
    """Else back-off ends for the whole queue when as many are remembered as may be."""
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"1")
    consumer = rules.attach(client, Q, credit=10)
    ((number, _),) = rules.delivered[consumer]
    position = rules.placed[consumer][0][0]
    rules.do(c.Settle(consumer, [number], Outcome.FAILED))
    rules.do(c.Detach(consumer, give_back=True))
    waiting = rules.state.directory.by_destination[Q]
    assert rules.do(c.Uncount(waiting.id, [(position, None)])) == 1
    assert waiting.backoff.failures == {position: 1}
    last = rules.attach(client, Q, credit=10)
    rules.do(c.Settle(last, [number for number, _ in rules.delivered[last]], Outcome.ACCEPTED))
    assert (waiting.depth, waiting.backoff.failures) == (0, {})


@pytest.mark.parametrize("selector", [None, "JMSPriority >= 0"])
def test_what_a_listener_failed_to_process_waits_for_its_consumer(selector: str | None) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=0))
    client = connect(broker)
    (first, firsts), (second, seconds), (third, thirds) = (
        attach(broker, client, "q", selector=selector) for _ in range(3)
    )
    messages = [c.NewMessage(ENVELOPE_FORMAT, pack(Envelope(Q))) for _ in range(3)]
    assert broker.call(c.Enqueue(client, Q, messages), WAIT) is None

    def credit(consumer: int) -> None:
        broker.call(c.Credit(consumer, 1), WAIT)
        come_to_rest(broker)

    def fail(handout: c.Handout) -> None:
        broker.call(c.Settle(first, [handout.number], Outcome.FAILED), WAIT)

    credit(first)
    fail(firsts.handouts[-1])
    credit(second)
    assert [each.position for each in seconds.handouts] == [2]
    credit(first)
    fail(firsts.handouts[-1])
    credit(third)
    credit(third)
    assert [each.position for each in thirds.handouts] == [3]
    credit(first)
    fail(firsts.handouts[-1])
    assert [each.position for each in firsts.handouts] == [1, 1, 1]
    broker.call(c.Detach(first), WAIT)
    come_to_rest(broker)
    assert [each.position for each in thirds.handouts] == [3, 1], "its consumer has gone"
    broker.close()


def test_a_consumer_that_waits_for_a_delayed_redelivery_is_no_finding_of_a_check() -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=60))
    client = connect(broker)
    consumer, inbox = attach(broker, client, "q", credit=10)
    send(broker, client, "q", "1", "2")
    for count in (2, 3):
        broker.call(c.Settle(consumer, [inbox.wait_for(count)[0 if count == 2 else 2].number], Outcome.FAILED), WAIT)
    come_to_rest(broker)
    assert broker.call(c.Statistics(), WAIT).redelivered == 2
    assert broker.check() == []
    broker.close()


def test_what_was_found_by_a_selector_and_failed_is_kept_from_those_without_one() -> None:
    """It still has its place in the line of those without a selector."""
    broker = Broker(EngineSettings(redelivery_delay_seconds=0))
    client = connect(broker)
    searching, found = attach(broker, client, "q", credit=1, selector="JMSPriority >= 0")
    messages = [c.NewMessage(ENVELOPE_FORMAT, pack(Envelope(Q))) for _ in range(2)]
    assert broker.call(c.Enqueue(client, Q, messages), WAIT) is None
    broker.call(c.Settle(searching, [found.wait_for(1)[0].number], Outcome.FAILED), WAIT)
    for number in (2, 3):
        _, inbox = attach(broker, client, "q", credit=1)
        come_to_rest(broker)
        assert [each.position for each in inbox.handouts] == ([2] if number == 2 else [])
    broker.call(c.Detach(searching), WAIT)
    come_to_rest(broker)
    assert [each.position for each in inbox.handouts] == [1]
    broker.close()


def test_where_order_is_kept_the_consumer_of_a_message_that_fails_again_waits_for_it() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"bad", b"good", b"third")
    consumer = rules.attach(client, Q, 1, keep_order=True)
    rules.do(c.Settle(consumer, [1], Outcome.FAILED), c.Credit(consumer, 1))
    assert rules.delivered[consumer] == [(1, 0), (2, 1)]  # at once, and before the other ones
    rules.do(c.Settle(consumer, [2], Outcome.FAILED), c.Credit(consumer, 2))
    assert rules.delivered[consumer][2:] == [], "nothing passes it"
    (statistics,) = [each for each in rules.do(c.Statistics()).queues if each.name == "q"]
    assert (statistics.messages, statistics.delayed) == (3, 1)
    assert rules.state.next_deadline_ms() == rules.now_ms + 1000
    other = rules.attach(client, Q, 1)
    assert positions(rules, other) == [2], "another consumer gets what comes next"
    rules.pass_time(999)
    assert len(rules.delivered[consumer]) == 2
    rules.pass_time(1)
    assert positions(rules, consumer, 2) == [1, 3]
    assert rules.state.next_deadline_ms() is None


@pytest.mark.parametrize("keep_order", [False, True])
def test_what_is_undone_together_comes_again_in_order_however_often_each_has_failed(keep_order: bool) -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 3)
    other = rules.attach(client, Q, 1)
    consumer = rules.attach(client, Q, 1, keep_order=keep_order)
    rules.do(c.Settle(consumer, [1], Outcome.MODIFIED))
    rules.do(c.Detach(other, give_back=True))
    rules.do(c.Credit(consumer, 2))
    assert sorted(positions(rules, consumer, 1)) == [1, 2]
    rules.do(c.Settle(consumer, [2, 3], Outcome.MODIFIED), c.Credit(consumer, 3))
    assert positions(rules, consumer, 3) == []
    rules.pass_time(1000)
    assert positions(rules, consumer, 3) == [1, 2, 3]


@pytest.mark.parametrize("ends", [c.Disconnect, partial(c.Detach, give_back=True)])
def test_a_lost_connection_does_not_count_towards_the_pause(ends: Any) -> None:
    rules = Rules(redelivery_delay_seconds=1)
    rules.send(rules.connect(), Q, b"x")
    for _ in range(5):
        client = rules.connect()
        consumer = rules.attach(client, Q, 10)
        rules.do(ends(client if ends is c.Disconnect else consumer))
    consumer = rules.attach(rules.connect(), Q, 10)
    rules.do(c.Settle(consumer, [1], Outcome.FAILED))
    assert rules.delivered[consumer] == [(1, 5), (2, 6)], "the first time it comes at once"
    rules.do(c.Settle(consumer, [2], Outcome.FAILED))
    assert rules.state.next_deadline_ms() == rules.now_ms + 1000


def test_what_fails_again_waits_alone_and_others_pass_it() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"bad", b"good", b"third")
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.FAILED), c.Credit(consumer, 1))
    rules.do(c.Settle(consumer, [2], Outcome.FAILED), c.Credit(consumer, 1))
    assert positions(rules, consumer) == [1, 1, 2]
    rules.do(c.Settle(consumer, [3], Outcome.ACCEPTED), c.Credit(consumer, 9))
    (statistics,) = [each for each in rules.do(c.Statistics()).queues if each.name == "q"]
    assert (statistics.messages, statistics.delayed) == (2, 1)
    rules.do(c.Detach(consumer))
    other = rules.attach(client, Q, 1)
    rules.pass_time(999)
    assert positions(rules, consumer, 3) == [3]
    assert positions(rules, other) == [], "it goes on waiting when its consumer has gone"
    rules.pass_time(1)
    assert rules.delivered[other] == [(1, 2)]


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_undone_comes_at_once_and_then_later_each_time_and_nothing_passes_it(count: int) -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2", b"3", b"4")
    consumer = rules.attach(client, Q, 4)
    seen = [1, 2, 3, 4]
    for delay_ms in (0, 1000, 2000):
        numbers = [number for number, _ in rules.delivered[consumer][-4:]]
        rules.do(c.Settle(consumer, numbers[:count], Outcome.MODIFIED), c.Credit(consumer, 4))
        rules.do(c.Settle(consumer, numbers[count:], Outcome.RELEASED))
        if delay_ms:
            rules.pass_time(delay_ms - 1)
            assert positions(rules, consumer) == seen
            rules.pass_time(1)
        seen += [1, 2, 3, 4]
        assert positions(rules, consumer) == seen
    rules.do(c.Settle(consumer, [number for number, _ in rules.delivered[consumer][-4:]], Outcome.ACCEPTED))
    assert rules.depth("q") == 0


def test_a_consumer_whose_last_few_different_messages_failed_rests_for_longer_each_time() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 9)
    consumer = rules.attach(client, Q)
    for number, position in enumerate((1, 1, 2, 2, 3), start=1):
        rules.do(c.Credit(consumer, 1))
        assert positions(rules, consumer)[-1] == position
        rules.do(c.Settle(consumer, [number], Outcome.FAILED))
    rules.do(c.Credit(consumer, 1))
    assert len(positions(rules, consumer)) == 5, "it rests"
    number = 5
    for rests_ms in (1000, 2000, 4000):
        rules.pass_time(rests_ms - 1)
        assert len(positions(rules, consumer)) == number
        rules.pass_time(1)
        number += 1
        assert len(positions(rules, consumer)) == number
        rules.do(c.Settle(consumer, [number], Outcome.FAILED), c.Credit(consumer, 1))
    rules.pass_time(8000)
    rules.do(c.Settle(consumer, [number + 1], Outcome.ACCEPTED), c.Credit(consumer, 1))
    assert len(positions(rules, consumer)) == number + 2, "it has processed one"


@pytest.mark.parametrize(
    "ending",
    [c.Modified(Outcome.FAILED, delay_ms=5000), Failure("no", Outcome.FAILED, 5000), Failure("no", Outcome.REJECTED)],
)
def test_a_consumer_that_says_what_becomes_of_its_messages_does_not_rest(ending: c.Ending) -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, *[b"x"] * 9)
    consumer = rules.attach(client, Q)
    for number in range(1, 10):
        rules.do(c.Credit(consumer, 1))
        assert positions(rules, consumer)[-1] == number
        rules.do(c.Settle(consumer, [number], ending))


def test_nothing_is_used_up_while_every_message_fails_and_a_good_one_is_found_behind_bad_ones() -> None:
    rules = Rules(redelivery_delay_seconds=1, max_deliveries=4)
    client = rules.connect()
    rules.send(client, Q, *[b"bad"] * 20)
    consumer = rules.attach(client, Q, 1)
    tried: list[int] = []

    def fail_for(seconds: int) -> None:
        for _ in range(seconds):
            rules.pass_time(1000)
            while len(tried) < len(rules.placed[consumer]):
                position, number = rules.placed[consumer][len(tried)]
                tried.append(position)
                if position > 20:
                    return
                rules.do(c.Settle(consumer, [number], Outcome.FAILED), c.Credit(consumer, 1))

    fail_for(3600)
    assert rules.depth("DLQ") == 0
    assert set(tried) == set(range(1, 21)), "each has its turn"
    assert {count for _, count in rules.delivered[consumer]} <= {0, 1, 2}
    rules.send(client, Q, b"good")
    fail_for(61)
    assert tried[-1] == 21
    rules.do(c.Settle(consumer, [rules.placed[consumer][-1][1]], Outcome.ACCEPTED), c.Credit(consumer, 1))
    fail_for(3600)
    assert rules.depth("q") > 0, "again all fail"


def test_nothing_of_a_group_passes_the_message_that_its_consumer_failed_on_and_others_do() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    owner, other = rules.attach(client, Q, 1), rules.attach(client, Q)
    rules.send(client, Q, b"1", b"2", b"3", group=c.group_number("g"))
    rules.send(client, Q, b"4", group=c.group_number("h"))
    rules.send(client, Q, b"5")
    for number in (1, 2):
        rules.do(c.Settle(owner, [number], Outcome.FAILED), c.Credit(owner, 5 if number == 2 else 1))
    rules.do(c.Credit(other, 10))
    assert (positions(rules, owner), positions(rules, other)) == ([1, 1, 4, 5], [])
    rules.do(c.Settle(owner, [3, 4], Outcome.ACCEPTED))
    rules.pass_time(1000)
    assert (positions(rules, owner)[4:], positions(rules, other)) == ([1, 2, 3], [])


def test_what_is_kept_of_a_group_waits_as_well() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    owner, other = rules.attach(client, Q, 2), rules.attach(client, Q, 1)
    rules.send(client, Q, b"1", b"2", b"3", group=c.group_number("g"))
    rules.do(c.Settle(owner, [1], Outcome.FAILED))
    rules.do(c.Settle(owner, [2], Outcome.RELEASED))
    rules.do(c.Credit(owner, 1))
    rules.do(c.Settle(owner, [3], Outcome.FAILED))
    rules.do(c.Credit(owner, 5))
    assert (positions(rules, owner), positions(rules, other)) == ([1, 2, 1], [])
    rules.pass_time(1000)
    assert (positions(rules, owner), positions(rules, other)) == ([1, 2, 1, 1, 2, 3], [])


def test_a_group_that_waits_does_so_when_its_consumer_has_gone() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    owner = rules.attach(client, Q, 1)
    rules.send(client, Q, b"1", b"2", b"3", group=c.group_number("g"))
    for number in (1, 2):
        rules.do(c.Settle(owner, [number], Outcome.FAILED), c.Credit(owner, 1))
    rules.do(c.Detach(owner))
    other = rules.attach(client, Q, 10)
    assert positions(rules, other) == []
    rules.pass_time(1000)
    assert positions(rules, other) == [1, 2, 3]


def test_no_consumer_overtakes_an_exclusive_one_that_waits() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2", b"3")
    first, second = (rules.attach(client, Q, 1, exclusive=True) for _ in range(2))
    for number in (1, 2):
        rules.do(c.Settle(first, [number], Outcome.FAILED), c.Credit(first, 5 if number == 2 else 1))
    assert (positions(rules, first), positions(rules, second)) == ([1, 1], [])
    rules.pass_time(1000)
    assert (positions(rules, first), positions(rules, second)) == ([1, 1, 1, 2, 3], [])


def test_a_delayed_redelivery_comes_at_once_when_its_consumer_has_ended() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    rules.send(client, Q, b"1", b"2")
    consumer = rules.attach(client, Q, 5)
    rules.do(c.Settle(consumer, [1, 2], Outcome.MODIFIED))
    rules.do(c.Settle(consumer, [3, 4], Outcome.MODIFIED))
    assert len(rules.delivered[consumer]) == 4
    rules.do(c.Detach(consumer))
    other = rules.attach(client, Q, 5)
    assert positions(rules, other) == [1, 2]
    assert rules.state.next_deadline_ms() is None


def test_beyond_the_limit_of_delayed_redeliveries_the_next_one_is_not_delayed() -> None:
    rules = Rules(redelivery_delay_seconds=1, max_delayed_redeliveries=1)
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumers = [rules.attach(client, Q, 1) for _ in range(2)]
    for number in (1, 2):
        for each in consumers:
            rules.do(c.Settle(each, [number], Outcome.FAILED), c.Credit(each, 1))
    assert [len(rules.delivered[each]) for each in consumers] == [2, 3]


def test_a_delayed_redelivery_is_gone_with_its_queue() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
    rules.send(client, temporary, b"x")
    consumer = rules.attach(client, temporary, 3)
    for number in (1, 2):
        rules.do(c.Settle(consumer, [number], Outcome.FAILED))
    rules.do(c.Disconnect(client))
    assert rules.state.next_deadline_ms() is None
    rules.pass_time(5000)


def test_a_group_does_not_move_while_its_consumer_waits_for_a_message_of_it() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    owner = rules.attach(client, Q, 3, keep_order=True)
    for group in ("g", "h", "i"):
        rules.send(client, Q, b"x", group=c.group_number(group))
    rules.do(c.Settle(owner, [2, 3], Outcome.ACCEPTED), c.Settle(owner, [1], Outcome.FAILED), c.Credit(owner, 1))
    rules.do(c.Settle(owner, [4], Outcome.FAILED), c.Credit(owner, 9))
    other = rules.attach(client, Q, 9)
    rules.send(client, Q, b"x", group=c.group_number("g"))
    assert (positions(rules, owner), positions(rules, other)) == ([1, 2, 3, 1], [])
    rules.pass_time(1000)
    assert positions(rules, owner, 4) + positions(rules, other) == [1, 4]


def test_what_waited_alone_is_behind_what_is_kept_for_a_consumer_that_failed_before() -> None:
    """Else it would try a bad one for ever, uncounted, and never come to its groups."""
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    consumer = rules.attach(client, Q, 4)
    rules.send(client, Q, b"good", group=c.group_number("g"))
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    rules.send(client, Q, b"bad", b"bad", b"bad")
    for number in range(2, 8):
        rules.do(c.Settle(consumer, [number], Outcome.FAILED), c.Credit(consumer, 1))
    other = rules.attach(client, Q, 1)
    rules.send(client, Q, b"good", group=c.group_number("g"))
    rules.do(c.Detach(other))
    rules.pass_time(1000)
    assert positions(rules, consumer, 7)[:1] == [5]


def test_what_an_exclusive_consumer_failed_on_comes_at_its_place_beside_groups() -> None:
    rules = Rules(redelivery_delay_seconds=1)
    client = rules.connect()
    consumer = rules.attach(client, Q, 2, exclusive=True)
    rules.send(client, Q, b"1", group=c.group_number("g"))
    rules.send(client, Q, b"2")
    for numbers in ([1, 2], [3, 4]):
        rules.do(c.Settle(consumer, numbers, Outcome.MODIFIED), c.Credit(consumer, 2))
    rules.pass_time(1000)
    assert positions(rules, consumer) == [1, 2] * 3


A, B = "kind = 'a'", "kind = 'b'"
ALWAYS = 1000


def send_kinds(rules: Rules, client: int, kinds: str, **fields: Any) -> None:
    """Send messages that selectors tell apart, one for each letter."""
    bodies = [pack(Envelope(Q, properties={"kind": kind})) for kind in kinds]
    rules.do(c.Enqueue(client, Q, [c.NewMessage(ENVELOPE_FORMAT, body, **fields) for body in bodies]))


def fail_twice(rules: Rules, consumer: int, messages: int, credit: int = 0) -> None:
    """Fail on the first messages, each twice, with a credit of 1."""
    for number in range(1, 2 * messages + 1):
        rules.do(c.Settle(consumer, [number], Outcome.FAILED))
        rules.do(c.Credit(consumer, 1 if number < 2 * messages else credit))


def work(rules: Rules, consumers: list[int], failures: dict[int, int], seconds: int = 30) -> list[int]:
    """Have consumers process one message after the other.

    Args:
        rules: with the queue.
        consumers: they have a credit of 1.
        failures: position → how often processing fails.
        seconds: for so long.

    Returns:
        What was processed.
    """
    processed = []
    left, seen = dict(failures), dict.fromkeys(consumers, 0)
    for _ in range(8 * seconds):
        for consumer in consumers:
            for position, number in rules.placed.get(consumer, [])[seen[consumer] :]:
                seen[consumer] += 1
                fails = left.get(position, 0) > 0
                left[position] = left.get(position, 0) - fails
                processed += [] if fails else [position]
                ending = Outcome.FAILED if fails else Outcome.ACCEPTED
                rules.do(c.Settle(consumer, [number], ending), c.Credit(consumer, 1))
        rules.pass_time(125)
    return processed


@pytest.mark.parametrize(
    ("selectors", "kinds", "failures"),
    [
        ([A], "a", {1: 3}),
        ([A], "ba", {2: 3}),
        ([A, B], "ba", {2: 3}),
        ([A, B], "aba", {1: 3, 2: ALWAYS, 3: 3}),
        ([A], "aaaab", {1: ALWAYS, 2: ALWAYS, 3: ALWAYS}),
        ([A, B], "aaaab", {1: ALWAYS, 2: ALWAYS, 3: ALWAYS, 5: 3}),
        ([None, A], "aaaab", {1: ALWAYS, 2: ALWAYS, 3: ALWAYS, 5: 3}),
        ([None, A, B], "aaabbb", {1: 3, 2: 2, 3: 4, 4: 3, 5: 2}),
        ([None], "ab", {1: 4, 2: 4}),
    ],
)
def test_what_a_consumer_wants_comes_until_it_is_processed_and_bad_ones_hold_up_no_good_ones(
    selectors: list[str | None], kinds: str, failures: dict[int, int]
) -> None:
    rules = Rules(max_deliveries=None)
    client = rules.connect()
    consumers = [rules.attach(client, Q, 1, selector=selector) for selector in selectors]
    send_kinds(rules, client, kinds)
    processed = work(rules, consumers, failures, 90)
    wanted = [position for position, kind in enumerate(kinds, 1) if {None, f"kind = '{kind}'"} & {*selectors}]
    assert sorted(processed) == [position for position in wanted if failures.get(position) != ALWAYS]


def test_what_waited_alone_and_nobody_wants_holds_up_nothing_else() -> None:
    rules = Rules()
    client = rules.connect()
    leaving = rules.attach(client, Q, 1, selector="kind = 'c'")
    send_kinds(rules, client, "cc")
    fail_twice(rules, leaving, 2)
    rules.do(c.Detach(leaving))
    rules.pass_time(250)
    consumers = [rules.attach(client, Q, 1, selector=selector) for selector in (A, B)]
    send_kinds(rules, client, "ab")
    assert sorted(work(rules, consumers, {3: 3, 4: 3})) == [3, 4]


def test_a_consumer_that_holds_what_waited_alone_delays_no_other_message() -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "aa")
    fail_twice(rules, first, 2)
    rules.do(c.Detach(first))
    consumers = [rules.attach(client, Q, 1, selector=A) for _ in range(2)]
    rules.pass_time(250)
    assert [positions(rules, each) for each in consumers] == [[1], [2]]


@pytest.mark.parametrize("selector", [None, A])
def test_what_waited_alone_is_found_by_a_consumer_that_comes_later(selector: str | None) -> None:
    rules = Rules()
    client = rules.connect()
    first = rules.attach(client, Q, 1)
    send_kinds(rules, client, "ab")
    fail_twice(rules, first, 1)
    rules.do(c.Detach(first))
    rules.pass_time(250)
    assert positions(rules, rules.attach(client, Q, 5, selector=selector))[0] == 1


def test_what_comes_back_unseen_of_what_waited_alone_is_behind_good_ones_where_its_consumer_fails() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "aa")
    fail_twice(rules, consumer, 2, credit=2)
    rules.pass_time(250)
    assert positions(rules, consumer, 4) == [1, 2]
    rules.do(c.Settle(consumer, [5], Outcome.FAILED), c.Settle(consumer, [6], Outcome.RELEASED))
    send_kinds(rules, client, "a")
    rules.do(c.Credit(consumer, 2))
    assert positions(rules, consumer, 6) == [3, 2]


def test_what_has_failed_again_without_a_delay_does_not_wait_alone_any_more() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, b"fails")
    fail_twice(rules, consumer, 1, credit=1)
    rules.pass_time(250)
    rules.use(Policy("q", {"redelivery_delay_seconds": 0.0}))
    rules.do(c.Settle(consumer, [3], Outcome.FAILED))
    assert rules.state.directory.by_destination[Q].backoff.on_trial == set()


def test_a_lone_consumer_that_fails_gets_what_waited_alone_beside_what_it_has_refused() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, b"refused", b"fails")
    rules.do(c.Settle(consumer, [1], c.Modified(Outcome.RELEASED, undeliverable=True)), c.Credit(consumer, 1))
    for number in (2, 3):
        rules.do(c.Settle(consumer, [number], Outcome.FAILED), c.Credit(consumer, 1))
    rules.pass_time(250)
    assert positions(rules, consumer) == [1, 2, 2, 2]


def test_what_waited_alone_comes_to_an_exclusive_consumer_in_order() -> None:
    rules = Rules()
    client = rules.connect()
    plain = rules.attach(client, Q, 1)
    rules.send(client, Q, b"1", b"2", b"3")
    fail_twice(rules, plain, 2)
    rules.do(c.Detach(plain))
    rules.pass_time(250)
    assert positions(rules, rules.attach(client, Q, 9, exclusive=True)) == [1, 2, 3]


def test_what_a_selector_found_of_a_group_and_waited_alone_comes_with_its_group() -> None:
    rules = Rules()
    client = rules.connect()
    searching = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "ab", group=c.group_number("g"))
    fail_twice(rules, searching, 1)
    rules.do(c.Detach(searching))
    rules.pass_time(250)
    assert [positions(rules, rules.attach(client, Q, 1)) for _ in range(2)] == [[1], []]


def test_what_a_selector_found_of_a_group_comes_at_once_to_a_consumer_that_fails() -> None:
    rules = Rules()
    client = rules.connect()
    searching = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "a", group=c.group_number("g"))
    fail_twice(rules, searching, 1)
    rules.do(c.Detach(searching))
    failing = rules.attach(client, Q, 1)
    send_kinds(rules, client, "b", group=c.group_number("h"))
    rules.do(c.Settle(failing, [1], Outcome.FAILED), c.Credit(failing, 3))
    rules.now_ms += 250
    send_kinds(rules, client, "b")
    assert positions(rules, failing) == [2, 2, 3, 1]


def test_no_more_messages_are_counted_than_may_be_delayed_where_a_consumer_fails_on_all() -> None:
    rules = Rules(max_delayed_redeliveries=4)
    client = rules.connect()
    consumer = rules.attach(client, Q, 1)
    rules.send(client, Q, *[b"bad"] * 20)
    work(rules, [consumer], dict.fromkeys(range(1, 21), ALWAYS), 600)
    assert len(rules.state.directory.by_destination[Q].backoff.failures) == 4


def test_a_consumer_without_credit_notes_few_messages_that_are_gone() -> None:
    rules = Rules()
    client = rules.connect()
    idle = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "a")
    consumer = rules.attach(client, Q, 1, selector=A)
    send_kinds(rules, client, "a" * 200)
    work(rules, [consumer], dict.fromkeys(range(2, 202, 2), 2), 60)
    search = rules.state.directory.consumers[idle].search
    assert rules.depth("q") == 1
    assert search is not None
    assert 0 < len(search.shelved) <= 65
