"""What a cycle has changed counts for what is read from the stores in that cycle."""

from __future__ import annotations

from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.queues.entries import Entry, Lane
from broker_adapter.engine.queues.pending import Pending, raw_entry
from broker_adapter.engine.records.layout import RawEntry, entry_key


def new_entry(position: int, *, lane: int = 5, delivery_count: int = 0) -> Entry:
    key = entry_key(1, lane, position)
    return Entry(key, Lane(lane), position, 100 + position, delivery_count, 0, 0, 10)


def stored(*positions: int) -> list[RawEntry]:
    return [raw_entry(1, new_entry(position)) for position in positions]


def test_entries_that_have_ended_are_left_out_and_changed_ones_are_as_changed() -> None:
    effects = Effects()
    changed = new_entry(2, delivery_count=3)
    effects.durable.entries = {entry_key(1, 5, 1): None, changed.key: changed}
    effects.volatile.entries = {entry_key(1, 5, 4): None}
    found = Pending(effects).as_changed(stored(1, 2, 3, 4))
    assert found == [raw_entry(1, changed), *stored(3)]
    assert found[0].delivery_count == 3


def test_new_entries_of_the_lane_follow_those_of_the_store_by_position() -> None:
    effects = Effects()
    for entry in (new_entry(9), new_entry(7), new_entry(2), new_entry(8, lane=4)):
        effects.volatile.entries[entry.key] = entry
    pending = Pending(effects)
    assert pending.with_new(1, 5, 3, stored(4)) == stored(4, 7, 9)
    assert pending.with_new(2, 5, 3, []) == []


def test_entries_that_come_in_later_are_found_as_well() -> None:
    effects = Effects()
    pending = Pending(effects)
    assert pending.with_new(1, 5, 0, stored(1)) == stored(1)
    entry = new_entry(2)
    effects.durable.entries[entry.key] = entry
    assert pending.with_new(1, 5, 0, stored(1)) == stored(1, 2)
