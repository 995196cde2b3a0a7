"""Sends: what is taken of them, and what is refused."""

from __future__ import annotations

import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import (
    ResourceAllocationException,
)
from tests.broker_adapter.engine.decisions import LARGE, Q, Rules, Scarce


def test_a_message_above_the_limit_is_refused_and_the_others_are_taken() -> None:
    rules = Rules(max_message_bytes=10)
    errors = rules.send(rules.connect(), Q, b"small", b"x" * 11, b"small too")
    assert [type(error) for error in errors] == [type(None), ResourceAllocationException, type(None)]
    assert "max_message_bytes" in str(errors[1])
    assert rules.depth("q") == 2


def test_no_local_leaves_out_a_connections_own_messages() -> None:
    rules = Rules()
    mine, other = rules.connect(), rules.connect()
    consumer = rules.attach(mine, topic("t"), 10, no_local=True)
    rules.send(mine, topic("t"), b"mine")
    rules.send(other, topic("t"), b"theirs")
    assert len(rules.delivered[consumer]) == 1


def test_what_cannot_be_put_back_makes_no_queue() -> None:
    scarce = Scarce()
    there = frozenset([b"key"])
    put_back = c.PutBack(queue("new"), [(b"key", c.NewMessage(0, 5 * LARGE))], there)
    with pytest.raises(ResourceAllocationException, match="the store is full"):
        scarce.rules.do(put_back)
    assert queue("new") not in scarce.rules.state.directory.by_destination
    assert not any(scarce.rules.effects.durable.tables.get("catalog", {}).values())
