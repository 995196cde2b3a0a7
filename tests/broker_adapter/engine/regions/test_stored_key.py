"""Keys of a region as the store has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.regions.key_records import KeyRecord, KeyState, encode_key_record, region_key
from broker_adapter.engine.regions.stored_key import StoredKey, key_text, records_behind, stored_key

NAMES = ["a", "a\0", "ab", "b", "ä"]
RECORDS = sorted((region_key(region, name), name.encode()) for region in (1, 2, 3) for name in NAMES)


def items_from(first: bytes) -> Iterator[tuple[bytes, bytes]]:
    return iter([each for each in RECORDS if each[0] >= first])


def behind(after: str | None, limit: int = 100, region: int = 2) -> list[str]:
    return [key_text(region, name) for name, _ in records_behind(items_from, region, after, limit)]


def test_the_keys_of_one_region_are_read_in_order_behind_a_key() -> None:
    assert behind(None) == NAMES
    assert behind("a") == NAMES[1:], "the next key may be this one with a character more"
    assert behind("ab") == ["b", "ä"]
    assert behind("a1") == ["ab", "b", "ä"], "also behind one that is not there"
    assert behind("ä") == []
    assert behind(None, region=3) == NAMES, "the last region of the table"
    assert behind(None, region=4) == []


def test_no_more_are_read_than_are_wanted() -> None:
    assert behind(None, 2) == NAMES[:2]
    assert behind("a", 0) == []


def entry(position: int) -> RawEntry:
    return RawEntry(2, 5, position, 7, 0, 0, 0, 300)


def test_a_key_has_the_place_of_its_value_if_it_has_one_and_it_is_wanted() -> None:
    name = region_key(2, "a")
    with_value, without = KeyRecord(9, 4, 1, KeyState.VALID), KeyRecord(9, 0, 1, KeyState.INVALID)
    found = stored_key(2, name, encode_key_record(name, with_value), entry)
    assert found == StoredKey("a", with_value, entry(4))
    assert found.size == 300
    assert stored_key(2, name, encode_key_record(name, with_value), None) == StoredKey("a", with_value, None)
    found = stored_key(2, name, encode_key_record(name, without), entry)
    assert (found, found.size) == (StoredKey("a", without, None), 0)


def test_a_record_that_cannot_be_trusted_says_nothing_of_its_key_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = region_key(2, "a")
    value = encode_key_record(region_key(2, "b"), KeyRecord(9, 4, 1, KeyState.VALID))
    assert stored_key(2, name, value, entry) == StoredKey("a", None, None)
    assert f"record {name.hex()} of table keys cannot be trusted" in caplog.text
