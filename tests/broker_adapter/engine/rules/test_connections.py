"""Clients come and go."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    TransactionRolledBackException,
)
from tests.broker_adapter.engine.decisions import Q, Rules, sent


def test_a_client_id_is_for_one_at_a_time() -> None:
    rules = Rules()
    first = rules.connect("me")
    with pytest.raises(InvalidClientIDException, match="'me' is in use"):
        rules.connect("me")
    rules.do(c.Disconnect(first))
    rules.connect("me")


def test_a_command_of_a_client_that_is_not_there_is_refused() -> None:
    with pytest.raises(IllegalStateException, match="not connected"):
        Rules().attach(99, Q)


def test_a_client_that_goes_leaves_its_deliveries_and_takes_its_held_sends() -> None:
    rules = Rules(max_queue_messages=1)
    client, other = rules.connect(), rules.connect()
    rules.send(client, Q, b"a")
    rules.attach(client, Q, 1)
    assert rules.send(client, Q, b"never taken") == "held"
    rules.do(c.Disconnect(client))
    consumer = rules.attach(other, Q, 10)
    assert rules.delivered[consumer] == [(1, 1)]
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.depth("q") == 0


def test_a_connection_ends_whole_although_a_commit_of_a_closed_consumer_was_refused() -> None:
    rules = Rules(max_queue_messages=1, blocked_send_timeout_seconds=100)
    rules.send(rules.connect(), Q, b"there")
    rules.send(rules.connect(), queue("in"), b"work")
    client = rules.connect()
    consumer = rules.attach(client, queue("in"), credit=1)
    ((number, _),) = rules.delivered[consumer]
    other = rules.attach(client, queue("elsewhere"), credit=10)
    rules.do(c.Detach(consumer))
    with pytest.raises(TransactionRolledBackException, match="is full"):
        rules.do(c.Commit(client, None, [(Q, sent(1))], [(consumer, number, Outcome.ACCEPTED)]))
    rules.do(c.Disconnect(client))
    assert not rules.effects.faults
    assert (rules.state.directory.consumers, rules.state.waiting()) == ({}, [])
    rules.send(rules.connect(), queue("elsewhere"), b"x")
    assert other not in rules.delivered, "a consumer that is gone takes nothing"
    again = rules.attach(rules.connect(), queue("in"), credit=1)
    assert [count for _, count in rules.delivered[again]] == [1]
