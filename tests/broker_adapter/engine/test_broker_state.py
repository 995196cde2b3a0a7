"""The engine's rules by themselves: commands in, effects out; no store, no clock, no thread."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import Identity
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules


def test_what_must_be_durable_is_in_the_durable_batch_and_nothing_else() -> None:
    rules = Rules()
    client = rules.connect()
    rules.send(client, Q, b"a", b"b")
    assert len(rules.effects.durable.messages) == len(rules.effects.durable.entries) == 2
    assert not rules.effects.volatile
    rules.send(client, Q, b"c", persistent=False)
    assert not rules.effects.durable.messages
    assert len(rules.effects.volatile.messages) == 1


def test_without_a_disk_nothing_is_durable() -> None:
    rules = Rules(durable=False)
    client = rules.connect("me")
    rules.send(client, Q, b"a", identity=Identity("p", 1, 1))
    assert not rules.effects.durable
    rules.attach(client, topic("t"), subscription=DURABLE)
    assert not rules.effects.durable


def test_a_fault_in_one_command_is_that_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules()
    client = rules.connect()
    replies: list[Any] = []
    bad = c.Enqueue(client, Q, [object()], replies.append)  # type: ignore[list-item]
    good = c.Enqueue(client, Q, [c.NewMessage(0, b"x")], replies.append)
    rules.do(bad, good)
    for reply, result in rules.effects.replies:
        if reply == replies.append:
            reply(result)
    assert "could not carry out Enqueue" in str(replies[0])
    assert rules.depth("q") == 1
    assert [type(command) for command, _ in rules.effects.faults] in ([], [c.Enqueue])
