"""Messages as rows, rows as messages; no Spark runs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broker_adapter import BodyKind, Destination, Envelope, pack
from sdk.range_reader import RangeMessage
from spark_connector.rows import (
    COLUMNS,
    FIRST_INSTANT_MS,
    LAST_INSTANT_MS,
    SCHEMA,
    Readable,
    RowError,
    batch_of,
    check_sink_schema,
    decoded,
    envelopes_of,
    largest_cell,
    projection,
    size_of,
)

NAMES = [name for name, _, _, _ in COLUMNS]
OUT = Destination("out")
STRINGS = pa.map_(pa.string(), pa.string())
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


def rows_of(*envelopes: Envelope, columns: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    """The rows of messages at the positions 1, 2, ..., stored as their number."""
    count = len(envelopes)
    readable = Readable(range(1, count + 1), envelopes, [b"%d" % number for number in range(count)])
    batch = batch_of(readable, "q", columns)
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def written(rows: list[dict[str, Any]], **types: pa.DataType) -> list[Envelope]:
    """Rows with columns of these types as messages."""
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(types.items())))
    return list(envelopes_of(batch, OUT, 4, None))


def test_the_arrow_schema_is_exactly_sparks() -> None:
    batch = batch_of(Readable([1], [FULL], [b""]), "q", NAMES)
    assert batch.schema == to_arrow_schema(SCHEMA, timezone="UTC")


def test_every_column_has_its_value() -> None:
    (row,) = rows_of(FULL)
    utc = datetime.UTC
    assert row == {
        "queue": "q",
        "position": 1,
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
        "problem": None,
        "_corrupt_record": None,
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
        (BodyKind.OBJECT, {b"\xff": {b"k": [{b"\x00": 1}]}, 5: None}, '{"ff": {"6b": [{"00": 1}]}, "5": null}', None),
    ],
)
def test_each_kind_of_body_becomes_columns(kind: BodyKind, body: object, text: str | None, data: bytes | None) -> None:
    columns = ["bodyType", "text", "body", "problem"]
    (row,) = rows_of(Envelope(Destination("q"), kind, body), columns=columns)
    assert row == {"bodyType": kind.name.lower(), "text": text, "body": data, "problem": None}


def test_a_message_that_cannot_be_decoded_is_a_row_with_its_payload_and_the_reason() -> None:
    good, bad = RangeMessage(1, 0, pack(FULL), {"why": "dead"}), RangeMessage(2, 0, b"\xdcjunk", None)
    first, second = batch_of(decoded([good, bad]), "q", NAMES).to_pylist()
    assert ("why", "dead") in first["properties"]
    assert (first["problem"], first["_corrupt_record"]) == (None, None)
    assert "cannot be decoded" in second.pop("problem")
    assert second == {
        **dict.fromkeys(NAMES[:-2]),
        "queue": "q",
        "position": 2,
        "bodyType": "undecodable",
        "_corrupt_record": b"\xdcjunk",
    }


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("timestamp", {"sent_at_ms": LAST_INSTANT_MS + 1}),
        ("timestamp", {"sent_at_ms": FIRST_INSTANT_MS - 1}),
        ("timestamp", {"sent_at_ms": 2**63 - 1}),
        ("expiration", {"expires_at_ms": 2**62}),
        ("expiration", {"expires_at_ms": 2**64}),
        ("priority", {"priority": 2**40}),
        ("priority", {"priority": "high"}),
        ("text", {"body": 5}),
        ("text", {"body": "\ud800"}),
        ("text", {"body_kind": BodyKind.OBJECT, "body": {b"\x01": 1, "01": 2}}),
        ("body", {"body_kind": BodyKind.BYTES, "body": [1]}),
        ("properties", {"properties": [1, 2]}),
        ("properties", {"properties": {1: "a", "1": "b"}}),
        ("properties", {"properties": {"\ud800": "a"}}),
        ("messageId", {"message_id": 7}),
        ("key", {"group_id": ["k"]}),
    ],
)
def test_what_a_column_cannot_show_is_null_and_the_rest_of_the_message_is_there(
    column: str, fields: dict[str, Any]
) -> None:
    before, row, after = rows_of(FULL, FULL._replace(**fields), FULL)
    assert row[column] is None
    assert row["problem"].startswith(f"{column}: ")
    assert row["_corrupt_record"] == b"1"
    kept = [name for name in NAMES[:-2] if name not in (column, "position", "text", "body", "bodyType")]
    assert {name: row[name] for name in kept} == {name: before[name] for name in kept}
    assert before == {**after, "position": 1}
    assert before["problem"] is None


def test_the_first_and_the_last_instant_of_spark_are_shown() -> None:
    first, last = rows_of(
        FULL._replace(sent_at_ms=FIRST_INSTANT_MS, expires_at_ms=1),
        FULL._replace(sent_at_ms=LAST_INSTANT_MS, expires_at_ms=LAST_INSTANT_MS),
    )
    assert first["timestamp"] == datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
    assert last["expiration"] == datetime.datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=datetime.UTC)
    assert (first["problem"], last["problem"]) == (None, None)


def test_several_problems_of_a_row_are_told_together() -> None:
    (row,) = rows_of(FULL._replace(sent_at_ms=2**60, properties=7))
    assert [part.split(":")[0] for part in row["problem"].split("; ")] == ["timestamp", "properties"]


def test_a_users_schema_selects_columns_and_wrong_ones_are_named() -> None:
    assert projection(StructType([SCHEMA["text"], SCHEMA["position"]])) == ("text", "position")
    with pytest.raises(ValueError, match="unknown column 'offset'; the columns are queue, position"):
        projection(StructType([StructField("offset", StringType())]))
    with pytest.raises(ValueError, match="'position' has the type bigint, not int"):
        projection(StructType([StructField("position", IntegerType())]))
    with pytest.raises(ValueError, match="column 'text' may be null, as any column may: leave out NOT NULL"):
        projection(StructType([StructField("text", StringType(), nullable=False)]))
    with pytest.raises(ValueError, match="column 'text' is named 2 times"):
        projection(StructType([SCHEMA["text"], SCHEMA["text"]]))
    strict = MapType(StringType(), StringType(), valueContainsNull=False)
    with pytest.raises(ValueError, match="not map<string,string> without null values"):
        projection(StructType([StructField("properties", strict)]))


def test_what_cannot_be_written_is_named_all_at_once() -> None:
    schema = StructType([StructField("nonsense", StringType()), StructField("priority", StringType())])
    with pytest.raises(ValueError, match=r"unknown column 'nonsense'; column 'priority' .*; no column 'value'"):
        check_sink_schema(schema)
    value = StructField("value", StringType())
    with pytest.raises(ValueError, match="'value' beside 'text'"):
        check_sink_schema(StructType([value, StructField("text", StringType())]))
    with pytest.raises(ValueError, match="2 columns 'value'"):
        check_sink_schema(StructType([value, value]))
    with pytest.raises(ValueError, match=r"column 'queue' cannot be of type int.*; and queue, key"):
        check_sink_schema(StructType([value, StructField("queue", IntegerType())]))
    check_sink_schema(SCHEMA)  # what was read can be written


def test_maps_of_strings_to_what_a_property_can_be_are_properties() -> None:
    value = StructField("value", StringType())
    for kind in (StringType(), BooleanType(), IntegerType(), LongType()):
        for nulls in (True, False):
            field = StructField("properties", MapType(StringType(), kind, valueContainsNull=nulls), nullable=nulls)
            check_sink_schema(StructType([value, field]))
    for wrong in (MapType(IntegerType(), StringType()), MapType(StringType(), DateType()), StringType()):
        with pytest.raises(ValueError, match=r"'properties' cannot be of type .*map of strings to strings, booleans"):
            check_sink_schema(StructType([value, StructField("properties", wrong)]))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.string(), "1"),
        (pa.bool_(), True),
        (pa.int8(), -1),
        (pa.int64(), 2**63 - 1),
        (pa.float32(), 0.5),
        (pa.float64(), 0.1),
    ],
)
def test_a_property_has_the_type_that_its_map_has(kind: pa.DataType, given: object) -> None:
    rows = [{"value": "x", "properties": [("n", given), ("nothing", None)]}]
    (envelope,) = written(rows, value=pa.string(), properties=pa.map_(pa.string(), kind))
    assert envelope.properties == {"n": given, "nothing": None}
    assert type((envelope.properties or {})["n"]) is type(given)


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
                ("properties", STRINGS),
            ]
        ),
    )
    first, second, third = envelopes_of(batch, OUT, 3, 60.0)
    assert (first.body_kind, first.body, first.priority, first.properties) == (BodyKind.TEXT, "a", 9, {"x": "1"})
    assert first.expires_at_ms == int(expiration.timestamp() * 1000)
    assert (second.body_kind, second.body, second.priority) == (BodyKind.BYTES, b"b", 3)
    assert second.expires_at_ms == (second.sent_at_ms or 0) + 60_000
    assert (third.body_kind, third.body) == (BodyKind.NONE, None)
    assert len({first.message_id, second.message_id, third.message_id}) == 3


@pytest.mark.parametrize(
    "zone",
    [
        "GMT+8",
        "+08:00",
        "Etc/GMT-8",
        "America/Los_Angeles",
        "UTC",
        "Z",
        "UTC+3",
        "UT+01",
        "PST",
        "GMT+08:00:30",
        "no zone",
    ],
)
def test_an_instant_is_the_same_in_every_time_zone_that_a_session_may_have(zone: str) -> None:
    micros = [1_893_456_000_000_001, None, 1_000, 1]
    column = pa.array(micros, pa.timestamp("us", tz=zone))
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 4), column], ["value", "expiration"])
    found = [envelope.expires_at_ms for envelope in envelopes_of(batch, OUT, 4, None)]
    assert found == [1_893_456_000_001, None, 1, 1]


def test_the_last_moments_that_a_column_can_show_can_be_written_and_read() -> None:
    last = LAST_INSTANT_MS * 1000
    column = pa.array([last, last + 1, last + 999, last + 1000], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 4), column], ["value", "expiration"])
    written = list(envelopes_of(batch, OUT, 4, None))
    assert [each.expires_at_ms for each in written] == [LAST_INSTANT_MS] * 3 + [LAST_INSTANT_MS + 1]
    shown = batch_of(Readable(list(range(4)), written, [b""] * 4), "q", NAMES)
    assert [each is None for each in shown.column(NAMES.index("problem")).to_pylist()] == [True, True, True, False]


def test_what_could_not_be_decoded_is_written_as_it_was_stored() -> None:
    batch = batch_of(decoded([RangeMessage(1, 0, b"\xdcjunk", None)]), "q", NAMES)
    (envelope,) = envelopes_of(batch, OUT, 4, None)
    assert (envelope.body_kind, envelope.body, envelope.priority) == (BodyKind.BYTES, b"\xdcjunk", 4)
    shown = batch_of(Readable([1], [Envelope(Destination("q"), sent_at_ms=2**60)], [b"raw"]), "q", NAMES)
    (empty,) = envelopes_of(shown, OUT, 4, None)
    assert (empty.body_kind, empty.body) == (BodyKind.NONE, None)


@pytest.mark.parametrize(
    ("column", "kind", "values", "text"),
    [
        ("priority", pa.int32(), [4, 10], "row 12: column 'priority' has the value 10: it is not from 0 to 9"),
        ("priority", pa.int64(), [None, -(2**63)], "row 12: column 'priority' has the value -9223372036854775808: "),
        (
            "expiration",
            pa.timestamp("us", tz="GMT+8"),
            [None, -2_208_988_800_000_000],
            "row 12: column 'expiration' has the value '1900-01-01 0:00:00 UTC': it is not after 1970-01-01",
        ),
        ("expiration", pa.timestamp("us", tz="UTC"), [-(2**63)], "row 11: column 'expiration' has the value '-92233"),
        ("expiration", pa.timestamp("us", tz="UTC"), [0], "row 11: column 'expiration' has the value '1970-01-01 0:00"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named_with_column_and_value(
    column: str, kind: pa.DataType, values: list[Any], text: str
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x"] * len(values)), pa.array(values, kind)], ["value", column])
    with pytest.raises(RowError) as caught:
        list(envelopes_of(batch, OUT, 4, None, first_row=10))
    assert str(caught.value).startswith(text)


def test_text_that_is_none_is_named() -> None:
    column = pa.array([b"good", None, b"b\xe4d"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    with pytest.raises(
        RowError, match=r"row 3: column 'value' has the value 62e464 \(hexadecimal\): .* not valid UTF-8"
    ):
        list(envelopes_of(batch, OUT, 4, None))


def test_a_row_with_a_text_and_a_body_is_refused() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"text": "a", "body": None}, {"text": None, "body": b"b"}, {"text": "a", "body": b"b"}],
        schema=pa.schema([("text", pa.string()), ("body", pa.binary())]),
    )
    rows = envelopes_of(batch, OUT, 4, None)
    assert [next(rows).body, next(rows).body] == ["a", b"b"]
    with pytest.raises(RowError, match=r"row 3: column 'body' .* the row has a text, too"):
        next(rows)


def test_the_largest_cell_of_a_row_is_found() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"key": "kkkk", "body": None, "text": "t"}, {"key": None, "body": b"b" * 9, "text": None}],
        schema=pa.schema([("key", pa.string()), ("body", pa.binary()), ("text", pa.string())]),
    )
    assert largest_cell(batch, 0) == ("key", "kkkk")
    assert largest_cell(batch, 1) == ("body", b"b" * 9)


def test_the_size_of_a_row_is_that_of_all_that_it_brings() -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {"value": "ab", "key": "k", "correlationId": "cc", "type": "ttt", "properties": [("name", "value")]},
            {"value": "\u00e9\u20ac", "key": None, "correlationId": None, "type": None, "properties": []},
            {"value": None, "key": None, "correlationId": None, "type": None, "properties": None},
        ],
        schema=pa.schema(
            [
                *((name, pa.string()) for name in ("value", "key", "correlationId", "type")),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    assert [size_of(each) for each in envelopes_of(batch, OUT, 4, None)] == [2 + 1 + 2 + 3 + 4 + 5, 2 + 3, 0]
    assert size_of(Envelope(OUT, BodyKind.BYTES, b"12345", {"n": 1})) == 6
