"""A send that is carried out in parts has one answer, in the order of its messages."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.cycle.split_sends import split
from broker_adapter.errors import JMSException, ResourceAllocationException
from tests.broker_adapter.engine.decisions import Q, Rules
from tests.broker_adapter.engine.driving import message

FULL, TOO_LONG = ResourceAllocationException("full"), JMSException("too long")


def parts_of_five(reply: Any) -> list[c.Enqueue]:
    """A send of five messages as three commands, of two, two and one messages."""
    one, rest = split(c.Enqueue(1, queue("q"), [message(str(number)) for number in range(5)], reply=reply), 2)
    return [one, *split(rest, 2)]


def test_the_parts_have_all_messages_in_their_order() -> None:
    parts = parts_of_five(None)
    assert [[each.payload for each in part.messages] for part in parts] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert [part.reply for part in parts] == [None, None, None]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((None, None, None), None),
        ((None, FULL, None), [None, None, FULL, FULL, None]),
        (([TOO_LONG, None], None, FULL), [TOO_LONG, None, None, None, FULL]),
    ],
)
def test_the_reply_is_called_once_behind_the_last_part(answers: tuple[Any, ...], expected: Any) -> None:
    found: list[Any] = []
    for part, answer in zip(parts_of_five(found.append), answers, strict=True):
        assert found == []
        assert part.reply is not None
        part.reply(answer)
    assert found == [expected]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_each_message_has_its_own_answer_whichever_part_has_one_first(order: tuple[int, ...]) -> None:
    found: list[Any] = []
    parts, answers = parts_of_five(found.append), ([None, TOO_LONG], None, FULL)
    for place in order:
        assert found == []
        reply = parts[place].reply
        assert reply is not None
        reply(answers[place])
    assert found == [[None, TOO_LONG, None, None, FULL]]


def test_a_part_that_waits_while_those_behind_it_are_refused_has_its_own_answer() -> None:
    rules = Rules(max_queue_messages=2, max_blocked_sends=1, max_queue_bytes=1_000)
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q)
    found: list[Any] = []

    def decide(command: Any) -> Effects:
        effects = rules.state.decide((command,), rules.now_ms)
        for reply, result in effects.replies:
            reply(result)
        return effects

    for part in parts_of_five(found.append):
        decide(part)
    assert found == []
    for _, messages in decide(c.Credit(consumer, 2)).deliveries:
        decide(c.Settle(consumer, [each.number for each in messages], Outcome.ACCEPTED))
    assert [each is None for each in found[0]] == [True, True, False, False, False]
    assert rules.depth("q") == 2
