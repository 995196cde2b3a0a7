"""Regions as rows, and rows as changes; no Spark runs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from broker_adapter import BodyKind, Destination, Envelope, pack
from sdk.range_reader import RangeMessage
from sdk.region_reader import RegionKey
from sdk.regions.state import DESTROY, INVALIDATE, PUT
from spark_connector.regions.rows import (
    REGION_SCHEMA,
    batch_of_events,
    batch_of_keys,
    changes_of,
    check_region_schema,
    region_projection,
)
from spark_connector.rows import RowError
from tests.spark_connector.schemas import schema


def key(name: str, version: int, body: Any) -> RegionKey:
    kind = {dict: BodyKind.MAP, str: BodyKind.TEXT, bytes: BodyKind.BYTES}.get(type(body), BodyKind.NONE)
    payload = None if body is None else pack(Envelope(Destination(""), kind, body))
    return RegionKey(name, version, body is not None, payload)


def test_keys_are_rows_with_the_columns_of_messages() -> None:
    columns = region_projection(REGION_SCHEMA)
    assert columns.need_values
    rows = batch_of_keys([key("a", 3, "x"), key("b", 4, None)], "r", columns).to_pylist()
    assert [(row["key"], row["version"], row["operation"], row["text"]) for row in rows] == [
        ("a", 3, "snapshot", "x"),
        ("b", 4, "invalidate", None),
    ]
    assert rows[0]["problem"] is rows[1]["problem"] is None


def test_fields_of_a_map_are_columns_and_what_does_not_fit_is_a_problem() -> None:
    columns = region_projection(
        schema("bid double, size int, tiny byte, name string, ok boolean, raw binary, key string, problem string")
    )
    keys = [
        key("a", 1, {"bid": 1, "size": 2, "tiny": 3, "name": "n", "ok": True, "raw": b"r", "more": 1}),
        key("b", 2, {"bid": "1", "size": True, "tiny": 300, "name": 1, "ok": 1, "raw": "r"}),
        key("c", 3, {}),
        key("d", 4, "no map"),
        key("e", 5, None),
        key("f", 6, {"size": 1 << 40, "bid": None}),
    ]
    rows = batch_of_keys(keys, "r", columns).to_pylist()
    assert [rows[0][name] for name in ("bid", "size", "tiny", "name", "ok", "raw")] == [1.0, 2, 3, "n", True, b"r"]
    for row in rows[1:]:
        assert [row[name] for name in ("bid", "size", "tiny", "name", "ok", "raw")] == [None] * 6
    assert [row["key"] for row in rows] == list("abcdef")
    assert [row["problem"] is not None for row in rows] == [False, True, False, False, False, True]
    for name in ("bid", "size", "tiny", "name", "ok", "raw"):
        assert f"{name}: " in rows[1]["problem"]


def test_a_value_that_cannot_be_decoded_is_a_row() -> None:
    columns = region_projection(
        schema("key string, bodyType string, bid double, problem string, _corrupt_record binary")
    )
    (row,) = batch_of_keys([RegionKey("a", 1, True, b"\xc1\xff")], "r", columns).to_pylist()
    assert (row["key"], row["bodyType"], row["bid"], row["_corrupt_record"]) == ("a", "undecodable", None, b"\xc1\xff")
    assert "cannot be decoded" in row["problem"]


def test_only_key_version_and_operation_need_no_values() -> None:
    assert not region_projection(schema("version bigint, key string")).need_values
    assert region_projection(schema("version bigint, text string")).need_values
    assert region_projection(schema("key string, bid double")).need_values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("key int", "'key' has the type string, not int"),
        ("version int", "'version' has the type bigint, not int"),
        ("day date", "a field of the value, cannot have the type date: fields have string"),
        ("prices array", "use from_json"),
        ("key string!", "leave out NOT NULL"),
        ("key string, key string", "named 2 times"),
    ],
)
def test_schemas_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        region_projection(schema(text))


def event(body: Any, position: int = 1, **properties: Any) -> RangeMessage:
    named = {f"JMS_Holdfast_{name}": value for name, value in properties.items() if name != "own"}
    if "own" in properties:
        named["own"] = properties["own"]
    kind = BodyKind.MAP if isinstance(body, dict) else BodyKind.NONE if body is None else BodyKind.TEXT
    return RangeMessage(position, 0, pack(Envelope(Destination(""), kind, body, named)), None)


def test_events_are_rows() -> None:
    columns = region_projection(
        schema("key string, operation string, version bigint, bid double, properties map, problem string")
    )
    rows = batch_of_events(
        [
            event({"bid": 1.5}, Key="a", Operation="CREATE", Version=7, Region="r", own="x"),
            event(None, Key="a", Operation="DESTROY"),
            event("plain"),
            event(None, Key=1, Operation=2, Version="x"),
        ],
        "r",
        columns,
    ).to_pylist()
    assert [(row["key"], row["operation"], row["version"], row["bid"]) for row in rows] == [
        ("a", "create", 7, 1.5),
        ("a", "destroy", None, None),
        (None, None, None, None),
        (None, None, None, None),
    ]
    assert rows[0]["properties"] == [("own", "x")]
    assert [row["problem"] is None for row in rows] == [True, True, False, False]


def changes(**columns: Any) -> list[tuple[str, int, Any]]:
    batch = pa.RecordBatch.from_pydict(columns)
    return [(each.key, each.wanted, each.envelope.body) for each in changes_of(batch, "r")]


def test_rows_are_puts_or_what_their_operation_says() -> None:
    found = changes(
        key=["a", "b", "c", "d", "e"],
        operation=[None, "PUT", "destroy", "Invalidate", "snapshot"],
        value=["1", None, "2", "3", "4"],
    )
    assert found == [("a", PUT, "1"), ("b", PUT, None), ("c", DESTROY, None), ("d", INVALIDATE, None), ("e", PUT, "4")]


def test_other_columns_are_the_fields_of_a_map() -> None:
    assert changes(key=["a", "b"], bid=[1.5, None], size=[1, 2], version=[7, 8], type=["t", None]) == [
        ("a", PUT, {"bid": 1.5, "size": 1}),
        ("b", PUT, {"size": 2}),
    ]
    assert changes(key=["a"]) == [("a", PUT, None)]
    assert changes(key=pa.array([], pa.string()), value=pa.array([], pa.string())) == []


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": ["a", None]}, "row 2: column 'key' has the value None: a change needs a key"),
        ({"key": [""]}, "row 1: column 'key' has the value ''"),
        ({"key": ["k" * 401]}, "row 1: column 'key' .*400"),
        ({"key": ["a", "b"], "operation": ["put", "delete"]}, "row 2: column 'operation' has the value 'delete'"),
        ({"key": ["a"], "text": ["x"], "body": [b"y"]}, "row 1: column 'body'"),
    ],
)
def test_rows_that_cannot_be_changes_are_named(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        changes(**columns)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value string", "no column 'key'"),
        ("key int, value string", "'key' cannot be of type int"),
        ("key string, operation boolean", "'operation' cannot be of type boolean"),
        ("key string, priority int", "no priority"),
        ("key string, expiration timestamp", "do not expire"),
        ("key string, day date", "a field of the value, cannot be of type date"),
        ("key string, value string, bid double", "unknown column 'bid' beside value"),
        ("key string, value int", "'value' cannot be of type int"),
    ],
)
def test_schemas_that_cannot_be_written(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_region_schema(schema(text))


def test_what_was_read_can_be_written() -> None:
    check_region_schema(REGION_SCHEMA)
    check_region_schema(schema("key string, version bigint, bid double"))
    columns = region_projection(REGION_SCHEMA)
    batch = batch_of_keys([key("a", 3, "x"), key("b", 4, None), key("c", 5, b"y")], "r", columns)
    found = [(each.key, each.wanted, each.envelope.body) for each in changes_of(batch, "r")]
    assert found == [("a", PUT, "x"), ("b", INVALIDATE, None), ("c", PUT, b"y")]
