"""The form of a gateway's record."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgpack
import pytest

from broker_adapter.engine.check.record_kinds import tables_of
from broker_adapter.engine.records.gateway_records import (
    UNKNOWN,
    GatewayCounters,
    GatewayRecord,
    decode_gateway,
    decode_progress,
    destination_of,
    encode_gateway,
    encode_progress,
    gateway_key,
    is_progress,
    kept_of,
    progress_key,
)
from broker_adapter.errors import StoreCorruptException, StoreVersionException

RECORD = GatewayRecord(
    *(
        "amqp://far",
        ["queue:q", "region:r"],
        "a = 1",
        7,
        8,
        9,
        10,
        True,
        False,
        True,
        5,
        "b = 2",
        "running",
        11,
        [2],
        12,
        GatewayCounters(*range(11)),
    )
)
KEY = gateway_key("east")


def packed(*fields: Any) -> bytes:
    body: bytes = msgpack.packb(fields)
    return crc32(body, crc32(KEY)).to_bytes(4) + body


@pytest.mark.parametrize("name", ["e", "east", "=east", "\xfc" * 180])
def test_a_record_is_read_as_it_was_written_and_known_as_one_of_its_table(name: str) -> None:
    for record in (RECORD, UNKNOWN):
        key, value = gateway_key(name), encode_gateway(gateway_key(name), record)
        found = decode_gateway(key, value)
        assert found == record._replace(
            destinations=list(record.destinations), copied=list(record.copied), applied=0, counters=GatewayCounters()
        )
        assert kept_of(found) == kept_of(
            record._replace(destinations=list(record.destinations), copied=list(record.copied))
        )
        assert tables_of(key, value) == ("gateways",)
        key, value = progress_key(name), encode_progress(progress_key(name), record)
        assert decode_progress(key, value) == (record.applied, record.counters)
        assert tables_of(key, value) == ("gateways",)
        assert is_progress(key)
        assert not is_progress(gateway_key(name))


def test_a_record_that_cannot_be_trusted_is_told_from_one_of_newer_software() -> None:
    kept, rest = list(kept_of(RECORD)), list(RECORD[len(kept_of(RECORD)) :])
    for decode, value in (
        (decode_gateway, encode_gateway(KEY, RECORD)),
        (decode_progress, encode_progress(KEY, RECORD)),
    ):
        for index in range(len(value)):
            changed = bytearray(value)
            changed[index] ^= 1
            with pytest.raises(StoreCorruptException):
                decode(KEY, bytes(changed))
        with pytest.raises(StoreCorruptException):
            decode(b"west", value)
    for wrong in ([], [1], [1, *kept[:-1]], [2, *kept], [1, *kept[:-1], "gone"], [1, 5, *kept[1:]]):
        with pytest.raises(StoreCorruptException):
            decode_gateway(KEY, packed(*wrong))
    for wrong in ([], [1], [1, rest[0]], [2, *rest], [1, "5", rest[1]], [1, *reversed(rest)]):
        with pytest.raises(StoreCorruptException):
            decode_progress(KEY, packed(*wrong))
    with pytest.raises(StoreVersionException):
        decode_gateway(KEY, packed(1, *kept, "more"))
    for newer in ([1, *rest, "more"], [1, rest[0], [*rest[1], 5]]):
        with pytest.raises(StoreVersionException):
            decode_progress(KEY, packed(*newer))


def test_counters_of_older_software_have_none_of_the_newer_ones() -> None:
    assert decode_progress(KEY, packed(1, 7, [5])) == (7, GatewayCounters(received=5))


def test_a_destination_has_a_kind_and_a_name() -> None:
    assert destination_of("region:a:b") == ("region", "a:b")
    for wrong in ("q", "queue:", ":q", "place:q", ""):
        with pytest.raises(ValueError, match="is not"):
            destination_of(wrong)
