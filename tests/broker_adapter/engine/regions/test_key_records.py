"""What is known of a region's keys, and how a key changes."""

from __future__ import annotations

import pytest

from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.key_records import (
    STATE_AFTER,
    KeyRecord,
    KeyState,
    Wanted,
    answer_again,
    decode_key_record,
    decode_tombstone,
    encode_key_record,
    maker_of,
    operation_of,
    region_key,
    region_prefix,
    tombstone,
)
from broker_adapter.engine.regions.stamps import NO_STAMP, Stamp
from broker_adapter.envelope import Identity
from broker_adapter.errors import StoreCorruptException

RECORD = KeyRecord(2**63, 7, 1_700_000_000_000, KeyState.INVALID)


def test_a_record_is_read_as_it_was_written() -> None:
    key = region_key(3, "a/\u20ac")
    assert key.startswith(region_prefix(3))
    assert decode_key_record(key, encode_key_record(key, RECORD)) == RECORD


@pytest.mark.parametrize("maker", [0, 1])
@pytest.mark.parametrize("stamp", [NO_STAMP, Stamp(1, 0), Stamp(2**64 - 1, 255)])
def test_a_record_has_the_stamp_of_the_last_change_also_that_of_a_tombstone(stamp: Stamp, maker: int) -> None:
    key = region_key(3, "a")
    for state in KeyState:
        record = RECORD._replace(stamp=stamp, maker=maker, state=state)
        assert decode_key_record(key, encode_key_record(key, record)) == record


def test_a_record_says_who_made_the_last_change_where_that_is_known() -> None:
    key = region_key(3, "a")
    made = RECORD._replace(maker=maker_of(Identity("p", 1, 2)))
    assert decode_key_record(key, encode_key_record(key, made)) == made
    assert len(encode_key_record(key, made)) == len(encode_key_record(key, RECORD)) + 8
    assert maker_of(None) == 0
    identities = [Identity("p", 1, 2), Identity("p", 2, 1), Identity("q", 1, 2), Identity("\ud800", 2**63 - 1, 0)]
    assert len({0, *map(maker_of, identities)}) == 5


def test_a_change_without_identity_or_of_an_older_store_has_no_answer_again() -> None:
    identity = Identity("p", 1, 2)
    assert answer_again(None, identity) == (None, 0)
    assert answer_again(RECORD, identity) == (None, RECORD.version)
    assert answer_again(RECORD, None) == (None, RECORD.version)
    made = RECORD._replace(maker=maker_of(identity))
    assert answer_again(made, identity) == (Operation.INVALIDATE, RECORD.version)
    assert answer_again(made, None) == (None, RECORD.version)


def test_a_record_that_is_changed_or_in_another_place_is_not_trusted() -> None:
    key = region_key(3, "a")
    value = encode_key_record(key, RECORD)
    for where in range(len(value)):
        changed = bytearray(value)
        changed[where] ^= 1
        with pytest.raises(StoreCorruptException):
            decode_key_record(key, bytes(changed))
    for short in (b"", value[:-1], value + b"\0"):
        with pytest.raises(StoreCorruptException):
            decode_key_record(key, short)
    with pytest.raises(StoreCorruptException):
        decode_key_record(region_key(4, "a"), value)
    unknown = encode_key_record(key, RECORD._replace(state=3))  # type: ignore[arg-type]
    with pytest.raises(StoreCorruptException, match="not known"):
        decode_key_record(key, unknown)


def test_a_tombstone_sorts_by_its_time_and_is_read_as_it_was_written() -> None:
    key = region_key(3, "a")
    line, value = tombstone(77, key, 2**63)
    assert decode_tombstone(line, value) == (77, key, 2**63)
    assert line < tombstone(78, region_key(1, "a"), 1)[0]
    for wrong in (line[:-1], line + b"\0", line[:9], tombstone(78, key, 1)[0]):
        with pytest.raises(StoreCorruptException):
            decode_tombstone(wrong, value)
    for damaged in (b"", value[:-1], value[:-1] + b"\1"):
        with pytest.raises(StoreCorruptException):
            decode_tombstone(line, damaged)


VALID, INVALID, GONE = (RECORD._replace(state=each) for each in KeyState)


@pytest.mark.parametrize(
    ("wanted", "before", "result"),
    [
        (Wanted.PUT, None, Operation.CREATE),
        (Wanted.PUT, GONE, Operation.CREATE),
        (Wanted.PUT, VALID, Operation.UPDATE),
        (Wanted.PUT, INVALID, Operation.UPDATE),
        (Wanted.INVALIDATE, None, None),
        (Wanted.INVALIDATE, GONE, None),
        (Wanted.INVALIDATE, VALID, Operation.INVALIDATE),
        (Wanted.INVALIDATE, INVALID, None),
        (Wanted.DESTROY, None, None),
        (Wanted.DESTROY, GONE, None),
        (Wanted.DESTROY, VALID, Operation.DESTROY),
        (Wanted.DESTROY, INVALID, Operation.DESTROY),
    ],
)
def test_what_changes_nothing_is_no_event(wanted: Wanted, before: KeyRecord | None, result: Operation | None) -> None:
    assert operation_of(wanted, before) is result
    if result is not None:
        again = RECORD._replace(state=STATE_AFTER[result])
        assert operation_of(wanted, again) is (Operation.UPDATE if wanted is Wanted.PUT else None)
