"""Staged transactions, as clients ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.operations.requests import steps_of
from broker_adapter.engine.operations.staged import DISCARDED_AT_ONCE, chosen
from broker_adapter.engine.operations.steps import STAGED_AT_ONCE, Steps
from broker_adapter.envelope import ENVELOPE_FORMAT, unpack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.asking import (
    ask,
    envelope,
)
from tests.broker_adapter.engine.driving import connect, depth, drained, payloads


def test_staged_messages_are_seen_only_when_they_are_published(broker: Broker) -> None:
    ask(broker, "stage", transaction="t1", queue="target", first=0, messages=[envelope("a"), envelope("b", priority=7)])
    ask(broker, "stage", transaction="t2", queue="target", first=0, messages=[envelope("c")])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=0, transactions=["t1", "t2"]) is True
    handouts = drained(broker, connect(broker), "target")
    assert [unpack(payload).body for payload in payloads(handouts)] == ["b", "a", "c"]
    assert all(handout.format == ENVELOPE_FORMAT for handout in handouts)
    assert not [each for each in ask(broker, "statistics")["queues"] if each["kind"] == "staged"]


def test_a_chunk_that_is_staged_again_is_not_staged_twice(broker: Broker) -> None:
    first, second = [envelope("a"), envelope("b")], [envelope("c"), envelope("d")]
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=first)
    ask(broker, "stage", transaction="t", queue="target", first=2, messages=second)
    ask(broker, "stage", transaction="t", queue="target", first=1, messages=[*first[1:], *second])
    with pytest.raises(IllegalStateException, match="has 4 messages"):
        ask(broker, "stage", transaction="t", queue="target", first=5, messages=second)
    ask(broker, "publish", group="g", number=1, transactions=["t"])
    assert depth(broker, "target") == 4


def test_a_number_of_a_group_is_published_once(broker: Broker) -> None:
    for attempt in ("first", "again"):
        ask(broker, "stage", transaction=attempt, queue="target", first=0, messages=[envelope(attempt)])
        assert ask(broker, "publish", group="g", number=3, transactions=[attempt]) is (attempt == "first")
    assert ask(broker, "publish", group="g", number=2, transactions=[]) is False
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["first"]
    assert not broker._state.directory.staged


def test_publishing_what_was_never_staged_publishes_nothing(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    with pytest.raises(InvalidDestinationException, match="'missing' does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t", "missing"])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True


def test_discarded_transactions_are_gone(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "discard", transactions=["t", "unknown"]) == 1
    with pytest.raises(JMSException, match="does not exist"):
        ask(broker, "publish", group="g", number=1, transactions=["t"])
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("b")])
    assert ask(broker, "publish", group="g", number=1, transactions=["t"]) is True
    assert [unpack(payload).body for payload in payloads(drained(broker, connect(broker), "target"))] == ["b"]


def test_a_number_of_messages_that_does_not_belong_to_each_transaction_is_refused(broker: Broker) -> None:
    ask(broker, "stage", transaction="t", queue="target", first=0, messages=[envelope("a")])
    with pytest.raises(MessageFormatException, match="'counts' is not a number for each transaction"):
        ask(broker, "publish", group="g", number=0, transactions=["t"], counts=[1, 1])
    assert depth(broker, "target") == 0
    assert ask(broker, "publish", group="g", number=0, transactions=["t"], counts=[1]) is True
    assert depth(broker, "target") == 1


@pytest.mark.parametrize("group", ["$gateway/7/south", "settled/a-1"])
def test_a_group_by_which_the_engine_notes_numbers_is_refused(broker: Broker, group: str) -> None:
    with pytest.raises(MessageFormatException, match="the engine itself publishes group"):
        ask(broker, "publish", group=group, number=1, transactions=[])
    assert ask(broker, "published", group=group) is None


def test_the_last_published_number_of_a_group_is_answered(broker: Broker) -> None:
    assert ask(broker, "published", group="g") is None
    ask(broker, "publish", group="g", number=4, transactions=[])
    assert ask(broker, "published", group="g") == 4
    assert ask(broker, "published", group="other") is None


def test_what_is_staged_for_a_batch_is_renewed_while_it_is_not_published(broker: Broker) -> None:
    ask(broker, "stage", transaction="g/5/a", queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "renew", group="g", number=5) == EngineSettings().staged_timeout_seconds
    assert ask(broker, "publish", group="g", number=5, transactions=["g/5/a"]) is True
    assert depth(broker, "target") == 1


def test_transactions_are_discarded_by_name_and_by_prefix_but_for_those_to_keep(broker: Broker) -> None:
    for name in ("a", "b", "g/1/x", "g/1/y", "g/2/x", "h/1/x"):
        ask(broker, "stage", transaction=name, queue="target", first=0, messages=[envelope(name)])
    ask(broker, "discard", transactions=["a"], prefixes=["g/", "h/"], keep=["g/2/"])
    left = [each["name"] for each in ask(broker, "statistics")["queues"] if each["kind"] == "staged"]
    assert sorted(left) == ["b", "g/2/x"]
    ask(broker, "publish", group="g", number=2, transactions=["g/2/x", "b"])
    assert sorted(unpack(each.payload).body for each in drained(broker, connect(broker), "target")) == ["b", "g/2/x"]


def test_names_are_chosen_by_what_they_begin_with() -> None:
    names = ["b/2/x", "a/1/x", "a/1/y", "a/2/x", "a", "", "b/10/x", "a/1", "\U0010ffff", "a/1/\U0010ffff"]
    assert chosen(names, ["a/1/"], []) == ["a/1/x", "a/1/y", "a/1/\U0010ffff"]
    assert chosen(names, ["a/1/", "a/"], ["a/1/x", "a/2"]) == ["a/1", "a/1/y", "a/1/\U0010ffff"]
    assert chosen(names, [""], []) == sorted(names)
    assert chosen(names, ["\U0010ffff"], []) == ["\U0010ffff"]
    assert chosen(names, ["z", "a/1/xx"], []) == []
    assert chosen(names, [], ["a"]) == []
    assert chosen([], ["a"], ["a"]) == []


NAMES = st.text("ab/\U0010ffff", max_size=5)


@given(names=st.sets(NAMES), prefixes=st.lists(NAMES, max_size=4), keep=st.lists(NAMES, max_size=4))
def test_exactly_those_are_chosen_that_begin_so(names: set[str], prefixes: list[str], keep: list[str]) -> None:
    wanted = {name for name in names if name.startswith(tuple(prefixes)) and not name.startswith(tuple(keep))}
    assert chosen(names, prefixes, keep) == sorted(wanted)


class Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    count = 0

    def __lt__(self, other: str) -> bool:
        Compared.count += 1
        return str.__lt__(self, other)

    def startswith(self, *_: Any) -> bool:
        raise AssertionError("each name is compared with each prefix")


def test_many_prefixes_are_not_compared_with_each_name() -> None:
    names = [Compared(f"g{number}") for number in range(3_000)]
    assert chosen(names, ["z"] * 1_000, ["y"] * 1_000) == []
    assert Compared.count < 50_000


def commands_of(steps: Steps, answer: Callable[[Any], Any], first: Any = None) -> tuple[list[Any], Any]:
    """The commands that an operation asks for, from this result of its last step on, and its own result."""
    asked: list[Any] = []
    try:
        step: Any = steps.send(first)
        while True:
            asked.append(step)
            step = steps.send(answer(step))
    except StopIteration as end:
        return asked, end.value


def test_a_discard_is_decided_in_parts_and_reads_only_names_while_all_others_wait(broker: Broker) -> None:
    names = [f"g/1/{number}" for number in range(2 * DISCARDED_AT_ONCE + 1)]
    steps = steps_of("discard", {"transactions": ["other"], "prefixes": ["g/"], "keep": ["g/1/7"]})
    read = next(steps)
    assert callable(read)
    kept = [name for name in names if name.startswith("g/1/7")]
    parts, dropped = commands_of(steps, lambda part: len(part.transactions), names)
    assert [len(part.transactions) for part in parts] == [DISCARDED_AT_ONCE] * (len(parts) - 1) + [
        len(parts[-1].transactions)
    ]
    assert len(parts[-1].transactions) <= DISCARDED_AT_ONCE
    everything = [name for part in parts for name in part.transactions]
    assert (len(everything), set(everything)) == (dropped, {"other", *names}.difference(kept))


def test_transactions_are_discarded_by_what_their_names_begin_with(broker: Broker) -> None:
    for name in ("g/1/a", "g/1/b", "g/2/a", "h/1/a"):
        ask(broker, "stage", transaction=name, queue="target", first=0, messages=[envelope("a")])
    assert ask(broker, "discard", transactions=["h/1/a"], prefixes=["g/2/", "g/"], keep=["g/2/b"]) == 2
    assert not broker._state.directory.staged


def test_many_messages_are_staged_in_parts_of_a_commit_each(broker: Broker) -> None:
    messages = [envelope(str(number)) for number in range(2 * STAGED_AT_ONCE + 1)]
    steps = steps_of("stage", {"transaction": "t", "queue": "target", "first": 3, "messages": messages})
    parts, result = commands_of(steps, lambda _: True)
    assert result is True
    assert [(part.first, len(part.messages)) for part in parts] == [
        (3, STAGED_AT_ONCE),
        (3 + STAGED_AT_ONCE, STAGED_AT_ONCE),
        (3 + 2 * STAGED_AT_ONCE, 1),
    ]
    assert ask(broker, "stage", transaction="t", queue="target", first=0, messages=messages) is True
    assert ask(broker, "stage", transaction="t", queue="target", first=0, messages=messages) is True
    assert ask(broker, "publish", group="g", number=1, transactions=["t"], counts=[len(messages)]) is True
    assert depth(broker, "target") == len(messages)


def test_large_messages_are_staged_in_parts_by_their_bytes() -> None:
    messages = [envelope("x" * 1_500_000) for _ in range(7)]
    steps = steps_of("stage", {"transaction": "t", "queue": "target", "first": 0, "messages": messages})
    parts, _ = commands_of(steps, lambda _: True)
    assert [len(part.messages) for part in parts] == [3, 3, 1]


def test_what_was_published_meanwhile_is_staged_no_further() -> None:
    messages = [envelope("x")] * (2 * STAGED_AT_ONCE)
    steps = steps_of("stage", {"transaction": "g/1/t", "queue": "target", "first": 0, "messages": messages})
    parts, result = commands_of(steps, lambda _: False)
    assert (len(parts), result) == (1, False)


def test_a_transaction_without_messages_is_begun(broker: Broker) -> None:
    assert ask(broker, "stage", transaction="t", queue="target", first=0, messages=[]) is True
    assert list(broker._state.directory.staged) == ["t"]
