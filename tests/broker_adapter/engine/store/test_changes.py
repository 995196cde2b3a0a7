"""What a commit changes, as absolute records."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.records.layout import (
    NEXT_RUN,
    RunRecord,
    decode_entry,
    decode_message,
    decode_meta,
    decode_run,
    encode_meta,
    encode_reference,
    message_key,
    quarantine_key,
    run_key,
)
from broker_adapter.engine.records.start_numbers import KEPT_RUNS, SKIPPED_RUNS
from broker_adapter.engine.store.changes import by_table, changes_of, joined, start_noted
from tests.broker_adapter.engine.storing import batch_of, entry

ONE, TWO = message_key(1), message_key(2)


def counted(counts: Mapping[bytes, int]) -> dict[bytes, bytes]:
    return {key: encode_reference(key, count) for key, count in counts.items()}


def test_a_batch_puts_and_deletes_records() -> None:
    (key, found), (other, _) = entry(1, 5, 1, 1, delivery_count=2, group=3), entry(1, 5, 2, 2)
    batch = batch_of((key, found))
    batch.entries[other] = None
    batch.gone.append(2)
    batch.put("schedule", b"line", None)
    batch.put("keys", b"key", b"value")
    puts, deletes = changes_of(batch, {})
    assert [decode_entry(*record) for record in puts.pop("entries")] == [found]
    assert [(each, decode_message(1, value)) for each, value in puts.pop("messages")] == [(ONE, (7, b"x1"))]
    assert puts == {"keys": [(b"key", b"value")]}
    assert deletes == {"entries": [other], "messages": [TWO], "schedule": [b"line"]}


def test_an_empty_batch_changes_nothing() -> None:
    assert changes_of(StoreBatch(), {}) == ({}, {})


def test_a_count_is_what_is_left_then() -> None:
    batch = StoreBatch()
    batch.references.append((1, 3))
    batch.unreferenced += [1, 2, 2, 1]
    assert changes_of(batch, counted({TWO: 5})) == ({"references": list(counted({ONE: 1, TWO: 3}).items())}, {})


@pytest.mark.parametrize("found", [counted({ONE: 2}), {}])
def test_a_message_to_which_nothing_refers_any_more_is_deleted(found: dict[bytes, bytes]) -> None:
    batch = StoreBatch()
    batch.gone.append(2)
    batch.unreferenced += [1, 1]
    assert changes_of(batch, found) == ({}, {"references": [ONE], "messages": [TWO, ONE]})


def test_a_message_whose_count_is_damaged_is_left_as_it_is() -> None:
    batch = StoreBatch()
    batch.unreferenced += [1, 2]
    found = {ONE: b"damaged", **counted({TWO: 1})}
    assert changes_of(batch, found) == ({}, {"references": [TWO], "messages": [TWO]})


def test_a_start_is_noted_with_the_next_number_and_the_oldest_are_forgotten() -> None:
    key, record = run_key(KEPT_RUNS + 8), RunRecord("this", {1: 5})
    known = {run_key(number): 10 for number in range(5, KEPT_RUNS + 5)}
    puts, deletes = start_noted(record, known, encode_meta(NEXT_RUN, KEPT_RUNS + 8))
    found = dict(puts["meta"])
    assert decode_meta(NEXT_RUN, found.pop(NEXT_RUN)) == KEPT_RUNS + 9
    assert decode_run(key, found.pop(key)) == record
    assert (found, deletes) == ({}, {"meta": [run_key(5)]})


def test_a_damaged_number_of_the_next_start_goes_into_quarantine(caplog: pytest.LogCaptureFixture) -> None:
    puts, deletes = start_noted(RunRecord("this", {}), {run_key(4): 10}, b"damaged")
    assert puts["quarantine"] == [(quarantine_key("meta", NEXT_RUN), b"damaged")]
    assert (sorted(dict(puts["meta"])), deletes) == ([NEXT_RUN, run_key(5 + SKIPPED_RUNS)], {})
    assert "the number of the next start of an engine is damaged" in caplog.text


def test_of_two_changes_of_a_record_the_later_one_counts() -> None:
    changes = [("meta", b"a", None), ("meta", b"a", b"1"), ("meta", b"b", b"2"), ("meta", b"b", None)]
    assert by_table([*changes, ("keys", b"a", b"3")]) == (
        {"meta": [(b"a", b"1")], "keys": [(b"a", b"3")]},
        {"meta": [b"b"]},
    )


def test_changes_of_different_records_are_joined() -> None:
    changes = {"meta": [(b"a", b"1")]}, {"keys": [b"k"]}
    others = {"meta": [(b"b", b"2")], "runs": [(b"c", b"3")]}, {"meta": [b"d"]}
    assert joined(changes, others) == (
        {"meta": [(b"a", b"1"), (b"b", b"2")], "runs": [(b"c", b"3")]},
        {"keys": [b"k"], "meta": [b"d"]},
    )
    assert changes == ({"meta": [(b"a", b"1")]}, {"keys": [b"k"]}), "they stay as they were"
