"""What the settings of single queues do: each in the engine, and what changes with them while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Failure, Outcome
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies, policy
from broker_adapter.errors import InvalidDestinationException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules, positions
from tests.broker_adapter.engine.driving import (
    WAIT,
    attach,
    come_to_rest,
    connect,
    depth,
    drained,
    message,
    payloads,
    send,
    settle,
)

REASON = "JMS_HOLDFAST_DEAD_LETTER_REASON"


def queues(rules: Rules) -> dict[str, int]:
    return {each.name: each.messages for each in rules.do(c.Statistics()).queues if each.kind == "queue"}


def fail(rules: Rules, consumer: int, *numbers: int, outcome: Outcome = Outcome.MODIFIED) -> None:
    for number in numbers:
        rules.do(c.Settle(consumer, [number], outcome))


def test_a_queue_has_its_own_tries_and_its_own_dead_letter_queue() -> None:
    rules = Rules(policies=[policy("orders.>", {"max_deliveries": 2, "dead_letter_queue": "orders.dead"})])
    client = rules.connect()
    rules.send(client, queue("orders.eu"), b"a")
    rules.send(client, Q, b"b")
    fail(rules, rules.attach(client, queue("orders.eu"), 5), 1, 2)
    fail(rules, rules.attach(client, Q, 5), 1, 2)
    assert queues(rules) == {"DLQ": 0, "orders.dead": 1, "orders.eu": 0, "q": 1}
    (added,) = rules.added("orders.dead")
    assert added[REASON] == "delivered 2 times without success (max_deliveries of policy 'orders.>')"


def test_what_is_in_a_dead_letter_queue_of_any_policy_stays_there() -> None:
    """Queues that name each other as their dead-letter queues, and one that names itself, move nothing on."""
    rules = Rules(
        max_deliveries=1,
        max_redelivery_delay_seconds=1,
        policies=[
            policy("a", {"dead_letter_queue": "b"}),
            policy("b", {"dead_letter_queue": "a", "max_deliveries": 1}),
            policy("c", {"dead_letter_queue": "c"}),
        ],
    )
    client = rules.connect()
    for name in ("a", "b", "c", "DLQ"):
        rules.send(client, queue(name), b"x")
        consumer = rules.attach(client, queue(name), 10)
        fail(rules, consumer, 1)
        fail(rules, consumer, 2, outcome=Outcome.REJECTED)
        refused = c.Modified(Outcome.MODIFIED, undeliverable=True)
        rules.do(c.Settle(consumer, [3], refused))
        rules.pass_time(2_000)
    assert queues(rules) == {"DLQ": 1, "a": 1, "b": 1, "c": 1}
    assert rules.state.totals.dead_lettered == 0


def test_the_dead_letter_queues_of_policies_always_exist_while_one_names_them() -> None:
    rules = Rules(max_destinations=1, policies=[policy("a", {"dead_letter_queue": "b", "expiry_queue": "late"})])
    assert queues(rules) == {"DLQ": 0, "b": 0, "late": 0}
    rules.send(rules.connect(), queue("a"), b"x")
    with pytest.raises(InvalidDestinationException, match="always exists"):
        rules.do(c.Delete(queue("b")))
    rules.use(policy("a", {"dead_letter_queue": "other"}))
    assert rules.do(c.Delete(queue("b"))) == 0
    assert queues(rules) == {"DLQ": 0, "a": 1, "late": 0, "other": 0}


def test_a_queue_has_its_own_pause_after_a_failure() -> None:
    rules = Rules(redelivery_delay_seconds=0.1, policies=[policy("slow", {"redelivery_delay_seconds": 5})])
    client = rules.connect()
    for name, pause_ms in (("q", 100), ("slow", 5_000)):
        rules.send(client, queue(name), b"x")
        consumer = rules.attach(client, queue(name), 10)
        for number in (1, 2):
            rules.do(c.Settle(consumer, [number], Failure("ValueError", Outcome.FAILED)))
        assert len(rules.delivered[consumer]) == 2
        rules.pass_time(pause_ms - 1)
        assert len(rules.delivered[consumer]) == 2
        rules.pass_time(1)
        assert len(rules.delivered[consumer]) == 3


@pytest.mark.parametrize("keep_order", [False, True])
def test_a_queue_may_keep_its_order_for_all_consumers(*, keep_order: bool) -> None:
    rules = Rules(redelivery_delay_seconds=1, policies=[policy("q", {"keep_order": keep_order})])
    client = rules.connect()
    rules.send(client, Q, b"1", b"2")
    consumer = rules.attach(client, Q, 1)
    for number in (1, 2):
        rules.do(c.Settle(consumer, [number], Failure("ValueError", Outcome.FAILED)))
        rules.do(c.Credit(consumer, 1))
    assert positions(rules, consumer) == ([1, 1] if keep_order else [1, 1, 2])


@pytest.mark.parametrize("option", [None, "gone"])
def test_what_expires_goes_to_the_queue_that_its_own_queue_says(option: str | None) -> None:
    rules = Rules(expiry_queue=option, policies=[policy("a", {"expiry_queue": "late"}), policy("b", {})])
    client = rules.connect()
    for name in ("a", "b"):
        rules.send(client, queue(name), b"x", expires_at_ms=rules.now_ms - 1)  # it expires in its queue
        rules.send(client, queue(name), b"x", expires_at_ms=rules.now_ms + 10)
    rules.pass_time(10)
    for name in ("a", "b"):
        rules.attach(client, queue(name), 1)
    assert queues(rules) == {"DLQ": 0, "a": 0, "b": 0, "late": 2, **({"gone": 2} if option else {})}
    rules.use(policy("a", {"expiry_queue": "none"}))
    rules.send(client, queue("a"), b"x", expires_at_ms=rules.now_ms + 10)
    rules.pass_time(10)
    rules.attach(client, queue("a"), 1)
    assert queues(rules)["late"] == 2


@pytest.mark.parametrize(
    ("given", "left_ms"),
    [
        ({}, 2_000),
        ({"expires_at_ms": 1_000_500}, 500),
        ({"expires_at_ms": 1_060_000}, 2_000),
        ({"deliver_at_ms": 1_003_000}, 5_000),
        ({"deliver_at_ms": 900_000}, 2_000),
    ],
)
def test_a_message_lives_in_a_queue_no_longer_than_that_says(given: dict[str, int], left_ms: int) -> None:
    rules = Rules(policies=[policy("a", {"time_to_live": 2})])
    client = rules.connect()
    rules.send(client, queue("a"), b"x", **given)
    rules.send(client, queue("a"), b"y", persistent=True, **given)
    found = rules.state.directory.by_destination[queue("a")]
    entries = [each for batch in (rules.effects.durable, rules.effects.volatile) for each in batch.entries.values()]
    assert [each.expires_at_ms for each in entries if each is not None] == [1_000_000 + left_ms]
    assert found.depth == 2


def test_a_subscription_gets_the_settings_of_its_topic() -> None:
    rules = Rules(policies=[policy("news", {"max_messages": 1, "time_to_live": 2, "max_deliveries": 3})])
    client = rules.connect("me")
    rules.attach(client, topic("news"), subscription=DURABLE)
    rules.attach(client, topic("other"), subscription=Subscription("other", durable=True, shared=False))
    (news,) = rules.state.directory.topics[topic("news")]
    (other,) = rules.state.directory.topics[topic("other")]
    assert (news.settings.max_messages, news.settings.max_deliveries) == (1, 3)
    assert other.settings is rules.state.directory.policies.options
    assert rules.send(client, topic("news"), b"x") is None
    assert rules.send(client, topic("news"), b"x") == "held"
    assert rules.send(client, topic("other"), b"x", b"x") is None
    rules.use(policy("news", {"max_messages": 2}))
    assert news.depth == 2, "what waited is there"


def test_what_is_kept_inside_has_no_settings_of_its_own() -> None:
    rules = Rules(policies=[policy(">", {"time_to_live": 2, "max_messages": 1})])
    client = rules.connect()
    messages = [c.NewMessage(0, b"x", persistent=True)]
    rules.do(c.Stage("g/1/0", Q, 0, messages))
    assert rules.state.directory.staged["g/1/0"].settings is rules.state.directory.policies.options
    temporary = rules.do(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE))
    assert rules.state.directory.by_destination[temporary].settings is rules.state.directory.policies.options


def test_a_send_to_a_queue_that_refuses_when_full_does_not_wait() -> None:
    rules = Rules(policies=[policy("small", {"max_messages": 1, "when_full": "refuse"})])
    client = rules.connect()
    small = queue("small")
    assert rules.send(client, small, b"x") is None
    (error,) = rules.send(client, small, b"y")
    assert isinstance(error, ResourceAllocationException)
    assert error.reason == (
        "queue 'small' is full: 1 message, limit 1 (max_messages of policy 'small'), 0 consumers; receive its messages"
        " or purge it (holdfast purge small), or raise the limit"
    )
    errors = rules.do(c.Enqueue(client, small, [c.NewMessage(0, b"a"), c.NewMessage(0, b"b")]))
    assert [type(each) for each in errors] == [ResourceAllocationException] * 2
    assert rules.state.totals.refused == 2
    assert not rules.state.blocked_sends.all
    rules.do(c.Settle(rules.attach(client, small, 1), [1], Outcome.ACCEPTED))
    assert rules.send(client, small, b"z") is None


def test_what_waits_is_refused_or_taken_as_new_policies_say() -> None:
    rules = Rules(blocked_send_timeout_seconds=60)
    small = {"max_messages": 1}
    rules.use(policy("a", small), policy("b", small), policy("c", small))
    client = rules.connect()
    answers: dict[str, Any] = {}
    for name in ("a", "b", "c"):
        rules.send(client, queue(name), b"1")
        rules.state.decide(
            [
                c.Enqueue(
                    client, queue(name), [c.NewMessage(0, b"2")], lambda found, name=name: answers.update({name: found})
                )
            ],
            rules.now_ms,
        )
    change = c.UsePolicies(
        Policies(
            rules.state.settings,
            [policy("a", {"max_messages": 2}), policy("b", {**small, "when_full": "refuse"}), policy("c", small)],
        )
    )
    for reply, result in rules.state.decide([change], rules.now_ms).replies:
        if reply is not None:
            reply(result)
    assert answers.keys() == {"a", "b"}
    assert answers["a"] is None
    assert isinstance(answers["b"][0], ResourceAllocationException)


def test_queues_get_other_settings_a_few_at_a_time_and_the_last_policies_win(tmp_path: Path) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path))
    for number in range(250):
        broker.call(c.Declare(queue(f"q{number}")), WAIT)
    first, last = (Policies(settings, [policy("q*", {"max_deliveries": most})]) for most in (2, 3))
    steps = [broker.call(c.UsePolicies(first), WAIT)]
    assert isinstance(steps[0], int), "there are more"
    broker.use_policies(last)
    assert broker.call(c.UsePolicies(first, steps[0]), WAIT) is None
    while {each.settings.max_deliveries for each in broker._directory.queues.values()} != {None, 3}:
        broker.call(c.Statistics(), WAIT)
    assert broker.policies is last
    broker.close()
    broker.use_policies(first)  # which nobody needs any more


def test_a_queue_that_is_not_used_is_deleted_after_its_own_time() -> None:
    rules = Rules(policies=[policy("brief.*", {"delete_idle_seconds": 60})])
    for name in ("brief.a", "long"):
        rules.do(c.Declare(queue(name)))
    rules.pass_time(59_999)
    assert rules.do(c.DeleteIdle()) == []
    rules.pass_time(1)
    assert rules.do(c.DeleteIdle()) == [("queue", "'brief.a'", 0, "60 s (delete_idle_seconds of policy 'brief.*')")]
    assert queues(rules) == {"DLQ": 0, "long": 0}


SMALL = 3


@pytest.fixture(params=["memory", "disk"])
def dropping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """An engine with a queue that keeps the last three messages."""
    settings = EngineSettings()
    policies = Policies(settings, [policy("last", {"max_messages": SMALL, "when_full": "drop_oldest"})])
    made = Broker(settings, str(tmp_path) if request.param == "disk" else None, policies)
    yield made
    made.close()


def test_a_queue_that_drops_the_oldest_keeps_the_last_messages(dropping: Broker) -> None:
    client = connect(dropping)
    for number in range(10):
        assert send(dropping, client, "last", number) is None
    come_to_rest(dropping)
    assert payloads(drained(dropping, client, "last")) == [b"7", b"8", b"9"]
    (found,) = [each for each in dropping.call(c.Statistics(), WAIT).queues if each.name == "last"]
    assert (found.dropped, found.blocked_sends) == (7, 0)


def test_what_consumers_hold_is_not_dropped_and_does_not_count(dropping: Broker) -> None:
    client = connect(dropping)
    send(dropping, client, "last", 0, 1)
    consumer, inbox = attach(dropping, client, "last", credit=2)
    held = inbox.wait_for(2)
    for number in range(2, 8):
        assert send(dropping, client, "last", number) is None
    come_to_rest(dropping)
    assert depth(dropping, "last") == SMALL + len(held)
    settle(dropping, consumer, held)
    assert payloads(drained(dropping, client, "last")) == [b"5", b"6", b"7"]


def test_the_oldest_are_found_behind_what_consumers_hold_in_one_step(
    dropping: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(dropping)
    for first in range(0, 40, SMALL):
        send(dropping, client, "last", *range(first, first + SMALL))
        attach(dropping, client, "last", credit=SMALL)[1].wait_for(SMALL)
    send(dropping, client, "last", *"abc")
    steps: list[c.Command] = []
    trim = dropping._state._steps[c.Trim]

    def counted(command: c.Trim, *arguments: Any) -> None:
        steps.append(command)
        trim(command, *arguments)

    monkeypatch.setitem(dropping._state._steps, c.Trim, counted)
    send(dropping, client, "last", "d")
    come_to_rest(dropping)
    assert len(steps) == 1
    assert payloads(drained(dropping, client, "last")) == [b"b", b"c", b"d"]


def test_what_waits_after_a_failure_is_dropped_as_the_oldest(tmp_path: Path) -> None:
    settings = EngineSettings(redelivery_delay_seconds=3600, max_redelivery_delay_seconds=3600)
    given = [policy("last", {"max_messages": SMALL, "when_full": "drop_oldest"})]
    broker = Broker(settings, str(tmp_path), Policies(settings, given))
    client = connect(broker)
    send(broker, client, "last", "fails")
    consumer, inbox = attach(broker, client, "last", credit=2)
    for count in (1, 2):
        settle(broker, consumer, inbox.wait_for(count)[-1:], Outcome.FAILED)
    broker.call(c.Detach(consumer), WAIT)
    send(broker, client, "last", *range(4))
    come_to_rest(broker)
    assert payloads(drained(broker, client, "last")) == [b"1", b"2", b"3"]
    broker.close()


def test_a_dead_letter_queue_may_keep_the_last_dead_letters_only(tmp_path: Path) -> None:
    settings = EngineSettings()
    given = [policy("DLQ", {"max_messages": 2, "when_full": "drop_oldest"})]
    broker = Broker(settings, str(tmp_path), Policies(settings, given))
    client = connect(broker)
    send(broker, client, "q", *range(5))
    consumer, inbox = attach(broker, client, "q", credit=5)
    for each in inbox.wait_for(5):
        settle(broker, consumer, [each], Outcome.REJECTED)
    come_to_rest(broker)
    assert payloads(drained(broker, client, "DLQ")) == [b"3", b"4"]
    broker.close()


def test_the_oldest_of_all_priorities_are_dropped_by_their_size(tmp_path: Path) -> None:
    settings = EngineSettings(window_messages=10)
    given = {"max_bytes": 300, "when_full": "drop_oldest"}
    broker = Broker(settings, str(tmp_path), Policies(settings, [policy("last", given)]))
    client = connect(broker)
    for number in range(30):
        send(broker, client, "last", f"{number:020}", priority=number % 10, persistent=number % 3 > 0)
        come_to_rest(broker)
    left = sorted(int(each) for each in payloads(drained(broker, client, "last")))
    assert left == list(range(30 - len(left), 30))
    assert 0 < len(left) <= 15
    broker.close()


def test_a_commit_and_a_published_batch_are_taken_by_a_queue_that_drops_the_oldest(dropping: Broker) -> None:
    client = connect(dropping)
    send(dropping, client, "last", *range(SMALL))
    persistent = [message(each, persistent=True) for each in ("a", "b")]
    dropping.call(c.Commit(client, None, [(queue("last"), persistent[0])], []), WAIT)
    come_to_rest(dropping)
    dropping.call(c.Stage("g/1/0", queue("last"), 0, persistent), WAIT)
    assert dropping.request("publish", {"group": "g", "number": 1, "transactions": ["g/1/0"]}, WAIT) is True
    come_to_rest(dropping)
    assert payloads(drained(dropping, client, "last")) == [b"a", b"a", b"b"]


@pytest.mark.parametrize("count", [1, 600])
def test_what_is_published_to_a_queue_lives_there_no_longer_than_that_says(tmp_path: Path, count: int) -> None:
    settings = EngineSettings()
    broker = Broker(settings, str(tmp_path), Policies(settings, [policy("q", {"time_to_live": 3600})]))
    broker.call(c.Stage("g/1/0", Q, 0, [message("x", persistent=True)] * count), WAIT)
    broker.request("publish", {"group": "g", "number": 1, "transactions": ["g/1/0"]}, WAIT)
    come_to_rest(broker)
    with broker.reading() as reader:
        found = reader.entries(reader.state.directory.by_destination[Q].id, 0, count, count).entries
        now_ms = broker._state.time.now_ms
    assert len(found) == count
    assert all(0 < each.expires_at_ms <= now_ms + 3_600_000 for each in found)
    assert not broker.check()
    broker.close()


def test_a_restart_finds_the_settings_of_the_policies(tmp_path: Path) -> None:
    settings = EngineSettings()
    for most in (3, None):
        given = [] if most is None else [policy("a", {"max_deliveries": most})]
        broker = Broker(settings, str(tmp_path), Policies(settings, given))
        send(broker, connect(broker), "a", "x")
        found = broker.request("queue_settings", {"destination": "a"}, WAIT)
        assert found["max_deliveries"] == ([3, "policy 'a'"] if most else [10, "default"])
        broker.close()
