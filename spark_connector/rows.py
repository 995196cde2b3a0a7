"""Messages as rows of Arrow batches, and rows as messages.  Pure."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker_adapter import BodyKind, Destination, Envelope, MessageFormatException
from sdk.range_reader import RangeMessage

_STRINGS = MapType(StringType(), StringType())
_ARROW_STRINGS = pa.map_(pa.string(), pa.string())
_INSTANT = pa.timestamp("us", tz="UTC")

#: name, Spark's type, Arrow's type, what it is.
COLUMNS: tuple[tuple[str, Any, pa.DataType, str], ...] = (
    ("queue", StringType(), pa.string(), "the queue, or the topic, that was read"),
    ("position", LongType(), pa.int64(), "place in the queue; increasing, never used again"),
    ("messageId", StringType(), pa.string(), "JMSMessageID"),
    ("timestamp", TimestampType(), _INSTANT, "when it was sent"),
    ("key", StringType(), pa.string(), "JMSXGroupID"),
    ("correlationId", StringType(), pa.string(), "JMSCorrelationID; bytes as hexadecimal digits"),
    ("type", StringType(), pa.string(), "JMSType"),
    ("priority", IntegerType(), pa.int32(), "0 to 9"),
    ("expiration", TimestampType(), _INSTANT, "when it expires; null: never"),
    (
        "bodyType",
        StringType(),
        pa.string(),
        "text, bytes, map, stream, object, none; undecodable: body has the payload",
    ),
    ("text", StringType(), pa.string(), "the body of a text message; of map, stream and object messages as JSON"),
    ("body", BinaryType(), pa.binary(), "the body of a bytes message"),
    ("properties", _STRINGS, _ARROW_STRINGS, "the application's properties, as strings"),
)

SCHEMA = StructType([StructField(name, kind, nullable=True) for name, kind, _, _ in COLUMNS])
_ARROW = {name: kind for name, _, kind, _ in COLUMNS}
_TYPES = {name: kind for name, kind, _, _ in COLUMNS}
#: Columns of a sink that are ignored, so that what was read can be written.
_IGNORED = ("queue", "position", "messageId", "timestamp", "bodyType")


def projection(schema: StructType) -> tuple[str, ...]:
    """The columns that a user's schema asks for, in its order.

    Raises:
        ValueError: a column is unknown, or of another type.
    """
    for field in schema.fields:
        if field.name not in _TYPES:
            raise ValueError(f"unknown column {field.name!r}; the columns are {', '.join(_TYPES)}")
        if field.dataType != _TYPES[field.name]:
            raise ValueError(
                f"column {field.name!r} has the type {_TYPES[field.name].simpleString()}, not"
                f" {field.dataType.simpleString()}"
            )
    return tuple(field.name for field in schema.fields)


def batch_of(
    positions: Sequence[int | None], envelopes: Sequence[Envelope], queue: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """Messages as one Arrow batch with these columns."""
    arrays = [pa.array(_MAKERS[name](positions, envelopes, queue), _ARROW[name]) for name in columns]
    schema = pa.schema([pa.field(name, _ARROW[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_UNDECODABLE = Envelope(Destination(""), BodyKind.BYTES)


def decoded(message: RangeMessage) -> Envelope:
    """A message of a range; one that cannot be decoded has its payload as its body."""
    try:
        return message.envelope()
    except MessageFormatException:
        # One message that nobody can read must not stop a query for ever.
        return _UNDECODABLE._replace(body=message.payload, priority=4, type="undecodable", persistent=False)


def _body_type(envelope: Envelope) -> str:
    return "undecodable" if envelope.destination is _UNDECODABLE.destination else envelope.body_kind.name.lower()


def _text(envelope: Envelope) -> str | None:
    kind = envelope.body_kind
    if kind is BodyKind.TEXT:
        return envelope.body  # type: ignore[no-any-return]
    if kind in (BodyKind.NONE, BodyKind.BYTES) or envelope.body is None:
        return None
    return json.dumps(envelope.body, default=_hexadecimal, ensure_ascii=False)


def _hexadecimal(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)


def _properties(envelope: Envelope) -> list[tuple[str, str | None]]:
    properties = envelope.properties
    if not properties:
        return []
    return [(str(name), None if value is None else _string(value)) for name, value in properties.items()]


def _micros(instant_ms: int | None) -> int | None:
    return None if instant_ms is None else instant_ms * 1000


_Maker = Callable[[Sequence[int | None], Sequence[Envelope], str], list[Any]]
_MAKERS: dict[str, _Maker] = {
    "queue": lambda positions, _, queue: [queue] * len(positions),
    "position": lambda positions, _, __: list(positions),
    "messageId": lambda _, envelopes, __: [each.message_id for each in envelopes],
    "timestamp": lambda _, envelopes, __: [_micros(each.sent_at_ms) for each in envelopes],
    "key": lambda _, envelopes, __: [each.group_id for each in envelopes],
    "correlationId": lambda _, envelopes, __: [
        each.correlation_id.hex() if isinstance(each.correlation_id, bytes) else each.correlation_id
        for each in envelopes
    ],
    "type": lambda _, envelopes, __: [
        None if each.destination is _UNDECODABLE.destination else each.type for each in envelopes
    ],
    "priority": lambda _, envelopes, __: [each.priority for each in envelopes],
    "expiration": lambda _, envelopes, __: [_micros(each.expires_at_ms) for each in envelopes],
    "bodyType": lambda _, envelopes, __: [_body_type(each) for each in envelopes],
    "text": lambda _, envelopes, __: [_text(each) for each in envelopes],
    "body": lambda _, envelopes, __: [each.body if each.body_kind is BodyKind.BYTES else None for each in envelopes],
    "properties": lambda _, envelopes, __: [_properties(each) for each in envelopes],
}

#: Columns of a sink, with the types they may have.
_WRITABLE: dict[str, tuple[type, ...]] = {
    "value": (StringType, BinaryType),
    "text": (StringType,),
    "body": (BinaryType, StringType),
    "key": (StringType,),
    "correlationId": (StringType,),
    "type": (StringType,),
    "priority": (IntegerType, LongType),
    "expiration": (TimestampType,),
    "properties": (MapType,),
}


def check_sink_schema(schema: StructType) -> None:
    """Raise ValueError where rows of this schema cannot become messages; names everything that is wrong."""
    wrong = []
    for field in schema.fields:
        types = _WRITABLE.get(field.name)
        if types is None:
            if field.name not in _IGNORED:
                wrong.append(f"unknown column {field.name!r}")
        elif not isinstance(field.dataType, types) or (field.name == "properties" and field.dataType != _STRINGS):
            wrong.append(f"column {field.name!r} cannot be of type {field.dataType.simpleString()}")
    names = set(schema.fieldNames())
    if not names & {"value", "text", "body"}:
        wrong.append("no column 'value', 'text' or 'body'")
    if "value" in names and names & {"text", "body"}:
        wrong.append("'value' beside 'text' or 'body'")
    if wrong:
        raise ValueError(
            f"these rows cannot be written as messages: {'; '.join(wrong)}. The columns are value (string or binary),"
            f" or text (string) and body (binary); and key, correlationId, type, priority, expiration, properties"
            f" (map<string,string>). To put several columns into one: to_json(struct(*)) as value"
        )


def envelopes_of(
    batch: pa.RecordBatch, destination: Destination, priority: int, time_to_live: float | None
) -> Iterator[Envelope]:
    """The rows of an Arrow batch as messages.

    Args:
        batch: with columns that ``check_sink_schema`` allows.
        destination: where they will go.
        priority: of rows that have none.
        time_to_live: seconds, of rows that have no expiration; None: for ever.

    Raises:
        ValueError: a priority is not from 0 to 9.
    """
    now_ms = time.time_ns() // 1_000_000
    count = batch.num_rows
    nothing: list[Any] = [None] * count
    columns = {
        name: batch.column(index).to_pylist() for index, name in enumerate(batch.schema.names) if name in _WRITABLE
    }
    values = columns.get("value")
    texts = columns.get("text", nothing)
    bodies = values if values is not None else columns.get("body", nothing)
    expires_at_ms = None if time_to_live is None else now_ms + int(time_to_live * 1000)
    batch_id = uuid4()
    rows = zip(
        texts,
        bodies,
        columns.get("key", nothing),
        columns.get("correlationId", nothing),
        columns.get("type", nothing),
        columns.get("priority", nothing),
        columns.get("expiration", nothing),
        columns.get("properties", nothing),
        strict=True,
    )
    for index, (text, body, key, correlation_id, kind, own_priority, expiration, properties) in enumerate(rows):
        content = body if text is None else text
        if own_priority is not None and not 0 <= own_priority <= 9:
            raise ValueError(f"priority {own_priority} of a row is not from 0 to 9")
        yield Envelope(
            destination,
            _KINDS.get(type(content), BodyKind.NONE),
            content,
            dict(properties) if properties else None,
            message_id=f"ID:{batch_id}-{index}",
            correlation_id=correlation_id,
            type=kind,
            sent_at_ms=now_ms,
            expires_at_ms=expires_at_ms if expiration is None else _milliseconds(expiration),
            priority=priority if own_priority is None else own_priority,
            group_id=key,
        )


_KINDS: dict[Any, BodyKind] = {str: BodyKind.TEXT, bytes: BodyKind.BYTES}


def _milliseconds(instant: datetime.datetime) -> int:
    return round(instant.timestamp() * 1000)
