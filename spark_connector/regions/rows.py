"""Keys of regions and their events as rows of Arrow batches, and rows as changes of keys.  Pure.

Theory of operation
    A row has the key, its version, and what has happened to it, beside the columns that any message has.  A schema of
    the user's may name further columns: these are the fields of values that are maps.  A field that is missing is null;
    one that is not of the column's type is null, and ``problem`` says so, as with any column (:mod:`rows`).

    A row that is written is a put, unless its ``operation`` says otherwise.  Its value is that of a message, by the
    columns of queues; where there is none of these, the other columns are the fields of a map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from broker_adapter import BodyKind, Destination, DestinationKind, Envelope, JMSException, checked_interest
from sdk.range_reader import RangeMessage
from sdk.region_reader import RegionKey
from sdk.regions.state import DESTROY, INVALIDATE, PUT
from spark_connector.rows import (
    SCHEMA,
    VALUES,
    OwnColumn,
    Readable,
    RowError,
    batch_of,
    cells,
    check_sink_schema,
    decoded,
    decoded_all,
    envelopes_of,
)

#: What a snapshot's row of a key with a value says in ``operation``.
SNAPSHOT: Final = "snapshot"
#: Properties by which the messages on a region's topic tell of its events.
KEY_PROPERTY: Final = "JMS_Holdfast_Key"
OPERATION_PROPERTY: Final = "JMS_Holdfast_Operation"
VERSION_PROPERTY: Final = "JMS_Holdfast_Version"
_OUR_PROPERTIES: Final = "JMS_Holdfast_"
_KEY_INTEREST: Final = 0

#: name, Spark's type, what it is: the columns that only regions have.
REGION_COLUMNS: tuple[tuple[str, DataType, str], ...] = (
    ("key", StringType(), "the key"),
    (
        "version",
        LongType(),
        (
            "position of the key's last event; each change of a region has a greater one; of events null where the"
            " server does not tell it"
        ),
    ),
    (
        "operation",
        StringType(),
        (
            "of an event: create, update, invalidate, destroy; of a row of a snapshot: snapshot, or invalidate where"
            " the key has no value"
        ),
    ),
)
#: Columns of messages that regions have as well.
_OF_MESSAGES: Final = (
    *("position", "messageId", "timestamp", "correlationId", "type", "bodyType", "text", "body", "properties"),
    *("problem", "_corrupt_record"),
)
REGION_SCHEMA = StructType(
    [StructField(name, kind, nullable=True) for name, kind, _ in REGION_COLUMNS]
    + [SCHEMA[name] for name in _OF_MESSAGES]
)
#: The columns for which no value is needed.
_WITHOUT_VALUES: Final = frozenset(("key", "version", "operation", "position"))


class RegionColumns(NamedTuple):
    """The columns that are asked for."""

    names: tuple[str, ...]
    fields: tuple[tuple[str, DataType], ...]  #: those of them that are fields of a map

    @property
    def need_values(self) -> bool:
        """Whether any of them shows something of the values."""
        return not _WITHOUT_VALUES.issuperset(self.names)


def region_projection(schema: StructType) -> RegionColumns:
    """The columns that a user's schema asks for, in its order.

    Raises:
        ValueError: a column is named twice, may not be null, or has a type that it cannot have.
    """
    names = schema.fieldNames()
    known = {field.name: field.dataType for field in REGION_SCHEMA.fields}
    fields = []
    for field in schema.fields:
        if names.count(field.name) > 1:
            raise ValueError(f"column {field.name!r} is named {names.count(field.name)} times")
        if not field.nullable:
            raise ValueError(f"column {field.name!r} may be null, as any column may: leave out NOT NULL")
        if field.name not in known:
            if type(field.dataType) not in _FIELD_TYPES:
                kinds = ", ".join(kind().simpleString() for kind in _FIELD_TYPES)
                raise ValueError(
                    f"column {field.name!r}, a field of the value, cannot have the type"
                    f" {field.dataType.simpleString()}: fields have {kinds}. For other types read the column text, and"
                    " use from_json"
                )
            fields.append((field.name, field.dataType))
        elif field.dataType != known[field.name]:
            raise ValueError(
                f"column {field.name!r} has the type {known[field.name].simpleString()}, not"
                f" {field.dataType.simpleString()}"
            )
    return RegionColumns(tuple(names), tuple(fields))


# Keys and events as rows.


class _Mark(NamedTuple):
    """What a row says beside its message."""

    key: str | None
    version: int | None
    operation: str | None


def batch_of_keys(keys: Sequence[RegionKey], region: str, columns: RegionColumns) -> pa.RecordBatch:
    """Keys of a snapshot as one Arrow batch."""
    messages = decoded_all(keys, [None] * len(keys))
    marks = [_Mark(each.key, each.version, SNAPSHOT if each.is_valid else "invalidate") for each in keys]
    return _batch(messages, marks, region, columns)


def batch_of_events(events: Sequence[RangeMessage], region: str, columns: RegionColumns) -> pa.RecordBatch:
    """Messages on the topic of a region as one Arrow batch."""
    messages = decoded(events)
    marks = [_mark(each) for each in messages.envelopes]
    for index, mark in enumerate(marks):
        if mark.key is None and index not in messages.problems:
            messages.problems[index] = [f"key: the message has no property {KEY_PROPERTY}, so it is no event"]
    return _batch(messages, marks, region, columns)


def _mark(envelope: Envelope) -> _Mark:
    properties = envelope.properties or {}
    key, version, operation = (properties.get(each) for each in (KEY_PROPERTY, VERSION_PROPERTY, OPERATION_PROPERTY))
    return _Mark(
        key if isinstance(key, str) else None,
        version if type(version) is int and 0 <= version < 1 << 63 else None,
        operation.lower() if isinstance(operation, str) else None,
    )


def _batch(messages: Readable, marks: Sequence[_Mark], region: str, columns: RegionColumns) -> pa.RecordBatch:
    shown = Readable(messages.positions, messages.envelopes, messages.payloads, messages.problems, marks)
    own = {**_OWN, **{name: _field_column(name, kind) for name, kind in columns.fields}}
    return batch_of(shown, region, columns.names, own)


def _without_ours(messages: Readable) -> list[list[tuple[str, str | None]] | None]:
    shown = VALUES["properties"](messages, "")
    return [
        None if each is None else [(name, text) for name, text in each if not name.startswith(_OUR_PROPERTIES)]
        for each in shown
    ]


_OWN: Final = {
    "key": OwnColumn(pa.string(), lambda messages: [each.key for each in messages.marks]),
    "version": OwnColumn(pa.int64(), lambda messages: [each.version for each in messages.marks]),
    "operation": OwnColumn(pa.string(), lambda messages: [each.operation for each in messages.marks]),
    "properties": OwnColumn(pa.map_(pa.string(), pa.string()), _without_ours),
}


def _field_column(name: str, kind: DataType) -> OwnColumn:
    arrow, convert = _FIELD_TYPES[type(kind)]

    def values(messages: Readable) -> list[Any]:
        found = []
        for envelope in messages.envelopes:
            body = envelope.body
            value = body.get(name) if type(body) is dict else None
            found.append(None if value is None else convert(value))
        return found

    return OwnColumn(arrow, values)


def _of_type(*kinds: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{value!r:.100} is not of the column's type")
        return value

    return convert


def _double(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise ValueError(f"{value!r:.100} is not of the column's type")
    return float(value)


_FIELD_TYPES: Final[dict[type[DataType], tuple[pa.DataType, Callable[[Any], Any]]]] = {
    StringType: (pa.string(), _of_type(str)),
    BooleanType: (pa.bool_(), _of_type(bool)),
    ByteType: (pa.int8(), _of_type(int)),
    ShortType: (pa.int16(), _of_type(int)),
    IntegerType: (pa.int32(), _of_type(int)),
    LongType: (pa.int64(), _of_type(int)),
    FloatType: (pa.float32(), _double),
    DoubleType: (pa.float64(), _double),
    BinaryType: (pa.binary(), _of_type(bytes)),
}


# Rows as changes of keys.

#: What a row may say in ``operation``; null is a put.
_WANTED: Final = {
    **dict.fromkeys(("put", "create", "update", SNAPSHOT), PUT),
    "invalidate": INVALIDATE,
    "destroy": DESTROY,
}
#: Columns of a message that a row may have.
_OF_VALUES: Final = ("value", "text", "body")
_BESIDE: Final = ("correlationId", "type", "properties", "bodyType", "_corrupt_record")
#: Columns that are ignored, so that what was read can be written.
_IGNORED: Final = ("version", "queue", "position", "messageId", "timestamp", "problem")
_REFUSED: Final = {"priority": "values of regions have no priority", "expiration": "values of regions do not expire"}


def check_region_schema(schema: StructType) -> None:
    """Raise ValueError where rows of this schema cannot change keys; names what is wrong."""
    names = schema.fieldNames()
    kinds = {field.name: field.dataType for field in schema.fields}
    wrong = [f"{names.count(name)} columns {name!r}" for name in kinds if names.count(name) > 1]
    wrong += [
        f"column {name!r} cannot be of type {kinds[name].simpleString()}"
        for name in ("key", "operation")
        if name in kinds and not isinstance(kinds[name], StringType)
    ]
    if "key" not in kinds:
        wrong.append("no column 'key'")
    wrong += [f"column {name!r}: {reason}" for name, reason in _REFUSED.items() if name in kinds]
    fields = fields_of(names)
    for name in fields:
        if type(kinds[name]) not in _FIELD_TYPES:
            wrong.append(f"column {name!r}, a field of the value, cannot be of type {kinds[name].simpleString()}")
    if wrong:
        raise ValueError(
            f"these rows cannot be written to a region: {'; '.join(wrong)}. The columns are key, operation (put,"
            " invalidate, destroy; null: put), and the value: either value (string or binary), or text and body, or"
            " others, which are the fields of a map; and correlationId, type, properties"
        )
    of_messages = [each for each in schema.fields if each.name in (*_OF_VALUES, *_BESIDE)]
    if fields or not any(name in _OF_VALUES for name in names):
        of_messages.append(StructField("value", StringType()))
    check_sink_schema(StructType(of_messages))


def fields_of(names: Sequence[str]) -> list[str]:
    """Those columns of rows that are the fields of a map; with a column of a message's value, none is."""
    others = [name for name in names if name not in ("key", "operation", *_OF_VALUES, *_BESIDE, *_IGNORED)]
    if others and any(name in _OF_VALUES for name in names):
        raise ValueError(
            f"these rows cannot be written to a region: unknown column {others[0]!r} beside value, text or body. To put"
            " several columns into one: to_json(struct(*)) as value; or leave out value, text and body, and the columns"
            " are the fields of a map"
        )
    return others


