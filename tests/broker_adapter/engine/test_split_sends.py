"""A send that is carried out in parts has one answer, in the order of its messages."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.split_sends import split
from broker_adapter.errors import JMSException, ResourceAllocationException
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
