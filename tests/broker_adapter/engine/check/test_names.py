"""Records that belong to no queue, and what a repair makes of damaged ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker_adapter.engine.check.findings import Change, Finding, Summary
from broker_adapter.engine.check.names import SKIPPED_MESSAGES, SKIPPED_QUEUES, check_meta, check_names
from broker_adapter.engine.records.layout import (
    AGE,
    NEXT_MESSAGE,
    NEXT_QUEUE,
    NEXT_RUN,
    RUN_PREFIX,
    UNIQUE,
    LastRecord,
    RunRecord,
    SequencesRecord,
    decode_meta,
    encode_last,
    encode_meta,
    encode_run,
    encode_sequences,
    last_key,
    quarantine_key,
    run_key,
    stream_key,
)
from broker_adapter.engine.records.start_numbers import SKIPPED_RUNS
from broker_adapter.engine.store.memory_store import Snapshot

SOUND = {
    NEXT_QUEUE: encode_meta(NEXT_QUEUE, 5),
    NEXT_MESSAGE: encode_meta(NEXT_MESSAGE, 9),
    UNIQUE: encode_meta(UNIQUE, "name"),
}


def on_disk(**tables: dict[bytes, bytes]) -> Snapshot:
    found = Snapshot(tables)
    found.persistent = True
    return found


def problems(found: Iterable[Finding]) -> list[str]:
    return [each.problem for each in found]


def repaired(meta: dict[bytes, bytes], changes: Iterable[Change]) -> dict[bytes, bytes]:
    after = dict(meta)
    for table, key, value in changes:
        if table == "meta" and value is None:
            after.pop(key, None)
        elif table == "meta" and value is not None:
            after[key] = value
    return after


def test_sound_records_are_counted_and_nothing_is_found() -> None:
    key, stream = last_key("session"), stream_key("producer", "thread")
    records = {key: encode_last(key, LastRecord(3, 1))}
    streams = {stream: encode_sequences(stream, SequencesRecord(3, 0, 1))}
    summary = Summary()
    assert list(check_names(on_disk(commits=records, published=records, producers=streams), summary)) == []
    assert summary.producers == 1
    assert list(check_meta(on_disk(meta=SOUND), 4, 8)) == []


@pytest.mark.parametrize("table", ["commits", "published", "producers"])
def test_a_damaged_number_goes_into_quarantine(table: str) -> None:
    (found,) = check_names(on_disk(**{table: {b"key": b"damaged"}}), Summary())
    assert found.problem == "damaged record of numbers done"
    assert found.changes[0] == (table, b"key", None)
    assert found.changes[1][0] == "quarantine"


@pytest.mark.parametrize("key", [b"unknown", run_key(1), UNIQUE])
def test_a_record_of_the_store_that_cannot_be_trusted_is_put_right(key: bytes) -> None:
    meta = {**SOUND, key: b"damaged"}
    (found,) = check_meta(on_disk(meta=meta), 4, 8)
    assert found.key == key
    assert list(check_meta(on_disk(meta=repaired(meta, found.changes)), 4, 8)) == []


def test_numbers_that_were_used_are_skipped() -> None:
    found = list(check_meta(on_disk(meta=SOUND), 5, 9))
    assert problems(found) == ["wrong number of the next queue", "wrong number of the next message"]
    after = repaired(SOUND, [change for each in found for change in each.changes])
    assert decode_meta(NEXT_QUEUE, after[NEXT_QUEUE]) == 6 + SKIPPED_QUEUES
    assert decode_meta(NEXT_MESSAGE, after[NEXT_MESSAGE]) == 10 + SKIPPED_MESSAGES
    damaged = {**SOUND, NEXT_QUEUE: b"damaged"}
    assert problems(check_meta(on_disk(meta=damaged), 0, 0)) == ["wrong number of the next queue"]


def test_a_store_in_memory_has_no_such_records() -> None:
    assert list(check_meta(Snapshot({"meta": {b"unknown": b""}}), 9, 9)) == []


def test_a_damaged_age_of_the_store_goes_into_quarantine() -> None:
    assert list(check_meta(on_disk(meta={**SOUND, AGE: encode_meta(AGE, 7)}), 4, 8)) == []
    meta = {**SOUND, AGE: b"damaged"}
    (found,) = check_meta(on_disk(meta=meta), 4, 8)
    assert found.problem == "damaged age of the store"
    assert repaired(meta, found.changes) == SOUND


def with_starts(*numbers: int) -> dict[bytes, bytes]:
    return SOUND | {run_key(number): encode_run(run_key(number), RunRecord(str(number), {})) for number in numbers}


def test_a_damaged_number_of_the_next_start_goes_into_quarantine_and_those_that_were_used_are_skipped() -> None:
    for sound in (3, 9):
        meta = {**with_starts(1, 2), NEXT_RUN: encode_meta(NEXT_RUN, sound)}
        assert list(check_meta(on_disk(meta=meta), 4, 8)) == []
    assert list(check_meta(on_disk(meta=with_starts(1, 2)), 4, 8)) == [], "the note is lost"
    for damaged in (b"damaged", encode_meta(NEXT_RUN, "3"), encode_meta(AGE, 3)):
        meta = {**with_starts(1, 2), NEXT_RUN: damaged}
        (found,) = check_meta(on_disk(meta=meta), 4, 8)
        assert found.problem == "damaged number of the next start"
        assert found.changes[1] == ("quarantine", quarantine_key("meta", NEXT_RUN), damaged)
        after = repaired(meta, found.changes)
        assert decode_meta(NEXT_RUN, after[NEXT_RUN]) == 3 + SKIPPED_RUNS
        assert list(check_meta(on_disk(meta=after), 4, 8)) == []


@pytest.mark.parametrize("noted", [None, 2, 4, 9])
def test_a_damaged_record_of_a_start_has_had_its_number(noted: int | None) -> None:
    meta = {**with_starts(1), run_key(2): b"damaged", run_key(3): b"damaged"}
    if noted is not None:
        meta[NEXT_RUN] = encode_meta(NEXT_RUN, noted)
    found = list(check_meta(on_disk(meta=meta), 4, 8))
    assert problems(found) == ["damaged record of a start"] * 2
    after = repaired(meta, [change for each in found for change in each.changes])
    assert after == {**with_starts(1), NEXT_RUN: encode_meta(NEXT_RUN, max(noted or 0, 4))}


@pytest.mark.parametrize("key", [b"run/", b"run/1", RUN_PREFIX + bytes(9)])
def test_a_key_that_only_begins_like_that_of_a_start_goes_into_quarantine(key: bytes) -> None:
    (found,) = check_meta(on_disk(meta={**SOUND, key: encode_run(key, RunRecord("word", {}))}), 4, 8)
    assert found.problem == "unknown record of the store"
    assert repaired({key: b""}, found.changes) == {}
