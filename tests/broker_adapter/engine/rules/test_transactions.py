"""Commits: all or nothing, once, and within their limits."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import TransactionInDoubtException, TransactionRolledBackException
from tests.broker_adapter.engine.decisions import Q, Rules, commit


def test_a_commit_is_all_or_nothing() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q, 10)
    with pytest.raises(TransactionRolledBackException, match="not held any more"):
        rules.do(
            commit(
                client, 1, [(queue("out"), b"x")], [(consumer, 1, Outcome.ACCEPTED), (consumer, 9, Outcome.ACCEPTED)]
            )
        )
    assert not rules.effects.durable.messages
    # The first message has failed, and was redelivered as delivery 3.
    rules.do(
        commit(client, 2, [(queue("out"), b"x")], [(consumer, 3, Outcome.ACCEPTED), (consumer, 2, Outcome.ACCEPTED)])
    )
    assert (rules.depth("q"), rules.depth("out")) == (0, 1)


def test_a_commit_is_done_once() -> None:
    rules = Rules()
    client = rules.connect()
    for _ in range(3):
        rules.do(commit(client, 1, [(Q, b"x")], []))
    assert rules.depth("q") == 1


def test_a_commit_that_finds_no_room_is_rolled_back_at_once() -> None:
    rules = Rules(max_queue_messages=2)
    client = rules.connect()
    rules.send(client, Q, b"a")
    with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
        rules.do(commit(client, 1, [(Q, b"b"), (Q, b"c")], []))
    assert (rules.depth("q"), rules.state.waiting()) == (1, [])
    consumer = rules.attach(client, Q, 1)
    rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    assert rules.do(commit(client, 2, [(Q, b"b"), (Q, b"c")], [])) is None
    assert rules.depth("q") == 2


@pytest.mark.parametrize(
    ("settings", "sends"),
    [({"max_transaction_messages": 2}, [b"x"] * 3), ({"max_transaction_bytes": 10}, [b"x" * 6] * 2)],
)
def test_a_transaction_has_limits(settings: dict[str, int], sends: list[bytes]) -> None:
    rules = Rules(**settings)
    client = rules.connect()
    with pytest.raises(TransactionRolledBackException, match=next(iter(settings))):
        rules.do(commit(client, 1, [(Q, body) for body in sends], []))
    rules.do(commit(client, 2, [(Q, body) for body in sends[1:]], []))


@pytest.mark.parametrize("step", ["before", "in the middle"])
def test_a_commit_that_a_fault_of_the_engine_ends_is_in_doubt_where_it_had_begun(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules(max_queue_messages=1)
    client = rules.connect()
    answers: list[Any] = []

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    command = commit(client, 1, [(Q, b"x")], [])._replace(reply=answers.append)
    transactions = rules.state._transactions
    if step == "before":
        monkeypatch.setattr(transactions, "_settled_by", fail)
    else:
        monkeypatch.setattr(transactions._deliveries, "settle_committed", fail)
    for reply, result in rules.state.decide([command], rules.now_ms).replies:
        reply(result)
    (error,) = answers
    assert type(error) is (TransactionRolledBackException if step == "before" else TransactionInDoubtException)
    assert "could not carry out Commit" in str(error)
    assert rules.depth("q") == (step != "before")


def test_what_a_commit_in_doubt_was_to_settle_is_redelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    consumer = rules.attach(client, Q, 2)
    answers: list[Any] = []

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rules.state._transactions._deliveries, "settle_committed", fail)
    command = commit(client, 1, [(queue("out"), b"x")], [(consumer, 1, Outcome.ACCEPTED)])
    for reply, result in rules.state.decide([command._replace(reply=answers.append)], rules.now_ms).replies:
        reply(result)
    assert [type(each) for each in answers] == [TransactionInDoubtException]
    rules.do(c.Credit(consumer, 1))
    assert [number for number, _ in rules.delivered[consumer]] == [1, 2, 3]


def test_what_a_refused_commit_was_to_settle_comes_again_after_the_redelivery_delays() -> None:
    """A client that does its transaction again at once does not make a dead letter of it at once."""
    rules = Rules(max_queue_messages=1, max_deliveries=4)
    client = rules.connect()
    rules.send(client, Q, b"full")
    rules.send(client, queue("in"), b"a")
    consumer = rules.attach(client, queue("in"), 10)
    started = rules.now_ms
    for number in range(1, 5):
        while len(rules.delivered[consumer]) < number:
            rules.pass_time(10)
            assert rules.now_ms - started < 10_000
        taken, count = rules.delivered[consumer][-1]
        assert count == number - 1
        with pytest.raises(TransactionRolledBackException, match="does not wait for room"):
            rules.do(commit(client, number, [(Q, b"x")], [(consumer, taken, Outcome.ACCEPTED)]))
    assert rules.now_ms - started >= 300, "0.1 s, then 0.2 s"
    assert (rules.depth("in"), rules.depth("DLQ")) == (0, 1)