class Change(NamedTuple):
    """A change of a key, with the message that tells of it; without identity."""

    key: str
    wanted: int
    envelope: Envelope


def changes_of(batch: pa.RecordBatch, region: str, first_row: int = 0) -> Iterator[Change]:
    """The rows of an Arrow batch as changes of keys.

    Args:
        batch: with columns that ``check_region_schema`` allows.
        region: its name.
        first_row: number of the batch's first row, for errors; from 0 on.

    Raises:
        RowError: a row cannot be a change.
    """
    names = batch.schema.names
    topic = Destination(region, DestinationKind.TOPIC)
    keys = cells("key", batch.column(names.index("key")), first_row)
    operations: list[Any] = [None] * batch.num_rows
    if "operation" in names:
        operations = cells("operation", batch.column(names.index("operation")), first_row)
    fields = fields_of(names)
    columns = [cells(name, batch.column(names.index(name)), first_row) for name in fields]
    of_messages = batch.select([name for name in names if name in (*_OF_VALUES, *_BESIDE)])
    if not of_messages.num_columns:
        of_messages = pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.string())], names=["value"])
    envelopes = envelopes_of(of_messages, topic, 4, None, first_row)
    for index, (key, operation, envelope) in enumerate(zip(keys, operations, envelopes, strict=True)):
        row = first_row + index
        wanted = PUT if operation is None else _WANTED.get(operation.lower())
        if wanted is None:
            raise RowError.of(
                row, "operation", operation, "it is none of put, create, update, snapshot, invalidate, destroy"
            )
        if key is None:
            raise RowError.of(row, "key", key, "a change needs a key")
        try:
            checked_interest(_KEY_INTEREST, key)
        except JMSException as error:
            raise RowError.of(row, "key", key, str(error)) from error
        if wanted != PUT:
            yield Change(key, wanted, envelope._replace(body_kind=BodyKind.NONE, body=None))
        elif fields:
            found = ((name, column[index]) for name, column in zip(fields, columns, strict=True))
            body = {name: value for name, value in found if value is not None}
            yield Change(key, wanted, envelope._replace(body_kind=BodyKind.MAP, body=body))
        else:
            yield Change(key, wanted, envelope)
