"""What background jobs have found is ended only where it still is."""

from __future__ import annotations

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    KIND_DELIVER,
    RawEntry,
    entry_key,
    schedule_line,
    unpack_entry_key,
)
from tests.broker_adapter.engine.decisions import DURABLE, Rules


@pytest.mark.parametrize("durable", [True, False])
def test_what_falls_due_in_a_queue_that_has_ended_is_dropped(durable: bool) -> None:
    """Else it would be stored after the queue was cleared, and stay in the store for ever."""
    rules = Rules(durable=durable, expiry_queue="expired")
    client = rules.connect("me")
    rules.do(c.Detach(rules.attach(client, topic("t"), subscription=DURABLE)))
    rules.send(client, topic("t"), b"later", deliver_at_ms=rules.now_ms + 10)
    batch = rules.effects.durable if durable else rules.effects.volatile
    ((key, entry),) = batch.entries.items()
    (schedule,) = batch.tables["schedule"]
    assert entry is not None
    rules.do(c.Unsubscribe(client, "s"))
    queue_number, lane, position = unpack_entry_key(key)
    raw = RawEntry(queue_number, lane, position, entry.number, 0, entry.flags, 0, entry.size)
    rules.do(c.Due([(KIND_DELIVER, raw, schedule)]))
    batch = rules.effects.durable if durable else rules.effects.volatile
    assert batch.entries == {key: None}


def test_a_damaged_line_of_the_schedule_goes_into_quarantine_in_the_commit_that_puts_the_right_one_in() -> None:
    rules = Rules()
    right = schedule_line(70, KIND_DELIVER, entry_key(1, DELAYED_LANE, 1))
    found = (b"wrong", b"", right), (right[0], b"1234", right), (b"x", b"", None)
    rules.do(c.Due((), [c.DamagedLine(*each) for each in found]))
    tables = rules.effects.durable.tables
    assert tables["schedule"] == {b"wrong": None, right[0]: right[1], b"x": None}
    assert tables["quarantine"] == {b"schedule\0wrong": b"", b"schedule\0" + right[0]: b"1234", b"schedule\0x": b""}
    assert rules.state.totals.quarantined == 3
