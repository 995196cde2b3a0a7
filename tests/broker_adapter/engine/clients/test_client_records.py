"""The form of clients and audiences on disk."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from broker_adapter.engine.clients import client_records
from broker_adapter.engine.clients.client_records import (
    INTEREST_KEY_BYTES,
    AudienceRecord,
    ClientRecord,
    CursorRecord,
    InterestRecord,
    decode_audience,
    decode_client,
    decode_cursor,
    decode_interest,
    encode_audience,
    encode_client,
    encode_cursor,
    encode_interest,
    interest_key,
)
from broker_adapter.errors import StoreCorruptException, StoreVersionException

CLIENT = ClientRecord(
    *("desk", 300_000, None, False, 2**63, ((1, 101, 5, 3, None), (1, 101, 6, 9, 12)), (1, 2), 7, 2**62, 1),
    *(((1, ("dear",), 3, 9),), ((1, ("dear", "cheap"), 12),)),
)
WISH = InterestRecord("desk", 7, 4, "price > 3", "dear", True)


def with_crc(key: bytes, fields: Any) -> bytes:
    record = client_records._encode(key, CLIENT)
    body = msgpack.packb(fields)
    assert record
    return client_records.crc32(body, client_records.crc32(key)).to_bytes(4) + body


def test_records_are_read_as_they_were_written() -> None:
    assert decode_client(b"=desk", encode_client(b"=desk", CLIENT)) == CLIENT
    for record in (AudienceRecord(3, ((0, "IBM"), (1, ""))), AudienceRecord(3, None)):
        assert decode_audience(b"\0\0\0\1", encode_audience(b"\0\0\0\1", record)) == record


def test_an_interest_is_read_as_it_was_written_and_from_its_own_place_only() -> None:
    key = interest_key(WISH)
    assert len(key) == INTEREST_KEY_BYTES
    value = encode_interest(key, WISH)
    assert decode_interest(key, value) == WISH
    others = [WISH._replace(**changed) for changed in ({"client_id": "d"}, {"region": 8}, {"kind": 3}, {"name": "x"})]
    assert len({key, *map(interest_key, others)}) == 5
    with pytest.raises(StoreCorruptException, match="checksum"):
        decode_interest(key, value[:-1])
    with pytest.raises(StoreCorruptException, match="wrong place"):
        decode_interest(key, encode_interest(key, others[0]))


def test_a_cursor_is_read_as_it_was_written_and_nothing_else() -> None:
    record = CursorRecord(2**63, 7, (1, 2, 3, 4))
    value = encode_cursor(b"=desk", record)
    assert decode_cursor(b"=desk", value) == record
    for key, wrong in ((b"=other", value), (b"=desk", value[:-1]), (b"=desk", value[:-8]), (b"=desk", b"")):
        with pytest.raises(StoreCorruptException):
            decode_cursor(key, wrong)


@pytest.mark.parametrize("change", [lambda value: b"", lambda value: value[:-1], lambda value: value + b"\0"])
def test_a_record_that_is_changed_or_in_another_place_is_not_trusted(change: Any) -> None:
    value = encode_client(b"=desk", CLIENT)
    with pytest.raises(StoreCorruptException):
        decode_client(b"=desk", change(value))
    with pytest.raises(StoreCorruptException):
        decode_client(b"=other", value)


def test_a_record_of_newer_software_is_called_that() -> None:
    for fields in ([*CLIENT, 1], {"client_id": "desk"}):
        with pytest.raises(StoreVersionException, match="newer software"):
            decode_client(b"=desk", with_crc(b"=desk", fields))


def test_a_record_of_older_software_gets_the_defaults() -> None:
    found = decode_client(b"=desk", with_crc(b"=desk", list(CLIENT[:5])))
    assert found == ClientRecord(*CLIENT[:5])
    with pytest.raises(StoreCorruptException, match="only 4 fields"):
        decode_client(b"=desk", with_crc(b"=desk", list(CLIENT[:4])))
