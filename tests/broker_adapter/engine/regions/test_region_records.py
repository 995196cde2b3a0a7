"""The record of a region."""

from __future__ import annotations

import pytest

from broker_adapter.engine.regions.region_records import RegionRecord, decode_region, encode_region
from broker_adapter.errors import StoreCorruptException

KEY = (7).to_bytes(4)


@pytest.mark.parametrize("record", [RegionRecord(), RegionRecord(True, 3, 2**64 - 1)])
def test_a_region_comes_back_as_it_was_stored(record: RegionRecord) -> None:
    assert decode_region(KEY, encode_region(KEY, record)) == record


def test_a_record_that_is_changed_anywhere_or_stands_elsewhere_is_not_trusted() -> None:
    value = encode_region(KEY, RegionRecord(True, 3, 4))
    for index in range(len(value)):
        for bit in range(8):
            changed = bytearray(value)
            changed[index] ^= 1 << bit
            with pytest.raises(StoreCorruptException, match="record 00000007 of a region"):
                decode_region(KEY, bytes(changed))
    with pytest.raises(StoreCorruptException, match="fails its checksum"):
        decode_region((8).to_bytes(4), value)


@pytest.mark.parametrize(("key", "change"), [(KEY + b"x", b""), (KEY[:3], b""), (KEY, b"x")])
def test_a_record_of_another_form_is_named(key: bytes, change: bytes) -> None:
    with pytest.raises(StoreCorruptException, match=f"record {key.hex()} of a region has a form that is not known"):
        decode_region(key, encode_region(key, RegionRecord()) + change)
