"""Which settings a queue has: patterns, precedence, and what contradicts each other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.engine.queues.policies import MAX_POLICIES, Policies, PolicyError, contradictions, policy
from broker_adapter.settings import EngineSettings


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "order", "orders2", "my.orders"]),
        ("orders.>", ["orders.eu", "orders.eu.paris", "orders.>"], ["orders", "orders.", "ordersx.eu", "my.orders.eu"]),
        (">", ["a", "a.b", "a.b.c", "a\nb"], []),
        ("*", ["a", "a b", "ä"], ["a.b"]),
        ("orders.*", ["orders.eu", "orders."], ["orders", "orders.eu.paris"]),
        ("*.eu", ["orders.eu", ".eu"], ["eu", "a.b.eu", "orders.eux"]),
        ("web-*.in", ["web-.in", "web-7.in"], ["web.in", "web-7.8.in"]),
        ("*a*b*", ["ab", "xaxbx", "aab"], ["ba", "a.b", "a"]),
        ("*.*.>", ["a.b.c", "a.b.c.d"], ["a.b", "a"]),
        ("a[b]+(c", ["a[b]+(c"], ["ab", "abbc"]),
        ("**", ["", "ab"], ["a.b"]),
    ],
)
def test_a_pattern_is_words_with_stars_and_a_rest(pattern: str, matching: list[str], others: list[str]) -> None:
    made = policy(pattern, {})
    assert [each for each in [*matching, *others] if made.matches(each)] == matching


def test_a_pattern_of_many_stars_costs_no_more_than_its_length() -> None:
    made = policy("*a" * 200 + "b", {})  # tried in all ways, it would never end
    assert not made.matches("a" * 400)
    assert made.matches("a" * 399 + "b")


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("orders.>", "orders.>", True),
        ("orders.*", "orders.>", True),
        ("a*", "*a", True),  # a
        ("ab*", "*ba", True),
        ("ab*", "ac*", False),
        ("*ab", "*ac", False),
        ("a.*", "*.b", True),  # a.b
        ("a.*", "*.*.b", False),
        ("a.>", "b.>", False),
        (">", "a", True),
        ("a.>", "a", False),
        ("ab", "ab", True),
        ("ab", "ac", False),
        ("a*c", "abc", True),
        ("abd", "a*c", False),
    ],
)
def test_patterns_of_one_length_that_may_match_one_name_contradict_each_other(
    first: str, second: str, meet: bool
) -> None:
    one, other = policy(first, {"max_messages": 1}), policy(second, {"max_messages": 2, "max_bytes": 2})
    if one.length == other.length:
        found = [(setting, later is other) for later, _, setting in contradictions([one, other])]
        assert found == ([("max_messages", True)] if meet else [])
    else:
        assert not list(contradictions([one, other])), "the longer one wins"


def test_equal_patterns_may_give_different_settings() -> None:
    one, other = policy("orders.>", {"max_messages": 1}), policy("orders.>", {"max_bytes": 2})
    assert not list(contradictions([one, other]))
    settings = Policies(EngineSettings(), [one, other]).settings_of(queue("orders.eu"))
    assert (settings.max_messages, settings.max_bytes) == (1, 2)


@pytest.mark.parametrize("turned", [False, True])
def test_for_each_setting_the_longest_pattern_that_gives_it_wins(*, turned: bool) -> None:
    policies = [
        policy(">", {"max_deliveries": 1, "max_messages": 10, "time_to_live": 60}),
        policy("orders.>", {"max_deliveries": 2, "dead_letter_queue": "orders.dead"}),
        policy("orders.eu.*", {"max_deliveries": "none"}),
        policy("*.us.*", {"max_messages": 7, "when_full": "refuse"}),
    ]
    found = Policies(EngineSettings(max_queue_bytes=5), policies[::-1] if turned else policies)
    names = ("other", "orders.eu", "orders.eu.paris", "orders.us.ny", "orders.dead")
    shown = [found.settings_of(queue(name)) for name in names]
    assert [each.max_deliveries for each in shown] == [1, 2, None, 2, None]
    assert [each.max_messages for each in shown] == [10, 10, 10, 7, 10]
    assert [each.dead_letter_queue for each in shown] == ["DLQ"] + ["orders.dead"] * 4
    assert {each.max_bytes for each in shown} == {5}
    assert [each.takes_dead_letters for each in shown] == [False] * 4 + [True]
    assert shown[3].shown() == {
        "max_deliveries": (2, "policy 'orders.>'"),
        "redelivery_delay_seconds": (0.25, "default"),
        "keep_order": (False, "default"),
        "dead_letter_queue": ("orders.dead", "policy 'orders.>'"),
        "expiry_queue": (None, "default"),
        "time_to_live": (60.0, "policy '>'"),
        "max_messages": (7, "policy '*.us.*'"),
        "max_bytes": (5, "option max_queue_bytes"),
        "when_full": ("refuse", "policy '*.us.*'"),
        "delete_idle_seconds": (None, "default"),
        "consumer_timeout_seconds": (None, "default"),
    }
    assert shown[4].shown()["max_deliveries"] == (None, "dead-letter queue")


def test_a_policy_holds_for_the_subscriptions_of_a_topic_but_for_what_options_say_of_these() -> None:
    given = {"max_messages": 3, "when_full": "drop_oldest", "delete_idle_seconds": 5}
    policies = Policies(EngineSettings(), [policy("news", given), policy("x", {"dead_letter_queue": "news"})])
    of_topic = policies.settings_of(topic("news"))
    assert (of_topic.max_messages, of_topic.when_full, of_topic.delete_idle_seconds) == (3, "block", None)
    assert "when_full" not in of_topic.patterns
    assert (of_topic.takes_dead_letters, of_topic.max_deliveries) == (False, 10)
    of_queue = policies.settings_of(queue("news"))
    assert (of_queue.when_full, of_queue.delete_idle_seconds, of_queue.takes_dead_letters) == ("drop_oldest", 5, True)


@pytest.mark.parametrize("kind", [DestinationKind.QUEUE, DestinationKind.TEMPORARY_QUEUE])
def test_temporary_queues_have_the_options(kind: DestinationKind) -> None:
    policies = Policies(EngineSettings(), [policy(">", {"max_messages": 3})])
    assert policies.settings_of(Destination("temporary-queue/x", kind)) == policies.options


def test_what_no_queue_has_is_known() -> None:
    plain = Policies(EngineSettings(max_queue_messages=None))
    assert [plain.has_limits, plain.has_expiry_queues, plain.deletes_idle] == [False] * 3
    given = {"max_bytes": 3, "expiry_queue": "late", "delete_idle_seconds": 5}
    some = Policies(EngineSettings(max_queue_messages=None), [policy("a", given)])
    assert some.has_limits
    assert some.has_expiry_queues
    assert some.deletes_idle
    assert (some.dead_letter_queues, some.set_aside) == ({"DLQ"}, {"DLQ", "late"})


@pytest.mark.parametrize(
    ("match", "given", "wrong", "reason"),
    [
        ("", {}, "match", "is not a pattern"),
        (None, {}, "match", "is not a pattern"),
        (7, {}, "match", "is not a pattern"),
        ("a.>.b", {}, "match", "last word"),
        ("a>", {}, "match", "last word"),
        ("a.b>", {}, "match", "last word"),
        ("a", {"max_message": 5}, "max_message", "most similar one is 'max_messages'"),
        ("a", {"zzz": 5}, "zzz", "the settings are max_deliveries, "),
        ("a", {"max_deliveries": 0}, "max_deliveries", "below the least value, 1"),
        ("a", {"max_deliveries": 1.5}, "max_deliveries", "is not a number: a whole one, or none"),
        ("a", {"max_deliveries": True}, "max_deliveries", "=True is not what it should be"),
        ("a", {"max_deliveries": [1]}, "max_deliveries", "is not what it should be"),
        ("a", {"redelivery_delay_seconds": "none"}, "redelivery_delay_seconds", "is not a number"),
        ("a", {"redelivery_delay_seconds": float("nan")}, "redelivery_delay_seconds", "is not a number"),
        ("a", {"time_to_live": 0}, "time_to_live", "below the least value"),
        ("a", {"dead_letter_queue": 5}, "dead_letter_queue", "is not what it should be"),
        ("a", {"dead_letter_queue": ""}, "dead_letter_queue", "needs a value"),
        ("a", {"dead_letter_queue": "temporary-queue/x"}, "dead_letter_queue", "names a temporary queue"),
        ("a", {"expiry_queue": "x" * 401}, "expiry_queue", "longer than the limit"),
        ("a", {"keep_order": 1}, "keep_order", "is not what it should be: bool"),
        ("a", {"keep_order": "true"}, "keep_order", "is not what it should be: bool"),
        ("a", {"when_full": "drop"}, "when_full", "is none of block, refuse, drop_oldest"),
    ],
)
def test_what_is_no_policy_is_refused(match: Any, given: dict[str, Any], wrong: str, reason: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(reason)) as refused:
        policy(match, given)
    assert refused.value.setting == wrong


def test_many_policies_are_found_by_their_first_words() -> None:
    many = [policy(f"team{number}.>", {"max_messages": number + 1}) for number in range(MAX_POLICIES)]
    assert not list(contradictions(many))
    policies = Policies(EngineSettings(), many)
    assert policies.settings_of(queue("team77.x.y")).max_messages == 78
    assert policies.settings_of(queue("team")) is policies.options
