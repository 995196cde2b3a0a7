"""The log of events as a store has it."""

from __future__ import annotations

import pytest

from broker_adapter.engine.regions.event_records import (
    EventRecord,
    Operation,
    encode_event,
    encode_posting,
    position_key,
    posting_key,
)
from broker_adapter.engine.regions.stored_log import StoredLog
from broker_adapter.engine.store.memory_tables import MemoryTables

#: Positions of the postings of two streams; the ordinals count from 1.
STREAMS = {3: [2, 5, 9, 12], 4: [1, 2, 3]}


@pytest.fixture
def tables() -> MemoryTables:
    tables = MemoryTables()
    for stream, positions in STREAMS.items():
        for ordinal, position in enumerate(positions, 1):
            key = posting_key(stream, position)
            tables.apply("postings", {key: encode_posting(key, ordinal)})
    return tables


def test_a_stream_is_read_between_two_positions(tables: MemoryTables) -> None:
    log = StoredLog(tables)
    assert list(log.postings(3, 0, 100)) == [2, 5, 9, 12]
    assert list(log.postings(3, 5, 9)) == [5, 9]
    assert list(log.postings(3, 6, 8)) == []
    assert list(log.postings(5, 0, 100)) == []


def test_it_is_known_how_many_postings_a_stream_had_at_a_position(tables: MemoryTables) -> None:
    log = StoredLog(tables)
    assert [log.postings_through(3, each) for each in (0, 1, 2, 4, 5, 11, 12, 99)] == [0, 0, 1, 1, 2, 3, 4, 4]
    assert [log.last_ordinal(each) for each in (3, 4, 5)] == [4, 3, 0]
    assert log.postings_through(5, 7) == 0


def test_postings_that_are_gone_stay_counted_while_there_are_later_ones(tables: MemoryTables) -> None:
    tables.apply("postings", {posting_key(3, 2): None, posting_key(3, 5): None})
    log = StoredLog(tables)
    assert [log.postings_through(3, each) for each in (7, 9, 12)] == [2, 3, 4]
    assert log.postings_through(4, 9) == 3


def test_a_damaged_posting_is_noted_and_passed_over(tables: MemoryTables) -> None:
    tables.apply("postings", {posting_key(3, 5): b"not a posting"})
    log = StoredLog(tables)
    assert list(log.postings(3, 0, 100)) == [2, 9, 12]
    assert log.damaged == [("postings", posting_key(3, 5))]


def test_an_event_is_read_by_its_position_where_it_can_be_trusted(tables: MemoryTables) -> None:
    event = EventRecord(1, Operation.CREATE, 8, 100, "IBM", [3])
    tables.apply("events", {position_key(2): encode_event(position_key(2), event), position_key(5): b"damaged"})
    log = StoredLog(tables)
    found = log.event(2)
    assert found is not None
    assert found._replace(audiences=list(found.audiences), answers=()) == event
    assert log.event(5) is None
    assert log.event(9) is None
    assert log.damaged == [("events", position_key(5))]
