"""The numbers of queues: which of them are reused."""

from __future__ import annotations

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.numbers import QueueNumbers
from broker_adapter.engine.records.layout import (
    FIRST_STAGED_QUEUE,
    FIRST_VOLATILE_QUEUE,
    NEXT_QUEUE,
    decode_meta,
)
from broker_adapter.errors import (
    ResourceAllocationException,
)
from tests.broker_adapter.engine.decisions import Q, Rules


def test_the_number_of_a_staged_transaction_is_reused_and_no_queues_number_is() -> None:
    rules = Rules()
    state = rules.state
    state.directory.numbers._next_staged = FIRST_VOLATILE_QUEUE - 1
    for name in ("g/1/a", "g/1/b", "g/1/c"):
        rules.do(c.Stage(name, Q, 0, [c.NewMessage(0, b"x")]))
    assert [each.id for each in state.directory.staged.values()] == [
        FIRST_VOLATILE_QUEUE - 1,
        FIRST_STAGED_QUEUE,
        FIRST_STAGED_QUEUE + 1,
    ]
    state.directory.numbers._next_staged = FIRST_VOLATILE_QUEUE - 1
    rules.do(c.Stage("g/1/d", Q, 0, [c.NewMessage(0, b"x")]))
    assert state.directory.staged["g/1/d"].id == FIRST_STAGED_QUEUE + 2
    rules.do(c.Declare(Q))
    noted = rules.effects.durable.tables["meta"][NEXT_QUEUE]
    assert noted is not None
    assert decode_meta(NEXT_QUEUE, noted) == state.directory.by_destination[Q].id + 1
    state.directory.numbers.next = FIRST_STAGED_QUEUE - 1
    rules.do(c.Declare(queue("last")))
    with pytest.raises(ResourceAllocationException, match="has no number for another one"):
        rules.do(c.Declare(queue("one too many")))


def test_a_number_that_the_store_has_is_not_reused() -> None:
    numbers = QueueNumbers(b"secret", durable=True)
    for number in (7, 3, FIRST_STAGED_QUEUE + 5, FIRST_VOLATILE_QUEUE + 5):
        numbers.restore(number)
    assert [numbers.new(Effects()) for _ in range(2)] == [8, 9]


def test_numbers_in_memory_are_of_their_own_and_are_not_noted_in_a_store() -> None:
    numbers = QueueNumbers(b"secret", durable=False)
    assert [numbers.new_volatile() for _ in range(2)] == [FIRST_VOLATILE_QUEUE, FIRST_VOLATILE_QUEUE + 1]
    effects = Effects()
    assert numbers.new(effects) == 1
    assert not effects.durable
