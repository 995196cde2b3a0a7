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
    destination_of,
    encode_gateway,
    gateway_key,
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
        "running",
        11,
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
        key = gateway_key(name)
        value = encode_gateway(key, record)
        assert decode_gateway(key, value) == record._replace(destinations=list(record.destinations))
        assert tables_of(key, value) == ("gateways",)


def test_a_record_that_cannot_be_trusted_is_told_from_one_of_newer_software() -> None:
    value = encode_gateway(KEY, RECORD)
    for index in range(len(value)):
        changed = bytearray(value)
        changed[index] ^= 1
        with pytest.raises(StoreCorruptException):
            decode_gateway(KEY, bytes(changed))
    with pytest.raises(StoreCorruptException):
        decode_gateway(b"west", value)
    fields = list(RECORD)
    for wrong in ([], [1], [1, *fields[:-1]], [2, *fields], [1, *fields[:8], "gone", *fields[9:]], [1, 5, *fields[1:]]):
        with pytest.raises(StoreCorruptException):
            decode_gateway(KEY, packed(*wrong))
    with pytest.raises(StoreVersionException):
        decode_gateway(KEY, packed(1, *fields, "more"))
    with pytest.raises(StoreVersionException):
        decode_gateway(KEY, packed(1, *fields[:-1], [*RECORD.counters, 5]))


def test_a_record_of_older_software_has_none_of_the_newer_counters() -> None:
    assert decode_gateway(KEY, packed(1, *RECORD[:-1], [5])).counters == GatewayCounters(received=5)


def test_a_destination_has_a_kind_and_a_name() -> None:
    assert destination_of("region:a:b") == ("region", "a:b")
    for wrong in ("q", "queue:", ":q", "place:q", ""):
        with pytest.raises(ValueError, match="is not"):
            destination_of(wrong)
