"""Messages as rows, rows as messages; no Spark runs."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from broker_adapter import BodyKind, Destination, Envelope, pack
from sdk.range_reader import RangeMessage
from spark_connector.rows import COLUMNS, SCHEMA, batch_of, check_sink_schema, decoded, envelopes_of, projection

NAMES = [name for name, _, _, _ in COLUMNS]
FULL = Envelope(
    Destination("q"),
    BodyKind.TEXT,
    "hello",
    {"a": 1, "b": True, "c": None, "d": b"\x01"},
    message_id="ID:1",
    correlation_id=b"\xff",
    type="order",
    sent_at_ms=1_700_000_000_123,
    expires_at_ms=1_800_000_000_000,
    priority=7,
    group_id="k",
)


def test_the_arrow_schema_is_exactly_sparks() -> None:
    batch = batch_of([1], [FULL], "q", NAMES)
    assert batch.schema == to_arrow_schema(SCHEMA, timezone="UTC")


def test_every_column_has_its_value() -> None:
    (row,) = batch_of([5], [FULL], "q", NAMES).to_pylist()
    utc = datetime.UTC
    assert row == {
        "queue": "q",
        "position": 5,
        "messageId": "ID:1",
        "timestamp": datetime.datetime.fromtimestamp(1_700_000_000.123, utc),
        "key": "k",
        "correlationId": "ff",
        "type": "order",
        "priority": 7,
        "expiration": datetime.datetime.fromtimestamp(1_800_000_000, utc),
        "bodyType": "text",
        "text": "hello",
        "body": None,
        "properties": [("a", "1"), ("b", "true"), ("c", None), ("d", "01")],
    }


@pytest.mark.parametrize(
    ("kind", "body", "text", "data"),
    [
        (BodyKind.NONE, None, None, None),
        (BodyKind.TEXT, None, None, None),
        (BodyKind.BYTES, b"\x00\x01", None, b"\x00\x01"),
        (BodyKind.MAP, {"a": [1, b"\x02"]}, '{"a": [1, "02"]}', None),
        (BodyKind.STREAM, [1, "x"], '[1, "x"]', None),
        (BodyKind.OBJECT, "ü", '"ü"', None),
    ],
)
def test_each_kind_of_body(kind: BodyKind, body: object, text: str | None, data: bytes | None) -> None:
    (row,) = batch_of([1], [Envelope(Destination("q"), kind, body)], "q", ["bodyType", "text", "body"]).to_pylist()
    assert row == {"bodyType": kind.name.lower(), "text": text, "body": data}


def test_a_message_that_cannot_be_decoded_is_a_row_with_its_payload() -> None:
    good = decoded(RangeMessage(1, 0, pack(FULL), {"why": "dead"}))
    bad = decoded(RangeMessage(2, 0, b"\xdcjunk", None))
    rows = batch_of([1, 2], [good, bad], "q", ["bodyType", "body", "type"]).to_pylist()
    assert rows[1] == {"bodyType": "undecodable", "body": b"\xdcjunk", "type": None}
    assert good.properties is not None
    assert good.properties["why"] == "dead"


def test_a_users_schema_selects_columns_and_wrong_ones_are_named() -> None:
    assert projection(StructType([SCHEMA["text"], SCHEMA["position"]])) == ("text", "position")
    with pytest.raises(ValueError, match="unknown column 'offset'; the columns are queue, position"):
        projection(StructType([StructField("offset", StringType())]))
    with pytest.raises(ValueError, match="'position' has the type bigint, not int"):
        projection(StructType([StructField("position", IntegerType())]))


def test_what_cannot_be_written_is_named_all_at_once() -> None:
    schema = StructType([StructField("nonsense", StringType()), StructField("priority", StringType())])
    with pytest.raises(ValueError, match=r"unknown column 'nonsense'; column 'priority' .*; no column 'value'"):
        check_sink_schema(schema)
    with pytest.raises(ValueError, match="'value' beside 'text'"):
        check_sink_schema(StructType([StructField("value", StringType()), StructField("text", StringType())]))
    check_sink_schema(SCHEMA)  # what was read can be written


def test_rows_become_messages() -> None:
    expiration = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    batch = pa.RecordBatch.from_pylist(
        [
            {"text": "a", "body": None, "priority": 9, "expiration": expiration, "properties": [("x", "1")]},
            {"text": None, "body": b"b", "priority": None, "expiration": None, "properties": None},
            {"text": None, "body": None, "priority": None, "expiration": None, "properties": None},
        ],
        schema=pa.schema(
            [
                ("text", pa.string()),
                ("body", pa.binary()),
                ("priority", pa.int32()),
                ("expiration", pa.timestamp("us", tz="Europe/Berlin")),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    first, second, third = envelopes_of(batch, Destination("out"), 3, 60.0)
    assert (first.body_kind, first.body, first.priority, first.properties) == (BodyKind.TEXT, "a", 9, {"x": "1"})
    assert first.expires_at_ms == int(expiration.timestamp() * 1000)
    assert (second.body_kind, second.body, second.priority) == (BodyKind.BYTES, b"b", 3)
    assert second.expires_at_ms == (second.sent_at_ms or 0) + 60_000
    assert (third.body_kind, third.body) == (BodyKind.NONE, None)
    assert len({first.message_id, second.message_id, third.message_id}) == 3


def test_a_priority_out_of_range_is_an_error() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": "a", "priority": 10}])
    with pytest.raises(ValueError, match="priority 10"):
        list(envelopes_of(batch, Destination("out"), 4, None))
